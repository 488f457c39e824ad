"""Tasks by name, and what probes ask of them.

A task that is played inside jit is built as `TASKS[name](task_config, tokenizer, split, vocab_size=..., exact=...)` and
gives a static half (pure functions that `rollout.device_collect` calls), its device data, and the host's view of its
instances. One that host code plays is built as `HOST_TASKS[name](task_config, tokenizer, split, vocab_size=...)` and
gives a `base.HostTask` and that view. `PROBES[name](static half, host's view)` answers what the probes of `evaluation`
ask of a task.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxrl_agent.tasks.coding.probe import CodingProbe
from jaxrl_agent.tasks.deepcoder import make_deepcoder, worst_grading_seconds
from jaxrl_agent.tasks.deepcoder_demos import demonstrations
from jaxrl_agent.tasks.frozenlake import make_frozenlake
from jaxrl_agent.tasks.frozenlake_probe import LakeProbe

DEVICE_TASKS: dict[str, Callable] = {"frozenlake": make_frozenlake}
HOST_TASKS: dict[str, Callable] = {"deepcoder": make_deepcoder}
TASKS: dict[str, Callable] = {**DEVICE_TASKS, **HOST_TASKS}
PROBES: dict[str, Callable] = {"frozenlake": LakeProbe, "deepcoder": CodingProbe}
DEMONSTRATIONS: dict[str, Callable] = {"deepcoder": demonstrations}
# Of one turn, from the task's settings: what the time limit of environments must exceed.
WORST_SECONDS: dict[str, Callable] = {"deepcoder": worst_grading_seconds}


def register_host_task(name: str, make: Callable, *, demonstrations: Callable | None = None) -> None:
    """Make a task of your own known under a name, as a config file does before it names it; README has one whole.

    Args:
        name: for `config.task.name`.
        make: `(task_config, tokenizer, split, vocab_size=...)` -> `base.HostTask` and `base.HostInstances`; one object
            may be both.
        demonstrations: `(task, count, seed=..., config=..., context=...)` -> `base.Demonstration`s, for a warm start.
    """
    HOST_TASKS[name] = TASKS[name] = make
    if demonstrations is not None:
        DEMONSTRATIONS[name] = demonstrations
