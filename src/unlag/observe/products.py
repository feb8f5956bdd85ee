"""Matrix products of a profile, each with what quantization adds to it, beside the standard's of the same size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec

from unlag.errors import Missing
from unlag.model.facts import GraphIndex, Node
from unlag.observe.evidence import Evidence, Side
from unlag.observe.kinds import SHORTEST_MS
from unlag.runtimes.contract import Operator, Profile

FLOAT_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "TransposeMatMul"})
DYNAMIC_PRODUCTS = frozenset({"MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"})
STATIC_PRODUCTS = frozenset({"QLinearMatMul", "QGemm"})
BLOCK_PRODUCTS = frozenset({"MatMulNBits"})
_PRODUCTS = FLOAT_PRODUCTS | DYNAMIC_PRODUCTS | STATIC_PRODUCTS | BLOCK_PRODUCTS


class Product(msgspec.Struct, frozen=True):
    """One matrix product as it ran: ``rows`` × ``k`` by ``k`` × ``n``."""

    name: str
    op_type: str
    rows: int
    k: int
    n: int
    own_ms: float
    added_ms: float
    """Of its activation's quantization (its share, where several products read it) and of the scaling behind it."""
    node: Node | None
    """In the executed graph; nothing where no node has the operator's name."""

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, inputs and outputs."""
        return self.rows, self.k, self.n

    @property
    def time_ms(self) -> float:
        """Its own time, and what quantization adds."""
        return self.own_ms + self.added_ms


class Race(msgspec.Struct, frozen=True):
    """Products of the variant beside the standard's float ones of the same size."""

    products: tuple[Product, ...]
    ours_ms: float
    standard_ms: float
    run_ms: float
    """Of the variant's whole run."""

    @property
    def ratio(self) -> float:
        """Our time over the standard's."""
        return self.ours_ms / self.standard_ms if self.standard_ms > 0 else math.inf

    @property
    def excess_share(self) -> float:
        """What they take longer, as a share of the variant's run."""
        return (self.ours_ms - self.standard_ms) / self.run_ms if self.run_ms > 0 else 0.0

    def words(self) -> str:
        """Both times, for a reason."""
        return f"{self.ours_ms:.3g} ms a run, the standard's float products of these sizes {self.standard_ms:.3g} ms"


def race_products(
    evidence: Evidence,
    index: GraphIndex,
    wanted: Callable[[Product], bool],
    time_ms: Callable[[Product], float] = lambda product: product.time_ms,
) -> Race | None:
    """Race the variant's wanted products with the standard's float ones; without partners they are left out.

    Nothing where a side has no profile, or no wanted product has a partner that takes long enough to be compared with.
    """
    ours, theirs = evidence.variant.profile, evidence.standard.profile
    if isinstance(ours, Missing) or isinstance(theirs, Missing):
        return None
    partners = _mean_times(p for p in products_of(theirs, None) if p.op_type in FLOAT_PRODUCTS)
    matched = [p for p in products_of(ours, index) if wanted(p) and partners.get(p.size, 0.0) >= SHORTEST_MS]
    if not matched:
        return None
    ours_ms = sum(time_ms(p) for p in matched)
    return Race(tuple(matched), ours_ms, sum(partners[p.size] for p in matched), ours.run_ms)


def products_of(profile: Profile, index: GraphIndex | None) -> list[Product]:
    """Every matrix product of a profile; ``index`` is of the graph that ran, for what quantization adds."""
    nodes = {} if index is None else {n.name: n for n in index.facts.nodes if n.name}
    times = {operator.name: operator.time_ms for operator in profile.operators}
    found = []
    for operator in profile.operators:
        size = _size(operator)
        if operator.op_type not in _PRODUCTS or size is None:
            continue
        node = nodes.get(operator.name)
        added_ms = 0.0 if node is None or index is None else _added_ms(index, node, times)
        found.append(Product(operator.name, operator.op_type, *size, operator.time_ms, added_ms, node))
    return found


def _size(operator: Operator) -> tuple[int, int, int] | None:
    """Rows, inputs and outputs, from the shapes of the left factor and of the result."""
    if not operator.input_shapes or not operator.output_shapes or not operator.output_shapes[0]:
        return None
    result = operator.output_shapes[0]
    rows = math.prod(result[:-1])
    return (rows, math.prod(operator.input_shapes[0]) // rows, result[-1]) if rows else None


def _mean_times(products: Iterable[Product]) -> dict[tuple[int, int, int], float]:
    times: dict[tuple[int, int, int], list[float]] = {}
    for product in products:
        times.setdefault(product.size, []).append(product.own_ms)
    return {size: sum(found) / len(found) for size, found in times.items()}


def _added_ms(index: GraphIndex, node: Node, times: dict[str, float]) -> float:
    total_ms = 0.0
    for name in node.inputs:
        maker = index.producer(name)
        if maker is not None and maker.op_type == "DynamicQuantizeLinear" and name == maker.outputs[0]:
            total_ms += times.get(maker.name, 0.0) / max(1, len(index.consumers.get(name, [])))
    return total_ms + sum(times.get(after.name, 0.0) for after in scaling_behind(index, node))


def scaling_behind(index: GraphIndex, node: Node) -> list[Node]:
    """The Cast and the Mul that turn 32-bit sums into floats, with the Mul of the two scales."""
    if node.op_type not in {"MatMulInteger", "ConvInteger"}:
        return []
    casts = [n for n in index.consumers.get(node.outputs[0], []) if n.op_type == "Cast"]
    scalings = [n for cast in casts for n in index.consumers.get(cast.outputs[0], []) if n.op_type == "Mul"]
    makers = [index.producer(name) for scaling in scalings for name in scaling.inputs]
    return [*casts, *scalings, *(m for m in makers if m is not None and m.op_type == "Mul")]


def profile_of(side: Side) -> Profile:
    """The profile of a side, for causes that need one.

    Raises:
        TypeError: there is none, and the cause did not name it in its needs.
    """
    if isinstance(side.profile, Missing):
        raise TypeError(f"the profile is missing ({side.profile.reason}): the cause must name it in its needs")
    return side.profile
