"""The monitor's pace, cost and summary, and what counts as a disturbed turn."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlag.errors import Missing, UsageError
from unlag.measure.host_files import Sources
from unlag.measure.monitor import (
    Clock,
    MachineReader,
    Monitor,
    MonitorLog,
    Reading,
    Sampler,
    Usage,
    disturbance,
    rounding_s,
    take_usage,
)

UNREAD = Missing("not read in this test")
CORE = (psutil.Process().cpu_affinity() or [0])[0] if hasattr(psutil.Process, "cpu_affinity") else 0


def reading(time_s: float = 0.0, **facts: object) -> Reading:
    plain = Reading(
        time_s=time_s,
        busy_cpu_s=0.0,
        steal_s=0.0,
        frequency_mhz=UNREAD,
        temperature_c=UNREAD,
        energy_j=UNREAD,
        memory_available_bytes=1000,
        swap_ins=0,
        thermal_throttles=0,
        cgroup_throttled_us=0,
    )
    return msgspec.structs.replace(plain, **facts)


def usage(wall_s: float = 0.0, **facts: object) -> Usage:
    plain = Usage(wall_s=wall_s, core_count=2, busy_cpu_s=0.0, steal_s=0.0, thermal_throttles=0, cgroup_throttled_us=0)
    return msgspec.structs.replace(plain, **facts)


class ScriptedTime:
    """A clock whose readings cost a given CPU time."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def read(self, time_s: float) -> Reading:
        self.cpu_s += self.cost_s
        self.wall_s += self.cost_s
        return reading(time_s)

    def clock(self) -> Clock:
        return Clock(lambda: self.wall_s, lambda: self.cpu_s)


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.001, 0.5), (0.004, 0.5), (0.010, 1.25), (0.080, 10.0)])
def test_expensive_samples_lengthen_the_interval(cost_s: float, interval_s: float) -> None:
    script = ScriptedTime(cost_s)
    sampler = Sampler(script.read, script.clock(), 0.5)
    for _ in range(20):
        script.wall_s += sampler.step(0.0)
    assert sampler.interval_s == pytest.approx(interval_s)
    assert sampler.spent_s / sampler.elapsed_s < 0.01
    times = [sample.time_s for sample in sampler.readings]
    assert times == sorted(times)


def test_interval_shortens_again_after_one_expensive_sample() -> None:
    script = ScriptedTime(0.05)
    sampler = Sampler(script.read, script.clock(), 0.5)
    assert sampler.step(0.0) == pytest.approx(6.25)
    script.cost_s = 0.0001
    for _ in range(30):
        sampler.step(0.0)
    assert sampler.interval_s == 0.5


def test_monitor_costs_less_than_one_percent() -> None:
    with Monitor([CORE], interval_s=0.05) as monitor:
        time.sleep(3)
    log = monitor.log
    assert 0 < log.cost_share < 0.01
    assert len(log.readings) > 5
    assert log.readings[-1].time_s > 2.9
    assert msgspec.json.decode(msgspec.json.encode(log), type=MonitorLog | Missing) == log


def test_a_short_block_has_a_first_and_a_last_reading() -> None:
    with Monitor([CORE]) as monitor:
        pass
    assert len(monitor.log.readings) == 2


def test_errors_of_the_reader_reach_the_caller() -> None:
    calls = []

    def break_third(time_s: float) -> Reading:
        calls.append(time_s)
        if len(calls) > 2:
            raise UsageError("core 7 is not online")
        return reading(time_s)

    with pytest.raises(UsageError, match="core 7"), Monitor([CORE], interval_s=0.001, reader=break_third):
        time.sleep(0.2)


def test_summary_of_known_readings() -> None:
    readings = (
        reading(0.0, energy_j=1.0, temperature_c=50.0, frequency_mhz=(2000.0, 2500.0)),
        reading(0.5, temperature_c=70.0, memory_available_bytes=400),
        reading(1.0, energy_j=9.0, temperature_c=60.0, frequency_mhz=(1800.0, 2400.0)),
    )
    summary = MonitorLog(readings, 0.001, 0.5).summary
    assert summary.energy_j == 8.0
    assert summary.max_temperature_c == 70.0
    assert (summary.min_frequency_mhz, summary.max_frequency_mhz) == (1800.0, 2500.0)
    assert summary.min_memory_available_bytes == 400
    assert summary.throttled is False


def test_summary_without_readings_or_sensors_is_missing() -> None:
    assert isinstance(MonitorLog((), 0.0, 0.5).summary.energy_j, Missing)
    summary = MonitorLog((reading(thermal_throttles=UNREAD), reading(thermal_throttles=UNREAD)), 0.0, 0.5).summary
    assert summary.max_temperature_c == UNREAD
    assert summary.throttled == UNREAD


def test_throttling_by_quota_is_seen_without_heat_counters() -> None:
    readings = (reading(thermal_throttles=UNREAD), reading(thermal_throttles=UNREAD, cgroup_throttled_us=5))
    assert MonitorLog(readings, 0.0, 0.5).summary.throttled is True


@pytest.fixture
def machine(tmp_path: Path) -> Sources:
    if sys.platform == "win32":
        pytest.skip("Windows allows no colon in the made-up file names of RAPL")
    cpu = tmp_path / "sys/devices/system/cpu/cpu0"
    files = {
        tmp_path / "proc/stat": "cpu  1 0 0 0 0 0 0 0 0 0\ncpu0 100 0 50 0 0 0 0 7 0 0\nintr 0\n",
        tmp_path / "proc/meminfo": "MemAvailable: 4 kB\n",
        tmp_path / "proc/vmstat": "nr_free_pages 1\npswpin 3\npswpout 4\n",
        cpu / "cpufreq/scaling_cur_freq": "2100000\n",
        cpu / "thermal_throttle/core_throttle_count": "0\n",
        cpu / "thermal_throttle/package_throttle_count": "0\n",
        tmp_path / "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        tmp_path / "sys/class/thermal/thermal_zone0/temp": "48500\n",
        tmp_path / "sys/class/powercap/intel-rapl:0/name": "package-0\n",
        tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj": "9000000\n",
        tmp_path / "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "10000000\n",
        tmp_path / "sys/class/powercap/intel-rapl:0:0/name": "core\n",
        tmp_path / "sys/class/powercap/intel-rapl:0:0/energy_uj": "1\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sources(platform="linux", proc=tmp_path / "proc", sys=tmp_path / "sys", root=tmp_path)


def test_reader_of_a_made_up_machine(machine: Sources) -> None:
    sample = MachineReader([0], machine)(1.5)
    assert (sample.time_s, sample.busy_cpu_s, sample.steal_s) == (1.5, 1.5, 0.07)
    assert sample.frequency_mhz == (2100.0,)
    assert sample.temperature_c == 48.5
    assert sample.memory_available_bytes == 4096
    assert sample.swap_ins == 3
    assert sample.thermal_throttles == 0
    assert isinstance(sample.cgroup_throttled_us, Missing)


def test_energy_counts_on_where_the_counter_wraps(machine: Sources) -> None:
    read = MachineReader([0], machine)
    energy = machine.sys / "class/powercap/intel-rapl:0/energy_uj"
    assert read(0.0).energy_j == 0.0
    energy.write_text("9500000\n")
    assert read(0.0).energy_j == 0.5
    energy.write_text("200000\n")
    assert read(0.0).energy_j == pytest.approx(1.2)


def test_energy_that_becomes_unreadable_is_missing(machine: Sources) -> None:
    read = MachineReader([0], machine)
    (machine.sys / "class/powercap/intel-rapl:0/energy_uj").unlink()
    assert isinstance(read(0.0).energy_j, Missing)


def test_other_systems_degrade_to_missing() -> None:
    sample = MachineReader([0], Sources(platform="darwin"))(0.0)
    assert sample.busy_cpu_s > 0
    assert isinstance(sample.steal_s, Missing)
    assert isinstance(sample.frequency_mhz, Missing)
    assert isinstance(sample.energy_j, Missing)
    assert isinstance(sample.memory_available_bytes, int)


def test_a_core_that_is_not_online_is_named() -> None:
    with pytest.raises(UsageError, match="core 9999 is not online"):
        take_usage([9999])


def test_a_quiet_turn_is_quiet() -> None:
    assert disturbance(usage(), usage(0.4, busy_cpu_s=0.8), 0.8) is None
    assert disturbance(usage(), usage(0.4, busy_cpu_s=0.85), 0.8) is None  # 50 ms: 30 ms and rounding
    assert disturbance(usage(), usage(0.4, busy_cpu_s=0.79), 0.8) is None  # rounded down


def test_foreign_cpu_time_disturbs() -> None:
    reason = disturbance(usage(), usage(0.4, busy_cpu_s=0.9), 0.8)
    assert reason == "other processes used 100 ms of CPU in a turn of 400 ms"


def test_long_turns_bear_more_foreign_time_in_proportion() -> None:
    assert disturbance(usage(), usage(10.0, busy_cpu_s=20.5), 20.0) is None
    assert disturbance(usage(), usage(10.0, busy_cpu_s=20.9), 20.0) is not None


@pytest.mark.parametrize(
    ("wall_s", "steal_s", "disturbed"),
    [(0.2, 0.02, False), (0.2, 0.03, True), (2.0, 0.09, False), (2.0, 0.11, True), (0.2, UNREAD, False)],
)
def test_steal(wall_s: float, steal_s: float | Missing, disturbed: bool) -> None:  # noqa: FBT001 - a table
    before = usage(steal_s=UNREAD if isinstance(steal_s, Missing) else 0.0)
    reason = disturbance(before, usage(wall_s, steal_s=steal_s), 0.0)
    assert (reason is not None and "hypervisor" in reason) == disturbed


def test_throttling_disturbs() -> None:
    heat = disturbance(usage(), usage(0.4, thermal_throttles=2), 0.0)
    quota = disturbance(usage(), usage(0.4, cgroup_throttled_us=12_000), 0.0)
    assert heat == "the CPU slowed down because of heat (2 times)"
    assert quota == "the CPU quota of the container stopped us for 12 ms"
    earlier = {"thermal_throttles": 7, "cgroup_throttled_us": 9}
    assert disturbance(usage(**earlier), usage(0.4, **earlier), 0.0) is None


@given(
    starts=st.lists(st.floats(0, 1000), min_size=4, max_size=4),
    shares=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    wall_s=st.floats(0.2, 5),
)
def test_rounding_alone_never_disturbs(starts: list[float], shares: list[float], wall_s: float) -> None:
    ticks = [
        int((start + share * wall_s) * 100) / 100 - int(start * 100) / 100
        for start, share in zip(starts, shares, strict=True)
    ]
    own_s = sum(share * wall_s for share in shares)
    # Worst case: all four counters round up; 3 sigma are 24 ms, the bound is 40 ms, the threshold 54 ms.
    assert disturbance(usage(), usage(wall_s, busy_cpu_s=sum(ticks)), own_s) is None


def test_rounding_grows_slower_than_the_cores() -> None:
    assert rounding_s(1) <= 0.02
    assert rounding_s(2) == pytest.approx(0.0245, abs=1e-4)
    assert rounding_s(64) < 0.15


def test_a_busy_foreign_process_is_caught() -> None:
    cores = list(range(psutil.cpu_count() or 1)) if sys.platform != "linux" else psutil.Process().cpu_affinity()
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as spinner:
        assert spinner.stdout is not None
        spinner.stdout.readline()
        before, own_s = take_usage(cores), time.process_time()
        time.sleep(0.5)
        after, own_s = take_usage(cores), time.process_time() - own_s
        spinner.kill()
    reason = disturbance(before, after, own_s)
    assert reason is not None
    assert "ms of" in reason


def test_taking_usage_is_cheap() -> None:
    times_s = []
    for _ in range(50):
        started_s = time.perf_counter()
        take_usage([CORE])
        times_s.append(time.perf_counter() - started_s)
    # Measured: 0.04 ms on a 2-core guest; /proc/stat grows with the cores of the machine.
    assert statistics.median(times_s) < 0.003
