"""STS-Benchmark: how well cosines of sentence vectors rank 1,379 pairs by similarity (Spearman's rho x 100).

Timed are dense rows of its text, [CLS] words [SEP] without padding. Evaluated is every sentence at its own length,
so that no score depends on padding. Published for all-MiniLM-L6-v2: 82.03 (MTEB results, STSBenchmark test).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unlag import assets
from unlag.errors import UsageError
from unlag.model.workload import Evaluation, Rows, Workload, WorkloadRequest
from unlag.workloads._scores import spearman
from unlag.workloads._text import TextFeeds, tokenize, unit_rows

TEST_PAIRS = 1379

FloatArray = npt.NDArray[np.float64]


def load(request: WorkloadRequest) -> Workload:
    """STS-B test for a text encoder.

    Raises:
        UsageError: the model takes other inputs than text, or the data can't be had.
    """
    text_feeds = TextFeeds(request)
    first, second, scores = read_pairs()
    sentences = sorted({*first, *second})
    tokens = tokenize(sentences, assets.minilm_tokenizer())
    feeds, row_of = text_feeds.each_once(tokens)
    place = dict(zip(sentences, row_of, strict=True))
    others = tokenize(read_others({*sentences}), assets.minilm_tokenizer())
    pairs = np.array([[place[s] for s in first], [place[s] for s in second]])

    def predict(rows: Rows, _standard_rows: Rows) -> FloatArray:
        units = unit_rows(rows)
        cosines: FloatArray = np.sum(units[pairs[0]] * units[pairs[1]], axis=1)
        return cosines

    return Workload(
        name="stsb",
        shape=text_feeds.shape,
        feed=text_feeds.dense(tokens, request.seed % len(tokens)),
        agreement=text_feeds.agreement(tokens, request.seed),
        evaluation=Evaluation("STS-B Spearman", feeds, text_feeds.reduction, scores, predict, spearman, pairs.T),
        calibration=text_feeds.calibration(others, request.seed),
    )


def read_pairs() -> tuple[list[str], list[str], FloatArray]:
    """First sentences, second sentences and human scores (0 to 5) of the test split.

    Raises:
        UsageError: the file can't be had, or doesn't hold the 1,379 pairs.
    """
    path = assets.stsb_test()
    columns = _read(path)
    if len(columns) != TEST_PAIRS or any(len(row) < 7 for row in columns):
        raise UsageError(f"{path} holds {len(columns)} pairs, not the {TEST_PAIRS} of STS-B")
    return [row[5] for row in columns], [row[6] for row in columns], np.array([float(row[4]) for row in columns])


def read_others(scored: Collection[str]) -> list[str]:
    """Sentences of the development split that are not among the scored ones: for calibration.

    Raises:
        UsageError: the file can't be had.
    """
    rows = _read(assets.stsb_dev())
    return sorted({sentence for row in rows for sentence in row[5:7]} - {*scored})


def _read(path: Path) -> list[list[str]]:
    """Columns of a split; csv readers take the quotes in these texts for quoting and drop pairs."""
    lines = path.read_text("utf-8").rstrip("\n").split("\n")
    return [line.rstrip("\r").split("\t") for line in lines]
