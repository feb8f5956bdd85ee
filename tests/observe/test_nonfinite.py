"""A model that gives NaN can't be compared, but the tensor where it begins can be named."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from measure.scripted import hurry
from planting import Pair, editable, gather_evidence, tiny_bert
from unlag import pipeline
from unlag.errors import NonfiniteError
from unlag.model.case import Case
from unlag.model.graph import add_constant, insert_node
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.proof.inside import first_nonfinite


def overflowing() -> onnx.ModelProto:
    """Layer 1's GELU is preceded by a product that leaves float32."""
    model = editable(tiny_bert())
    erf = next(node for node in model.graph if "layer.1" in str(node.name) and node.op_type == "Erf")
    factor = add_constant(model.graph, np.array(1e30, np.float32), "factor")
    big = insert_node(erf, "Mul", [erf.inputs[0], factor], name="big")
    bigger = insert_node(erf, "Mul", [big, factor], name="bigger")
    erf.replace_input_with(0, insert_node(erf, "Sub", [bigger, bigger], name="broken"))
    return ir.to_proto(model)


def test_the_first_tensor_is_named_with_its_operator():
    first = first_nonfinite(gather_evidence(Pair(tiny_bert(), {}, overflowing(), {})))
    assert first is not None
    assert (first.tensor, first.op_type) == ("bigger.out", "Mul")
    assert first.elements > 0


def test_a_healthy_variant_has_none_and_neither_has_one_like_its_standard():
    assert first_nonfinite(gather_evidence(Pair(tiny_bert(), {}, tiny_bert(), {}))) is None
    assert first_nonfinite(gather_evidence(Pair(overflowing(), {}, overflowing(), {}))) is None


def test_the_message_of_an_explanation_says_where(tmp_path, monkeypatch):
    hurry(monkeypatch)
    for name, model in (("standard", tiny_bert()), ("variant", overflowing())):
        onnx.save(model, tmp_path / f"{name}.onnx")
    paths = [Variant("onnxruntime", str(tmp_path / f"{name}.onnx")) for name in ("standard", "variant")]
    case = Case(standard=paths[0], variant=paths[1], shapes=(Shape(1, 8),), rounds=2)
    with pytest.raises(NonfiniteError, match="variant gives NaN") as raised:
        pipeline.explain(case)
    assert "the first in the variant is 'bigger.out', made by Mul in float32" in raised.value.hint
