from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from planting import tiny_bert, tiny_feed
from unlag.errors import ContenderError
from unlag.measure.spread import Spread
from unlag.model.variant import Variant

FEEDS = [tiny_feed(1, 8, seed) for seed in range(5)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Variant:
    path: Path = tmp_path_factory.mktemp("spread") / "bert.onnx"
    onnx.save(tiny_bert(), path)
    return Variant("onnxruntime", str(path))


def test_several_processes_give_what_one_gives_in_the_same_order(bert):
    alone, shared = (Spread("model", bert, cores).answers(FEEDS) for cores in ((0,), (0, 0)))
    assert len(alone) == len(shared) == len(FEEDS)
    for one, other in zip(alone, shared, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    first = next(iter(alone[0].values()))
    assert not np.array_equal(first, next(iter(alone[1].values()))), "feeds differ, so that order matters"


def test_rows_and_progress_are_those_of_all_feeds(bert):
    said: list[str] = []
    spread = Spread("model", bert, (0, 0), progress=lambda what, _share=None: said.append(what))
    rows = spread.rows(FEEDS, "none")
    answers = spread.answers(FEEDS)
    expected = np.concatenate([next(iter(answer.values())).reshape(1, -1) for answer in answers])
    assert np.allclose(rows, expected, atol=1e-5)  # noqa: TID251 - rows of a batch are summed in another order
    assert said[-1] == "model: 100 %"


def test_more_cores_than_feeds_are_no_harm(bert):
    assert len(Spread("model", bert, (0, 0, 0, 0)).answers(FEEDS[:2])) == 2


def test_a_run_takes_time(bert):
    assert 0 < Spread("model", bert, (0,)).run_s(FEEDS[0]) < 60


def test_a_model_that_can_not_be_opened_is_one_line(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    spread = Spread("model", Variant("onnxruntime", str(path)), (0, 0))
    with pytest.raises(ContenderError, match="model: ") as caught:
        spread.answers(FEEDS)
    assert "\n" not in caught.value.message
