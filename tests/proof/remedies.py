"""Causes and remedies on a tiny model ``x @ w``: some honest, some that must be caught."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from unlag.causes.contract import Cause, Finding, Remedy, Safety, Step
from unlag.model.draft import OnnxDraft
from unlag.proof.copies import Suspect


def weight_times(factor: float) -> Callable[[OnnxDraft], int]:
    return change_weight(lambda w: w * factor)


def change_weight(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[OnnxDraft], int]:
    def apply(draft: OnnxDraft) -> int:
        weight = draft.model.graph.initializers["w"]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(np.ascontiguousarray(change(weight.const_value.numpy()), np.float32), name="w")
        return 1

    return apply


def set_option(name: str, value: str) -> Callable[[OnnxDraft], int]:
    def apply(draft: OnnxDraft) -> int:
        changed = draft.options.get(name) != value
        draft.options[name] = value
        return int(changed)

    return apply


def break_model(draft: OnnxDraft) -> int:
    draft.model.graph[0].op_type = "NoSuchOperator"
    return 1


def raises(draft: OnnxDraft) -> int:
    raise ValueError(f"no rule for {draft.variant.name}")


def nothing(draft: OnnxDraft) -> int:
    del draft
    return 0


def suspect(  # noqa: PLR0917 - a cause has these parts
    name: str,
    apply: Callable[[OnnxDraft], int] = nothing,
    safety: Safety = "EXACT",
    step: Step = Step.CLEAN,
    affects: frozenset[str] = frozenset({"speed"}),
    knots: dict[str, str] | None = None,
) -> Suspect:
    remedy = Remedy(f"mend_{name}", f"mend {name}", safety, step, apply)
    cause = Cause(
        name,
        f"the cause {name}",
        "graph",
        affects,
        frozenset(),
        lambda _: Finding("found", "1 of 1"),
        (remedy,),
        knots or {},
    )
    return Suspect(cause, remedy)
