"""Both files' tensors, value by value: each model is run once with its inside exposed, without the runtime's passes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from unlag.errors import Missing, UnlagError
from unlag.measure.bench import Bench
from unlag.measure.sketch import TensorSketch
from unlag.model.facts import GraphFacts
from unlag.model.variant import Variant
from unlag.observe.evidence import AttentionFacts, Evidence, Values
from unlag.observe.match import relative_error
from unlag.runtimes.contract import find_runtime

Sketches = Mapping[str, TensorSketch]


def sketch_tensors(bench: Bench, variant: Variant) -> Sketches | Missing:
    """Sketches of all tensors that the variant's file computes, in its order, or why there are none."""
    try:
        with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
            exposed = find_runtime(variant.runtime).expose(variant, Path(folder))
            with bench.contest({"exposed": exposed.variant}) as contest:
                return contest.sketch("exposed", exposed.tensors)
    except UnlagError as error:
        return Missing(f"its tensors could not be looked at: {error.message}")


def values_of(sketches: Sketches | Missing) -> Values | Missing:
    """The facts of all sketched tensors."""
    if isinstance(sketches, Missing):
        return sketches
    return Values({name: sketch.facts for name, sketch in sketches.items()})


def attention_of(evidence: Evidence, standard: Sketches, variant: Sketches) -> tuple[AttentionFacts, ...]:
    """Attention weights of both sides in order; none where the two don't have as many of the same shapes."""
    logits = _softmax_inputs(evidence.standard.graph), _softmax_inputs(evidence.variant.graph)
    ours, theirs = _attention_weights(standard, logits[0]), _attention_weights(variant, logits[1])
    shapes = [
        [sketches[name].facts.shape for name in names] for sketches, names in ((standard, ours), (variant, theirs))
    ]
    if shapes[0] != shapes[1]:
        return ()
    return tuple(
        AttentionFacts(
            standard=one,
            variant=other,
            standard_entropy=standard[one].facts.entropy or 0.0,
            variant_entropy=variant[other].facts.entropy or 0.0,
            logit_error=_logit_error(standard.get(logits[0].get(one, "")), variant.get(logits[1].get(other, ""))),
        )
        for one, other in zip(ours, theirs, strict=True)
    )


def _attention_weights(sketches: Sketches, softmax: Mapping[str, str]) -> list[str]:
    """Outputs of Softmax nodes whose rows are distributions, of three dimensions at least: no class probabilities."""
    return [name for name in softmax if name in sketches and sketches[name].facts.entropy is not None]


def _softmax_inputs(graph: GraphFacts | Missing) -> dict[str, str]:
    """The input of each Softmax by its output."""
    if isinstance(graph, Missing):
        return {}
    return {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.op_type == "Softmax"}


def _logit_error(standard: TensorSketch | None, variant: TensorSketch | None) -> float | None:
    if standard is None or variant is None or standard.facts.shape != variant.facts.shape:
        return None
    return relative_error(standard.values, variant.values)
