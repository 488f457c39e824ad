"""Run suites by name and put every contestant on one line, with all that its rate depends on."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from jaxrl_agent.benchmark import envs, rollout, sampler, sandbox, update
from jaxrl_agent.benchmark.timing import Contestant, Timed, ratio, spread, take_turns
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.run_dir import Json, collect_versions, to_jsonable


@dataclasses.dataclass(frozen=True)
class Suite:
    """A family of contestants named `KIND/SIZE`, and the kinds that the others are held against."""

    build: Callable[..., dict[str, Contestant]]  # takes `peers`
    unit: str
    yardsticks: tuple[str, ...]
    peers: tuple[str, ...] = ()  # packages that `peers` needs
    same_size: bool = False  # hold against a yardstick of the same size, not the best one
    elsewhere: bool = False  # other processes work, or environments sleep, so rates are by the clock


SUITES: dict[str, Suite] = {
    "envs": Suite(envs.contestants, envs.UNIT, yardsticks=("bare", "gymnasium"), peers=("gymnasium",)),
    "sampler": Suite(
        sampler.contestants, sampler.UNIT, yardsticks=("transformers",), peers=("torch", "transformers"), same_size=True
    ),
    "update": Suite(
        update.contestants, update.UNIT, yardsticks=("torch",), peers=("torch", "transformers"), same_size=True
    ),
    "rollout": Suite(rollout.contestants, rollout.UNIT, yardsticks=("lockstep",), same_size=True, elsewhere=True),
    "sandbox": Suite(sandbox.contestants, sandbox.UNIT, yardsticks=("fresh",), same_size=True, elsewhere=True),
}


def run_suites(names: Sequence[str], *, peers: bool, rounds: int) -> Iterator[Json]:
    """Time suites one after the other, the contestants of one in turns.

    Args:
        names: keys of SUITES.
        peers: also other packages' work, where they are installed.
        rounds: how often each contestant runs after its warm-up.

    Yields:
        A line for each contestant. Its `ratio_to` has, for each yardstick, how many times the units a CPU second (a
        second, off the CPU) the contestant did, as median, lowest and highest of the rounds, and a bootstrap interval.

    Raises:
        ConfigError: an unknown suite.
    """
    if unknown := set(names) - set(SUITES):
        raise ConfigError(
            "--suite must name a known suite", value=sorted(unknown), remedy=f"Choose among all, {', '.join(SUITES)}."
        )
    for name in names:
        suite = SUITES[name]
        missing = [package for package in suite.peers if importlib.util.find_spec(package) is None]
        load_before = os.getloadavg()[0]
        built = suite.build(peers=peers and not missing)
        timed = take_turns(built, rounds=rounds)
        facts = {
            **_facts(suite.peers),
            "rounds": rounds,
            "load_before": load_before,
            "peers_missing": missing if peers else [],
        }
        yield from (to_jsonable(line | facts) for line in _lines(name, suite, built, timed))


def append(path: Path, line: Json) -> None:
    """Add a line to a JSON-lines file, which is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def to_text(line: Json) -> str:
    """One line for the terminal."""
    by_cpu = line["by_cpu_seconds"]
    rate = line["per_cpu_s" if by_cpu else "per_s"]
    digits = 0 if rate["median"] >= 100 else 2
    said = f"{line['name']:<22}{line['size']:>9,}  {rate['median']:>14,.{digits}f} {line['unit']} a "
    said += f"{'CPU ' * by_cpu}second"
    held = (f"{r['median']:,.4g} x {name} [{r['low']:,.4g}, {r['high']:,.4g}]" for name, r in line["ratio_to"].items())
    facts = (f"{name} {value:.4g}" for name, value in line["facts"].items())
    return "  ".join([said, *held, *facts])


def _lines(name: str, suite: Suite, built: dict[str, Contestant], timed: dict[str, Timed]) -> Iterator[Json]:
    by_cpu = jax.default_backend() == "cpu" and not suite.elsewhere
    rates = {key: t.per_cpu_s if by_cpu else t.per_s for key, t in timed.items()}
    for key, t in timed.items():
        kind, _, size = key.partition("/")
        yield {
            "suite": name,
            "name": kind,
            "size": int(size),
            "unit": suite.unit,
            "per_s": spread(t.per_s),
            "per_cpu_s": spread(t.per_cpu_s),
            "by_cpu_seconds": by_cpu,
            "ratio_to": {other: ratio(rates[key], rates[held]) for other, held in _held_against(suite, key, rates)},
            "facts": dict(built[key].facts()),
        }


def _held_against(suite: Suite, key: str, rates: dict[str, list[float]]) -> Iterator[tuple[str, str]]:
    """Pair each yardstick of another kind with the contestant that stands for it."""
    kind, _, size = key.partition("/")
    for other in suite.yardsticks:
        sizes = [name for name in rates if name.partition("/")[0] == other]
        if suite.same_size:
            sizes = [name for name in sizes if name.partition("/")[2] == size]
        if sizes and other != kind:
            yield other, max(sizes, key=lambda name: statistics.median(rates[name]))


def _facts(packages: Sequence[str]) -> Json:
    device = jax.devices()[0]
    versions = collect_versions()
    for package in packages:
        try:
            versions["packages"][package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions["packages"][package] = None
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "n_devices": jax.device_count(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_after": os.getloadavg()[0],
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
    }
