"""The headline table as text."""

from __future__ import annotations

from jaxrl_agent.report.page import load_runs
from jaxrl_agent.report.surface import compute_surface
from jaxrl_agent.report.terminal import headline
from jaxrl_agent.testing.fake_runs import write_fake_runs


def test_the_table_names_every_run_and_difference_with_its_numbers(tmp_path):
    runs = load_runs([f"{name}={path}" for name, path in write_fake_runs(tmp_path).items()])
    surface = compute_surface(runs)
    lines = headline(runs).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.split("  ")[0] for line in lines[1:]] == [
        *(run.name for run in runs),
        *(difference.label for difference in surface.differences),
    ]
    last_turns = surface.budgets[-1].turns
    assert f"{100 * surface.cells[runs[0].name][1, last_turns].estimate:.1f} [" in lines[1]
    assert f"{100 * surface.differences[0].cells[1, last_turns].estimate:+.1f} [" in lines[1 + len(runs)]
