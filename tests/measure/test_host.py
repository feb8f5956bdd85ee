"""Hosts read from made-up /proc and /sys trees, the advice for them, and this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import psutil
import pytest

from unlag.errors import Missing, UsageError
from unlag.measure.host import Advice, Gpu, Host, Sources, advise, describe, read_host, sample_cpu
from unlag.measure.host_files import parse_core_list
from unlag.measure.host_gpu import read_gpus
from unlag.measure.host_portable import parse_apple_isa

GIB = 2**30

INTEL = (
    "vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) 6430\n"
    "flags\t\t: fpu avx2 fma f16c avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_int8 amx_bf16\n"
)
AMD_GUEST = "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 fma f16c hypervisor\n"
ARM = (
    "processor\t: 0\nFeatures\t: fp asimd fphp asimdhp asimddp sve i8mm bf16\n"
    "CPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n"
    "processor\t: 1\nFeatures\t: fp asimd asimddp sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
)
STAT = (
    "cpu  400 0 100 1400 10 0 10 80 0 0\ncpu0 300 0 60 640 5 0 5 40 0 0\ncpu1 100 0 40 760 5 0 5 40 0 0\nintr 1 2 3\n"
)
MEMORY = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 1048576 kB\nSwapFree: 1048576 kB\n"
CGROUP2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
CGROUP1_MOUNT = "32 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"


def write(root: Path, files: dict[str, str | int]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if isinstance(text, int) else text)


def make_machine(root: Path, cpuinfo: str, extra: dict[str, str | int] | None = None) -> Sources:
    cpu = "sys/devices/system/cpu"
    write(
        root,
        {
            "proc/cpuinfo": cpuinfo,
            "proc/stat": STAT,
            "proc/meminfo": MEMORY,
            "proc/loadavg": "0.10 0.20 0.30 1/100 4242\n",
            "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-1\n",
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": CGROUP2_MOUNT,
            "proc/1/cgroup": "0::/init.scope\n",
            "proc/sys/kernel/osrelease": "6.1.0-test\n",
            "etc/os-release": 'PRETTY_NAME="Test Linux 1"\n',
            f"{cpu}/online": "0-1\n",
            f"{cpu}/cpu0/topology/thread_siblings_list": "0\n",
            f"{cpu}/cpu1/topology/thread_siblings_list": "1\n",
            "sys/devices/system/node/node0/cpulist": "0-1\n",
            **(extra or {}),
        },
    )
    return Sources(platform="linux", proc=root / "proc", sys=root / "sys", root=root)


@pytest.fixture
def intel(tmp_path: Path) -> Sources:
    if sys.platform == "win32":
        pytest.skip("Windows allows no colon in the made-up file names of RAPL")
    cpu = "sys/devices/system/cpu"
    return make_machine(
        tmp_path,
        INTEL,
        {
            f"{cpu}/cpu0/cpufreq/scaling_governor": "powersave\n",
            f"{cpu}/cpu0/cpufreq/scaling_cur_freq": 2100000,
            f"{cpu}/cpu0/cpufreq/cpuinfo_min_freq": 800000,
            f"{cpu}/cpu0/cpufreq/cpuinfo_max_freq": 3400000,
            f"{cpu}/intel_pstate/no_turbo": 0,
            f"{cpu}/cpu0/topology/thread_siblings_list": "0-1\n",
            f"{cpu}/cpu1/topology/thread_siblings_list": "0-1\n",
            f"{cpu}/cpu0/topology/physical_package_id": 0,
            f"{cpu}/cpu1/topology/physical_package_id": 0,
            f"{cpu}/cpu0/thermal_throttle/core_throttle_count": 2,
            f"{cpu}/cpu0/thermal_throttle/package_throttle_count": 5,
            f"{cpu}/cpu1/thermal_throttle/core_throttle_count": 1,
            f"{cpu}/cpu1/thermal_throttle/package_throttle_count": 5,
            "sys/class/hwmon/hwmon0/name": "nvme\n",
            "sys/class/hwmon/hwmon0/temp1_input": 99000,
            "sys/class/hwmon/hwmon1/name": "coretemp\n",
            "sys/class/hwmon/hwmon1/temp1_input": 55000,
            "sys/class/hwmon/hwmon1/temp2_input": 61000,
            "sys/class/powercap/intel-rapl:0/name": "package-0\n",
            "sys/class/powercap/intel-rapl:0/energy_uj": 12_500_000,
        },
    )


def commands(host: Host) -> str:
    return "\n".join(advice.command for advice in advise(host))


def test_intel_with_frequency_control(intel: Sources) -> None:
    host = read_host(intel)
    assert host.cpu.model == "Intel(R) Xeon(R) 6430"
    assert host.cpu.vendor == "GenuineIntel"
    assert "avx512_vnni" in host.cpu.isa
    assert "fpu" not in host.cpu.isa
    assert host.has_int8_dot_product is True
    assert host.has_float16_arithmetic is True
    assert host.has_bfloat16 is True
    assert (host.cpu.logical_cores, host.cpu.physical_cores, host.cpu.smt_active) == (2, 1, True)
    assert host.frequency.governor == "powersave"
    assert (host.frequency.current_mhz, host.frequency.min_mhz, host.frequency.max_mhz) == (2100.0, 800.0, 3400.0)
    assert host.frequency.turbo_on is True
    assert host.heat.temperature_c == 61.0
    assert host.heat.throttle_count == 8  # two core counters and the package once
    assert host.energy[0].energy_j == 12.5
    assert host.system.is_virtual_machine is False
    assert host.system.container == "none"
    assert host.system.os == "Test Linux 1"


def test_intel_advice_names_the_commands(intel: Sources) -> None:
    text = commands(read_host(intel))
    assert "cpupower frequency-set -g performance" in text
    assert "echo 1 | sudo tee" in text
    assert "no_turbo" in text
    assert "taskset -c 0 " in text
    assert "swapoff" not in text
    assert "chmod" not in text


def test_guest_without_cpufreq_says_why(tmp_path: Path) -> None:
    host = read_host(make_machine(tmp_path, AMD_GUEST))
    assert host.system.is_virtual_machine is True
    assert host.has_int8_dot_product is False
    assert host.has_float16_arithmetic is False
    assert isinstance(host.frequency.governor, Missing)
    assert host.frequency.governor.reason.endswith(
        "scaling_governor does not exist: the hypervisor hides frequency control"
    )
    assert isinstance(host.frequency.turbo_on, Missing)
    assert isinstance(host.heat.temperature_c, Missing)
    assert isinstance(host.heat.throttle_count, Missing)
    assert isinstance(host.energy, Missing)
    assert host.load.steal_share_since_boot == pytest.approx(80 / 2000)
    assert any("dedicated machine" in advice.why for advice in advise(host))


def test_arm_takes_only_features_that_all_cores_have(tmp_path: Path) -> None:
    host = read_host(make_machine(tmp_path, ARM))
    assert host.cpu.isa == ("asimddp", "sve")
    assert host.cpu.model == "Neoverse-V1"
    assert host.cpu.vendor == "Arm"
    assert host.has_int8_dot_product is True
    assert host.has_float16_arithmetic is False
    assert isinstance(host.system.is_virtual_machine, Missing)


def test_unknown_isa_is_neither_yes_nor_no(tmp_path: Path) -> None:
    sources = make_machine(tmp_path, INTEL)
    (sources.proc / "cpuinfo").unlink()
    host = read_host(sources)
    assert isinstance(host.has_int8_dot_product, Missing)
    assert "cpuinfo does not exist" in host.has_int8_dot_product.reason


@pytest.mark.parametrize(("quota", "cores", "usable"), [("150000 100000", 1.5, 1), ("max 100000", "unlimited", 2)])
def test_quota_v2(tmp_path: Path, quota: str, cores: float | str, usable: int) -> None:
    stat = "usage_usec 1\nnr_periods 9\nnr_throttled 3\nthrottled_usec 4500\n"
    files = {"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": quota, "sys/fs/cgroup/app/cpu.stat": stat}
    host = read_host(make_machine(tmp_path, INTEL, files))
    assert host.allowance.cgroup_version == 2
    assert host.allowance.quota_cores == cores
    assert host.usable_cores == usable
    assert (host.allowance.throttled_periods, host.allowance.throttled_us) == (3, 4500)
    assert ("cpuset-cpus" in commands(host)) == (cores == 1.5)


def test_the_tightest_quota_above_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/app\n",
        "sys/fs/cgroup/pod/cpu.max": "100000 100000\n",
        "sys/fs/cgroup/pod/app/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/pod/memory.max": GIB,
        "sys/fs/cgroup/pod/app/memory.max": "max\n",
    }
    host = read_host(make_machine(tmp_path, INTEL, files))
    assert host.allowance.quota_cores == 1.0
    assert host.allowance.memory_limit_bytes == GIB


def test_quota_v1_in_a_container_whose_path_is_from_outside(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n0::/\n",
        "proc/self/mountinfo": CGROUP1_MOUNT + CGROUP2_MOUNT,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 50000,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
        "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 7\nnr_throttled 2\nthrottled_time 3000000\n",
    }
    host = read_host(make_machine(tmp_path, INTEL, files))
    assert host.allowance.cgroup_version == 1
    assert host.allowance.quota_cores == 0.5
    assert host.usable_cores == 1
    assert host.allowance.throttled_us == 3000
    assert host.allowance.memory_limit_bytes == Missing("no cgroup with the memory controller is mounted")


def test_unlimited_quota_v1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/\n",
        "proc/self/mountinfo": CGROUP1_MOUNT,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": -1,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
    }
    assert read_host(make_machine(tmp_path, INTEL, files)).allowance.quota_cores == "unlimited"


def test_energy_that_only_root_may_read(intel: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text

    def deny(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(path, encoding=encoding, errors=errors)

    monkeypatch.setattr(Path, "read_text", deny)
    host = read_host(intel)
    assert isinstance(host.energy[0].energy_j, Missing)
    assert "only root" in host.energy[0].energy_j.reason
    assert "sudo chmod a+r /sys/class/powercap" in commands(host)


def test_containers_and_firmware(tmp_path: Path) -> None:
    files = {"proc/1/cgroup": "0::/kubepods/pod1\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"}
    host = read_host(make_machine(tmp_path, ARM, files))
    assert host.system.container == "kubernetes"
    assert host.system.hypervisor == "QEMU"
    assert host.system.is_virtual_machine is True


def test_a_metal_instance_is_no_guest(tmp_path: Path) -> None:
    files = {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "c7g.metal\n"}
    assert isinstance(read_host(make_machine(tmp_path, ARM, files)).system.hypervisor, Missing)


def test_swap_memory_load_and_heat_are_advised(intel: Sources) -> None:
    host = read_host(intel)
    assert isinstance(host.load.swap_used_bytes, int)
    load = msgspec.structs.replace(
        host.load, swap_used_bytes=GIB, memory_available_bytes=GIB // 10, load_1min=3.0, steal_share_since_boot=0.0
    )
    heat = msgspec.structs.replace(host.heat, temperature_c=93.0)
    text = [advice.finding for advice in advise(msgspec.structs.replace(host, load=load, heat=heat))]
    assert any("swap are in use" in finding for finding in text)
    assert any("of 8.0 GiB memory are available" in finding for finding in text)
    assert any("load average 3.0" in finding for finding in text)
    assert any("93 °C" in finding for finding in text)
    assert not any("hypervisor" in finding for finding in text)


def test_nothing_is_advised_where_nothing_is_known_or_wrong(tmp_path: Path) -> None:
    quiet = make_machine(tmp_path, INTEL, {"proc/stat": STAT.replace(" 80 0 0", " 0 0 0")})
    assert advise(msgspec.structs.replace(read_host(quiet), gpus=())) == ()
    empty = Sources(platform="linux", proc=tmp_path / "no", sys=tmp_path / "no", root=tmp_path / "no")
    assert advise(msgspec.structs.replace(read_host(empty), gpus=())) == ()


def test_an_empty_machine_gives_reasons_not_errors(tmp_path: Path) -> None:
    host = read_host(Sources(platform="linux", proc=tmp_path / "p", sys=tmp_path / "s", root=tmp_path / "r"))
    assert host.usable_cores == 1
    unknown = [value for _, value, known in describe(host) if not known]
    assert len(unknown) > 20
    assert all(unknown)


def test_json_round_trip(intel: Sources, tmp_path: Path) -> None:
    guest = make_machine(tmp_path / "guest", AMD_GUEST)
    for host in (read_host(intel), read_host(guest), read_host()):
        assert msgspec.json.decode(msgspec.json.encode(host), type=Host) == host
    advice = advise(read_host(intel))
    assert msgspec.json.decode(msgspec.json.encode(advice), type=tuple[Advice, ...]) == advice


def test_describe_names_each_fact_once(intel: Sources) -> None:
    lines = describe(read_host(intel))
    labels = [label for label, _, _ in lines]
    assert len(set(labels)) == len(labels)
    assert ("governor", "powersave", True) in lines
    assert ("temperature", "61 °C", True) in lines
    assert ("energy package-0", "readable", True) in lines


def test_cpu_clock_counts_work_and_interrupts_but_not_waiting(intel: Sources) -> None:
    clock = sample_cpu(intel)
    assert clock.busy_s == {0: 3.65, 1: 1.45}
    assert clock.steal_s == {0: 0.4, 1: 0.4}


def test_cpu_clock_without_stat_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stat does not exist"):
        sample_cpu(Sources(platform="linux", proc=tmp_path))


def test_this_machine() -> None:
    host = read_host()
    assert host.cpu.logical_cores == psutil.cpu_count()
    assert 1 <= host.usable_cores <= (psutil.cpu_count() or 1)
    assert host.load.memory_total_bytes == psutil.virtual_memory().total


def test_other_systems_are_read_through_psutil() -> None:
    host = read_host(Sources(platform="darwin"))
    assert host.cpu.logical_cores == psutil.cpu_count()
    assert isinstance(host.frequency.governor, Missing)
    assert isinstance(host.allowance.quota_cores, Missing)
    clock = sample_cpu(Sources(platform="win32"))
    assert len(clock.busy_s) == psutil.cpu_count()
    assert isinstance(clock.steal_s, Missing)


def test_apple_names_become_linux_names() -> None:
    arm = {"hw.optional.arm.FEAT_DotProd": "1", "hw.optional.arm.FEAT_I8MM": "0", "hw.optional.arm.FEAT_FP16": "1"}
    assert parse_apple_isa(arm) == ("asimddp", "asimdhp", "fphp")
    assert "avx512_vnni" in parse_apple_isa({"machdep.cpu.leaf7_features": "AVX2 AVX512F AVX512VNNI"})


def test_core_lists() -> None:
    assert parse_core_list("0-2,5\n") == (0, 1, 2, 5)
    assert parse_core_list("") == ()


class FakeNvmlError(Exception):
    """Stands in for pynvml.NVMLError."""


def fake_nvml(*, starts: bool) -> ModuleType:
    def refuse(*_: object) -> None:
        raise FakeNvmlError("Not Supported")

    answers = {
        "NVMLError": FakeNvmlError,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": (lambda: None) if starts else refuse,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: b"NVIDIA Test",
        "nvmlSystemGetDriverVersion": lambda: "570.1",
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=GIB, used=5),
        "nvmlDeviceGetClockInfo": lambda *_: 1200,
        "nvmlDeviceGetMaxClockInfo": lambda *_: 1980,
        "nvmlDeviceGetPowerUsage": lambda _: 71500,
        "nvmlDeviceGetEnforcedPowerLimit": refuse,
        "nvmlDeviceGetTemperature": lambda *_: 40,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x24,
    }
    module = ModuleType("pynvml")
    vars(module).update(answers)
    return module


def test_gpus_keep_what_nvml_refuses_as_missing(intel: Sources) -> None:
    gpus = read_gpus(intel, fake_nvml(starts=True))
    assert isinstance(gpus, tuple)
    gpu = gpus[0]
    assert isinstance(gpu, Gpu)
    assert (gpu.name, gpu.compute_capability, gpu.power_w, gpu.sm_clock_mhz) == ("NVIDIA Test", "9.0", 71.5, 1200)
    assert gpu.power_limit_w == Missing("NVML: Not Supported")
    assert gpu.throttle_reasons == ("power cap", "heat (software)")
    host = msgspec.structs.replace(read_host(intel), gpus=gpus)
    assert msgspec.json.decode(msgspec.json.encode(host), type=Host) == host
    assert any("GPU 0 lowers its clock: power cap" in advice.finding for advice in advise(host))


def test_nvml_that_does_not_start_is_missing(intel: Sources) -> None:
    assert read_gpus(intel, fake_nvml(starts=False)) == Missing("NVML does not start: Not Supported")
