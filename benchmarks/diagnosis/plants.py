"""What the tests' zoo offers: causes to plant in any model, how they are planted, and which go together."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import onnx_ir as ir
from benchmarks.diagnosis import TESTS
from benchmarks.diagnosis.models import RealModel

from planting import Pair
from unlag.causes.contract import Affects, find_causes
from unlag.model.graph import read_model, save_model
from unlag.model.variant import Variant

ZOO = TESTS / "zoo"

Edit = Callable[[ir.Model], int]
"""Changes a model in place and says in how many places."""

SIZES = (2, 3)
"""So many causes are planted at once, in turn."""


@dataclass(frozen=True)
class Plant:
    """A cause of the catalogue with its file in the zoo. ``infect`` is absent where no edit makes the cause."""

    id: str
    affects: frozenset[Affects]
    pair: Callable[[], Pair]
    twin: Callable[[], Pair]
    infect: Edit | None = None
    standardize: Edit | None = None
    """What the standard has instead of the cause."""
    variant_options: Mapping[str, str] = field(default_factory=dict)
    standard_options: Mapping[str, str] = field(default_factory=dict)
    consequences: frozenset[str] = frozenset()
    """Other causes that come with this one."""


@dataclass(frozen=True)
class Fit:
    """In how many places of a model a cause can be planted, or why planting it raised."""

    places: int
    error: str = ""


def read_zoo(only: Collection[str] = ()) -> tuple[list[Plant], dict[str, str]]:
    """The wanted plants, or all, by name; and what is wrong with files that can't be used, by name."""
    affects = {cause.id: cause.affects for cause in find_causes()}
    plants, broken = [], {}
    for name in sorted(path.stem for path in ZOO.glob("*.py")):
        if only and name not in only:
            continue
        if name not in affects:
            broken[name] = "plants a cause that the catalogue does not have"
            continue
        try:
            plants.append(_plant(name, affects[name]))
        except Exception as error:  # noqa: BLE001 - one file's fault must not keep the others from being measured
            broken[name] = f"{type(error).__name__}: {error}"
    return plants, broken


def causes_without_plant() -> list[str]:
    """Causes of the catalogue that the zoo has no file for."""
    planted = {path.stem for path in ZOO.glob("*.py")}
    return [cause.id for cause in find_causes() if cause.id not in planted]


def _plant(name: str, affects: frozenset[Affects]) -> Plant:
    module = importlib.import_module(f"zoo.{name}")
    return Plant(
        id=name,
        affects=affects,
        pair=module.plant,
        twin=module.twin,
        infect=getattr(module, "infect", None),
        standardize=getattr(module, "standardize", None),
        variant_options=getattr(module, "VARIANT_OPTIONS", {}),
        standard_options=getattr(module, "STANDARD_OPTIONS", {}),
        consequences=getattr(module, "CONSEQUENCES", frozenset()),
    )


def fit(plant: Plant, path: Path) -> Fit:
    """Try to plant a cause in a fresh copy of a model."""
    if plant.infect is None:
        return Fit(0)
    try:
        return Fit(int(plant.infect(read_model(path))))
    except Exception as error:  # noqa: BLE001 - a plant that raises on one model may fit another
        return Fit(0, f"{type(error).__name__}: {error}"[:200])


def first_fitting(plant: Plant, models: Sequence[RealModel]) -> tuple[RealModel | None, str]:
    """The first model that a cause can be planted in, and what was in the way of the others."""
    notes: list[str] = []
    for model in models:
        found = fit(plant, model.path)
        if found.places > 0:
            return model, "; ".join(notes)
        notes.append(f"{model.name}: {found.error or 'no place'}")
    return None, "; ".join(notes)


@dataclass(frozen=True)
class Built:
    """A model on disk with some of the plants in it, and in how many places each."""

    variant: Variant
    places: Mapping[str, int]


def build(model: RealModel, plants: Sequence[Plant], present: Collection[str], path: Path) -> Built:
    """Write the model with the plants that are ``present``, and what standards have in place of the others.

    With none present this is the standard of all the plants; options that it needs hold for every build.
    """
    edited, places = read_model(model.path), {}
    options: dict[str, str] = {}
    for plant in plants:
        options |= plant.standard_options
        if plant.id in present and plant.infect is not None:
            places[plant.id] = int(plant.infect(edited))
        elif plant.id not in present and plant.standardize is not None:
            plant.standardize(edited)
    for plant in plants:
        options |= plant.variant_options if plant.id in present else {}
    save_model(edited, path)
    return Built(Variant("onnxruntime", str(path), options), places)


def options_agree(plants: Sequence[Plant]) -> bool:
    """Whether no plant wants a session option to be other than another plant wants it."""
    for one, other in combinations(plants, 2):
        for ours in (one.variant_options, one.standard_options):
            for theirs in (other.variant_options, other.standard_options):
                if any(ours[key] != theirs[key] for key in set(ours) & set(theirs)):
                    return False
    return True


def are_apart(plants: Sequence[Plant]) -> bool:
    """Whether no plant follows from another one."""
    return not any(
        one.id in other.consequences or other.id in one.consequences for one, other in combinations(plants, 2)
    )


def choose_combos(
    plants: Sequence[Plant], works: Callable[[Sequence[Plant]], bool], count: int, seed: int
) -> list[tuple[Plant, ...]]:
    """So many different sets of two and three plants, in turn, drawn at random among those that go together.

    Args:
        plants: that fit the model, each alone.
        works: whether these can be planted one after the other, and the model still runs; asked as seldom as possible.
        count: how many sets; fewer come back where there are no more.
        seed: of the draw.
    """
    rng = random.Random(seed)  # noqa: S311 - a draw, not a secret
    pools = [_drawn(plants, size, rng) for size in SIZES]
    chosen: list[tuple[Plant, ...]] = []
    turn = 0
    while len(chosen) < count and any(pool is not None for pool in pools):
        pool = pools[turn % len(pools)]
        found = None
        if pool is not None:
            found = next((c for c in pool if options_agree(c) and are_apart(c) and works(c)), None)
        if found is None:
            pools[turn % len(pools)] = None
        else:
            chosen.append(found)
        turn += 1
    return chosen


def _drawn(plants: Sequence[Plant], size: int, rng: random.Random) -> Iterator[tuple[Plant, ...]] | None:
    """All sets of this size in random order, each in a random order of its own."""
    sets = [tuple(rng.sample(chosen, size)) for chosen in combinations(plants, size)]
    rng.shuffle(sets)
    return iter(sets)
