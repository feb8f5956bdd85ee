"""Everything that is the same in every run, computed once by ONNX Runtime and stored."""

from __future__ import annotations

from pathlib import Path

from onnx_ir.passes.common import ShapeInferencePass

from unlag.model.graph import read_model, save_model
from unlag.rewrites.library_quantizer import library_quantizer

LEFT_OUT = ("MatMulAddFusion",)
"""It gives each product with a bias two Reshapes of its own."""


def fold_constants(source: Path, target: Path) -> None:
    """Sizes, masks and tables that only depend on fixed dimensions become constants, in standard operators.

    The file also gets the shapes of all values: inference ends at operators of the runtime's own, once there are some.

    Raises:
        UsageError: the runtime can't open the model.
    """
    with library_quantizer("constant folding"):
        import onnxruntime as ort  # noqa: PLC0415 - a heavy import, for fixes only

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(target)
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(LEFT_OUT))
    model = read_model(target)  # the runtime lists all sets of operators that it knows
    used = {node.domain for node in model.graph.all_nodes()} | {""}
    for domain in [domain for domain in model.opset_imports if domain not in used]:
        del model.opset_imports[domain]
    inferred = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model).model
    save_model(inferred, target)
