import numpy as np
import onnx_ir as ir

from planting import Pair, editable, tiny_bert
from unlag.model.graph import add_constant


def plant() -> Pair:
    """Every normalization with an epsilon that is not small."""
    model = editable(tiny_bert())
    infect(model)
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def twin() -> Pair:
    """Constants as float16 rounds them, and the mask's at its lowest: the same function."""
    model = editable(tiny_bert())
    for node in list(model.graph):
        if node.op_type == "LayerNormalization":
            epsilon = node.attributes.get_float("epsilon", 1e-5)
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", float(np.float16(epsilon)) or 1e-7)
        for position, value in enumerate(node.inputs):
            held = None if value is None else ir.convenience.get_const_tensor(value)
            if held is None or held.size != 1 or held.dtype != ir.DataType.FLOAT:
                continue
            rounded = np.clip(held.numpy(), -65504, 65504).astype(np.float16).astype(np.float32)
            node.replace_input_with(position, add_constant(model.graph, rounded, f"{value.name}.rounded"))
    return Pair(tiny_bert(), {}, ir.to_proto(model), {})


def infect(model: ir.Model) -> int:
    """Epsilons of 0.05, slopes of leaky activations doubled, clipping bounds halved; Elu's alpha."""
    changed = 0
    for node in list(model.graph):
        if node.op_type in {"LayerNormalization", "BatchNormalization", "InstanceNormalization"}:
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.05)
        elif node.op_type in {"LeakyRelu", "Elu"}:
            before = node.attributes.get_float("alpha", 0.01 if node.op_type == "LeakyRelu" else 1.0)
            node.attributes["alpha"] = ir.AttrFloat32("alpha", 2 * before)
        elif node.op_type == "Clip" and len(node.inputs) > 2 and _is_constant(node.inputs[2]):
            bound = ir.convenience.get_const_tensor(node.inputs[2]).numpy() / 2
            node.replace_input_with(2, add_constant(model.graph, bound, f"{node.name}.bound"))
        else:
            continue
        changed += 1
    return changed


def _is_constant(value: ir.Value | None) -> bool:
    held = None if value is None else ir.convenience.get_const_tensor(value)
    return held is not None and held.dtype == ir.DataType.FLOAT
