"""What is worth trying on a GPU, from a profile and facts: pure, so that it can be tested without a device.

The CUDA provider only queues its work: the profile's time of an operator on it is the host's, for launching, and what a
run takes beyond the sum of these is the host waiting for the device. (Published builds record no kernels: that takes
one made with ``--enable_cuda_profiling``, onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html.) So
the profile tells whether launches are what a run waits for, and which operators there are, in which types and where;
not how long a kernel takes. Whether a choice pays is measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from unlag.causes.unaligned_dimensions import MULTIPLE, is_unaligned
from unlag.errors import Missing
from unlag.measure.host_gpu import TENSOR_CORES
from unlag.observe.work import flop_of
from unlag.runtimes.contract import Operator, Placement, Profile
from unlag.runtimes.onnxruntime.nvidia import CPU, CUDA, TENSORRT
from unlag.stages.fixed import Rejected

Round = Literal["placement", "launches", "precision", "alignment", "kernels", "engines"]

AMPERE = (8, 0)
"""Compute capability from which a device has TF32, bfloat16 and flash attention."""
TURING = (7, 5)

HOST_BOUND = 0.8
"""Share of a run that the host launches or computes, from which the device waits for it."""
FEW_LAUNCHES = 0.2
COMPUTE_BOUND = 10.0
"""Float32 operations a byte, from which arithmetic is what a device waits for: 8.1 TFLOP/s and 320 GB/s of a T4 are 25,
19.5 and 2039 of an A100 are 10."""
NOTICEABLE = 0.05
"""Share of the time, or of the work, below which something isn't looked at."""

HALVES = frozenset({"float16", "bfloat16"})
_SHAPE_KINDS = frozenset({"layout", "elementwise", "cast"})
SHAPE_ELEMENTS = 64
"""An operator on so few numbers is arithmetic on shapes, which the runtime puts on the CPU on purpose."""
_COPIES = frozenset({"MemcpyFromHost", "MemcpyToHost"})

FLOAT32 = "float32 in place of integers"
_NARROW = ("compute_in_float16", "compute_in_float16_but_sums", "compute_in_bfloat16")

Capability = tuple[int, int] | Missing


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's file and the workload say."""

    free_inputs: int = 0
    """Inputs with a dimension that is not fixed."""
    unfixable: str = ""
    """Why dimensions can't be fixed; empty where they can, or are."""
    moved_bytes: int = 0
    """Of a run's inputs and outputs together."""
    numbers_only: bool = True
    """Whether all inputs and outputs are tensors of numbers."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the choices are made from."""

    profile: Profile
    """Of the model without a CUDA graph."""
    placement: Placement
    model: ModelFacts
    capability: Capability
    providers: tuple[str, ...]
    """Those of this build of the runtime."""
    options: dict[str, str] = {}
    """Of the model's session."""


class Choice(msgspec.Struct, frozen=True):
    """Something worth trying, and why."""

    name: str
    why: str
    options: dict[str, str] = {}
    remedies: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()
    """Remedies that go when it comes."""
    in_float32: bool = False
    """Integers become float32 first."""


Answer = Choice | Rejected


def choose(seen: Seen, part: Round) -> tuple[tuple[Choice, ...], tuple[Rejected, ...]]:
    """What one round is to try, and what can't apply or can't matter, with the reason."""
    answers = list(_CHOOSERS[part](seen))
    return (
        tuple(answer for answer in answers if isinstance(answer, Choice)),
        tuple(answer for answer in answers if isinstance(answer, Rejected)),
    )


def launch_share(profile: Profile) -> float:
    """Share of a run in which the host launches something on the device."""
    return _time_share([o for o in profile.operators if o.kernel != CPU and o.op_type not in _COPIES], profile)


def host_share(profile: Profile) -> float:
    """Share of a run in which the host launches, copies or computes."""
    return _time_share(profile.operators, profile)


def _time_share(operators: Sequence[Operator], profile: Profile) -> float:
    return min(1.0, sum(operator.time_ms for operator in operators) / profile.run_ms)


def copies(profile: Profile) -> int:
    """Memcpy nodes: tensors that change between the two memories within a run."""
    return sum(operator.op_type in _COPIES for operator in profile.operators)


def fallen(profile: Profile) -> list[Operator]:
    """Operators that the CPU computes, other than arithmetic on shapes and copies."""
    return [o for o in profile.operators if o.kernel == CPU and o.op_type not in _COPIES and not _on_shapes(o)]


def _on_shapes(operator: Operator) -> bool:
    sizes = [math.prod(shape) for shape in operator.output_shapes]
    return operator.op_type == "Shape" or (operator.kind in _SHAPE_KINDS and max(sizes, default=0) <= SHAPE_ELEMENTS)


def _is_integer(operator: Operator) -> bool:
    return operator.precision == "int8" or operator.kind in {"quantize", "dequantize"}


def _control(profile: Profile) -> int:
    return sum(operator.kind == "control" for operator in profile.operators)


def _placement(seen: Seen) -> Iterator[Answer]:
    """Operators on the CPU: integers become floats, branches are written out, the rest is spelled otherwise."""
    stranded = fallen(seen.profile)
    count = Counter(operator.op_type for operator in stranded)
    said = ", ".join(f"{number} {op_type}" for op_type, number in sorted(count.items()))
    moved = f"{copies(seen.profile)} copies between the memories"
    if any(_is_integer(operator) for operator in stranded):
        why = f"on the CPU, having no kernel for integers on the device: {said}; {moved}"
        yield Choice(FLOAT32, why, in_float32=True)
    if _control(seen.profile):
        why = f"operators of control flow, which the host runs: {_control(seen.profile)}"
        yield Choice("inline_branches", why, remedies=("inline_branches",))
        yield Choice("unroll_loops", why, remedies=("unroll_loops",))
    others = [operator for operator in stranded if not _is_integer(operator) and operator.kind != "control"]
    if others:
        names = ", ".join(sorted({operator.op_type for operator in others}))
        why = f"other operators on the CPU: {len(others)} ({names}); {moved}"
        yield Choice("respell_operators", why, remedies=("respell_operators",))
    if copies(seen.profile) and seen.model.free_inputs:
        why = f"{moved} around arithmetic on shapes, which is none where these are fixed"
        yield from _fixing(seen, why)


def _fixing(seen: Seen, why: str) -> Iterator[Answer]:
    if seen.model.unfixable:
        yield Rejected("fix_dimensions", seen.model.unfixable)
    else:
        yield Choice("fix_dimensions", why, remedies=("fix_dimensions",))


def _launches(seen: Seen) -> Iterator[Answer]:
    model, bound = seen.model, seen.options.get("io_binding") == "on"
    if not model.numbers_only:
        yield Rejected("io_binding=on", "an input or output is no tensor of numbers, and stays in the host's memory")
        return
    if not bound:
        why = f"{model.moved_bytes / 1e6:.2f} MB of inputs and outputs are copied over the bus at every run"
        yield Choice("io_binding=on", why, {"io_binding": "on"})
    if seen.options.get("cuda_graph") != "on":
        yield _recording(seen)


def _recording(seen: Seen) -> Answer:
    """A CUDA graph, or why there can be none; the constraints are those of the CUDA provider's page.

    Source: onnxruntime!16491: no control flow, and no Memcpy node, as no compute node may be on the CPU.
    """
    name, share = "io_binding=on,cuda_graph=on", launch_share(seen.profile)
    if _control(seen.profile):
        return Rejected(name, f"the course of control flow can't be recorded: {_control(seen.profile)} operators")
    if copies(seen.profile) or fallen(seen.profile):
        number, left = copies(seen.profile), len(fallen(seen.profile))
        return Rejected(name, f"{number} copies and {left} operators on the CPU can't be recorded")
    if seen.model.free_inputs and seen.model.unfixable:
        return Rejected(name, f"a recording holds for one shape: {seen.model.unfixable}")
    if share < FEW_LAUNCHES:
        return Rejected(name, f"launches take {share:.0%} of a run, and the device is busy meanwhile")
    why = f"{len(seen.profile.operators)} launches take {share:.0%} of a run"
    remedies = ("fix_dimensions",) if seen.model.free_inputs else ()
    return Choice(name, why, {"io_binding": "on", "cuda_graph": "on"}, remedies)


def _products(seen: Seen) -> list[Operator]:
    return [o for o in seen.profile.operators if o.kind in {"gemm", "attention"} and o.kernel in {CUDA, TENSORRT}]


def _precision(seen: Seen) -> Iterator[Answer]:
    products = _products(seen)
    single = [operator for operator in products if operator.precision == "float32"]
    if not single:
        yield Rejected(_NARROW[0], f"0 of {len(products)} products on the device are in float32")
        return
    share = host_share(seen.profile)
    if share >= HOST_BOUND and seen.options.get("cuda_graph") != "on":
        why = f"the host is busy for {share:.0%} of a run, which so does not wait for the device's arithmetic"
        yield Rejected(_NARROW[0], why)
        return
    work, intensity = sum(map(flop_of, single)), _intensity(single)
    why = (
        f"{len(single)} of {len(products)} products are in float32: {work / 1e9:.1f} GFLOP, {intensity:.1f} FLOP a byte"
    )
    yield _tf32(seen, intensity)
    if not _has(seen.capability, TENSOR_CORES):
        yield Rejected(_NARROW[0], f"no tensor cores: {_version(seen.capability)}")
        return
    yield from (Choice(name, why, remedies=(name,), in_float32=True) for name in _NARROW[:2])
    crooked = [operator for operator in single if is_unaligned(operator)]
    if _share(crooked, single) >= NOTICEABLE:
        also = f"{why}; {len(crooked)} of them with sizes that are no multiples of {MULTIPLE}"
        both = (_NARROW[0], "pad_dimensions")
        yield Choice(" and ".join(both), also, remedies=both, in_float32=True)
    if _has(seen.capability, AMPERE):
        yield Choice(_NARROW[2], why, remedies=(_NARROW[2],), in_float32=True)
    else:
        yield Rejected(_NARROW[2], f"no bfloat16: {_version(seen.capability)}")


def _tf32(seen: Seen, intensity: float) -> Answer:
    name = "tf32=on"
    if seen.options.get("tf32", "on") == "on":
        return Rejected(name, "on already: the provider's default")
    if not _has(seen.capability, AMPERE):
        return Rejected(name, f"no TF32: {_version(seen.capability)}")
    if intensity < COMPUTE_BOUND:
        return Rejected(name, f"{intensity:.1f} FLOP a byte: products wait for memory, and TF32 reads as much")
    return Choice(name, f"{intensity:.1f} FLOP a byte: products wait for arithmetic", {"tf32": "on"})


def _intensity(operators: list[Operator]) -> float:
    """Operations a byte that is read or written."""
    return sum(map(flop_of, operators)) / max(1, sum(operator.moved_bytes for operator in operators))


def _share(part: list[Operator], whole: list[Operator]) -> float:
    """Of the work."""
    return sum(map(flop_of, part)) / max(1.0, sum(map(flop_of, whole)))


def _alignment(seen: Seen) -> Iterator[Answer]:
    half = [operator for operator in _products(seen) if operator.precision in HALVES]
    crooked = [operator for operator in half if is_unaligned(operator)]
    count = f"{len(crooked)} of {len(half)} half-precision products have sizes that are no multiples of {MULTIPLE}"
    if _share(crooked, _products(seen)) >= NOTICEABLE:
        yield Choice("pad_dimensions", count, remedies=("pad_dimensions",))
    elif half:
        yield Rejected("pad_dimensions", f"{count}, {_share(crooked, _products(seen)):.0%} of the work")


def _kernels(seen: Seen) -> Iterator[Answer]:
    fused = [o for o in seen.profile.operators if o.kind == "attention" and o.kernel == CUDA]
    products = _products(seen)
    if not fused and any(operator.op_type == "Softmax" for operator in seen.profile.operators):
        yield Rejected("attention=flash", "0 fused attention operators: only these have kernels to choose among")
    elif fused and _share(fused, products) < NOTICEABLE:
        yield Rejected(
            "attention=flash", f"{len(fused)} fused attentions are {_share(fused, products):.0%} of the work"
        )
    elif fused and "attention" not in seen.options:
        yield from _attention(seen, fused)
    convolutions = [operator for operator in products if "Conv" in operator.op_type]
    if convolutions and "nhwc" not in seen.options and _has(seen.capability, TENSOR_CORES):
        why = f"{len(convolutions)} convolutions; tensor cores read channels last"
        yield Choice("nhwc=on", why, {"nhwc": "on"})


def _attention(seen: Seen, fused: list[Operator]) -> Iterator[Answer]:
    """Kernels by name; which one the runtime takes by itself depends on sizes, types and the device."""
    half = all(operator.precision in HALVES for operator in fused)
    for kernel, needed in (("flash", AMPERE), ("cudnn", AMPERE), ("efficient", TENSOR_CORES), ("tensorrt", TURING)):
        name = f"attention={kernel}"
        if not half and kernel != "efficient":
            yield Rejected(
                name, f"{len(fused)} fused attentions are in {fused[0].precision}, the kernel in half precision"
            )
        elif not _has(seen.capability, needed):
            yield Rejected(name, f"the kernel needs {'.'.join(map(str, needed))}: {_version(seen.capability)}")
        else:
            yield Choice(name, f"{len(fused)} fused attentions", {"attention": kernel})


def _engines(seen: Seen) -> Iterator[Answer]:
    name = "provider=tensorrt"
    if TENSORRT not in seen.providers:
        yield Rejected(name, "this build of onnxruntime has no TensorRT provider")
        return
    why = f"{len(seen.profile.operators)} operators become engines"
    plain = {"provider": "tensorrt"}
    yield Choice(name, why, plain, instead_of=_NARROW)
    for kind, needed in (("fp16", TENSOR_CORES), ("bf16", AMPERE)):
        option = f"trt_{kind}"
        if _has(seen.capability, needed):
            yield Choice(f"{name},{option}=on", why, {**plain, option: "on"}, instead_of=_NARROW)
        else:
            yield Rejected(f"{name},{option}=on", f"it needs {'.'.join(map(str, needed))}: {_version(seen.capability)}")


def _has(capability: Capability, needed: tuple[int, int]) -> bool:
    """Whether the device has what comes with a compute capability; where that isn't known, a try will show."""
    return isinstance(capability, Missing) or capability >= needed


def _version(capability: Capability) -> str:
    if isinstance(capability, Missing):
        return f"compute capability unknown ({capability.reason})"
    return f"compute capability {capability[0]}.{capability[1]}"


_CHOOSERS: dict[Round, Callable[[Seen], Iterator[Answer]]] = {
    "placement": _placement,
    "launches": _launches,
    "precision": _precision,
    "alignment": _alignment,
    "kernels": _kernels,
    "engines": _engines,
}
