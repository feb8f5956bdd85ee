"""Both sides' graphs, ready for look-ups."""

from __future__ import annotations

from unlag.errors import Missing
from unlag.model.facts import GraphFacts, GraphIndex
from unlag.observe.evidence import Evidence


def file_graphs(evidence: Evidence) -> tuple[GraphIndex, GraphIndex]:
    """The standard's and the variant's graph as their files have it; for causes that need both."""
    return _index(evidence.standard.graph), _index(evidence.variant.graph)


def executed_graphs(evidence: Evidence) -> tuple[GraphIndex, GraphIndex]:
    """The standard's and the variant's graph as the runtime runs it; for causes that need both."""
    return _index(evidence.standard.executed), _index(evidence.variant.executed)


def _index(facts: GraphFacts | Missing) -> GraphIndex:
    if isinstance(facts, Missing):
        raise TypeError(f"the graph is missing ({facts.reason}): the cause must name it in its needs")
    return GraphIndex(facts)
