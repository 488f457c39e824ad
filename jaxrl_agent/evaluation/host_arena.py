"""The arena of tasks that host code plays: probes over `rollout.collect`, episodes taken up again by saying their past.

It is made for worlds without chance: whoever goes on from a state says again what was said before, and a world that
answers otherwise than the first time leaves nobody in that state. A state is named by its instance and
`Answer.state_key`; of several histories that lead to one state, whichever was chosen stands for it.

What the machinery failed to answer or to grade is known by nobody and left out: such a reply amounts to no outcome,
such a continuation to neither success nor failure. A reply without an end is the policy's own failure and counts.
Letters as in `arena_rows`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flax import struct

from jaxrl_agent.assemble import Game, Policy
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.evaluation.arena import Errors, Positions, Replies, Scores, Visits
from jaxrl_agent.evaluation.arena_rows import (
    ACT,
    CUT,
    FINISH,
    PLAY,
    VALUE,
    checksum,
    episode_ids,
    last_turns,
    row_ids,
    score_rollout,
    stream_key,
)
from jaxrl_agent.evaluation.host_histories import History, gone_on, history_before, is_known, put_errors
from jaxrl_agent.learner.packing import MACHINERY
from jaxrl_agent.rollout.buckets import bucket
from jaxrl_agent.rollout.collect import CollectSettings, collect
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.host_records import to_host_trajectories, to_rollout
from jaxrl_agent.rollout.seats import Played, Request, Said
from jaxrl_agent.tasks.base import Answer
from jaxrl_agent.types import StopReason, Trajectory

UNKNOWN = -1  # in place of an outcome: the reply could not be checked
_SMALLEST_WIDTH = 64  # tokens that are scored in a row


class HostProbe(Protocol):
    """What probes ask of a task that host code plays."""

    qualities: Mapping[str, str]  # definitions of what a reply is worth, by name
    primary: str | None
    covariates: Mapping[str, str]  # definitions; whole numbers, or NaN
    has_tools: bool  # whether turns call tools, and `Answer.call_ok` says how that went

    def values(self, answer: Answer) -> Mapping[str, float]:
        """What a reply is worth, by quality; of one that was graded, or cut off."""

    def describe(self, answers: Sequence[Answer]) -> Mapping[str, float]:
        """Covariates of the state behind these answers."""


@struct.dataclass
class Episodes:
    """Trajectories, and who sampled them; a pytree with leading axis B."""

    played_B: np.ndarray  # object: rollout.seats.Played
    version: int = struct.field(pytree_node=False)  # updates that the policy had seen

    def __len__(self) -> int:
        return len(self.played_B)


class HostArena:
    """One split of a task that host code plays, at one enforced budget, see `arena.Arena`.

    The first policy that plays is the base: the errors that `inject` puts into histories are errors it made.

    Args:
        game: the split; its task is a `tasks.base.HostTask`.
        probe: what probes ask of the task.
        budget: turns allowed, and told where the task tells them.
        temperature: of sampling and scoring, above 0; nothing is filtered.
        rows: most trajectories in a batch that is scored.
        batch_tokens: most tokens in such a batch, padding included; one trajectory may be longer.
        seed: of everything drawn.
        think_ids: opening and closing token of reasoning, where the policy may reason.
        settings: how much is under way at one time.
    """

    def __init__(
        self,
        game: Game,
        probe: HostProbe,
        *,
        budget: int,
        temperature: float = 1.0,
        rows: int = 512,
        batch_tokens: int = 2**16,
        seed: int = 0,
        think_ids: tuple[int, int] | None = None,
        settings: CollectSettings | None = None,
    ):
        self._game, self._probe, self._budget, self._seed = game, probe, budget, seed
        self._sampling, self._think_ids = SamplingSettings(temperature), think_ids
        self._rows, self._batch_tokens, self._settings = rows, batch_tokens, settings or CollectSettings()
        self.qualities, self.primary, self.covariates = probe.qualities, probe.primary, probe.covariates
        self.t_max: int = game.task.t_max
        self._errors: dict[int, list[tuple[str, Said]]] | None = None  # of the base, by instance
        self._context = 0  # tokens that a trajectory may have under every policy that has played

    def play(self, policy: Policy, *, samples: int) -> Episodes:
        """Play `samples` whole episodes of every instance.

        Raises:
            SandboxError: the environments failed in all of them.
        """
        instances = np.arange(len(self._game.instances))
        requests = [
            Request(instance, self._budget, row_id)
            for instance, ids in zip(instances.tolist(), episode_ids(instances, samples).tolist(), strict=True)
            for row_id in ids
        ]
        played = self._collect(policy, requests, PLAY)
        if all(one.stop in MACHINERY for one in played):
            raise SandboxError(
                "an analysis needs episodes whose environments work and can be checked",
                value=f"all {len(played)} failed: {played[0].stop.value} {played[0].failure}".strip(),
                remedy="Mend the cause and run it again.",
            )
        if self._errors is None:
            self._errors = _genuine_errors(played)
        own = policy.model.max_position_embeddings
        self._context = min(self._context or own, own, self._settings.max_context or own)
        return Episodes(_objects(played), policy.update)

    def visits(self, episodes: Episodes) -> Visits:
        """Every state on the way of those episodes, but those whose name the machinery failed to give."""
        rows = [
            (row, turn, played.request.instance, self._budget - turn, self._name(played.request.instance, answer))
            for row, played in enumerate(episodes.played_B)
            for turn, answer in enumerate(played.answers)
            if answer.state_key
        ]
        numbers = [np.array([row[column] for row in rows], int) for column in range(4)]
        return Visits(*numbers, [name for *_, name in rows])

    def positions(self, episodes: Sequence[Episodes], source_S, row_S, turn_S) -> Positions:
        """Take up states of `episodes[source_S]` again."""
        places = zip(*(np.asarray(column, int).tolist() for column in (source_S, row_S, turn_S)), strict=True)
        return self._describe([history_before(episodes[s].played_B[row], turn) for s, row, turn in places])

    def act(self, policies: Sequence[Policy], positions: Positions, *, replies: int) -> Replies:
        """Sample replies of every policy from the same bytes."""
        found = [self._go_on(policy, positions, replies, ACT, turns=1) for policy in policies]
        seen: list[dict[tuple, int]] = [{} for _ in range(len(positions))]
        outcome_SN = [self._outcomes(episodes, seen, replies) for episodes in found]
        names = [tuple(name for name, *_ in of_state) for of_state in seen]
        return Replies(outcomes=names, outcome_SN=outcome_SN, rows=found)

    def exact(self, positions: Positions, replies: Replies) -> dict[str, list[list[float | None]]]:
        """What every outcome that occurred is worth, by quality and state; equal outcomes are worth the same."""
        del positions
        values = {name: _blank(replies.outcomes) for name in self.qualities}
        for state, outcome, played in _one_reply_each(replies):
            for name, value in self._probe.values(played.answers[-1]).items():
                values[name][state][outcome] = float(value)
        return values

    def monte_carlo(
        self, reference: Policy, positions: Positions, replies: Replies, *, rollouts: int
    ) -> list[list[float | None]]:
        """Success of `reference` when it goes on behind each outcome; None where no continuation could be checked."""
        values = _blank(replies.outcomes)
        places, histories = [], []
        for state, outcome, played in _one_reply_each(replies):
            stop = played.answers[-1].stop
            if stop is not None:
                values[state][outcome] = float(stop is StopReason.SUCCESS)
                continue
            places.append((state, outcome))
            histories.append(positions.starts[state].behind(played))
        ids_SN = row_ids(positions, rollouts)[[state for state, _ in places]]
        success_UN = _success(self._continue(reference, histories, ids_SN, VALUE, turns=None), rollouts)
        for (state, outcome), success_N in zip(places, success_UN, strict=True):
            known = success_N[~np.isnan(success_N)]
            values[state][outcome] = float(known.mean()) if len(known) else None
        return values

    def optimum(self, positions: Positions) -> np.ndarray | None:
        """Best probability of success: None, nobody knows it."""
        del positions

    def inject(self, positions: Positions) -> Errors:
        """Replace the next turn of every position by an error, in the history as the agent's own.

        The error is a reply that the base gave to the same instance, drawn from all of its errors there by the state's
        name; it is put there only where it is one again.

        Raises:
            ArgumentError: nobody has played yet.
        """
        if self._errors is None:
            raise ArgumentError("the base must play before its errors are known", value=None, remedy="Call play first.")
        drawn = [self._draw_error(positions, state) for state in range(len(positions))]
        histories: list[History] = positions.starts.tolist()
        behind = put_errors(
            self._game.task,
            self._settings,
            histories,
            [said for _, said in drawn],
            budget=self._budget,
            context=self._context,
            key=stream_key(self._seed, FINISH),
        )
        after = self._describe([new or old for new, old in zip(behind, histories, strict=True)])
        ok_S = np.array([new is not None for new in behind], bool)
        return Errors(ok_S, [name for name, _ in drawn], after)

    def finish(self, policy: Policy, positions: Positions, *, continuations: int) -> tuple[np.ndarray, Episodes]:
        """Play on to the end of the budget: success, float64 [S, N], NaN where it is not known; and the episodes."""
        episodes = self._go_on(policy, positions, continuations, FINISH, turns=None)
        return _success(episodes, continuations), episodes

    def score(self, policy: Policy, episodes: Episodes, *, last_only: bool = False) -> Scores:
        """Score what was sampled under any policy; of every turn, or of the last one alone."""
        if not len(episodes):
            nothing_BT = np.zeros((0, self.t_max))
            return Scores(nothing_BT, nothing_BT, nothing_BT.astype(int))
        rollout = to_rollout(episodes.played_B, t_max=self.t_max, groups_B=np.zeros(len(episodes)))
        rollout = last_turns(rollout) if last_only else rollout
        scored_BL = rollout.batch.loss_mask_BL
        return score_rollout(
            policy,
            rollout,
            n_turns=self.t_max,
            width=bucket(int(scored_BL.sum(axis=1).max()), _SMALLEST_WIDTH),
            rows=max(1, min(self._rows, self._batch_tokens // scored_BL.shape[1])),
            temperature=self._sampling.temperature,
            think_ids=self._think_ids,
        )

    def columns(self, episodes: Episodes) -> dict[str, Any]:
        """Outcomes of whole episodes: task, success, stop, n_turns, quality, best_quality, call_ok.

        Success, and the quality of the last turn, are None where the machinery failed.
        """
        played: list[Played] = episodes.played_B.tolist()
        return {
            "task": [one.request.instance for one in played],
            "success": [one.success if is_known(one) else None for one in played],
            "stop": [one.stop.value for one in played],
            "n_turns": [len(one.answers) for one in played],
            "quality": [_qualities(one) for one in played],
            "best_quality": [[answer.best_quality for answer in one.answers] for one in played],
            "call_ok": [[answer.call_ok for answer in one.answers] for one in played]
            if self._probe.has_tools
            else None,
        }

    def read(self, episodes: Episodes, rows: Sequence[int]) -> list[Trajectory]:
        """Some episodes, for people."""
        played = [episodes.played_B[row] for row in rows]
        return list(
            to_host_trajectories(
                played,
                self._game.instances,
                self._game.tokenizer,
                t_max=self.t_max,
                policy_version=episodes.version,
                groups=[one.request.instance for one in played],
            )
        )

    def _collect(self, policy: Policy, requests: Sequence[Request], stream: int) -> list[Played]:
        if not requests:
            return []
        fixed = policy.model, self._game.task, self._sampling, self._settings, policy.params
        return collect(*fixed, requests, key=stream_key(self._seed, stream))[0]

    def _go_on(self, policy: Policy, positions: Positions, copies: int, stream: int, *, turns: int | None) -> Episodes:
        histories = positions.starts.tolist()
        return self._continue(policy, histories, row_ids(positions, copies), stream, turns=turns)

    def _continue(
        self, policy: Policy, histories: list[History], ids_SN: np.ndarray, stream: int, *, turns
    ) -> Episodes:
        """Let a policy go on from each history, a copy for each identity of its row."""
        whence = [history for history, ids in zip(histories, ids_SN, strict=True) for _ in ids]
        requests = [
            history.request(self._budget, row_id, turns)
            for history, row_id in zip(whence, ids_SN.reshape(-1).tolist(), strict=True)
        ]
        played = self._collect(policy, requests, stream)
        return Episodes(_objects([gone_on(*pair) for pair in zip(whence, played, strict=True)]), policy.update)

    def _describe(self, histories: Sequence[History]) -> Positions:
        found = [self._probe.describe(history.answers) for history in histories]
        return Positions(
            task_S=np.array([history.instance for history in histories], int),
            turns_left_S=np.array([self._budget - len(history.said) for history in histories], int),
            keys=[self._name(history.instance, history) for history in histories],
            covariates={name: np.array([one[name] for one in found], np.float64) for name in self.covariates},
            starts=_objects(histories),
        )

    def _name(self, instance: int, what: Answer | History) -> str:
        """Name of a state: that of its instance, and what the task calls it."""
        owner = self._game.instances.instance_id(instance)
        return f"{owner}/{what.state_key.removeprefix(f'{owner}/')}"

    def _outcomes(self, episodes: Episodes, seen: list[dict[tuple, int]], copies: int) -> np.ndarray:
        """Index of what each reply amounts to, int [S, N]; new outcomes are entered into `seen`."""
        outcome_B = np.full(len(episodes), UNKNOWN)
        for row, played in enumerate(episodes.played_B):
            if is_known(played):
                answer = played.answers[-1]
                outcome = _amounts_to(answer), *sorted(self._probe.values(answer).items())
                of_state = seen[row // copies]
                outcome_B[row] = of_state.setdefault(outcome, len(of_state))
        return outcome_B.reshape(-1, copies)

    def _draw_error(self, positions: Positions, state: int) -> tuple[str, Said | None]:
        """Name of the error to be put in place of the next turn, and its words; none on the last turn."""
        pool = self._errors.get(int(positions.task_S[state]), [])
        left = int(positions.turns_left_S[state])
        if left < 2 or not pool:  # an error without a turn behind it cannot be recovered from
            return "", None
        return pool[checksum(f"{self._seed} {positions.keys[state]} {left}") % len(pool)]


def _genuine_errors(played: Sequence[Played]) -> dict[int, list[tuple[str, Said]]]:
    """Sampled replies that were errors, by instance, as often as they were made."""
    found = collections.defaultdict(list)
    for one in played:
        for turn, answer in enumerate(one.answers):
            if answer.is_error:
                ids = tuple(token for token, of in zip(one.row.ids, one.row.turns, strict=True) if of == turn)
                found[one.request.instance].append((str(answer.parsed_action), Said(ids, sampled=False)))
    return dict(found)


def _amounts_to(answer: Answer) -> str | None:
    """Name of what a reply amounts to: its action, None for an unusable one, `CUT` for one without an end."""
    limits = (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_LIMIT)
    return CUT if answer.parsed_action is None and answer.stop in limits else answer.parsed_action


def _one_reply_each(replies: Replies) -> Iterator[tuple[int, int, Played]]:
    """(state, outcome, reply) of every outcome that occurred: the first reply with it, the first policy's before."""
    seen = set()
    for outcome_SN, episodes in zip(replies.outcome_SN, replies.rows, strict=True):
        for row, outcome in enumerate(outcome_SN.reshape(-1).tolist()):
            state = row // outcome_SN.shape[1]
            if outcome != UNKNOWN and (state, outcome) not in seen:
                seen.add((state, outcome))
                yield state, outcome, episodes.played_B[row]


def _blank(outcomes: Sequence[Sequence[Any]]) -> list[list[float | None]]:
    return [[None] * len(names) for names in outcomes]


def _success(episodes: Episodes, copies: int) -> np.ndarray:
    """Success, float64 [S, N]; NaN where it is not known."""
    success = [float(played.success) if is_known(played) else np.nan for played in episodes.played_B]
    return np.array(success, np.float64).reshape(-1, copies)


def _qualities(played: Played) -> list[float | None]:
    values: list[float | None] = [answer.quality for answer in played.answers]
    if values and not is_known(played):
        values[-1] = None
    return values


def _objects(items: Sequence[Any]) -> np.ndarray:
    """An array of objects, whatever they are: what trees of arrays may hold."""
    found = np.empty(len(items), object)
    for index, item in enumerate(items):
        found[index] = item
    return found
