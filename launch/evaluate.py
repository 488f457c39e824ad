"""Evaluate a policy on held-out tasks: Pass@(K,T) with intervals, and headroom where exact values are known.

python launch/evaluate.py --run_dir=runs/grpo
python launch/evaluate.py --checkpoint=hf:DIR --config=configs/frozenlake_qwen3_4b.py --samples=16 --out=FILE.json
"""

from absl import flags
from ml_collections import config_flags

from jaxrl_agent import command_line
from jaxrl_agent.evaluation.evaluator import evaluate, is_current
from jaxrl_agent.parallel.distributed import is_writer
from jaxrl_agent.run_dir import read_json

_CONFIG = config_flags.DEFINE_config_file("config", None, "config file, with --checkpoint")
_RUN_DIR = flags.DEFINE_string("run_dir", None, "run to evaluate, with the task that it was trained on")
_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "policy to evaluate: hf:DIR or run:DIR")
_FRACTIONS = flags.DEFINE_list("budget_fractions", None, "enforced budgets over t_max, for example 0.25,0.5,0.75,1.0")
_SAMPLES = flags.DEFINE_integer("samples", None, "trajectories of each task and enforced budget", lower_bound=1)
_TASKS = flags.DEFINE_integer("tasks", None, "held-out tasks", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "sampling temperature; 0 is greedy", lower_bound=0.0)
_SEED = flags.DEFINE_integer("seed", 0, "seed of sampling; policies under one seed share random numbers", lower_bound=0)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "join the processes of a pod (TPU, Slurm, or JAX_* variables)")
_MESH = flags.DEFINE_string("mesh", None, "AXIS:SIZE list over data, fsdp, tensor")
_PROGRESS = command_line.progress_flag()
_SPLIT = flags.DEFINE_enum("split", "test", ["test", "validation"], "held-out tasks; choose settings by validation")
_OUT = flags.DEFINE_string(
    "out", None, "JSON file, with trajectories to read beside it; RUN_DIR/evaluations/SPLIT.json if left out"
)
_REUSE = flags.DEFINE_bool("reuse", False, "do nothing if the file already holds this very evaluation")


def main(_: list[str]) -> None:
    """Read flags, evaluate, write."""
    config = command_line.evaluated_config(
        run_dir=_RUN_DIR.value,
        checkpoint=_CHECKPOINT.value,
        config_file=_CONFIG.value,
        budget_fractions=_FRACTIONS.value,
        samples=_SAMPLES.value,
        tasks=_TASKS.value,
        mesh=_MESH.value,
    )
    out = command_line.evaluation_path(_OUT.value, _RUN_DIR.value, split=_SPLIT.value)
    chosen = {"split": _SPLIT.value, "temperature": _TEMPERATURE.value, "seed": _SEED.value}
    command_line.start(distributed=_DISTRIBUTED.value)
    if _REUSE.value and out.is_file() and is_current(read_json(out), config, **chosen):
        print(f"evaluation: {out} (as it was)")
        return
    if out.is_file() and not _OUT.value:
        print(f"note: {out} holds another evaluation, which this one replaces; --out=FILE keeps both")
    result, trajectories = evaluate(config, **chosen, display=command_line.make_display(_PROGRESS.value))
    if not is_writer():
        return
    command_line.store_evaluation(out, result, trajectories)
    command_line.print_grid(result, out)


if __name__ == "__main__":
    command_line.run_main(main)
