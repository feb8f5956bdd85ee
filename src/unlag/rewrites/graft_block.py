"""Put a block of one model in the place of the same block in another, between borders that both have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from unlag.errors import UsageError

PREFIX = "graft."
OLDEST_OPSET = 13
"""Since then, operators changed so that an old node is refused, not read in another way (Softmax was the last one)."""


def graft_block(host: ir.Model, donor: ir.Model, begin: tuple[str, str] | None, end: tuple[str, str]) -> int:
    """Let the host compute the block from ``begin`` to ``end`` with the donor's nodes; gives their number.

    Borders are names of tensors, (host's, donor's); without ``begin`` the block starts at the inputs. The donor is
    taken apart. What the block reads besides its border (masks, positions) comes from the inputs, by the donor's nodes.

    Raises:
        UsageError: the two don't fit: another rank, input names, or operator sets that can't be joined.
    """
    _join_opsets(host, donor)
    ours, theirs = _values(host.graph), _values(donor.graph)
    start = {} if begin is None else {theirs[begin[1]]: ours[begin[0]]}
    host_end, donor_end = ours[end[0]], theirs[end[1]]
    _check_fit(host_end, donor_end)
    for donated, own in start.items():
        _check_fit(own, donated)
    nodes = _needed(donor_end, set(start))
    start |= _inputs(host, donor, nodes)
    _move(host, donor, nodes)
    for donated, own in start.items():
        given = _cast(host, own, donated.dtype)
        for node in nodes:
            _replace_reads(node, donated, given)
    _give_out(host, host_end, _cast(host, donor_end, host_end.dtype))
    host.graph.sort()
    return len(nodes)


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Inputs and computed tensors of the main graph, by name."""
    values = {str(value.name): value for value in graph.inputs}
    return values | {str(value.name): value for node in graph for value in node.outputs}


def _join_opsets(host: ir.Model, donor: ir.Model) -> None:
    ours, theirs = host.opset_imports, donor.opset_imports
    for domain, version in theirs.items():
        own = ours.get(domain, version)
        if own != version and (domain or min(own, version) < OLDEST_OPSET):
            raise UsageError(f"operator sets {own} and {version} of {domain or 'ONNX'} can't be joined in one model")
        ours[domain] = max(own, version)
    host.graph.opset_imports.update(ours)


def _check_fit(own: ir.Value, donated: ir.Value) -> None:
    if own.shape is not None and donated.shape is not None and len(own.shape) != len(donated.shape):
        raise UsageError(
            f"{own.name} has {len(own.shape)} dimensions in one model and {len(donated.shape)} in the other"
        )


def _needed(end: ir.Value, borders: set[ir.Value]) -> list[ir.Node]:
    """Nodes that ``end`` depends on, as far as the borders, in an order in which they can run."""
    order: dict[ir.Node, None] = {}
    stack: list[tuple[ir.Value, bool]] = [(end, False)]
    while stack:
        value, done = stack.pop()
        node = value.producer()
        if node is None or node in order or value in borders:
            continue
        if done:
            order[node] = None
            continue
        stack.append((value, True))
        stack.extend((read, False) for read in _reads(node))
    return list(order)


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, captured values of its bodies included."""
    yield from (value for value in node.inputs if value is not None)
    for body in _bodies(node):
        own = {*body.inputs, *(value for inner in body for value in inner.outputs)}
        for inner in body:
            yield from (value for value in _reads(inner) if value not in own)
        yield from (value for value in body.outputs if value not in own)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if isinstance(attribute, ir.Attr) and attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def _inputs(host: ir.Model, donor: ir.Model, nodes: Iterable[ir.Node]) -> dict[ir.Value, ir.Value]:
    """The host's input for each of the donor's that the nodes read."""
    own = {value.name: value for value in host.graph.inputs}
    read = {value for node in nodes for value in _reads(node)}
    wanted = [v for v in donor.graph.inputs if v in read and v.name not in donor.graph.initializers]
    missing = [str(value.name) for value in wanted if value.name not in own]
    if missing:
        raise UsageError(f"the block reads inputs that the other model does not have: {', '.join(missing)}")
    return {value: own[value.name] for value in wanted}


def _move(host: ir.Model, donor: ir.Model, nodes: list[ir.Node]) -> None:
    """Take nodes and the initializers that they read over into the host, under new names."""
    constants = {value for node in nodes for value in _reads(node) if value.is_initializer()}
    donor.graph.outputs.clear()
    for value in constants:
        donor.graph.initializers.pop(str(value.name), None)
        if value.is_graph_input():
            donor.graph.inputs.remove(value)
        value.name = PREFIX + str(value.name)
        host.graph.register_initializer(value)
    donor.graph.remove(nodes)
    for node in nodes:
        if node.name:
            node.name = PREFIX + node.name
        for value in node.outputs:
            if value.name:
                value.name = PREFIX + value.name
    host.graph.extend(nodes)


def _cast(host: ir.Model, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """The value in another element type, where both are known and differ."""
    if dtype is None or value.dtype is None or value.dtype == dtype:
        return value
    node = ir.node("Cast", [value], {"to": dtype.value}, name=f"{PREFIX}cast.{value.name}")
    node.outputs[0].name = f"{node.name}.out"
    node.outputs[0].type = ir.TensorType(dtype)
    host.graph.append(node)
    return node.outputs[0]


def _replace_reads(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    for index, value in enumerate(node.inputs):
        if value is old:
            node.replace_input_with(index, new)
    for body in _bodies(node):
        for inner in body:
            _replace_reads(inner, old, new)
        for index, value in enumerate(body.outputs):
            if value is old:
                body.outputs[index] = new


def _give_out(host: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Let every reader of the old block's end read the new one's; a graph output keeps its name."""
    for index, value in enumerate(host.graph.outputs):
        if value is old:
            name = str(old.name)
            old.name = f"{name}.before"
            new.name, new.shape = name, old.shape
            host.graph.outputs[index] = new
    for node, index in list(old.uses()):
        node.replace_input_with(index, new)
