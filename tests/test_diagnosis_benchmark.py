"""The benchmark of the hit rate counts rightly: its numbers, its combinations, and what it does where a case raises."""

from __future__ import annotations

import msgspec
import onnx
import pytest
from benchmarks.diagnosis.cases import Task, build_all, explained, planted_cost, planted_of, run_task
from benchmarks.diagnosis.models import RealModel
from benchmarks.diagnosis.plants import Plant, are_apart, choose_combos, options_agree, read_zoo
from benchmarks.diagnosis.records import (
    Alarm,
    Cost,
    Detected,
    Explained,
    Failure,
    Healthy,
    Noise,
    Other,
    Planted,
    Run,
    read_run,
    write_run,
)
from benchmarks.diagnosis.summary import Hits, markdown_of, row_of, summarize

from planting import tiny_bert
from report import records
from unlag.errors import UsageError
from unlag.model.graph import read_model

NOISE = Noise(time_ms=0.2, points=0.3)


def planted(name: str = "slow", rank: int | None = 1, **changed) -> Planted:
    fields = {
        "id": name,
        "places": 3,
        "status": "proven" if rank else "ruled_out",
        "reason": "3 of them",
        "rank": rank,
        "planted_ms": Cost(2.0, 2.0),
        "measured_ms": 1.8,
    }
    return Planted(**(fields | changed))


def case(*causes: Planted, job: str = "plants", others: tuple[Other, ...] = (), key: str = "plants/slow") -> Explained:
    return Explained(
        key=key,
        job=job,
        model="bert",
        planted=causes,
        speed="slower",
        accuracy="not_measured",
        standard_ms=20.0,
        gap_ms=2.0,
        noise=NOISE,
        unexplained_share=0.1,
        others=others,
        suspected=(),
        cosine=1.0,
        rounds=5,
        disturbed_rounds=0,
        seconds=60.0,
    )


def plant(name: str, **fields) -> Plant:
    return Plant(name, frozenset({"speed"}), _never, _never, **fields)


def _never():
    raise AssertionError("not asked for here")


@pytest.mark.parametrize(("rank", "hits"), [(1, 1), (2, 1), (3, 0), (None, 0)])
def test_a_hit_is_proven_as_first_or_second_cause(rank, hits):
    assert summarize([case(planted(rank=rank))]).hits == Hits(hits, 1)


@pytest.mark.parametrize("status", ["suspected", "not_checked", "failed", "ruled_out"])
def test_what_is_not_proven_is_no_hit_whatever_was_measured(status):
    summary = summarize([case(planted(rank=None, status=status)), case(planted(status=status), job="combos")])
    assert summary.hits == Hits(0, 1)
    assert summary.combo_hits == Hits(0, 1)
    assert summary.cost_error is None


def test_a_cause_that_costs_nothing_here_is_told_apart():
    free = planted("free", rank=None, planted_ms=Cost(1.0, NOISE.time_ms / 2))
    missed = planted("missed", rank=None)
    summary = summarize([case(planted()), case(free), case(missed)])
    assert summary.hits == Hits(1, 3)
    assert summary.hits_costing == Hits(1, 2)


def test_a_cause_that_costs_only_points_is_one_that_costs():
    rounded = planted(planted_ms=None, measured_ms=None, planted_points=Cost(0.4, 0.4), measured_points=0.3)
    assert rounded.costs(NOISE)
    assert rounded.cost_error(NOISE) is None
    assert not msgspec.structs.replace(rounded, planted_points=Cost(0.4, 0.2)).costs(NOISE)


def test_the_cost_error_is_relative_to_the_planted_cost_but_not_to_less_than_noise():
    assert planted(planted_ms=Cost(1.0, 3.0), measured_ms=1.5).cost_error(NOISE) == pytest.approx(0.25)
    assert planted(planted_ms=Cost(0.1, 0.1), measured_ms=0.2).cost_error(NOISE) == pytest.approx(0.5)
    errors = [planted(measured_ms=value) for value in (1.8, 1.0, 2.0)]
    assert summarize([case(one) for one in errors]).cost_error == pytest.approx(0.1)


def test_false_alarms_are_dear_and_not_declared():
    others = (
        Other("alarm", 0.2, consequence=False, reason=""),
        Other("cheap", 0.04, consequence=False, reason=""),
        Other("declared", 0.9, consequence=True, reason=""),
    )
    summary = summarize([case(planted(), others=others), case(planted(), job="combos", others=others)])
    assert (summary.plant_alarms, summary.combo_alarms) == (1, 1)


def test_combinations_are_whole_where_nothing_that_costs_was_missed():
    free = planted("free", rank=None, planted_ms=Cost(2.0, 0.0))
    found = case(planted("a"), planted("b", rank=4), free, job="combos")
    missed = case(planted("a"), planted("b", rank=None), job="combos")
    summary = summarize([found, missed])
    assert summary.combo_hits == Hits(3, 5)
    assert summary.combo_hits_costing == Hits(3, 4)
    assert summary.combos_whole == Hits(1, 2)


def test_healthy_pairs_and_detectors_are_counted_apart():
    alarm = (Alarm("x", "suspected", "1 of them"),)
    summary = summarize(
        [
            Healthy(key="twins/a", job="twins", alarms=alarm, measured=True),
            Healthy(key="twins/b", job="twins", alarms=(), measured=True),
            Healthy(key="twins/c", job="twins", alarms=(), measured=False),
            Healthy(key="aa/bert", job="aa", alarms=(), measured=True),
            Detected(key="plants/d", job="plants", cause="d", found=False, reason="", note=""),
        ]
    )
    assert summary.twins_measured == Hits(1, 2)
    assert summary.twins_diagnosed == Hits(1, 1)
    assert summary.same == Hits(1, 1)
    assert summary.detected == Hits(0, 1)
    assert summary.hits == Hits(0, 0)


@pytest.mark.parametrize(
    ("error", "message"), [(UsageError("no such file"), "no such file"), (KeyError("x"), "KeyError: 'x'")]
)
def test_a_case_that_raises_is_a_failure(error, message, tmp_path):
    def raising(_folder):
        raise error

    record = run_task(Task("plants/x", "plants", raising), tmp_path)
    assert isinstance(record, Failure)
    assert (record.key, record.message) == ("plants/x", message)
    assert summarize([record]).failures == 1
    assert summarize([record]).hits == Hits(0, 0)


def test_only_failed_cases_are_run_again(tmp_path):
    run = Run(host="a machine", runtime="a runtime", seed=0, rounds=5)
    run = run.with_record(case(planted())).with_record(Failure(key="plants/x", job="plants", message="broken"))
    write_run(run, tmp_path / "run.json")
    again = read_run(tmp_path / "run.json")
    assert again == run
    assert again.done() == {"plants/slow"}
    mended = again.with_record(case(planted(), key="plants/x"))
    assert [record.key for record in mended.records] == ["plants/slow", "plants/x"]
    assert mended.done() == {"plants/slow", "plants/x"}


def test_combinations_are_drawn_by_seed_in_turn_of_two_and_three():
    plants = [plant(name) for name in "abcdef"]
    sets = [[p.id for p in chosen] for chosen in choose_combos(plants, lambda _: True, 6, 7)]
    assert [len(chosen) for chosen in sets] == [2, 3, 2, 3, 2, 3]
    assert len({frozenset(chosen) for chosen in sets}) == 6
    assert sets == [[p.id for p in chosen] for chosen in choose_combos(plants, lambda _: True, 6, 7)]
    assert sets != [[p.id for p in chosen] for chosen in choose_combos(plants, lambda _: True, 6, 8)]


def test_combinations_that_do_not_go_together_are_not_drawn():
    plants = [
        plant("a", variant_options={"optimization": "off"}),
        plant("b", standard_options={"optimization": "all"}),
        plant("c", consequences=frozenset({"a"})),
        plant("d"),
        plant("e"),
    ]
    asked = []

    def works(some):
        asked.append(some)
        return "e" not in {p.id for p in some}

    sets = {frozenset(p.id for p in chosen) for chosen in choose_combos(plants, works, 99, 0)}
    assert sets == {frozenset(text) for text in ("ad", "bc", "bd", "cd", "bcd")}
    assert all(options_agree(some) and are_apart(some) for some in asked)


def test_builds_hold_what_they_are_named_after(tmp_path):
    onnx.save(tiny_bert(), tmp_path / "bert.onnx")
    model = RealModel("bert", tmp_path / "bert.onnx", "random")
    plants = [
        plant("first", infect=_marking("first"), variant_options={"threads": "1"}),
        plant("second", infect=_marking("second"), standardize=_marking("instead")),
        plant("third", infect=_marking("third"), standard_options={"arena": "off"}),
    ]
    builds = build_all(model, plants, tmp_path)
    marks = {name: set(read_model(tmp_path / b.variant.path).metadata_props) for name, b in builds.items()}
    assert marks["clean"] == {"instead"}
    assert marks["all"] == {"first", "second", "third"}
    assert marks["only second"] == {"second"}
    assert marks["without second"] == {"first", "third", "instead"}
    assert builds["clean"].variant.options == {"arena": "off"}
    assert builds["only first"].variant.options == {"arena": "off", "threads": "1"}
    pair = build_all(model, plants[:2], tmp_path)
    assert pair["only first"] is pair["without second"]


def _marking(name):
    def mark(model):
        model.metadata_props[name] = "1"
        return 1

    return mark


def test_planted_costs_are_alone_and_last():
    times = {"clean": 0.0, "all": 5.0, "only a": 2.0, "without a": 4.0, "only b": 4.0, "without b": 2.0}
    assert planted_cost(times, "a") == Cost(first=2.0, last=1.0)
    assert planted_cost(times, "b").mean == pytest.approx(3.5)


def test_an_explanation_becomes_a_record():
    explanation = records.explanation()
    proven = [report for report in explanation.causes if report.status == "proven"]
    assert len(proven) > 1
    second = plant(proven[1].id)
    made = planted_of(second, {second.id: 4}, explanation, Cost(3.0, 3.0), Cost(1.0, 1.0))
    assert (made.rank, made.places, made.status) == (2, 4, "proven")
    assert made.planted_points is None
    record = explained(explanation, "plants", "bert", [second], [made])
    assert {other.id for other in record.others} == {report.id for report in proven} - {second.id}
    assert all(other.alarm == (other.share > 0.05) for other in record.others)
    first = plant(proven[1].id, consequences=frozenset({proven[0].id}))
    declared = explained(explanation, "plants", "bert", [first], [made])
    assert {other.id for other in declared.others if other.consequence} == {proven[0].id}


def test_every_file_of_the_zoo_can_be_planted_from():
    plants, broken = read_zoo()
    assert broken == {}
    assert all(callable(one.infect) or one.infect is None for one in plants)
    assert any(one.infect for one in plants)


def test_the_page_has_a_row_for_every_case():
    rows = [
        case(planted("a|b")),
        case(planted("x"), planted("y", rank=None), job="combos", key="combos/bert/x+y"),
        Failure(key="plants/z", job="plants", message="broken\nin two lines"),
        Healthy(key="aa/cnn", job="aa", alarms=(Alarm("q", "proven", "1"),), measured=True),
        Detected(key="plants/d", job="plants", cause="d", found=True, reason="", note="recorded"),
    ]
    page = markdown_of(Run(host="h", runtime="r", seed=0, rounds=5, records=tuple(rows)), ["lonely"])
    for text in ("a\\|b", "x + y", "broken in two lines", "q (proven: 1)", "recorded", "lonely"):
        assert text in page
    tables = [line.count(" | ") for line in page.splitlines() if line.startswith("|")]
    assert len(tables) == 2 * 5 + 6
    assert all(row_of(record).startswith(record.key) for record in rows)
