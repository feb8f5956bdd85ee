"""NVIDIA GPUs through NVML, by the optional package ``nvidia-ml-py``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from unlag.errors import Missing
from unlag.measure.host_facts import Gpu
from unlag.measure.host_files import Sources

T = TypeVar("T")

_THROTTLE_REASONS = {
    0x01: "idle", 0x02: "application clocks", 0x04: "power cap", 0x08: "hardware slowdown", 0x10: "sync boost",
    0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Bits of ``nvmlDeviceGetCurrentClocksThrottleReasons``, from ``nvml.h``."""


def read_gpus(sources: Sources, library: ModuleType | None = None) -> tuple[Gpu, ...] | Missing:
    """Every GPU that NVML lists; ``library`` stands in for ``pynvml`` in tests."""
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return _without_library(sources)
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return Missing(f"NVML does not start: {error}")
    try:
        return tuple(_read_gpu(library, index) for index in range(library.nvmlDeviceGetCount()))
    except library.NVMLError as error:
        return Missing(f"NVML does not list the GPUs: {error}")
    finally:
        library.nvmlShutdown()


def _without_library(sources: Sources) -> Missing:
    driver = sources.proc / "driver/nvidia"
    # Under WSL the driver belongs to Windows and shows as /dev/dxg only.
    if sources.is_linux and not driver.exists() and not (sources.root / "dev/dxg").exists():
        return Missing(f"no NVIDIA driver is loaded: {driver} does not exist")
    return Missing("NVIDIA GPUs were not looked for: the package nvidia-ml-py is not installed (unlag[gpu])")


def _read_gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Callable[[], T]) -> T | Missing:
        try:
            return question()
        except (nvml.NVMLError, AttributeError) as error:
            return Missing(f"NVML: {error}")

    return Gpu(
        index=index,
        name=ask(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        driver=ask(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        compute_capability=ask(lambda: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle)))),
        memory_total_bytes=ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        memory_used_bytes=ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
        sm_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        max_sm_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        power_w=ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        power_limit_w=ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        temperature_c=ask(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        throttle_reasons=ask(lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
    )


TENSOR_CORES = (7, 0)
"""Compute capability (Volta) from which a device has tensor cores for float16."""


def capability_of(gpus: tuple[Gpu, ...] | Missing, index: int = 0) -> tuple[int, int] | Missing:
    """Compute capability of one of the GPUs, such as (9, 0)."""
    if isinstance(gpus, Missing):
        return gpus
    known = {gpu.index: gpu.compute_capability for gpu in gpus}
    version = known.get(index, Missing(f"no GPU {index} among the {len(gpus)} that NVML lists"))
    if isinstance(version, Missing):
        return version
    major, _, minor = version.partition(".")
    return int(major), int(minor)


def _reasons(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _THROTTLE_REASONS.items() if bits & bit)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
