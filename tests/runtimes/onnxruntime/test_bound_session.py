"""Sessions with bound inputs and outputs, on the CPU: the calls are those for a GPU, in the host's memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from planting import tiny_bert, tiny_feed
from rewriting import parsed
from unlag.errors import UsageError
from unlag.model.variant import Variant
from unlag.runtimes.onnxruntime import bound_session
from unlag.runtimes.onnxruntime.bound_session import MOST_SHAPES, BoundSession
from unlag.runtimes.onnxruntime.session import RUNTIME, OnnxRuntimeSession

SHAPES = [(1, 4), (2, 6), (1, 4), (3, 9)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bound") / "bert.onnx"
    onnx.save(tiny_bert(), path)
    return path


@pytest.fixture
def plain(path):
    return RUNTIME.open(Variant("onnxruntime", str(path)), 1)


@pytest.fixture
def bound(path) -> BoundSession:
    session = RUNTIME.open(Variant("onnxruntime", str(path), {"io_binding": "on"}), 1)
    assert isinstance(session, BoundSession)
    return session


def same(one, other) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


def test_outputs_are_those_of_a_plain_session_whatever_ran_before(plain, bound):
    for number, (batch, sequence) in enumerate(SHAPES):
        feed = tiny_feed(batch, sequence, seed=number)
        assert same(bound.run(feed), plain.run(feed))
        bound.run_only(feed)
        bound.run_only(feed)
        assert same(bound.run(feed), plain.run(feed))


def test_outputs_of_an_earlier_run_stay_what_they_were(plain, bound):
    first, second = tiny_feed(seed=1), tiny_feed(seed=2)
    held = bound.run(first)
    bound.run(second)
    bound.run_only(second)
    assert same(held, plain.run(first))


def test_the_callers_arrays_are_never_written_to(bound):
    first, second = tiny_feed(seed=1), tiny_feed(seed=2)
    kept = {name: array.copy() for name, array in first.items()}
    bound.run(first)
    bound.run(second)
    assert same(first, kept)


def test_single_outputs_can_be_asked_for(plain, bound):
    name = bound.signature.outputs[0].name
    assert same(bound.run(tiny_feed(), [name]), plain.run(tiny_feed(), [name]))
    assert bound.run(tiny_feed(), []) == {}


def test_more_shapes_than_are_kept_run_all_the_same(plain, bound):
    for sequence in range(2, 2 * MOST_SHAPES):
        assert same(bound.run(tiny_feed(1, sequence)), plain.run(tiny_feed(1, sequence)))


def test_a_timed_run_copies_no_inputs_once_they_are_there(bound, monkeypatch):
    filled = []
    monkeypatch.setattr(bound_session._Bound, "fill", lambda _self, _feed: filled.append(1))
    feed = tiny_feed()
    bound.run(feed)
    for _ in range(3):
        bound.run_only(feed)
    assert len(filled) == 1, "the first timed run finds buffers of the shape, and fills them"


def test_texts_stay_in_the_hosts_memory(tmp_path):
    model = parsed("g (string[1] x) => (string[1] y) { y = Identity(x) }")
    onnx.save(model, tmp_path / "text.onnx")
    with pytest.raises(UsageError, match="tensors of numbers only, and 'x' is tensor"):
        RUNTIME.open(Variant("onnxruntime", str(tmp_path / "text.onnx"), {"io_binding": "on"}), 1)


class Recording:
    """The session beneath, which notes under which number each run is recorded or replayed."""

    def __init__(self, path) -> None:
        self._session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.runs: list[str] = []

    def __getattr__(self, name):
        return getattr(self._session, name)

    def io_binding(self):
        return ort.IOBinding(self._session)

    def run(self, names, feed, options):
        self.runs.append(f"apart {options.get_run_config_entry('gpu_graph_id')}")
        return self._session.run(names, feed, options)

    def run_with_iobinding(self, binding, options):
        self.runs.append(f"bound {options.get_run_config_entry('gpu_graph_id')}")
        self._session.run_with_iobinding(binding, options)


@pytest.fixture
def recording(path) -> SimpleNamespace:
    session = Recording(path)
    signature = OnnxRuntimeSession(session._session).signature
    return SimpleNamespace(session=session, bound=BoundSession(session, signature, "cpu", 0, recorded=True))


def test_each_shape_has_a_recording_of_its_own_with_outputs_in_one_place(plain, recording):
    for number, (batch, sequence) in enumerate(SHAPES):
        feed = tiny_feed(batch, sequence, seed=number)
        assert same(recording.bound.run(feed), plain.run(feed))
        recording.bound.run_only(feed)
    first, second, third = ["apart -1", "bound 1", "bound 1"], ["apart -1", "bound 2", "bound 2"], ["bound 1"] * 2
    assert recording.session.runs == [*first, *second, *third, "apart -1", "bound 3", "bound 3"]


def test_what_is_not_bound_is_never_replayed(plain, recording):
    name = recording.bound.signature.outputs[0].name
    recording.bound.run(tiny_feed(), [name])
    for sequence in range(2, MOST_SHAPES + 3):
        feed = tiny_feed(1, sequence)
        assert same(recording.bound.run(feed), plain.run(feed))
        recording.bound.run_only(feed)
    assert recording.session.runs[0] == "apart -1"
    assert recording.session.runs[-2:] == ["apart -1", "apart -1"], "more shapes than recordings are kept for"
    assert f"bound {MOST_SHAPES}" in recording.session.runs
    assert f"bound {MOST_SHAPES + 1}" not in recording.session.runs
