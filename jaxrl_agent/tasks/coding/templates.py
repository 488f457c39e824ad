"""Small problems drawn from families: the same seed draws the same ones, and no split shares one with another."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.tasks.coding.families import FAMILIES, Family, Params
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.coding.splits import split_of, stable_fraction

N_PUBLIC, FEWEST_HIDDEN, N_HIDDEN, MOST_HIDDEN, MOST_WRONG = 2, 4, 6, 8, 4
POOL = 40  # inputs that the tests of a problem are chosen from


def draw_problems(split: str, *, seed: int, count: int, families: Sequence[str] = ()) -> list[Problem]:
    """Draw problems of all families in turn.

    Args:
        split: "train", "validation" or "test".
        seed: of the order of the draw; which problem belongs to which split does not hang on it.
        count: problems, at most those there are; a smaller count gives the beginning of a larger one's list.
        families: names; () for all.

    Raises:
        ConfigError: an unknown family.
    """
    unknown = sorted(set(families) - FAMILIES.keys())
    if unknown:
        known = ", ".join(FAMILIES)
        raise ConfigError("config.task.coding.families must be known", value=unknown, remedy=f"There are {known}.")
    chosen = [FAMILIES[name] for name in FAMILIES if not families or name in families]
    sources = (_draw_family(family, split, seed) for family in chosen)
    in_turn = (problem for row in itertools.zip_longest(*sources) for problem in row if problem is not None)
    return list(itertools.islice(in_turn, count))


def content_of(family: Family, params: Params) -> str:
    """What a problem asks, as a text: the same for all that have the same answers, however they say it."""
    return f"{family.content or family.name}/{','.join(map(str, family.same_as(*params)))}"


def _draw_family(family: Family, split: str, seed: int) -> Iterator[Problem]:
    points = [params for params in family.points() if split_of(content_of(family, params)) == split]
    points.sort(key=lambda params: stable_fraction("order", seed, family.name, *params))
    return filter(None, (make_problem(family, params) for params in points))


def make_problem(family: Family, params: Params) -> Problem | None:
    """Build the problem of one point: tests that tell it from its neighbours, and those neighbours as wrong programs.

    Every neighbour that some input tells from the problem fails a hidden test. The result hangs on the family and the
    parameters alone.

    Returns:
        the problem; None for a point whose neighbours cannot be told from it, or whose answers hardly differ.
    """
    rng = random.Random(f"{family.name}/{params}")
    pool = _distinct_inputs(family, params, rng)
    right = [family.answer(params, given) for given in pool]
    fails = {
        other: frozenset(i for i, given in enumerate(pool) if family.answer(other, given) != right[i])
        for other in family.neighbours(params)
    }
    fails = {other: places for other, places in fails.items() if places}
    public = _choose_public(len(pool), list(fails.values()))
    hidden = _choose_hidden(public, right, list(fails.values()))
    wrong = [other for other, places in fails.items() if places & set(public)]
    rng.shuffle(wrong)
    wrong.sort(key=lambda other: fails[other] >= set(public))  # half right ones first
    if len(wrong) < 2 or not hidden:
        return None
    cases = [[(pool[i], right[i]) for i in places] for places in (public, hidden)]
    return _assemble(family, params, wrong[:MOST_WRONG], cases)


def _distinct_inputs(family: Family, params: Params, rng: random.Random) -> list[Any]:
    inputs = {repr(given): given for given in (family.sample(rng, params) for _ in range(3 * POOL))}
    return list(inputs.values())[:POOL]


def _choose_public(size: int, fails: list[frozenset[int]]) -> list[int]:
    """The pair of tests that tells most neighbours apart, some by the one and some by the other.

    Each neighbour keeps a test outside the pair that it fails. The test that tells less comes first.
    """

    told, only = [0] * size, {}  # bit k: neighbour k fails the place; fails nothing but these places
    for bit, places in enumerate(fails):
        for place in places:
            told[place] |= 1 << bit
        only[places] = only.get(places, 0) | 1 << bit

    def merit(pair: tuple[int, int]) -> tuple[int, ...]:
        first, second = told[pair[0]], told[pair[1]]
        alone = (first & ~second).bit_count(), (second & ~first).bit_count()
        spent = any(part in only for part in (frozenset(pair), frozenset(pair[:1]), frozenset(pair[1:])))
        return not spent, (first | second).bit_count(), min(alone), sum(alone)

    best = max(itertools.combinations(range(min(size, POOL // 2)), N_PUBLIC), key=merit)
    return sorted(best, key=lambda place: told[place].bit_count())


def _choose_hidden(public: list[int], right: list[Any], fails: list[frozenset[int]]) -> list[int]:
    """Tests beside the public ones that each neighbour fails one of, with three answers or more; [] if there are none.

    Few tests that many neighbours fail come first, then tests with new answers.
    """
    places = [place for place in range(len(right)) if place not in public]
    chosen: list[int] = []
    left = list(fails)
    while left:
        best = max(places, key=lambda place: sum(place in wrong for wrong in left))
        if not any(best in wrong for wrong in left):
            return []
        chosen.append(best)
        left = [wrong for wrong in left if best not in wrong]
    for place in [*places, *places]:
        new = repr(right[place]) not in {repr(right[other]) for other in chosen}
        if len(chosen) < N_HIDDEN and place not in chosen and (new or len(chosen) < FEWEST_HIDDEN):
            chosen.append(place)
    answers = {repr(right[place]) for place in chosen}
    return chosen if len(answers) >= 3 and FEWEST_HIDDEN <= len(chosen) <= MOST_HIDDEN else []


def _assemble(family: Family, params: Params, wrong: list[Params], cases: list[list[tuple[Any, Any]]]) -> Problem:
    stdin = family.style == "stdin"
    tests = [
        tuple(
            {"input": f"{given}\n", "output": f"{answer}\n"}
            if stdin
            else {"entry_point": "f", "args": [given], "expected": answer}
            for given, answer in group
        )
        for group in cases
    ]
    given, answer = cases[0][0]
    example = f"Example: {given} -> {answer}" if stdin else f"Example: f({given!r}) == {answer!r}"
    return Problem(
        problem_id=f"templates/{family.name}/{','.join(map(str, params))}",
        statement=f"{family.words(*params)} {example}",
        public=tests[0],
        hidden=tests[1],
        style=family.style,
        entry_point="" if stdin else "f",
        solution=family.program(*params),
        wrong=tuple(family.program(*other) for other in wrong),
        family=family.name,
        level="easy",
    )
