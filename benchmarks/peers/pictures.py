"""Real pictures for the convolutional models: seeded crops of photographs and scanned pages that scikit-image ships.

There are no labels for them: a model is scored by how near its outputs are to the standard's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unlag.assets import Archive, Asset, Member, fetch
from unlag.model.workload import Feed, Workload, WorkloadRequest

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SIDE = 224
PAGE_SIDE = 640

SMALLEST_CROP = 0.4
"""Of a picture's shorter side."""

NSFW_MEANS = (104.0, 117.0, 123.0)
"""Blue, green and red, which open_nsfw's preprocessing takes away from pixels of 0 to 255."""

SCORED_SEED, CALIBRATION_SEED, VALIDATION_SEED = 0, 1, 2
SCORED_IMAGES, SCORED_PAGES = 48, 12
CALIBRATION_IMAGES, CALIBRATION_PAGES = 100, 30

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
PAGES = ("page.png", "text.png")

SCIKIT_IMAGE = Asset(
    Archive(
        package="scikit-image",
        version="0.26.0",
        filename="scikit_image-0.26.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        sha256="74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
        size_bytes=13_711_217,
    ),
    members=(
        Member("skimage/data/astronaut.png", "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5"),
        Member("skimage/data/chelsea.png", "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"),
        Member("skimage/data/coffee.png", "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7"),
        Member("skimage/data/motorcycle_left.png", "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179"),
        Member("skimage/data/rocket.jpg", "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c"),
        Member("skimage/data/page.png", "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3"),
        Member("skimage/data/text.png", "bd84aa3a6e3c9887850d45d606c96b2e59433fbef50338570b63c319e668e6d1"),
    ),
)
"""Fetched, not copied. The archive is of one Python; the pictures in it are not."""

RAPIDOCR = Asset(
    Archive(
        package="rapidocr-onnxruntime",
        version="1.4.4",
        filename="rapidocr_onnxruntime-1.4.4-py3-none-any.whl",
        sha256="971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        size_bytes=14_915_192,
    ),
    members=(
        Member(
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        ),
    ),
)
"""Apache-2.0."""

Pixels = npt.NDArray[np.float32]


def text_detector() -> Path:
    """PP-OCRv4's detector: images [N, 3, height, width] in, a map of text in [N, 1, height, width] out.

    Raises:
        UsageError: no network and not in the cache.
    """
    return fetch(RAPIDOCR) / "ch_PP-OCRv4_det_infer.onnx"


def classified(_request: WorkloadRequest) -> Workload:
    """Photographs for open_nsfw: one is timed, all are compared."""
    return _workload("photographs", image_feeds(SCORED_IMAGES, SCORED_SEED), "classified")


def detected(_request: WorkloadRequest) -> Workload:
    """Pages and photographs for the text detector: one page is timed, all are compared."""
    return _workload("pages", page_feeds(SCORED_PAGES, SCORED_SEED), "detected")


def _workload(name: str, feeds: Sequence[Feed], function: str) -> Workload:
    shape = "x".join(map(str, next(iter(feeds[0].values())).shape))
    calibration, _ = for_tools(function)
    return Workload(name=name, shape=shape, feed=feeds[0], agreement=feeds, calibration=calibration)


def for_tools(workload: str) -> tuple[list[Feed], list[Feed]]:
    """Other crops than the scored ones: to calibrate on, and to validate with."""
    if workload.endswith("classified"):
        return image_feeds(CALIBRATION_IMAGES, CALIBRATION_SEED), image_feeds(SCORED_IMAGES, VALIDATION_SEED)
    return page_feeds(CALIBRATION_PAGES, CALIBRATION_SEED), page_feeds(SCORED_PAGES, VALIDATION_SEED)


def image_feeds(count: int, seed: int) -> list[Feed]:
    """Crops as open_nsfw takes them: blue, green, red, less their means, [1, side, side, 3]."""
    means = np.array(NSFW_MEANS, np.float32)
    crops = _crops(PHOTOGRAPHS, count, seed, IMAGE_SIDE)
    return [{"input:0": (crop[:, :, ::-1] - means)[None].copy()} for crop in crops]


def page_feeds(count: int, seed: int) -> list[Feed]:
    """Crops as PP-OCR takes them: blue, green, red from -1 to 1, [1, 3, side, side]."""
    crops = _crops((*PAGES, *PHOTOGRAPHS), count, seed, PAGE_SIDE)
    return [{"x": (crop[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)[None].copy()} for crop in crops]


def _crops(names: Sequence[str], count: int, seed: int, side: int) -> list[Pixels]:
    """Square crops of the pictures in turn, at seeded places and sizes, half of them mirrored."""
    rng = np.random.default_rng(seed)
    opened = [_open(name) for name in names]
    return [_crop(opened[number % len(opened)], rng, side) for number in range(count)]


def _crop(picture: Image, rng: np.random.Generator, side: int) -> Pixels:
    shorter = min(picture.size)
    size = int(rng.integers(int(SMALLEST_CROP * shorter), shorter + 1))
    left, top = (int(rng.integers(0, length - size + 1)) for length in picture.size)
    crop: Any = picture.crop((left, top, left + size, top + size)).resize((side, side))
    pixels = np.asarray(crop, np.float32)
    return pixels[:, ::-1] if rng.integers(2) else pixels


def _open(name: str) -> Image:
    from PIL import Image  # noqa: PLC0415 - only those who look at pictures need it

    return Image.open(fetch(SCIKIT_IMAGE, name) / name).convert("RGB")
