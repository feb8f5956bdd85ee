"""Sentiment of movie snippets: a linear probe on the encoder's frozen sentence vectors (accuracy in %).

Not a fine-tuned classifier: a logistic regression is fitted once on the *standard's* vectors of 2,000 snippets and
reads the vectors of both models for 1,500 others. A variant scores as it would in place of the standard.
Snippets with a valence nearer to zero than 1 are left out, for their raters did not agree on a side.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from unlag import assets
from unlag.errors import UsageError
from unlag.model.workload import Evaluation, Rows, Workload, WorkloadRequest
from unlag.workloads._scores import side_accuracy
from unlag.workloads._text import TextFeeds, tokenize, unit_rows

SNIPPETS = 10_605
TRAIN_ITEMS = 2_000
TEST_ITEMS = 1_500
LEAST_VALENCE = 1.0

SPLIT_SEED = 1
"""Fixed, and not the user's seed: another split would be another task, and its scores no longer comparable."""

PENALTY = 1.0
"""Weight of half the squared coefficients beside the summed log loss (scikit-learn's default, C = 1)."""

FloatArray = npt.NDArray[np.float64]


def load(request: WorkloadRequest) -> Workload:
    """The sentiment probe for a text encoder.

    Raises:
        UsageError: the model takes other inputs than text, or the data can't be had.
    """
    text_feeds = TextFeeds(request)
    texts, positive = read_split()
    tokens = tokenize(texts, assets.minilm_tokenizer())
    feeds, row_of = text_feeds.each_once(tokens)
    others = tokenize(read_others({*texts}), assets.minilm_tokenizer())
    train, test = row_of[:TRAIN_ITEMS], row_of[TRAIN_ITEMS:]

    def predict(rows: Rows, standard_rows: Rows) -> FloatArray:
        coefficients = fit_probe(unit_rows(standard_rows[train]), positive[:TRAIN_ITEMS])
        margins: FloatArray = unit_rows(rows[test]) @ coefficients[:-1] + coefficients[-1]
        return margins

    return Workload(
        name="sentiment",
        shape=text_feeds.shape,
        feed=text_feeds.dense(tokens, request.seed % len(tokens)),
        agreement=text_feeds.agreement(tokens, request.seed),
        evaluation=Evaluation(
            "sentiment probe accuracy",
            feeds,
            text_feeds.reduction,
            positive[TRAIN_ITEMS:],
            predict,
            side_accuracy,
            rows_of=test[:, None],
        ),
        calibration=text_feeds.calibration(others, request.seed),
    )


def read_split() -> tuple[list[str], FloatArray]:
    """Texts and labels (1 positive, 0 negative): first the items to train the probe on, then those to test.

    Raises:
        UsageError: the file can't be had, or doesn't hold the 10,605 snippets.
    """
    clear = [(float(valence), text) for _, valence, text in _read() if abs(float(valence)) >= LEAST_VALENCE]
    order = np.random.default_rng(SPLIT_SEED).permutation(len(clear))[: TRAIN_ITEMS + TEST_ITEMS]
    chosen = [clear[int(index)] for index in order]
    return [text for _, text in chosen], np.array([float(valence > 0) for valence, _ in chosen])


def read_others(used: Collection[str]) -> list[str]:
    """Snippets that the probe is neither trained on nor tested with: for calibration. Raises as ``read_split`` does."""
    return sorted({text for _, _, text in _read()} - {*used})


def _read() -> list[list[str]]:
    path = assets.movie_snippets()
    rows = [line.split("\t", 2) for line in path.read_text("utf-8").splitlines() if line]
    if len(rows) != SNIPPETS or any(len(row) < 3 for row in rows):
        raise UsageError(f"{path} holds {len(rows)} snippets, not the {SNIPPETS} of its publication")
    return rows


def fit_probe(vectors: FloatArray, labels: FloatArray) -> FloatArray:
    """Logistic regression with an L2 penalty on all coefficients but the last, the intercept.

    Args:
        vectors: [items, width].
        labels: 1 or 0 for each item.

    Returns:
        Coefficients, [width + 1].
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - slow to import
    from scipy.special import expit  # noqa: PLC0415

    signs = 2.0 * labels - 1.0

    def loss(coefficients: FloatArray) -> tuple[float, FloatArray]:
        slope = coefficients[:-1]
        margins = signs * (vectors @ slope + coefficients[-1])
        pull = -signs * expit(-margins)
        gradient = np.append(vectors.T @ pull + PENALTY * slope, pull.sum())
        return float(np.logaddexp(0.0, -margins).sum() + 0.5 * PENALTY * (slope @ slope)), gradient

    start = np.zeros(vectors.shape[1] + 1)
    result = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return np.asarray(result.x, np.float64)
