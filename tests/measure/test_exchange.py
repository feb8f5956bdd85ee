"""Messages and arrays come out as they went in."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from unlag.measure import exchange
from unlag.measure.exchange import read_feeds, write_feeds
from unlag.model.variant import Variant
from unlag.model.workload import Signature, TensorInfo
from unlag.runtimes.contract import Operator, Profile

SIGNATURE = Signature((TensorInfo("x", "float32", ("batch", 3, None)),), (TensorInfo("y", "int64", None),))
OPERATOR = Operator("n", "MatMul", "gemm", "float32", 0.5, "cpu", ((1, 2), (2, 3)), ((1, 3),))
REQUESTS = (
    exchange.Open(Variant("fake", "a,b ü.json", {"threads": "2"}), 2, (0, 3), "folder/feed"),
    exchange.WarmUp(3.5),
    exchange.TakeTurn(5, 200.0),
    exchange.Prepare("folder/feeds"),
    exchange.Evaluate(0, 10, "mean_pool", "folder/out"),
    exchange.Answer("folder/feeds", "folder/out"),
    exchange.Sketch(("a", "b"), "sketches"),
    exchange.MakeProfile(8, "folder"),
    exchange.TimeFeeds("folder/feeds"),
    exchange.Work(2**60, 400.0, 5),
)
REPLIES = (
    exchange.Opened(SIGNATURE, 1.5, 2.5, pinned=True),
    exchange.WarmedUp(12, steady=False, typical_ms=0.25),
    exchange.TurnTaken((1_000_000, 2**40), 0.5, 2**33),
    exchange.Prepared(7),
    exchange.ProfileMade(Profile((OPERATOR,), 1.5, 8), None, "no graph"),
    exchange.FeedsTimed(2**40, 1.5),
    exchange.Worked(12, 2**31, 0, 0.5, 2**33),
    exchange.Done(),
    exchange.Failed('it said "no"\nand died', usage=True),
)
ARRAYS = arrays.arrays(
    st.sampled_from(["<f4", "<f2", "<f8", "<i8", "<i4", "|i1", "|u1", "|b1", "<u8", ">f4"]),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
FEEDS = st.lists(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=3), max_size=4)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_requests_round_trip_on_one_line(request_):
    line = msgspec.json.encode(request_)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=exchange.Request) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda r: type(r).__name__)
def test_replies_round_trip_on_one_line(reply):
    line = msgspec.json.encode(reply)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=exchange.Reply) == reply


def test_every_message_has_a_round_trip_here():
    assert {type(request) for request in REQUESTS} == set(exchange.Request.__args__)
    assert {type(reply) for reply in REPLIES} == set(exchange.Reply.__args__)


@pytest.mark.parametrize("message", [*REQUESTS, *REPLIES], ids=lambda m: type(m).__name__)
def test_messages_are_frozen(message):
    name = (*message.__struct_fields__, "anything")[0]
    with pytest.raises(AttributeError):
        setattr(message, name, None)


def test_a_reply_is_no_request():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(exchange.Done()), type=exchange.Request)


@given(FEEDS)
def test_feeds_round_trip_bit_by_bit(tmp_path_factory, feeds):
    path = tmp_path_factory.mktemp("feeds") / "feeds"
    write_feeds(path, feeds)
    read = read_feeds(path)
    assert [list(feed) for feed in read] == [list(feed) for feed in feeds]
    for ours, theirs in zip(feeds, read, strict=True):
        for name, array in ours.items():
            assert theirs[name].dtype == array.dtype
            assert theirs[name].shape == array.shape
            assert theirs[name].tobytes() == array.tobytes()


def test_a_view_is_written_as_it_is_seen(tmp_path):
    array = np.arange(24, dtype=np.int64).reshape(4, 6)
    write_feeds(tmp_path / "feeds", [{"turned": array.T, "stepped": array[::2, ::-1]}])
    (feed,) = read_feeds(tmp_path / "feeds")
    assert np.array_equal(feed["turned"], array.T)
    assert np.array_equal(feed["stepped"], array[::2, ::-1])


def test_arrays_that_were_read_cannot_be_changed(tmp_path):
    write_feeds(tmp_path / "feeds", [{"x": np.zeros(3)}])
    (feed,) = read_feeds(tmp_path / "feeds")
    with pytest.raises(ValueError, match="read-only"):
        feed["x"][0] = 1.0
