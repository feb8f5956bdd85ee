"""A graph's facts as if nothing were quantized and no attention fused: what attention is looked for in.

Quantizers put nodes into the middle of every pattern. Here codes stand for the numbers that they mean, so that a
quantized product is a MatMul and a pair of QuantizeLinear and DequantizeLinear does nothing; standard Attention and
FusedMatMul become the operators that they are short for. Values keep their names; those that are new hold a ``#``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np

from unlag.model.facts import SMALL, Attribute, Constant, GraphFacts, GraphIndex, Node
from unlag.rewrites.activation_codes import MOVING
from unlag.rewrites.element_types import fact_types

LOWEST = float(np.finfo(np.float32).min)
_KEYS_FIRST = [0, 1, 3, 2]
"""Swaps the last two axes of what is split into heads."""
_AFTER_PRODUCT = 4
"""Nodes behind an integer product that bring its sums back to floats: Cast and up to two Mul, and one to spare."""

_MAKING_CODES = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"})

Nodes = list[Node]


def plain_view(facts: GraphFacts) -> GraphFacts:
    """The same graph in float operators. It is for reading: codes are not floats, whatever it says."""
    view = _View(facts)
    nodes = [new for node in facts.nodes for new in view.spelled(node)]
    return msgspec.structs.replace(facts, nodes=tuple(nodes), constants={**facts.constants, **view.constants})


def code_values(facts: GraphFacts) -> frozenset[str]:
    """Names of the values that hold codes or their sums, and no floats, whatever their plain view says."""
    codes: set[str] = set()
    for node in facts.nodes:
        moved = node.op_type in MOVING and bool(node.inputs) and node.inputs[0] in codes
        if moved or node.op_type in _MAKING_CODES or node.op_type.startswith("QLinear"):
            codes |= set(node.outputs)
    return frozenset(codes)


class _View:
    """What the new nodes need: look-ups in the graph, and constants that come with them."""

    def __init__(self, facts: GraphFacts) -> None:
        self.index = GraphIndex(facts)
        self.types = fact_types(facts)
        self.constants: dict[str, Constant] = {}
        self.rescaling = {name for node in facts.nodes for name in _rescaled(self.index, node)}
        """Results of nodes that only bring integer sums back to the floats that the plain product gives."""

    def spelled(self, node: Node) -> Nodes:
        if node.outputs and node.outputs[0] in self.rescaling:
            data = next(i for i in node.inputs if i in self.rescaling or self._makes_sums(i))
            return [_node("Identity", [data], node.outputs[0], node)]
        spell = _SPELLED.get((node.op_type, node.domain))
        return [node] if spell is None else spell(self, node)

    def _makes_sums(self, name: str) -> bool:
        maker = self.index.producer(name)
        return maker is not None and maker.op_type == "MatMulInteger"

    def dequantized(self, name: str, scale: str, zero: str, result: str) -> bool:
        """Hold a constant of one axis or none as the floats that its codes mean."""
        codes, factor = self.index.constant(name), self.index.constant(scale)
        if codes is None or factor is None or len(codes.shape) > 1:
            return False
        values = None
        offset = self.index.constant(zero) if zero else None
        if codes.values is not None and factor.values is not None and (offset is None or offset.values is not None):
            shift = np.array(0.0 if offset is None else offset.values)
            values = tuple(((np.array(codes.values) - shift) * np.array(factor.values)).tolist())
        fits = values is not None and len(values) == math.prod(codes.shape) <= SMALL
        self.constants[result] = Constant(
            dtype="float32", shape=codes.shape, size_bytes=4 * math.prod(codes.shape),
            values=values if fits else None, peak_share=None,
        )  # fmt: skip
        return True

    def number(self, value: float, name: str, dtype: str = "float32") -> str:
        """A new constant of one element."""
        self.constants[name] = Constant(dtype=dtype, shape=(), size_bytes=4, values=(value,), peak_share=None)
        return name

    def numbers(self, values: Iterable[int], name: str) -> str:
        """A new constant of integers along one axis."""
        listed = tuple(float(v) for v in values)
        self.constants[name] = Constant("int64", (len(listed),), 8 * len(listed), listed, None)
        return name


def _node(
    op_type: str, inputs: Iterable[str], output: str, origin: Node, attributes: Mapping[str, Attribute] | None = None
) -> Node:
    return Node(origin.name, op_type, "", tuple(inputs), (output,), dict(attributes or {}), origin.depth)


def _given(node: Node, position: int) -> str:
    return node.inputs[position] if len(node.inputs) > position else ""


def _rescaled(index: GraphIndex, node: Node) -> list[str]:
    """Behind a MatMulInteger: the Cast, and the Mul by the scales of both factors."""
    if node.op_type != "MatMulInteger" or node.domain:
        return []
    found: list[str] = []
    name = node.outputs[0]
    for _step in range(_AFTER_PRODUCT):
        readers = index.consumers.get(name, [])
        if len(readers) != 1 or not (readers[0].op_type == "Cast" or _multiplies_scales(index, readers[0], name)):
            break
        name = readers[0].outputs[0]
        found.append(name)
    return found


def _multiplies_scales(index: GraphIndex, node: Node, data: str) -> bool:
    """Whether the other factor is a scale: of a DynamicQuantizeLinear, a small constant times one, or one by column."""
    if node.op_type != "Mul" or node.domain or len(node.inputs) != 2:
        return False
    factor = node.inputs[1] if node.inputs[0] == data else node.inputs[0]
    return _is_scale(index, factor) or _holds_scale(index, data, factor)


def _is_scale(index: GraphIndex, name: str) -> bool:
    node = index.producer(name)
    if node is None:
        return False
    if node.op_type == "DynamicQuantizeLinear":
        return name == node.outputs[1]
    parts = node.inputs if node.op_type == "Mul" else ()
    return any(_is_scale(index, part) for part in parts) and all(
        index.constant(part) is not None or _is_scale(index, part) for part in parts
    )


def _holds_scale(index: GraphIndex, data: str, factor: str) -> bool:
    """A constant that is multiplied in after the activation's scale was: the weight's, where exports write two Mul."""
    before = index.producer(data)
    if index.constant(factor) is None or before is None or before.op_type != "Mul":
        return False
    producer = index.producer
    return any((maker := producer(i)) is not None and maker.op_type == "DynamicQuantizeLinear" for i in before.inputs)


def _passed(_view: _View, node: Node) -> Nodes:
    return [_node("Identity", node.inputs[:1], node.outputs[0], node)]


def _dequantize(view: _View, node: Node) -> Nodes:
    if view.index.constant(node.inputs[0]) is None:
        return _passed(view, node)
    held = view.dequantized(node.inputs[0], node.inputs[1], _given(node, 2), node.outputs[0])
    return [] if held else [node]


def _integer_product(_view: _View, node: Node) -> Nodes:
    return [_node("MatMul", node.inputs[:2], node.outputs[0], node)]


def _linear_product(_view: _View, node: Node) -> Nodes:
    return [_node("MatMul", [node.inputs[0], node.inputs[3]], node.outputs[0], node)]


def _linear_sum(view: _View, node: Node) -> Nodes:
    """QLinearAdd and QLinearMul; the smaller factor may be a constant."""
    names = []
    for position in (0, 3):
        name, scale, zero = (_given(node, position + part) for part in range(3))
        number = f"{node.outputs[0]}#{position}"
        names.append(number if view.dequantized(name, scale, zero, number) else name)
    return [_node(node.op_type.removeprefix("QLinear"), names, node.outputs[0], node)]


def _linear_softmax(_view: _View, node: Node) -> Nodes:
    return [_node("Softmax", node.inputs[:1], node.outputs[0], node, {"axis": node.attributes.get("axis", -1)})]


def _fused_product(view: _View, node: Node) -> Nodes:
    """FusedMatMul(A, B) = alpha · A · B, either of them transposed first."""
    known = {"transA", "transB", "alpha"}
    if any(node.attributes.get(name) for name in node.attributes if name not in known):
        return [node]
    nodes, inputs, result = [], list(node.inputs[:2]), node.outputs[0]
    for position, name in enumerate(("transA", "transB")):
        if node.attributes.get(name):
            swapped = f"{result}#{name}"
            nodes.append(_node("Transpose", [inputs[position]], swapped, node, {"perm": list(_KEYS_FIRST)}))
            inputs[position] = swapped
    alpha = node.attributes.get("alpha", 1.0)
    if not isinstance(alpha, (int, float)) or alpha == 1:
        return [*nodes, _node("MatMul", inputs, result, node)]
    factor = view.number(float(alpha), f"{result}#alpha")
    product = _node("MatMul", inputs, f"{result}#product", node)
    return [*nodes, product, _node("Mul", [product.outputs[0], factor], result, node)]


def _attention(view: _View, node: Node) -> Nodes:
    """The standard's Attention without a past: split into heads, repeat keys and values, scale, mask, Softmax."""
    present = [name for name in node.outputs[1:] if name]
    rest = [name for name in node.inputs[4:] if name]
    softcap = node.attributes.get("softcap", 0.0)
    if present or rest or softcap or len(node.inputs) < 3:
        return [node]
    return _AttentionNodes(view, node).spelled()


class _AttentionNodes:
    """Writes one Attention out; every new value is named after its result."""

    def __init__(self, view: _View, node: Node) -> None:
        self.view, self.node = view, node
        self.nodes: Nodes = []

    def add(self, op_type: str, inputs: Iterable[str], name: str, **attributes: Attribute) -> str:
        output = f"{self.node.outputs[0]}#{name}" if name else self.node.outputs[0]
        self.nodes.append(_node(op_type, inputs, output, self.node, attributes))
        return output

    def name(self, part: str) -> str:
        return f"{self.node.outputs[0]}#{part}"

    def spelled(self) -> Nodes:
        heads, groups = (self._count(f"{part}_num_heads") for part in ("q", "kv"))
        query, key, value = (
            self._split(source, count, part)
            for source, count, part in zip(self.node.inputs, (heads, groups, groups), ("q", "k", "v"), strict=False)
        )
        if heads and groups and heads != groups:
            key, value = (self._repeated(name, heads, part) for name, part in ((key, "k"), (value, "v")))
        turned = self.add("Transpose", [key], "k.turned", perm=list(_KEYS_FIRST))
        scores = self._scaled(self.add("MatMul", [query, turned], "scores"), query)
        weights = self.add("Softmax", [self._masked(scores)], "weights", axis=-1)
        context = self.add("MatMul", [weights, value], "context" if heads else "")
        if heads:
            back = self.add("Transpose", [context], "turned", perm=[0, 2, 1, 3])
            self.add("Reshape", [back, self.view.numbers([0, 0, -1], self.name("joined"))], "")
        return self.nodes

    def _count(self, name: str) -> int:
        count = self.node.attributes.get(name, 0)
        return count if isinstance(count, int) else 0

    def _split(self, source: str, heads: int, part: str) -> str:
        """Inputs of three axes are split into heads; those of four are already."""
        if not heads:
            return source
        shape = self.view.numbers([0, 0, heads, -1], self.name(f"{part}.shape"))
        return self.add(
            "Transpose", [self.add("Reshape", [source, shape], f"{part}.split")], f"{part}.heads", perm=[0, 2, 1, 3]
        )

    def _repeated(self, name: str, heads: int, part: str) -> str:
        groups = self._count("kv_num_heads")
        lifted = self.add("Unsqueeze", [name, self.view.numbers([2], self.name(f"{part}.axis"))], f"{part}.lifted")
        times = self.view.numbers([1, 1, heads // groups, 1, 1], self.name(f"{part}.times"))
        tiled = self.add("Tile", [lifted, times], f"{part}.tiled")
        sizes = self.add("Shape", [name], f"{part}.sizes")
        tail = self.add(
            "Slice",
            [sizes, *(self.view.numbers([n], self.name(f"{part}.{n}")) for n in (2, 4))],
            f"{part}.tail",
        )
        batch = self.view.numbers([0, heads], self.name(f"{part}.batch"))
        whole = self.add("Concat", [batch, tail], f"{part}.whole", axis=0)
        return self.add("Reshape", [tiled, whole], f"{part}.repeated")

    def _scaled(self, scores: str, query: str) -> str:
        scale = self.node.attributes.get("scale")
        if isinstance(scale, (int, float)) and scale:
            return self.add("Mul", [scores, self.view.number(float(scale), self.name("scale"))], "scaled")
        size = self.add("Shape", [query], "size", start=3, end=4)
        root = self.add("Sqrt", [self.add("Cast", [size], "size.float", to=1)], "root")
        return self.add("Div", [scores, root], "scaled")

    def _masked(self, scores: str) -> str:
        mask = _given(self.node, 3)
        zero, lowest = self.view.number(0.0, self.name("zero")), self.view.number(LOWEST, self.name("lowest"))
        if self.node.attributes.get("is_causal"):
            one = self.view.number(1, self.name("one"), "int64")
            ones = self.add("ConstantOfShape", [self.add("Shape", [scores], "sizes")], "ones", value=[1.0])
            later = self.add("Mul", [self.add("Trilu", [ones, one], "later", upper=1), lowest], "causal")
            scores = self.add("Add", [scores, later], "later.masked")
        if not mask:
            return scores
        if self.view.types.get(mask) == "bool":
            mask = self.add("Where", [mask, zero, lowest], "mask")
        return self.add("Add", [scores, mask], "masked")


_SPELLED: dict[tuple[str, str], Callable[[_View, Node], Nodes]] = {
    ("QuantizeLinear", ""): _passed,
    ("DequantizeLinear", ""): _dequantize,
    ("QuantizeLinear", "com.microsoft"): _passed,
    ("DequantizeLinear", "com.microsoft"): _dequantize,
    ("DynamicQuantizeLinear", ""): _passed,
    ("MatMulInteger", ""): _integer_product,
    ("QLinearMatMul", ""): _linear_product,
    ("QLinearAdd", "com.microsoft"): _linear_sum,
    ("QLinearMul", "com.microsoft"): _linear_sum,
    ("QLinearSoftmax", "com.microsoft"): _linear_softmax,
    ("FusedMatMul", "com.microsoft"): _fused_product,
    ("Attention", ""): _attention,
}
