"""An imperfect programmer of DeepCoder-MT, whose episodes teach a new model the form before reinforcement learning."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os

import numpy as np

from jaxrl_agent.config import WarmStartConfig
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import Status
from jaxrl_agent.tasks.base import Demonstration
from jaxrl_agent.tasks.coding.mistakes import mutants
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.coding.reading import last_block
from jaxrl_agent.tasks.deepcoder import CodingEpisode, CodingTask
from jaxrl_agent.types import StopReason

BUDGET_LEVELS = 10  # of rollout.budget
UNFENCED = 0.05  # share of mistakes that are a right program without its fence
MOST_MUTANTS = 6  # of a problem without wrong programs of its own
SCREEN_CPU_S = 1.0  # CPU seconds that a mutant may take for a public test
_ATTEMPTS = 3  # at a demonstration, while the sandbox fails


def demonstrations(
    task: CodingTask,
    count: int,
    *,
    seed: int,
    config: WarmStartConfig,
    context: int | None = None,
    workers: int | None = None,
) -> list[Demonstration]:
    """Play episodes with reference solutions and mistakes, and give their rows as a rollout would have them.

    A demonstration draws a problem, one of the ten budgets of BudgetMix, and for each turn whether to make a mistake:
    with probability `config.random_move`, and `config.repeat_mistake` after a mistake. From turn `config.turns` on
    there are none. A mistake is a program that really fails a public test, one of the problem's own or the reference
    changed in one place, and gets its real feedback; where there is none the reference comes at once. An episode may
    end by its budget, in failure. A demonstration depends on the seed, its number and the task alone.

    With probability `config.unfenced` the first reply forgets the fence, and after it each next one with probability
    `config.repeat_unfenced`: a habit of form, which costs turns however good the program is.

    Args:
        task: the split to play. Problems without a reference, with one longer than a reply, or with a statement that
            leaves no room for a reply are left out.
        count: demonstrations.
        seed: of all draws.
        config: how often mistakes are made.
        context: tokens that a row has room for; None for no limit.
        workers: episodes played at the same time; None for two a core.

    Raises:
        ArgumentError: no problem can be demonstrated.
        SandboxError: the sandbox failed again and again.
    """
    programmer = _Programmer(task, config, context)
    workers = workers or 2 * (os.cpu_count() or 2)
    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="demonstration") as pool:
        return list(pool.map(lambda number: programmer.play(seed, number), range(count)))


class _Programmer:
    """Plays single demonstrations; safe to be used from many threads."""

    def __init__(self, task: CodingTask, config: WarmStartConfig, context: int | None):
        self.task, self.config, self.context = task, config, context
        self.known = [number for number, problem in enumerate(task.problems) if self._has_room(number, problem)]
        if not self.known:
            raise ArgumentError(
                f"a problem must have a solution that fits into a reply of {task.max_tokens} tokens, and leave it room",
                value=f"none of {len(task)} problems",
                remedy="Raise config.task.max_tokens or max_context, take another source, or set warm_start.updates=0.",
            )
        self.screen = task.grader.within(SCREEN_CPU_S)  # of mutants: many of them never end, and teach little

    def play(self, seed: int, number: int) -> Demonstration:
        """Play one demonstration."""
        for _ in range(_ATTEMPTS):
            episode = self._episode(np.random.default_rng([seed, number]))
            if episode.stop is not StopReason.COULD_NOT_CHECK:
                return Demonstration(episode.row, episode.stop is StopReason.SUCCESS)
        raise SandboxError("a demonstration must be graded", value=episode.problem.problem_id)

    def _episode(self, rng: np.random.Generator) -> CodingEpisode:
        task, config = self.task, self.config
        instance = self.known[rng.integers(len(self.known))]
        level = rng.integers(1, BUDGET_LEVELS + 1)
        budget = max(1, (int(level) * task.t_max + BUDGET_LEVELS - 1) // BUDGET_LEVELS)
        episode = task.reset(instance, budget=budget, context=self.context)
        bare = config.unfenced > 0 and rng.random() < config.unfenced
        chance = config.random_move
        while not episode.stop:
            may_err = episode.n_turns < config.turns - 1
            if bare and may_err:
                episode.step(episode.problem.solution.strip("\n"))
                bare = rng.random() < config.repeat_unfenced
                continue
            reply = self._mistake(episode.problem, rng) if may_err and rng.random() < chance else None
            chance = config.random_move if reply is None else config.repeat_mistake
            episode.step(self._fenced(episode.problem.solution) if reply is None else reply)
        return episode

    def _mistake(self, problem: Problem, rng: np.random.Generator) -> str | None:
        """Draw a reply whose program fails a public test, or rarely a fence is missing; None where there is none."""
        if rng.random() < UNFENCED:
            return problem.solution.strip("\n")
        programs, judged, grader = problem.wrong, problem, self.task.grader
        if not programs:
            programs = mutants(problem.solution)
            programs = [programs[place] for place in _spread(len(programs), MOST_MUTANTS)]
            judged, grader = dataclasses.replace(problem, hidden=()), self.screen
        for place in rng.permutation(len(programs)):
            if self._fits(programs[place]):
                reply = self._fenced(programs[place])
                grade = grader.grade(judged, last_block(reply))  # the very text that the episode will grade
                in_time = Status.TIME_LIMIT not in grade.statuses
                if in_time and not grade.could_not_check and not grade.all_public:
                    return reply
        return None

    def _has_room(self, number: int, problem: Problem) -> bool:
        """Whether a reply may hold the solution, and the context any first reply at all."""
        return self._fits(problem.solution) and not self.task.reset(number, budget=1, context=self.context).stop

    def _fits(self, program: str) -> bool:
        reply = self._fenced(program)
        return last_block(reply) is not None and len(self.task.encode(reply)) <= self.task.max_tokens

    def _fenced(self, program: str) -> str:
        language = "python" if self.task.config.text == "chat" else ""
        return f"```{language}\n{program.strip(chr(10))}\n```"


def _spread(count: int, most: int) -> list[int]:
    """At most `most` places of `count`, evenly spread."""
    return sorted({place * count // most for place in range(most)}) if count > most else list(range(count))
