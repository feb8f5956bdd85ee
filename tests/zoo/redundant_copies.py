import onnx_ir as ir

from planting import OFF, Pair, editable, flash, tiny_bert
from unlag.model.graph import constant_array, insert_node
from unlag.rewrites.inferred_shapes import inferred_shapes

VARIANT_OPTIONS = STANDARD_OPTIONS = OFF
"""With its passes on, the runtime takes such pairs out."""
SWAPS = {2: [1, 0], 3: [0, 2, 1], 4: [0, 1, 3, 2]}
"""The last two axes, by rank."""
READERS = frozenset({"MatMul", "Gemm", "Conv", "LayerNormalization"})


def plant() -> Pair:
    return Pair(tiny_bert(), OFF, flash(extra_copies=True), OFF)


def twin() -> Pair:
    """Pairs of transposes that are needed, each undone only after something else was computed."""
    model = editable(tiny_bert())
    for node in [n for n in model.graph if str(n.name).endswith("gelu.erf")]:
        turned = insert_node(
            node, "Transpose", [node.inputs[0]], name=f"{node.name}.there", attributes={"perm": [0, 2, 1]}
        )
        node.replace_input_with(0, turned)
        output = node.outputs[0]
        users = [(use.node, use.idx) for use in output.uses()]
        back = ir.node("Transpose", [output], {"perm": [0, 2, 1]}, name=f"{node.name}.back")
        model.graph.insert_after(node, back)
        for user, index in users:
            user.replace_input_with(index, back.outputs[0])
    return Pair(tiny_bert(), OFF, ir.to_proto(model), OFF)


def infect(model: ir.Model) -> int:
    """The last two axes swapped and swapped back in front of products, convolutions and normalizations."""
    shapes, changed = inferred_shapes(model), 0
    for node in [n for n in model.graph if n.op_type in READERS and not n.domain]:
        source = node.inputs[0]
        swap = {"perm": SWAPS.get(len(shapes.get(str(source.name), ())))}
        if source.producer() is None or constant_array(source) is not None or swap["perm"] is None:
            continue
        name = node.name or node.outputs[0].name
        there = insert_node(node, "Transpose", [source], name=f"{name}.copy_there", attributes=swap)
        back = insert_node(node, "Transpose", [there], name=f"{name}.copy_back", attributes=swap)
        node.replace_input_with(0, back)
        changed += 1
    return changed
