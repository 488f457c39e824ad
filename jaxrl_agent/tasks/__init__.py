"""Tasks by name. A task is built as `TASKS[name](task_config, tokenizer, split, vocab_size=...)`.

It gives a static half (pure functions that `rollout.device_collect` calls inside jit), its device data, and the host's
view of its instances. `PROBES[name](static half, host's view)` answers what the probes of `evaluation` ask of it.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxrl_agent.tasks.frozenlake import make_frozenlake
from jaxrl_agent.tasks.frozenlake_probe import LakeProbe

TASKS: dict[str, Callable] = {"frozenlake": make_frozenlake}
PROBES: dict[str, Callable] = {"frozenlake": LakeProbe}
