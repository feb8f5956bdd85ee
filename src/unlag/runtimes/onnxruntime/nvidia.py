"""What NVIDIA's providers of ONNX Runtime take: options of a spec, what they need, and whether they really run.

CUDA's options: onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html (``use_tf32`` is on by default);
the bits of ``sdpa_kernel`` are those of ``AttentionBackend`` in contrib_ops/cpu/bert/attention_common.h. TensorRT's:
onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from unlag.errors import UsageError
from unlag.model.variant import Variant
from unlag.model.workload import Signature
from unlag.runtimes.contract import Option
from unlag.runtimes.onnxruntime.bound_session import BoundSession

if TYPE_CHECKING:
    import onnxruntime as ort

CUDA, TENSORRT, CPU = "CUDAExecutionProvider", "TensorrtExecutionProvider", "CPUExecutionProvider"
INSTALL = 'pip uninstall -y onnxruntime; pip install "onnxruntime-gpu[cuda,cudnn]" nvidia-ml-py'
"""The two builds of ONNX Runtime fill the same folder, so that the one without a GPU has to go first."""

PROVIDER_PREFIX = "provider."
ATTENTION = {"flash": "1", "efficient": "2", "tensorrt": "4", "cudnn": "8", "math": "16"}
"""Kernels of fused attention, and their bits; where the chosen one can't be used, the unfused one is."""

OPTIONS = (
    Option("io_binding", "on, off", "inputs and outputs stay in the provider's memory between runs"),
    Option("device", "0, 1, ...", "the GPU that cuda or tensorrt runs on; default 0"),
    Option("cuda_graph", "on, off", "launches are recorded once and replayed; with io_binding=on"),
    Option("tf32", "on, off", "float32 products are rounded to TF32 on tensor cores; cuda's default is on"),
    Option("attention", ", ".join(ATTENTION), "the kernel that cuda takes for fused attention"),
    Option("nhwc", "on, off", "cuda computes convolutions with channels last"),
    Option("trt_fp16", "on, off", "tensorrt may take kernels in float16; normalizations stay in float32"),
    Option("trt_bf16", "on, off", "tensorrt may take kernels in bfloat16"),
    Option("trt_cache", "on, off", "keep the engines that tensorrt builds in unlag's cache; default on"),
    Option("provider.KEY", "VALUE", "any other option of the provider, such as provider.gpu_mem_limit=4000000000"),
)

_SWITCHES = ("io_binding", "cuda_graph", "tf32", "nhwc", "trt_fp16", "trt_bf16", "trt_cache")
_OWNERS = {
    "device": ("cuda", "tensorrt"),
    "cuda_graph": ("cuda", "tensorrt"),
    "tf32": ("cuda", "tensorrt"),  # what TensorRT does not take goes to CUDA
    "attention": ("cuda", "tensorrt"),
    "nhwc": ("cuda", "tensorrt"),
    "trt_fp16": ("tensorrt",),
    "trt_bf16": ("tensorrt",),
    "trt_cache": ("tensorrt",),
}
"""The providers that an option means something to."""

_BUILDS = ("onnxruntime", "onnxruntime-gpu")


def short_name(options: Mapping[str, str]) -> str:
    """The provider that a spec asks for, in small letters and without its surname."""
    return options.get("provider", "cpu").lower().removesuffix("executionprovider")


def is_known(name: str) -> bool:
    """Whether this file knows the option."""
    return name.startswith(PROVIDER_PREFIX) or any(option.name == name for option in OPTIONS)


def check(options: Mapping[str, str]) -> None:
    """Raise UsageError for a bad value, and for an option that the spec's provider has no use for."""
    provider = short_name(options)
    for name, value in options.items():
        if name in _OWNERS and provider not in _OWNERS[name]:
            raise UsageError(f"option {name} needs provider={' or provider='.join(_OWNERS[name])}, not {provider}")
        if name in _SWITCHES and value not in {"on", "off"}:
            raise UsageError(f"option {name}={value} is not one of on, off")
        if name == "attention" and value not in ATTENTION:
            raise UsageError(f"option attention={value} is not one of {', '.join(ATTENTION)}")
        if name == "device" and not value.isdecimal():
            raise UsageError(f"option device={value} is not the number of a GPU")
    if options.get("cuda_graph") == "on" and options.get("io_binding") != "on":
        raise UsageError(
            "cuda_graph=on needs io_binding=on: what is replayed reads and writes where it was recorded",
            hint="add io_binding=on",
        )


def without_recording(variant: Variant) -> Variant:
    """The variant without a CUDA graph: a profile of one that is replayed shows none of its operators."""
    return variant.with_options(cuda_graph="off") if "cuda_graph" in variant.options else variant


def providers_of(options: Mapping[str, str], name: str) -> list[tuple[str, dict[str, str]]]:
    """Providers with their options, as a session takes them; ``name`` is the runtime's own of the first one.

    Raises:
        UsageError: options that don't go together: a recording without bindings would give the results of other inputs.
    """
    check(options)
    others = {k.removeprefix(PROVIDER_PREFIX): v for k, v in options.items() if k.startswith(PROVIDER_PREFIX)}
    if name == CUDA:
        return [(CUDA, _cuda(options, recorded=True) | others), (CPU, {})]
    if name == TENSORRT:
        return [(TENSORRT, _tensorrt(options) | others), (CUDA, _cuda(options, recorded=False)), (CPU, {})]
    return [(CPU, others)] if name == CPU else [(name, others), (CPU, {})]


def _flag(options: Mapping[str, str], name: str, key: str) -> dict[str, str]:
    return {key: str(int(options[name] == "on"))} if name in options else {}


def _cuda(options: Mapping[str, str], *, recorded: bool) -> dict[str, str]:
    made = _flag(options, "tf32", "use_tf32") | _flag(options, "nhwc", "prefer_nhwc")
    made |= {"device_id": options["device"]} if "device" in options else {}
    made |= {"sdpa_kernel": ATTENTION[options["attention"]]} if "attention" in options else {}
    return made | (_flag(options, "cuda_graph", "enable_cuda_graph") if recorded else {})


def _tensorrt(options: Mapping[str, str]) -> dict[str, str]:
    made = _flag(options, "trt_fp16", "trt_fp16_enable") | _flag(options, "trt_bf16", "trt_bf16_enable")
    made |= {"trt_layer_norm_fp32_fallback": "1"} if options.get("trt_fp16") == "on" else {}
    made |= {"device_id": options["device"]} if "device" in options else {}
    made |= _flag(options, "cuda_graph", "trt_cuda_graph_enable")
    if options.get("trt_cache", "on") == "on":
        from unlag.assets.cache import cache_folder  # noqa: PLC0415 - workers that need no cache don't load it

        folder = str(cache_folder() / "tensorrt")  # the provider makes it, and tells engines apart by model and GPU
        made |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": folder}
        made |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": folder}
    return made


def check_available(asked: str, name: str) -> None:
    """Raise UsageError for a provider that this build of ONNX Runtime does not have."""
    import onnxruntime as ort  # noqa: PLC0415 - only a run that needs the runtime pays for its import

    available = ort.get_available_providers()
    if name not in available:
        short = ", ".join(other.removesuffix("ExecutionProvider").lower() for other in available)
        more = f"; for GPUs: {INSTALL}" if name in {CUDA, TENSORRT} else ""
        raise UsageError(f"execution provider {asked!r} is not available here", hint=f"available: {short}{more}")


def load_libraries(name: str) -> None:
    """Load CUDA and cuDNN from their Python packages, where a provider needs them and they are there."""
    import onnxruntime as ort  # noqa: PLC0415 - only a run that needs the runtime pays for its import

    if name in {CUDA, TENSORRT} and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def check_running(name: str, running: Sequence[str]) -> None:
    """Refuse a session that runs elsewhere than it was asked to.

    ONNX Runtime opens a session on the CPU, with no more than a line in its log, where a provider's libraries can't be
    loaded or there is no device. What would be measured then is another thing than what was asked for.

    Raises:
        UsageError: the provider asked for does not run.
    """
    if name in running:
        return
    short = name.removesuffix("ExecutionProvider").lower()
    hint = INSTALL if name == CUDA else ""
    if name == TENSORRT:
        hint = "pip install tensorrt, in the version that this build of onnxruntime-gpu was made for"
    raise UsageError(f"onnxruntime can't start its provider {short}: a library is missing, or the device", hint=hint)


def bound(session: ort.InferenceSession, signature: Signature, options: Mapping[str, str]) -> BoundSession | None:
    """The session with buffers in its provider's memory, where the spec asks for them.

    Raises:
        UsageError: the model takes or gives something other than tensors of numbers.
    """
    if options.get("io_binding") != "on":
        return None
    device = "cuda" if short_name(options) in {"cuda", "tensorrt"} else "cpu"
    recorded = options.get("cuda_graph") == "on"
    return BoundSession(session, signature, device, int(options.get("device", "0")), recorded=recorded)


def runtime_version(builds: Iterable[str] = _BUILDS) -> str:
    """Name and version of the build of ONNX Runtime that is installed; empty where none of these is."""
    for build in builds:
        try:
            return f"{build} {importlib.metadata.version(build)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
