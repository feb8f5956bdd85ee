"""Contests of copies stay below four sizes of the larger model and 500 MB."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from report import records
from unlag.measure.comparison import Comparison
from unlag.proof import capacity
from unlag.proof.capacity import FEWEST, contenders_at_once

MB = 1_000_000


@pytest.fixture(autouse=True)
def own_memory(monkeypatch) -> None:
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=150 * MB))
    monkeypatch.setattr(capacity.psutil, "Process", lambda: process)
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: SimpleNamespace(available=8000 * MB))


def comparison(size_mb: int, peak_mb: int) -> Comparison:
    side = msgspec.structs.replace(
        records.comparison().variant, size_bytes=size_mb * MB, peak_memory_bytes=peak_mb * MB
    )
    return msgspec.structs.replace(records.comparison(), standard=side, variant=side)


@pytest.mark.parametrize(("size_mb", "peak_mb"), [(90, 240), (440, 1000), (23, 110)])
def test_all_processes_together_stay_below_the_limit(size_mb, peak_mb):
    count = contenders_at_once(comparison(size_mb, peak_mb))
    loading_mb, others_mb = peak_mb, (count - 1) * (peak_mb - size_mb)
    assert count == FEWEST or 150 + loading_mb + others_mb <= 4 * size_mb + 500
    assert count >= FEWEST


def test_a_machine_with_little_memory_gets_the_fewest(monkeypatch):
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: SimpleNamespace(available=300 * MB))
    assert contenders_at_once(comparison(90, 240)) == FEWEST


def test_smaller_processes_run_together_in_larger_numbers():
    assert contenders_at_once(comparison(90, 150)) > contenders_at_once(comparison(90, 240))


def test_more_run_together_where_more_room_is_given():
    small, large = contenders_at_once(comparison(90, 240)), contenders_at_once(comparison(90, 240), 4e9)
    assert large > small
    assert 150 + 240 + (large - 1) * 150 <= 4000
