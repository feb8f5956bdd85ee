"""Tensors are paired by values and order; names are worth nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unlag.measure.sketch import TensorSketch, sketch_of
from unlag.observe.match import LEAST_CORRELATION, match_tensors, relative_error


def sketch(array: np.ndarray) -> TensorSketch:
    made = sketch_of(array.astype(np.float32))
    assert made is not None
    return made


def chain(seed: int = 0, count: int = 6, shape: tuple[int, ...] = (4, 8, 16)) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for _ in range(count)]


def named(arrays: list[np.ndarray], prefix: str) -> dict[str, TensorSketch]:
    return {f"{prefix}{index}": sketch(array) for index, array in enumerate(arrays)}


def test_quantized_tensors_of_other_names_are_paired_in_order():
    arrays = chain()
    rounded = [np.round(array * 16) / 16 for array in arrays]
    pairs = match_tensors(named(arrays, "a"), named(rounded, "b"))
    assert [(p.standard, p.variant) for p in pairs] == [(f"a{i}", f"b{i}") for i in range(6)]
    assert all(0 < p.error < 0.05 for p in pairs)


def test_a_reshaped_tensor_is_found_and_one_of_another_size_is_not():
    arrays = chain(count=2)
    variant = {"flat": sketch(arrays[0].reshape(-1)), "half": sketch(arrays[1][:2])}
    assert [(p.standard, p.variant) for p in match_tensors(named(arrays, "a"), variant)] == [("a0", "flat")]


def test_strangers_are_left_alone():
    assert match_tensors(named(chain(1), "a"), named(chain(2), "b")) == ()


def test_constant_tensors_are_left_alone():
    flat = {"zeros": sketch(np.zeros((4, 8)))}
    assert match_tensors(flat, flat) == ()


def test_a_pair_that_crosses_the_others_is_left_out():
    arrays = chain()
    moved = [*arrays[1:], arrays[0]]
    assert [p.standard for p in match_tensors(named(arrays, "a"), named(moved, "b"))] == [f"a{i}" for i in range(1, 6)]


def test_a_tensor_whose_best_match_is_elsewhere_is_found_between_its_neighbors():
    one, two, three = chain(count=3)
    noisy = two + np.random.default_rng(7).standard_normal(two.shape)
    # A copy of ``two`` before everything else takes it away in the first pass; order gives it back.
    variant = {"first": sketch(one), "second": sketch(noisy), "third": sketch(three), "stray": sketch(two)}
    pairs = {p.standard: p.variant for p in match_tensors(named([one, two, three], "a"), variant)}
    assert pairs == {"a0": "first", "a1": "second", "a2": "third"}


def test_masks_do_not_count_as_an_error():
    scores = chain(count=1)[0].astype(np.float32)
    ours, theirs = scores.copy(), scores.copy()
    ours[..., -1], theirs[..., -1] = -1e9, np.finfo(np.float32).min
    assert relative_error(sketch(ours).values, sketch(theirs).values) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 12))
def test_a_model_matches_itself_completely_and_without_error(seed, count):
    arrays = named(chain(seed, count), "a")
    pairs = match_tensors(arrays, arrays)
    assert [(p.standard, p.variant) for p in pairs] == [(name, name) for name in arrays]
    assert {p.error for p in pairs} == {0.0}


@pytest.mark.parametrize("noise", [0.5, 5.0])
def test_the_correlation_decides(noise):
    array = chain(count=1)[0]
    other = array + noise * np.random.default_rng(3).standard_normal(array.shape)
    pairs = match_tensors(named([array], "a"), named([other], "b"))
    assert bool(pairs) == (1 / np.hypot(1, noise) > LEAST_CORRELATION)
