"""Stage 3 for a GPU: where operators run, how they are launched, in which numbers, by which kernels and engines."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from unlag.errors import Missing, UsageError
from unlag.measure.bench import Bench, inspect
from unlag.measure.host import read_host
from unlag.measure.host_facts import Gpu
from unlag.measure.host_gpu import capability_of
from unlag.model.case import Case
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.runtimes.contract import find_runtime
from unlag.runtimes.onnxruntime.nvidia import CUDA, INSTALL, short_name
from unlag.stages.fixed import NOTHING, Decision
from unlag.stages.fixed_shapes import obstacle
from unlag.stages.goal import Goal
from unlag.stages.gpu_choices import Choice, ModelFacts, Round, Seen, choose, copies, fallen
from unlag.stages.plan import Plan
from unlag.stages.search import Workshop
from unlag.stages.winners import keep_winners

ROUNDS: tuple[Round, ...] = ("placement", "launches", "precision", "alignment", "kernels", "launches", "engines")
"""Launches twice: half precision shortens what the device does, and with it the time in which it does not wait."""

PROFILED_RUNS = 8

UNTRIED = (
    "this stage was built without a GPU at hand: what it chooses was tested on recorded profiles only, and what it says"
    " of this GPU was measured here for the first time"
)
BLIND = (
    "not checked: how long each operator takes on the GPU (onnxruntime records launches, not kernels), and which"
    " kernel of fused attention ran"
)

_FLOATS = frozenset({"as_is", "float32"})


def on_gpu(case: Case) -> Case:
    """The case with both models on the GPU; a provider that a spec names stays.

    Raises:
        UsageError: there is no GPU here, or no build of the runtime that can use one.
    """
    import onnxruntime as ort  # noqa: PLC0415 - asked only where a GPU is

    check_gpu(ort.get_available_providers(), read_host().gpus)
    standard, variant = _with_provider(case.standard), _with_provider(case.variant)
    return msgspec.structs.replace(case, standard=standard, variant=variant)


def check_gpu(providers: Sequence[str], gpus: tuple[Gpu, ...] | Missing) -> None:
    """Raise UsageError that says what is missing for a GPU, and the one command that installs what can be installed."""
    lacking = []
    if CUDA not in providers:
        known = ", ".join(name.removesuffix("ExecutionProvider").lower() for name in providers)
        lacking.append(f"this build of onnxruntime has no CUDA provider (it has {known})")
    if isinstance(gpus, Missing):
        lacking.append(gpus.reason)
    elif not gpus:
        lacking.append("NVML lists 0 GPUs")
    if not lacking:
        return
    hint = INSTALL
    if CUDA in providers:
        hint = "pip install nvidia-ml-py" if isinstance(gpus, Missing) and "nvidia-ml-py" in gpus.reason else ""
        hint = hint or "install NVIDIA's driver: nvidia-smi has to list a GPU"
    raise UsageError(f"can't fix for gpu here: {'; '.join(lacking)}", hint=hint)


def _with_provider(variant: Variant) -> Variant:
    if variant.runtime != DEFAULT_RUNTIME:
        raise UsageError(
            f"{variant.spec}: --target gpu is for {DEFAULT_RUNTIME}, not for {variant.runtime}",
            hint="give ONNX models",
        )
    if "provider" not in variant.options:
        return variant.with_options(provider="cuda")
    if short_name(variant.options) == "cpu":
        raise UsageError(f"{variant.spec} asks for the CPU, and --target gpu for a GPU", hint="leave provider=cpu out")
    return variant


def fit_gpu(workshop: Workshop, current: Plan, goal: Goal) -> tuple[Plan, Decision]:
    """Round by round: look at the model as it is by now, choose what could matter, keep what is measured to help."""
    plan, decision = current, NOTHING
    seen = _look(workshop, plan)
    for number, part in enumerate(ROUNDS):
        choices, ruled_out = choose(seen, part)
        candidates = {choice.name: applied(choice, plan) for choice in choices}
        share = workshop.within(number / len(ROUNDS), (number + 1) / len(ROUNDS))
        kept, found = keep_winners(share, f"gpu, {part}", plan, candidates, goal)
        decision = _joined(decision, Decision((), ruled_out) + found)
        if kept != plan:
            plan = kept
            seen = _look(workshop, plan) if number < len(ROUNDS) - 1 else seen
    return plan, decision + Decision((), (), notes_of(seen, plan))


def applied(choice: Choice, plan: Plan) -> Plan:
    """The plan with a choice."""
    remedies = tuple(name for name in plan.remedies if name not in choice.instead_of)
    changed = msgspec.structs.replace(plan, remedies=remedies)
    if choice.in_float32 and (plan.precision not in _FLOATS or plan.layers or not choice.remedies):
        changed = changed.with_precision("float32")
    return changed.with_remedies(*choice.remedies).with_options(choice.options)


def _joined(one: Decision, later: Decision) -> Decision:
    """Both decisions; of what was rejected twice, or rejected and then kept, only the last word."""
    settled = {part.remedy for part in later.kept} | {part.remedy for part in later.rejected}
    return Decision(one.kept, tuple(part for part in one.rejected if part.remedy not in settled), one.notes) + later


def _look(workshop: Workshop, plan: Plan) -> Seen:
    """Profile the plan's model in a process of its own, and gather what the choices are made from."""
    import onnxruntime as ort  # noqa: PLC0415 - asked only where a GPU is

    bench, variant = workshop.bench, workshop.make(plan)
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder, bench.contest({"the model": variant}) as contest:
        profile = contest.profile("the model", PROFILED_RUNS, Path(folder)).profile
        answers = contest.answers("the model", [bench.workload.feed])[0]
    return Seen(
        profile=profile,
        placement=find_runtime(variant.runtime).placement(profile, variant),
        model=_facts(bench, variant, sum(array.nbytes for array in answers.values())),
        capability=capability_of(bench.host.gpus, int(variant.options.get("device", "0"))),
        providers=tuple(ort.get_available_providers()),
        options=dict(variant.options),
    )


def _facts(bench: Bench, variant: Variant, output_bytes: int) -> ModelFacts:
    signature = inspect(variant).signature
    shapes = [(None,) if info.shape is None else info.shape for info in signature.inputs]
    free = sum(any(not isinstance(size, int) for size in shape) for shape in shapes)
    given = {info.name: bench.workload.feed[info.name] for info in signature.inputs}
    kinds = {info.dtype for info in (*signature.inputs, *signature.outputs)}
    return ModelFacts(
        free_inputs=free,
        unfixable=obstacle(bench, variant) if free else "",
        moved_bytes=sum(array.nbytes for array in given.values()) + output_bytes,
        numbers_only=not kinds & {"string", "sequence", "unknown"},
    )


def notes_of(seen: Seen, plan: Plan) -> tuple[str, ...]:
    """What the reader of a GPU's report has to know: what could not be checked, and what the times leave out."""
    notes = [UNTRIED, BLIND]
    if plan.options.get("io_binding") == "on":
        size = f"{seen.model.moved_bytes / 1e6:.2f} MB"
        notes.append(
            f"timed with inputs and outputs in the GPU's memory, as io_binding=on has them: copying {size}"
            " over the bus at each run is not in the fixed model's time, and is in the standard's"
        )
    number, left = copies(seen.profile), len(fallen(seen.profile))
    if number or left:
        nodes = sum(count for name, count in seen.placement.nodes.items() if name.startswith("CPU"))
        notes.append(f"left on the CPU: {left} operators ({nodes} nodes with those on shapes), and {number} copies")
    if isinstance(seen.capability, Missing):
        notes.append(f"not checked: what this GPU can do ({seen.capability.reason})")
    return tuple(notes)
