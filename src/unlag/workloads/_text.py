"""Texts as inputs of a BERT-style encoder: tokens, feeds without padding, and rows back in the texts' order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unlag.errors import UsageError
from unlag.model.workload import Feed, Reduction, Rows, WorkloadRequest
from unlag.workloads._feeds import fixed_size

MAX_TOKENS = 256
"""Longest text in tokens: all-MiniLM-L6-v2's own ``max_seq_length``."""

CALIBRATION_TEXTS, CALIBRATION_ROWS = 24, 8
"""Runs to take ranges from: texts of their own lengths, and rows that are filled with text as the timed ones are."""

VOCABULARY = 30_522
"""Entries of the uncased BERT vocabulary."""

_PADDED_VOCABULARY = 30_720
"""Embedding tables are padded to multiples of up to 1024 or so; a larger one belongs to another vocabulary."""

_CLS, _SEP = 101, 102
_HINT = "use --workload random or FILE.npz"

Tokens = list[int]
IntArray = npt.NDArray[np.int64]


def tokenize(texts: Sequence[str], tokenizer_file: Path) -> list[Tokens]:
    """Token ids of each text with [CLS] and [SEP], at most ``MAX_TOKENS`` of them."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - slow to import, and random inputs don't need it

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()  # the file asks for a fixed 128
    tokenizer.enable_truncation(max_length=MAX_TOKENS)
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


class TextFeeds:
    """Makes a model's feeds from tokens.

    Dynamic dimensions take what a feed needs; fixed ones, in the model or by ``--dim``, take padding.
    """

    def __init__(self, request: WorkloadRequest) -> None:
        """Look up the inputs of the request's signature.

        Raises:
            UsageError: the model takes no ``input_ids``, takes more than an encoder does, or has other words.
        """
        self.inputs = {info.name: info for info in request.signature.inputs}
        _check_inputs(request)
        shape = self.inputs["input_ids"].shape or (None, None)
        self.fixed_batch, self.fixed_sequence = (fixed_size(dimension, request) for dimension in shape)
        self.batch = self.fixed_batch or request.shape.batch
        self.sequence = self.fixed_sequence or request.shape.sequence
        outputs = request.signature.outputs
        is_pooled = bool(outputs) and outputs[0].shape is not None and len(outputs[0].shape) == 2
        self.reduction: Reduction = "none" if is_pooled else "mean_pool"

    @property
    def shape(self) -> str:
        """Batch and sequence of the timed feed."""
        return f"{self.batch}x{self.sequence}"

    def dense(self, texts: Sequence[Tokens], offset: int) -> Feed:
        """Real text that fills the whole timed shape, all of it attended to.

        The texts are joined, cut into rows and set between [CLS] and [SEP], beginning at the given text.
        """
        words = np.concatenate([tokens[1:-1] for tokens in [*texts[offset:], *texts[:offset]]])
        ids = np.full((self.batch, self.sequence), _CLS, np.int64)
        inner = max(self.sequence - 2, 0)
        ids[:, 1 : 1 + inner] = np.resize(words, (self.batch, inner))
        if self.sequence > 1:
            ids[:, -1] = _SEP
        return self._feed(ids, np.ones_like(ids))

    def padded(self, texts: Sequence[Tokens], offset: int) -> Feed:
        """The dense feed with the last third of every row masked out."""
        feed = self.dense(texts, offset)
        ids = feed["input_ids"].astype(np.int64)
        mask = np.ones_like(ids)
        kept = max(self.sequence - self.sequence // 3, 1)
        ids[:, kept:] = 0
        mask[:, kept:] = 0
        if kept > 1:
            ids[:, kept - 1] = _SEP
        return self._feed(ids, mask)

    def ragged(self, texts: Sequence[Tokens]) -> Feed:
        """Texts of any lengths in one feed, padded to the longest."""
        width = self.fixed_sequence or max(len(tokens) for tokens in texts)
        rows = [*texts, *[texts[-1]] * ((self.fixed_batch or len(texts)) - len(texts))]
        ids = np.zeros((len(rows), width), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(rows):
            kept = _cut(tokens, width)
            ids[row, : len(kept)] = kept
            mask[row, : len(kept)] = 1
        return self._feed(ids, mask)

    def agreement(self, texts: Sequence[Tokens], seed: int) -> list[Feed]:
        """Eight feeds to compare outputs on: three dense, one padded and four of real texts."""
        rng = np.random.default_rng(seed)
        starts = rng.integers(len(texts), size=4)
        feeds = [self.dense(texts, int(start)) for start in starts[:3]] + [self.padded(texts, int(starts[3]))]
        for _ in range(4):
            chosen = rng.choice(len(texts), size=self.batch, replace=len(texts) < self.batch)
            feeds.append(self.ragged([texts[int(index)] for index in chosen]))
        return feeds

    def calibration(self, texts: Sequence[Tokens], seed: int) -> list[Feed]:
        """Feeds of one row each, where the model lets that be, to take ranges of activations from."""
        rng = np.random.default_rng(seed)
        starts = rng.integers(len(texts), size=CALIBRATION_ROWS)
        rows = slice(None) if self.fixed_batch else slice(0, 1)
        filled = [self.dense(texts, int(start)) for start in starts]
        chosen = rng.choice(len(texts), size=CALIBRATION_TEXTS, replace=len(texts) < CALIBRATION_TEXTS)
        return [
            *({name: array[rows] for name, array in feed.items()} for feed in filled),
            *(self.ragged([texts[int(index)]]) for index in chosen),
        ]

    def each_once(self, texts: Sequence[Tokens]) -> tuple[list[Feed], IntArray]:
        """Feeds that run every text once, texts of one length together so that nothing is padded.

        Returns:
            The feeds, and for each text the index of its row in the feeds' stacked rows.
        """
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, tokens in enumerate(texts):
            by_length[self.fixed_sequence or len(tokens)].append(index)
        feeds: list[Feed] = []
        row_of = np.zeros(len(texts), np.int64)
        rows = 0
        for _, indices in sorted(by_length.items()):
            for start in range(0, len(indices), self.batch):
                chosen = indices[start : start + self.batch]
                feeds.append(self.ragged([texts[index] for index in chosen]))
                row_of[chosen] = rows + np.arange(len(chosen))
                rows += len(feeds[-1]["input_ids"])
        return feeds, row_of

    def _feed(self, ids: IntArray, mask: IntArray) -> Feed:
        made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return {name: made[name].astype(info.dtype) for name, info in self.inputs.items()}


def unit_rows(rows: Rows) -> npt.NDArray[np.float64]:
    """Rows scaled to length 1, as sentence vectors are compared.

    What is not finite counts as zero, so that a broken model gets a bad score and not none. Zero rows stay zero.
    """
    finite = np.nan_to_num(rows.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(finite, axis=1, keepdims=True)
    scaled: npt.NDArray[np.float64] = finite / np.where(lengths > 0, lengths, 1.0)
    return scaled


def _check_inputs(request: WorkloadRequest) -> None:
    names = [info.name for info in request.signature.inputs]
    if "input_ids" not in names:
        taken = ", ".join(names) or "nothing"
        raise UsageError(f"the model takes {taken}, not input_ids: it reads no text", hint=_HINT)
    others = sorted({*names} - {"input_ids", "attention_mask", "token_type_ids"})
    if others:
        raise UsageError(f"the model also takes {', '.join(others)}: it is not a plain text encoder", hint=_HINT)
    for info in request.signature.inputs:
        if info.shape is not None and len(info.shape) != 2:
            raise UsageError(f"{info.name} is of rank {len(info.shape)}; text is batch x sequence", hint=_HINT)
    limit = request.limits.get("input_ids", VOCABULARY)
    if not VOCABULARY <= limit <= _PADDED_VOCABULARY:
        message = f"the model knows {limit} tokens and uncased BERT {VOCABULARY}: its tokenizer is another one"
        raise UsageError(message, hint=_HINT)


def _cut(tokens: Tokens, width: int) -> Tokens:
    """At most ``width`` tokens, the last of which stays [SEP]."""
    return tokens if len(tokens) <= width else [*tokens[: width - 1], tokens[-1]]
