"""One pair of policies probed: states on the way of both, replies, recoveries, and each one's view of the other.

The result is raw: columns over states and episodes, from which `analysis` computes every figure. Nothing here knows a
game; see `arena`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_agent.assemble import Policy
from jaxrl_agent.checkpoint import Checkpoints, policy_version, split_policy_name
from jaxrl_agent.config import Config
from jaxrl_agent.errors import NonFiniteError
from jaxrl_agent.evaluation.arena import MONTE_CARLO, Arena, Scores
from jaxrl_agent.evaluation.recovery_probe import Injected, inject_errors, probe_recovery
from jaxrl_agent.evaluation.state_probe import choose, probe_states
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import Json, RunDir, collect_versions
from jaxrl_agent.types import Trajectory

READ_TASKS = 12  # tasks of which episodes are kept for reading
ORDINARY, AFTER_ERROR = "ordinary", "after an injected error"
STAGES = ("states", "error states", "recovery", "likelihood", "done")


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """How much is sampled."""

    split: str = "test"
    budget_fraction: float = 1.0  # enforced budget over t_max
    samples: int = 8  # whole episodes of each policy and task
    states: int = 512  # ordinary states
    error_states: int = 320
    replies: int = 16  # of each policy to each state
    continuations: int = 8  # of each policy from each error state, with and without the error
    rollouts: int = 32  # for each sampled value, where no exact one is fair to the agent
    temperature: float = 1.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Subject:
    """A policy to be probed, with the settings of what it plays."""

    name: str
    config: Config  # `init` names the policy
    run: str | None = None  # its run directory, if it is one


@dataclasses.dataclass(frozen=True)
class Probed:
    """What was found on one pair."""

    name: str  # of the policy
    raw: Json
    trajectories: list[Trajectory]  # a few, to read


@dataclasses.dataclass(frozen=True)
class Player:
    """A policy with its episodes."""

    subject: Subject
    policy: Policy
    episodes: Any
    own: Scores  # of its episodes, by itself


@dataclasses.dataclass(frozen=True)
class Study:
    """Probes of several policies against one base."""

    arena: Arena
    settings: ProbeSettings
    display: Display
    facts: Json

    def play(self, subject: Subject, policy: Policy) -> Player:
        """Whole episodes of one policy, scored by itself."""
        episodes = self.arena.play(policy, samples=self.settings.samples)
        own = self.arena.score(policy, episodes)
        if not np.isfinite(own.turn_BT).all():
            raise NonFiniteError(
                "the policy's log-probabilities must be finite", value=subject.config.init, remedy="Check its weights."
            )
        return Player(subject, policy, episodes, own)

    def pair(self, base: Player, other: Player) -> Probed:
        """Everything about one pair."""
        arena, settings = self.arena, self.settings
        pair = {"base": base.policy, "policy": other.policy}
        rollouts = 0 if arena.primary else settings.rollouts
        stages = self._stages(other.subject.name)
        next(stages)
        positions, sources = self._positions(base, other, settings.states)
        sampled = {**pair, "replies": settings.replies, "rollouts": rollouts}
        ordinary = probe_states(arena, positions, sources=sources, **sampled)
        next(stages)
        injected, sources = self._errors(base, other)
        errors = injected and probe_states(arena, injected.after, sources=sources, **sampled)
        next(stages)
        recovery, ends = None, {}
        if injected:
            recovery, ends = probe_recovery(arena, injected, **pair, continuations=settings.continuations)
        next(stages)
        scores = {
            "base": {"base": base.own, "policy": arena.score(other.policy, base.episodes)},
            "policy": {"base": arena.score(base.policy, other.episodes), "policy": other.own},
        }
        raw = {
            "base": base.subject.name,
            "policy": other.subject.name,
            "runs": {"base": base.subject.run, "policy": other.subject.run},
            "checkpoints": {
                "base": policy_version(base.subject.config.init),
                "policy": policy_version(other.subject.config.init),
            },
            "weight_files": {
                "base": weight_files(base.subject.config.init),
                "policy": weight_files(other.subject.config.init),
            },
            **self.facts,
            **self._qualities(base.subject.name, rollouts),
            "states": {"ordinary": ordinary, "error": errors},
            "recovery": recovery,
            "episodes": {
                "base": _episodes(arena, base.episodes, scores["base"]),
                "policy": _episodes(arena, other.episodes, scores["policy"]),
            },
            "versions": collect_versions(),
        }
        read = [*self._read(base, scores["base"]), *self._read(other, scores["policy"])]
        for side, end in ends.items():
            player = base if side == "base" else other
            read += self._read_recoveries(pair, player, end, injected.after.task_S)
        next(stages)
        return Probed(other.subject.name, raw, read)

    def _stages(self, name: str) -> Iterator[None]:
        """Show what is done, one stage after another."""
        self.display.start(f"probe of {name}", len(STAGES))
        for done, stage in enumerate(STAGES, start=1):
            self.display.update(done, {"stage": stage})
            yield

    def _positions(self, base: Player, other: Player, count: int, *, least_turns_left: int = 1):
        """States on the way of both, and whose way it was."""
        visits = [self.arena.visits(player.episodes) for player in (base, other)]
        chosen = choose(visits, count, seed=self.settings.seed, least_turns_left=least_turns_left)
        source_S = np.array([source for source, _ in chosen], int)
        row_S = np.array([visits[source].row_V[index] for source, index in chosen], int)
        turn_S = np.array([visits[source].turn_V[index] for source, index in chosen], int)
        positions = self.arena.positions([base.episodes, other.episodes], source_S, row_S, turn_S)
        return positions, [("base", "policy")[source] for source in source_S.tolist()]

    def _errors(self, base: Player, other: Player) -> tuple[Injected | None, list[str]]:
        """States behind an error, and whose way they were on; None where no state allows one."""
        if self.facts["budget"] < 2:
            return None, []
        # Some states allow no error, so more are looked at than are wanted.
        positions, sources = self._positions(base, other, 2 * self.settings.error_states, least_turns_left=2)
        injected = inject_errors(self.arena, positions, self.settings.error_states)
        kept = injected.kept_S.tolist()
        return (injected if kept else None), [sources[place] for place in kept]

    def _qualities(self, base: str, rollouts: int) -> Json:
        fair = self.arena.primary is not None
        qualities = {name: {"definition": text, "fair": fair} for name, text in self.arena.qualities.items()}
        if rollouts:
            text = f"success rate of {base} when it goes on behind the reply, {rollouts} rollouts"
            qualities[MONTE_CARLO] = {"definition": text, "fair": True}
        primary = self.arena.primary or (MONTE_CARLO if rollouts else next(iter(qualities)))
        return {
            "rollouts_per_value": rollouts,
            "qualities": qualities,
            "primary_quality": primary,
            "covariates": dict(self.arena.covariates),
        }

    def _read(self, player: Player, scores: dict[str, Scores]) -> list[Trajectory]:
        """The first episode of the first tasks, with the likelihood ratio of every turn."""
        tasks = min(READ_TASKS, self.facts["n_tasks"])
        rows = [task * self.settings.samples for task in range(tasks)]
        trajectories = self.arena.read(player.episodes, rows)
        return [
            _marked(trajectory, player.subject.name, ORDINARY, scores, row)
            for row, trajectory in zip(rows, trajectories, strict=True)
        ]

    def _read_recoveries(self, pair, player: Player, ends: Any, task_S: np.ndarray) -> list[Trajectory]:
        """One episode behind the error in each of the first tasks."""
        states = np.sort(np.unique(task_S, return_index=True)[1])[:READ_TASKS]
        rows = (states * self.settings.continuations).tolist()
        few = jax.tree.map(lambda leaf: leaf[rows], ends)
        scores = {name: self.arena.score(policy, few) for name, policy in pair.items()}
        return [
            _marked(trajectory, player.subject.name, AFTER_ERROR, scores, row)
            for row, trajectory in enumerate(self.arena.read(few, range(len(rows))))
        ]


def weight_files(spec: str) -> str | None:
    """Digest of the names and sizes of the files that hold a run's newest parameters; None for other policies.

    A run that was deleted and trained again ends with the same number of updates, but its files have other names.
    """
    kind, path = split_policy_name(spec)
    if kind != "run":
        return None  # its version tells as much
    run = RunDir.open(path)
    with Checkpoints(run.checkpoints) as checkpoints:
        folder = run.checkpoints / str(checkpoints.latest()) / "params"
    marks = sorted((str(file.relative_to(folder)), file.stat().st_size) for file in folder.rglob("*") if file.is_file())
    return hashlib.sha256(repr(marks).encode()).hexdigest()[:16]


def _episodes(arena: Arena, episodes: Any, scores: dict[str, Scores]) -> Json:
    columns = arena.columns(episodes)

    def played(values_BT: np.ndarray) -> list[list[float]]:
        return [row[:n].tolist() for row, n in zip(values_BT, columns["n_turns"], strict=True)]

    return {
        **columns,
        "logprobs": {name: played(found.turn_BT) for name, found in scores.items()},
        "action_logprobs": {name: played(found.action_BT) for name, found in scores.items()},
        "tokens": played(next(iter(scores.values())).tokens_BT),
    }


def _marked(trajectory: Trajectory, sampler: str, condition: str, scores: dict[str, Scores], row: int) -> Trajectory:
    """Say who played under which condition, and what the policies think of each turn; an error is nobody's words."""
    llr_T = scores["policy"].turn_BT[row] - scores["base"].turn_BT[row]
    sampled_T = scores["base"].tokens_BT[row] > 0
    turns = [
        dataclasses.replace(turn, info={**turn.info, **({"llr": float(llr)} if sampled else {"injected": True})})
        for turn, llr, sampled in zip(trajectory.turns, llr_T, sampled_T, strict=False)
    ]
    instance = {**trajectory.instance, "condition": condition, "sampler": sampler}
    return dataclasses.replace(trajectory, turns=turns, instance=instance)
