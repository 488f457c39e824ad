"""Put the report together: one HTML file that needs nothing but a browser."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from jaxrl_agent import __version__
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.report import cost, figures, reading, settings, shares, svg, training
from jaxrl_agent.report.analysis import dynamics, likelihood, quality, recovery
from jaxrl_agent.report.analysis.load import Analysis, load_analysis, sentence, true_minus
from jaxrl_agent.report.episodes import analysed_episodes, episodes
from jaxrl_agent.report.figure import Figure, present
from jaxrl_agent.report.load import Run, check_comparable, load_run, parse_runs
from jaxrl_agent.report.surface import Surface, compute_surface
from jaxrl_agent.run_dir import Json

_TEMPLATES = Path(__file__).parent / "templates"
MAX_RUNS = 7


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page with its figures, numbered through the whole report."""

    key: str
    title: str
    figures: tuple[tuple[int, Figure], ...] = ()


def write_report(
    runs: Sequence[str], out: str | Path, *, evaluation: str = "", analysis: str | Path | None = None
) -> Path:
    """Read the run directories and write the report.

    The file depends on the run directories and the analysis alone: same input, same bytes.

    Args:
        runs: `NAME=DIR` items; the first is the reference that the others are compared with.
        out: path of the HTML file.
        evaluation: name of the file in `evaluations/` to show; by default "test", or the only one.
        analysis: folder that analyze.py wrote for these runs, if its findings are to be shown.

    Returns:
        The path written.

    Raises:
        ArgumentError: a malformed item, too many runs, or an `out` that cannot be a file.
        RunError: a missing or malformed file, runs that cannot be compared, or an analysis of others.
    """
    out = Path(out).expanduser().resolve()
    if out.is_dir():
        raise ArgumentError("--out must be a file", value=str(out), remedy=f"For example --out={out / 'report.html'}.")
    loaded = load_runs(runs, evaluation=evaluation)
    check_comparable(loaded)
    text = render(loaded, load_analysis(analysis, loaded) if analysis else None)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return out


def load_runs(runs: Sequence[str], *, evaluation: str = "") -> list[Run]:
    """Read `NAME=DIR` items, see `write_report`."""
    pairs = parse_runs(runs)
    if len(pairs) > MAX_RUNS:
        raise ArgumentError(
            f"a report shows at most {MAX_RUNS} runs", value=len(pairs), remedy="Write several reports."
        )
    return [load_run(name, path, slot=i, evaluation=evaluation) for i, (name, path) in enumerate(pairs)]


def render(runs: Sequence[Run], analysis: Analysis | None = None) -> str:
    """The report as HTML."""
    check_comparable(runs)
    surface = compute_surface(runs)
    shown = episodes(runs) + (analysed_episodes(analysis) if analysis else [])
    sections = _sections(surface, analysis, has_episodes=bool(shown))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        **{"share": share, "points": points, "quantity": quantity},
        **{"sentence": sentence, "true_minus": true_minus},
    }
    claims = reading.read(surface)
    return environment.get_template("page.html.j2").render(
        title=f"{settings.task_title(runs)}: success within a turn budget",
        runs=runs,
        surface=surface,
        claims=claims,
        tally=reading.tally(claims),
        margin=f"{100 * reading.MARGIN:g}",
        facts=settings.facts(runs),
        notices=settings.notices(runs),
        sections=sections,
        cost=cost.cost_table(runs),
        changed=settings.compare(runs, "config", differing=True),
        shared=settings.compare(runs, "config", differing=False),
        versions=[settings.compare(runs, "versions", differing=d) for d in (True, False)],
        headline_numbers=figures.headline_table(surface),
        episodes=_script_json(shown) if shown else None,
        analysis=analysis,
        checks=likelihood.checks(analysis) if analysis else [],
        version=__version__,
        css=Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8")),
        script=Markup((_TEMPLATES / "viewer.js").read_text(encoding="utf-8")),
    )


def _analysed_parts(analysis: Analysis | None) -> list[tuple[str, str, list[Figure | None]]]:
    """Key, title and figures of the parts that an analysis adds."""
    if analysis is None:
        return []
    return [
        ("step-quality", "Step quality", [quality.outcome_figure(analysis), *quality.place_figures(analysis)]),
        (
            "recovery",
            "Recovery",
            [recovery.success_figure(analysis), recovery.turns_figure(analysis), recovery.cost_figure(analysis)],
        ),
        ("tool-errors", "Tool errors", [recovery.tool_figure(analysis)]),
        (
            "likelihood",
            "Likelihood",
            [likelihood.turn_figure(analysis), likelihood.nll_figure(analysis), likelihood.split_figure(analysis)],
        ),
        ("dynamics", "Training dynamics going apart", list(dynamics.dynamics_figures(analysis))),
    ]


def _sections(surface: Surface, analysis: Analysis | None, *, has_episodes: bool) -> list[Section]:
    """Every part that has something to show, with figures numbered in order."""
    runs = surface.runs
    analysed = _analysed_parts(analysis)
    parts = [
        ("results", "Results", [figures.budget_figure(surface)]),
        ("verdicts", "The paper's claims, held against these checkpoints", []),
        (
            "surface",
            "Differences, attempts and headroom" if len(runs) > 1 else "Attempts and headroom",
            [
                figures.difference_figure(surface),
                figures.samples_figure(surface),
                figures.headroom_figure(surface),
            ],
        ),
        *analysed,
        (
            "training",
            "Training",
            [
                training.reward_figure(runs),
                training.step_reward_figure(runs),
                shares.stop_reason_figure(runs),
                shares.effective_groups_figure(runs),
                training.health_figure(runs),
                training.warm_start_figure(runs),
            ],
        ),
        ("trajectories", "Trajectories", []),
        ("cost", "Time and throughput", []),
        ("settings", "Settings and versions", []),
    ]
    absent = set()
    if not has_episodes:
        absent.add("trajectories")
    if cost.cost_table(runs) is None:
        absent.add("cost")
    if analysis is None or not analysis.verdicts:
        absent.add("verdicts")
    only_figures = {"surface", "training", *(key for key, _, _ in analysed)}
    sections, number = [], 0
    for key, title, candidates in parts:
        found = present(candidates)
        if key in absent or (key in only_figures and not found):
            continue
        sections.append(Section(key, title, tuple(enumerate(found, start=number + 1))))
        number += len(found)
    return sections


def _script_json(value: list[Json]) -> Markup:
    """JSON that may stand inside a script element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def share(value: float) -> str:
    """A probability in per cent with one decimal."""
    return f"{100 * value:.1f}"


def points(value: float) -> str:
    """A difference of probabilities in percentage points with its sign."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", svg.MINUS)


def quantity(value: float | int | str | None) -> str:
    """A number of the cost table: integers whole, large ones grouped, others with three significant digits."""
    if value is None:
        return settings.ABSENT
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.3g}"
