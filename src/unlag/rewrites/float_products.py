"""Integer and block-packed products taken back to float ones, with their weights dequantized once.

What is taken: MatMulInteger and ConvInteger with the Cast and Mul behind them, as ONNX Runtime's dynamic quantizer
writes them; DynamicQuantizeMatMul; MatMulIntegerToFloat; MatMulNBits; and DynamicQuantizeLSTM.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from unlag.model.graph import add_constant, insert_node, replace_output, sweep
from unlag.rewrites.integer_products import IntegerProduct, find_product
from unlag.rewrites.packed_weights import unpacked_recurrence


def float_products(model: ir.Model, chosen: Callable[[IntegerProduct], bool] = lambda _product: True) -> int:
    """s_x · s_W · (x_q · W_q) becomes x · W with W = s_W · (W_q − z_W), where ``chosen`` wants it; counts the places.

    An addition of the bias that the integer operator did itself becomes an Add. What is not constant, or not scaled the
    way the quantizer does it, stays.
    """
    changed = 0
    constants: dict[tuple[ir.Value | None, ...], ir.Value] = {}
    for node in list(model.graph):
        product = find_product(node)
        if product is not None and chosen(product):
            _write(model.graph, product, constants)
            changed += 1
    if changed:
        sweep(model)
    return changed


def float_recurrences(model: ir.Model) -> int:
    """DynamicQuantizeLSTM becomes LSTM with its weights dequantized; counts the places."""
    changed = sum(_float_lstm(node) for node in list(model.graph) if node.op_type == "DynamicQuantizeLSTM")
    if changed:
        sweep(model)
    return changed


def _write(graph: ir.Graph, product: IntegerProduct, constants: dict[tuple[ir.Value | None, ...], ir.Value]) -> None:
    node, last = product.node, product.last
    weight = product.other
    if weight is None:
        weight = constants.get(product.stored)
    if weight is None:
        name = f"{product.stored[0].name if product.stored[0] is not None else node.name}.float"
        weight = add_constant(graph, np.ascontiguousarray(product.weight()), name)
        constants[product.stored] = weight
    convolution = node.op_type == "ConvInteger"
    name = str(last.name)  # names of nodes need not differ, those of values do
    attributes = {k: a for k, a in node.attributes.items() if convolution and isinstance(a, ir.Attr)}
    made = ir.node(
        "Conv" if convolution else "MatMul", [product.activation, weight], attributes=attributes, name=f"{name}.float"
    )
    made.outputs[0].name = f"{name}.float.out"
    graph.insert_before(last.producer() or node, made)
    result = made.outputs[0]
    if product.bias is not None:
        result = insert_node(last.producer() or node, "Add", [result, product.bias], name=f"{name}.float.bias")
    result.type, result.shape = last.type, last.shape
    replace_output(last, result)


def _float_lstm(node: ir.Node) -> bool:
    """Codes are [directions, input, 4·hidden]; LSTM takes floats [directions, 4·hidden, input]."""
    weights = [unpacked_recurrence(node, index) for index in (1, 2)]
    graph = node.graph
    if graph is None or not isinstance(graph, ir.Graph) or weights[0] is None or weights[1] is None:
        return False
    names = [str(node.inputs[index].name) for index in (1, 2)]  # type: ignore[union-attr]  # constants, just read
    inputs = [
        node.inputs[0],
        *(add_constant(graph, w, f"{n}.float") for w, n in zip(weights, names, strict=True) if w is not None),
        *node.inputs[3:8],
    ]
    attributes = {k: a for k, a in node.attributes.items() if isinstance(a, ir.Attr)}
    made = ir.node("LSTM", inputs, attributes=attributes, num_outputs=len(node.outputs), name=f"{node.name}.float")
    graph.insert_before(node, made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name = f"{old.name}.float"
        new.type, new.shape = old.type, old.shape
        replace_output(old, new)
    return True
