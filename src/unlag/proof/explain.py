"""Bench and Comparison -> Explanation: diagnose, prove, reconcile, and graft where much is left."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from unlag.causes.contract import Cause, Finding, diagnose, find_causes
from unlag.measure.bench import Bench
from unlag.measure.compare import Compared
from unlag.measure.comparison import Comparison
from unlag.observe.evidence import Claim, Evidence
from unlag.proof.claims import check_claim
from unlag.proof.explanation import Explanation
from unlag.proof.graft import Graft, graft_blocks
from unlag.proof.inside import blocks_of, first_nonfinite, folded_weights, kinds_of, precisions_of, untimed_blocks
from unlag.proof.prove import NO_PROOFS, prove, suspects_of
from unlag.proof.reconcile import knots_of, reconcile, reconcile_accuracy, report_causes, unexplained

LARGE_REST = 0.15
"""Where detectors leave more than this share of the gap unexplained, blocks are grafted to locate it."""


class Extent(msgspec.Struct, frozen=True):
    """How far an explanation goes."""

    quick: bool = False
    """Diagnose only; nothing is proven."""
    graft: bool = False
    """Graft every block, whatever is left unexplained."""
    claim: Claim | None = None
    """What the user measured."""


def explain_evidence(bench: Bench, compared: Compared, evidence: Evidence, extent: Extent | None = None) -> Explanation:
    """Prove what the evidence suggests, and say what adds up to the gap."""
    extent = extent or Extent()
    if extent.quick:
        return diagnosis(compared.comparison, evidence)
    findings = diagnose_all(evidence)
    found = [(cause, finding) for cause, finding in findings if finding.status == "found"]
    proofs = prove(bench.within(0.0, 0.8), compared, suspects_of(found), evidence.observed)
    comparison = compared.comparison
    reports = report_causes(findings, proofs, comparison)
    explanation = Explanation(
        comparison=comparison,
        causes=reports,
        reconciliation=reconcile(proofs, reports) or unexplained(comparison),
        accuracy_reconciliation=reconcile_accuracy(proofs, reports),
        knots=knots_of(proofs, reports),
        blocks=blocks_of(evidence),
        untimed_blocks=untimed_blocks(evidence),
        kinds=kinds_of(evidence),
        precisions=precisions_of(evidence),
        folded_weights=folded_weights(evidence),
        attention=evidence.attention,
        first_nonfinite=first_nonfinite(evidence),
        claim=check_claim(bench.within(0.8, 0.85), compared, extent.claim) if extent.claim else None,
    )
    grafts = _grafts(bench.within(0.85, 1.0), compared, evidence, explanation, wanted=extent.graft)
    return msgspec.structs.replace(explanation, blocks=blocks_of(evidence, grafts))


def diagnosis(comparison: Comparison, evidence: Evidence, *, replayed: bool = False) -> Explanation:
    """What the evidence suggests, without measuring anything: no cause is better than suspected."""
    reports = report_causes(diagnose_all(evidence), NO_PROOFS, comparison, tried=False)
    return Explanation(
        comparison=comparison,
        causes=reports,
        reconciliation=unexplained(comparison),
        accuracy_reconciliation=None,
        knots=(),
        blocks=blocks_of(evidence),
        untimed_blocks=untimed_blocks(evidence),
        kinds=kinds_of(evidence),
        precisions=precisions_of(evidence),
        folded_weights=folded_weights(evidence),
        attention=evidence.attention,
        first_nonfinite=first_nonfinite(evidence),
        quick=True,
        replayed=replayed,
    )


def nothing_to_explain(comparison: Comparison) -> Explanation:
    """The standard against itself, where it is to be made better without a variant."""
    return Explanation(
        comparison=comparison,
        causes=(),
        reconciliation=None,
        accuracy_reconciliation=None,
        knots=(),
        blocks=(),
        kinds=(),
        precisions=(),
        attention=(),
        first_nonfinite=None,
    )


def diagnose_all(evidence: Evidence) -> list[tuple[Cause, Finding]]:
    """The answer of every cause that can happen in the pair's runtimes, in the order of their names."""
    return [(cause, diagnose(evidence, cause)) for cause in find_causes() if cause.concerns(evidence)]


def _grafts(
    bench: Bench, compared: Compared, evidence: Evidence, explanation: Explanation, *, wanted: bool
) -> Sequence[Graft]:
    """Grafts of all blocks, for what is asked for: everything, or the lag that is unexplained to a large part."""
    time, points = wanted or leaves_time(explanation), wanted or leaves_points(explanation)
    if not evidence.blocks or not (time or points):
        return ()
    return graft_blocks(bench, compared, evidence.blocks, time=time, points=points)


def leaves_time(explanation: Explanation) -> bool:
    """Whether more than ``LARGE_REST`` of a slower variant's gap is unexplained, beyond its own noise."""
    parts = explanation.reconciliation
    if explanation.comparison.verdict.speed != "slower" or parts is None:
        return False
    return parts.unexplained_ms.low > LARGE_REST * parts.gap_ms.estimate


def leaves_points(explanation: Explanation) -> bool:
    """The same for points that a worse variant loses."""
    parts = explanation.accuracy_reconciliation
    if explanation.comparison.verdict.accuracy != "worse":
        return False
    return parts is None or parts.unexplained.low > LARGE_REST * parts.loss.estimate
