"""One side's quantized activations, judged by what they held in a run."""

from __future__ import annotations

from typing import Literal

from unlag.errors import Missing
from unlag.model.draft import Observed
from unlag.model.facts import GraphIndex
from unlag.observe.evidence import Evidence, Values
from unlag.rewrites.activation_fit import Fault, Judgement, judge_activations


def faulty_activations(evidence: Evidence, which: Literal["standard", "variant"], *faults: Fault) -> list[Judgement]:
    """The activations with one of these faults; none where the side was not run tensor by tensor."""
    side = evidence.standard if which == "standard" else evidence.variant
    if isinstance(side.values, Missing) or isinstance(side.graph, Missing):
        return []
    seen = evidence.observed if which == "variant" else seen_of(side.values)
    return [judged for judged in judge_activations(GraphIndex(side.graph), seen) if judged.fault in faults]


def seen_of(values: Values) -> Observed:
    """What judging needs of a run, without another side to compare with."""
    tensors = values.tensors
    return Observed(
        ranges={name: (tensor.low, tensor.high) for name, tensor in tensors.items()},
        rms={name: tensor.rms for name, tensor in tensors.items()},
    )
