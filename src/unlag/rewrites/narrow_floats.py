"""Half precision in a whole graph: float16 by ONNX Runtime's own converter, bfloat16 from what that makes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from unlag.model.graph import opset_of
from unlag.rewrites.element_types import element_types
from unlag.rewrites.library_quantizer import library_quantizer

Half = Literal["float16", "bfloat16"]

DELICATE = frozenset({
    "LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization", "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
    "BatchNormalization", "LpNormalization", "Softmax", "LogSoftmax", "ReduceMean", "ReduceSum", "ReduceSumSquare",
    "ReduceL2", "Pow", "Sqrt", "Reciprocal", "Exp", "Log",
})  # fmt: skip
"""Sums, squares and exponentials: what leaves the range of float16 first, or loses most in it."""

_PRODUCTS = frozenset({
    "MatMul", "FusedMatMul", "Gemm", "Conv", "FusedConv", "ConvTranspose", "Attention", "MultiHeadAttention", "Einsum",
    "LSTM", "GRU", "RNN",
})  # fmt: skip
_SINGLE, _HALF, _BRAIN = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
_OLDEST_OPSET = 13
"""From here on operators take bfloat16."""

_LARGEST = 3.3895313892515355e38
"""Of bfloat16."""

Array = npt.NDArray[np.generic]


def narrow_floats(model: ir.Model, to: Half, kept: Collection[str] = ()) -> tuple[ir.Model, int]:
    """Float32 becomes half precision, but for inputs, outputs and operators of the types in ``kept``.

    Finite numbers beyond the range become its largest. A model that calls functions of its own is left alone, and so is
    one that has float16 already where bfloat16 is wanted.

    Returns:
        The new model, or the same one; and how many matrix products are computed in half precision now.

    Raises:
        UsageError: the converter can't take this model.
    """
    types = element_types(model)
    products = [node for node in model.graph if node.op_type in _PRODUCTS and types.get(node.outputs[0]) == _SINGLE]
    unfit = to == "bfloat16" and (opset_of(model) < _OLDEST_OPSET or _HALF in types.values())
    if not products or model.functions or unfit:
        return model, 0
    for value, dtype in types.items():  # the converter casts around a kept operator only what is known as float32
        value.dtype = dtype
    single = _arrays(model)
    with library_quantizer(f"conversion to {to}"):
        from onnxruntime.transformers import float16  # noqa: PLC0415 - heavy, for fixes only

        converted: onnx.ModelProto = float16.convert_float_to_float16(
            ir.to_proto(ir.external_data.load_to_model(model)),
            keep_io_types=True,
            disable_shape_infer=True,
            op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, *sorted(kept)],
        )
        narrow = ir.from_proto(converted)
    narrow.graph.sort()
    if to == "bfloat16":
        _to_bfloat16(narrow, single)
    return narrow, len(products)


def _arrays(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Float32 constants of the graph and its bodies, initializers and Constant nodes, by name."""
    found = {}
    for graph in (model.graph, *model.graph.subgraphs()):
        values = [*graph.initializers.values(), *(node.outputs[0] for node in graph if node.op_type == "Constant")]
        for value in values:
            tensor = ir.convenience.get_const_tensor(value)
            if tensor is not None and tensor.dtype == _SINGLE:
                found[str(value.name)] = tensor
    return found


def _to_bfloat16(model: ir.Model, single: dict[str, ir.TensorProtocol]) -> None:
    """Every float16 of the converted model as bfloat16; constants from what they were before they were rounded."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype == _HALF:
                value.const_value = _rounded(single.get(str(value.name), tensor), str(value.name))
        for node in graph:
            _retype(node, single)
        values = (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs))
        for value in values:
            if value.dtype == _HALF:
                value.dtype = _BRAIN


def _retype(node: ir.Node, single: dict[str, ir.TensorProtocol]) -> None:
    """Attributes that hold a float16, or ask for one."""
    for name, attribute in list(node.attributes.items()):
        if not isinstance(attribute, ir.Attr):
            continue
        if name in {"to", "dtype"} and attribute.type == ir.AttributeType.INT and attribute.as_int() == _HALF:
            node.attributes[name] = ir.AttrInt64(name, int(_BRAIN))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _HALF:
            tensor = single.get(str(node.outputs[0].name), attribute.as_tensor())
            node.attributes[name] = ir.AttrTensor(name, _rounded(tensor, None))


def _rounded(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    array: Array = tensor.numpy().astype(np.float32)
    # a mask is often float32's least number, which rounds to an infinity; times zero that is no number
    finite = np.where(np.isfinite(array), np.clip(array, -_LARGEST, _LARGEST), array)
    array = finite.astype(ml_dtypes.bfloat16)
    return ir.Tensor(array, dtype=_BRAIN, name=name)
