"""Look-ups over facts that may ask the model for what facts leave out: large constants and inner shapes."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from unlag.model.facts import GraphFacts, GraphIndex
from unlag.model.graph import constant_array
from unlag.rewrites.inferred_shapes import Shape, inferred_shapes

_MOST_ELEMENTS = 1 << 22
"""A causal mask of 2048 tokens; what is larger is a weight."""


class ModelIndex(GraphIndex):
    """An index of a model's main graph as it is now; make a new one after a change."""

    def __init__(self, facts: GraphFacts, model: ir.Model) -> None:
        super().__init__(facts)
        self._model = model

    @cached_property
    def _constants(self) -> dict[str, ir.Value]:
        graph = self._model.graph
        made = (out for node in graph if node.op_type == "Constant" for out in node.outputs)
        return {str(value.name): value for value in (*graph.initializers.values(), *made)}

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        return inferred_shapes(self._model)

    def stored(self, name: str) -> npt.NDArray[np.generic] | None:
        """The array of a constant, but for those of the size of weights."""
        value = self._constants.get(name)
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        return constant_array(value) if tensor is not None and tensor.size <= _MOST_ELEMENTS else None

    def sizes(self, name: str) -> Shape | None:
        """The shape of a tensor, declared or inferred; dimensions that can't be told are nothing."""
        return self._shapes.get(name)
