"""Which core is beside which, so that replicas of a model get cores of their own that belong together."""

from __future__ import annotations

from collections.abc import Sequence

from unlag.errors import Missing
from unlag.measure.host_facts import Cpu
from unlag.measure.host_files import Sources, parse_core_list, read_text

LEAST_STEP = 1.9
"""From one number of replicas to the next: what lies between 8 and 16 would tell nothing that is worth the time."""


def read_nodes(sources: Sources | None = None) -> tuple[tuple[int, ...], ...]:
    """The logical cores of each NUMA node that has some; nothing where the system doesn't tell."""
    sources = sources or Sources()
    if not sources.is_linux:
        return ()
    folders = sorted((sources.sys / "devices/system/node").glob("node[0-9]*"), key=lambda f: int(f.name[4:]))
    lists = [read_text(folder / "cpulist") for folder in folders]
    nodes = [parse_core_list(text) for text in lists if not isinstance(text, Missing)]
    return tuple(node for node in nodes if node)


def neighbors_together(
    cores: Sequence[int], nodes: Sequence[Sequence[int]], siblings: Sequence[Sequence[int]] | Missing
) -> tuple[int, ...]:
    """The cores in an order in which those of one node, and in it those of one physical core, follow each other."""
    node_of = {core: number for number, node in enumerate(nodes) for core in node}
    groups = () if isinstance(siblings, Missing) else siblings
    first_of = {core: min(group) for group in groups for core in group}
    return tuple(sorted(cores, key=lambda core: (node_of.get(core, 0), first_of.get(core, core), core)))


def core_order(cores: Sequence[int], cpu: Cpu) -> tuple[int, ...]:
    """The cores of this machine with neighbors together."""
    return neighbors_together(cores, read_nodes(), cpu.siblings)


def shares(cores: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """The cores in ``count`` equal parts without overlap; what is left over stays idle."""
    size = len(cores) // count
    return tuple(tuple(cores[part * size : (part + 1) * size]) for part in range(count))


def replicas_to_try(cores: int) -> tuple[int, ...]:
    """Numbers of replicas that share the cores out evenly: one, all, and between them about each doubling."""
    tried = [1]
    for count in range(2, cores + 1):
        if cores % count == 0 and (count == cores or count >= LEAST_STEP * tried[-1]):
            tried.append(count)
    return tuple(tried)
