"""One case each: a cause planted in a real model, several at once, a healthy twin, a model against itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx
from benchmarks.diagnosis.models import RealModel, write_feed
from benchmarks.diagnosis.plants import Built, Plant, build, first_fitting
from benchmarks.diagnosis.records import (
    SMALLEST_POINTS,
    Alarm,
    Cost,
    Detected,
    Explained,
    Failure,
    Healthy,
    Job,
    Noise,
    Other,
    Planted,
    Record,
)

from planting import Pair, Times, gather_evidence, tiny_feed
from unlag import pipeline
from unlag.causes.contract import diagnose, find_causes
from unlag.errors import Missing, UnlagError
from unlag.measure.accuracy import score
from unlag.measure.bench import first_shape, open_bench, quick
from unlag.measure.comparison import Comparison
from unlag.measure.host import read_host
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.proof.explanation import CauseReport, Explanation
from unlag.proof.prove import noise_ms
from unlag.runtimes.contract import find_runtime

TWIN_ROUNDS = 3
"""Twins are tiny models, and nothing is to be found."""
FLOAT16_ISA = "avx512_fp16"
CLEAN, ALL = "clean", "all"


@dataclass(frozen=True)
class Settings:
    """How every case is measured."""

    rounds: int = 5
    seed: int = 0

    def case(self, standard: Variant, variant: Variant, workload: str) -> Case:
        """The question that unlag is asked."""
        return Case(standard=standard, variant=variant, workload=workload, rounds=self.rounds, seed=self.seed)


@dataclass(frozen=True)
class Task:
    """A case to be run, in a folder of its own."""

    key: str
    job: Job
    run: Callable[[Path], Record]


def run_task(task: Task, folder: Path) -> Record:
    """Run a case. What it raises is a failure, never the end of the whole run."""
    begin = time.perf_counter()
    try:
        record = task.run(folder)
    except Exception as error:  # noqa: BLE001 - one case's fault must not keep the others from being measured
        message = error.message if isinstance(error, UnlagError) else f"{type(error).__name__}: {error}"
        record = Failure(key=task.key, job=task.job, message=message)
    return msgspec.structs.replace(record, key=task.key, seconds=time.perf_counter() - begin)


def explain_plant(plant: Plant, models: Sequence[RealModel], settings: Settings, folder: Path) -> Record:
    """Plant a cause in the first model that it fits and explain that; else ask its detector about the tests' plant."""
    model, notes = first_fitting(plant, models)
    if model is None:
        return detect(plant, notes if plant.infect is not None else "no edit of a float model plants it")
    standard, variant = (
        build(model, [plant], present, folder / f"{name}.onnx")
        for name, present in (("standard", ()), ("variant", (plant.id,)))
    )
    explanation = pipeline.explain(settings.case(standard.variant, variant.variant, workload_of(model, [plant])))
    comparison = explanation.comparison
    loss = comparison.accuracy_change
    gap = Cost(comparison.gap_ms.estimate, comparison.gap_ms.estimate)
    points = None if loss is None else Cost(-loss.estimate, -loss.estimate)
    planted = planted_of(plant, variant.places, explanation, gap, points)
    return explained(explanation, "plants", model.name, [plant], [planted])


def explain_combo(plants: Sequence[Plant], model: RealModel, settings: Settings, folder: Path) -> Record:
    """Plant several causes and explain that; then measure what each costs without asking unlag."""
    builds = build_all(model, plants, folder)
    case = settings.case(builds[CLEAN].variant, builds[ALL].variant, workload_of(model, plants))
    explanation = pipeline.explain(case)
    times_ms, points = measure_builds(case, builds, plants)
    planted = [
        planted_of(
            plant,
            builds[ALL].places,
            explanation,
            planted_cost(times_ms, plant.id),
            planted_cost({name: -value for name, value in points.items()}, plant.id) if points else None,
        )
        for plant in plants
    ]
    return explained(explanation, "combos", model.name, plants, planted)


def workload_of(model: RealModel, plants: Sequence[Plant]) -> str:
    """A scored workload where accuracy is at stake and the model has one."""
    at_stake = any("accuracy" in plant.affects for plant in plants)
    return model.labeled if at_stake and model.labeled else model.workload


def only(name: str) -> str:
    """The build with one cause."""
    return f"only {name}"


def without(name: str) -> str:
    """The build with all causes but one."""
    return f"without {name}"


def build_all(model: RealModel, plants: Sequence[Plant], folder: Path) -> dict[str, Built]:
    """The clean model, the one with all causes, with each alone, and with all but each.

    Of two causes, all but one is the other alone: such builds are made once.
    """
    ids = frozenset(plant.id for plant in plants)
    sets = {CLEAN: frozenset[str](), ALL: ids}
    sets |= {only(name): frozenset({name}) for name in sorted(ids)}
    sets |= {without(name): ids - {name} for name in sorted(ids)}
    made: dict[frozenset[str], Built] = {}
    for number, present in enumerate(dict.fromkeys(sets.values())):
        made[present] = build(model, plants, present, folder / f"build{number}.onnx")
    return {name: made[present] for name, present in sets.items()}


def measure_builds(
    case: Case, builds: Mapping[str, Built], plants: Sequence[Plant]
) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of every build over the clean one, all timed in one contest; and points, where they are scored."""
    bench = open_bench(case, first_shape(case))
    names = {built.variant.path: name for name, built in list(builds.items())[::-1]}
    contenders = {name: builds[name].variant for name in names.values()}
    scored: dict[str, float] = {}
    with bench.contest(contenders, quick(bench.protocol, case.rounds)) as contest:
        result = contest.measure()
        evaluation = bench.workload.evaluation
        if evaluation is not None and any("accuracy" in plant.affects for plant in plants):
            clean = score(contest, CLEAN, evaluation)
            scored = {name: score(contest, name, evaluation, clean.rows).value for name in contenders}
    clean_ms = result.medians_ms(CLEAN)
    over_ms = {name: float(np.median(result.medians_ms(name) - clean_ms)) for name in contenders}
    same = {name: names[built.variant.path] for name, built in builds.items()}
    return (
        {name: over_ms[timed] for name, timed in same.items()},
        {name: scored[timed] for name, timed in same.items()} if scored else {},
    )


def planted_cost(values: Mapping[str, float], name: str) -> Cost:
    """What a cause adds to the clean model, and to the one that has all the others; ``values`` grow with cost."""
    return Cost(first=values[only(name)] - values[CLEAN], last=values[ALL] - values[without(name)])


def planted_of(
    plant: Plant, places: Mapping[str, int], explanation: Explanation, cost: Cost, points: Cost | None
) -> Planted:
    """What an explanation says of a planted cause, beside what it costs."""
    report = next(report for report in explanation.causes if report.id == plant.id)
    proven = [r.id for r in explanation.causes if r.status == "proven"]
    return Planted(
        id=plant.id,
        places=places[plant.id],
        status=report.status,
        reason=report.reason,
        rank=proven.index(plant.id) + 1 if plant.id in proven else None,
        planted_ms=cost if "speed" in plant.affects else None,
        measured_ms=report.cost_ms.estimate if report.cost_ms else None,
        planted_points=points if "accuracy" in plant.affects else None,
        measured_points=report.accuracy_cost.estimate if report.accuracy_cost else None,
    )


def explained(
    explanation: Explanation, job: Job, model: str, plants: Sequence[Plant], planted: Sequence[Planted]
) -> Explained:
    """The record of an explained model."""
    comparison, ids = explanation.comparison, {plant.id for plant in plants}
    expected = frozenset[str]().union(*(plant.consequences for plant in plants))
    strangers = [report for report in explanation.causes if report.id not in ids]
    return Explained(
        key="",
        job=job,
        model=model,
        planted=tuple(planted),
        speed=comparison.verdict.speed,
        accuracy=comparison.verdict.accuracy,
        standard_ms=comparison.standard.latency_ms.median,
        gap_ms=comparison.gap_ms.estimate,
        noise=noise_of(comparison),
        unexplained_share=unexplained_share(explanation),
        others=tuple(
            Other(report.id, share_of(report, explanation), report.id in expected, report.reason)
            for report in strangers
            if report.status == "proven"
        ),
        suspected=tuple(report.id for report in strangers if report.status == "suspected"),
        cosine=comparison.agreement.cosine if comparison.agreement else None,
        rounds=comparison.rounds,
        disturbed_rounds=comparison.disturbed_rounds,
    )


def noise_of(comparison: Comparison) -> Noise:
    """What a planted cost has to exceed to be told from nothing."""
    change = comparison.accuracy_change
    return Noise(
        noise_ms(comparison), max(SMALLEST_POINTS, change.high - change.estimate) if change else SMALLEST_POINTS
    )


def share_of(report: CauseReport, explanation: Explanation) -> float:
    """How much of the gap, or of the loss, a cause is said to make; of noise, where there is no gap."""
    comparison = explanation.comparison
    shares = [0.0]
    if report.cost_ms is not None:
        shares.append(report.cost_ms.estimate / max(abs(comparison.gap_ms.estimate), noise_ms(comparison)))
    if report.accuracy_cost is not None and comparison.accuracy_change is not None:
        shares.append(report.accuracy_cost.estimate / max(abs(comparison.accuracy_change.estimate), SMALLEST_POINTS))
    return max(shares)


def unexplained_share(explanation: Explanation) -> float | None:
    """What stays unexplained of the gap in time; nothing where the variant is not slower than noise allows."""
    parts, comparison = explanation.reconciliation, explanation.comparison
    if parts is None or comparison.gap_ms.estimate <= noise_ms(comparison):
        return None
    return parts.unexplained_ms.estimate / comparison.gap_ms.estimate


def detect(plant: Plant, note: str) -> Detected:
    """Ask a cause's detector about the tests' own plant, recorded profiles and all."""
    cause = next(cause for cause in find_causes() if cause.id == plant.id)
    finding = diagnose(gather_evidence(plant.pair()), cause)
    found = finding.status == "found"
    return Detected(key="", job="plants", cause=plant.id, found=found, reason=finding.reason, note=note)


def explain_twin(plant: Plant, settings: Settings, folder: Path) -> Healthy:
    """Explain a healthy pair; where it rests on a machine or on times that are made up, only diagnose it."""
    pair = plant.twin()
    obstacle = not_measurable(pair)
    if obstacle:
        evidence = gather_evidence(pair)
        answers = [(cause.id, diagnose(evidence, cause)) for cause in find_causes()]
        alarms = tuple(Alarm(name, a.status, a.reason) for name, a in answers if a.status in {"found", "failed"})
        return Healthy(key="", job="twins", alarms=alarms, measured=False, note=obstacle)
    feed = tiny_feed() if pair.feed is None else pair.feed
    workload = write_feed(folder / "twin.npz", feed)
    sides = []
    for name, model, options in (
        ("standard", pair.standard, pair.standard_options),
        ("variant", pair.variant, pair.variant_options),
    ):
        onnx.save(model, folder / f"{name}.onnx")
        sides.append(Variant("onnxruntime", str(folder / f"{name}.onnx"), options))
    case = settings.case(sides[0], sides[1], workload)
    case = msgspec.structs.replace(case, rounds=TWIN_ROUNDS, max_rounds=2 * TWIN_ROUNDS)
    return healthy(pipeline.explain(case), "twins")


def explain_same(model: RealModel, settings: Settings) -> Healthy:
    """A model against itself."""
    same = Variant("onnxruntime", str(model.path))
    return healthy(pipeline.explain(settings.case(same, same, model.workload)), "aa")


def healthy(explanation: Explanation, job: Job) -> Healthy:
    """Whatever is proven or suspected in a healthy pair is a false alarm; so is a detector that raises."""
    wrong = {"proven", "suspected", "failed"}
    alarms = tuple(Alarm(r.id, r.status, r.reason) for r in explanation.causes if r.status in wrong)
    return Healthy(key="", job=job, alarms=alarms, measured=True)


def not_measurable(pair: Pair) -> str:
    """Why a pair can't be explained on this machine; empty where it can."""
    if not all(isinstance(p, Missing) for p in (pair.standard_profile, pair.variant_profile)):
        return "its profiles are recorded"
    if pair.claim is not None or Times() not in {pair.standard_times, pair.variant_times}:
        return "its times are made up"
    if {"cpu"} != {options.get("provider", "cpu") for options in (pair.standard_options, pair.variant_options)}:
        return "it needs a device"
    isa = read_host().cpu.isa
    lacking = set(pair.isa) - (set[str]() if isinstance(isa, Missing) else set(isa))
    if not any(uses_float16(model) for model in (pair.standard, pair.variant)):
        lacking.discard(FLOAT16_ISA)
    return f"it is healthy on a CPU with {', '.join(sorted(lacking))}" if lacking else ""


def uses_float16(model: onnx.ModelProto) -> bool:
    """Whether the model holds or makes float16 tensors."""
    stored = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
    made = any(
        attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT16
        for node in model.graph.node
        for attribute in node.attribute
    )
    return stored or made


def works_together(plants: Sequence[Plant], model: RealModel, settings: Settings, folder: Path) -> bool:
    """Whether these can be planted one after the other, and the model still gives numbers."""
    ids = [plant.id for plant in plants]
    try:
        built = build(model, plants, ids, folder / "tried.onnx")
        if not all(built.places.get(name) for name in ids):
            return False
        case = settings.case(built.variant, built.variant, model.workload)
        bench = open_bench(case, first_shape(case))
        outputs = find_runtime("onnxruntime").open(built.variant, bench.threads).run(bench.workload.feed)
    except Exception:  # noqa: BLE001 - whatever is in the way, these two don't go together
        return False
    return all(np.isfinite(array).all() for array in outputs.values() if array.dtype.kind == "f")
