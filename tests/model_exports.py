"""Real exports of a small encoder by torch: both exporters, old and new opsets. Adds them to ``KINDS``."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import torch

from model_kinds import KINDS, Kind

WORDS, WIDTH, HEADS = 40, 32, 2
TRACED_OPSETS = (9, 11, 13, 17, 20)
DYNAMO_OPSETS = (18, 23)


class Block(torch.nn.Module):
    """Attention with separate projections and a padding mask, GELU, residuals and normalization."""

    def __init__(self, lowered: float) -> None:
        super().__init__()
        self.lowered = lowered
        self.table = torch.nn.Embedding(WORDS, WIDTH)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.end = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = (self.heads(part(x)) for part in (self.query, self.key, self.value))
        hidden = (1.0 - mask[:, None, None, :].float()) * self.lowered
        weights = torch.softmax(q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5 + hidden, -1)
        context = (weights @ v).transpose(1, 2)
        context = context.reshape(context.shape[0], context.shape[1], WIDTH)
        x = self.norm(x + self.out(context))
        return self.end(x + self.down(torch.nn.functional.gelu(self.up(x))))


FEED = {"ids": np.arange(16).reshape(2, 8), "mask": np.array([[1] * 8, [1] * 5 + [0] * 3])}


HIDDEN, LOWERED = -10000.0, -1.0
"""What is added where the mask is 0: one hides, the other is any additive bias."""


@cache
def block(lowered: float = HIDDEN) -> tuple[Block, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Block(lowered).eval(), tuple(torch.from_numpy(array) for array in FEED.values())


def traced(opset: int, lowered: float = HIDDEN) -> Kind:
    module, inputs = block(lowered)
    file = io.BytesIO()
    axes = {name: {0: "batch", 1: "sequence"} for name in FEED}
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module, inputs, file, dynamo=False, opset_version=opset, input_names=list(FEED), dynamic_axes=axes
        )
    return Kind(onnx.load_from_string(file.getvalue()), FEED)


def dynamo(opset: int) -> Kind:
    module, inputs = block()
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("sequence", min=1, max=64)}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            module, inputs, dynamo=True, opset_version=opset, dynamic_shapes=(sizes, sizes), verbose=False
        )
    assert program is not None
    return Kind(program.model_proto, FEED)


def _add(exporter: Callable[[int], Kind], opsets: tuple[int, ...]) -> None:
    for opset in opsets:
        KINDS[f"{exporter.__name__}_{opset}"] = lambda opset=opset: exporter(opset)


_add(traced, TRACED_OPSETS)
KINDS["traced_13_with_bias"] = lambda: traced(13, LOWERED)
_add(dynamo, DYNAMO_OPSETS)
