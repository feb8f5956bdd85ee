"""Which cores belong together, and how they are shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlag.errors import Missing
from unlag.measure.host_files import Sources
from unlag.measure.placement import neighbors_together, read_nodes, replicas_to_try, shares


def machine(folder, **nodes: str) -> Sources:
    for name, cores in nodes.items():
        place = folder / "devices/system/node" / name
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{cores}\n")
    return Sources("linux", sys=folder)


def test_nodes_are_read_in_the_order_of_their_numbers(tmp_path):
    sources = machine(tmp_path, node10="8-9", node0="0-3,6", node2="", node3="4,5")
    assert read_nodes(sources) == ((0, 1, 2, 3, 6), (4, 5), (8, 9))


def test_a_system_that_does_not_tell_has_no_nodes(tmp_path):
    assert read_nodes(Sources("linux", sys=tmp_path)) == ()
    assert read_nodes(Sources("darwin", sys=machine(tmp_path, node0="0").sys)) == ()


def test_cores_of_one_node_and_of_one_physical_core_follow_each_other():
    """As Linux numbers them: 0 to 3 are the first threads of four cores, 4 to 7 the second ones; nodes alternate."""
    ordered = neighbors_together(range(8), [(0, 2, 4, 6), (1, 3, 5, 7)], [(0, 4), (1, 5), (2, 6), (3, 7)])
    assert ordered == (0, 4, 2, 6, 1, 5, 3, 7)
    assert shares(ordered, 4) == ((0, 4), (2, 6), (1, 5), (3, 7))


def test_what_is_not_known_leaves_the_cores_in_their_order():
    assert neighbors_together((3, 1, 2), (), Missing("virtual")) == (1, 2, 3)


@pytest.mark.parametrize(
    ("cores", "tried"),
    [(1, (1,)), (2, (1, 2)), (6, (1, 2, 6)), (7, (1, 7)), (16, (1, 2, 4, 8, 16)), (96, (1, 2, 4, 8))],
)
def test_numbers_of_replicas_double_and_leave_no_core_idle(cores, tried):
    found = replicas_to_try(cores)
    assert found[: len(tried)] == tried
    assert found[-1] == cores
    assert all(cores % count == 0 for count in found)


@given(st.integers(1, 200), st.data())
def test_shares_are_equal_and_do_not_overlap(cores, data):
    count = data.draw(st.sampled_from(replicas_to_try(cores)))
    parts = shares(range(cores), count)
    assert len(parts) == count
    assert {len(part) for part in parts} == {cores // count}
    assert sorted(core for part in parts for core in part) == list(range(cores))


def test_what_is_left_over_stays_idle():
    assert shares((0, 1, 2, 3, 4), 2) == ((0, 1), (2, 3))
