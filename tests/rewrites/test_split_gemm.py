"""Gemm as MatMul and Add."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from planting import editable
from rewriting import TIGHT, outputs, relative_error, rewritten
from unlag.rewrites.split_gemm import split_gemm

X = {"x": np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)}


def model_of(call: str, *, turned: bool = False) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 16] y) {{ {call} }}'
    )
    shape = (16, 8) if turned else (8, 16)
    for name, size in (("w", shape), ("b", (16,))):
        array = rng.standard_normal(size).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


@pytest.mark.parametrize(
    ("call", "turned"),
    [
        ("y = Gemm (x, w, b)", False),
        ("y = Gemm (x, w)", False),
        ("y = Gemm <transB = 1> (x, w, b)", True),
        ("h = Gemm (x, w, b)  y = Relu(h)", False),
    ],
)
def test_products_and_sums_are_apart(call, turned):
    before = model_of(call, turned=turned)
    after, count = rewritten(before, lambda model: len(split_gemm(model)))
    kinds = [node.op_type for node in after.graph.node]
    assert count == 1
    assert "Gemm" not in kinds
    assert kinds.count("MatMul") == 1
    assert kinds.count("Add") == call.count(", b)")
    assert relative_error(outputs(after, X), outputs(before, X)) < TIGHT


@pytest.mark.parametrize("attribute", ["alpha = 0.5", "beta = 2.0"])
def test_factors_stay_where_they_are(attribute):
    _, count = rewritten(model_of(f"y = Gemm <{attribute}> (x, w, b)"), lambda model: len(split_gemm(model)))
    assert not count


def test_names_of_the_products_are_told():
    model = editable(model_of("y = Gemm (x, w, b)"))
    for node in model.graph:
        node.name = "dense"
    made = split_gemm(model)
    assert made == {"dense": next(node.name for node in model.graph if node.op_type == "MatMul")}
