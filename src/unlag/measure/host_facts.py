"""What is known of the machine: frozen values, JSON-able; what could not be read is ``Missing`` with its reason."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from unlag.errors import Missing

Unlimited = Literal["unlimited"]

ISA_NAMES = frozenset({
    "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx_vnni_int8", "avx512_bf16", "avx512_fp16",
    "amx_int8", "amx_bf16", "amx_fp16", "asimddp", "i8mm", "fphp", "asimdhp", "bf16", "sve",
})  # fmt: skip
"""The instruction sets that decide which kernels a runtime takes, by their names in Linux's ``/proc/cpuinfo``."""

_INT8_DOT_PRODUCT = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
_FLOAT16_ARITHMETIC = frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"})
"""``f16c`` is not here: it converts between float16 and float32, it does not add or multiply."""
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


class Cpu(msgspec.Struct, frozen=True):
    """The processor as the operating system shows it; in a virtual machine, as the hypervisor shows it."""

    model: str | Missing
    vendor: str | Missing
    architecture: str
    isa: tuple[str, ...] | Missing
    """Those of ``ISA_NAMES`` that every core has, sorted."""
    logical_cores: int | Missing
    physical_cores: int | Missing
    smt_active: bool | Missing
    siblings: tuple[tuple[int, ...], ...] | Missing
    """Logical cores that share a physical one, group by group."""
    numa_nodes: int | Missing


class Allowance(msgspec.Struct, frozen=True):
    """How much of the machine this process may use.

    In a container with its own cgroup namespace, limits of the groups around it can't be seen.
    """

    affinity: tuple[int, ...] | Missing
    cgroup_version: int | Missing
    quota_cores: float | Unlimited | Missing
    """The tightest CPU quota of this cgroup and those above it."""
    throttled_periods: int | Missing
    throttled_us: int | Missing
    """Since the cgroup was made."""
    memory_limit_bytes: int | Unlimited | Missing


class Frequency(msgspec.Struct, frozen=True):
    """Clock control of the first core; cores of one machine rarely differ in it."""

    governor: str | Missing
    current_mhz: float | Missing
    min_mhz: float | Missing
    max_mhz: float | Missing
    turbo_on: bool | Missing
    turbo_control: str | Missing
    """The file that switches turbo."""


class Load(msgspec.Struct, frozen=True):
    """What else the machine is doing, and the memory that is left."""

    load_1min: float | Missing
    steal_share_since_boot: float | Missing
    """Time in which the hypervisor ran something else, of all CPU time since boot; 0 to 1."""
    memory_total_bytes: int | Missing
    memory_available_bytes: int | Missing
    swap_total_bytes: int | Missing
    swap_used_bytes: int | Missing


class Heat(msgspec.Struct, frozen=True):
    """Temperature, and how often the CPU slowed itself down because of it."""

    temperature_c: float | Missing
    throttle_count: int | Missing
    """Since boot, core and package events together."""


class EnergyDomain(msgspec.Struct, frozen=True):
    """A RAPL energy counter: ``package-0``, ``core``, ``dram`` ..."""

    name: str
    path: str
    energy_j: float | Missing
    """The counter's reading, which wraps; Missing if this user may not read it."""


class Gpu(msgspec.Struct, frozen=True):
    """An NVIDIA GPU as NVML shows it."""

    index: int
    name: str | Missing
    driver: str | Missing
    compute_capability: str | Missing
    memory_total_bytes: int | Missing
    memory_used_bytes: int | Missing
    sm_clock_mhz: int | Missing
    max_sm_clock_mhz: int | Missing
    power_w: float | Missing
    power_limit_w: float | Missing
    temperature_c: int | Missing
    throttle_reasons: tuple[str, ...] | Missing


class System(msgspec.Struct, frozen=True):
    """The operating system and what it runs in."""

    os: str
    kernel: str
    python: str
    is_virtual_machine: bool | Missing
    hypervisor: str | Missing
    container: str | Missing
    """``docker``, ``podman``, ``kubernetes``, ``lxc`` ...; ``none`` if no mark of one was found."""


class Host(msgspec.Struct, frozen=True):
    """One machine at one moment."""

    cpu: Cpu
    allowance: Allowance
    frequency: Frequency
    load: Load
    heat: Heat
    energy: tuple[EnergyDomain, ...] | Missing
    gpus: tuple[Gpu, ...] | Missing
    system: System

    @property
    def usable_cores(self) -> int:
        """Whole cores this process can keep busy: affinity and quota together, at least 1."""
        affinity, quota = self.allowance.affinity, self.allowance.quota_cores
        logical = 1 if isinstance(self.cpu.logical_cores, Missing) else self.cpu.logical_cores
        cores = logical if isinstance(affinity, Missing) else len(affinity)
        if isinstance(quota, float):
            cores = min(cores, math.floor(quota))
        return max(cores, 1)

    @property
    def has_int8_dot_product(self) -> bool | Missing:
        """Whether one instruction sums products of 8-bit integers (VNNI, AMX, ARM dot product).

        Test it with ``is True`` or ``is False``: a ``Missing`` is neither, though Python takes it for true.
        """
        return self._has(_INT8_DOT_PRODUCT)

    @property
    def has_float16_arithmetic(self) -> bool | Missing:
        """Whether the CPU calculates in float16, not only converts it. Test it with ``is True`` or ``is False``."""
        return self._has(_FLOAT16_ARITHMETIC)

    @property
    def has_bfloat16(self) -> bool | Missing:
        """Whether the CPU multiplies bfloat16. Test it with ``is True`` or ``is False``."""
        return self._has(_BFLOAT16)

    def _has(self, wanted: frozenset[str]) -> bool | Missing:
        if isinstance(self.cpu.isa, Missing):
            return self.cpu.isa
        return not wanted.isdisjoint(self.cpu.isa)
