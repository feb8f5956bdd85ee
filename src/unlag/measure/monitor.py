"""Watch the machine during a measurement: samples over the whole of it, and whether a single turn was disturbed.

Read the limits of these counters in ``host_counters``: in a virtual machine a quiet reading is no proof of quiet.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import msgspec
import psutil

from unlag.errors import Missing
from unlag.measure import host_linux, host_portable
from unlag.measure.host_counters import Counters
from unlag.measure.host_files import Sources, parse_fields, read_int, read_text

T = TypeVar("T")
N = TypeVar("N", int, float)

FOREIGN_CPU_S = 0.030
"""Below this, foreign CPU time is the system's own upkeep, and at three ticks not to be told from rounding."""
FOREIGN_SHARE = 0.08
"""Of one core during the turn. A core that is shared for 8 % of a turn delays a thread pool by up to as much."""
STEAL_S = 0.020
"""Two ticks: one tick of steal can be rounding."""
STEAL_SHARE = 0.05
"""Of one core during the turn: all threads of a parallel operator wait for the one that was stopped."""
TICK_S = 0.010
"""Step of ``/proc/stat`` (USER_HZ 100), which rounds every kind of time down by itself."""
ROUNDED_KINDS = 2
"""Kinds of CPU time that grow during a turn: user and system."""
COST_SHARE = 0.008
"""The monitor promises to stay below 1 % of a core; samples vary in cost, so it aims lower."""


class Reading(msgspec.Struct, frozen=True):
    """One sample. Counters that only grow are as the system counts them: compare two readings."""

    time_s: float
    """Since the monitor started."""
    busy_cpu_s: float
    """Of the watched cores together, since boot."""
    steal_s: float | Missing
    frequency_mhz: tuple[float, ...] | Missing
    """Of each watched core."""
    temperature_c: float | Missing
    energy_j: float | Missing
    """Of all CPU packages, since the reader was made."""
    memory_available_bytes: int | Missing
    swap_ins: int | Missing
    """Pages read back from swap since boot (bytes on systems other than Linux)."""
    thermal_throttles: int | Missing
    cgroup_throttled_us: int | Missing


class Summary(msgspec.Struct, frozen=True, tag=True):
    """What the readings say together."""

    energy_j: float | Missing
    max_temperature_c: float | Missing
    min_frequency_mhz: float | Missing
    max_frequency_mhz: float | Missing
    min_memory_available_bytes: int | Missing
    throttled: bool | Missing
    """By heat or by a CPU quota; Missing if nothing was seen and one of the two can't be seen."""


class MonitorLog(msgspec.Struct, frozen=True, tag=True):
    """What a monitor saw, and what it cost."""

    readings: tuple[Reading, ...]
    cost_share: float
    """CPU seconds of the sampling thread for each second watched."""
    interval_s: float
    """The last one; longer than asked for if samples were too expensive."""

    @property
    def summary(self) -> Summary:
        """Energy, extremes and throttling over all readings."""
        mhz = _known([reading.frequency_mhz for reading in self.readings])
        flat = mhz if isinstance(mhz, Missing) else [value for cores in mhz for value in cores]
        heat = _known([reading.temperature_c for reading in self.readings])
        memory = _known([reading.memory_available_bytes for reading in self.readings])
        return Summary(
            energy_j=_growth([reading.energy_j for reading in self.readings]),
            max_temperature_c=heat if isinstance(heat, Missing) else max(heat),
            min_frequency_mhz=flat if isinstance(flat, Missing) else min(flat),
            max_frequency_mhz=flat if isinstance(flat, Missing) else max(flat),
            min_memory_available_bytes=memory if isinstance(memory, Missing) else min(memory),
            throttled=_any_grew(
                _growth([reading.thermal_throttles for reading in self.readings]),
                _growth([reading.cgroup_throttled_us for reading in self.readings]),
            ),
        )


class Clock(NamedTuple):
    """Wall time, and CPU time of the calling thread, both in seconds; tests script them."""

    wall_s: Callable[[], float] = time.perf_counter
    cpu_s: Callable[[], float] = time.thread_time


Reader = Callable[[float], Reading]
"""Takes one reading; gets the seconds since the monitor started."""


class MachineReader:
    """Reads this machine. Which files hold what is found out once, so that a reading stays cheap."""

    def __init__(self, cores: Sequence[int], sources: Sources | None = None) -> None:
        self._sources = sources or Sources()
        self._counters = Counters(cores, self._sources)
        self._frequency_files = [self._sources.cpus / f"cpu{core}/cpufreq/scaling_cur_freq" for core in cores]
        self._temperature_files = host_linux.find_temperature_files(self._sources)
        self._energy = _find_energy_counters(self._sources)

    def __call__(self, time_s: float) -> Reading:
        """Take one reading.

        Raises:
            UsageError: a watched core went offline.
        """
        busy_s, steal_s = self._counters.cpu_s()
        linux = self._sources.is_linux
        elsewhere = Missing("read on Linux only")
        return Reading(
            time_s=time_s,
            busy_cpu_s=busy_s,
            steal_s=steal_s,
            frequency_mhz=self._frequencies_mhz() if linux else elsewhere,
            temperature_c=host_linux.read_temperature(self._temperature_files) if linux else elsewhere,
            energy_j=self._energy_j(),
            memory_available_bytes=host_linux.read_memory(self._sources)["MemAvailable"]
            if linux
            else host_portable.read_memory_available(),
            swap_ins=_read_swap_ins(self._sources),
            thermal_throttles=self._counters.thermal_throttles(),
            cgroup_throttled_us=self._counters.cgroup_throttled_us(),
        )

    def _frequencies_mhz(self) -> tuple[float, ...] | Missing:
        khz = [read_int(file) for file in self._frequency_files]
        known = [value for value in khz if isinstance(value, int)]
        if len(known) == len(khz):
            return tuple(value / 1000 for value in known)
        return next(value for value in khz if isinstance(value, Missing))

    def _energy_j(self) -> float | Missing:
        if isinstance(self._energy, Missing):
            return self._energy
        packages = [counter.read_j() for counter in self._energy]
        known = [package for package in packages if isinstance(package, float)]
        if len(known) == len(packages):
            return sum(known)
        return next(package for package in packages if isinstance(package, Missing))


class EnergyCounter:
    """A RAPL counter that counts on where the hardware's wraps around."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range_uj = read_int(folder / "max_energy_range_uj")
        self._last_uj = read_int(self._file)
        self._total_uj = 0

    def read_j(self) -> float | Missing:
        """Energy in joules since this object was made; right if it is read at least once a wrap (minutes)."""
        now_uj = read_int(self._file)
        if isinstance(now_uj, Missing):
            return now_uj
        if isinstance(self._last_uj, Missing):
            return self._last_uj
        if now_uj < self._last_uj and isinstance(self._range_uj, Missing):
            return self._range_uj
        wrapped = self._range_uj if now_uj < self._last_uj and isinstance(self._range_uj, int) else 0
        self._total_uj += now_uj - self._last_uj + wrapped
        self._last_uj = now_uj
        return self._total_uj / 1e6


class Sampler:
    """Takes readings and paces them by what they cost. Has no thread; ``Monitor`` gives it one."""

    def __init__(self, reader: Reader, clock: Clock, interval_s: float) -> None:
        self._reader = reader
        self._clock = clock
        self._asked_s = interval_s
        self._started_s = clock.wall_s()
        self._paced = 0
        self.interval_s = interval_s
        self.spent_s = 0.0
        self.readings: list[Reading] = []

    @property
    def elapsed_s(self) -> float:
        """Wall time since this sampler was made."""
        return self._clock.wall_s() - self._started_s

    def record(self) -> None:
        """Take a reading."""
        self.readings.append(self._reader(self.elapsed_s))

    def step(self, thread_started_s: float) -> float:
        """Take a reading; return the seconds to wait, so many that the cost stays below 1 % of a core.

        ``thread_started_s`` is the sampling thread's CPU time when it began: waking up counts as cost too.
        """
        self.record()
        self._paced += 1
        self.spent_s = self._clock.cpu_s() - thread_started_s
        self.interval_s = max(self._asked_s, self.spent_s / self._paced / COST_SHARE)
        return self.interval_s


class Monitor:
    """Samples the machine in a background thread while the ``with`` block runs; read ``log`` afterwards.

    One reading is taken at the start and one at the end, so that even a short block has its difference.
    """

    def __init__(
        self,
        cores: Sequence[int],
        interval_s: float = 0.5,
        reader: Reader | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._reader = reader or MachineReader(cores)
        self._clock = clock or Clock()
        self._sampler = Sampler(self._reader, self._clock, interval_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="unlag-monitor", daemon=True)
        self._error: Exception | None = None
        self._watched_s = 0.0

    def __enter__(self) -> Self:
        """Take the first reading and start the thread."""
        # Once unrecorded: the first reading fills caches and would count as the dearest.
        self._reader(0.0)
        self._sampler = Sampler(self._reader, self._clock, self._sampler.interval_s)
        self._sampler.record()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread and take the last reading; an error of the thread is raised here."""
        self._stop.set()
        self._thread.join()
        self._watched_s = self._sampler.elapsed_s
        if self._error is None:
            self._sampler.record()
        elif error is None:
            raise self._error

    @property
    def log(self) -> MonitorLog:
        """What was seen so far; complete after the block."""
        watched_s = self._watched_s or self._sampler.elapsed_s
        share = self._sampler.spent_s / watched_s if watched_s > 0 else 0.0
        return MonitorLog(tuple(self._sampler.readings), share, self._sampler.interval_s)

    def _watch(self) -> None:
        started_s = self._clock.cpu_s()
        try:
            while not self._stop.wait(self._sampler.interval_s):
                self._sampler.step(started_s)
        except Exception as error:  # noqa: BLE001 - kept, and raised by the thread that measures
            self._error = error


class Usage(msgspec.Struct, frozen=True):
    """The counters of some cores at one moment."""

    wall_s: float
    core_count: int
    busy_cpu_s: float
    steal_s: float | Missing
    thermal_throttles: int | Missing
    cgroup_throttled_us: int | Missing


def take_usage(cores: Sequence[int], sources: Sources | None = None) -> Usage:
    """Read the counters of these cores, in a fraction of a millisecond.

    Raises:
        UsageError: one of the cores is not online.
    """
    counters = _find_counters(tuple(cores), sources or Sources())
    busy_s, steal_s = counters.cpu_s()
    return Usage(
        wall_s=time.perf_counter(),
        core_count=len(cores),
        busy_cpu_s=busy_s,
        steal_s=steal_s,
        thermal_throttles=counters.thermal_throttles(),
        cgroup_throttled_us=counters.cgroup_throttled_us(),
    )


def disturbance(before: Usage, after: Usage, own_cpu_s: float) -> str | None:
    """Why the turn between two snapshots is not to be trusted, or None if it was quiet.

    ``own_cpu_s`` is the CPU time that the contender and unlag itself used between them on these cores. Take it from
    ``time.process_time()`` in each process, which is exact, not from psutil, which rounds to 10 ms.
    """
    wall_s = after.wall_s - before.wall_s
    heat = _growth([before.thermal_throttles, after.thermal_throttles])
    if isinstance(heat, int) and heat > 0:
        return f"the CPU slowed down because of heat ({heat} times)"
    quota_us = _growth([before.cgroup_throttled_us, after.cgroup_throttled_us])
    if isinstance(quota_us, int) and quota_us > 0:
        return f"the CPU quota of the container stopped us for {quota_us / 1000:.0f} ms"
    steal_s = _growth([before.steal_s, after.steal_s])
    if isinstance(steal_s, float) and steal_s > max(STEAL_S, STEAL_SHARE * wall_s):
        return f"the hypervisor took {steal_s * 1000:.0f} ms of a turn of {wall_s * 1000:.0f} ms"
    foreign_s = after.busy_cpu_s - before.busy_cpu_s - own_cpu_s
    if foreign_s > max(FOREIGN_CPU_S, FOREIGN_SHARE * wall_s) + rounding_s(after.core_count):
        return f"other processes used {foreign_s * 1000:.0f} ms of CPU in a turn of {wall_s * 1000:.0f} ms"
    return None


def rounding_s(core_count: int) -> float:
    """How far rounding alone can move the busy time of a turn: three standard deviations, at most the hard bound.

    Each of ``core_count * ROUNDED_KINDS`` counters is rounded down by up to a tick at both ends, which are independent:
    the difference has a variance of tick² / 6.
    """
    counters = core_count * ROUNDED_KINDS
    return min(counters * TICK_S, 3 * TICK_S * math.sqrt(counters / 6))


@functools.lru_cache(maxsize=16)
def _find_counters(cores: tuple[int, ...], sources: Sources) -> Counters:
    return Counters(cores, sources)


def _find_energy_counters(sources: Sources) -> list[EnergyCounter] | Missing:
    """Counters of the packages; their sub-domains are parts of them, and ``psys`` counts more than the CPU."""
    folder = sources.sys / "class/powercap"
    zones = sorted(folder.glob("intel-rapl:*")) if sources.is_linux else []
    packages = [zone for zone in zones if str(read_text(zone / "name")).startswith("package")]
    return [EnergyCounter(zone) for zone in packages] or Missing(f"{folder} has no RAPL package counters")


def _read_swap_ins(sources: Sources) -> int | Missing:
    if not sources.is_linux:
        return int(psutil.swap_memory().sin)
    path = sources.proc / "vmstat"
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    count = parse_fields(text, " ").get("pswpin")
    return Missing(f"{path} has no pswpin: a kernel without swap") if count is None else int(count)


def _known(values: Sequence[T | Missing]) -> list[T] | Missing:
    """The values that are known, or why not even one is."""
    known = [value for value in values if not isinstance(value, Missing)]
    if known:
        return known
    return next((value for value in values if isinstance(value, Missing)), Missing("no readings were taken"))


def _growth(values: Sequence[N | Missing]) -> N | Missing:
    """From the first to the last known value of a counter."""
    known = _known(values)
    if isinstance(known, Missing):
        return known
    return known[-1] - known[0] if len(known) > 1 else Missing("read only once, so its growth is unknown")


def _any_grew(*growths: int | Missing) -> bool | Missing:
    if any(isinstance(growth, int) and growth > 0 for growth in growths):
        return True
    return next((growth for growth in growths if isinstance(growth, Missing)), False)
