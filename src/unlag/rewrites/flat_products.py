"""Products with weights over two axes, tokens and features, and everything between them too."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, constant_array, insert_node, replace_output, sweep
from unlag.rewrites.inferred_shapes import Shape, inferred_shapes
from unlag.rewrites.neighbors import made_by, sole_reader

_BY_ELEMENT = frozenset({
    "Add", "Sub", "Mul", "Div", "Relu", "Gelu", "FastGelu", "QuickGelu", "Tanh", "Sigmoid", "Erf", "Sqrt", "Abs", "Neg",
    "Clip", "HardSwish", "HardSigmoid", "Exp", "Max", "Min",
})  # fmt: skip
"""Operators that compute element by element, wherever the axes are."""
_BY_ROW = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "Softmax", "Split"})
"""Operators over one axis; taken where that is the last one."""


def flat_products(model: ir.Model) -> int:
    """x·W + b on [batch, sequence, width] becomes Gemm on [batch · sequence, width]; how many products that were.

    A Gemm adds its bias to the exact sum, where MatMul and Add round in between once there are codes. What computes
    element by element or row by row goes on in two axes, so that data are not given other axes and back around each
    product. Only where all sizes are fixed.
    """
    flat = _Flat(model)
    made = sum(flat.product(node) for node in list(model.graph) if node.op_type == "MatMul" and not node.domain)
    if made:
        for node in list(model.graph):
            flat.pass_on(node)
        flat.merge_reshapes()
        sweep(model)
    return made


class _Flat:
    """Which values there are in two axes as well."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._shapes = inferred_shapes(model)
        self._twins: dict[ir.Value, ir.Value] = {}

    def product(self, node: ir.Node) -> bool:
        """Turn a product with a weight into a Gemm between two Reshapes."""
        source, weight = node.inputs[0], node.inputs[1]
        stored = constant_array(weight)
        shape, result = self._fixed(source), self._fixed(node.outputs[0])
        if source is None or stored is None or stored.ndim != 2 or stored.dtype != np.float32:
            return False
        if shape is None or result is None or len(shape) < 2:
            return False
        name, rows = node.name or str(node.outputs[0].name), math.prod(shape[:-1])
        if len(shape) > 2 and source not in self._twins:
            self._twins[source] = self._reshaped(node, source, (rows, shape[-1]), f"{name}.rows")
        last, bias = self._bias(node, stored.shape[1])
        inputs = [self._twins.get(source, source), weight, *([bias] if bias is not None else [])]
        gemm = insert_node(last, "Gemm", inputs, name=f"{name}.gemm")
        self._typed(gemm, (rows, stored.shape[1]))
        if len(shape) > 2:
            self._put_back(last, gemm, result)
        else:
            replace_output(last.outputs[0], gemm)
        return True

    def _bias(self, node: ir.Node, width: int) -> tuple[ir.Node, ir.Value | None]:
        """The Add of a bias, where nothing else reads the product, and the bias; else the product itself."""
        add = sole_reader(node.outputs[0])
        if add is None or add.op_type != "Add" or add.domain or node.outputs[0].is_graph_output():
            return node, None
        other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
        stored = constant_array(other)
        if other is None or stored is None or stored.shape[-1:] != (width,) or stored.size != width:
            return node, None
        row = other if stored.ndim == 1 else add_constant(self._graph, stored.reshape(width), f"{other.name}.row")
        return add, row

    def pass_on(self, node: ir.Node) -> None:
        """Let a node that reads a value with a twin read the twin."""
        if node.graph is not self._graph or not node.inputs or not any(i in self._twins for i in node.inputs):
            return
        if node.op_type == "Reshape" and not node.domain:
            self._reshape(node)
        elif node.op_type in _BY_ELEMENT or (node.op_type in _BY_ROW and self._is_over_rows(node)):
            self._compute(node)

    def merge_reshapes(self) -> None:
        """Let a Reshape of a Reshape read what that one reads; one that changes nothing goes."""
        for node in self._graph:
            first = made_by(node.inputs[0], "Reshape") if node.op_type == "Reshape" else None
            wanted = self._fixed(node.outputs[0])
            if first is None or wanted is None:
                continue
            node.replace_input_with(0, first.inputs[0])
            node.replace_input_with(1, self._sizes(wanted, f"{node.name or node.outputs[0].name}.shape"))
            if self._fixed(first.inputs[0]) == wanted and first.inputs[0] is not None:
                node.outputs[0].replace_all_uses_with(first.inputs[0])

    def _reshape(self, node: ir.Node) -> None:
        """Give the twin the wanted axes; nothing to do where it has them."""
        twin, wanted = self._twins.get(node.inputs[0]), self._fixed(node.outputs[0])  # type: ignore[arg-type]  # a Reshape has data
        if twin is None or wanted is None or twin is node.outputs[0]:
            return
        if wanted == self._shapes[str(twin.name)]:
            self._twins[node.outputs[0]] = twin
            if not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(twin)
            return
        node.replace_input_with(0, twin)
        node.replace_input_with(1, self._sizes(wanted, f"{node.name or node.outputs[0].name}.shape"))

    def _compute(self, node: ir.Node) -> None:
        """Compute on twins, and put the axes back behind the node for those who want them."""
        whole = self._fixed(node.inputs[0] if node.op_type in _BY_ROW else node.outputs[0])
        if whole is None or any(out.is_graph_output() for out in node.outputs):
            return
        inputs = [value if value is None else self._flat_input(value, whole) for value in node.inputs]
        if any(given is not None and made is None for given, made in zip(node.inputs, inputs, strict=True)):
            return
        name = node.name or str(node.outputs[0].name)
        attributes = dict(node.attributes)
        if "axis" in attributes:
            attributes["axis"] = ir.AttrInt64("axis", -1)
        flat = ir.Node(
            node.domain, node.op_type, inputs, list(attributes.values()),
            num_outputs=len(node.outputs), name=f"{name}.rows", version=node.version,
        )  # fmt: skip
        self._graph.insert_before(node, flat)
        for number, (old, new) in enumerate(zip(list(node.outputs), flat.outputs, strict=True)):
            shape = self._fixed(old)
            if shape is None:
                continue  # an optional output that nothing reads
            new.name = f"{flat.name}.out{number}"
            self._typed(new, (math.prod(shape[:-1]), shape[-1]))
            self._put_back(node, new, shape, old)

    def _flat_input(self, value: ir.Value, whole: tuple[int, ...]) -> ir.Value | None:
        """The twin of a value that is not broadcast; or a constant that is the same for every row, in one axis."""
        if value in self._twins:
            return self._twins[value] if self._fixed(value) == whole else None
        stored = constant_array(value)
        if stored is None or stored.size not in {1, whole[-1]} or stored.shape[-1:] not in {(), (1,), whole[-1:]}:
            return value if stored is not None and stored.dtype == np.int64 else None
        if stored.ndim <= 1:
            return value
        return add_constant(self._graph, stored.reshape(stored.shape[-1]), f"{value.name}.row")

    def _is_over_rows(self, node: ir.Node) -> bool:
        shape = self._fixed(node.inputs[0])
        default = 0 if node.op_type == "Split" else -1
        return shape is not None and node.attributes.get_int("axis", default) in {-1, len(shape) - 1}

    def _put_back(self, before: ir.Node, flat: ir.Value, shape: tuple[int, ...], old: ir.Value | None = None) -> None:
        """A Reshape to the old axes for all who read the old value."""
        old = before.outputs[0] if old is None else old
        back = self._reshaped(before, flat, shape, f"{flat.name}.axes")
        self._twins[back] = flat
        replace_output(old, back)

    def _reshaped(self, before: ir.Node, value: ir.Value, shape: tuple[int, ...], name: str) -> ir.Value:
        made = insert_node(before, "Reshape", [value, self._sizes(shape, f"{name}.shape")], name=name)
        self._typed(made, shape)
        return made

    def _sizes(self, shape: tuple[int, ...], name: str) -> ir.Value:
        return add_constant(self._graph, np.array(shape, np.int64), name)

    def _typed(self, value: ir.Value, shape: tuple[int, ...]) -> None:
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
        self._shapes[str(value.name)] = shape

    def _fixed(self, value: ir.Value | None) -> tuple[int, ...] | None:
        shape: Shape | None = None if value is None else self._shapes.get(str(value.name))
        if shape is None or None in shape:
            return None
        return tuple(size for size in shape if size is not None)
