"""The facts of a machine without ``/proc``: macOS, Windows, BSD, as far as psutil and ``sysctl`` tell them."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from pathlib import Path

import psutil

from unlag.errors import Missing
from unlag.measure.host_facts import Allowance, Cpu, Frequency, Heat, Load, System
from unlag.measure.host_files import parse_fields

_SYSCTL = Path("/usr/sbin/sysctl")

_APPLE_NAMES = {
    "hw.optional.avx2_0": ("avx2",), "hw.optional.fma": ("fma",), "hw.optional.f16c": ("f16c",),
    "hw.optional.avx512f": ("avx512f",), "hw.optional.arm.FEAT_DotProd": ("asimddp",),
    "hw.optional.arm.FEAT_I8MM": ("i8mm",), "hw.optional.arm.FEAT_BF16": ("bf16",),
    "hw.optional.arm.FEAT_FP16": ("asimdhp", "fphp"),
}  # fmt: skip
"""From Apple's "Determining instruction set characteristics" and ``sysctl hw.optional`` of Intel Macs."""


def read_cpu() -> Cpu:
    """Model, cores and, on macOS, instruction sets."""
    logical, physical = psutil.cpu_count(), psutil.cpu_count(logical=False)
    uncounted = Missing("psutil can't count the cores of this operating system")
    facts = _sysctl("machdep.cpu", "hw.optional")
    name = facts.get("machdep.cpu.brand_string") or platform.processor()
    return Cpu(
        model=name or Missing("the operating system does not name the processor"),
        vendor=facts.get("machdep.cpu.vendor") or Missing(f"{platform.system()} does not name the vendor"),
        architecture=platform.machine(),
        isa=parse_apple_isa(facts)
        if facts
        else Missing(f"{platform.system()} has no complete list of instruction sets that could be read"),
        logical_cores=logical or uncounted,
        physical_cores=physical or uncounted,
        smt_active=logical > physical if logical and physical else uncounted,
        siblings=Missing("sibling threads are read on Linux only"),
        numa_nodes=Missing("NUMA nodes are read on Linux only"),
    )


def parse_apple_isa(facts: dict[str, str]) -> tuple[str, ...]:
    """Instruction sets from macOS's ``sysctl``, by their Linux names."""
    names = {name for key, linux in _APPLE_NAMES.items() if facts.get(key) == "1" for name in linux}
    if "AVX512VNNI" in facts.get("machdep.cpu.leaf7_features", "").split():
        names.add("avx512_vnni")
    return tuple(sorted(names))


def read_allowance() -> Allowance:
    """Affinity, where there is one; control groups are Linux only."""
    affinity: tuple[int, ...] | Missing = Missing(f"{platform.system()} does not pin processes to cores")
    with contextlib.suppress(AttributeError, psutil.Error, OSError):
        affinity = tuple(psutil.Process().cpu_affinity() or ()) or affinity
    absent = Missing("control groups exist on Linux only")
    return Allowance(affinity, absent, absent, absent, absent, absent)


def read_frequency() -> Frequency:
    """Clocks; governor and turbo are Linux only."""
    absent = Missing("frequency control is read on Linux only")
    unknown = Missing("psutil can't read the clock frequency here")
    try:
        clock = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError, RuntimeError):
        clock = None
    current, low, high = (clock.current, clock.min, clock.max) if clock else (0.0, 0.0, 0.0)
    return Frequency(absent, current or unknown, low or unknown, high or unknown, absent, absent)


def read_load() -> Load:
    """Load average, memory and swap."""
    memory = psutil.virtual_memory()
    load: float | Missing = Missing("psutil can't read the load average here")
    with contextlib.suppress(AttributeError, OSError):
        load = psutil.getloadavg()[0]
    absent = Missing("psutil can't read swap here")
    total: int | Missing = absent
    used: int | Missing = absent
    with contextlib.suppress(OSError, RuntimeError):
        swap = psutil.swap_memory()
        total, used = swap.total, swap.used
    steal = Missing(f"{platform.system()} does not report steal time")
    return Load(load, steal, memory.total, memory.available, total, used)


def read_heat() -> Heat:
    """Temperature, where psutil has sensors."""
    system = platform.system()
    return Heat(
        Missing(f"temperature is not readable without root on {system}"),
        Missing("thermal throttle counters are read on Linux only"),
    )


def read_system() -> System:
    """Operating system and, on macOS, whether it is a virtual machine."""
    present = _sysctl("kern.hv_vmm_present").get("kern.hv_vmm_present")
    system = platform.system()
    virtual = Missing(f"{system} was not asked whether it is a virtual machine") if present is None else present == "1"
    return System(
        os=f"{system} {platform.mac_ver()[0] or platform.release()}",
        kernel=platform.version(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        is_virtual_machine=virtual,
        hypervisor=Missing("hypervisors are told apart on Linux only"),
        container=Missing("containers are looked for on Linux only"),
    )


def read_memory_available() -> int:
    """Bytes that programs can still take without swapping."""
    return psutil.virtual_memory().available


def _sysctl(*names: str) -> dict[str, str]:
    """What macOS's ``sysctl`` says of these names; empty elsewhere."""
    if platform.system() != "Darwin" or not _SYSCTL.exists():
        return {}
    try:
        done = subprocess.run(  # noqa: S603 - a fixed path and fixed names
            [str(_SYSCTL), *names], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_fields(done.stdout)
