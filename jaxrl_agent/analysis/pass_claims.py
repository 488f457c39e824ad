"""What Pass@(K,T) decides: each claim is judged by its intervals, over tasks and over seeds, never by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from jaxrl_agent.analysis.arms import Arm, partners
from jaxrl_agent.analysis.pass_surface import Comparison
from jaxrl_agent.analysis.seeds import SeedMean
from jaxrl_agent.statistics import (
    PARITY_MARGIN,
    SUPPORTED,
    UNDECIDED,
    Estimate,
    judge_above,
    judge_below,
)

CEILING_K = 64  # a base's ceiling can be told from its luck from here on
ONE_SEED = "one seed, which says nothing of others"
FEWEST_TASKS = 6  # fewer lie on one side by chance in more than 1 of 20 cases, and every resample of them does too
FEW_TASKS = f"fewer than {FEWEST_TASKS} tasks decide nothing"

Judged = Callable[[Estimate, float], str]
Agreement = Callable[[SeedMean, Judged, float], str]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement about a difference at one K and one budget, and what the two intervals say of it."""

    topic: str
    statement: str
    verdict: str
    rule: str  # what had to hold for "supported"
    difference: tuple[str, str]  # (a, b): a minus b
    k: int
    turns: int
    value: SeedMean
    note: str = ""  # why a claim stays undecided whatever its intervals say

    @property
    def sentence(self) -> str:
        """The claim, its verdict and its numbers in one sentence."""
        tasks, seeds = (f"{100 * e.low:+.1f} to {100 * e.high:+.1f}" for e in (self.value.tasks, self.value.seeds))
        n = len(self.value.per_seed)
        over_seeds = f"over {n} seeds {seeds}" if n > 1 else ONE_SEED
        few = FEW_TASKS if self.value.tasks.n < FEWEST_TASKS else ""
        note = "".join(f"; {text}" for text in (self.note, few) if text)
        return (
            f"{self.verdict.capitalize()}: {self.statement} ({100 * self.value.mean:+.1f} points of Pass@{self.k}; "
            f"over tasks {tasks}, {over_seeds}{note})."
        )


def both(value: SeedMean, judged: Judged, threshold: float) -> str:
    """The verdict that the interval over tasks and the one over seeds agree on, else undecided."""
    verdicts = {over_tasks(value, judged, threshold), judged(value.seeds, threshold)}
    return verdicts.pop() if len(verdicts) == 1 else UNDECIDED


def over_tasks(value: SeedMean, judged: Judged, threshold: float) -> str:
    """The verdict of the interval over tasks alone: of these seeds, and of no others; undecided for a few tasks."""
    return judged(value.tasks, threshold) if value.tasks.n >= FEWEST_TASKS else UNDECIDED


_MEANS = {both: "both intervals", over_tasks: "the interval over tasks"}


def judge(comparison: Comparison, *, agreement: Agreement = both) -> list[Claim]:
    """Judge every claim that the arms and budgets of a comparison allow.

    Gain and reversal of methods at a fixed budget against their base, repair and parity of methods that mix budgets
    against those trained alike but for that, and every method's ceiling against its base's. Each claim stands for
    itself: their number is not corrected for.

    Args:
        comparison: of `pass_surface.analyse`.
        agreement: which intervals decide: `both`, by which one seed decides nothing, or `over_tasks`.
    """
    methods = [arm for arm in comparison.arms if arm.base is not None]
    fixed = [arm for arm in methods if not arm.mixes_budgets]
    mixed = [arm for arm in methods if arm.mixes_budgets]
    found: list[Claim | None] = []
    for arm in fixed:
        found += [_gain(comparison, arm, agreement), _reversal(comparison, arm, agreement)]
    for arm in mixed:
        against = partners(arm, fixed)
        found += [claim for other in against for claim in _against_fixed(comparison, arm, other, agreement)]
        if not fixed:
            found.append(_gain(comparison, arm, agreement))
    found += [_ceiling(comparison, arm, agreement) for arm in methods]
    return [claim for claim in found if claim is not None]


def _gain(comparison: Comparison, arm: Arm, agreement: Agreement) -> Claim | None:
    return _above_zero(comparison, (arm.name, arm.base), 100, agreement, topic="gain with turns to spare")


def _reversal(comparison: Comparison, arm: Arm, agreement: Agreement) -> Claim | None:
    turns = comparison.turns_at(25)
    if turns not in comparison.budgets or turns == comparison.turns_at(100):
        return None
    value = comparison.differences[arm.name, arm.base][1, turns]
    statement = f"with {_budget(comparison, turns)}, {arm.name} succeeds less often than {arm.base}"
    verdict, rule, note = agreement(value, judge_below, 0.0), f"{_MEANS[agreement]} below 0", ""
    headroom = [comparison.headroom[name].get(turns) for name in (arm.name, arm.base)]
    if all(headroom):
        left = " and ".join(f"{100 * room.mean:.1f}" for room in headroom)
        statement += f" although both fall short of the optimum there, by {left} points"
        rule += ", and headroom of both above 0 with every seed's interval"
        if verdict == SUPPORTED and min(room.low for room in headroom) <= 0:
            verdict, note = UNDECIDED, "headroom of one may be 0"
    else:
        note = "exact headroom is not known for this task"
    return Claim(
        "reversal when turns are scarce", statement, verdict, rule, (arm.name, arm.base), 1, turns, value, note
    )


def _against_fixed(comparison: Comparison, mixed: Arm, fixed: Arm, agreement: Agreement) -> Iterator[Claim | None]:
    pair = mixed.name, fixed.name
    for percent in (25, 50, 75):
        yield _above_zero(comparison, pair, percent, agreement, topic="repair by mixed budgets")
    turns = comparison.turns_at(100)
    if turns not in comparison.budgets:
        return
    value = comparison.differences[pair][1, turns]
    yield Claim(
        "parity with turns to spare",
        f"with {_budget(comparison, turns)}, {mixed.name} gives up less than {100 * PARITY_MARGIN:g} points to "
        f"{fixed.name}",
        agreement(value, judge_above, -PARITY_MARGIN),
        f"{_MEANS[agreement]} above -{100 * PARITY_MARGIN:g} points",
        pair,
        1,
        turns,
        value,
    )


def _above_zero(
    comparison: Comparison, pair: tuple[str, str], percent: int, agreement: Agreement, *, topic: str
) -> Claim | None:
    turns = comparison.turns_at(percent)
    if turns not in comparison.budgets or (percent < 100 and turns == comparison.turns_at(100)):
        return None
    value = comparison.differences[pair][1, turns]
    statement = f"with {_budget(comparison, turns)}, {pair[0]} succeeds more often than {pair[1]}"
    verdict = agreement(value, judge_above, 0.0)
    return Claim(topic, statement, verdict, f"{_MEANS[agreement]} above 0", pair, 1, turns, value)


def _ceiling(comparison: Comparison, arm: Arm, agreement: Agreement) -> Claim | None:
    turns, k = comparison.turns_at(100), max(comparison.ks)
    if turns not in comparison.budgets:
        return None
    value, n = comparison.differences[arm.name, arm.base][k, turns], comparison.facts["n_samples"]
    verdict, note = agreement(value, judge_above, 0.0), ""
    if k < CEILING_K:
        verdict, note = UNDECIDED, f"a ceiling needs K of {CEILING_K}, so {2 * CEILING_K} samples a task"
    return Claim(
        "beyond the base's ceiling",
        f"with {_budget(comparison, turns)} and {k} attempts (from {n} samples a task), {arm.name} solves more tasks "
        f"than {arm.base}",
        verdict,
        f"{_MEANS[agreement]} above 0, K of {CEILING_K} or more",
        (arm.name, arm.base),
        k,
        turns,
        value,
        note,
    )


def _budget(comparison: Comparison, turns: int) -> str:
    return f"{turns} of {comparison.facts['t_max']} turns"
