"""What a training sweep found, over seeds: curves of each setting, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import mean_and_sd

CURVES = ("success", "turns", "entropy", "kl")


def summarise(rows: Sequence[Json], points: Sequence[Mapping[str, float]], seeds: int) -> Json:
    """Average the metrics of a sweep over its seeds.

    Args:
        rows: lines of metrics.jsonl, one an update; each metric is a list over members, setting by setting.
        points: values of the varied keys, a dict for each setting.
        seeds: members of each setting.

    Returns:
        `updates`, `final_updates` (how many the final success is a mean of: the last tenth), and `settings`: for each
        one its `values`, `curves` (by metric: mean and sd over seeds, NaN where a member was not finite, and sd of one
        seed), `final_success` (mean, sd over seeds, per_seed) and `skipped_steps` of all seeds together.
    """
    last = max(1, len(rows) // 10)
    settings = []
    for place, values in enumerate(points):
        own = slice(place * seeds, (place + 1) * seeds)
        success_SU = _metric(rows, "success", own)
        final = mean_and_sd(success_SU[:, -last:].mean(axis=1))
        settings.append(
            {
                "values": dict(values),
                "curves": {name: _curve(_metric(rows, name, own)) for name in CURVES},
                "final_success": {
                    "mean": final.mean,
                    "sd": final.sd,
                    "per_seed": success_SU[:, -last:].mean(axis=1).tolist(),
                },
                "skipped_steps": int(_metric(rows, "skipped_steps", own).sum()),
            }
        )
    return {"updates": [row["update"] for row in rows], "final_updates": last, "settings": settings}


def terminal(result: Json) -> str:
    """Lay out final success by setting, best first."""
    seeds, last = len(result["sweep"]["seeds"]), result["final_updates"]
    keys = list(result["sweep"]["varied"])
    ranked = sorted(result["settings"], key=lambda one: -one["final_success"]["mean"])
    head = [*keys, "success, per cent", *(["skipped steps"] if any(one["skipped_steps"] for one in ranked) else [])]
    rows = [head]
    for one in ranked:
        final = one["final_success"]
        spread = "" if final["sd"] is None else f" ± {100 * final['sd']:.1f}"
        cells = [f"{one['values'][key]:g}" for key in keys]
        rows.append([*cells, f"{100 * final['mean']:.1f}{spread}", str(one["skipped_steps"])][: len(head)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    updates = "update" if last == 1 else f"{last} updates"
    legend = f"Mean over {seeds} seed{'s' * (seeds > 1)} of the success in training over the last {updates}"
    return "\n".join([*lines, "", legend + (", ± the standard deviation between seeds." if seeds > 1 else ".")])


def _metric(rows: Sequence[Json], name: str, members: slice) -> np.ndarray:
    """Values [seeds, updates]; nan where a member's was not finite."""
    return np.array([row["members"][name][members] for row in rows], np.float64).T


def _curve(values_SU: np.ndarray) -> dict[str, Any]:
    finite_U = np.isfinite(values_SU).all(axis=0)
    spread = mean_and_sd(np.where(finite_U, values_SU, 0.0))
    return {"mean": np.where(finite_U, spread.mean, np.nan), "sd": np.where(finite_U, spread.sd, np.nan)}
