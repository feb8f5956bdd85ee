"""The machine that measures: what it is, what would disturb a measurement on it, and how to change that.

Structs are in ``host_facts``, readers in ``host_linux``, ``host_portable`` and ``host_gpu``; import them from here.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from unlag.errors import Missing
from unlag.measure import host_linux, host_portable
from unlag.measure.host_counters import CpuClock, sample_cpu
from unlag.measure.host_facts import (
    ISA_NAMES,
    Allowance,
    Cpu,
    EnergyDomain,
    Frequency,
    Gpu,
    Heat,
    Host,
    Load,
    System,
)
from unlag.measure.host_files import Sources
from unlag.measure.host_gpu import read_gpus

__all__ = [
    "ISA_NAMES", "Advice", "Allowance", "Cpu", "CpuClock", "EnergyDomain", "Frequency", "Gpu", "Heat", "Host", "Load",
    "Sources", "System", "advise", "describe", "read_host", "sample_cpu",
]  # fmt: skip

LOAD_PER_CORE = 0.25
"""Above this, others keep a quarter of each core busy: more than the 8 % that mark a turn as disturbed."""
STEAL_SHARE = 0.01
"""Mean since boot. The verdict's margin is 1 %; more steal than that can decide it."""
HOT_C = 85.0
"""Common CPUs lower their clock from 90 to 105 °C; a run that starts above this reaches it."""
MEMORY_SHARE = 0.1
"""Less available memory than this, and page cache and contenders push each other out."""

_SLOWING_REASONS = ("power cap", "hardware slowdown", "heat (software)", "heat (hardware)", "power brake")

Line = tuple[str, str, bool]


class Advice(msgspec.Struct, frozen=True):
    """Something to change before measuring. ``command`` is empty where no command can change it."""

    finding: str
    command: str
    why: str


def read_host(sources: Sources | None = None) -> Host:
    """Read this machine. What can't be read is ``Missing`` with the reason; nothing is raised or guessed."""
    sources = sources or Sources()
    if sources.is_linux:
        load = host_linux.read_load(sources)
        return Host(
            cpu=host_linux.read_cpu(sources),
            allowance=host_linux.read_allowance(sources, load.memory_total_bytes),
            frequency=host_linux.read_frequency(sources),
            load=load,
            heat=host_linux.read_heat(sources),
            energy=host_linux.read_energy(sources),
            gpus=read_gpus(sources),
            system=host_linux.read_system(sources),
        )
    return Host(
        cpu=host_portable.read_cpu(),
        allowance=host_portable.read_allowance(),
        frequency=host_portable.read_frequency(),
        load=host_portable.read_load(),
        heat=host_portable.read_heat(),
        energy=Missing("RAPL energy counters are read on Linux only"),
        gpus=read_gpus(sources),
        system=host_portable.read_system(),
    )


def advise(host: Host) -> tuple[Advice, ...]:
    """What to change on this machine before measuring, the most disturbing first. Unknown facts give no advice."""
    parts = (_advise_sharing, _advise_limits, _advise_clock, _advise_memory, _advise_heat, _advise_energy)
    return tuple(advice for part in parts for advice in part(host))


def _advise_sharing(host: Host) -> Iterable[Advice]:
    steal, load = host.load.steal_share_since_boot, host.load.load_1min
    if isinstance(steal, float) and steal > STEAL_SHARE:
        yield Advice(
            f"the hypervisor took {steal:.1%} of the CPU time since boot",
            "",
            "other guests of this machine stop yours at random; use a dedicated machine or instance",
        )
    if isinstance(load, float) and load > LOAD_PER_CORE * host.usable_cores:
        yield Advice(
            f"load average {load:.1f} on {host.usable_cores} usable cores",
            "ps -eo pcpu,pid,comm --sort=-pcpu | head",
            "other processes take cores and caches; stop what is not needed, then wait a minute",
        )


def _advise_limits(host: Host) -> Iterable[Advice]:
    allowance, cores = host.allowance, host.usable_cores
    if isinstance(allowance.quota_cores, float):
        throttled = _show(allowance.throttled_periods)
        yield Advice(
            f"a CPU quota of {allowance.quota_cores:g} cores, throttled {throttled} times so far",
            f"docker run --cpuset-cpus=0-{cores - 1} ...  # instead of --cpus; Kubernetes: static CPU manager policy",
            "a quota stops all threads for the rest of a period (usually 100 ms) once it is used up",
        )
    pinned, siblings = allowance.affinity, host.cpu.siblings
    if not isinstance(pinned, Missing) and not isinstance(siblings, Missing):
        firsts = [next(core for core in group if core in pinned) for group in siblings if set(group) & set(pinned)]
        if len(firsts) < len(pinned):
            yield Advice(
                f"{len(pinned)} allowed logical cores are only {len(firsts)} physical ones",
                f"taskset -c {','.join(map(str, firsts))} unlag ...",
                "two threads of one core share its arithmetic units, so times depend on where threads land",
            )


def _advise_clock(host: Host) -> Iterable[Advice]:
    governor, control = host.frequency.governor, host.frequency.turbo_control
    if isinstance(governor, str) and governor != "performance":
        yield Advice(
            f"frequency governor {governor}",
            "sudo cpupower frequency-set -g performance",
            "the clock rises only after load has begun, so short runs are timed at a lower clock than long ones",
        )
    if host.frequency.turbo_on is True and isinstance(control, str):
        value = 1 if control.endswith("no_turbo") else 0
        yield Advice(
            "turbo is on",
            f"echo {value} | sudo tee {control}",
            "the clock depends on temperature, on other cores and on the instructions used; off, it stays the same",
        )


def _advise_memory(host: Host) -> Iterable[Advice]:
    load = host.load
    if isinstance(load.swap_used_bytes, int) and load.swap_used_bytes > 0:
        yield Advice(
            f"{_gib(load.swap_used_bytes)} of swap are in use",
            "sudo swapoff -a",
            "weights that were swapped out are read from disk within a timed run",
        )
    total, available = load.memory_total_bytes, load.memory_available_bytes
    if isinstance(total, int) and isinstance(available, int) and available < MEMORY_SHARE * total:
        yield Advice(
            f"only {_gib(available)} of {_gib(total)} memory are available",
            "ps -eo rss,pid,comm --sort=-rss | head",
            "the contenders of one contest are in memory together; without room they are swapped or killed",
        )


def _advise_heat(host: Host) -> Iterable[Advice]:
    temperature = host.heat.temperature_c
    if isinstance(temperature, float) and temperature > HOT_C:
        yield Advice(
            f"the CPU is at {temperature:.0f} °C",
            "sleep 300",
            "near its limit the CPU lowers its clock; let it cool down, or improve the cooling",
        )
    for gpu in () if isinstance(host.gpus, Missing) else host.gpus:
        reasons = () if isinstance(gpu.throttle_reasons, Missing) else gpu.throttle_reasons
        slowing = [reason for reason in reasons if reason in _SLOWING_REASONS]
        if slowing:
            yield Advice(
                f"GPU {gpu.index} lowers its clock: {', '.join(slowing)}",
                f"nvidia-smi -i {gpu.index} -q -d PERFORMANCE,POWER,TEMPERATURE",
                "its times belong to a lower clock than the usual one; find what loads or heats it",
            )


def _advise_energy(host: Host) -> Iterable[Advice]:
    domains = () if isinstance(host.energy, Missing) else host.energy
    if any(isinstance(domain.energy_j, Missing) for domain in domains):
        yield Advice(
            "energy counters exist, but this user may not read them",
            "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj",
            "without them energy is not measured; times are not affected",
        )


def describe(host: Host) -> list[Line]:
    """Label, value or reason, and whether it is known, line by line in reading order."""
    parts = (_describe_system, _describe_cpu, _describe_allowance, _describe_clock, _describe_load, _describe_devices)
    return [line for part in parts for line in part(host)]


def _describe_system(host: Host) -> Iterable[Line]:
    system = host.system
    yield _line("operating system", f"{system.os} · {system.kernel}")
    yield _line("Python", system.python)
    yield _line("virtual machine", system.is_virtual_machine)
    if system.is_virtual_machine is True:
        yield _line("hypervisor", system.hypervisor)
    yield _line("container", system.container)


def _describe_cpu(host: Host) -> Iterable[Line]:
    cpu = host.cpu
    yield _line("processor", cpu.model)
    yield _line("vendor", cpu.vendor)
    yield _line("instruction sets", cpu.isa if isinstance(cpu.isa, Missing) else " ".join(cpu.isa) or "none of note")
    yield _line("int8 dot product", host.has_int8_dot_product)
    yield _line("float16 arithmetic", host.has_float16_arithmetic)
    yield _line("bfloat16", host.has_bfloat16)
    yield _line("logical cores", cpu.logical_cores)
    yield _line("physical cores", cpu.physical_cores)
    yield _line("hyper-threading", cpu.smt_active)
    yield _line("NUMA nodes", cpu.numa_nodes)


def _describe_allowance(host: Host) -> Iterable[Line]:
    allowance = host.allowance
    affinity = allowance.affinity
    yield _line("usable cores", host.usable_cores)
    yield _line("affinity", affinity if isinstance(affinity, Missing) else ",".join(map(str, affinity)))
    yield _line("CPU quota", _with_unit(allowance.quota_cores, "cores"))
    yield _line("throttled by quota", _with_unit(allowance.throttled_periods, "periods"))
    yield _line("memory limit", _bytes(allowance.memory_limit_bytes))


def _describe_clock(host: Host) -> Iterable[Line]:
    frequency, heat = host.frequency, host.heat
    yield _line("governor", frequency.governor)
    yield _line("frequency now", _with_unit(frequency.current_mhz, "MHz"))
    yield _line("lowest frequency", _with_unit(frequency.min_mhz, "MHz"))
    yield _line("highest frequency", _with_unit(frequency.max_mhz, "MHz"))
    yield _line("turbo", frequency.turbo_on)
    yield _line("temperature", _with_unit(heat.temperature_c, "°C"))
    yield _line("throttled by heat", _with_unit(heat.throttle_count, "times since boot"))


def _describe_load(host: Host) -> Iterable[Line]:
    load, steal = host.load, host.load.steal_share_since_boot
    yield _line("load (1 min)", load.load_1min)
    yield _line("steal since boot", steal if isinstance(steal, Missing) else f"{steal:.2%}")
    yield _line("memory", _bytes(load.memory_total_bytes))
    yield _line("memory available", _bytes(load.memory_available_bytes))
    yield _line("swap", _bytes(load.swap_total_bytes))
    yield _line("swap used", _bytes(load.swap_used_bytes))


def _describe_devices(host: Host) -> Iterable[Line]:
    if isinstance(host.energy, Missing):
        yield _line("energy counters", host.energy)
    else:
        for domain in host.energy:
            yield _line(
                f"energy {domain.name}", domain.energy_j if isinstance(domain.energy_j, Missing) else "readable"
            )
    if isinstance(host.gpus, Missing):
        yield _line("GPUs", host.gpus)
        return
    if not host.gpus:
        yield _line("GPUs", "none")
    for gpu in host.gpus:
        yield _line(f"GPU {gpu.index}", gpu.name)
        yield _line(f"GPU {gpu.index} memory", _bytes(gpu.memory_total_bytes))
        yield _line(f"GPU {gpu.index} clock", _with_unit(gpu.sm_clock_mhz, f"MHz of {_show(gpu.max_sm_clock_mhz)}"))
        yield _line(f"GPU {gpu.index} power", _with_unit(gpu.power_w, f"W of {_show(gpu.power_limit_w)}"))
        yield _line(f"GPU {gpu.index} temperature", _with_unit(gpu.temperature_c, "°C"))
        reasons = gpu.throttle_reasons
        yield _line(
            f"GPU {gpu.index} throttled by",
            reasons if isinstance(reasons, Missing) else ", ".join(reasons) or "nothing",
        )


def _line(label: str, value: str | float | Missing) -> Line:
    return label, _show(value), not isinstance(value, Missing)


def _show(value: str | float | Missing) -> str:
    if isinstance(value, Missing):
        return value.reason
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _with_unit(value: str | float | Missing, unit: str) -> str | Missing:
    if isinstance(value, (Missing, str)):
        return value
    return f"{_show(value)} {unit}"


def _bytes(value: int | str | Missing) -> str | Missing:
    return _gib(value) if isinstance(value, int) else value


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
