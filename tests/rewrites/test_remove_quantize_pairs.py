from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from planting import editable, tiny_bert
from rewriting import assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.model.facts import GraphIndex, facts_of
from unlag.rewrites.activation_codes import undone_quantizations
from unlag.rewrites.remove_quantize_pairs import remove_quantize_pairs
from zoo.unfused_quantization import infect

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
CODES = "float s = {0.05}, uint8 z = {128}"


def undone(text):
    return undone_quantizations(GraphIndex(facts_of(ir.from_proto(parsed(text)))))


def test_pairs_go_and_the_float_model_is_back():
    model = editable(tiny_bert())
    count = infect(model)
    planted = ir.to_proto(model)
    names = undone_quantizations(GraphIndex(facts_of(model)))
    assert len(names) == count
    after, changed = rewritten(planted, partial(remove_quantize_pairs, tensors=names))
    assert changed == count
    assert kinds(after) == kinds(tiny_bert())
    assert_keeps(tiny_bert(), after, 0.0)


def test_pairs_of_other_tensors_stay():
    model = editable(tiny_bert())
    infect(model)
    assert_untouched(ir.to_proto(model), partial(remove_quantize_pairs, tensors=["nobody"]))


def test_pairs_behind_moved_elements_go_too():
    text = f"""g (float[2, 4] x) => (float[4, 2] y) <{CODES}> {{
        a = Relu(x)  aq = QuantizeLinear(a, s, z)  ad = DequantizeLinear(aq, s, z)  t = Transpose <perm = [1, 0]> (ad)
        tq = QuantizeLinear(t, s, z)  td = DequantizeLinear(tq, s, z)  y = Exp(td) }}"""
    after, changed = rewritten(parsed(text), partial(remove_quantize_pairs, tensors=["a"]))
    assert changed == 2
    assert kinds(after) == {"Relu": 1, "Transpose": 1, "Exp": 1}
    assert relative_error(outputs(after, {"x": X}), [np.exp(np.maximum(X, 0).T)]) < 1e-6


def test_an_output_keeps_its_name():
    text = f"""g (float[2, 4] x) => (float[2, 4] y) <{CODES}> {{
        a = Exp(x)  q = QuantizeLinear(a, s, z)  y = DequantizeLinear(q, s, z) }}"""
    after, changed = rewritten(parsed(text), partial(remove_quantize_pairs, tensors=["a"]))
    assert (changed, kinds(after)) == (1, {"Exp": 1})
    assert relative_error(outputs(after, {"x": X}), [np.exp(X)]) < 1e-6


def test_an_input_that_would_become_an_output_keeps_its_pair():
    text = f"""g (float[2, 4] x) => (float[2, 4] y) <{CODES}> {{
        q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }}"""
    assert_untouched(parsed(text), partial(remove_quantize_pairs, tensors=["x"]))


def test_a_pair_that_also_changes_the_type_stays():
    text = f"""g (float[2, 4] x) => (float16[2, 4] y) <{CODES}> {{
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, h, z)  y = Neg(d) }}"""
    assert_untouched(parsed(text, h=np.array(0.05, np.float16)), partial(remove_quantize_pairs, tensors=["x"]))


def test_weights_stay():
    text = f"""g (float[2, 4] x) => (float[2, 4] y) <{CODES}, float[4] w = {{1, 2, 3, 4}}> {{
        q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  y = Mul(x, d) }}"""
    assert_untouched(parsed(text), partial(remove_quantize_pairs, tensors=["w"]))
    assert undone(text) == ()


def test_codes_that_a_kernel_reads_are_not_undone():
    text = f"""g (float[2, 4] x) => (int32[2, 4] p, float[2, 4] y) <{CODES}, uint8[4, 4] w = {{1}}> {{
        q = QuantizeLinear(x, s, z)  p = MatMulInteger(q, w, z)  d = DequantizeLinear(q, s, z)  y = Neg(d) }}"""
    assert undone(text.replace("uint8[4, 4] w = {1}", "uint8[1, 4] w = {1, 1, 1, 1}")) == ()


def test_codes_that_are_moved_and_dequantized_are_undone():
    text = f"""g (float[2, 4] x) => (float[4, 2] y) <{CODES}> {{
        q = QuantizeLinear(x, s, z)  t = Transpose <perm = [1, 0]> (q)  d = DequantizeLinear(t, s, z)  y = Neg(d) }}"""
    assert undone(text) == ("x",)


def test_codes_that_are_an_output_are_not_undone():
    text = f"g (float[2, 4] x) => (uint8[2, 4] q) <{CODES}> {{ q = QuantizeLinear(x, s, z) }}"
    assert undone(text) == ()
