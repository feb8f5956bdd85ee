"""The facts of a Linux machine, from the files under ``/proc`` and ``/sys``."""

from __future__ import annotations

import platform
from pathlib import Path

from unlag.errors import Missing
from unlag.measure.host_cgroup import find_groups, read_memory_limit, read_quota, read_throttling
from unlag.measure.host_counters import find_throttle_files, read_throttle_count
from unlag.measure.host_facts import ISA_NAMES, Allowance, Cpu, EnergyDomain, Frequency, Heat, Load, System
from unlag.measure.host_files import Sources, parse_core_list, parse_fields, read_int, read_text

_ARM_IMPLEMENTERS = {
    "0x41": "Arm", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0x51": "Qualcomm", "0x61": "Apple",
    "0xc0": "Ampere",
}  # fmt: skip
_ARM_PARTS = {
    "0xd03": "Cortex-A53", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72", "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2",
}  # fmt: skip
"""From ``arch/arm64/include/asm/cputype.h`` of Linux; the parts are Arm's own."""

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
"""Names under which ``/sys/class/hwmon`` lists sensors of the CPU: Intel, AMD (two drivers), device tree."""

_HYPERVISOR_SIGNS = (
    "qemu", "kvm", "vmware", "virtual", "xen", "amazon ec2", "google compute", "openstack", "parallels", "bochs",
)  # fmt: skip
"""Parts of the maker's or product's name in DMI; EC2's ``.metal`` machines carry Amazon's name without one."""

_CONTAINER_MARKS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("/lxc", "lxc"))

_NO_FREQUENCY = {
    True: "the hypervisor hides frequency control",
    False: "the kernel has loaded no cpufreq driver",
}


def read_cpu(sources: Sources) -> Cpu:
    """Model, instruction sets and topology."""
    text = read_text(sources.proc / "cpuinfo")
    fields = {} if isinstance(text, Missing) else parse_fields(text)
    absent = text if isinstance(text, Missing) else Missing(f"{sources.proc / 'cpuinfo'} does not name it")
    part = fields.get("CPU part")
    implementer = fields.get("CPU implementer", "")
    cores = _online_cores(sources)
    siblings = _siblings(sources, cores)
    nodes = sources.sys / "devices/system/node"
    return Cpu(
        model=fields.get("model name") or _arm_model(implementer, part) or absent,
        vendor=fields.get("vendor_id") or _ARM_IMPLEMENTERS.get(implementer, implementer) or absent,
        architecture=platform.machine(),
        isa=text if isinstance(text, Missing) else _common_isa(text),
        logical_cores=cores if isinstance(cores, Missing) else len(cores),
        physical_cores=siblings if isinstance(siblings, Missing) else len(siblings),
        smt_active=siblings if isinstance(siblings, Missing) else any(len(group) > 1 for group in siblings),
        siblings=siblings,
        numa_nodes=len(list(nodes.glob("node[0-9]*"))) or Missing(f"{nodes} lists no nodes: a kernel without NUMA"),
    )


def read_allowance(sources: Sources, memory_total_bytes: int | Missing) -> Allowance:
    """Affinity and the limits of the control groups."""
    status = read_text(sources.proc / "self/status")
    allowed = "" if isinstance(status, Missing) else parse_fields(status).get("Cpus_allowed_list", "")
    groups = find_groups(sources, "cpu")
    throttling = read_throttling(groups)
    return Allowance(
        affinity=parse_core_list(allowed) or Missing(f"{sources.proc / 'self/status'} has no Cpus_allowed_list"),
        cgroup_version=groups if isinstance(groups, Missing) else groups.version,
        quota_cores=read_quota(groups),
        throttled_periods=throttling if isinstance(throttling, Missing) else throttling[0],
        throttled_us=throttling if isinstance(throttling, Missing) else throttling[1],
        memory_limit_bytes=read_memory_limit(find_groups(sources, "memory"), memory_total_bytes),
    )


def read_frequency(sources: Sources) -> Frequency:
    """Governor, clocks and turbo."""
    virtual = _is_virtual_machine(sources)
    why = "no cpufreq driver" if isinstance(virtual, Missing) else _NO_FREQUENCY[virtual]
    cores = _online_cores(sources)
    folder = sources.cpus / f"cpu{0 if isinstance(cores, Missing) else cores[0]}/cpufreq"

    def mhz(name: str) -> float | Missing:
        khz = read_int(folder / name, why)
        return khz if isinstance(khz, Missing) else khz / 1000

    turbo_on, control = _turbo(sources, why)
    return Frequency(
        governor=read_text(folder / "scaling_governor", why),
        current_mhz=mhz("scaling_cur_freq"),
        min_mhz=mhz("cpuinfo_min_freq"),
        max_mhz=mhz("cpuinfo_max_freq"),
        turbo_on=turbo_on,
        turbo_control=control,
    )


def read_load(sources: Sources) -> Load:
    """Load average, steal, memory and swap."""
    load = read_text(sources.proc / "loadavg")
    memory = read_memory(sources)
    swap_total, swap_free = memory["SwapTotal"], memory["SwapFree"]
    return Load(
        load_1min=load if isinstance(load, Missing) else float(load.split()[0]),
        steal_share_since_boot=_steal_share(sources),
        memory_total_bytes=memory["MemTotal"],
        memory_available_bytes=memory["MemAvailable"],
        swap_total_bytes=swap_total,
        swap_used_bytes=swap_total - swap_free
        if isinstance(swap_total, int) and isinstance(swap_free, int)
        else Missing(f"{sources.proc / 'meminfo'} does not tell how much swap is used"),
    )


def read_memory(sources: Sources) -> dict[str, int | Missing]:
    """Bytes of ``MemTotal``, ``MemAvailable``, ``SwapTotal`` and ``SwapFree``."""
    path = sources.proc / "meminfo"
    text = read_text(path)
    keys = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
    if isinstance(text, Missing):
        return dict.fromkeys(keys, text)
    fields = parse_fields(text)
    return {
        key: int(fields[key].split()[0]) * 1024 if key in fields else Missing(f"{path} has no {key}") for key in keys
    }


def read_heat(sources: Sources) -> Heat:
    """Temperature and heat counters."""
    cores = _online_cores(sources)
    files = cores if isinstance(cores, Missing) else find_throttle_files(sources, cores)
    return Heat(read_temperature(find_temperature_files(sources)), read_throttle_count(files))


def find_temperature_files(sources: Sources) -> tuple[Path, ...] | Missing:
    """The sensors of the CPU, by driver; else the thermal zones that name the CPU."""
    chips = sorted((sources.sys / "class/hwmon").glob("hwmon*"))
    files = [file for chip in chips if read_text(chip / "name") in _CPU_SENSORS for file in chip.glob("temp*_input")]
    if not files:
        zones = sorted((sources.sys / "class/thermal").glob("thermal_zone*"))
        kinds = ((zone, read_text(zone / "type")) for zone in zones)
        files = [zone / "temp" for zone, kind in kinds if isinstance(kind, str) and _names_cpu(kind)]
    where = f"{sources.sys / 'class'}/hwmon and /thermal"
    return tuple(files) or Missing(f"no CPU sensor in {where}: usual in virtual machines and containers")


def read_temperature(files: tuple[Path, ...] | Missing) -> float | Missing:
    """The hottest of the sensors, in °C."""
    if isinstance(files, Missing):
        return files
    values = [read_int(file) for file in files]
    known = [value / 1000 for value in values if isinstance(value, int)]
    return max(known) if known else next(value for value in values if isinstance(value, Missing))


def read_energy(sources: Sources) -> tuple[EnergyDomain, ...] | Missing:
    """Every RAPL domain; AMD's are listed under Intel's name too."""
    folder = sources.sys / "class/powercap"
    zones = sorted(folder.glob("intel-rapl:*"))
    if not zones:
        return Missing(f"{folder} has no intel-rapl zones: no RAPL driver, or a hypervisor that hides it")
    domains = []
    for zone in zones:
        energy_uj = read_int(zone / "energy_uj", "Linux lets only root read energy (CVE-2020-8694)")
        energy_j = energy_uj if isinstance(energy_uj, Missing) else energy_uj / 1e6
        domains.append(EnergyDomain(str(read_text(zone / "name")), str(zone / "energy_uj"), energy_j))
    return tuple(domains)


def read_system(sources: Sources) -> System:
    """Operating system, virtual machine and container."""
    release = read_text(sources.root / "etc/os-release")
    name = None if isinstance(release, Missing) else parse_fields(release, "=").get("PRETTY_NAME")
    kernel = read_text(sources.proc / "sys/kernel/osrelease")
    return System(
        os=name.strip('"') if name else "Linux",
        kernel=platform.release() if isinstance(kernel, Missing) else kernel,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        is_virtual_machine=_is_virtual_machine(sources),
        hypervisor=_hypervisor(sources),
        container=_container(sources),
    )


def _online_cores(sources: Sources) -> tuple[int, ...] | Missing:
    text = read_text(sources.cpus / "online")
    if isinstance(text, Missing):
        return text
    return parse_core_list(text) or Missing(f"{sources.cpus / 'online'} is empty")


def _siblings(sources: Sources, cores: tuple[int, ...] | Missing) -> tuple[tuple[int, ...], ...] | Missing:
    if isinstance(cores, Missing):
        return cores
    groups = set()
    for core in cores:
        text = read_text(sources.cpus / f"cpu{core}/topology/thread_siblings_list")
        if isinstance(text, Missing):
            return text
        groups.add(parse_core_list(text))
    return tuple(sorted(groups))


def _common_isa(cpuinfo: str) -> tuple[str, ...] | Missing:
    """Flags that all cores have: big and little cores of ARM may differ."""
    lines = (line.partition(":") for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    sets = [frozenset(flags.split()) for _, _, flags in lines]
    if not sets:
        return Missing("/proc/cpuinfo lists no flags or features")
    return tuple(sorted(ISA_NAMES.intersection(*sets)))


def _arm_model(implementer: str, part: str | None) -> str | None:
    if part is None:
        return None
    known = _ARM_PARTS.get(part) if implementer == "0x41" else None
    return known or f"{_ARM_IMPLEMENTERS.get(implementer, implementer)} part {part}"


def _turbo(sources: Sources, why: str) -> tuple[bool | Missing, str | Missing]:
    no_turbo = sources.cpus / "intel_pstate/no_turbo"
    boosts = [sources.cpus / "cpufreq/boost", *sorted((sources.cpus / "cpufreq").glob("policy*/boost"))]
    value = read_int(no_turbo)
    if isinstance(value, int):
        return value == 0, str(no_turbo)
    for boost in boosts:
        value = read_int(boost)
        if isinstance(value, int):
            return value == 1, str(boost)
    absent = Missing(f"neither {no_turbo} nor {boosts[0]} exists: {why}")
    return absent, absent


def _steal_share(sources: Sources) -> float | Missing:
    text = read_text(sources.proc / "stat")
    if isinstance(text, Missing):
        return text
    ticks = [int(column) for column in text.splitlines()[0].split()[1:9]]
    if len(ticks) < 8 or not sum(ticks):
        return Missing(f"{sources.proc / 'stat'} has no steal column")
    return ticks[7] / sum(ticks)


def _names_cpu(kind: str) -> bool:
    return kind == "x86_pkg_temp" or "cpu" in kind.lower() or kind == "soc_thermal"


def _is_virtual_machine(sources: Sources) -> bool | Missing:
    text = read_text(sources.proc / "cpuinfo")
    flags = None if isinstance(text, Missing) else parse_fields(text).get("flags")
    if flags is not None:
        return "hypervisor" in flags.split()
    if isinstance(_hypervisor(sources), str):
        return True
    return Missing("this CPU has no hypervisor flag, and neither firmware nor device tree names a hypervisor")


def _hypervisor(sources: Sources) -> str | Missing:
    """The hypervisor by name, where firmware or device tree tells it."""
    for path in (sources.sys / "hypervisor/type", sources.proc / "device-tree/hypervisor/compatible"):
        text = read_text(path)
        if isinstance(text, str) and text:
            return text.strip("\0")
    dmi = sources.sys / "class/dmi/id"
    names = (read_text(dmi / "sys_vendor"), read_text(dmi / "product_name"))
    maker = " ".join(name for name in names if isinstance(name, str))
    if any(sign in maker.lower() for sign in _HYPERVISOR_SIGNS) and "metal" not in maker.lower():
        return maker
    return Missing(f"{dmi} names no hypervisor")


def _container(sources: Sources) -> str | Missing:
    if (sources.root / ".dockerenv").exists():
        return "docker"
    if (sources.root / "run/.containerenv").exists():
        return "podman"
    groups = read_text(sources.proc / "1/cgroup")
    if isinstance(groups, Missing):
        return groups
    return next((name for mark, name in _CONTAINER_MARKS if mark in groups), "none")
