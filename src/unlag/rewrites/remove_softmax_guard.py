"""NaN guards behind a Softmax that can't give NaN."""

from __future__ import annotations

import math

import onnx_ir as ir

from unlag.model.facts import GraphIndex, Node, facts_of
from unlag.model.graph import replace_output, sweep
from unlag.rewrites.attention_layout import read_layout
from unlag.rewrites.attention_pattern import attention_blocks
from unlag.rewrites.model_index import ModelIndex


def remove_softmax_guard(model: ir.Model) -> int:
    """Where(IsNaN(p), 0, p) = p for p = softmax(scores + mask) whose mask is finite.

    A Softmax over finite numbers is finite; only a row that is all −∞ gives NaN. So a guard is taken out where the
    block has no mask, or a padding mask that adds a finite number, and stays everywhere else.
    """
    facts = facts_of(model)
    index = ModelIndex(facts, model)
    values = {str(out.name): out for node in model.graph for out in node.outputs if out.name}
    removed = 0
    for block in attention_blocks(facts):
        guards = [g for node in index.consumers.get(block.softmax, []) for g in guards_of(index, node)]
        layout = read_layout(index, block) if guards else None
        if layout is None or layout.mask.kind == "bias" or not math.isfinite(layout.mask.hidden):
            continue
        for guard in (g for g in guards if g.depth == 0):
            replace_output(values[guard.outputs[0]], values[guard.inputs[2]])
            removed += 1
    if removed:
        sweep(model)
    return removed


def guards_of(index: GraphIndex, softmax: Node) -> list[Node]:
    """The Where nodes that put 0 in the place of the Softmax's NaNs."""
    if softmax.op_type != "Softmax":
        return []
    result = softmax.outputs[0]
    checks = {node.outputs[0] for node in index.consumers.get(result, []) if node.op_type == "IsNaN"}
    return [
        node
        for node in index.consumers.get(result, [])
        if node.op_type == "Where"
        and node.inputs[0] in checks
        and node.inputs[2] == result
        and index.scalar(node.inputs[1]) == 0
    ]
