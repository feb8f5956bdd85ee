"""Which whole models are worth measuring, told from what was measured of single layers. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from unlag.stages.fixed import Rejected
from unlag.stages.goal import Goal
from unlag.stages.layer_facts import SAME_KERNEL, LayerFacts
from unlag.stages.layers import Layer
from unlag.stages.quantize import Schemes, scheme_of
from unlag.stages.schemes import PRECISIONS, SCHEMES, Family, Kind, Precision

NEAR = 1.6
"""Layers of a scheme may take so much longer than in the fastest one, and their whole model still be tried: fusions
around them, caches and other work on the machine change more than that."""

GAINING = 0.97
"""Share of float32's time below which a scheme's layers are expected to gain something."""

BETTER = 0.93
"""Share of a time below which another one is clearly shorter."""

MORE_EXACT = 0.95
"""Share of an error below which another one is clearly smaller."""

UNALIKE = 2.0
"""Errors so many times those of a scheme that is about as fast are not worth a whole model."""


class Choice(msgspec.Struct, frozen=True):
    """Schemes for all layers: one for most, and others by name."""

    precision: Precision
    layers: dict[str, Precision] = {}


def promising(facts: LayerFacts, goal: Goal) -> list[Precision]:
    """Schemes whose errors have to be known: those whose layers are about as fast as the fastest, or small."""
    gaining = _gaining(facts)
    near = [name for name in gaining if facts.total_ms(name) <= NEAR * facts.total_ms(gaining[0])]
    return list(dict.fromkeys([*near, *(_small(facts) if goal.objective == "size" else [])]))


def _gaining(facts: LayerFacts) -> list[Precision]:
    """Schemes whose layers take clearly less time than float32 ones, the fastest first."""
    if "float32" not in facts.times_ms:
        return []
    limit_ms = facts.total_ms("float32") * GAINING
    computing = (name for name in facts.schemes if SCHEMES[name].family != "weights")
    return sorted((name for name in computing if facts.total_ms(name) < limit_ms), key=facts.total_ms)


def _small(facts: LayerFacts) -> list[Precision]:
    """The smallest scheme, and the one that is small at float32's time."""
    ordered = sorted(facts.schemes, key=lambda name: (SCHEMES[name].bits, facts.total_ms(name)))
    return list(dict.fromkeys([*ordered[:1], *(name for name in ordered if name == "weight_int8")]))


def worth_trying(facts: LayerFacts, goal: Goal, most: int) -> list[Precision]:
    """Schemes whose layers together gain time, or bytes where size is the objective; the most promising first.

    Of each family the most exact one that is about as fast as the family's fastest, then faster ones that lose less
    than ``UNALIKE`` times as much.
    """
    found: list[Precision] = _small(facts) if goal.objective == "size" else []
    gaining = _gaining(facts)
    if gaining:
        near = [name for name in gaining if facts.total_ms(name) <= NEAR * facts.total_ms(gaining[0])]
        families: dict[Family, list[Precision]] = {}
        for name in near:
            families.setdefault(SCHEMES[name].family, []).append(name)
        exact = [min(members, key=facts.error) for members in families.values()]
        found += exact
        found += [name for name in near if name not in exact and _is_faster_for_its_loss(facts, name, exact)]
        careful = min(gaining, key=facts.error)
        found += [careful] if all(facts.error(careful) < facts.error(name) / UNALIKE for name in found) else []
    return list(dict.fromkeys(found))[:most]


def _is_faster_for_its_loss(facts: LayerFacts, name: Precision, others: Sequence[Precision]) -> bool:
    return all(
        facts.total_ms(name) < BETTER * facts.total_ms(other) and facts.error(name) <= UNALIKE * facts.error(other)
        for other in others
    )


def exact_codes(facts: LayerFacts, precision: Precision, alike: Sequence[Precision]) -> Precision:
    """Of schemes with one kernel, the one whose codes lose clearly less than those of the first; else the first."""
    best = min((precision, *alike), key=facts.error)
    return best if facts.error(best) < MORE_EXACT * facts.error(precision) else precision


def by_layer(facts: LayerFacts, base: Precision) -> Choice | None:
    """The fastest scheme of each layer, where it is clearly faster than ``base``; nothing where that gains little.

    Layers that are fastest in float32 are stored as int8 all the same where that costs no time.
    """
    names = [name for name in facts.times_ms if name in facts.errors or SCHEMES[name].family == "float"]
    layers: dict[str, Precision] = {}
    gained_ms = 0.0
    for layer in facts.layers:
        times = {name: facts.times_ms[name][layer.name] for name in names if layer.name in facts.times_ms[name]}
        fastest = min(times, key=lambda name: times[name], default=base)
        if base in times and times[fastest] < BETTER * times[base]:
            layers[layer.name] = stored_small(facts, layer) if SCHEMES[fastest].family == "float" else fastest
            gained_ms += times[base] - times[fastest]
    return Choice(base, spread(facts, layers)) if gained_ms > (1 - GAINING) * facts.total_ms(base) else None


def spread(facts: LayerFacts, layers: Mapping[str, Precision]) -> dict[str, Precision]:
    """Schemes of layers as schemes of the weights that they are packed of, in a fixed order."""
    parts = {part: layers[layer.name] for layer in facts.layers if layer.name in layers for part in layer.parts}
    return dict(sorted(parts.items()))


def stored_small(facts: LayerFacts, layer: Layer) -> Precision:
    """Float arithmetic for a layer: with its weight stored as int8, unless that was measured to cost time."""
    plain, small = (facts.times_ms.get(name, {}).get(layer.name) for name in ("float32", "weight_int8"))
    is_free = plain is not None and small is not None and small <= plain / GAINING
    return "weight_int8" if is_free and layer.kind != "recurrence" else "float32"


def backed_off(
    facts: LayerFacts, choice: Choice, gains: Mapping[str, float], share: float, instead: Precision | None = None
) -> Choice:
    """The choice with its most harmful layers made more careful, until at most ``share`` of the harm is left.

    Harm is the error that arrives at the outputs, squared, since errors of different layers add up in squares. Layers
    go in the order of harm for each millisecond (or byte) that their scheme gains. They get ``instead``, or float
    arithmetic.
    """
    harms, prices = {}, {}
    careful: dict[str, Precision] = {}
    for layer in facts.layers:
        own = scheme_of(layer, choice.precision, choice.layers)
        careful[layer.name] = instead or stored_small(facts, layer)
        harms[layer.name] = gains.get(layer.name, 1.0) ** 2 * (
            _square(facts, own, layer) - _square(facts, careful[layer.name], layer)
        )
        prices[layer.name] = max(_time(facts, careful[layer.name], layer) - _time(facts, own, layer), 1e-6)
    left = total = sum(max(0.0, harm) for harm in harms.values())
    given_up: dict[str, Precision] = {}
    for name in sorted(harms, key=lambda name: -harms[name] / prices[name]):
        if left <= share * total or harms[name] <= 0:
            break
        given_up[name] = careful[name]
        left -= harms[name]
    layers = {**choice.layers, **spread(facts, given_up)}
    return Choice(choice.precision, dict(sorted(layers.items())))


def _square(facts: LayerFacts, precision: Precision, layer: Layer) -> float:
    return float(facts.errors.get(precision, {}).get(layer.name, 0.0) ** 2)


def _time(facts: LayerFacts, precision: Precision, layer: Layer) -> float:
    times = facts.times_ms.get(precision, {})
    return times.get(layer.name, facts.times_ms["float32"].get(layer.name, 0.0))


def counted(layers: Sequence[Layer], precision: Precision, schemes: Schemes) -> str:
    """``22 of 24 layers dynamic int8 by column, 2 float32``."""
    counts = Counter(scheme_of(layer, precision, schemes) for layer in layers)
    (first, number), *others = counts.most_common()
    words = f"{number} of {len(layers)} layers {PRECISIONS[first]}"
    return ", ".join([words, *(f"{count} {PRECISIONS[name]}" for name, count in others)])


def not_worth_trying(facts: LayerFacts, known: Collection[str]) -> list[Rejected]:
    """Why the schemes that no whole model was made of were left out, in numbers; ``known`` have a reason already."""
    if "float32" not in facts.times_ms:
        return []
    twins = {twin for same in SAME_KERNEL.values() for twin in same}
    left = [name for name in facts.schemes if name not in known and name not in twins]
    found = [Rejected(name, f"by single layers: {_in_layers(facts, name)}") for name in left]
    for name, same in SAME_KERNEL.items():
        other = [twin for twin in same if twin in facts.errors and twin not in known]
        if other and name in facts.errors:
            lost = ", ".join(f"{facts.error(twin):.2%}" for twin in other)
            words = f"the kernel of {name}, with {lost} of each result lost where that loses {facts.error(name):.2%}"
            found.append(Rejected(", ".join(other), f"by single layers: {words}"))
    return found


def _in_layers(facts: LayerFacts, name: Precision) -> str:
    own_ms, plain_ms = facts.total_ms(name), facts.total_ms("float32")
    times = f"{own_ms / plain_ms:.2f}× the time of float kernels ({own_ms:.3g} against {plain_ms:.3g} ms)"
    return f"{times}, {facts.error(name):.2%} of each result lost" if name in facts.errors else times


def why_not_paying(facts: LayerFacts) -> str | None:
    """A sentence on the best integer kernels of this machine beside the float ones; nothing where none was timed."""
    integer = [name for name in facts.schemes if SCHEMES[name].family != "weights"]
    if not integer or "float32" not in facts.times_ms:
        return None
    best = min(integer, key=facts.total_ms)
    ours_ms, plain_ms = facts.total_ms(best), facts.total_ms("float32")
    kinds: dict[Kind, str] = {
        "convolution": "convolutions",
        "attention": "attentions",
        "recurrence": "recurrent layers",
    }
    counts = Counter(layer.kind for layer in facts.layers)
    what = kinds.get(counts.most_common(1)[0][0], "matrix products")
    own, plain = facts.times_ms[best], facts.times_ms["float32"]
    slowest = max(own, key=lambda name: own[name] / plain.get(name, math.inf))
    return (
        f"the fastest integer kernels here ({PRECISIONS[best]}) take {ours_ms / plain_ms:.2f}× the time of the float"
        f" {what} ({ours_ms:.3g} against {plain_ms:.3g} ms); at {facts.places[slowest]} it is"
        f" {own[slowest]:.3g} against {plain[slowest]:.3g} ms"
    )
