from __future__ import annotations

import copy
import csv
import html
import io
import json
import math
import re
import shutil
import urllib.parse
from pathlib import Path

import pytest

from jaxrl_agent.errors import RunError
from jaxrl_agent.report.analysis import dynamics, likelihood, marks, quality, recovery
from jaxrl_agent.report.analysis.load import load_analysis
from jaxrl_agent.report.episodes import CONDITIONS, PER_CONDITION, analysed_episodes
from jaxrl_agent.report.load import load_run
from jaxrl_agent.report.page import write_report
from jaxrl_agent.run_dir import read_json, write_json
from jaxrl_agent.testing.fake_analysis import write_fake_analysis
from jaxrl_agent.testing.fake_runs import FakeSpec

SPEC = FakeSpec(n_tasks=12, n_samples=16, updates=30)  # as in conftest


@pytest.fixture(scope="module")
def pristine(pristine_runs, tmp_path_factory) -> Path:
    return write_fake_analysis(tmp_path_factory.mktemp("analysis"), pristine_runs, SPEC, tools=True)


@pytest.fixture(scope="module")
def loaded_runs(pristine_runs):
    return [load_run(name, str(path), slot=i) for i, (name, path) in enumerate(pristine_runs.items())]


@pytest.fixture(scope="module")
def analysis(pristine, loaded_runs):
    return load_analysis(pristine, loaded_runs)


@pytest.fixture
def folder(pristine, tmp_path) -> Path:
    """A private copy of the analysis."""
    return Path(shutil.copytree(pristine, tmp_path / "analysis"))


@pytest.fixture(scope="module")
def page(pristine_runs, pristine, tmp_path_factory) -> str:
    items = [f"{name}={path}" for name, path in pristine_runs.items()]
    out = tmp_path_factory.mktemp("out") / "r.html"
    return write_report(items, out, analysis=pristine).read_text(encoding="utf-8")


def edit(folder: Path, change) -> None:
    content = read_json(folder / "analysis.json")
    change(content)
    write_json(folder / "analysis.json", content)


def download(page: str, name: str) -> list[dict[str, str]]:
    address = html.unescape(re.search(rf'download="{name}\.csv" href="([^"]*)"', page)[1])
    return list(csv.DictReader(io.StringIO(urllib.parse.unquote(address.partition(",")[2]))))


# ---- loading


def test_policies_are_matched_to_runs_by_name_in_the_order_of_the_runs(pristine, loaded_runs):
    base, grpo, budgetmix = loaded_runs
    found = load_analysis(pristine, [base, budgetmix, grpo])
    assert found.base is base
    assert [pair.policy.name for pair in found.pairs] == ["grpo", "budgetmix"]
    assert found.pairs[0].policy is grpo


def test_a_folder_without_analysis_says_how_to_make_one(tmp_path, loaded_runs):
    with pytest.raises(RunError, match=r"must hold analysis\.json.*analyze\.py"):
        load_analysis(tmp_path, loaded_runs)


def test_policies_that_are_no_runs_of_the_report_are_named(pristine, loaded_runs):
    with pytest.raises(RunError, match=r"among the runs of the report \(base, grpo\).*'budgetmix'"):
        load_analysis(pristine, loaded_runs[:2])


@pytest.mark.parametrize(
    ("key", "value"),
    [("task", "bfcl"), ("t_max", 20), ("budget_visibility", "remaining"), ("data_hash", "f00")],
)
def test_an_analysis_of_another_protocol_is_refused(folder, loaded_runs, key, value):
    edit(folder, lambda content: content.update({key: value}))
    with pytest.raises(RunError, match=rf"the same {key} as.*{value}.*--evaluation"):
        load_analysis(folder, loaded_runs)


def at(content, dotted: str):
    """The object that holds the last part of `a.b.0.c`, and that part."""
    *way, last = dotted.split("/")
    for part in way:
        content = content[int(part) if isinstance(content, list) else part]
    return content, last


@pytest.mark.parametrize(
    "place",
    [
        "verdicts",
        "data_hash",
        "pairs/grpo/step_quality",
        "pairs/grpo/step_quality/by_quality/monte_carlo/ordinary/win",
        "pairs/grpo/step_quality/by_quality/monte_carlo/ordinary/by_turns_left/0/mean_difference",
        "pairs/grpo/recovery/without_error/base_ci",
        "pairs/grpo/recovery/by_turns_left/1/difference",
        "pairs/grpo/likelihood/action_nll/policy_actions_under_base",
        "pairs/grpo/likelihood/llr/by_turn/policy/0/mean",
        "pairs/grpo/dynamics/step_reward_pooled",
        "verdicts/0/rule",
    ],
)
def test_a_missing_key_is_named(folder, loaded_runs, place):
    def drop(content):
        holder, last = at(content, place)
        del holder[last]

    edit(folder, drop)
    name = re.escape(re.sub(r"/(\d+)", r"[\1]", place).replace("/", "."))
    with pytest.raises(RunError, match=f'must hold "{name}".*analysis.json'):
        load_analysis(folder, loaded_runs)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("pairs", [], '"pairs" of an analysis must be an object'),
        ("pairs/grpo", None, "pairs.grpo"),
        ("pairs/grpo/recovery/difference", "much", 'grpo.recovery.difference" of an analysis must be a number'),
        ("pairs/grpo/recovery/base_ci", [0.1], "base_ci.* two ends"),
        ("pairs/grpo/recovery/by_turns_left", {}, "by_turns_left.* a list"),
        ("pairs/grpo/dynamics/updates", [1, 2], "as long as updates"),
        ("pairs/grpo/step_quality/primary_quality", "other", "a key of by_quality"),
        ("verdicts/1/verdict", "yes", r"verdicts\[1\]\.verdict"),
    ],
)
def test_a_malformed_value_is_named(folder, loaded_runs, place, value, message):
    def spoil(content):
        holder, last = at(content, place)
        holder[last] = value

    edit(folder, spoil)
    with pytest.raises(RunError, match=message):
        load_analysis(folder, loaded_runs)


# ---- figures


def test_every_figure_of_the_analysis_has_its_numbers_as_csv(page, pristine):
    pair = read_json(pristine / "analysis.json")["pairs"]["grpo"]
    cell = pair["step_quality"]["by_quality"]["monte_carlo"]["error_states"]
    rows = download(page, "step-quality-outcomes")
    assert len(rows) == 2 * 3 * 2
    (row,) = (r for r in rows if (r["run"], r["quality"], r["states"]) == ("grpo", "monte_carlo", "error_states"))
    for key in ("win", "tie", "loss", "wins_plus_half_ties", "mean_difference", "ci_low", "ci_high"):
        assert float(row[key]) == cell[key]
    assert [float(row["half_ties_low"]), float(row["half_ties_high"])] == cell["intervals"]["wins_plus_half_ties"]

    rows = [r for r in download(page, "recovery-success") if r["pair"] == "grpo" and r["after_error"] == "True"]
    assert {r["run"]: float(r["success"]) for r in rows} == {k: pair["recovery"][s] for k, s in SIDES}
    rows = [r for r in download(page, "likelihood-by-turn") if (r["pair"], r["sampled_by"]) == ("grpo", "base")]
    assert [float(r["mean"]) for r in rows] == [r["mean"] for r in pair["likelihood"]["llr"]["by_turn"]["base"]]
    rows = [r for r in download(page, "dynamics-1") if r["part"] == "every update"]
    assert [float(r["step_reward_pooled"]) for r in rows] == pair["dynamics"]["step_reward_pooled"]
    assert [r["here"] for r in download(page, "verdicts")][1::3] == ["+6.1 points [3.0, 9.2]"] * 2


SIDES = (("base", "base"), ("grpo", "policy"))


def test_wins_plus_half_the_ties_ends_in_the_middle_of_the_ties(analysis):
    ordinary, error = quality.outcome_figure(analysis).panels
    for outcome in (*ordinary.outcomes, *error.outcomes):
        assert outcome.win + outcome.tie + outcome.loss == pytest.approx(1)
        assert outcome.value == pytest.approx(outcome.win + outcome.tie / 2)
    assert [o.main for o in ordinary.outcomes] == [True, True, False, False, False, False]
    assert [o.label for o in ordinary.outcomes] == ["grpo", "budgetmix"] * 3
    drawn = ordinary.render()
    assert "Exact value, discount 0.99 (knows more than the agent)" in drawn
    assert f"wins plus half ties {ordinary.outcomes[0].text}" in drawn


def test_bins_that_one_policy_lacks_leave_a_gap_in_its_line_only(folder, loaded_runs):
    def thin(content):
        del content["pairs"]["grpo"]["recovery"]["by_turns_left"][1]

    edit(folder, thin)
    *own, difference = recovery.turns_figure(load_analysis(folder, loaded_runs)).panels
    assert [series.xs for series in own[0].series] == [[0, 2, 3]] * 2
    assert [series.xs for series in difference.series] == [[0, 2, 3], [0, 1, 2, 3]]
    assert [text for _, text in difference.x_axis.ticks] == [f"{low}\N{EN DASH}{low + 3}" for low in (1, 5, 9, 13)]


@pytest.mark.parametrize("part", ["step_quality", "recovery", "tool_error_correction", "likelihood", "dynamics"])
def test_a_part_that_was_not_measured_is_left_out(folder, pristine_runs, page, tmp_path, part):
    edit(folder, lambda content: [pair.update({part: None}) for pair in content["pairs"].values()])
    section = {"tool_error_correction": "tool-errors"}.get(part, part.replace("_", "-"))
    items = [f"{name}={path}" for name, path in pristine_runs.items()]
    text = write_report(items, tmp_path / "r.html", analysis=folder).read_text(encoding="utf-8")
    assert f'<section id="{section}">' in page
    assert f'<section id="{section}">' not in text
    assert text.count("<figure ") < page.count("<figure ")


def test_numbers_that_are_null_are_not_drawn(folder, loaded_runs):
    def forget(content):
        for pair in content["pairs"].values():
            pair["step_quality"]["by_quality"]["monte_carlo"]["error_states"] = None
            pair["recovery"]["extra_gain"] |= {"value": None, "ci_low": None, "ci_high": None}
            pair["recovery"]["error_cost"]["optimal"] = None
            pair["recovery"]["by_turns_left"][0] |= {"ci_low": None, "ci_high": None}
            llr = pair["likelihood"]["llr"]
            llr |= {"policy_failure": None}
            llr["intervals"]["policy_failure"] = [None, None]
            llr["by_turn"]["policy"][-1] |= {"ci_low": None, "ci_high": None}
            pair["dynamics"]["step_reward_pooled"][3] = None

    edit(folder, forget)
    analysis = load_analysis(folder, loaded_runs)
    figures = [
        *(quality.outcome_figure(analysis), *quality.place_figures(analysis), *dynamics.dynamics_figures(analysis)),
        *(recovery.success_figure(analysis), recovery.turns_figure(analysis), recovery.cost_figure(analysis)),
        *(likelihood.turn_figure(analysis), likelihood.nll_figure(analysis), likelihood.split_figure(analysis)),
    ]
    drawn = "".join(panel.render() for figure in figures for panel in figure.panels)
    assert "nan" not in drawn
    assert "not known" in drawn
    assert "best possible" not in drawn
    assert not any("nan" in figure.table.csv() for figure in figures)


def test_the_signs_that_ratios_must_have_are_checked(folder, loaded_runs):
    def doubt(content):
        sanity = content["pairs"]["grpo"]["likelihood"]["llr"]["sanity"]
        sanity |= {"policy_all_at_least_0": False, "base_all_at_most_0": "undecided"}

    edit(folder, doubt)
    checks = likelihood.checks(load_analysis(folder, loaded_runs))
    assert [check.verdict for check in checks] == ["contradicted", "undecided", "supported", "supported"]
    assert re.search(r"Sampled by grpo, grpo against base: \+\d\.\d\d \[.*\] nats, must be ≥ 0", checks[0].text)


def test_differences_and_unknown_numbers_are_written_as_in_the_rest_of_the_page():
    assert [marks.points(v) for v in (0.0312, -0.05, -0.0001)] == ["+3.1", "\N{MINUS SIGN}5.0", "0.0"]
    assert marks.signed(2)(-0.004) == "0.00"
    assert all(math.isnan(v) for v in marks.ends(None))
    assert marks.ends({"value": 1.0, "ci_low": None, "ci_high": None})[0] == 1.0
    assert marks.known_rows([(math.nan, 2.0, "x")]) == ((None, 2.0, "x"),)


# ---- the page


def test_verdicts_stand_high_on_the_page_in_words_and_with_a_mark(page):
    sections = re.findall(r'<section id="([\w-]+)">', page)
    assert sections[:2] == ["results", "verdicts"]
    assert sections[3:8] == ["step-quality", "recovery", "tool-errors", "likelihood", "dynamics"]
    table = page.partition('class="verdicts"')[2].partition("</table>")[0]
    said = re.findall(r'<span aria-hidden="true">(.)</span> ([\w ]+)</span>', table)
    assert said == [("?", "cannot tell")] * 2 + [("✓", "supports")] * 2 + [("✕", "contradicts")] * 2
    assert "Supports 2, contradicts 2, cannot tell 2." in page
    assert "Table 3</span> Where the time went" in page


def test_verdicts_of_one_claim_stand_together_and_remarks_on_most_are_told_once(folder, pristine_runs, tmp_path):
    def reword(content):
        for row in content["verdicts"]:
            row["note"] = "one seed"
        first, second, *_ = content["verdicts"]
        first |= {"topic": "recovery", "here": "-3.1 points", "note": "few states; one seed"}
        second |= {"topic": "recovery", "paper": "it falls by -2 at T-1", "policy": "", "rule": ""}

    edit(folder, reword)
    items = [f"{name}={path}" for name, path in pristine_runs.items()]
    text = write_report(items, tmp_path / "r.html", analysis=folder).read_text(encoding="utf-8")
    assert '<th scope="rowgroup" rowspan="2">Recovery</th>' in text
    assert "It falls by -2 at T-1." in text
    assert "\N{MINUS SIGN}3.1 points<small>Supported by: the whole interval lies above 0. Few states.</small>" in text
    assert text.count("one seed") == 1
    assert all("one seed" in row["note"] for row in download(text, "verdicts"))


def test_without_an_analysis_nothing_of_it_is_on_the_page(pristine_runs, page, tmp_path):
    items = [f"{name}={path}" for name, path in pristine_runs.items()]
    text = write_report(items, tmp_path / "r.html").read_text(encoding="utf-8")
    body = text.partition("<body>")[2].partition("<script>")[0]
    for word in ("verdicts", "step-quality", "likelihood", "viewer-condition", "injected error", '"condition"'):
        assert word in page
        assert word not in body


def test_the_same_analysis_gives_the_same_bytes_wherever_it_lies(pristine_runs, folder, page, tmp_path):
    items = [f"{name}={path}" for name, path in pristine_runs.items()]
    assert write_report(items, tmp_path / "r.html", analysis=folder).read_text(encoding="utf-8") == page


# ---- episodes


def test_each_pair_shows_both_policies_on_the_same_maps_under_each_condition(analysis):
    shown = analysed_episodes(analysis)
    for name in ("grpo", "budgetmix"):
        for condition in CONDITIONS:
            here = [e for e in shown if (e["pair"], e["condition"]) == (name, condition)]
            maps = {run: [e["instance"] for e in here if e["run"] == run] for run in ("base", name)}
            assert maps["base"] == maps[name]
            assert len(maps["base"]) == PER_CONDITION


def test_injected_turns_and_ratios_reach_the_viewer(analysis):
    shown = analysed_episodes(analysis)
    injected = [[t for t in e["turns"] if t["injected"]] for e in shown if e["condition"] == CONDITIONS[1]]
    assert all(len(turns) == 1 for turns in injected)
    assert not any(t["injected"] for e in shown if e["condition"] != CONDITIONS[1] for t in e["turns"])
    assert all((t["llr"] is None) == t["injected"] for e in shown for t in e["turns"])


@pytest.mark.parametrize(("key", "value"), [("condition", "odd"), ("sampler", "stranger")])
def test_episodes_of_unknown_origin_are_refused(folder, loaded_runs, key, value):
    file = folder / "trajectories" / "grpo.jsonl"
    line = json.loads(file.read_text().splitlines()[0])
    spoilt = copy.deepcopy(line)
    spoilt["instance"][key] = value
    file.write_text(json.dumps(spoilt) + "\n")
    with pytest.raises(RunError, match=rf"instance\.{key}.*{value}"):
        analysed_episodes(load_analysis(folder, loaded_runs))


def test_an_analysis_without_episodes_adds_none(folder, loaded_runs):
    shutil.rmtree(folder / "trajectories")
    assert analysed_episodes(load_analysis(folder, loaded_runs)) == []
