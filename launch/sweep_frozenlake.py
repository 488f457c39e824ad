"""Sweep FrozenLake over size, hole density, slip and budget: exact policies on thousands of random maps, in seconds.

python launch/sweep_frozenlake.py --out=sweeps/lake.csv
python launch/sweep_frozenlake.py --sizes=4,6,8 --frozen_probs=0.7,0.8,0.9 --success_rates=1/3,0.8,1.0 \
    --budgets=10,20,50,100 --policies=random,full,hidden,told --maps=2000 --out=sweeps/lake.csv

FILE.csv has a line for each cell and policy: success within the budget, Pass@K, headroom, recovery from an error,
each with a 95% interval over maps. FILE.html shows them as heat maps with their definitions. The printed answer says
where BudgetMix can help at all. Nothing is sampled but the maps.
"""

from pathlib import Path

from absl import flags

from jaxrl_agent import command_line
from jaxrl_agent.envs.frozenlake_policies import POLICIES, Styles
from jaxrl_agent.report.lake_sweep import write_page
from jaxrl_agent.statistics import PARITY_MARGIN
from jaxrl_agent.sweeps.lake_sweep import LakeSweep, parse_numbers, run, to_csv
from jaxrl_agent.sweeps.lake_words import answer

_LISTS = {"sizes": int, "frozen_probs": float, "success_rates": float, "budgets": int, "ks": int}
flags.DEFINE_list("sizes", ["4", "6", "8"], "cells along one side, 2 to 10")
flags.DEFINE_list("frozen_probs", ["0.7", "0.8", "0.9"], "probability that a cell is no hole; unsolvable draws go")
flags.DEFINE_list("success_rates", ["1/3", "0.8", "1"], "probability that a move goes where it was meant to")
flags.DEFINE_list("budgets", [], "turns; by default the ten levels of BudgetMix, 10% to 100% of t_max")
flags.DEFINE_list("ks", ["2", "4", "8", "16"], "samples K of Pass@(K,T)")
_POLICIES = flags.DEFINE_list("policies", list(POLICIES), "which policies to play")
_T_MAX = flags.DEFINE_integer("t_max", 0, "turns of the full budget; by default the largest of --budgets, or 100")
_MAPS = flags.DEFINE_integer("maps", 1000, "random maps of each size and density", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "of maps and of resampling", lower_bound=0)
_EPSILON = flags.DEFINE_float("epsilon", Styles.epsilon, "share of random moves of the policy epsilon")
_TEMPERATURE = flags.DEFINE_float("temperature", Styles.temperature, "of the policy softmax")
_MYOPIC = flags.DEFINE_integer("myopic_turns", Styles.myopic_turns, "how far the policy myopic looks ahead")
_MARGIN = flags.DEFINE_float("margin", PARITY_MARGIN, "lead in success that counts as help", lower_bound=0.0)
_OUT = flags.DEFINE_string("out", None, "FILE.csv to write; FILE.html is written beside it")
flags.mark_flag_as_required("out")


def main(_: list[str]) -> None:
    """Read flags, sweep, write, print the answer."""
    given = {name: parse_numbers(name, flags.FLAGS[name].value, kind) for name, kind in _LISTS.items()}
    styles = Styles(_EPSILON.value, _TEMPERATURE.value, _MYOPIC.value)
    options = {"t_max": _T_MAX.value, "maps": _MAPS.value, "seed": _SEED.value, "styles": styles}
    sweep = LakeSweep(**given, policies=tuple(_POLICIES.value), **options)
    table = Path(_OUT.value).expanduser().resolve().with_suffix(".csv")
    command_line.start()
    rows = run(sweep, command_line.make_display("plain").say)
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(to_csv(rows))
    said = answer(rows, _MARGIN.value)
    page = write_page(rows, said, table.with_suffix(".html"), facts={"styles": styles, "margin": _MARGIN.value})
    print("\n".join(said))
    print(f"\ntable: {table}\nfigures: {page}")


if __name__ == "__main__":
    command_line.run_main(main)
