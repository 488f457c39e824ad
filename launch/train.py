"""Train a policy: warm start (or given weights), then reinforcement learning.

python launch/train.py --config=configs/frozenlake_grpo.py --run_dir=runs/grpo
python launch/train.py --config=configs/frozenlake_grpo.py --run_dir=runs/grpo --resume
python launch/train.py --config=configs/frozenlake_grpo.py --config.optimizer.learning_rate=3e-4 --dry_run
"""

from absl import flags
from ml_collections import config_flags

from jaxrl_agent import command_line
from jaxrl_agent.config import build_config
from jaxrl_agent.preflight import check_names, check_start, check_task
from jaxrl_agent.train import train

_CONFIG = config_flags.DEFINE_config_file("config", None, "config file; dotted flags override it")
_RUN_DIR = flags.DEFINE_string("run_dir", None, "directory of the run; made by this command")
_INIT = flags.DEFINE_string("init", None, "initial policy: hf:DIR or run:DIR")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "join the processes of a pod (TPU, Slurm, or JAX_* variables)")
_MESH = flags.DEFINE_string("mesh", None, "AXIS:SIZE list over data, fsdp, tensor, for example data:2,fsdp:4")
_RESUME = flags.DEFINE_bool("resume", False, "go on from the newest checkpoint, or start if there is none")
_TENSORBOARD = flags.DEFINE_bool("tensorboard", True, "write an event file; show it by: tensorboard --logdir RUN_DIR")
_PROGRESS = command_line.progress_flag()
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the resolved config with units, check it, and stop")
flags.mark_flag_as_required("config")
flags.register_multi_flags_validator(
    ["run_dir", "dry_run"], lambda given: given["run_dir"] or given["dry_run"], message="--run_dir must be given"
)


def main(_: list[str]) -> None:
    """Read flags, check, train."""
    values = _CONFIG.value
    command_line.override(values, init=_INIT.value, mesh=_MESH.value)
    config = build_config(values)
    if not _DRY_RUN.value:
        command_line.start(distributed=_DISTRIBUTED.value)  # before anything touches a device
    check_names(config)
    if _DRY_RUN.value:
        command_line.print_config(config)
        check_start(config)
        if not check_task(config):
            print("not checked: tokenizer and data of the task, which the start of the run checks")
        return
    display = command_line.make_display(_PROGRESS.value)
    run = train(config, _RUN_DIR.value, resume=_RESUME.value, display=display, tensorboard=_TENSORBOARD.value)
    print(f"run directory: {run.path}")


if __name__ == "__main__":
    command_line.run_main(main)
