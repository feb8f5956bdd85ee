"""Models that somebody has quantized already, in every form. Adds them to ``KINDS``."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from model_kinds import WIDTH, X_TO_Y, Kind, X, codes, kind, numbers, read, square


@kind
def qdq() -> Kind:
    text = f"""g {X_TO_Y}
        <float sx = {{0.03}}, uint8 zx = {{128}}, float sw = {{0.02}}, int8 zw = {{0}}, float sy = {{0.3}}> {{
        xq = QuantizeLinear(x, sx, zx)  xd = DequantizeLinear(xq, sx, zx)  wd = DequantizeLinear(w, sw, zw)
        m = MatMul(xd, wd)  mq = QuantizeLinear(m, sy, zx)  md = DequantizeLinear(mq, sy, zx)  y = Relu(md) }}"""
    return Kind(read(text, {"w": codes(WIDTH, WIDTH)}), X)


@kind
def qdq_conv() -> Kind:
    text = """g (float[n, 3, 8, 8] x) => (float[n, 4, 8, 8] y) <float sx = {0.03}, uint8 zx = {128}, float sy = {0.5}> {
        xq = QuantizeLinear(x, sx, zx)  xd = DequantizeLinear(xq, sx, zx)  wd = DequantizeLinear <axis = 0> (w, sw, zw)
        bd = DequantizeLinear(b, sb)  c = Conv <pads = [1, 1, 1, 1]> (xd, wd, bd)
        cq = QuantizeLinear(c, sy, zx)  y = DequantizeLinear(cq, sy, zx) }"""
    scales = np.full(4, 0.02, np.float32)
    weights = {"w": codes(4, 3, 3, 3), "sw": scales, "zw": np.zeros(4, np.int8), "b": np.arange(4, dtype=np.int32)}
    return Kind(read(text, {**weights, "sb": np.float32(0.0006)}), {"x": numbers(1, 3, 8, 8)})


@kind
def qoperator() -> Kind:
    text = f"""g {X_TO_Y}
        <float sx = {{0.03}}, uint8 zx = {{128}}, float sw = {{0.02}}, int8 zw = {{0}}, float sy = {{0.3}}> {{
        xq = QuantizeLinear(x, sx, zx)  m = QLinearMatMul(xq, sx, zx, w, sw, zw, sy, zx)
        a = com.microsoft.QLinearAdd(m, sy, zx, xq, sx, zx, sy, zx)  y = DequantizeLinear(a, sy, zx) }}"""
    return Kind(read(text, {"w": codes(WIDTH, WIDTH)}), X)


@kind
def dynamically_quantized() -> Kind:
    text = f"""g {X_TO_Y} <uint8 zw = {{128}}, float sw = {{0.02}}> {{
        xq, sx, zx = DynamicQuantizeLinear(x)  m = MatMulInteger(xq, w, zx, zw)  f = Cast <to = 1> (m)
        s = Mul(sx, sw)  p = Mul(f, s)  y = Add(p, b) }}"""
    return Kind(read(text, {"w": codes(WIDTH, WIDTH, unsigned=True), "b": numbers(WIDTH)}), X)


@kind
def matmul_nbits() -> Kind:
    text = f"""g (float[n, 32] x) => (float[n, {WIDTH}] y) {{
        y = com.microsoft.MatMulNBits <K = 32, N = {WIDTH}, bits = 4, block_size = 32> (x, w, s, "") }}"""
    weights = {"w": codes(WIDTH, 1, 16, unsigned=True), "s": np.full(WIDTH, 0.1, np.float32)}
    model = read(text.replace(', ""', ""), weights)
    return Kind(model, {"x": numbers(2, 32)})


@kind
def weight_only_by_cast_and_mul() -> Kind:
    text = f"""g {X_TO_Y} <float s = {{0.02}}, float z = {{3}}> {{
        c = Cast <to = 1> (w)  d = Sub(c, z)  v = Mul(d, s)  t = Transpose <perm = [1, 0]> (v)  y = MatMul(x, t) }}"""
    return Kind(read(text, {"w": codes(WIDTH, WIDTH)}), X)


def packed(name: str, data_type: int, shape: tuple[int, ...], values: np.ndarray) -> onnx.TensorProto:
    """A tensor of a type that numpy lacks."""
    return helper.make_tensor(name, data_type, shape, values.ravel().tolist())


@kind
def int4_weights_in_blocks() -> Kind:
    text = f"g {X_TO_Y} {{ d = DequantizeLinear <axis = 0, block_size = 8> (w, s, z)  y = MatMul(x, d) }}"
    model = read(text, {"s": np.full((2, WIDTH), 0.1, np.float32)})
    rng = np.random.default_rng(0)
    model.graph.initializer.extend(
        [
            packed("w", TensorProto.INT4, (WIDTH, WIDTH), rng.integers(-8, 8, (WIDTH, WIDTH))),
            packed("z", TensorProto.INT4, (2, WIDTH), np.zeros((2, WIDTH), int)),
        ]
    )
    return Kind(model, X)


@kind
def float8_weights() -> Kind:
    text = f"g {X_TO_Y} <float s = {{0.5}}> {{ d = DequantizeLinear(w, s)  y = MatMul(x, d) }}"
    model = read(text)
    model.graph.initializer.append(packed("w", TensorProto.FLOAT8E4M3FN, (WIDTH, WIDTH), square()))
    return Kind(model, X)
