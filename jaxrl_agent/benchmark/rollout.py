"""Sampled tokens a second of whole rollouts, environments at work beside the accelerator.

    reproducible    `rollout.collect`, each answer taken up 32 decode steps after its reply, late or not
    as_they_come    `rollout.collect`, answers taken up whenever they come
    lockstep        the yardstick: all episodes advance together; each turn reads every history anew, decodes all
                    replies until the last one is over, then runs all environments

The three play the same episodes with the same model (preset tiny, random weights), the same random numbers and a pool
of environments of the same size, so that they differ in their schedule alone. The size is the number of episodes. An
episode has 2 to 10 turns; what it says has 8 to 64 tokens; its turns sleep for 50 ms. A reply ends with a chance of 4%
at each token, after 64 tokens at the latest: 23 on average. Environments sleep, so rates are by the clock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agent.benchmark.timing import Contestant
from jaxrl_agent.models.qwen3 import Params, Qwen3Config, init_params
from jaxrl_agent.models.sizes import PRESETS
from jaxrl_agent.rollout.buckets import bucket, power_of_two
from jaxrl_agent.rollout.collect import CollectSettings, CollectStats, collect
from jaxrl_agent.rollout.decoding import WINDOW, decode_params, decode_window, empty_cache
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.environment_pool import EnvironmentPool
from jaxrl_agent.rollout.sampler import feed
from jaxrl_agent.rollout.seats import Request
from jaxrl_agent.rollout.starts import row_streams
from jaxrl_agent.tasks.base import Answer
from jaxrl_agent.types import StopReason, TokenRow

UNIT = "sampled tokens"
PRESET = "tiny"
ANSWER_STEPS = {"reproducible": 32, "as_they_come": 0}
_STOP_IDS = 20  # of the preset's 512 ids, which random weights choose about equally often
_TURNS, _WORDS = (2, 10), (8, 64)  # fewest and most
_EPISODES_A_LANE = 8
_LIMIT_S = 120.0


@dataclasses.dataclass(frozen=True)
class Talk:
    """A game without a goal, a `tasks.base.HostTask`: how long its episodes are hangs on their keys alone."""

    vocab_size: int
    episodes: int
    seconds: float  # that a turn sleeps
    t_max: int = _TURNS[1]
    max_tokens: int = 64

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The last ids of the vocabulary."""
        return tuple(range(self.vocab_size - _STOP_IDS, self.vocab_size))

    def __len__(self) -> int:
        return self.episodes

    def reset(self, instance: int, *, budget: int, key: jax.Array, context: int | None = None) -> TalkEpisode:
        """Begin an episode, see `tasks.base.HostTask.reset`."""
        return TalkEpisode(self, np.random.default_rng(np.asarray(jax.random.key_data(key))))


class TalkEpisode:
    """Some turns of random words, see `tasks.base.Episode`."""

    def __init__(self, task: Talk, rng: np.random.Generator):
        self._task, self._rng = task, rng
        self._turns = int(rng.integers(_TURNS[0], _TURNS[1] + 1))
        self.row, self.n_turns, self.stop = TokenRow(), 0, None
        self._say()

    def step(self, reply: Sequence[int] | str, *, sampled: bool = True) -> Answer:
        """Sleep, and say something unless it was the last turn."""
        time.sleep(self._task.seconds)
        self.row.append(list(reply), turn=self.n_turns)
        self.n_turns += 1
        self.stop = StopReason.FAILURE if self.n_turns == self._turns else None
        return Answer([] if self.stop else self._say(), 0.0, self.stop is not None, self.stop, None)

    def close(self) -> None:
        """Nothing is held."""

    def _say(self) -> list[int]:
        words = self._rng.integers(0, self._task.vocab_size - _STOP_IDS, self._rng.integers(_WORDS[0], _WORDS[1] + 1))
        self.row.append(words.tolist())
        return words.tolist()


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all contestants share."""

    config: Qwen3Config
    params: Params
    task: Talk
    environments: int  # at one time

    @property
    def requests(self) -> list[Request]:
        """Each episode once."""
        return [Request(number, self.task.t_max, number) for number in range(len(self.task))]


def contestants(
    n_episodes: tuple[int, ...] = (64,), *, seconds: float = 0.05, environments: int = 64, peers: bool = False
) -> dict[str, Contestant]:
    """Build everything that is timed.

    Args:
        n_episodes: sizes of a rollout.
        seconds: that a turn of an environment takes.
        environments: most environments that run at one time.
        peers: nothing more here.
    """
    config = PRESETS[PRESET]
    params = init_params(config, jax.random.key(0))
    built = {}
    for n in n_episodes:
        setting = Setting(config, params, Talk(config.vocab_size, n, seconds), environments)
        for name, steps in ANSWER_STEPS.items():
            built[f"{name}/{n}"] = _engine(setting, steps)
        built[f"lockstep/{n}"] = Contestant(lambda setting=setting: count_sampled(play_in_lockstep(setting)))
    return built


def engine_settings(setting: Setting, answer_steps: int) -> CollectSettings:
    """A lane for every eighth episode, and room for all the others on the shelf."""
    lanes = max(1, len(setting.task) // _EPISODES_A_LANE)
    return CollectSettings(
        lanes=lanes,
        shelf=len(setting.task) - lanes,
        environments=setting.environments,
        environment_seconds=_LIMIT_S,
        answer_steps=answer_steps,
    )


def play_with_engine(setting: Setting, answer_steps: int) -> tuple[list[TokenRow], CollectStats]:
    """Play all episodes with `rollout.collect`."""
    given = (setting.config, setting.task, SamplingSettings(), engine_settings(setting, answer_steps), setting.params)
    played, stats = collect(*given, setting.requests, key=jax.random.key(0))
    return [one.row for one in played], stats


def play_in_lockstep(setting: Setting) -> list[TokenRow]:
    """Play all episodes turn by turn, each turn behind the slowest reply and the slowest environment."""
    ids_N = np.array([request.row_id for request in setting.requests], np.uint32)
    token_keys_N, world_keys_N = row_streams(jax.random.key(0), ids_N)
    params = decode_params(setting.config, setting.params)
    with EnvironmentPool(setting.environments, _LIMIT_S) as pool:
        opened = _run_all(pool, {n: _opening(setting.task, n, key) for n, key in enumerate(world_keys_N)})
        live = list(opened)
        while live:
            histories = [opened[n].row.ids for n in live]
            replies = _replies(setting, params, histories, token_keys_N[np.array(live)])
            _run_all(pool, {n: _turn(opened[n], reply) for n, reply in zip(live, replies, strict=True)})
            live = [n for n in live if opened[n].stop is None]
    return [episode.row for episode in opened.values()]


def count_sampled(rows: Sequence[TokenRow]) -> int:
    """Tokens that the policy wrote."""
    return sum(sum(row.loss_mask) for row in rows)


def _engine(setting: Setting, answer_steps: int) -> Contestant:
    shares: list[float] = []

    def run() -> int:
        rows, stats = play_with_engine(setting, answer_steps)
        shares.append(stats.live_share)
        return count_sampled(rows)

    used = engine_settings(setting, answer_steps)
    return Contestant(
        run, facts=lambda: {"live_share": min(shares), "lanes": used.lanes, "answer_steps": used.answer_steps}
    )


def _opening(task: Talk, number: int, key: jax.Array) -> Callable[[], TalkEpisode]:
    return lambda: task.reset(number, budget=task.t_max, key=key)


def _turn(episode: TalkEpisode, reply: list[int]) -> Callable[[], Answer]:
    return lambda: episode.step(reply)


def _run_all(pool: EnvironmentPool, jobs: dict[int, Callable[[], Any]]) -> dict[int, Any]:
    """Run jobs to the end of the last one; values by number."""
    for number, job in jobs.items():
        pool.submit(number, job)
    done = {}
    while len(done) < len(jobs):
        done |= {number: value for number, value, _ in pool.results(wait_s=1.0)}
    return dict(sorted(done.items()))


def _replies(setting: Setting, params: Params, histories: list[list[int]], keys_N: jax.Array) -> list[list[int]]:
    """Read whole histories and decode a reply to each, all in one window, with the sampler's own parts and sizes."""
    config, task = setting.config, setting.task
    filler = power_of_two(len(histories)) - len(histories)
    slots = bucket(max(map(len, histories)) - 1 + task.max_tokens, 64)
    cache = empty_cache(config, len(histories) + filler, min(slots, config.max_position_embeddings))
    cache = feed(config, params, cache, [history[:-1] for history in histories])
    stop_ids = sorted(task.stop_ids)
    _, tokens_WB, _, counts_B = decode_window(
        config,
        params,
        cache,
        keys_B=keys_N[np.pad(np.arange(len(histories)), (0, filler))],
        last_B=np.array([history[-1] for history in histories] + [0] * filler, np.int32),
        allowed_B=np.array([min(task.max_tokens, WINDOW)] * len(histories) + [0] * filler, np.int32),
        stop_ids_K=np.array(stop_ids + [-1] * (power_of_two(len(stop_ids)) - len(stop_ids)), np.int32),
        **dataclasses.asdict(SamplingSettings()),
    )
    tokens_WB, counts_B = jax.device_get((tokens_WB, counts_B))
    return [tokens_WB[: counts_B[i], i].tolist() for i in range(len(histories))]
