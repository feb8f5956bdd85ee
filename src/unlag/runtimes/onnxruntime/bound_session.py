"""A session whose inputs and outputs stay in its provider's memory, and whose launches may be replayed.

Source: onnxruntime.ai/docs/performance/tune-performance/iobinding.html, and the section on CUDA graphs of the CUDA
provider's page: a recorded run is replayed at the addresses that it was recorded with, one recording for each
``gpu_graph_id``, and -1 runs without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unlag.errors import UsageError
from unlag.model.workload import Array, Feed, Signature

if TYPE_CHECKING:
    import onnxruntime as ort

MOST_SHAPES = 8
"""Shapes of inputs that buffers are kept for; others run with buffers of their own, or without a recording."""

NOT_RECORDED = "-1"

Key = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True)
class _Bound:
    """Buffers for inputs of one shape, bound to the session."""

    binding: ort.IOBinding
    inputs: dict[str, ort.OrtValue]
    options: ort.RunOptions | None

    def fill(self, feed: Feed) -> None:
        """Copy a run's inputs into the buffers."""
        for name, value in self.inputs.items():
            value.update_inplace(np.ascontiguousarray(feed[name]))


class BoundSession:
    """An open session on one model, run through bindings. ``device`` is ``cuda`` or ``cpu``."""

    def __init__(
        self, session: ort.InferenceSession, signature: Signature, device: str, number: int, *, recorded: bool
    ) -> None:
        _check_numbers(session)
        self.signature = signature
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self._place = (device, number)
        self._recorded = recorded
        self._bound: dict[Key, _Bound] = {}
        self._filled: tuple[Feed, _Bound] | None = None

    def run(self, feed: Feed, outputs: Sequence[str] | None = None) -> Mapping[str, Array]:
        """Run once: inputs are copied to the device, all outputs or those asked for back."""
        if outputs is not None:
            return self._run_apart(feed, list(outputs))
        bound = self._bind(feed)
        if bound is None:
            return self._run_apart(feed, self._names)
        self._run(bound)
        return dict(zip(self._names, bound.binding.copy_outputs_to_cpu(), strict=True))

    def run_only(self, feed: Feed) -> None:
        """Run once for timing, on the inputs that are there already where the feed is that of the run before."""
        if self._filled is None or self._filled[0] is not feed:
            bound = self._bind(feed)
            if bound is None:
                self._run_apart(feed, self._names)
                return
            self._filled = feed, bound
        self._run(self._filled[1])

    def _run(self, bound: _Bound) -> None:
        self._session.run_with_iobinding(bound.binding, bound.options)
        bound.binding.synchronize_outputs()  # a provider may only have queued its work

    def _run_apart(self, feed: Feed, names: list[str]) -> dict[str, Array]:
        """Without buffers: other outputs than those bound, or more shapes than are kept."""
        if not names:
            return {}
        options = self._options(NOT_RECORDED) if self._recorded else None
        return dict(zip(names, self._session.run(names, dict(feed), options), strict=True))

    def _bind(self, feed: Feed) -> _Bound | None:
        """Buffers that hold this feed; nothing where a recording would be one too many."""
        self._filled = None
        key: Key = tuple(
            (info.name, feed[info.name].shape, str(feed[info.name].dtype)) for info in self.signature.inputs
        )
        if key in self._bound:
            self._bound[key].fill(feed)
            return self._bound[key]
        if len(self._bound) >= MOST_SHAPES:
            if self._recorded:
                return None
            self._bound.clear()
        self._bound[key] = self._make(feed)
        return self._bound[key]

    def _make(self, feed: Feed) -> _Bound:
        import onnxruntime as ort  # noqa: PLC0415 - only a run that needs the runtime pays for its import

        binding = self._session.io_binding()
        inputs = {}
        for info in self.signature.inputs:
            # a copy: on the CPU the buffer is the array itself, and would be written over by the next run
            held = np.array(feed[info.name], order="C", copy=True)
            inputs[info.name] = ort.OrtValue.ortvalue_from_numpy(held, *self._place)
            binding.bind_ortvalue_input(info.name, inputs[info.name])
        if not self._recorded:
            for name in self._names:
                binding.bind_output(name, *self._place)
            return _Bound(binding, inputs, None)
        for name, array in self._run_apart(feed, self._names).items():  # a recording needs outputs of known shapes
            value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type, *self._place)
            binding.bind_ortvalue_output(name, value)
        return _Bound(binding, inputs, self._options(str(len(self._bound) + 1)))

    def _options(self, graph: str) -> ort.RunOptions:
        import onnxruntime as ort  # noqa: PLC0415 - only a run that needs the runtime pays for its import

        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", graph)
        return options


def _check_numbers(session: ort.InferenceSession) -> None:
    """Refuse what no device's memory holds: texts, sequences, maps."""
    for value in (*session.get_inputs(), *session.get_outputs()):
        if not value.type.startswith("tensor(") or value.type == "tensor(string)":
            raise UsageError(f"io_binding=on takes tensors of numbers only, and {value.name!r} is {value.type}")
