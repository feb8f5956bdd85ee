"""Weights in blocks of 8 or 4 bits, by ONNX Runtime's own quantizer: MatMul becomes MatMulNBits."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx

from unlag.rewrites.library_quantizer import library_quantizer

BLOCK = 32
"""Rows of a column that share a scale: the smallest block that the runtime has kernels for, and the most exact."""

INTEGER_COMPUTE = 4
"""The operator's accuracy level that lets it round activations to int8, block by block, and multiply integers."""


def quantize_blocks(source: Path, target: Path, *, nodes: Collection[str], bits: int) -> None:
    """Y = x·W with W in codes of ``bits`` bits and a scale for every ``BLOCK`` rows of each column.

    Args:
        source: the float model.
        target: where the quantized one goes.
        nodes: names of the MatMul nodes whose weights are taken.
        bits: 4 or 8.

    Raises:
        UsageError: the quantizer can't take this model, or this version of the runtime has none.
    """
    with library_quantizer(f"quantization in blocks of {bits} bits"):
        from onnxruntime.quantization import QuantFormat, matmul_nbits_quantizer  # noqa: PLC0415 - heavy, for fixes only

        model = onnx.load(source)
        others = {node.name for node in model.graph.node if node.name not in nodes}
        config = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
            block_size=BLOCK,
            is_symmetric=True,
            accuracy_level=INTEGER_COMPUTE,
            quant_format=QuantFormat.QOperator,
            op_types_to_quantize=("MatMul",),
            bits=bits,
        )
        quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(model, algo_config=config, nodes_to_exclude=others)
        quantizer.process()
        quantizer.model.save_model_to_file(str(target))
