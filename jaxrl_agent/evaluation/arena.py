"""What probes need of a task: episodes, the states on their way, replies, values, errors, and ways to go on.

A probe knows no game. It asks an `Arena` to let policies play, picks states, and asks again; what a state is, how an
episode is taken up again, and what a reply amounts to is the arena's business. `device_arena` plays tasks that run
inside jit; a task that host code plays brings an arena of its own.

Letters: `V` visited states, `S` chosen states, `N` replies or continuations of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jaxrl_agent.assemble import Policy
from jaxrl_agent.types import Trajectory

MONTE_CARLO = "monte_carlo"


@dataclasses.dataclass(frozen=True)
class Visits:
    """Every state that trajectories came through, in order of (trajectory, turn)."""

    row_V: np.ndarray  # int, trajectory
    turn_V: np.ndarray  # int, turn that was played there, from 0
    task_V: np.ndarray  # int, instance
    turns_left_V: np.ndarray  # int, turns left including that one
    keys: list[str]  # names: equal ones are the same state of the same instance


@dataclasses.dataclass(frozen=True)
class Positions:
    """States from which an episode can be taken up again, every time with the same context."""

    task_S: np.ndarray  # int, instance
    turns_left_S: np.ndarray  # int, turns left including the one to be played
    keys: list[str]
    covariates: Mapping[str, np.ndarray]  # float64 [S], NaN where not defined
    starts: Any  # the arena's own; a pytree of numpy arrays with leading axis S

    def __len__(self) -> int:
        return len(self.task_S)

    def take(self, index_S: np.ndarray) -> Positions:
        """Some of them, in the order of the indices."""
        return Positions(
            task_S=self.task_S[index_S],
            turns_left_S=self.turns_left_S[index_S],
            keys=[self.keys[place] for place in index_S.tolist()],
            covariates={name: values_S[index_S] for name, values_S in self.covariates.items()},
            starts=jax.tree.map(lambda leaf: leaf[index_S], self.starts),
        )


@dataclasses.dataclass(frozen=True)
class Replies:
    """N replies of each of several policies to each of S positions, and what they amount to."""

    outcomes: list[tuple[str | None, ...]]  # for each state: names of what replies amount to, None for unusable ones
    outcome_SN: list[np.ndarray]  # for each policy: int, index into the state's outcomes; -1 where it is not known
    rows: list[Any]  # for each policy: the arena's own


@dataclasses.dataclass(frozen=True)
class Errors:
    """What became of positions whose next turn was replaced by an error."""

    ok_S: np.ndarray  # bool, False where no error can be injected
    names: list[str]  # the injected action
    after: Positions  # behind the error, one turn less; of no use where not ok


@dataclasses.dataclass(frozen=True)
class Scores:
    """Log-probabilities of replies under one policy, nats, summed turn by turn; 0 where a turn was not sampled."""

    turn_BT: np.ndarray  # float64, all sampled tokens
    action_BT: np.ndarray  # float64, without reasoning
    tokens_BT: np.ndarray  # int, sampled tokens


class Arena(Protocol):
    """A task, a budget and a way to sample, as probes meet them. Equal seeds give equal random numbers to policies."""

    qualities: Mapping[str, str]  # definitions of the exact values of replies, by name
    primary: str | None  # the exact quality that is fair to the agent; None if none is known or fair
    covariates: Mapping[str, str]  # definitions
    t_max: int

    def play(self, policy: Policy, *, samples: int) -> Any:
        """Play `samples` whole episodes of every instance."""

    def visits(self, episodes: Any) -> Visits:
        """Every state on the way of those episodes."""

    def positions(self, episodes: Sequence[Any], source_S, row_S, turn_S) -> Positions:
        """Take up states of `episodes[source_S]` again."""

    def act(self, policies: Sequence[Policy], positions: Positions, *, replies: int) -> Replies:
        """Sample replies of every policy from the same bytes."""

    def exact(self, positions: Positions, replies: Replies) -> dict[str, list[list[float | None]]]:
        """Exact value of every outcome, by quality and state."""

    def monte_carlo(
        self, reference: Policy, positions: Positions, replies: Replies, *, rollouts: int
    ) -> list[list[float | None]]:
        """Success of `reference` when it goes on behind each outcome that occurred; None for the others."""

    def optimum(self, positions: Positions) -> np.ndarray | None:
        """Best probability of success, float64 [S]; None where it is not known."""

    def inject(self, positions: Positions) -> Errors:
        """Replace the next turn of every position by an error, in the history as the agent's own."""

    def finish(self, policy: Policy, positions: Positions, *, continuations: int) -> tuple[np.ndarray, Any]:
        """Play on to the end of the budget: success, bool [S, N] or float64 with NaN where unknown; the episodes."""

    def score(self, policy: Policy, episodes: Any, *, last_only: bool = False) -> Scores:
        """Score what was sampled under any policy; of every turn, or of the last one alone."""

    def columns(self, episodes: Any) -> dict[str, Any]:
        """Outcomes of whole episodes: task, success, stop, n_turns, quality, best_quality, call_ok; None if unknown."""

    def read(self, episodes: Any, rows: Sequence[int]) -> list[Trajectory]:
        """Some episodes, for people."""
