"""Running models before and after a rewrite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort

from planting import editable, tiny_feed

Rewrite = Callable[[ir.Model], int]
Outputs = list[np.ndarray]

TIGHT = 2e-5
"""Of the largest output: float32 sums in another order."""


def outputs(model: onnx.ModelProto, feed: Mapping[str, np.ndarray], *, passes: bool = False) -> Outputs:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not passes:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feed))


def relative_error(ours: Outputs, theirs: Outputs) -> float:
    assert [(a.dtype, a.shape) for a in ours] == [(b.dtype, b.shape) for b in theirs]
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(ours, theirs, strict=True)]
    assert all(np.isfinite(a).all() for a, _b in pairs)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def rewritten(model: onnx.ModelProto, rewrite: Rewrite) -> tuple[onnx.ModelProto, int]:
    """The changed copy and the count; also holds that doing it twice equals doing it once."""
    draft = editable(model)
    changed = rewrite(draft)
    after = ir.to_proto(draft)
    once = after.SerializeToString(deterministic=True)
    assert rewrite(draft) == 0, "the second time must find nothing to do"
    assert ir.to_proto(draft).SerializeToString(deterministic=True) == once
    onnx.checker.check_model(after)
    assert [o.name for o in after.graph.output] == [o.name for o in model.graph.output]
    return after, changed


def assert_keeps(before: onnx.ModelProto, after: onnx.ModelProto, tolerance: float = TIGHT, **feed: np.ndarray) -> None:
    for given in [feed] if feed else [tiny_feed(1, 8), tiny_feed(3, 11), tiny_feed(2, 1)]:
        assert relative_error(outputs(after, given), outputs(before, given)) <= tolerance


def assert_untouched(model: onnx.ModelProto, rewrite: Rewrite) -> None:
    draft = editable(model)
    before = ir.to_proto(draft).SerializeToString(deterministic=True)
    assert rewrite(draft) == 0
    assert ir.to_proto(draft).SerializeToString(deterministic=True) == before


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def parsed(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model of the given text, with these arrays as initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n{text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    return model
