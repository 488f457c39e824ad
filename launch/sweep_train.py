"""Train many seeds under many settings in one compiled program: metrics as a table, and curves over seeds.

python launch/sweep_train.py --config=configs/frozenlake_grpo.py --seeds=8 \
    --vary=optimizer.learning_rate:3e-4,7e-4 --vary=algorithm.entropy_coefficient:0,0.005 --out=sweeps/rates.csv

Each member is what train.py makes of its seed and settings, to rounding; without --init every seed warms up a base of
its own, which its settings share. The command may be given again: it goes on where it stopped. FILE.csv has a line for
each member and update; FILE.json settings, curves and final success; FILE.html the curves. Only numbers that enter the
program as data may vary (learning rate, clip widths, ...); for others give compare.py a config file for each value.
"""

import math

from absl import flags

from jaxrl_agent import command_line
from jaxrl_agent.report.sweep import write_page
from jaxrl_agent.sweeps.population import MAPS, spread_over_cores
from jaxrl_agent.sweeps.scalars import parse_vary
from jaxrl_agent.sweeps.sweep_files import SweepFiles
from jaxrl_agent.sweeps.sweep_tables import terminal
from jaxrl_agent.sweeps.train_sweep import sweep

_CONFIG = flags.DEFINE_string("config", None, "config file")
_SEEDS = flags.DEFINE_integer("seeds", 8, "number of seeds: 0, 1, 2, ...", lower_bound=1)
_SEED_LIST = flags.DEFINE_list("seed_list", None, "the seeds themselves, in place of --seeds")
_VARY = flags.DEFINE_multi_string("vary", [], "KEY:VALUE,VALUE; given several times, every combination is trained")
_MAP = flags.DEFINE_enum("map", "auto", MAPS, "one member after another, all at once, or what the platform does faster")
_INIT = flags.DEFINE_string("init", None, "initial policy of all members: hf:DIR or run:DIR, in place of a warm start")
_UPDATES = flags.DEFINE_integer("updates", None, "policy updates of each member", lower_bound=1)
_EVERY = flags.DEFINE_integer("checkpoint_every", None, "updates between saved states of all members", lower_bound=1)
_SET = flags.DEFINE_multi_string("set", [], "settings over the config: KEY:VALUE,KEY:VALUE, such as train.updates:50")
_OUT = flags.DEFINE_string("out", None, "FILE.csv to write")
_PROGRESS = command_line.progress_flag()
flags.mark_flags_as_required(["config", "out"])


def main(_: list[str]) -> None:
    """Read config and flags, train, draw, print."""
    settings = list(_SET.value)
    settings += [f"train.updates:{_UPDATES.value}"] * (_UPDATES.value is not None)
    settings += [f"train.checkpoint_every:{_EVERY.value}"] * (_EVERY.value is not None)
    config = command_line.read_config(_CONFIG.value, settings, init=_INIT.value)
    varied, files = parse_vary(_VARY.value), SweepFiles.at(_OUT.value)
    seeds = command_line.seed_list(_SEEDS.value, _SEED_LIST.value)
    command_line.start()
    spread_over_cores(len(seeds) * math.prod(map(len, varied.values())))
    display = command_line.make_display(_PROGRESS.value)
    result = sweep(config, varied, seeds, files.csv, how=_MAP.value, display=display)
    write_page(files.json, files.page)
    print(f"{terminal(result)}\n\nsweep: {files.csv}\ncurves: {files.page}")


if __name__ == "__main__":
    command_line.run_main(main)
