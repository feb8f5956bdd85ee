"""The single layers of a plan's float model, measured once and kept in the journal of the fix."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from unlag.errors import UnlagError
from unlag.model.graph import read_model
from unlag.model.variant import DEFAULT_RUNTIME
from unlag.stages.layer_bench import LayerBench, open_layers, with_shapes
from unlag.stages.layer_errors import layer_errors, layer_gains
from unlag.stages.layer_facts import LayerFacts
from unlag.stages.layer_times import FIRST, time_layers
from unlag.stages.plan import Plan
from unlag.stages.schemes import Precision
from unlag.stages.search import Workshop

_FROM_CODES = frozenset({
    "MatMulInteger", "ConvInteger", "MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm",
    "QAttention", "DynamicQuantizeLSTM", "QuantizeLinear",
})  # fmt: skip

_NOTHING = LayerFacts((), {}, {})


class LayersOf:
    """Measures the layers of one plan's float model, each thing when it is asked for first."""

    def __init__(self, workshop: Workshop, plan: Plan) -> None:
        self._workshop = workshop
        self._plan = plan.with_precision("float32")

    def times(self) -> LayerFacts:
        """Layers with the times of the schemes that have kernels of their own; none where the model can't be run."""
        known = self._workshop.journal.read(LayerFacts, "layer times", self._plan)
        if known is not None:
            return known
        workshop = self._workshop
        with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
            try:
                layers = with_shapes(workshop.bench, self._open(), Path(folder))
                facts = time_layers(workshop.bench, layers, FIRST, workshop.at_once)
            except UnlagError:
                facts = _NOTHING
        workshop.journal.write(facts, "layer times", self._plan)
        return facts

    def errors(self, facts: LayerFacts, schemes: Sequence[Precision]) -> LayerFacts:
        """The facts with errors in these schemes."""
        wanted = [name for name in schemes if name not in facts.errors]
        if not wanted:
            return facts
        step = ("layer errors", self._plan, wanted)
        known = self._workshop.journal.read(LayerFacts, *step)
        if known is None:
            known = layer_errors(self._workshop.bench, self._open(), wanted, facts)
            self._workshop.journal.write(known, *step)
        return known

    def gains(self) -> dict[str, float]:
        """How much an error in each layer matters for the outputs."""
        known = self._workshop.journal.read(dict[str, float], "layer gains", self._plan)
        if known is None:
            known = layer_gains(self._workshop.bench, self._open())
            self._workshop.journal.write(known, "layer gains", self._plan)
        return known

    def in_integers(self) -> bool:
        """Whether the variant's own file computes from codes, as far as its operators tell."""
        variant = self._workshop.bench.case.variant
        if variant.runtime != DEFAULT_RUNTIME:
            return False
        model = read_model(Path(variant.path))
        return any(node.op_type in _FROM_CODES or node.op_type.startswith("QLinear") for node in model.graph)

    def _open(self) -> LayerBench:
        return open_layers(self._workshop.bench, self._workshop.make(self._plan))
