from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from unlag.measure.sketch import SAMPLED, read_sketches, sketch_of, write_sketches


def test_facts_leave_what_is_not_finite_out_and_count_it():
    facts = sketch_of(np.array([[1.0, -3.0], [np.nan, np.inf]], np.float16)).facts
    assert (facts.low, facts.high, facts.nonfinite, facts.dtype) == (-3.0, 1.0, 2, "float16")
    assert facts.rms == pytest.approx(np.sqrt(5))


def test_rows_that_are_distributions_have_an_entropy():
    even = np.full((2, 3, 4), 0.25, np.float32)
    assert sketch_of(even).facts.entropy == pytest.approx(np.log(4))
    assert sketch_of(even * 2).facts.entropy is None
    assert sketch_of(even[0]).facts.entropy is None, "class probabilities are not attention"


def test_samples_of_equal_counts_are_taken_at_equal_places():
    array = np.arange(3 * SAMPLED, dtype=np.float32)
    assert sketch_of(array).sample == sketch_of(array.reshape(3, -1)).sample
    assert sketch_of(array).values.size == SAMPLED


@pytest.mark.parametrize("array", [np.array([], np.float32), np.array(["text"], dtype=object)])
def test_what_holds_no_numbers_has_no_sketch(array):
    assert sketch_of(array) is None


def test_all_nonfinite_is_no_crash():
    facts = sketch_of(np.full((4,), np.nan, np.float32)).facts
    assert (facts.low, facts.high, facts.rms, facts.nonfinite) == (0.0, 0.0, 0.0, 4)


def test_a_file_of_sketches_keeps_the_order(tmp_path):
    sketches = {name: sketch_of(np.ones(3, ml_dtypes.bfloat16)) for name in "zab"}
    write_sketches(tmp_path / "file", sketches)
    assert list(read_sketches(tmp_path / "file").items()) == list(sketches.items())
