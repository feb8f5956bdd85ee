"""Bench and Comparison -> Explanation: observe, diagnose, prove, reconcile."""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, diagnose, find_causes
from unlag.measure.bench import Bench
from unlag.measure.compare import Compared
from unlag.observe.kinds import compared_by_kind
from unlag.observe.evidence import Evidence
from unlag.proof.explanation import Block, Explanation
from unlag.proof.prove import prove, suspects_of
from unlag.proof.reconcile import knots_of, reconcile, reconcile_accuracy, report_causes, unexplained


def explain_evidence(bench: Bench, compared: Compared, evidence: Evidence) -> Explanation:
    """Prove what the evidence suggests, and say what adds up to the gap."""
    findings = diagnose_all(evidence)
    found = [(cause, finding) for cause, finding in findings if finding.status == "found"]
    proofs = prove(bench, compared, suspects_of(found), evidence.observed)
    comparison = compared.comparison
    reports = report_causes(findings, proofs, comparison)
    return Explanation(
        comparison=comparison,
        causes=reports,
        reconciliation=reconcile(proofs, reports) or unexplained(comparison),
        accuracy_reconciliation=reconcile_accuracy(proofs, reports),
        knots=knots_of(proofs, reports),
        blocks=tuple(Block(*row) for row in compared_by_kind(evidence)),
    )


def diagnose_all(evidence: Evidence) -> list[tuple[Cause, Finding]]:
    """Every cause's answer, in the order of their names."""
    return [(cause, diagnose(evidence, cause)) for cause in find_causes()]
