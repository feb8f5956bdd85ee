"""GELU by the standard's own operator, exactly or by its approximation."""

from __future__ import annotations

import onnx_ir as ir

from unlag.model.graph import insert_node, replace_output, sweep
from unlag.rewrites.element_types import element_types
from unlag.rewrites.fuse_gelu import DOMAIN, Form, Gelu, replace_gelus, supports_standard

_CONTRIBUTED = frozenset({"Gelu", "FastGelu"})


def standard_gelu(model: ir.Model) -> int:
    """GELUs, spelled out or as operators that ONNX Runtime adds, become the standard's Gelu (opset 20).

    The same function, but kernels differ in speed. Nothing is done below that opset.
    """
    if not supports_standard(model):
        return 0
    return replace_gelus(model, _standard) + _respelled(model, by_tanh=False)


def approximate_gelu(model: ir.Model) -> int:
    """x/2 · (1 + erf(x/√2)) ≈ x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), to 5e-4.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv 1606.08415.
    """
    standard = supports_standard(model)
    form = Form("Gelu", "", {"approximate": "tanh"}) if standard else Form("FastGelu", DOMAIN, {})
    spelled = replace_gelus(model, lambda gelu: form if gelu.op_type == "Gelu" else None)
    return spelled + _respelled(model, by_tanh=True)


def _standard(gelu: Gelu) -> Form | None:
    if gelu.op_type not in _CONTRIBUTED:
        return None
    return Form("Gelu", "", {"approximate": "tanh"} if gelu.op_type == "FastGelu" else {})


def _respelled(model: ir.Model, *, by_tanh: bool) -> int:
    """Give operators that are there already the wanted form: the approximation, or the standard's name."""
    types = element_types(model)
    changed = 0
    for node in list(model.graph):
        form = _approximated(node, model) if by_tanh else _renamed(node)
        source = node.inputs[0] if node.inputs else None
        if form is None or source is None or len([v for v in node.inputs if v is not None]) != 1:
            continue
        if types.get(source, ir.DataType.FLOAT) != ir.DataType.FLOAT:
            continue
        output = node.outputs[0]
        name = f"{node.name or output.name}.respelled"
        new = insert_node(node, form.op_type, [source], name=name, domain=form.domain, attributes=form.attributes)
        new.type, new.shape = ir.TensorType(ir.DataType.FLOAT), output.shape or source.shape
        replace_output(output, new)
        changed += 1
    if changed:
        model.opset_imports[DOMAIN] = 1
        sweep(model)
    return changed


def _renamed(node: ir.Node) -> Form | None:
    if node.domain != DOMAIN or node.op_type not in _CONTRIBUTED:
        return None
    return Form("Gelu", "", {"approximate": "tanh"} if node.op_type == "FastGelu" else {})


def _approximated(node: ir.Node, model: ir.Model) -> Form | None:
    if node.op_type != "Gelu" or node.attributes.get_string("approximate", "none") == "tanh":
        return None
    return Form("Gelu", "", {"approximate": "tanh"}) if supports_standard(model) else Form("FastGelu", DOMAIN, {})
