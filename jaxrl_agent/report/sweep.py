"""The page of a training sweep: one line for each setting with a band over seeds, from the sweep's JSON alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup

from jaxrl_agent import __version__
from jaxrl_agent.report import svg
from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.page import points, share
from jaxrl_agent.report.panels import LinePanel, Series
from jaxrl_agent.report.training import MAX_DRAWN, smooth, window_for
from jaxrl_agent.run_dir import Json, read_json

_TEMPLATES = Path(__file__).parent / "templates"
_PANELS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("success", "Success in training", svg.percent),
    ("turns", "Turns used by a trajectory", svg.plain),
    ("entropy", "Entropy, nats per token", svg.plain),
    ("kl", "KL from the policy that sampled, nats", svg.plain),
)


def write_page(source: str | Path, out: str | Path) -> Path:
    """Draw a finished sweep.

    Args:
        source: FILE.json of the sweep.
        out: HTML file to write.

    Returns:
        The path written.

    Raises:
        RunError: the file cannot be read.
    """
    out = Path(out).expanduser().resolve()
    out.write_text(render(read_json(Path(source))), encoding="utf-8")
    return out


def render(result: Json) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share, "points": points}
    sweep = result["sweep"]
    return environment.get_template("sweep.html.j2").render(
        title="Training sweep",
        varied=[(key, ", ".join(f"{value:g}" for value in values)) for key, values in sweep["varied"].items()],
        seeds=sweep["seeds"],
        updates=len(result["updates"]),
        fig=curves_figure(result),
        final=final_table(result),
        final_updates=result["final_updates"],
        versions=result["versions"],
        version=__version__,
        css=Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8")),
    )


def curves_figure(result: Json) -> Figure:
    """Curves of the settings; of more than there are colours, those that ended best."""
    ranked = _ranked(result)
    shown = ranked[: svg.N_SLOTS - 1]  # slot 0 is drawn as a reference that others are held against
    labels = [setting_name(result, one) for one in shown]
    several = len(result["sweep"]["seeds"]) > 1
    window = window_for(len(result["updates"]))
    smoothed = f", smoothed by a centred moving mean over {window} updates" if window > 1 else ""
    left_out = f" The {len(shown)} of {len(ranked)} settings that ended best." if len(ranked) > len(shown) else ""
    band = " Band: ± the standard deviation between seeds." if several else ""
    keys = tuple(Key(label, f"slot-{slot}", slot) for slot, label in enumerate(labels, start=1))
    return Figure(
        key="sweep-curves",
        title="Along training, by setting",
        panels=tuple(_panel(result["updates"], shown, labels, *panel) for panel in _PANELS),
        keys=keys,
        reading=f"Line: mean over seeds{smoothed}.{band}{left_out}",
        definition="Means over the trajectories of an update, sampled on training tasks under the training budgets.",
        table=_curve_table(result, ranked),
    )


def setting_name(result: Json, setting: Json) -> str:
    """A setting by its varied values; keys lose their section where that leaves them apart."""
    keys = list(result["sweep"]["varied"])
    short = [key.rpartition(".")[2] for key in keys]
    words = short if len(set(short)) == len(short) else keys
    values = setting["values"]
    return ", ".join(f"{word} {values[key]:g}" for word, key in zip(words, keys, strict=True)) or "all seeds"


def final_table(result: Json) -> Table:
    """Final success by setting, best first."""
    rows = []
    for one in _ranked(result):
        final = one["final_success"]
        spread = "" if final["sd"] is None else f" ± {100 * final['sd']:.1f}"
        rows.append((setting_name(result, one), f"{100 * final['mean']:.1f}{spread}", str(one["skipped_steps"])))
    return Table(("setting", "success, per cent", "skipped steps"), tuple(rows))


def _ranked(result: Json) -> list[Json]:
    return sorted(result["settings"], key=lambda one: -one["final_success"]["mean"])


def _panel(
    updates: Sequence[int],
    shown: Sequence[Json],
    labels: Sequence[str],
    metric: str,
    title: str,
    text: Callable[[float], str],
) -> LinePanel:
    bounds = (0.0, 1.0) if metric == "success" else (0.0, math.inf)
    lines = tuple(
        _series(updates, one["curves"][metric], label, slot, bounds)
        for slot, (one, label) in enumerate(zip(shown, labels, strict=True), start=1)
    )
    drawn = [value for line in lines for part in (line.ys, line.lows, line.highs) for value in part or ()]
    y_axis = svg.nice_axis(drawn, include=(0.0,), text=text, bounds=bounds)
    return LinePanel(title, "update", svg.nice_axis(updates, include=(0.0,)), y_axis, lines, text=text)


def _series(updates: Sequence[int], curve: Json, label: str, slot: int, bounds: tuple[float, float]) -> Series:
    stride, window = math.ceil(len(updates) / MAX_DRAWN), window_for(len(updates))
    mean, sd = (
        smooth(np.array([math.nan if value is None else value for value in curve[key]]), window)
        for key in ("mean", "sd")
    )

    def drawn(values: np.ndarray) -> list[float | None]:
        return [float(value) if math.isfinite(value) else None for value in np.clip(values, *bounds)[::stride]]

    lows, highs = (drawn(mean - sd), drawn(mean + sd)) if np.isfinite(sd).any() else (None, None)
    return Series(label, slot, updates[::stride], drawn(mean), lows, highs)


def _curve_table(result: Json, settings: Sequence[Json]) -> Table:
    header = ("setting", "update", *(f"{metric}_{end}" for metric, *_ in _PANELS for end in ("mean", "sd")))
    rows = tuple(
        (
            setting_name(result, one),
            update,
            *(one["curves"][metric][end][place] for metric, *_ in _PANELS for end in ("mean", "sd")),
        )
        for one in settings
        for place, update in enumerate(result["updates"])
    )
    return Table(header, rows)
