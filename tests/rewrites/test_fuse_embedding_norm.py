# ruff: noqa: E501 - a graph in text form reads best in one line
from __future__ import annotations

import numpy as np
import onnx
import pytest

from planting import LAYERS, tiny_bert
from rewriting import TIGHT, assert_keeps, assert_untouched, kinds, outputs, parsed, relative_error, rewritten
from unlag.rewrites.fuse_embedding_norm import fuse_embedding_norm

RNG = np.random.default_rng(0)
WORDS, POSITIONS, TYPES, WIDTH = 30, 20, 3, 16
TABLES = {
    "words": RNG.standard_normal((WORDS, WIDTH)), "places": RNG.standard_normal((POSITIONS, WIDTH)),
    "types": RNG.standard_normal((TYPES, WIDTH)), "g": RNG.standard_normal(WIDTH), "b": RNG.standard_normal(WIDTH),
}  # fmt: skip
HEAD = "g (int64[n, s] ids, int64[n, s] kinds) => (float[n, s, 16] y) <int64[1] zero = {0}, int64 none = {0}, int64 start = {0}, int64 step = {1}, int64[1] last = {1}, int64 second = {1}, int64 five = {5}>"
WORD, TYPE = "w = Gather(words, ids)", "t = Gather(types, kinds)"
LENGTH = "sizes = Shape(ids) length = Gather(sizes, second)"
SUM = "wt = Add(w, t) all = Add(wt, p) y = LayerNormalization<axis = -1, epsilon = 1e-7>(all, g, b)"
COUNTED = f"{LENGTH} places_of = Range(start, length, step) p = Gather(places, places_of)"

SPELLINGS = {
    "positions counted": f"{WORD} {TYPE} {COUNTED} {SUM}",
    "positions cut": f"{WORD} {TYPE} {LENGTH} end = Unsqueeze(length, zero) p = Slice(places, zero, end, zero) {SUM}",
    "positions with a batch axis": f"{WORD} {TYPE} {COUNTED.replace('p =', 'flat =')} p = Unsqueeze(flat, zero) {SUM}",
    "another order": f"{WORD} {TYPE} {COUNTED} pw = Add(p, w) all = Add(t, pw) y = LayerNormalization<axis = -1>(all, g, b)",
    "no types": f"{WORD} {COUNTED} all = Add(w, p) y = LayerNormalization<axis = -1>(all, g, b)",
    "always the same type": f"{WORD} {COUNTED} same = Sub(kinds, kinds) t = Gather(types, same) {SUM}",
    "positions from the ids": f"{WORD} {TYPE} low = Min(ids, five) p = Gather(places, low) {SUM}",
}  # fmt: skip

OTHERS = {
    "words of other ids": f"low = Min(ids, five) w = Gather(words, low) {TYPE} {COUNTED} {SUM}",
    "no positions": f"{WORD} {TYPE} all = Add(w, t) y = LayerNormalization<axis = -1>(all, g, b)",
    "positions shifted": f"{WORD} {TYPE} {LENGTH} moved = Add(length, second) places_of = Range(step, moved, step) p = Gather(places, places_of) {SUM}",
    "something else added": f"{WORD} {TYPE} {COUNTED} wt = Add(w, t) more = Add(wt, p) all = Add(more, g) y = LayerNormalization<axis = -1>(all, g, b)",
    "scaled words": f"{WORD} ww = Mul(w, g) {TYPE} {COUNTED} wt = Add(ww, t) all = Add(wt, p) y = LayerNormalization<axis = -1>(all, g, b)",
}  # fmt: skip


def model_of(body: str) -> onnx.ModelProto:
    tables = {name: array.astype(np.float32) for name, array in TABLES.items()}
    used = {name: array for name, array in tables.items() if f"({name}," in body or f", {name}" in body}
    return parsed(f"{HEAD} {{ {body} }}", **used)


def feeds() -> list[dict[str, np.ndarray]]:
    sizes = [(2, 7), (1, 1), (3, POSITIONS - 1)]
    return [{"ids": RNG.integers(0, WORDS, size), "kinds": RNG.integers(0, TYPES, size)} for size in sizes]


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_becomes_one_operator(name):
    before = model_of(SPELLINGS[name])
    after, changed = rewritten(before, fuse_embedding_norm)
    assert changed == 1
    assert kinds(after)["LayerNormalization"] == 0
    assert len(next(n for n in after.graph.node if n.op_type == "EmbedLayerNormalization").input) >= 7
    for given in feeds():
        assert relative_error(outputs(after, given), outputs(before, given)) <= TIGHT


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_it_stays(name):
    assert_untouched(model_of(OTHERS[name]), fuse_embedding_norm)


def test_a_sum_that_is_read_elsewhere_stays():
    body = SPELLINGS["positions counted"].replace("y = Layer", "z = Layer") + " y = Add(z, all)"
    assert_untouched(model_of(body), fuse_embedding_norm)


def test_swapped_tables_would_be_noticed():
    before = model_of(SPELLINGS["positions counted"])
    after, _changed = rewritten(before, fuse_embedding_norm)
    node = next(n for n in after.graph.node if n.op_type == "EmbedLayerNormalization")
    node.input[3], node.input[2] = node.input[2], node.input[3]
    given = {"ids": RNG.integers(0, POSITIONS, (2, 7)), "kinds": RNG.integers(0, TYPES, (2, 7))}
    assert relative_error(outputs(after, given), outputs(before, given)) > 1e-2


def test_a_whole_model():
    after, changed = rewritten(tiny_bert(), fuse_embedding_norm)
    assert changed == 1
    assert kinds(after)["LayerNormalization"] == 2 * LAYERS
    assert_keeps(tiny_bert(), after)
