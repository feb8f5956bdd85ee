"""Looking up embeddings, adding and normalizing them, by one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import GraphIndex, facts_of
from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep
from unlag.rewrites.evaluate import Array, Evaluator
from unlag.rewrites.known_values import fixed_facts
from unlag.rewrites.model_index import ModelIndex
from unlag.rewrites.neighbors import made_by, sole_reader

DOMAIN = "com.microsoft"
BATCH, SEQUENCE = 3, 5
_PICKING = frozenset({"Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Identity"})
_LONGEST_PATH = 8
_MOST_PARTS = 3
_DEFAULT_EPSILON = 1e-5
_EXACT = 1 << 24
"""Rows are numbered in float32, which counts exactly up to here."""

Rows = npt.NDArray[np.int64]
Numbered = dict[str, npt.NDArray[np.int64]]


class Part(NamedTuple):
    """One of the summed embeddings: which rows of a table it takes, and by what."""

    table: ir.Value
    kind: Literal["input", "position", "row", "computed"]
    source: str = ""
    """Name of the graph input, or of the computed indices."""
    row: int = 0


@dataclass(frozen=True)
class _Found:
    """A normalization over a sum of embeddings."""

    norm: ir.Node
    word: Part
    position: Part
    segment: Part | None


def fuse_embedding_norm(model: ir.Model) -> int:
    """LayerNormalization(word[ids] + position[0, 1, …] + type[types]) becomes EmbedLayerNormalization.

    Which rows a look-up takes is told by running it on numbered rows and drawn ids. Types that are the same in every
    run are added to the table of positions. The table of types may be absent.
    """
    index = ModelIndex(fixed_facts(facts_of(model)), model)
    fused = 0
    for node in list(model.graph):
        found = _find(model, index, node) if node.op_type == "LayerNormalization" and not node.domain else None
        if found is not None:
            _fuse(model, found)
            fused += 1
    if fused:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return fused


def _find(model: ir.Model, index: GraphIndex, norm: ir.Node) -> _Found | None:
    rows = [constant_array(value) for value in norm.inputs[1:3]]
    leaves = _summed(norm.inputs[0])
    if len(rows) != 2 or any(row is None or row.dtype != np.float32 or row.ndim != 1 for row in rows):
        return None
    if norm.attributes.get_int("axis", -1) != -1 or len(norm.outputs) > 1 or not 2 <= len(leaves) <= _MOST_PARTS:
        return None
    parts = [_part(model, index, leaf) for leaf in leaves]
    known = [
        part for part in parts if part is not None and _width(part) == (rows[0].size if rows[0] is not None else 0)
    ]
    by_input = sorted((p for p in known if p.kind == "input"), key=lambda p: -_height(p))
    positions = [p for p in known if p.kind in {"position", "computed"}]
    fixed = [p for p in known if p.kind == "row"]
    if len(known) != len(leaves) or not by_input or len(positions) != 1 or len(by_input) + len(fixed) > 2:
        return None
    segments = [*by_input[1:], *fixed]
    return _Found(norm, by_input[0], positions[0], segments[0] if segments else None)


def _summed(total: ir.Value | None) -> list[ir.Value]:
    """The summands of a tree of additions whose sums nobody else reads."""
    add = made_by(total, "Add")
    if total is None or add is None or add.domain or sole_reader(total) is None:
        return [] if total is None else [total]
    return [leaf for value in add.inputs for leaf in _summed(value)]


def _width(part: Part) -> int:
    return int(_shape(part.table)[-1])


def _height(part: Part) -> int:
    return int(_shape(part.table)[-2])


def _shape(value: ir.Value) -> list[int]:
    tensor = ir.convenience.get_const_tensor(value)
    return [] if tensor is None else [int(size) for size in tensor.shape.numpy()]


def _part(model: ir.Model, index: GraphIndex, leaf: ir.Value) -> Part | None:
    """What a summand is; nothing where it is no rows of one constant table."""
    path = _table(leaf)
    if path is None:
        return None
    table, indices = path
    draws = [_drawn(model, seed, most) for seed, most in enumerate((2, 2, _shape(table)[-2]))]
    picked = [_rows(index, leaf, table, draw) for draw in draws]
    if any(rows is None for rows in picked[:2]):
        return None  # a look-up by computed indices may leave the table where inputs are large
    told = _told(table, draws, picked)
    if told is not None or indices is None:
        return told
    computed = Evaluator(index, dict(draws[0])).value(str(indices.name))
    fits = computed is not None and computed.shape == (BATCH, SEQUENCE)
    return Part(table, "computed", str(indices.name)) if fits else None


def _told(table: ir.Value, draws: list[Numbered], picked: list[Rows | None]) -> Part | None:
    """What the rows that are taken for drawn inputs show: those inputs, positions, or always the same row."""
    taken = [(draw, rows) for draw, rows in zip(draws, picked, strict=True) if rows is not None]
    for name in draws[0]:
        if len(taken) == len(draws) and all(np.array_equal(draw[name], rows) for draw, rows in taken):
            return Part(table, "input", name)
    if all(np.array_equal(rows, np.broadcast_to(np.arange(SEQUENCE), rows.shape)) for _draw, rows in taken):
        return Part(table, "position")
    first = int(taken[0][1].flat[0])
    return Part(table, "row", row=first) if all((rows == first).all() for _draw, rows in taken) else None


def _table(leaf: ir.Value) -> tuple[ir.Value, ir.Value | None] | None:
    """The constant table in front of a summand, and the indices of the Gather behind it."""
    value: ir.Value | None = leaf
    indices = None
    for _step in range(_LONGEST_PATH):
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if value is not None and tensor is not None:
            shape = _shape(value)
            is_table = tensor.dtype == ir.DataType.FLOAT and len(shape) >= 2 and all(n == 1 for n in shape[:-2])
            fits = is_table and not value.is_graph_input() and 2 * shape[-2] < _EXACT
            return (value, indices) if fits else None
        node = None if value is None else value.producer()
        if node is None or node.domain or node.op_type not in _PICKING:
            return None
        if node.op_type == "Gather":
            indices = node.inputs[1]
        value = node.inputs[0]
    return None


def _drawn(model: ir.Model, seed: int, most: int) -> Numbered:
    """Numbers below ``most`` for every graph input of ids, [batch, sequence]."""
    rng = np.random.default_rng(seed)
    inputs = [v for v in model.graph.inputs if v.shape is not None and len(v.shape) == 2 and v.const_value is None]
    return {
        str(value.name): rng.integers(0, most, (BATCH, SEQUENCE))
        for value in inputs
        if value.dtype in {ir.DataType.INT64, ir.DataType.INT32}
    }


def _rows(index: GraphIndex, leaf: ir.Value, table: ir.Value, draw: Numbered) -> Rows | None:
    """The rows that a summand takes, [batch, sequence]."""
    shape = _shape(table)
    numbered = np.arange(2 * shape[-2], dtype=np.float64).reshape(*shape[:-1], 2)
    feeds: dict[str, Array] = {**draw, str(table.name): numbered}
    value = Evaluator(index, feeds).value(str(leaf.name))
    if value is None or not 2 <= value.ndim <= 3 or value.shape[-2:] != (SEQUENCE, 2):
        return None
    if value.ndim == 3 and value.shape[0] not in {1, BATCH}:
        return None
    whole = np.broadcast_to(value.astype(np.float64), (BATCH, SEQUENCE, 2))
    rows = (whole[..., 0] / 2).astype(np.int64)
    return rows if np.array_equal(whole, np.stack([2 * rows, 2 * rows + 1], -1)) else None


def _fuse(model: ir.Model, found: _Found) -> None:
    graph, norm = model.graph, found.norm
    result, segment = norm.outputs[0], found.segment
    name = f"{norm.name or result.name}.fused"
    table = _matrix(graph, found.position.table)
    if segment is not None and segment.kind == "row":
        row = _array(segment.table)[segment.row]
        table = add_constant(graph, (_array(found.position.table) + row).astype(np.float32), f"{name}.positions")
        segment = None
    ids = _as_int32(model, found.word.source, norm)
    inputs: list[ir.Value | None] = [ids, None, _matrix(graph, found.word.table), table, None, *norm.inputs[1:3], None]
    if segment is not None:
        inputs[1], inputs[4] = _as_int32(model, segment.source, norm), _matrix(graph, segment.table)
    if found.position.kind == "computed":
        inputs.append(_as_int32(model, found.position.source, norm))
    while inputs[-1] is None:
        inputs.pop()
    epsilon = norm.attributes.get_float("epsilon", _DEFAULT_EPSILON) or _DEFAULT_EPSILON
    node = ir.Node(
        DOMAIN, "EmbedLayerNormalization", inputs, [ir.AttrFloat32("epsilon", epsilon)], num_outputs=2, name=name
    )
    node.outputs[0].name, node.outputs[1].name = f"{name}.out", f"{name}.mask_index"
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), result.shape
    node.outputs[1].type = ir.TensorType(ir.DataType.INT32)
    graph.insert_before(norm, node)
    replace_output(result, node.outputs[0])


def _array(table: ir.Value) -> npt.NDArray[np.float32]:
    """A table as [rows, width]."""
    array = constant_array(table)
    if array is None:
        raise ValueError(f"{table.name} is no constant")
    return array.reshape(array.shape[-2:]).astype(np.float32)


def _matrix(graph: ir.Graph, table: ir.Value) -> ir.Value:
    return table if len(_shape(table)) == 2 else add_constant(graph, _array(table), f"{table.name}.matrix")


def _as_int32(model: ir.Model, name: str, before: ir.Node) -> ir.Value:
    """The value of that name as int32; a Cast of it that is there already serves again."""
    values = (*model.graph.inputs, *(out for node in model.graph for out in node.outputs))
    source = next(value for value in values if value.name == name)
    if source.dtype == ir.DataType.INT32:
        return source
    cast = insert_node(
        before, "Cast", [source], name=f"{name}.int32.embedded", attributes={"to": int(ir.DataType.INT32)}
    )
    cast.type, cast.shape = ir.TensorType(ir.DataType.INT32), source.shape
    return cast
