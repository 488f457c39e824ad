"""Write the HTML report of one or more runs.

    python launch/report.py --runs=base=runs/base,grpo=runs/grpo,budgetmix=runs/budgetmix --out=report.html
    python launch/report.py --runs=base=runs/base,grpo=runs/grpo --analysis=analyses/grpo --out=report.html

The first run is the reference that the others are compared with, task by task. Each directory needs config.json and
an evaluation (evaluations/test.json, or the only one there); training curves, warm start and trajectories are shown
where their files exist. With --analysis the page also shows what analyze.py found of these runs: the paper's claims,
step quality, recovery, likelihood, training dynamics, and the episodes behind them. The page needs no network, and the
same files give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from jaxrl_agent.command_line import run_main
from jaxrl_agent.report.page import load_runs, write_report
from jaxrl_agent.report.terminal import headline

RUNS = flags.DEFINE_list("runs", None, "Runs to compare as NAME=DIR,NAME=DIR...; the first is the reference.")
OUT = flags.DEFINE_string("out", None, "HTML file to write; missing folders are made.")
EVALUATION = flags.DEFINE_string(
    "evaluation", "", "Name of the evaluation to show, without .json. Default: test, or the only one."
)
ANALYSIS = flags.DEFINE_string(
    "analysis", "", "Folder written by analyze.py, whose policies have the names that --runs gives them. Default: none."
)
flags.mark_flags_as_required(["runs", "out"])


def main(_: Sequence[str]) -> None:
    """Write the report and say where it is."""
    path = write_report(RUNS.value, OUT.value, evaluation=EVALUATION.value, analysis=ANALYSIS.value or None)
    print(headline(load_runs(RUNS.value, evaluation=EVALUATION.value)))
    print(f"wrote {path} ({path.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    run_main(main)
