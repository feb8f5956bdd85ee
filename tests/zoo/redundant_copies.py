import onnx_ir as ir

from planting import OFF, Pair, editable, flash, tiny_bert
from unlag.model.graph import insert_node


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
