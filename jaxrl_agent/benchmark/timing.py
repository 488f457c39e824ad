"""Time several pieces of work in turns, so that what else the machine does falls on all of them alike."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.statistics import bootstrap_mean


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A piece of work that can be repeated; it must have ended when `run` returns."""

    run: Callable[[], object]
    units: int | None = None  # of work in one run, the same kind for all contestants; None where `run` returns them
    facts: Callable[[], Mapping[str, Any]] = dict  # what else there is to write down, once all rounds are over


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of the rounds."""

    median: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Ratio(Spread):
    """How many times faster, and how sure that is."""

    ci_low: float  # 95% bootstrap interval of the geometric mean over rounds
    ci_high: float


@dataclasses.dataclass(frozen=True)
class Timed:
    """What a contestant did: units a second, round by round."""

    per_s: list[float]  # by the clock on the wall
    per_cpu_s: list[float]  # by CPU seconds of this process, all threads: robust to a busy neighbour


def take_turns(contestants: Mapping[str, Contestant], *, rounds: int) -> dict[str, Timed]:
    """Run every contestant once to warm up, then all of them in turn, `rounds` times.

    Args:
        contestants: by name.
        rounds: 1 or more.

    Raises:
        ArgumentError: `rounds` below 1.
    """
    if rounds < 1:
        raise ArgumentError("rounds must be at least 1", value=rounds)
    timed = {name: Timed([], []) for name in contestants}
    for contestant in contestants.values():
        contestant.run()
    for _ in range(rounds):
        for name, contestant in contestants.items():
            cpu, wall = time.process_time(), time.perf_counter()
            returned = contestant.run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            units = returned if contestant.units is None else contestant.units
            timed[name].per_s.append(units / wall)
            timed[name].per_cpu_s.append(units / max(cpu, 1e-9))
    return timed


def spread(values: list[float]) -> Spread:
    """Summarise rounds."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """Summarise how many times faster `ours` was, round against the same round."""
    rounds = [a / b for a, b in zip(ours, theirs, strict=True)]
    mean_log = bootstrap_mean(np.log(rounds))
    return Ratio(**dataclasses.asdict(spread(rounds)), ci_low=math.exp(mean_log.low), ci_high=math.exp(mean_log.high))
