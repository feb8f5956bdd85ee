"""One small model of every kind that users bring, with inputs that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

Feed = dict[str, np.ndarray]


class Kind(NamedTuple):
    """A model, and one run's inputs."""

    model: onnx.ModelProto
    feed: Feed


KINDS: dict[str, Callable[[], Kind]] = {}
WIDTH = 16


def kind(build: Callable[[], Kind]) -> Callable[[], Kind]:
    KINDS[build.__name__] = build
    return build


def read(text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 21, ir: int = 10) -> onnx.ModelProto:
    """A model from onnx's text form, these arrays added as initializers."""
    domains = f'"": {opset}, "com.microsoft": 1, "ai.onnx.ml": 3, "local": 1'
    model = onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{domains}]>\n{text}")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in (weights or {}).items())
    return model


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def codes(*shape: int, seed: int = 0, unsigned: bool = False) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(-127, 128, shape)
    return (drawn + 128).astype(np.uint8) if unsigned else drawn.astype(np.int8)


def square(seed: int = 0) -> np.ndarray:
    """A weight that every detector and rewrite looks at."""
    return numbers(WIDTH, WIDTH, seed=seed)


X: Feed = {"x": numbers(2, WIDTH, seed=9)}
X_TO_Y = f"(float[n, {WIDTH}] x) => (float[n, {WIDTH}] y)"


def opset(version: int) -> Kind:
    """A block with LayerNormalization, GELU and a residual, in the spelling of one opset."""
    attribute = version < 18
    mean = "ReduceMean <axes = [-1]> ({})" if attribute else "ReduceMean ({}, last)"
    squeeze = "Squeeze <axes = [1]> (wide)" if version < 13 else "Squeeze (wide, one)"
    text = f"""block {X_TO_Y} <int64[1] last = {{-1}}, int64[1] one = {{1}}, float two = {{2}}, float tiny = {{1e-5}},
        float root = {{1.41421356}}, float half = {{0.5}}, float whole = {{1}}> {{
        mu = {mean.format("x")}  d = Sub(x, mu)  d2 = Pow(d, two)  var = {mean.format("d2")}  e = Add(var, tiny)
        s = Sqrt(e)  norm = Div(d, s)  p = MatMul(norm, w)  q = Add(p, b)  i = Identity(q)
        a = Div(i, root)  f = Erf(a)  g = Add(f, whole)  h = Mul(i, g)  gelu = Mul(h, half)
        drop = Dropout(gelu)  z = MatMul(drop, v)  r = Add(z, x)  t = Transpose <perm = [1, 0]> (r)
        back = Transpose <perm = [1, 0]> (t)  wide = Reshape(back, three)  k = {squeeze}
        y = Softmax <axis = 1> (k) }}"""
    weights = {"w": square(1), "b": numbers(WIDTH), "v": square(2), "three": np.array([-1, 1, WIDTH])}
    return Kind(read(text, weights, version, 4 if version < 11 else 8), X)


OPSETS = (9, 11, 13, 15, 17, 18, 20, 21, 22, 23)
KINDS.update({f"opset_{version}": lambda version=version: opset(version) for version in OPSETS})


@kind
def float16_everywhere() -> Kind:
    text = f"""g (float16[n, {WIDTH}] x) => (float16[n, {WIDTH}] y) {{
        m = MatMul(x, w)  s = Softmax(m)  y = Add(s, x) }}"""
    return Kind(read(text, {"w": square().astype(np.float16)}), {"x": X["x"].astype(np.float16)})


@kind
def float16_inside() -> Kind:
    text = f"g {X_TO_Y} {{ h = Cast <to = 10> (x)  m = MatMul(h, w)  r = Relu(m)  y = Cast <to = 1> (r) }}"
    return Kind(read(text, {"w": square().astype(np.float16)}), X)


@kind
def bfloat16_inside() -> Kind:
    text = f"g {X_TO_Y} {{ v = Cast <to = 1> (w)  y = MatMul(x, v) }}"
    return Kind(read(text, {"w": square().astype(ml_dtypes.bfloat16)}), X)


@kind
def float64_and_integers() -> Kind:
    text = """g (double[n, 4] x, uint8[n, 4] bytes, bool[n, 4] keep, int32[n] i)
        => (double[n, 4] y, int64[n, 4] z, bool[n, 4] same) {
        f = Cast <to = 11> (bytes)  a = Add(x, f)  y = Where(keep, a, x)  z = Cast <to = 7> (bytes)
        same = Identity(keep) }"""
    feed = {"x": np.ones((2, 4)), "bytes": np.full((2, 4), 200, np.uint8), "keep": np.eye(2, 4, dtype=bool)}
    return Kind(read(text), {**feed, "i": np.zeros(2, np.int32)})


@kind
def branches() -> Kind:
    """Two bodies that use the same names, capture from outside and have initializers of their own."""
    body = (
        "g () => (float[n, {width}] out) <float k = {{{k}}}> {{ m = MatMul(r, w)  i = Identity(m)  out = {op}(i, k) }}"
    )
    ways = [body.format(width=WIDTH, k=k, op=op) for k, op in ((2, "Mul"), (3, "Add"))]
    text = f"""g {X_TO_Y} <float zero = {{0}}, int64[1] last = {{-1}}> {{
        r = Relu(x)  total = ReduceSum <keepdims = 0> (x)  c = Greater(total, zero)
        y = If (c) <then_branch = {ways[0]}, else_branch = {ways[1]}> }}"""
    return Kind(read(text, {"w": square()}), X)


@kind
def empty_branches() -> Kind:
    """A body without nodes that hands out its initializer, beside one that hands out what it captures."""
    text = """g (float[4] x, bool c) => (float[4] y) {
        r = Neg(x)
        y = If (c) <then_branch = a () => (float[4] k) <float[4] k = {1, 2, 3, 4}> { },
                    else_branch = b () => (float[4] i) { i = Identity(r) }> }"""
    return Kind(read(text), {"x": numbers(4), "c": np.array(True)})  # noqa: FBT003 - a scalar input


@kind
def loop_and_branch() -> Kind:
    text = f"""g {X_TO_Y} <int64 trips = {{3}}, bool go = {{1}}, float zero = {{0}}> {{
        scaled = Relu(x)
        y = Loop (trips, go, x) <body = step (int64 i, bool before, float[n, {WIDTH}] state)
            => (bool after, float[n, {WIDTH}] next) {{
            m = MatMul(state, w)  total = ReduceSum <keepdims = 0> (m)  up = Greater(total, zero)
            t = If (up) <then_branch = a () => (float[n, {WIDTH}] out) {{ out = Add(m, scaled) }},
                         else_branch = b () => (float[n, {WIDTH}] out) {{ out = Sub(m, scaled) }}>
            after = Identity(before)  next = Tanh(t) }}> }}"""
    return Kind(read(text, {"w": square()}), X)


@kind
def float16_in_bodies() -> Kind:
    text = f"""g {X_TO_Y} <int64 trips = {{2}}, bool go = {{1}}> {{
        h = Cast <to = 10> (x)
        n = Loop (trips, go, h) <body = step (int64 i, bool before, float16[n, {WIDTH}] state)
            => (bool after, float16[n, {WIDTH}] next) {{
            m = MatMul(state, w)  after = Identity(before)
            next = If (before) <then_branch = a () => (float16[n, {WIDTH}] out) {{ out = Tanh(m) }},
                                else_branch = b () => (float16[n, {WIDTH}] out) {{ out = Add(m, h) }}> }}>
        y = Cast <to = 1> (n) }}"""
    return Kind(read(text, {"w": square().astype(np.float16)}), X)


@kind
def scan() -> Kind:
    text = f"""g (float[s, {WIDTH}] x, float[1, {WIDTH}] start) => (float[1, {WIDTH}] last, float[s, 1, {WIDTH}] all) {{
        last, all = Scan (start, x) <num_scan_inputs = 1, body = step (float[1, {WIDTH}] h, float[{WIDTH}] row)
            => (float[1, {WIDTH}] next, float[1, {WIDTH}] seen) {{
            m = MatMul(h, w)  a = Add(m, row)  next = Tanh(a)  seen = Identity(next) }}> }}"""
    return Kind(read(text, {"w": square()}), {"x": numbers(5, WIDTH), "start": numbers(1, WIDTH)})


@kind
def local_functions() -> Kind:
    """One function calls the other, and hands its attribute on."""
    text = f"""g {X_TO_Y} {{ m = MatMul(x, w)  a = local.Outer <slope = 0.3> (m)  y = local.Outer <slope = 0.1> (a) }}
    <domain: "local", opset_import: ["": 21, "local": 1]>
    Outer <slope> (p) => (q) {{
        half = Constant <value = float {{0.5}}> ()  h = Mul(p, half)  q = local.Inner <alpha: float = @slope> (h) }}
    <domain: "local", opset_import: ["": 21]>
    Inner <alpha> (p) => (q) {{ q = LeakyRelu <alpha: float = @alpha> (p) }}"""
    return Kind(read(text, {"w": square()}), X)


@kind
def initializers_as_inputs() -> Kind:
    text = f"g (float[n, {WIDTH}] x, float[{WIDTH}, {WIDTH}] w) => (float[n, {WIDTH}] y) {{ y = MatMul(x, w) }}"
    return Kind(read(text, {"w": square()}, 9, 3), X)


@kind
def old_format_with_codes() -> Kind:
    """IR version 3, where every initializer is an input, with weights that a remedy widens."""
    text = f"""g (float[n, {WIDTH}] x, int8[{WIDTH}, {WIDTH}] w, float s, int8 z) => (float[n, {WIDTH}] y) {{
        d = DequantizeLinear(w, s, z)  y = MatMul(x, d) }}"""
    weights = {"w": codes(WIDTH, WIDTH), "s": np.float32(0.1), "z": np.int8(0)}
    return Kind(read(text, weights, 10, 3), X)


@kind
def weights_in_constant_nodes() -> Kind:
    text = f"""g {X_TO_Y} {{
        f = Constant <value_float = 0.5> ()  l = Constant <value_floats = [1.0, 2.0]> ()
        i = Constant <value_int = 1> ()
        s = Constant <value_ints = [-1, {WIDTH}]> ()  m = MatMul(x, w)  a = Mul(m, f)  y = Reshape(a, s) }}"""
    model = read(text)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(square(), "")))
    return Kind(model, X)


@kind
def sparse_weights() -> Kind:
    model = read(f"g {X_TO_Y} {{ m = MatMul(x, w)  y = Mul(m, v) }}")
    for name, values in (("w", square()), ("v", numbers(1, WIDTH))):
        values = np.where(values > 0, values, 0)  # noqa: PLW2901 - half of it
        at = np.flatnonzero(values)
        held = numpy_helper.from_array(values.ravel()[at], name)
        sparse = helper.make_sparse_tensor(held, numpy_helper.from_array(at, ""), values.shape)
        if name == "w":
            model.graph.sparse_initializer.append(sparse)
        else:
            model.graph.node.insert(0, helper.make_node("Constant", [], [name], sparse_value=sparse))
    return Kind(model, X)


@kind
def no_inputs() -> Kind:
    text = f"g () => (float[2, {WIDTH}] y) {{ y = MatMul(v, w) }}"
    return Kind(read(text, {"w": square(), "v": X["x"]}), {})


@kind
def several_symbols() -> Kind:
    text = "g (float[batch, left, 4] a, float[batch, 4, right] b) => (float[batch, left, right] y) { y = MatMul(a, b) }"
    return Kind(read(text), {"a": numbers(2, 3, 4), "b": numbers(2, 4, 5)})


@kind
def no_batch() -> Kind:
    text = f"g (float[{WIDTH}] x) => (float[{WIDTH}] y) {{ y = MatMul(x, w) }}"
    return Kind(read(text, {"w": square()}), {"x": numbers(WIDTH)})


@kind
def scalar_input_and_several_outputs() -> Kind:
    text = """g (float[n, 4] x, float scale) => (float[n, 4] y, float total, float[0] nothing, int64[2] size) {
        y = Mul(x, scale)  total = ReduceSum <keepdims = 0> (y)  size = Shape(x)
        nothing = Constant <value_floats = []> () }"""
    return Kind(
        read(text.replace("<value_floats = []>", "<value = float[0] {}>")),
        {"x": numbers(2, 4), "scale": np.array(3, np.float32)},
    )


@kind
def texts() -> Kind:
    text = """g (string[n] word, float[n, 2] x) => (string[n] out, int64[n] id, float[n, 2] y) {
        out = Identity(word)  y = Relu(x)
        id = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2], default_int64 = -1> (word) }"""
    return Kind(read(text), {"word": np.array(["a", "c"], object), "x": numbers(2, 2)})


@kind
def sequences_inside() -> Kind:
    text = f"""g {X_TO_Y} <int64 at = {{0}}> {{ m = MatMul(x, w)  s = SequenceConstruct(m, x)  e = SequenceAt(s, at)
        o = Optional(e)  h = OptionalGetElement(o)  y = Relu(h) }}"""
    return Kind(read(text, {"w": square()}), X)


@kind
def sequence_output() -> Kind:
    text = f"""g (float[n, {WIDTH}] x) => (float[n, {WIDTH}] y, seq(float[n, {WIDTH}]) s) {{
        y = MatMul(x, w)  s = SequenceConstruct(x, y) }}"""
    return Kind(read(text, {"w": square()}), X)


@kind
def map_output() -> Kind:
    text = """g (float[n, 3] x) => (float[n, 3] y) {
        y = Softmax(x)  m = ai.onnx.ml.ZipMap <classlabels_int64s = [7, 8, 9]> (y) }"""
    model = read(text)
    value = model.graph.output.add(name="m").type.sequence_type.elem_type.map_type
    value.key_type = TensorProto.INT64
    value.value_type.tensor_type.elem_type = TensorProto.FLOAT
    return Kind(model, {"x": numbers(2, 3)})


def renamed(model: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for part in (model.graph.input, model.graph.output, model.graph.initializer):
        for value in part:
            value.name = names.get(value.name, value.name)
    return model


@kind
def unusual_names() -> Kind:
    names = {"x": "entrée/τ 0:,", "w": "../w eight", "m": "層.1\n", "y": "out put|<b>"}
    model = renamed(read(f"g {X_TO_Y} {{ m = MatMul(x, w)  y = Relu(m) }}", {"w": square()}), names)
    for number, node in enumerate(model.graph.node):
        node.name = f"/a b/ç {number}"
    return Kind(model, {names["x"]: X["x"]})


def twice_the_same_node_name() -> Kind:
    """Valid in older versions of ONNX Runtime, which refuses it by now."""
    model = read(f"g {X_TO_Y} {{ i = Identity(x)  m = MatMul(i, w)  a = Relu(m)  y = Relu(a) }}", {"w": square()})
    for node, name in zip(model.graph.node, ("", "same", "same", ""), strict=True):
        node.name = name
    return Kind(model, X)


@kind
def output_is_input_or_initializer() -> Kind:
    text = f"""g (float[n, {WIDTH}] x, float[2] unused)
        => (float[n, {WIDTH}] y, float[n, {WIDTH}] x, float[{WIDTH}, {WIDTH}] w) {{ y = MatMul(x, w) }}"""
    return Kind(read(text, {"w": square(), "nobody": numbers(3)}), {**X, "unused": numbers(2)})


@kind
def no_nodes() -> Kind:
    return Kind(
        read("g (float[n, 4] x) => (float[n, 4] x, float[4] w) <float[4] w = {1, 2, 3, 4}> { }"), {"x": numbers(2, 4)}
    )


@kind
def absent_inputs_and_outputs() -> Kind:
    """Inputs left out in the middle, outputs named by nothing."""
    text = f"""g (float[s, 1, {WIDTH}] x) => (float[1, 1, 8] y) {{ l = Relu(x) }}"""
    model = read(text, {"w": numbers(1, 32, WIDTH), "r": numbers(1, 32, 8), "h": numbers(1, 1, 8)})
    lstm = helper.make_node("LSTM", ["l", "w", "r", "", "", "h"], ["", "y"], hidden_size=8)
    clip = helper.make_node("Clip", ["l", "", "top"], ["clipped"])
    model.graph.node.extend([lstm, clip])
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "top"))
    return Kind(model, {"x": numbers(3, 1, WIDTH)})


@kind
def infinities_and_empty_constants() -> Kind:
    text = f"""g {X_TO_Y} <int64[0] roi = {{}}> {{
        m = MatMul(x, w)  c = Max(m, low)  i = Where(keep, c, nan)  y = Expand(i, roi) }}"""
    constants = {
        "low": np.float32(-np.inf),
        "keep": np.ones((1, WIDTH), bool),
        "nan": np.full((1, 80 * WIDTH), np.nan, np.float32)[:, :WIDTH],
    }
    return Kind(read(text, {"w": square(), **constants}), X)


@kind
def domain_written_out() -> Kind:
    """``ai.onnx`` is another name of the domain without a name."""
    model = read(f"g {X_TO_Y} {{ m = MatMul(x, w)  i = Identity(m)  y = Relu(i) }}", {"w": square()})
    for part in (*model.graph.node, *model.opset_import):
        part.domain = part.domain or "ai.onnx"
    return Kind(model, X)


@kind
def optional_input() -> Kind:
    text = (
        f"g (optional(float[n, {WIDTH}]) x) => (float[n, {WIDTH}] y) {{ v = OptionalGetElement(x)  y = MatMul(v, w) }}"
    )
    return Kind(read(text, {"w": square()}), X)
