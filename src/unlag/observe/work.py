"""Work of an executed operator, and how near it comes to this machine's roofline. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unlag.measure.ceilings import Ceilings
from unlag.runtimes.contract import Operator

_BY_ROWS = frozenset({
    "MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
    "MatMulNBits", "TransposeMatMul", "Gemm", "FusedGemm", "QGemm",
})  # fmt: skip
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcFusedConv", "ConvInteger", "QLinearConv"})
_RECURRENT = frozenset({"LSTM", "DynamicQuantizeLSTM", "GRU", "RNN"})


def flop_of(operator: Operator) -> float:
    """Floating point (or integer) operations of one run, a multiply-add counted as two.

    Elementwise operators count one for each element of their outputs.
    """
    if not operator.input_shapes or not operator.output_shapes:
        return 0.0
    if operator.kind == "attention":
        return _attention_flop(operator)
    return _product_flop(operator) or float(sum(math.prod(shape) for shape in operator.output_shapes))


def _product_flop(operator: Operator) -> float:
    """Operations of a matrix product, a convolution or a recurrent layer; zero for anything else."""
    inputs, made = operator.input_shapes, math.prod(operator.output_shapes[0])
    if operator.op_type in _BY_ROWS and inputs[0]:
        return 2.0 * made * inputs[0][-1]
    if operator.op_type in _CONVOLUTIONS:
        return 2.0 * made * math.prod(_kernel(inputs)[1:])
    if operator.op_type == "ConvTranspose":
        return 2.0 * math.prod(inputs[0]) * math.prod(_kernel(inputs)[1:])
    if operator.op_type in _RECURRENT and len(inputs) > 2 and len(inputs[0]) == 3:
        return 2.0 * inputs[0][0] * inputs[0][1] * (math.prod(inputs[1]) + math.prod(inputs[2]))
    return 0.0


def _kernel(inputs: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The weight of a convolution: the first other input of the image's rank."""
    return next((shape for shape in inputs[1:] if len(shape) == len(inputs[0]) > 2), (0, 0))


def _attention_flop(operator: Operator) -> float:
    """Scores and context, and the projections where the operator holds them (Attention, QAttention)."""
    query = operator.input_shapes[0]
    if len(query) != 3:
        return 0.0
    batch, rows, width = query
    keys = (
        operator.input_shapes[1][1] if len(operator.input_shapes) > 1 and len(operator.input_shapes[1]) == 3 else rows
    )
    hidden = operator.output_shapes[0][-1]
    scores = 4.0 * batch * rows * keys * hidden
    packed = operator.op_type in {"Attention", "QAttention"}
    return scores + (2.0 * batch * rows * width * 3 * hidden if packed else 0.0)


def ideal_ms(operator: Operator, ceilings: Ceilings) -> float:
    """The least time that the operator's work allows: its operations or its bytes, whichever takes longer."""
    compute_s = flop_of(operator) / ceilings.flop_per_s
    memory_s = operator.moved_bytes / ceilings.bytes_per_s
    return 1e3 * max(compute_s, memory_s)


def roofline_share(operators: Sequence[Operator], ceilings: Ceilings) -> float | None:
    """Ideal time of the operators over their real time; nothing where they took none.

    Above one where tensors stay in the caches, or where kernels compute in fewer bits than the ceiling's float32.
    """
    spent_ms = sum(operator.time_ms for operator in operators)
    return sum(ideal_ms(operator, ceilings) for operator in operators) / spent_ms if spent_ms else None
