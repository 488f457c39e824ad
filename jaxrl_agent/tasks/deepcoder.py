"""DeepCoder-MT: programming problems over several turns, with feedback from the tests that the agent may see.

    statement  [program]  failing public tests  [program]  ...  until all public tests pass or the budget is used up

Each submission runs on all tests, public and hidden. All public tests passed, or the last allowed turn: the submission
is final, and it succeeds if all tests pass. Hidden tests never show in what the agent reads. The form follows RLEF
(arXiv 2410.02089) and the multi-turn form that rLLM once had; the single-turn original shows no feedback.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from jaxrl_agent.config import TaskConfig
from jaxrl_agent.errors import ArgumentError, ConfigError
from jaxrl_agent.models.chat_template import ChatIds, Dialogue
from jaxrl_agent.sandbox import Limits, judge_program
from jaxrl_agent.tasks import deepcoder_text
from jaxrl_agent.tasks.base import Answer
from jaxrl_agent.tasks.coding.grading import Grade, Grader, Judge
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.coding.reading import last_block, short_name
from jaxrl_agent.tasks.coding.sources import load_problems
from jaxrl_agent.tasks.spoken import spoken_ids
from jaxrl_agent.types import StopReason, TokenRow

_START, _UNUSABLE = "start", "unusable"


class CodingTask:
    """One split of the task, see `tasks.base.HostTask`.

    Args:
        config: task settings.
        chat: pieces of the chat format.
        problems: the instances.
        grader: runs submissions.
    """

    def __init__(self, config: TaskConfig, chat: ChatIds, problems: Sequence[Problem], grader: Grader):
        self.config, self.chat, self.problems, self.grader = config, chat, tuple(problems), grader
        self.t_max, self.max_tokens, self.stop_ids = config.t_max, config.max_tokens, chat.stop_ids

    def __len__(self) -> int:
        return len(self.problems)

    def reset(self, instance: int, *, budget: int, key: Any = None, context: int | None = None) -> CodingEpisode:
        """Begin an episode.

        Args:
            instance: index of the problem.
            budget: turns allowed, 1 to `t_max`.
            key: not used, nothing happens by chance.
            context: tokens that the row has room for; None for no limit.

        Raises:
            ArgumentError: there is no such instance, or the budget is out of range.
        """
        del key
        if not 0 <= instance < len(self):
            raise ArgumentError(f"instance must lie in 0..{len(self) - 1}", value=instance)
        if not 1 <= budget <= self.t_max:
            raise ArgumentError(f"budget must lie in 1..{self.t_max}", value=budget)
        return CodingEpisode(self, self.problems[instance], budget, context)

    def read(self, ids: Sequence[int]) -> str | None:
        """Return the program that a reply submits, None if it submits none."""
        return last_block(self.chat.tokenizer.decode(spoken_ids(ids, self.chat.think_ids, self.stop_ids)))

    def encode(self, reply: str) -> list[int]:
        """Ids of a reply that is given as text, its end token included."""
        return [*self.chat.tokenizer.encode(reply), self.chat.end]


class CodingEpisode:
    """One try at one problem, see `tasks.base.Episode`; made by `CodingTask.reset`.

    Rewards come with the last answer. `process` is the change of the share of tests passed, so that its sum is the
    share that the last submission passes; a reply without a program changes nothing, and its own quality is 0.

    Attributes:
        stop: why the episode is over; None while it goes on.
        n_turns: replies so far.
    """

    def __init__(self, task: CodingTask, problem: Problem, budget: int, context: int | None):
        self.task, self.problem, self.budget, self.context = task, problem, budget, context
        self.n_turns = 0
        self.stop: StopReason | None = None
        self._state = _START
        self._share = 0.0  # of the tests, passed by the latest submission
        self._dialogue = Dialogue(task.chat, think=task.config.think)
        self._dialogue.system(deepcoder_text.system_text(task.config))
        self._dialogue.user(deepcoder_text.problem_text(task.config, problem, budget))
        self._dialogue.open_reply()
        if self._is_full(len(self.row.ids)):
            self.stop = StopReason.CONTEXT_LIMIT

    @property
    def row(self) -> TokenRow:
        """Everything that the policy read and wrote."""
        return self._dialogue.row

    def step(self, reply: Sequence[int] | str, *, sampled: bool = True) -> Answer:
        """Write a reply down, grade the program in it, and write down what the policy reads next.

        A reply without an end was cut by the token limit: it is not graded and ends the episode.

        Args:
            reply: ids, end token included unless it was cut, at most `task.max_tokens`; or text of an outside player.
            sampled: False for a reply that was put in the agent's place.

        Raises:
            ArgumentError: the episode is over, or the reply is empty, too long, or goes on behind its end.
        """
        ids = self._checked(self.task.encode(reply) if isinstance(reply, str) else reply)
        self._dialogue.reply(ids, sampled=sampled)
        state_key = f"{self.problem.problem_id}/{self._state}"
        self.n_turns += 1
        if ids[-1] not in self.task.stop_ids:
            answer = Answer([], 0.0, False, StopReason.TOKEN_LIMIT, None, info=self._info(None))
        elif (program := self.task.read(ids)) is None:
            answer = self._answer_unusable()
        else:
            answer = self._answer_submission(program)
        self.stop = answer.stop
        text = self.task.chat.tokenizer.decode(ids[:-1] if ids[-1] in self.task.stop_ids else ids)
        return dataclasses.replace(answer, text=text, state_key=state_key, best_quality=1.0)

    def close(self) -> None:
        """Do nothing: a sandbox lives no longer than one grading."""

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if self.stop:
            raise ArgumentError("an episode that is over takes no reply", value=str(self.stop), remedy="Begin another.")
        if not 1 <= len(ids) <= self.task.max_tokens:
            raise ArgumentError(f"a reply must have 1 to {self.task.max_tokens} ids", value=len(ids))
        return list(map(int, ids))

    def _answer_unusable(self) -> Answer:
        """Answer a reply without a program."""
        self._state = _UNUSABLE
        observation, stop = self._go_on(deepcoder_text.unusable_text(self.task.config, self._turns_left))
        return Answer(observation, 0.0, False, stop, None, info=self._info(None))

    def _answer_submission(self, program: str) -> Answer:
        """Grade a program and answer it."""
        grade = self.task.grader.grade(self.problem, program)
        info = self._info(program, grade)
        name = short_name(program)
        if grade.could_not_check:
            return Answer([], 0.0, False, StopReason.COULD_NOT_CHECK, name, info=info)
        process, self._share = grade.share - self._share, grade.share
        self._state = grade.fingerprint
        if grade.all_public:
            observation, stop = [], StopReason.SUCCESS if grade.all_tests else StopReason.FAILURE
        else:
            observation, stop = self._go_on(deepcoder_text.feedback_text(self.task.config, grade, self._turns_left))
        final = grade.all_public or stop is StopReason.BUDGET
        return Answer(
            observation,
            self._reward(grade) if final else 0.0,
            grade.all_public,
            stop,
            f"{name} {grade.passed}/{len(grade.statuses)}",
            quality=grade.share,
            process=process,
            is_error=not grade.all_public,
            info=info,
        )

    def _reward(self, grade: Grade) -> float:
        """Reward of the final submission."""
        if self.task.config.coding.reward == "dense":
            return grade.hidden_passed / grade.n_hidden
        return float(grade.all_tests)

    @property
    def _turns_left(self) -> int:
        return self.budget - self.n_turns

    def _go_on(self, text: str) -> tuple[list[int], StopReason | None]:
        """Write down what the policy reads next, if a turn and room for the longest reply are left."""
        if not self._turns_left:
            return [], StopReason.BUDGET
        chat, before = self.task.chat, len(self.row.ids)
        thinking = self._dialogue.think != "off"
        coming = [*chat.newline, *chat.message("user", text), *chat.open_reply(thinking=thinking)]
        if self._is_full(before + len(coming)):
            return [], StopReason.CONTEXT_LIMIT
        self._dialogue.user(text)
        self._dialogue.open_reply()
        return self.row.ids[before:], None

    def _is_full(self, length: int) -> bool:
        return self.context is not None and length + self.task.max_tokens > self.context

    def _info(self, program: str | None, grade: Grade | None = None) -> dict[str, Any]:
        """For people: never part of what the agent reads."""
        counts = {} if grade is None or grade.could_not_check else grade.counts()
        return {"problem_id": self.problem.problem_id, "program": program, **counts}


@dataclasses.dataclass(frozen=True)
class CodingInstances:
    """The problems of one split, see `tasks.base.HostInstances`."""

    split: str
    problems: tuple[Problem, ...]
    rules: str  # what else decides how a game goes

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def data_hash(self) -> str:
        """SHA-256 over the rules and all problems in order: equal hashes mean the same games."""
        games = [self.rules, *(problem.digest for problem in self.problems)]
        return hashlib.sha256("\n\n".join(games).encode()).hexdigest()

    def instance_id(self, index: int) -> str:
        """Stable name of an instance: that of its problem."""
        return self.problems[index].problem_id

    def instance_info(self, index: int) -> dict[str, Any]:
        """What was played."""
        problem = self.problems[index]
        return {
            "statement": problem.statement,
            "source": problem.problem_id.split("/")[0],
            "family": problem.family,
            "level": problem.level,
            "public_tests": len(problem.public),
            "hidden_tests": len(problem.hidden),
        }


def make_deepcoder(
    config: TaskConfig,
    tokenizer: Any,
    split: str,
    *,
    vocab_size: int,
    problems: Sequence[Problem] | None = None,
    judge: Judge = judge_program,
) -> tuple[CodingTask, CodingInstances]:
    """Build one split of the task.

    Args:
        config: task settings.
        tokenizer: as `load_tokenizer` gives it; it must know the chat format.
        split: "train", "validation" or "test".
        vocab_size: rows of the model's embedding.
        problems: the instances; None loads those that `config.coding` names.
        judge: runs a program on tests, in sandboxes unless something else is given.

    Returns:
        The task, and the host's view of its instances.

    Raises:
        ConfigError: the model's vocabulary is smaller than the tokenizer's, or reasoning is left out of later rows.
        DataError: the problems are not found.
        TokenizerError: the tokenizer lacks the control tokens of the chat format.
    """
    if config.think == "strip_by_rows":
        raise ConfigError(
            "DeepCoder-MT keeps a trajectory in one row (config.task.think)",
            value=config.think,
            remedy="Take off or keep.",
        )
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"the model must have a row for each of the {tokenizer.vocab_size} ids of {tokenizer.name!r}",
            value=vocab_size,
            remedy="Take a preset with a larger vocabulary (config.model.preset).",
        )
    if problems is None:
        problems = load_problems(config.coding, split, count=config.n_train if split == "train" else config.n_test)
    _check_problems(problems)
    limits = Limits(cpu_s=config.coding.cpu_seconds, memory_mb=config.coding.memory_mb)
    task = CodingTask(config, ChatIds.of(tokenizer), problems, Grader(limits, judge=judge))
    return task, CodingInstances(split, task.problems, _rules(config))


def worst_grading_seconds(config: TaskConfig) -> float:
    """Longest that the judge can take for one submission, in seconds: every test asleep until just before its limit.

    Who sleeps uses no CPU time, so that the judge's budget for all tests together does not end it.
    """
    limits = Limits(cpu_s=config.coding.cpu_seconds, memory_mb=config.coding.memory_mb)
    return config.coding.max_tests * limits.wall_limit_s


def _check_problems(problems: Sequence[Problem]) -> None:
    names = [problem.problem_id for problem in problems]
    if not names or len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})[:5]
        raise ArgumentError("problems must exist and have names of their own", value=twice)
    for problem in problems:
        if not problem.public or not problem.hidden:
            raise ArgumentError(
                "a problem must have a public and a hidden test at least",
                value=problem.problem_id,
                remedy="Leave it out: nothing else could be shown, or decide.",
            )


def _rules(config: TaskConfig) -> str:
    """Settings beside the problems that decide how a game goes, as text."""
    coding = config.coding
    return (
        f"deepcoder {config.text} {config.think} max_tokens={config.max_tokens} reward={coding.reward} "
        f"cpu={coding.cpu_seconds:g} memory={coding.memory_mb} shown={coding.shown_failures}x{coding.shown_characters}"
    )
