"""ONNX Runtime's quantizers say nothing, leave logging alone, and fail in one line."""

from __future__ import annotations

import logging

import onnx
import pytest

from planting import tiny_bert, tiny_feed
from unlag.errors import UsageError
from unlag.rewrites.library_quantizer import library_quantizer
from unlag.rewrites.quantize_blocks import quantize_blocks
from unlag.rewrites.quantize_static import quantize_static


def logging_state() -> tuple[int, list[logging.Handler], int]:
    root = logging.getLogger()
    return root.level, list(root.handlers), root.manager.disable


def test_quantizers_print_nothing_and_leave_logging_alone(tmp_path, capfd):
    model = tiny_bert()
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    onnx.save(model, tmp_path / "float.onnx")
    names = [node.name for node in model.graph.node if node.op_type == "MatMul"][:3]
    before = logging_state()
    quantize_blocks(tmp_path / "float.onnx", tmp_path / "blocks.onnx", nodes=names, bits=4)
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "static.onnx", [tiny_feed()], nodes=names, calibration="entropy",
        per_channel=True,
    )  # fmt: skip
    assert logging_state() == before
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_fault_is_one_line_of_usage():
    said = r"^the quantizer does not take this model: first line$"
    with pytest.raises(UsageError, match=said), library_quantizer("the quantizer"):
        raise RuntimeError("first line\nsecond line")
    with pytest.raises(UsageError, match="ValueError"), library_quantizer("the quantizer"):
        raise ValueError
    before = logging_state()
    with pytest.raises(OSError, match="full"), library_quantizer("the quantizer"):
        raise OSError("disk full")
    assert logging_state() == before
