"""Rollouts with environments that run on the host, beside the accelerator.

N trajectories share a few lanes. While some rows are decoded on the device, the environments of others are at work in a
pool of threads; between two windows answered rows get the lanes of those that now wait, and fresh trajectories those of
finished ones. Every row keeps its cache from its first token to its last, and a trajectory's tokens hang on its own key
alone, whatever else is under way.

    open     make the episode                        (pool)
    enter    read the prompt or the observation      (device, as many rows as come in)
    decode   reply, until enough rows have finished  (device, all lanes)
    step     play the reply                          (pool)

An answer is taken up a fixed number of decode steps after the reply that it belongs to, and waited for if it is late.
So what shares a window is decided by the tokens alone, and a rollout comes out the same to the last bit however long
environments take. (With 0 steps answers are taken up as they come.)

On a pod every process decides the same, because all of them hear the same answers: trajectory i is played by process
i modulo their number, and answers are exchanged between windows.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agent.errors import ArgumentError, ConfigError
from jaxrl_agent.models.qwen3 import Params, Qwen3Config
from jaxrl_agent.parallel.distributed import exchange
from jaxrl_agent.rollout.decoding import WINDOW
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.environment_pool import EnvironmentPool, Failure
from jaxrl_agent.rollout.lanes import LANE, SHELF, STOCK, LaneInput, Lanes, Move
from jaxrl_agent.rollout.seats import Opening, Played, Request, Seat, State, checked, open_episode, unanswered
from jaxrl_agent.rollout.starts import row_streams
from jaxrl_agent.tasks.base import Answer, Episode, HostTask
from jaxrl_agent.types import StopReason

_SHORT_WINDOW = 16  # tokens before the host looks again while lanes stand empty
_PATIENCE_S = 0.05  # longest wait for an answer before the other processes are asked


@dataclasses.dataclass(frozen=True)
class CollectSettings:
    """How many trajectories are held and played at one time."""

    lanes: int = 32  # rows decoded at one time
    shelf: int = 32  # further rows whose cache waits while their environments run
    environments: int = 0  # environments that run at one time; 0 = one less than cores
    environment_seconds: float = 300.0  # longest turn of an environment
    answer_steps: int = 32  # decode steps after which an answer is taken up; 0 = whenever it comes
    max_context: int = 0  # ids of one trajectory; 0 = all that the model has


@dataclasses.dataclass
class CollectStats:
    """Where the time went, and what failed."""

    live_steps: int = 0  # decode steps of rows that gained a token
    lane_steps: int = 0  # decode steps of all lanes
    windows: int = 0
    moves: int = 0
    sampled_tokens: int = 0
    decode_seconds: float = 0.0
    wait_seconds: float = 0.0  # in which nothing was decoded because an answer was late
    environment_turns: int = 0
    environment_seconds: float = 0.0  # summed over turns
    failures: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # by stop and message

    @property
    def live_share(self) -> float:
        """Share of the lanes' decode steps in which a row gained a token."""
        return self.live_steps / max(self.lane_steps, 1)

    def to_json(self) -> dict[str, Any]:
        """Figures for metrics.jsonl: shares, counts and seconds."""
        return {
            "live_share": self.live_share,
            "windows": self.windows,
            "moves": self.moves,
            "decode_s": self.decode_seconds,
            "wait_s": self.wait_seconds,
            "turns": self.environment_turns,
            "turn_s": self.environment_seconds / max(self.environment_turns, 1),
            "failures": dict(self.failures.most_common(10)),
        }


def collect(
    config: Qwen3Config,
    task: HostTask,
    sampling: SamplingSettings,
    settings: CollectSettings,
    params: Params,
    requests: Sequence[Request],
    *,
    key: jax.Array,
) -> tuple[list[Played], CollectStats]:
    """Play trajectories to their end.

    Args:
        config: the model.
        task: the game.
        sampling: how tokens are drawn.
        settings: how much is under way at one time; it changes no token but by rounding.
        params: model parameters.
        requests: what is wanted; members of a group should stand together, so that they fork one prompt.
        key: consumed: every row folds its identity in.

    Returns:
        The trajectories in the order of the requests, and where the time went. A trajectory whose environment raised,
        took too long or could not be checked is among them, under a stop reason that says so.

    Raises:
        ArgumentError: no request, or an identity out of range.
        NonFiniteError: a log-probability that is not finite.
    """
    if not requests:
        raise ArgumentError("a rollout needs at least one request", value=len(requests))
    context = min(settings.max_context or config.max_position_embeddings, config.max_position_embeddings)
    check_reply_fits(task.max_tokens, context)
    lanes = min(settings.lanes, len(requests))
    shelf = min(settings.shelf, len(requests) - lanes)
    device = Lanes(config, params, sampling, task.stop_ids, lanes=lanes, shelf=shelf)
    with EnvironmentPool(settings.environments, settings.environment_seconds) as pool:
        return _Rollout(task, device, pool, requests, key, context, settings.answer_steps).run()


def check_reply_fits(max_tokens: int, context: float) -> None:
    """Refuse trajectories of `context` tokens in which no reply of `max_tokens` has room behind a prompt.

    Raises:
        ConfigError: there is none.
    """
    if context <= max_tokens:
        raise ConfigError(
            f"a trajectory must have room for a reply of config.task.max_tokens ({max_tokens}) tokens",
            value=context,
            remedy="Lower it, raise config.task.max_context, or take a model with a longer context.",
        )


class _Rollout:
    """One call of `collect`."""

    def __init__(self, task: HostTask, device: Lanes, pool: EnvironmentPool, requests, key, context: int, delay: int):
        self._task, self._device, self._pool, self._context, self._delay = task, device, pool, context, delay
        self._step = 0  # decode steps so far
        self._heard: dict[int, tuple[Any, float]] = {}  # answers that are early
        self._stop_ids = frozenset(task.stop_ids)
        ids_N = np.array([request.row_id for request in requests], np.uint32)
        token_keys_N2, self._world_keys_N2 = jax.device_get(_key_data(key, ids_N))
        self._waiting = collections.deque(
            Seat(number, request, token_keys_N2[number]) for number, request in enumerate(requests)
        )
        self._seats: dict[int, Seat] = {}
        self._episodes: dict[int, Episode] = {}
        self._played: list[Played | None] = [None] * len(requests)
        self._lanes: list[Seat | None] = [None] * device.count
        self._free_shelf = list(range(device.shelf_count))
        self._stock: dict[tuple[int, ...], int] = {}
        self._least_lanes = max(1, device.count // 8)
        self._capacity = device.count + device.shelf_count
        self._stats = CollectStats()

    def run(self) -> tuple[list[Played], CollectStats]:
        try:
            while self._waiting or self._seats:
                self._open_more()
                self._hear()
                while moves := self._plan_moves():
                    self._enter(moves)
                self._shrink()
                if any(self._live()):
                    self._decode()
        finally:  # an error ends the rollout amid its episodes
            for seat in self._seats.values():
                self._close(seat)
        return [played for played in self._played if played is not None], self._stats

    # ---- environments

    def _open_more(self) -> None:
        while self._waiting and len(self._seats) < self._capacity:
            seat = self._waiting.popleft()
            self._seats[seat.number] = seat
            self._submit(seat, functools.partial(self._open, seat))

    def _submit(self, seat: Seat, call: Any) -> None:
        seat.due = self._step + self._delay
        if seat.number % jax.process_count() == jax.process_index():
            self._pool.submit(seat.number, call)

    def _open(self, seat: Seat) -> Opening:
        key = jax.random.wrap_key_data(self._world_keys_N2[seat.number])
        episode, opening = open_episode(self._task, seat.request, key=key, context=self._context)
        self._episodes[seat.number] = episode
        if seat.state is State.DONE and self._episodes.pop(seat.number, None):  # given up before it opened
            episode.close()
        return opening

    def _hear(self) -> None:
        """Take up the answers that are due, or that have come; with nothing to decode, wait for the next."""
        pending = [seat for seat in self._seats.values() if seat.state in (State.OPENING, State.WAITING)]
        idle = not any(seat.state in (State.LIVE, State.NEW, State.READY) for seat in self._seats.values())
        if idle:
            self._step = max(self._step, min(seat.due for seat in pending))
        began = time.perf_counter()
        if self._delay:
            due = sorted((seat.due, seat.number) for seat in pending if seat.due <= self._step)
            while not all(number in self._heard for _, number in due):
                self._listen(_PATIENCE_S)
            taken = [number for _, number in due]
        else:
            self._listen(_PATIENCE_S if idle else 0.0)
            taken = sorted(self._heard)
        self._stats.wait_seconds += time.perf_counter() - began
        for number in taken:
            self._take(self._seats[number], *self._heard.pop(number))

    def _listen(self, wait_s: float) -> None:
        for number, outcome, seconds in exchange(self._pool.results(wait_s=wait_s)):
            self._heard[number] = (outcome, seconds)

    def _take(self, seat: Seat, outcome: Opening | Answer | Failure, seconds: float) -> None:
        if isinstance(outcome, Failure):
            if seat.state is State.WAITING:
                seat.answers.append(unanswered(outcome.stop, outcome.message))
            self._stats.failures[f"{outcome.stop.value}: {outcome.message}"] += 1
            self._finish(seat, outcome.stop, outcome.message)
        elif isinstance(outcome, Opening):
            seat.open(outcome)
            if outcome.stop is not None or seat.length >= self._context:
                self._finish(seat, outcome.stop or StopReason.CONTEXT_LIMIT)
        else:
            self._stats.environment_turns += 1
            self._stats.environment_seconds += seconds
            seat.answers.append(outcome)
            if outcome.stop is not None or seat.turns_left <= 0:  # an episode may ignore its budget
                self._finish(seat, outcome.stop or StopReason.BUDGET)
            elif seat.length + len(outcome.observation) >= self._context:  # an episode that ignores its limit
                self._finish(seat, StopReason.CONTEXT_LIMIT)
            else:
                seat.read(outcome.observation)

    def _finish(self, seat: Seat, stop: StopReason, failure: str = "") -> None:
        self._played[seat.number] = seat.finish(stop, failure)
        self._leave(seat)
        del self._seats[seat.number]
        self._close(seat)

    def _close(self, seat: Seat) -> None:
        """Close its episode if there is one; one that opens later closes itself."""
        seat.state = State.DONE
        if (episode := self._episodes.pop(seat.number, None)) is not None:
            self._pool.forget(episode.close)

    def _leave(self, seat: Seat) -> None:
        """Give up its lane and its place on the shelf."""
        if seat.lane is not None:
            self._lanes[seat.lane] = None
        if seat.shelf is not None:
            self._free_shelf.append(seat.shelf)
        seat.lane = seat.shelf = None

    # ---- lanes

    def _live(self) -> list[Seat]:
        return [seat for seat in self._lanes if seat is not None and seat.state is State.LIVE]

    def _plan_moves(self) -> list[Move]:
        """Give lanes to rows that can go on: first to those that are there, then to those with the most turns left.

        So trajectories grow side by side, and few rows are left to themselves at the end.
        """
        width, lanes = self._device.move_width, self._free_lanes()
        ready = [seat for seat in self._seats.values() if seat.state is State.READY]
        seated = [seat for seat in ready if seat.lane is not None]
        moves = [self._move(seat, LANE, seat.lane, seat.lane) for seat in seated[:width]]
        fresh = [seat for seat in self._seats.values() if seat.state is State.NEW]
        others = sorted([seat for seat in ready if seat.lane is None] + fresh, key=_most_turns_left)
        if fresh and lanes and not moves:
            self._read_prompts([seat for seat in others if seat.state is State.NEW])
        for seat in others:
            if not lanes or len(moves) == width:
                break
            if seat.state is State.READY:
                moves.append(self._move(seat, SHELF, seat.shelf, lanes.pop(0)))
            elif (place := self._stock.get(tuple(seat.row.ids))) is not None:
                moves.append(self._move(seat, STOCK, place, lanes.pop(0)))
        return moves

    def _free_lanes(self) -> list[int]:
        """Lanes without a row, then those whose row waits for its environment."""
        empty = [lane for lane, seat in enumerate(self._lanes) if seat is None]
        waiting = [lane for lane, seat in enumerate(self._lanes) if seat is not None and seat.state is State.WAITING]
        return empty + waiting

    def _read_prompts(self, fresh: Sequence[Seat]) -> None:
        """Have the prompts of the first fresh rows in stock, unless one of them is there."""
        prompts = list(dict.fromkeys(tuple(seat.row.ids) for seat in fresh))
        if prompts[0] not in self._stock:
            prompts = prompts[: self._device.move_width]
            self._device.read_prompts(prompts)
            self._stock = {prompt: place for place, prompt in enumerate(prompts)}

    def _move(self, seat: Seat, source: int, place: int, lane: int) -> Move:
        """Book the lane for a row, and a place on the shelf for the row that leaves it."""
        other = self._lanes[lane]
        if source == SHELF:
            self._free_shelf.append(place)
        shelf = None
        if other is not None and other is not seat:
            shelf = other.shelf = self._free_shelf.pop()  # there is one: seats are no more than lanes and places
            other.lane = None
        self._lanes[lane], seat.lane, seat.shelf = seat, lane, None
        move = Move(source, place, lane, shelf, seat.unread)
        seat.begin_reply(min(self._task.max_tokens, self._context - seat.length))
        return move

    def _enter(self, moves: list[Move]) -> None:
        self._device.reserve(max(self._lanes[move.lane].length for move in moves))
        self._device.enter(moves)
        self._stats.moves += len(moves)

    def _shrink(self) -> None:
        """Halve the lanes once half of them are enough for all that is left."""
        half = self._device.count // 2
        if self._waiting or half < self._least_lanes or len(self._seats) > half:
            return
        kept = [lane for lane, seat in enumerate(self._lanes) if seat is not None]
        self._device.shrink(kept, half)
        self._lanes = [self._lanes[lane] for lane in kept] + [None] * (half - len(kept))
        for lane, seat in enumerate(self._lanes):
            if seat is not None:
                seat.lane = lane

    def _decode(self) -> None:
        live, given = self._live(), LaneInput.empty(self._device.count)
        for seat in live:
            given.keys_B2[seat.lane] = seat.key_2
            given.last_B[seat.lane], given.allowed_B[seat.lane] = seat.row.ids[-1], seat.allowed
        self._device.reserve(max(seat.length - 1 + min(seat.allowed, WINDOW) for seat in live))
        began = time.perf_counter()
        enough = max(0, len(live) - max(1, self._device.count // 8))
        gained = self._device.decode(given, enough=enough, steps=self._window(len(live)))
        self._step += gained.steps
        self._note(gained, time.perf_counter() - began)
        for seat in live:
            seat.gain(gained.tokens[seat.lane], gained.logprobs[seat.lane], self._stop_ids)
            if seat.state is State.WAITING:
                self._submit(seat, functools.partial(self._step_episode, seat.number, list(seat.reply)))

    def _window(self, live: int) -> int:
        """Steps until a row could take one of the lanes that stand empty."""
        coming = [seat.due for seat in self._seats.values() if seat.state in (State.OPENING, State.WAITING)]
        if live == self._device.count or not coming:
            return WINDOW
        return max(1, min(coming) - self._step) if self._delay else _SHORT_WINDOW

    def _step_episode(self, number: int, reply: list[int]) -> Answer:
        return checked(self._episodes[number].step(reply))

    def _note(self, gained: Any, seconds: float) -> None:
        tokens, stats = sum(map(len, gained.tokens)), self._stats
        stats.windows += 1
        stats.live_steps += tokens
        stats.sampled_tokens += tokens
        stats.lane_steps += gained.steps * self._device.count
        stats.decode_seconds += seconds


def _most_turns_left(seat: Seat) -> tuple[int, int]:
    return -seat.turns_left, seat.number


@jax.jit
def _key_data(key: jax.Array, row_ids_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    token_keys_B, world_keys_B = row_streams(key, row_ids_B)
    return jax.random.key_data(token_keys_B), jax.random.key_data(world_keys_B)
