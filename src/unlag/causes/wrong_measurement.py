"""The user's own measuring was wrong, not the model.

What it is: the times that the user claims (``--claim-standard-ms``, ``--claim-variant-ms``) are not what this machine
measures, and loading or the first run counted in would give them; or they call the variant slower where it is not.

Why it costs: opening a session, packing weights and the first run take as long as tens of runs, and more so for an
optimized model, whose file has to be converted first. A mean of few runs that holds them says nothing about a run.

How it is seen: the claimed times differ by more than 10 % from the measured ones, and the mean of 1 to 100 runs from
cold, with or without the session's loading, comes within 15 % of all that was claimed.

Remedy: warm up both models before timing, count neither loading nor the first runs, use the wall clock, the same
inputs and the same threads, one model in a process, and take turns.

Safety: advice only; no file is changed.

Source: onnxruntime#5319, ortex#102, SimpleTransformers#698, onnxruntime#8636, onnxruntime#6978, PyTorch#105075,
transformers#13944.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.draft import OnnxDraft
from unlag.observe.claimed_times import AGREEMENT, RUN_COUNTS, mean_from_cold, mean_with_load, off_by, reproduces
from unlag.observe.evidence import Claim, Evidence, Side

NO_CLAIM = "no claim was given (--claim-standard-ms, --claim-variant-ms)"


def _detect(evidence: Evidence) -> Finding:
    claim, standard, variant = evidence.claim, evidence.standard, evidence.variant
    if claim is None:
        return Finding("not_checked", NO_CLAIM)
    measured_off = off_by(claim, standard.latency_ms, variant.latency_ms)
    claimed, measured = _said(claim, claim.standard_ms, claim.variant_ms), _measured(claim, evidence)
    if measured_off <= AGREEMENT:
        return Finding("ruled_out", f"claimed {claimed}, measured {measured}: within {AGREEMENT - 1:.0%}")
    found = _counted_in(claim, standard, variant, measured_off)
    if found:
        return Finding("found", f"claimed {claimed}, measured {measured}; {found}")
    slowdown = variant.latency_ms / standard.latency_ms
    if claim.slowdown is not None and claim.slowdown > AGREEMENT and slowdown <= 1:
        ratios = f"{claim.slowdown:.2f} times the standard's time claimed, {slowdown:.2f} times measured"
        return Finding("found", f"the variant is not slower: {ratios}")
    reason = (
        f"claimed {claimed}, measured {measured}, {measured_off:.2f} times apart; neither loading nor the first run"
    )
    return Finding("not_checked", f"{reason} counted in gives that")


def _counted_in(claim: Claim, standard: Side, variant: Side, measured_off: float) -> str:
    """What counting loading or the first run in gives, where that is what was claimed."""
    best = (measured_off, "")
    for runs in RUN_COUNTS:
        mean = f"the mean of {runs} runs" if runs > 1 else "1 run"
        for what, times in (
            ("loading and the first run", [_with_load(side, runs) for side in (standard, variant)]),
            ("the first run", [mean_from_cold(runs, s.latency_ms, s.first_run_ms) for s in (standard, variant)]),
        ):
            if not all(side.first_run_ms > 0 for side in (standard, variant)):
                continue
            off = off_by(claim, *times)
            if off < best[0] and reproduces(off, measured_off):
                best = off, f"{what} counted into {mean} would give {_said(claim, *times)}"
    return best[1]


def _with_load(side: Side, runs: int) -> float:
    return mean_with_load(runs, side.latency_ms, side.first_run_ms, side.load_ms)


def _measured(claim: Claim, evidence: Evidence) -> str:
    return _said(claim, evidence.standard.latency_ms, evidence.variant.latency_ms)


def _said(claim: Claim, standard_ms: float | None, variant_ms: float | None) -> str:
    """The times of the sides that were claimed."""
    sides = ((claim.standard_ms, standard_ms, "standard"), (claim.variant_ms, variant_ms, "variant"))
    return " and ".join(f"{ms:.2f} ms ({name})" for claimed, ms, name in sides if claimed and ms is not None)


def _nothing(_draft: OnnxDraft) -> int:
    """How somebody measures is not in the model."""
    return 0


CAUSE = Cause(
    id="wrong_measurement",
    title="the claimed times were measured wrongly",
    dimension="measurement",
    affects=frozenset({"speed"}),
    needs=frozenset(),
    detect=_detect,
    remedies=(
        Remedy(
            id="measure_steady_runs",
            title="warm up both models, and time neither loading nor the first runs",
            safety="ADVICE",
            step=Step.SESSION,
            apply=_nothing,
        ),
    ),
)
