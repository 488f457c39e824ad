"""FrozenLake over size, hole density, slip and budget: what exact policies achieve, averaged over random maps.

Every number is exact for its map (`envs.frozenlake_policies`); the intervals are those of a mean over maps, from
resampled maps, and the maps are the same for all success rates, policies and budgets. A cell of the sweep is a row:

    size, frozen_prob, success_rate, policy, budget      the cell; frozen_prob before unsolvable draws are discarded
    t_max, budget_share, n_maps                          full budget, budget / t_max, maps averaged over
    infeasible_share                                     maps on which no play can reach the goal within the budget
    best                                                 V_B(start), the best possible success
    success, headroom                                    the policy's success within the budget; best - success
    over_full, over_quick                                success less that of `full`, of `quick`, on the same maps
    recovery                                             success within the budget after an error of the first turn
    pass_at_K                                            1 - (1 - success)^K of each map, then averaged

with `_low` and `_high` beside each mean.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from jaxrl_agent.envs.frozenlake_maps import random_map
from jaxrl_agent.envs.frozenlake_policies import POLICIES, Played, Styles, play_all
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.rollout.budget import budget_levels, hidden_weight
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import bootstrap_mean

REFERENCES = ("full", "quick")  # what the others are held against


@dataclasses.dataclass(frozen=True)
class LakeSweep:
    """What to sweep.

    Raises:
        ConfigError: a list that is empty or holds a value twice, an unknown policy, or a number out of range.
    """

    sizes: tuple[int, ...] = (4, 6, 8)
    frozen_probs: tuple[float, ...] = (0.7, 0.8, 0.9)
    success_rates: tuple[float, ...] = (1 / 3, 0.8, 1.0)
    budgets: tuple[int, ...] = ()  # turns; by default the ten levels of BudgetMix
    policies: tuple[str, ...] = POLICIES
    ks: tuple[int, ...] = (2, 4, 8, 16)
    t_max: int = 0  # turns of the full budget; by default the largest budget, or 100
    maps: int = 1000  # of each size and frozen_prob
    seed: int = 0
    resamples: int = 1000
    styles: Styles = dataclasses.field(default_factory=Styles)

    def __post_init__(self):
        for name in ("sizes", "frozen_probs", "success_rates", "policies", "ks"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"--{name} must list different values, at least one", value=list(values))
        if unknown := set(self.policies) - set(POLICIES):
            raise ConfigError(
                "--policies must name known policies",
                value=sorted(unknown),
                remedy=f"Choose among {', '.join(POLICIES)}.",
            )
        for name, least in (("maps", 1), ("seed", 0), ("resamples", 1), ("t_max", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} must be at least {least}", value=getattr(self, name))
        if min(self.ks) < 1:
            raise ConfigError("--ks must be 1 or more", value=list(self.ks))
        if self.budgets and (min(self.budgets) < 1 or max(self.budgets) > self.full_budget):
            raise ConfigError(f"--budgets must lie in 1..{self.full_budget}", value=list(self.budgets))
        if len(set(self.budgets)) < len(self.budgets):
            raise ConfigError("--budgets must list different values", value=list(self.budgets))

    @property
    def full_budget(self) -> int:
        """Turns of the full budget."""
        return self.t_max or max(self.budgets, default=100)

    @property
    def all_budgets(self) -> list[int]:
        """The budgets, in order."""
        return sorted(self.budgets or set(np.asarray(budget_levels(self.full_budget)).tolist()))


def parse_numbers(name: str, texts: Sequence[str], kind: type) -> tuple:
    """Read the values of a list flag; a fraction such as 1/3 is a number too.

    Raises:
        ConfigError: one that is not of `kind`, int or float.
    """
    try:
        return tuple(int(text) if kind is int else float(Fraction(text.strip())) for text in texts)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--{name} is a list of {kind.__name__} values", value=",".join(texts)) from None


def run(sweep: LakeSweep, say: Callable[[str], None] = lambda _: None) -> list[Json]:
    """Compute every cell.

    Args:
        sweep: what to sweep.
        say: told of each size and density that is done.

    Returns:
        Rows as the module describes them, in order of size, frozen_prob, success_rate, policy, budget.

    Raises:
        MapError: a size or density of which no map can be made.
    """
    rows: list[Json] = []
    for size, frozen_prob in itertools.product(sweep.sizes, sweep.frozen_probs):
        descs = draw_maps(sweep, size, frozen_prob)
        for rate in sweep.success_rates:
            lake = {"size": size, "frozen_prob": frozen_prob, "success_rate": rate}
            rows += _rows(sweep, lake, _play(sweep, descs, rate))
        say(f"size {size}, frozen_prob {frozen_prob:g}: {len(descs)} maps")
    return rows


def draw_maps(sweep: LakeSweep, size: int, frozen_prob: float) -> list[list[str]]:
    """Draw the maps of one size and density; those of different seeds are independent."""
    first = sweep.seed * 2**32
    return [random_map(first + i, size=size, frozen_prob=frozen_prob) for i in range(sweep.maps)]


def to_csv(rows: Sequence[Json]) -> str:
    """Tidy CSV, numbers in full precision."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _play(sweep: LakeSweep, descs: list[list[str]], rate: float) -> Played:
    """Play the references first, then the policies asked for."""
    return play_all(
        descs,
        success_rate=rate,
        budgets=sweep.all_budgets,
        t_max=sweep.full_budget,
        weights=np.asarray(hidden_weight(sweep.full_budget), np.float64),
        policies=_played(sweep),
        styles=sweep.styles,
    )


def _played(sweep: LakeSweep) -> list[str]:
    return [*REFERENCES, *(name for name in sweep.policies if name not in REFERENCES)]


def _rows(sweep: LakeSweep, lake: Json, played: Played) -> Iterator[Json]:
    """Average over maps; all means of a lake share the resampled maps."""
    index = [_played(sweep).index(name) for name in sweep.policies]
    success_NPB, recovery_NPB = (x[index].swapaxes(0, 1) for x in (played.success_PNB, played.recovery_PNB))
    best_NPB = np.broadcast_to(played.best_NB[:, None], success_NPB.shape)
    quantities = {"best": best_NPB, "success": success_NPB, "headroom": best_NPB - success_NPB}
    for name, reference_NB in zip(REFERENCES, played.success_PNB, strict=False):
        quantities[f"over_{name}"] = success_NPB - reference_NB[:, None]
    quantities["recovery"] = recovery_NPB
    quantities |= {f"pass_at_{k}": 1.0 - (1.0 - success_NPB) ** k for k in sweep.ks}
    means = bootstrap_mean(np.stack(list(quantities.values()), axis=1), resamples=sweep.resamples, seed=sweep.seed)
    infeasible_B = (played.best_NB == 0.0).mean(axis=0)
    for (p, name), (b, budget) in itertools.product(enumerate(sweep.policies), enumerate(sweep.all_budgets)):
        row = lake | {"policy": name, "budget": budget, "t_max": sweep.full_budget}
        row |= {"budget_share": budget / sweep.full_budget, "n_maps": means.n}
        row["infeasible_share"] = float(infeasible_B[b])
        for q, quantity in enumerate(quantities):
            ends = {"": means.estimate, "_low": means.low, "_high": means.high}
            row |= {f"{quantity}{end}": float(values[q, p, b]) for end, values in ends.items()}
        yield row
