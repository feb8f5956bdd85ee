"""Ways of measuring that have to be run: other session options, other shapes, no isolation, another clock.

Each is run in turns with the usual way, and the comparison's time is multiplied by how many times as long it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from unlag.measure.bench import Bench, first_shape, open_bench
from unlag.measure.compare import STANDARD, VARIANT
from unlag.measure.comparison import Comparison
from unlag.measure.one_process import Conditions, Timed, Together, measure_factors, measure_together
from unlag.model.variant import Variant
from unlag.model.workload import Shape
from unlag.observe.claimed_times import AGREEMENT
from unlag.observe.evidence import Claim
from unlag.proof.claim_recomputed import Attempt, NotTriedError, Way
from unlag.runtimes.contract import find_runtime

LARGEST_POWER = 3
"""Shapes of up to eight times the work: larger ones take minutes, and nobody confuses them."""
USUAL_BATCH_POWER = 3
"""People give times per item of a batch about eight times as large."""

_DEFAULTS = {"optimization": "all", "spinning": "on", "arena": "on"}
"""What the options are where a spec doesn't say."""


def measured_ways(comparison: Comparison, claim: Claim, bench: Bench) -> tuple[Way, ...]:
    """All ways that need runs, only of the sides that were claimed; the shapes that may fit the claim."""
    cores = len(bench.cores)
    options = (
        ("one_thread", f"1 thread instead of {bench.threads}", "threads", "1"),
        ("too_many_threads", f"{2 * cores} threads on {_count(cores, 'core')}", "threads", str(2 * cores)),
        ("passes_off", "graph optimizations off", "optimization", "off"),
        ("spinning_off", "idle threads that sleep", "spinning", "off"),
        ("arena_off", "no memory arena", "arena", "off"),
    )
    shapes = shapes_to_try(first_shape(bench.case), claim, comparison)
    return (
        *(_session(comparison, claim, *option) for option in options),
        *_both_in_one_process(comparison),
        *(_shape(comparison, claim, shape) for shape in shapes),
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _claimed(bench: Bench, claim: Claim) -> dict[str, Variant]:
    """The sides that a time was claimed of."""
    sides = {STANDARD: (bench.case.standard, claim.standard_ms), VARIANT: (bench.case.variant, claim.variant_ms)}
    return {name: variant for name, (variant, time_ms) in sides.items() if time_ms is not None}


def _conditions(bench: Bench) -> Conditions:
    return Conditions(bench.cores, bench.threads, bench.protocol.patience_s)


def _attempt(id_: str, title: str, comparison: Comparison, factors: Mapping[str, float]) -> Attempt:
    """The comparison's times, multiplied; a side without a factor is as it was measured."""
    return Attempt(
        id_,
        title,
        comparison.standard.latency_ms.median * factors.get(STANDARD, 1.0),
        comparison.variant.latency_ms.median * factors.get(VARIANT, 1.0),
        measured=True,
    )


def _session(  # noqa: PLR0913, PLR0917 - a way and its option
    comparison: Comparison, claim: Claim, id_: str, title: str, option: str, value: str
) -> Way:
    """Both sides with this session option."""

    def attempts(bench: Bench) -> Iterator[Attempt]:
        before = {**_DEFAULTS, "threads": str(bench.threads)}[option]
        usual = {
            name: variant
            for name, variant in _claimed(bench, claim).items()
            if variant.options.get(option, before) != value
        }
        if not usual:
            raise NotTriedError(f"{option}={value} is how it was measured")
        for variant in usual.values():
            if option not in {known.name for known in find_runtime(variant.runtime).options}:
                raise NotTriedError(f"runtime {variant.runtime} has no option {option}")
        feed = bench.workload.feed
        pairs = [(Timed(v, feed), Timed(v.with_options(**{option: value}), feed)) for v in usual.values()]
        factors = measure_factors(pairs, _conditions(bench))
        yield _attempt(id_, title, comparison, dict(zip(usual, factors, strict=True)))

    return Way(id_, title, attempts)


def _both_in_one_process(comparison: Comparison) -> Iterator[Way]:
    """The ways that one process tells at once; it is started when the first of them is tried."""
    made: list[Together] = []

    def together(bench: Bench) -> Together:
        if not made:
            feed = bench.workload.feed
            sides = Timed(bench.case.standard, feed), Timed(bench.case.variant, feed)
            made.append(measure_together(*sides, _conditions(bench)))
        return made[0]

    def way(id_: str, title: str, pick: Callable[[Together], tuple[float, ...]]) -> Way:
        def attempts(bench: Bench) -> Iterator[Attempt]:
            factors = dict(zip((STANDARD, VARIANT), pick(together(bench)), strict=True))
            yield _attempt(id_, title, comparison, factors)

        return Way(id_, title, attempts)

    yield way("cpu_time", "CPU time of all threads instead of wall time", lambda t: t.cpu)
    yield way(
        "one_process", "both models in turn in one process, the other's threads spinning", lambda t: t.alternating
    )
    yield way("at_the_same_time", "both models running at the same time", lambda t: t.simultaneous)
    yield way("profiled", "the profiler switched on", lambda t: t.profiled)


def shapes_to_try(shape: Shape, claim: Claim, comparison: Comparison) -> tuple[Shape, ...]:
    """Powers of two times the batch and the sequence that lie around what was claimed, times being about linear."""
    sides = (
        (claim.standard_ms, comparison.standard.latency_ms.median),
        (claim.variant_ms, comparison.variant.latency_ms.median),
    )
    ratios = [claimed / measured for claimed, measured in sides if claimed is not None]
    bounds = {bound(math.log2(ratio)) for ratio in ratios for bound in (math.floor, math.ceil)}
    powers = sorted(power for power in bounds if power and abs(power) <= LARGEST_POWER)
    items = any(2**-LARGEST_POWER <= ratio < 1 / AGREEMENT for ratio in ratios)
    batches = [*powers, USUAL_BATCH_POWER] if items else powers
    wanted = [Shape(_times(shape.batch, power), shape.sequence) for power in batches]
    wanted += [Shape(shape.batch, _times(shape.sequence, power)) for power in powers]
    return tuple(dict.fromkeys(other for other in wanted if other != shape))


def _times(size: int, power: int) -> int:
    return max(1, round(size * 2.0**power))


def _shape(comparison: Comparison, claim: Claim, shape: Shape) -> Way:
    title = f"shape {shape} (batch x sequence)"

    def attempts(bench: Bench) -> Iterator[Attempt]:
        other = open_bench(bench.case, shape).workload
        if other.shape == bench.workload.shape:
            raise NotTriedError(f"the inputs keep their shape {other.shape}")
        sides = _claimed(bench, claim)
        pairs = [(Timed(v, bench.workload.feed), Timed(v, other.feed)) for v in sides.values()]
        factors = dict(zip(sides, measure_factors(pairs, _conditions(bench)), strict=True))
        yield _attempt(f"shape_{shape}", title, comparison, factors)
        if shape.batch > 1:
            items = {name: factor / shape.batch for name, factor in factors.items()}
            yield _attempt(f"item_of_{shape}", f"{title}, time of one item", comparison, items)

    return Way(f"shape_{shape}", title, attempts)
