"""What the paper says of reinforcement learning at a fixed budget, and which measure of a pair decides it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_agent.analysis.likelihood import ROUNDING
from jaxrl_agent.analysis.over_seeds import NATS, POINTS, REWARD, SHARE, Judged, Unit, combine
from jaxrl_agent.analysis.step_quality import ORACLE
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import judge_above, judge_below

Pairs = Sequence[Json]  # of one policy, one for each seed


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper about a policy and its base."""

    topic: str
    paper: str
    measure: str
    unit: Unit
    judged: Judged
    absent: str  # why there may be no such measure
    threshold: float = 0.0
    rule: str = ""  # what must hold of every interval for "supported"; made from the threshold by default
    levels: tuple[str, str] | None = None  # dotted paths in a pair: the policy's own value, the base's
    level_unit: Unit = SHARE
    detail: Callable[[Pairs], str] = lambda pairs: ""  # more numbers
    label: str = ""  # what the number is, where the topic does not tell
    note: str = ""
    optional: bool = False  # no row where it is not measured

    @property
    def condition(self) -> str:
        """The rule in words."""
        side = "above" if self.judged is judge_above else "below"
        return self.rule or f"every interval {side} {self.unit.text(self.threshold)}{self.unit.name}"


def look_up(pair: Json, *path: str) -> Json | float | None:
    """Follow a path through nested parts, None where one is missing."""
    found = pair
    for name in path:
        found = (found or {}).get(name)
    return found


def mean_of(pairs: Pairs, *path: str) -> float | None:
    """Average a number of all pairs; None where one lacks it."""
    values = [look_up(pair, *path) for pair in pairs]
    return None if any(value is None for value in values) else float(np.mean(values))


def gamma_of(quality: str) -> str:
    """The discount that a quality's name tells."""
    return quality.removeprefix("q_star_") if quality.startswith("q_star_") else "1"


def _shares(kind: str, quality: str | None = None) -> Callable[[Pairs], str]:
    def detail(pairs: Pairs) -> str:
        judge = quality or pairs[0]["step_quality"]["primary_quality"]
        found = [mean_of(pairs, "step_quality", "by_quality", judge, kind, name) for name in ("win", "tie", "loss")]
        win, tie, loss = (SHARE.text(share) for share in found)
        return f"better / equal / worse in {win} / {tie} / {loss}% of states, under {_named(pairs, judge)}"

    return detail


def _named(pairs: Pairs, quality: str) -> str:
    fair = (pairs[0]["step_quality"]["qualities"].get(quality) or {}).get("fair")
    knows = "" if fair is not False else ", which knows more than the agent"
    return f"{quality} (gamma {gamma_of(quality)}{knows})"


def _signs(pairs: Pairs) -> str:
    """The mean difference under every other quality: its sign can depend on the discount."""
    primary, others = pairs[0]["step_quality"]["primary_quality"], []
    for quality in pairs[0]["step_quality"]["by_quality"]:
        cells = [look_up(pair, "step_quality", "by_quality", quality, "ordinary") for pair in pairs]
        if quality == primary or not all(cells):
            continue
        value = REWARD.text(float(np.mean([cell["mean_difference"] for cell in cells])))
        known = len(cells) == 1 and cells[0]["ci_low"] is not None
        span = f" ({REWARD.text(cells[0]['ci_low'])} to {REWARD.text(cells[0]['ci_high'])})" if known else ""
        others.append(f"{quality} (gamma {gamma_of(quality)}) {value}{span}")
    return "; ".join([f"under {_named(pairs, primary)}", *others])


def _first_turn(pairs: Pairs) -> str:
    found = combine([look_up(pair, "measures", "step_reward_first_turn_change") for pair in pairs])
    return f"on first turns alone {found.text(REWARD)}" if found else ""


NO_STATES, NO_ERRORS = "no ordinary states were probed", "no error states were probed"
NO_UPDATES = "no run directory with enough updates"
NO_SCORES = "no trajectories were scored under both policies"


def _single_actions(kind: str, judged: Judged, paper: str, *, oracle: bool = False) -> Claim:
    """Who picks the better action in the same states: wins plus half ties against a half."""
    side = "above" if judged is judge_above else "below"
    return Claim(
        f"single actions in {kind.removesuffix('_states')} states" + (", judged by an oracle" if oracle else ""),
        paper,
        f"{'oracle_' if oracle else ''}{kind}_wins_plus_half_ties",
        SHARE,
        judged,
        NO_STATES if kind == "ordinary" else NO_ERRORS,
        threshold=0.5,
        rule=f"every interval of wins plus half ties {side} 50%",
        label="wins plus half ties",
        detail=_shares(kind, ORACLE if oracle else None),
        optional=oracle,
    )


CLAIMS = (
    _single_actions(
        "ordinary",
        judge_below,
        "RL picks the better action in 42.8% of states on FrozenLake and 46.8% on DeepCoder-MT, so not better",
    ),
    Claim(
        "mean value of single actions",
        "RL's single actions are no better than its base's",
        "ordinary_mean_difference",
        REWARD,
        judge_below,
        NO_STATES,
        detail=_signs,
        label="mean difference",
        note="the sign can depend on the quality and its discount gamma",
    ),
    _single_actions("error_states", judge_above, "after an error RL picks the better action in 65.7% of states"),
    _single_actions(
        "ordinary", judge_below, "RL picks the better action in 42.8% of states on FrozenLake, by exact Q", oracle=True
    ),
    _single_actions(
        "error_states",
        judge_above,
        "after an error RL picks the better action in 65.7% of states, by exact Q",
        oracle=True,
    ),
    Claim(
        "recovery after an error",
        "RL recovers more often than its base: 51.3% against 38.6% on FrozenLake, 38.5% against 22.9% on DeepCoder-MT",
        "recovery_difference",
        POINTS,
        judge_above,
        NO_ERRORS,
        levels=("recovery.policy", "recovery.base"),
    ),
    Claim(
        "gain after an error against gain without one",
        "RL gains more after an error than without one",
        "extra_gain",
        POINTS,
        judge_above,
        "no error states were continued with and without the error",
    ),
    Claim(
        "tool errors corrected",
        "RL corrects more of its failed tool calls in the next turn: 41.4% against 27.2%",
        "tool_error_correction_difference",
        POINTS,
        judge_above,
        "the task has no tools, or one of the policies made no error to correct",
        levels=("tool_error_correction.policy.rate", "tool_error_correction.base.rate"),
    ),
    Claim(
        "trajectory reward along training",
        "trajectory reward rises in training, by 0.331",
        "trajectory_reward_change",
        REWARD,
        judge_above,
        NO_UPDATES,
    ),
    Claim(
        "step reward along training",
        "step reward falls in training, by 0.097",
        "step_reward_pooled_change",
        REWARD,
        judge_below,
        NO_UPDATES,
        detail=_first_turn,
        note="pooled over steps, which long failing trajectories drag down without any change of skill",
    ),
    Claim(
        "likelihood of RL's actions under the base",
        "RL's actions are less likely under the base than the base's own: NLL 12.20 against 10.25",
        "nll_under_base_difference",
        NATS,
        judge_above,
        NO_SCORES,
        levels=(
            "likelihood.action_nll.policy_actions_under_base",
            "likelihood.action_nll.base_actions_under_base",
        ),
        level_unit=dataclasses.replace(NATS, sign=""),
    ),
    Claim(
        "likelihood ratio of successful trajectories",
        "LLR of successful trajectories: about 228 for RL's own, 26 for the base's",
        "llr_success_difference",
        NATS,
        judge_above,
        f"{NO_SCORES}, or no task was solved by both",
        levels=("likelihood.llr.policy_success", "likelihood.llr.base_success"),
        level_unit=NATS,
        label="on tasks that both solved",
    ),
)

SANITY = (
    Claim(
        "sanity of likelihood ratios",
        "over all of a policy's own trajectories the mean LLR cannot be below 0 (a theorem, no finding)",
        "llr_policy_all",
        NATS,
        judge_above,
        NO_SCORES,
        threshold=-ROUNDING,
        rule="every interval at 0 or above",
    ),
    Claim(
        "sanity of likelihood ratios",
        "over all of the base's trajectories the mean LLR cannot be above 0 (a theorem, no finding)",
        "llr_base_all",
        NATS,
        judge_below,
        NO_SCORES,
        threshold=ROUNDING,
        rule="every interval at 0 or below",
    ),
)


def levels_text(claim: Claim, pairs: Pairs) -> str:
    """The values of the policy and of its base, "51.3% against 38.6%"; empty where a claim has none."""
    if not claim.levels:
        return ""
    values = [mean_of(pairs, *path.split(".")) for path in claim.levels]
    if any(value is None for value in values):
        return ""
    return " against ".join(f"{claim.level_unit.text(value)}{claim.level_unit.name}" for value in values)
