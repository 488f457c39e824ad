"""Compare methods over seeds: train every config with every seed, evaluate, and judge the differences.

python launch/compare.py --configs=configs/frozenlake_grpo.py,configs/frozenlake_budgetmix.py --seeds=3 --out=DIR
python launch/compare.py --configs=FILE,FILE --seed_list=0,7 --set=task.lake.map_seed:1,evaluation.samples:128 --out=DIR

Methods that warm-start alike share one base for each seed, which is a line of the table. The command may be given
again, with more seeds as well: what is done is not done twice. DIR gets compare.json, table.csv, table.md and the runs;
with --analyze also verdicts.md, and a study of each seed in seedN/analysis_of_BASE, which report.py --analysis shows.
"""

from absl import flags

from jaxrl_agent import command_line
from jaxrl_agent.parallel.distributed import is_writer
from jaxrl_agent.sweeps.compare import compare, stored_verdicts, summary
from jaxrl_agent.sweeps.runs import method_names

_CONFIGS = flags.DEFINE_list("configs", None, "config files, one a method, named by what their file names differ in")
_SEEDS = flags.DEFINE_integer("seeds", 3, "number of seeds: 0, 1, 2, ...", lower_bound=1)
_SEED_LIST = flags.DEFINE_list("seed_list", None, "the seeds themselves, in place of --seeds")
_OUT = flags.DEFINE_string("out", None, "folder of the comparison and its runs; made by this command")
_SET = flags.DEFINE_multi_string("set", [], "settings over all configs: KEY:VALUE,KEY:VALUE, such as train.updates:50")
_SAMPLES = flags.DEFINE_integer("samples", None, "trajectories of each held-out task and budget", lower_bound=1)
_INIT = flags.DEFINE_string("init", None, "initial policy of all methods: hf:DIR or run:DIR, in place of a warm start")
_MESH = flags.DEFINE_string("mesh", None, "AXIS:SIZE list over data, fsdp, tensor")
_ANALYZE = flags.DEFINE_bool("analyze", False, "also probe every method against its base, and judge every claim")
_PROBE = flags.DEFINE_multi_string("probe", [], "sizes of --analyze: NAME:VALUE,NAME:VALUE, as analyze.py's flags")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "join the processes of a pod (TPU, Slurm, or JAX_* variables)")
_TENSORBOARD = flags.DEFINE_bool("tensorboard", True, "write event files; show them by: tensorboard --logdir DIR")
_PROGRESS = command_line.progress_flag()
flags.mark_flags_as_required(["configs", "out"])
flags.register_multi_flags_validator(
    ["probe", "analyze"], lambda given: given["analyze"] or not given["probe"], message="--probe needs --analyze"
)


def main(_: list[str]) -> None:
    """Read configs and flags, compare, print."""
    settings = [*_SET.value, *([f"evaluation.samples:{_SAMPLES.value}"] if _SAMPLES.value else [])]
    configs = [command_line.read_config(path, settings, init=_INIT.value, mesh=_MESH.value) for path in _CONFIGS.value]
    seeds = command_line.seed_list(_SEEDS.value, _SEED_LIST.value)
    command_line.start(distributed=_DISTRIBUTED.value)
    comparison = compare(
        dict(zip(method_names(_CONFIGS.value), configs, strict=True)),
        seeds,
        _OUT.value,
        probes=command_line.probe_settings(_PROBE.value) if _ANALYZE.value else None,
        display=command_line.make_display(_PROGRESS.value),
        tensorboard=_TENSORBOARD.value,
    )
    if is_writer():
        print(summary(comparison, stored_verdicts(_OUT.value)))
        print(f"comparison: {_OUT.value}")


if __name__ == "__main__":
    command_line.run_main(main)
