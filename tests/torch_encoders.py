"""A BERT in plain torch, in the ways that model code spells attention and its mask, exported by both exporters."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

LOWEST = torch.finfo(torch.float32).min
WORDS, WIDTH, HEADS, POSITIONS, WINDOW = 60, 64, 4, 40, 6
SIZE = WIDTH // HEADS

Mask = Callable[[Tensor, int, int], Tensor]
"""Ones and zeros [batch, keys], number of queries and of keys, to what attention takes."""


def additive(mask: Tensor, _queries: int, _keys: int) -> Tensor:
    return (1.0 - mask[:, None, None, :].to(torch.float32)) * LOWEST


def mild_additive(mask: Tensor, _queries: int, _keys: int) -> Tensor:
    return (1.0 - mask[:, None, None, :].float()) * -10000.0


def masked_fill(mask: Tensor, queries: int, keys: int) -> Tensor:
    inverted = 1.0 - mask[:, None, None, :].expand(mask.shape[0], 1, queries, keys).to(torch.float32)
    return inverted.masked_fill(inverted.to(torch.bool), LOWEST)


def boolean(mask: Tensor, queries: int, keys: int) -> Tensor:
    return mask[:, None, None, :].to(torch.bool).expand(mask.shape[0], 1, queries, keys)


def looked_up(mask: Tensor, queries: int, keys: int) -> Tensor:
    """By batch and key indices, as newer mask functions do it."""
    rows = torch.arange(mask.shape[0])[:, None, None, None]
    columns = torch.arange(keys)[None, None, None, :]
    return mask.to(torch.bool)[rows, columns].expand(mask.shape[0], 1, queries, keys)


def where_additive(mask: Tensor, queries: int, keys: int) -> Tensor:
    zero = torch.tensor(0.0)
    return torch.where(boolean(mask, queries, keys), zero, LOWEST)


def infinite(mask: Tensor, queries: int, keys: int) -> Tensor:
    zero = torch.zeros(mask.shape[0], 1, queries, keys)
    return zero.masked_fill(~boolean(mask, queries, keys), float("-inf"))


def causal_triu(mask: Tensor, queries: int, keys: int) -> Tensor:
    later = torch.triu(torch.full((queries, keys), LOWEST), diagonal=1)
    padded = mask[:, None, None, :] == 0
    return later[None, None].masked_fill(padded, LOWEST)


def causal_compared(mask: Tensor, queries: int, keys: int) -> Tensor:
    seen = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None]
    return seen[None, None] & mask[:, None, None, :].to(torch.bool)


def causal_table(mask: Tensor, queries: int, keys: int) -> Tensor:
    """A buffer for the longest text, cut to this one."""
    seen = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril()[None, None, :queries, :keys]
    padded = (1.0 - mask[:, None, None, :].float()) * -10000.0
    return torch.where(seen, padded, torch.tensor(-10000.0))


def windowed(_mask: Tensor, queries: int, keys: int) -> Tensor:
    """Neighbors only; in a text shorter than the window nothing is hidden."""
    places = torch.arange(keys)
    far = (places[None, :] - places[:queries, None]).abs() > WINDOW
    return torch.where(far, LOWEST, torch.tensor(0.0))[None, None]


def windowed_table(_mask: Tensor, queries: int, keys: int) -> Tensor:
    table = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool)
    near = (table.tril(WINDOW) & table.triu(-WINDOW))[None, None, :queries, :keys]
    return torch.where(near, torch.tensor(0.0), LOWEST)


PADDINGS: dict[str, Mask] = {
    f.__name__: f for f in (additive, mild_additive, masked_fill, boolean, looked_up, where_additive, infinite)
}
CAUSAL: dict[str, Mask] = {f.__name__: f for f in (causal_triu, causal_compared, causal_table)}
WINDOWED: dict[str, Mask] = {f.__name__: f for f in (windowed, windowed_table)}
MASKS = PADDINGS | CAUSAL | WINDOWED


def eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(SIZE)
    scores = torch.where(mask, scores, LOWEST) if mask.dtype == torch.bool else scores + mask
    return torch.matmul(nn.functional.softmax(scores, dim=-1), value)


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def batched(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Batch and heads as one axis, as older decoders have it."""
    batch, heads, queries, size = query.shape
    flat = [part.reshape(batch * heads, -1, size) for part in (query * size**-0.5, key, value)]
    scores = torch.bmm(flat[0], flat[1].transpose(1, 2)).view(batch, heads, queries, -1)
    added = torch.where(mask, 0.0, LOWEST) if mask.dtype == torch.bool else mask
    weights = torch.softmax((scores + added).view(batch * heads, queries, -1), dim=-1)
    return torch.bmm(weights, flat[2]).view(batch, heads, queries, size)


ATTENTIONS = {f.__name__: f for f in (eager, sdpa, batched)}


def gelu_by_hand(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "by hand": gelu_by_hand,
    "tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "tanh by hand": gelu_by_tanh,
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    attention: str = "eager"
    mask: str = "additive"
    activation: str = "gelu"
    layers: int = 2
    groups: int = HEADS
    rotary: bool = False
    packed: bool = False


class RootMeanSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


def turned(x: Tensor) -> Tensor:
    """x · cos + rotate_half(x) · sin, by position."""
    half = SIZE // 2
    rates = 1.0 / (10000.0 ** (torch.arange(0, half, dtype=torch.float32) / half))
    angles = torch.arange(x.shape[2])[:, None].float() * rates[None, :]
    both = torch.cat([angles, angles], -1)
    halves = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * both.cos() + halves * both.sin()


def repeated(x: Tensor, times: int) -> Tensor:
    if times == 1:
        return x
    batch, groups, length, size = x.shape
    return x[:, :, None].expand(batch, groups, times, length, size).reshape(batch, groups * times, length, size)


class Layer(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        narrow = SIZE * recipe.groups
        self.query, self.key, self.value = (nn.Linear(WIDTH, n) for n in (WIDTH, narrow, narrow))
        self.whole = nn.Linear(WIDTH, WIDTH + 2 * narrow)
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        norm = RootMeanSquare if recipe.rotary else lambda: nn.LayerNorm(WIDTH, eps=1e-12)
        self.first, self.second = norm(), norm()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, SIZE)
        if self.recipe.packed:
            parts = self.whole(x).split([self.query.out_features, self.key.out_features, self.value.out_features], -1)
        else:
            parts = [linear(x) for linear in (self.query, self.key, self.value)]
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        if self.recipe.rotary:
            query, key = turned(query), turned(key)
        times = HEADS // self.recipe.groups
        context = ATTENTIONS[self.recipe.attention](query, repeated(key, times), repeated(value, times), mask)
        context = context.transpose(1, 2).reshape(*x.shape[:-1], -1).contiguous()
        x = self.first(self.out(context) + x)
        return self.second(self.down(ACTIVATIONS[self.recipe.activation](self.up(x))) + x)


class Encoder(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.words, self.types = nn.Embedding(WORDS, WIDTH), nn.Embedding(2, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.register_buffer("numbers", torch.arange(POSITIONS).expand(1, -1))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer(recipe) for _ in range(recipe.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.words(input_ids) + self.types(token_type_ids) + self.positions(self.numbers[:, :length])
        x = self.norm(x)
        mask = MASKS[self.recipe.mask](attention_mask, length, length)
        for layer in self.layers:
            x = layer(x, mask)
        return x


NAMES = ("input_ids", "attention_mask", "token_type_ids")


def feed(batch: int = 2, length: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    """Padding at the end of every row but the first."""
    rng = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    for row in range(1, batch):
        mask[row, max(1, length - row - 1) :] = 0
    ids, types = rng.integers(0, WORDS, (batch, length)), rng.integers(0, 2, (batch, length))
    return dict(zip(NAMES, (ids, mask, types), strict=True))


@cache
def module(recipe: Recipe) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(recipe).eval()
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if weight.ndim == 2 and "layers" in name:
                weight.mul_(3.0)  # so that attention is not flat
    return encoder


@cache
def traced(recipe: Recipe, opset: int) -> onnx.ModelProto:
    file = io.BytesIO()
    axes = {name: {0: "batch", 1: "sequence"} for name in (*NAMES, "hidden")}
    inputs = tuple(torch.from_numpy(array) for array in feed().values())
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module(recipe), inputs, file, dynamo=False, opset_version=opset, input_names=list(NAMES),
            output_names=["hidden"], dynamic_axes=axes,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


@cache
def dynamo(recipe: Recipe, opset: int) -> onnx.ModelProto:
    inputs = tuple(torch.from_numpy(array) for array in feed().values())
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("sequence", min=1, max=POSITIONS)}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            module(recipe), inputs, dynamo=True, opset_version=opset, dynamic_shapes=(sizes,) * 3,
            input_names=list(NAMES), output_names=["hidden"], verbose=False,
        )  # fmt: skip
    assert program is not None
    return program.model_proto


EXPORTERS = {"traced": traced, "dynamo": dynamo}
