"""The article's Flash variant, planted into a standard transformer: each trait a switch of its own.

The article (section "Why it lags") names the traits; here each is the plainest graph that has it, so that a
single trait can be planted and its cost measured alone.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from unlag.errors import UsageError
from unlag.model.graph import add_constant, constant_array, insert_node

INT8_MAX = 127


class FlashRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """Which traits of the article's Flash are planted. The default plants all."""

    int8_weights: bool = True
    """Weights stored as INT8 and dequantized at every run."""
    per_tensor: bool = True
    """One scale for a whole weight, instead of one for each output column."""
    fp16_activations: bool = True
    """MatMuls in FP16 between casts; Softmax and LayerNormalization stay FP32."""
    segmented_qkv: bool = True
    """Query, key and value from three MatMuls instead of one packed projection."""
    extra_copies: bool = True
    """A pair of inverse Transposes in front of every projection."""
    drop_scale: bool = True
    """Attention scores without the factor 1 / sqrt(head size)."""
    passes_off: bool = True
    """The runtime's graph optimizations switched off (a session option, not a graph edit)."""

    @property
    def options(self) -> dict[str, str]:
        """Session options that belong to the variant, in spec form."""
        return {"optimization": "off"} if self.passes_off else {}


NOTHING = FlashRecipe(
    int8_weights=False,
    per_tensor=False,
    fp16_activations=False,
    segmented_qkv=False,
    extra_copies=False,
    drop_scale=False,
    passes_off=False,
)
"""The recipe that changes nothing: plant single traits with ``msgspec.structs.replace(NOTHING, ...)``."""


def make_flash(standard: onnx.ModelProto, recipe: FlashRecipe | None = None) -> onnx.ModelProto:
    """Plant the recipe's traits into a copy of the standard model.

    Raises:
        UsageError: a trait finds nothing to be planted in.
    """
    recipe = recipe or FlashRecipe()
    if recipe.per_tensor and not recipe.int8_weights:
        raise UsageError("per_tensor says how INT8 weights are scaled: it needs int8_weights")
    model = ir.from_proto(standard)
    if recipe.drop_scale:
        _drop_scale(model.graph)
    if recipe.segmented_qkv:
        _segment_qkv(model.graph)
    if recipe.extra_copies:
        _copy(model.graph)
    if recipe.int8_weights or recipe.fp16_activations:
        _compress(model.graph, recipe)
    model.graph.sort()
    return ir.to_proto(model)


def _constant(graph: ir.Graph, array: npt.NDArray[np.generic], name: str) -> ir.Value:
    """Register a constant under its name, or find it when it is there already: weights may be shared."""
    known = graph.initializers.get(name)
    return known if known is not None else add_constant(graph, array, name)


def _insert_after(node: ir.Node, kind: str, others: list[ir.Value], name: str, **attributes: int) -> None:
    """Put a node behind ``node`` that reads its output (and ``others``) and is read in its place."""
    users = list(node.outputs[0].uses())
    new = ir.node(kind, [node.outputs[0], *others], attributes, name=name)
    new.outputs[0].name = f"{name}.out"
    node.graph.insert_after(node, new)  # type: ignore[union-attr]  # a node found by walking a graph has one
    for user, index in users:
        user.replace_input_with(index, new.outputs[0])


def _projections(graph: ir.Graph) -> list[tuple[ir.Node, npt.NDArray[np.float32]]]:
    """The MatMuls by a constant [in, out] weight, and that weight."""
    found = []
    for node in graph:
        if node.op_type == "MatMul" and node.inputs[1] is not None:
            tensor = ir.convenience.get_const_tensor(node.inputs[1])
            if tensor is not None and len(tensor.shape) == 2:
                found.append((node, np.asarray(tensor.numpy(), np.float32)))
    if not found:
        raise UsageError("the model has no MatMul with a constant weight to compress")
    return found


def _drop_scale(graph: ir.Graph) -> None:
    """Take out the Div between each attention's scores and its mask."""
    dropped = 0
    for node in list(graph):
        if node.op_type != "Div" or node.inputs[0] is None:
            continue
        scores = node.inputs[0].producer()
        if scores is None or scores.op_type != "MatMul":
            continue
        node.outputs[0].replace_all_uses_with(node.inputs[0])
        graph.remove(node, safe=True)
        dropped += 1
    if not dropped:
        raise UsageError("the model has no attention scale to drop")


def _segment_qkv(graph: ir.Graph) -> None:
    """Replace each MatMul + Add + Split by three of MatMul + Add."""
    splits = [node for node in graph if node.op_type == "Split" and len(node.outputs) == 3]
    if not splits:
        raise UsageError("the model has no packed Q/K/V projection to segment")
    for split in splits:
        matmul, add = _packed_projection(split)
        weights, biases = (np.split(_array(node.inputs[1]), 3, axis=-1) for node in (matmul, add))
        for output, part, weight, bias in zip(split.outputs, ("query", "key", "value"), weights, biases, strict=True):
            prefix = str(matmul.name).replace("qkv.matmul", part)
            weight_value = _constant(graph, np.ascontiguousarray(weight), f"{prefix}.weight")
            product = insert_node(split, "MatMul", [matmul.inputs[0], weight_value], name=f"{prefix}.matmul")
            bias_value = _constant(graph, bias, f"{prefix}.bias")
            total = insert_node(split, "Add", [product, bias_value], name=f"{prefix}.add")
            output.replace_all_uses_with(total)
        packed = [str(node.inputs[1].name) for node in (matmul, add) if node.inputs[1] is not None]
        graph.remove([split, add, matmul], safe=True)
        for name in packed:
            graph.initializers.pop(name, None)


def _packed_projection(split: ir.Node) -> tuple[ir.Node, ir.Node]:
    """The MatMul and the Add of its bias in front of a Q/K/V Split."""
    add = split.inputs[0].producer() if split.inputs[0] is not None else None
    if add is None or add.op_type != "Add" or add.inputs[0] is None:
        raise UsageError(f"{split.name}: the packed projection has no bias to segment")
    matmul = add.inputs[0].producer()
    if matmul is None or matmul.op_type != "MatMul":
        raise UsageError(f"{split.name}: no packed projection in front of it")
    return matmul, add


def _array(value: ir.Value | None) -> npt.NDArray[np.generic]:
    array = constant_array(value)
    if array is None:
        raise UsageError(f"{value.name if value else 'an input'} of the packed projection is not constant")
    return array


def _copy(graph: ir.Graph) -> None:
    """Put Transpose [0, 2, 1] twice, two whole copies of the activation, before every projection."""
    swap = {"perm": [0, 2, 1]}
    for node, _weight in _projections(graph):
        there = insert_node(node, "Transpose", [node.inputs[0]], name=f"{node.name}.copy_there", attributes=swap)
        back = insert_node(node, "Transpose", [there], name=f"{node.name}.copy_back", attributes=swap)
        node.replace_input_with(0, back)


def _compress(graph: ir.Graph, recipe: FlashRecipe) -> None:
    """Store projection weights and embedding tables small, and widen them at every run."""
    for node, weight in _projections(graph):
        name = str(node.inputs[1].name)  # type: ignore[union-attr]  # _projections checked it
        node.replace_input_with(1, _stored(graph, node, weight, name, recipe))
        if recipe.fp16_activations:
            _cast_around(node)
    if recipe.int8_weights:
        for node in [n for n in graph if n.op_type == "Gather"]:
            _compress_table(graph, node)
    for name in [n for n, value in graph.initializers.items() if not value.uses() and not value.is_graph_output()]:
        graph.initializers.pop(name)


def _stored(
    graph: ir.Graph, node: ir.Node, weight: npt.NDArray[np.float32], name: str, recipe: FlashRecipe
) -> ir.Value:
    """The weight as the recipe stores it, with the nodes that widen it in front of ``node``."""
    width = np.float16 if recipe.fp16_activations else np.float32
    if not recipe.int8_weights:
        return _constant(graph, weight.astype(width), f"{name}.stored")
    codes, scale = quantize_weight(weight, None if recipe.per_tensor else 1)
    stored = _constant(graph, codes, f"{name}.int8")
    scales = _constant(graph, scale.astype(width), f"{name}.scale")
    axis = {} if recipe.per_tensor else {"axis": 1}
    return insert_node(node, "DequantizeLinear", [stored, scales], name=f"{name}.dequantize", attributes=axis)


def _compress_table(graph: ir.Graph, node: ir.Node) -> None:
    """Keep an embedding table as INT8 and dequantize only the rows that are looked up."""
    table = constant_array(node.inputs[0])
    if table is None:
        return
    codes, scale = quantize_weight(np.asarray(table, np.float32), None)
    name = str(node.inputs[0].name)  # type: ignore[union-attr]  # it has an array
    node.replace_input_with(0, _constant(graph, codes, f"{name}.int8"))
    node.outputs[0].type = ir.TensorType(ir.DataType.INT8)
    _insert_after(node, "DequantizeLinear", [_constant(graph, scale, f"{name}.scale")], f"{name}.dequantize")


def _cast_around(node: ir.Node) -> None:
    """Run one MatMul in FP16 between two casts."""
    half = {"to": int(ir.DataType.FLOAT16)}
    node.replace_input_with(
        0, insert_node(node, "Cast", [node.inputs[0]], name=f"{node.name}.to_half", attributes=half)
    )
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    _insert_after(node, "Cast", [], f"{node.name}.to_float", to=int(ir.DataType.FLOAT))


def quantize_weight(
    weight: npt.NDArray[np.float32], axis: int | None
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric INT8 codes and scale: one for the tensor, or one for each index along ``axis``."""
    if axis is None:
        largest = np.abs(weight).max(keepdims=True)
    else:
        others = tuple(i for i in range(weight.ndim) if i != axis)
        largest = np.abs(weight).max(axis=others, keepdims=True)
    scale = np.maximum(largest, np.finfo(np.float32).tiny) / INT8_MAX
    codes = np.clip(np.rint(weight / scale), -INT8_MAX, INT8_MAX).astype(np.int8)
    return codes, scale.reshape(() if axis is None else (-1,)).astype(np.float32)
