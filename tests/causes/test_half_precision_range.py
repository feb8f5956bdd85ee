"""What a run of the inputs says about float16 tensors."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest

from planting import Pair, editable, gather_evidence
from rewriting import outputs, parsed
from unlag.causes.contract import Finding, diagnose, find_causes
from unlag.errors import Missing
from unlag.model.facts import facts_of
from unlag.observe.evidence import Evidence, TensorFacts, TensorPair, Values
from zoo import half_precision_range

CAUSE = {cause.id: cause for cause in find_causes()}["half_precision_range"]
NORM = """g (float16[4] x) => (float16[4] y) {
    square = Mul(x, x)
    y = ReduceMean <axes = [0]> (square) }"""


@pytest.fixture(scope="module")
def sane() -> Evidence:
    return gather_evidence(half_precision_range.twin())


def tensor(dtype: str, nonfinite: int = 0, rms: float = 1.0) -> TensorFacts:
    return TensorFacts((2, 8), dtype, -1.0, 1.0, rms, nonfinite)


def ask(evidence: Evidence, ours: TensorFacts, theirs: TensorFacts | None, *, paired: bool = True) -> Finding:
    standard = Values({} if theirs is None else {"s": theirs})
    changed = msgspec.structs.replace(
        evidence,
        standard=msgspec.structs.replace(evidence.standard, values=standard),
        variant=msgspec.structs.replace(evidence.variant, values=Values({"v": ours}), executed=Missing("gone")),
        pairs=(TensorPair("s", "v", 1.0, 0.0),) if paired else (),
    )
    return diagnose(changed, CAUSE)


@pytest.mark.parametrize(
    ("ours", "theirs", "paired", "status"),
    [
        (tensor("float16", nonfinite=3), tensor("float32"), True, "found"),
        (tensor("float16", nonfinite=3), tensor("float32", nonfinite=3), True, "ruled_out"),
        (tensor("float32", nonfinite=3), tensor("float32"), True, "ruled_out"),
        (tensor("float16", nonfinite=3), tensor("float32"), False, "found"),
        (tensor("float16", nonfinite=3), tensor("float32", nonfinite=1), False, "ruled_out"),
        (tensor("float16", nonfinite=3), None, False, "ruled_out"),
        (tensor("float16", rms=0.0), tensor("float32"), True, "found"),
        (tensor("float16", rms=0.0), tensor("float32", rms=0.0), True, "ruled_out"),
        (tensor("float16", rms=0.0), tensor("float32"), False, "ruled_out"),
        (tensor("float16"), tensor("float32"), True, "ruled_out"),
    ],
)
def test_lost_tensors(sane, ours, theirs, paired, status):
    finding = ask(sane, ours, theirs, paired=paired)
    assert finding.status == status
    assert finding.where == (("v",) if status == "found" else ())


def facts_only(evidence: Evidence, model: onnx.ModelProto) -> Evidence:
    side = msgspec.structs.replace(evidence.variant, graph=facts_of(editable(model)), values=Missing("not run"))
    return msgspec.structs.replace(evidence, variant=side)


def test_squares_that_were_not_run_are_not_checked(sane):
    finding = diagnose(facts_only(sane, parsed(NORM)), CAUSE)
    assert finding.status == "not_checked"
    assert "1 squares and sums" in finding.reason


def test_infinite_constants_count_where_nothing_was_run(sane):
    assert diagnose(facts_only(sane, half_precision_range.with_mask(None)), CAUSE).status == "found"
    assert (
        diagnose(facts_only(sane, half_precision_range.with_mask(half_precision_range.SANE)), CAUSE).status
        == "ruled_out"
    )


def test_infinities_that_a_softmax_hides_are_no_loss(sane):
    """Masked positions of -inf, by Where, as many exporters write them."""
    text = """g (float16[n, 4] x, bool[n, 4] hidden) => (float16[n, 4] y) {
        scores = Where(hidden, lowest, x)
        shifted = Add(scores, none)
        y = Softmax(shifted) }"""
    lowest, none = np.array(-np.inf, np.float16), np.array(0, np.float16)
    model = parsed(text, lowest=lowest, none=none)
    ours = {"scores": tensor("float16", 1), "shifted": tensor("float16", 1), "y": tensor("float16")}
    theirs = {name: tensor("float32") for name in ours}
    changed = msgspec.structs.replace(
        sane,
        standard=msgspec.structs.replace(sane.standard, values=Values(theirs)),
        variant=msgspec.structs.replace(
            sane.variant, graph=facts_of(editable(model)), executed=Missing("gone"), values=Values(ours)
        ),
        pairs=(),
    )
    assert diagnose(changed, CAUSE).status == "ruled_out"
    broken = Values({**ours, "y": tensor("float16", 4)})
    lost = diagnose(
        msgspec.structs.replace(changed, variant=msgspec.structs.replace(changed.variant, values=broken)), CAUSE
    )
    assert lost.where == ("scores", "shifted", "y")


def test_only_tensors_that_the_runtime_makes_in_float16_are_lost():
    """ONNX Runtime has no float16 kernels for these operators and keeps their results in float32."""
    text = """g (float[2, 8] x) => (float[2, 8] y) {
        h = Cast <to = 10> (x)
        squares = Mul(h, h)
        wide = Cast <to = 1> (squares)
        root = Sqrt(wide)
        y = Add(root, x) }"""
    stored = text.replace("Mul(h, h)", "Cast <to = 10> (large)").replace("squares =", "large = Mul(x, x) squares =")
    plain = text.replace("<to = 10>", "<to = 1>")
    feed = {"x": np.full((2, 8), 300, np.float32)}
    for variant, status in ((text, "ruled_out"), (stored, "found")):
        pair = Pair(parsed(plain), {}, parsed(variant), {}, feed=feed)
        lost = not np.isfinite(outputs(pair.variant, feed, passes=True)[0]).all()
        assert lost == (status == "found")
        assert diagnose(gather_evidence(pair), CAUSE).status == status


def test_a_model_without_float16_is_ruled_out(sane):
    changed = msgspec.structs.replace(sane, variant=msgspec.structs.replace(sane.variant, graph=sane.standard.graph))
    assert diagnose(changed, CAUSE).reason.startswith("0 of")
