"""Threads, spinning, memory and passes: what the options mean beside the bench's threads and the machine's cores."""

from __future__ import annotations

import msgspec
import pytest

from planting import editable, gather_evidence, tiny_bert
from unlag.causes.contract import Finding, diagnose, find_causes
from unlag.errors import Missing
from unlag.model.draft import OnnxDraft
from unlag.model.variant import Variant
from unlag.observe.evidence import Evidence, Side
from zoo import disabled_passes, other_session_settings

CAUSES = {cause.id: cause for cause in find_causes()}


def remedy_on(cause: str, ours: dict[str, str], theirs: dict[str, str], now: dict[str, str] | None = None):
    model = editable(tiny_bert())
    draft = OnnxDraft(
        Variant("onnxruntime", "model.onnx", ours), model, model, dict(ours if now is None else now), theirs
    )
    return draft, CAUSES[cause].remedies[0].apply


@pytest.fixture(scope="module")
def alike() -> Evidence:
    return gather_evidence(disabled_passes.twin()._replace(variant_options={}))


def ask(evidence: Evidence, cause: str, ours: dict[str, str], theirs: dict[str, str], **facts: int) -> Finding:
    """The answer for these options, with ``threads`` of the bench and usable ``cores``."""
    cores = tuple(range(facts.get("cores", 2)))
    allowance = msgspec.structs.replace(evidence.host.allowance, affinity=cores, quota_cores="unlimited")
    changed = msgspec.structs.replace(
        evidence,
        host=msgspec.structs.replace(evidence.host, allowance=allowance),
        threads=facts.get("threads", 2),
        standard=with_options(evidence.standard, theirs),
        variant=with_options(evidence.variant, ours),
    )
    return diagnose(changed, CAUSES[cause])


def with_options(side: Side, options: dict[str, str]) -> Side:
    return msgspec.structs.replace(side, variant=msgspec.structs.replace(side.variant, options=options))


@pytest.mark.parametrize(
    ("ours", "theirs", "cores", "status"),
    [
        ({"threads": "1"}, {}, 2, "found"),
        ({"threads": "1"}, {}, 1, "ruled_out"),
        ({"threads": "8"}, {}, 4, "found"),
        ({"threads": "4"}, {}, 4, "ruled_out"),
        ({"threads": "8"}, {"threads": "8"}, 2, "ruled_out"),
        ({"threads": "2"}, {}, 2, "ruled_out"),
        ({}, {"threads": "4"}, 4, "found"),
        ({"execution": "parallel"}, {}, 2, "found"),
        ({"execution": "sequential"}, {}, 2, "ruled_out"),
        ({"execution": "parallel", "inter_threads": "2"}, {"execution": "parallel", "inter_threads": "1"}, 2, "found"),
        ({"config.session.intra_op_thread_affinities": "1"}, {}, 2, "found"),
    ],
)
def test_thread_counts(alike, ours, theirs, cores, status):
    assert ask(alike, "thread_count", ours, theirs, cores=cores).status == status


def test_an_unknown_number_of_threads_is_not_checked(alike):
    assert ask(alike, "thread_count", {"threads": "1"}, {}, threads=0).status == "not_checked"


@pytest.mark.parametrize(
    ("ours", "theirs", "status"),
    [
        ({"config.session.intra_op.allow_spinning": "0"}, {}, "found"),
        ({"config.session.force_spinning_stop": "1"}, {}, "found"),
        ({"config.session.intra_op.spin_duration_us": "10"}, {}, "found"),
        ({"config.session.intra_op.spin_duration_us": "10"}, {"spinning": "off"}, "ruled_out"),
        ({"spinning": "on"}, {}, "ruled_out"),
        ({}, {"spinning": "off"}, "ruled_out"),
    ],
)
def test_sleeping_threads(alike, ours, theirs, status):
    assert ask(alike, "sleeping_threads", ours, theirs).status == status


@pytest.mark.parametrize(
    ("ours", "theirs", "status"),
    [
        ({"config.session.disable_prepacking": "1"}, {}, "found"),
        ({"config.session.disable_prepacking": "0"}, {}, "ruled_out"),
        ({"arena": "on"}, {"arena": "off"}, "ruled_out"),
    ],
)
def test_memory_settings(alike, ours, theirs, status):
    assert ask(alike, "memory_arena", ours, theirs).status == status


def test_one_option_belongs_to_one_cause():
    options = {"threads": "1", "spinning": "off", "arena": "off", "disable": "NchwcTransformer", "config.some.key": "1"}
    pair = disabled_passes.plant()
    evidence = gather_evidence(pair._replace(variant_options=options, standard_options={"threads": "2"}))
    assert diagnose(evidence, CAUSES["other_session_settings"]).where == ("config.some.key",)
    assert diagnose(evidence, CAUSES["memory_arena"]).where == ("arena",)
    assert diagnose(evidence, CAUSES["disabled_passes"]).where == ("NchwcTransformer",)


def test_passes_that_another_remedy_switched_off_stay_off():
    draft, enable = remedy_on("disabled_passes", {"disable": "A+B"}, {"disable": "B"}, {"disable": "A+B+C"})
    assert enable(draft) == 1
    assert draft.options == {"disable": "B+C"}
    assert enable(draft) == 0


def test_all_passes_are_switched_on_again():
    draft, enable = remedy_on("disabled_passes", {"disable": "A", "config.session.disable_quant_qdq": "1"}, {})
    assert enable(draft) == 2
    assert draft.options == {}


def test_passes_are_found_where_the_executed_graph_can_not_be_read():
    evidence = gather_evidence(disabled_passes.plant())
    blind = msgspec.structs.replace(evidence.variant, executed=Missing("gone"))
    finding = diagnose(msgspec.structs.replace(evidence, variant=blind), CAUSES["disabled_passes"])
    assert finding.status == "found"
    assert "unknown number" in finding.reason


def test_other_settings_are_adopted():
    ours, theirs = {**other_session_settings.FORCED, "threads": "1"}, {"config.some.key": "2"}
    draft, adopt = remedy_on("other_session_settings", ours, theirs)
    assert adopt(draft) == 2
    assert draft.options == {"threads": "1", "config.some.key": "2"}
    assert adopt(draft) == 0
