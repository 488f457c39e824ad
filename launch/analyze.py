"""Ask of checkpoints what reinforcement learning improved: step quality, recovery, likelihood, dynamics.

python launch/analyze.py --base=runs/base --policy=runs/grpo,runs/budgetmix --out=runs/analysis
python launch/analyze.py --base=hf:DIR --policy=tuned=hf:DIR --config=configs/frozenlake_qwen3_4b.py --out=DIR

Every policy is compared with the base on the same held-out tasks, told and granted the same budget. DIR gets
analysis.json, verdicts.md, the raw probes and episodes to read; report.py --analysis=DIR shows them.
"""

import dataclasses

from absl import flags
from ml_collections import config_flags

from jaxrl_agent import command_line
from jaxrl_agent.analysis.verdicts import to_text
from jaxrl_agent.evaluation.pair_probe import ProbeSettings
from jaxrl_agent.parallel.distributed import is_writer
from jaxrl_agent.sweeps.study import study

_DEFAULT = ProbeSettings()
_BASE = flags.DEFINE_string("base", None, "[NAME=]DIR of a run, or [NAME=]hf:DIR: what the others are compared with")
_POLICY = flags.DEFINE_list("policy", None, "[NAME=]DIR of one run or more, or hf:DIR; named by their folders if not")
_OUT = flags.DEFINE_string("out", None, "folder to write; made by this command")
_CONFIG = config_flags.DEFINE_config_file("config", None, "config file that says what hf:DIR plays")
_SPLIT = flags.DEFINE_enum("split", _DEFAULT.split, ["test", "validation"], "held-out tasks")
_FRACTION = flags.DEFINE_float("budget_fraction", _DEFAULT.budget_fraction, "enforced budget over t_max", 0.0, 1.0)
_TASKS = flags.DEFINE_integer("tasks", None, "held-out tasks", lower_bound=1)
_SAMPLES = flags.DEFINE_integer("samples", _DEFAULT.samples, "whole episodes of each policy and task", 1)
_STATES = flags.DEFINE_integer("states", _DEFAULT.states, "ordinary states, half from each policy's episodes", 1)
_ERRORS = flags.DEFINE_integer("error_states", _DEFAULT.error_states, "states behind an injected error", 1)
_REPLIES = flags.DEFINE_integer("replies", _DEFAULT.replies, "replies of each policy to each state", 1)
_CONTINUATIONS = flags.DEFINE_integer("continuations", _DEFAULT.continuations, "of each policy and error state", 1)
_ROLLOUTS = flags.DEFINE_integer("rollouts", _DEFAULT.rollouts, "for each value that has to be sampled", 1)
_TEMPERATURE = flags.DEFINE_float("temperature", _DEFAULT.temperature, "of sampling and scoring", 1e-3)
_SEED = flags.DEFINE_integer("seed", _DEFAULT.seed, "of everything drawn; policies share random numbers", 0)
_REUSE = flags.DEFINE_bool("reuse", False, "leave probes as they are that are these very ones")
_MESH = flags.DEFINE_string("mesh", None, "AXIS:SIZE list over data, fsdp, tensor")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "join the processes of a pod (TPU, Slurm, or JAX_* variables)")
_PROGRESS = command_line.progress_flag()
flags.mark_flags_as_required(["base", "policy", "out"])


def main(_: list[str]) -> None:
    """Read flags, probe, analyse, print the verdicts."""
    command_line.start(distributed=_DISTRIBUTED.value)
    names = [_BASE.value, *_POLICY.value]
    base, *policies = command_line.subjects(names, _CONFIG.value, tasks=_TASKS.value, mesh=_MESH.value)
    given = flags.FLAGS.flag_values_dict()
    settings = ProbeSettings(**{field.name: given[field.name] for field in dataclasses.fields(ProbeSettings)})
    display = command_line.make_display(_PROGRESS.value)
    found = study(base, policies, _OUT.value, settings, reuse=_REUSE.value, display=display)
    if is_writer():
        print(to_text(found["verdicts"]))
        print(f"analysis: {_OUT.value}/analysis.json")


if __name__ == "__main__":
    command_line.run_main(main)
