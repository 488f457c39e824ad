from __future__ import annotations

import csv
import dataclasses
import html.parser
import io
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError, RunError
from jaxrl_agent.report.page import points, quantity, share, write_report
from jaxrl_agent.run_dir import read_json, write_json
from jaxrl_agent.statistics import bootstrap_difference, bootstrap_mean, pass_at_k
from jaxrl_agent.testing.fake_runs import FakeSpec, write_fake_runs

PROJECT = Path(__file__).resolve().parents[2]
VOID = {"meta", "link", "br", "hr", "img", "input"}
BUDGETS = (4, 8, 12, 16)


class Page(html.parser.HTMLParser):
    """The elements of a page, checked for balance while they are read."""

    def __init__(self, text: str):
        super().__init__()
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.cells: dict[tuple, dict[str, str]] = {}  # (k, run, minus, column) -> attributes and text
        self._k, self._row, self._column, self._cell = None, {}, 0, None
        self.feed(text)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "tbody":
            self._k = int(attributes["data-k"]) if "data-k" in attributes else None
        if tag == "tr":
            self._row, self._column = attributes, 0
        if tag == "td" and self._k is not None:
            key = (self._k, self._row["data-run"], self._row.get("data-minus"), self._column)
            self._cell = self.cells[key] = {**attributes, "text": ""}
            self._column += 1

    def handle_endtag(self, tag):
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another element"
        if tag == "td":
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell["text"] += data

    def downloads(self) -> dict[str, list[dict[str, str]]]:
        """Rows of every CSV by file name."""
        found = {}
        for tag, attributes in self.elements:
            if tag == "a" and "download" in attributes:
                head, _, body = attributes["href"].partition(",")
                assert head == "data:text/csv;charset=utf-8"
                rows = csv.DictReader(io.StringIO(urllib.parse.unquote(body)))
                found[attributes["download"]] = list(rows)
        return found


def report(runs: dict[str, Path], out: Path, **options) -> str:
    return write_report([f"{name}={path}" for name, path in runs.items()], out, **options).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(pristine_runs, tmp_path_factory) -> str:
    return report(pristine_runs, tmp_path_factory.mktemp("out") / "report.html")


@pytest.fixture(scope="module")
def page(text) -> Page:
    return Page(text)


def edit(run: Path, **changes) -> None:
    """Change top-level keys of a run's evaluation."""
    file = run / "evaluations" / "test.json"
    write_json(file, {**read_json(file), **changes})


def values_P(run: Path, k: int, turns: int) -> np.ndarray:
    """Pass@(K,T) of each task, straight from the file."""
    entry = next(e for e in read_json(run / "evaluations" / "test.json")["runs"] if e["T"] == turns)
    return np.array([pass_at_k(len(row), sum(0 < t <= turns for t in row), k) for row in entry["first_success_turns"]])


# ---- numbers


@pytest.mark.parametrize("k", [1, 8])
def test_every_success_in_the_table_follows_from_the_samples(page, pristine_runs, k):
    for name, path in pristine_runs.items():
        for column, turns in enumerate(BUDGETS):
            expected = bootstrap_mean(values_P(path, k, turns))
            cell = page.cells[k, name, None, column]
            assert float(cell["data-value"]) == pytest.approx(expected.estimate, abs=1e-12)
            assert float(cell["data-low"]) == pytest.approx(expected.low, abs=1e-12)
            assert float(cell["data-high"]) == pytest.approx(expected.high, abs=1e-12)
            value, low, high = (f"{100 * v:.1f}" for v in (expected.estimate, expected.low, expected.high))
            assert cell["text"] == f"{value}{low} \N{EN DASH} {high}"


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("pair", [("grpo", "base"), ("budgetmix", "base"), ("budgetmix", "grpo")])
def test_every_difference_is_paired_by_task(page, pristine_runs, k, pair):
    better, than = pair
    for column, turns in enumerate(BUDGETS):
        expected = bootstrap_difference(*(values_P(pristine_runs[name], k, turns) for name in pair))
        cell = page.cells[k, better, than, column]
        assert float(cell["data-value"]) == pytest.approx(expected.estimate, abs=1e-12)
        assert float(cell["data-low"]) == pytest.approx(expected.low, abs=1e-12)
        assert float(cell["data-high"]) == pytest.approx(expected.high, abs=1e-12)
        colour = "better" if expected.low > 0 else "worse" if expected.high < 0 else "open"
        assert cell["class"] == colour
        assert cell["text"].startswith(points(expected.estimate))


def test_the_table_has_no_other_rows(page):
    names = {(run, minus) for _, run, minus, _ in page.cells}
    singles = {("base", None), ("grpo", None), ("budgetmix", None)}
    assert names == singles | {("grpo", "base"), ("budgetmix", "base"), ("budgetmix", "grpo")}
    assert len(page.cells) == 2 * 6 * 4


def test_downloads_hold_the_numbers_of_the_stored_grid(page, pristine_runs):
    rows = page.downloads()["success-by-attempts.csv"]
    for name, path in pristine_runs.items():
        for cell in read_json(path / "evaluations" / "test.json")["grid"]:
            row = next(r for r in rows if r["run"] == name and int(r["K"]) == cell["K"] and int(r["T"]) == cell["T"])
            for csv_key, grid_key in (("value", "value"), ("ci_low", "ci_low"), ("ci_high", "ci_high")):
                assert float(row[csv_key]) == pytest.approx(cell[grid_key], abs=1e-9)
            assert (int(row["n_tasks"]), int(row["n_samples"])) == (12, 16)


def test_downloads_of_training_hold_the_lines_of_the_files(page, pristine_runs):
    downloads = page.downloads()
    for name in ("grpo", "budgetmix"):
        lines = [json.loads(line) for line in (pristine_runs[name] / "metrics.jsonl").read_text().splitlines()]
        for file, keys in (
            ("training-reward", ["trajectory_reward", "turns"]),
            ("training-step-reward", ["step_reward_first_turn", "step_reward_mean_of_means", "step_reward_pooled"]),
            ("training-health", ["entropy", "kl", "clip_fraction", "sampler_trainer_max_diff", "grad_norm"]),
        ):
            rows = [row for row in downloads[f"{file}.csv"] if row["run"] == name]
            assert [int(row["update"]) for row in rows] == [line["update"] for line in lines]
            for key in keys:
                assert [float(row[key]) for row in rows] == [line[key] for line in lines]
        rows = [row for row in downloads["training-stop-reasons.csv"] if row["run"] == name]
        assert float(rows[4]["budget"]) == pytest.approx(lines[4]["stop_reasons"]["budget"])
    assert {row["run"] for row in downloads["training-reward.csv"]} == {"grpo", "budgetmix"}


def test_headroom_comes_from_the_evaluation(page, pristine_runs):
    rows = page.downloads()["headroom.csv"]
    for name, path in pristine_runs.items():
        stored = read_json(path / "evaluations" / "test.json")["headroom"]["by_T"]
        found = [(float(r["optimal"]), float(r["success"]), float(r["headroom"])) for r in rows if r["run"] == name]
        assert found == [(row["optimal"], row["success"], row["headroom"]) for row in stored]


def test_every_figure_has_a_key_a_reading_and_a_download(page, text):
    figures = [attributes["id"] for tag, attributes in page.elements if tag == "figure"]
    assert len(figures) == len(set(figures)) == 10
    assert {f"{name}.csv" for name in figures} <= set(page.downloads())
    assert text.count("<figcaption>") == len(figures)
    assert text.count('class="definition">') == len(figures)
    assert "10,000 bootstrap resamples of the tasks" in text
    assert "16 samples of each of 12 tasks" in text


# ---- the file


def test_the_page_is_well_formed_and_its_anchors_exist(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for tag, a in page.elements if tag == "a" and a["href"].startswith("#")}
    assert len(targets) > 10
    assert targets <= set(ids)


def test_the_page_needs_nothing_from_outside(page, text):
    for tag, attributes in page.elements:
        for key in ("src", "href", "srcset", "xlink:href", "action"):
            assert attributes.get(key, "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"https?://", text)
    assert not re.search(r"@import|url\((?!#)", text)


def test_the_same_files_give_the_same_bytes_wherever_they_lie(pristine_runs, text, tmp_path):
    for name, path in pristine_runs.items():
        shutil.copytree(path, tmp_path / "elsewhere" / name)
    moved = {name: tmp_path / "elsewhere" / name for name in pristine_runs}
    assert report(moved, tmp_path / "report.html") == text


def test_names_and_texts_cannot_break_out_of_the_page(runs, tmp_path):
    file = runs["grpo"] / "trajectories" / "evaluation_test.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["turns"][0]["observation"] = "</script><script>alert(1)</script><!--"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = report({"a<b>&\"'": runs["base"], "grpo": runs["grpo"]}, tmp_path / "r.html")
    Page(text)
    block = text.partition('id="episodes">')[2].partition("</script>")[0]
    assert "alert(1)" in block
    assert not set("<>&") & set(block)
    assert "a<b>" not in text


def test_a_foggy_lake_is_said_to_depart_from_the_paper(runs, tmp_path, text):
    assert "Departs from the paper" in text
    for path in runs.values():
        config = read_json(path / "config.json")
        config["task"]["lake"]["foggy"] = False
        write_json(path / "config.json", config)
    stock = report(runs, tmp_path / "r.html")
    assert "Departs from the paper" not in stock
    assert "<h1>FrozenLake:" in stock


def test_colours_stand_out_from_the_ground_in_light_and_dark():
    css = (PROJECT / "jaxrl_agent" / "report" / "templates" / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    for scheme in (light, dark):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-fA-F]{6})", scheme))
        ground = luminance(colours["ground"])
        for name in [f"c{i}" for i in range(8)]:
            assert contrast(luminance(colours[name]), ground) >= 3.0, name
        for name in ("ink", "muted", "link", "good", "bad"):
            assert contrast(luminance(colours[name]), ground) >= 4.5, name


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


# ---- what may be missing, and what may not


def test_optional_files_may_be_missing(runs, tmp_path):
    for path in runs.values():
        for file in ("metrics.jsonl", "warm_start.jsonl", "versions.json"):
            (path / file).unlink(missing_ok=True)
        shutil.rmtree(path / "trajectories")
        edit(path, headroom=None, grid=None)
    text = report(runs, tmp_path / "r.html")
    parsed = Page(text)
    ids = {attributes.get("id") for _, attributes in parsed.elements}
    assert {"results", "surface", "settings"} <= ids
    assert not {"training", "trajectories", "cost", "headroom", "viewer"} & ids
    assert {k for k, *_ in parsed.cells} == {1}


def test_one_run_is_a_report_without_differences(runs, tmp_path):
    parsed = Page(report({"base": runs["base"]}, tmp_path / "r.html"))
    assert {minus for _, _, minus, _ in parsed.cells} == {None}
    assert not any(a.get("class") == "claim" for _, a in parsed.elements)


def test_a_hidden_budget_needs_one_evaluation_for_all_budgets(tmp_path):
    spec = FakeSpec(n_tasks=8, n_samples=4, updates=5, visibility="hidden")
    hidden = write_fake_runs(tmp_path, spec=spec)
    parsed = Page(report(hidden, tmp_path / "r.html"))
    stored = read_json(hidden["grpo"] / "evaluations" / "test.json")["runs"]
    assert [entry["T"] for entry in stored] == [16]
    first_PN = np.array(stored[0]["first_success_turns"])
    for column, turns in enumerate(BUDGETS):
        expected = ((first_PN > 0) & (first_PN <= turns)).mean()
        assert float(parsed.cells[1, "grpo", None, column]["data-value"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", "bfcl"),
        ("split", "train"),
        ("data_hash", "other"),
        ("budget_visibility", "remaining"),
        ("sampling", {"temperature": 0.7, "top_k": 0, "top_p": 1.0}),
        ("sampling", {"temperature": 1.0, "top_k": 5, "top_p": 1.0}),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs, tmp_path, key, value):
    edit(runs["grpo"], **{key: value})
    with pytest.raises(RunError, match=f"must have the same {key}") as caught:
        report(runs, tmp_path / "r.html")
    assert "grpo" in str(caught.value)
    assert not (tmp_path / "r.html").exists()


def test_runs_with_another_largest_budget_are_refused(runs, tmp_path):
    other = write_fake_runs(tmp_path / "other", ["grpo"], dataclasses.replace(SPEC, t_max=20, budgets=(5, 10, 15, 20)))
    with pytest.raises(RunError, match="must have the same"):
        report({"base": runs["base"], **other}, tmp_path / "r.html")


SPEC = FakeSpec(n_tasks=12, n_samples=2, updates=2)


def test_a_grid_that_does_not_follow_from_the_samples_is_refused(runs, tmp_path):
    grid = read_json(runs["grpo"] / "evaluations" / "test.json")["grid"]
    grid[0]["value"] += 0.01
    edit(runs["grpo"], grid=grid)
    with pytest.raises(RunError, match='"grid" of grpo must agree'):
        report(runs, tmp_path / "r.html")


def test_a_table_of_samples_with_a_hole_is_refused(runs, tmp_path):
    stored = read_json(runs["base"] / "evaluations" / "test.json")["runs"]
    stored[1]["first_success_turns"][3].pop()
    edit(runs["base"], runs=stored)
    with pytest.raises(RunError, match="n_samples=16"):
        report(runs, tmp_path / "r.html")


def test_out_must_be_a_file(runs, tmp_path):
    with pytest.raises(ArgumentError, match="must be a file"):
        report(runs, tmp_path)


@pytest.mark.parametrize(("value", "text"), [(0.5432, "54.3"), (1.0, "100.0"), (0.0, "0.0")])
def test_shares_are_shown_in_per_cent(value, text):
    assert share(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.1234, "+12.3"), (-0.05, "\N{MINUS SIGN}5.0"), (-0.0001, "0.0")])
def test_differences_are_shown_in_points_with_a_sign(value, text):
    assert points(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "—"), ("grpo", "grpo"), (150, "150"), (105432.1, "105\u202f432"), (0.2934, "0.293")]
)
def test_quantities_keep_three_digits(value, text):
    assert quantity(value) == text


# ---- the command


def launch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(PROJECT / "launch" / "report.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_the_command_works_from_any_directory(runs, tmp_path, text):
    listed = ",".join(f"{name}=runs/{name}" for name in runs)
    done = launch(f"--runs={listed}", "--out=new/folder/report.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    assert (tmp_path / "new" / "folder" / "report.html").read_text(encoding="utf-8") == text


def test_errors_of_the_command_are_one_line(runs, tmp_path):
    done = launch(f"--runs=base={tmp_path / 'nowhere'}", "--out=r.html", cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "config.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_names_every_flag(tmp_path):
    done = launch("--help", cwd=tmp_path)
    for word in ("--runs", "--out", "--evaluation", "--analysis", "NAME=DIR", "python launch/report.py"):
        assert word in done.stdout


def test_the_report_loads_neither_jax_nor_flax():
    code = "import sys, jaxrl_agent.report.page; print({'jax', 'flax', 'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
