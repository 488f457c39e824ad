"""The table "the paper says / here / verdict": every claim a row, judged from intervals, never by hand.

A claim is supported or contradicted where every interval lies on one side; one analysis has intervals over tasks (or
updates) and says nothing of other seeds, several seeds add an interval over seeds. A claim without data is a row too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from jaxrl_agent.analysis import dynamics, estimates
from jaxrl_agent.analysis.arms import Policy, partners
from jaxrl_agent.analysis.claims import CLAIMS, SANITY, Claim, levels_text, look_up
from jaxrl_agent.analysis.over_seeds import POINTS, REWARD, Combined, Unit, combine, of_seed_mean
from jaxrl_agent.analysis.pass_claims import ONE_SEED, both, judge, over_tasks
from jaxrl_agent.analysis.pass_surface import Comparison
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import CONTRADICTED, PARITY_MARGIN, SUPPORTED, UNDECIDED, judge_above

WORDS = {SUPPORTED: "supports", CONTRADICTED: "contradicts", UNDECIDED: "cannot tell"}
GAIN, REVERSAL, CEILING = "gain with turns to spare", "reversal when turns are scarce", "beyond the base's ceiling"
REPAIR, PARITY = "repair by mixed budgets", "parity with turns to spare"
PASS_CLAIMS = {
    (GAIN, 100): "RL succeeds more often than its base where turns are to spare",
    (REVERSAL, 25): "where turns are scarce RL falls below its base, although there is room to improve",
    (CEILING, 100): "RL goes beyond the base's Pass@K ceiling",
    (REPAIR, 25): "BudgetMix gains 7.5 points over the fixed policy at 25% of the budget",
    (REPAIR, 50): "BudgetMix gains 5.3 points over the fixed policy at 50% of the budget",
    (REPAIR, 75): "BudgetMix gains 4.0 points over the fixed policy at 75% of the budget",
    (PARITY, 100): "BudgetMix is on a par with the fixed policy at 100% of the budget",
}
ABOVE = "every interval above 0"
RULES = {REVERSAL: "every interval below 0", PARITY: f"every interval above -{100 * PARITY_MARGIN:g} points"}
DECLINE, PROCESS = "decline of step quality under mixed budgets", "process rewards"
DECLINE_PAPER = "BudgetMix mitigates the decline of step quality"
PROCESS_PAPER = "process rewards help on FrozenLake, not on BFCL"
PLAIN = ("grpo", "")  # what process rewards were added to; "" where it is not known
NO_PROCESS = "no run with exact process rewards among the policies"
UNEQUAL = (
    "their training budgets are unequal, and step rewards of shorter trajectories differ without any change of skill"
)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What verdicts are made from."""

    policies: tuple[Policy, ...]  # without the base
    pairs: Mapping[str, Sequence[Json]]  # by name of the policy, one for each seed
    comparison: Comparison | None = None  # Pass@(K,T) of the base and of the policies
    no_comparison: str = "no evaluations"  # why there is none

    @property
    def fixed(self) -> tuple[Policy, ...]:
        """Policies trained at a fixed budget."""
        return tuple(policy for policy in self.policies if not policy.mixes_budgets)

    @property
    def mixed(self) -> tuple[Policy, ...]:
        """Policies trained on mixed budgets."""
        return tuple(policy for policy in self.policies if policy.mixes_budgets)


def judge_all(evidence: Evidence) -> list[Json]:
    """Judge every claim of the paper.

    Args:
        evidence: of one analysis, or of several seeds.

    Returns:
        Rows of "topic", "paper", "here" (numbers with intervals), "verdict" ("supported", "contradicted",
        "undecided"), "rule", "policy" and "note".
    """
    fixed = evidence.fixed or (None,)
    mixed = evidence.mixed or (None,)
    rows: list[Json] = []
    for policy in fixed:
        base = policy and policy.base
        rows += [_pass_row(evidence, key, policy, base) for key in ((GAIN, 100), (REVERSAL, 25), (CEILING, 100))]
        rows += [_pair_row(evidence, claim, policy) for claim in CLAIMS if _has_row(evidence, claim, policy)]
    rows += [_pair_row(evidence, claim, policy) for policy in evidence.policies for claim in SANITY]
    for policy in mixed:
        for other in (policy and partners(policy, evidence.fixed)) or fixed:
            against = other and other.name
            keys = ((REPAIR, 25), (REPAIR, 50), (REPAIR, 75), (PARITY, 100))
            rows += [_pass_row(evidence, key, policy, against) for key in keys]
            rows += _decline_rows(evidence, policy, other)
        if policy:
            rows.append(_pass_row(evidence, (CEILING, 100), policy, policy.base))
    return rows + list(_process_rows(evidence))


def to_markdown(rows: Sequence[Json]) -> str:
    """The rows as a Markdown table: claim, what the paper says, what was found here, verdict."""
    lines = ["| Claim | The paper says | Here | Verdict |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (_claim(row), row["paper"], _joined(row["here"], *_notes(row)), f"**{WORDS[row['verdict']]}**")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    lines += ["", "Each claim is judged by itself, without correction for their number."]
    if any(ONE_SEED in row["note"] for row in rows):
        lines[-1] += f" Intervals are of {ONE_SEED}."
    return "\n".join(lines) + "\n"


def to_text(rows: Sequence[Json]) -> str:
    """The rows for a terminal: verdict, claim, and what was found."""
    return "\n".join(f"{WORDS[row['verdict']]:<12} {_claim(row)}: {_joined(row['here'], *_notes(row))}" for row in rows)


def _claim(row: Json) -> str:
    return f"{row['topic']} ({row['policy']})" if row["policy"] else row["topic"]


def _notes(row: Json) -> list[str]:
    """What its numbers do not say already; that one seed is one seed is said once, under the table."""
    return [note for note in row["note"].split("; ") if note != ONE_SEED and note not in row["here"]]


def _row(topic: str, paper: str, policy: str, here: str, verdict: str, rule: str, note: str = "") -> Json:
    return {
        "topic": topic,
        "paper": paper,
        "here": here,
        "verdict": verdict,
        "rule": rule,
        "policy": policy,
        "note": note,
    }


def _absent(topic: str, paper: str, policy: str, reason: str, rule: str) -> Json:
    return _row(topic, paper, policy, f"not measured: {reason}", UNDECIDED, rule)


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _has_row(evidence: Evidence, claim: Claim, policy: Policy | None) -> bool:
    if not claim.optional:
        return True
    return policy is not None and all(look_up(p, "measures", claim.measure) for p in evidence.pairs[policy.name])


def _pair_row(evidence: Evidence, claim: Claim, policy: Policy | None) -> Json:
    """A claim about a policy and its base, from their probe or the policy's training."""
    if policy is None:
        return _absent(claim.topic, claim.paper, "", "no policy trained at a fixed budget", claim.condition)
    pairs = evidence.pairs[policy.name]
    found = combine([look_up(pair, "measures", claim.measure) for pair in pairs])
    if found is None:
        return _absent(claim.topic, claim.paper, policy.name, claim.absent, claim.condition)
    levels = levels_text(claim, pairs)
    number = " ".join(filter(None, (claim.label, found.text(claim.unit))))
    text = f"{levels}: {number}" if levels else number
    return _row(
        claim.topic,
        claim.paper,
        policy.name,
        _joined(text, claim.detail(pairs)),
        found.verdict(claim.judged, claim.threshold),
        claim.condition,
        _joined(claim.note, found.remark),
    )


def _pass_row(evidence: Evidence, key: tuple[str, int], policy: Policy | None, against: str | None) -> Json:
    """A claim about Pass@(K,T) of a policy against another."""
    topic, percent = key
    paper, comparison, name = PASS_CLAIMS[key], evidence.comparison, policy.name if policy else ""
    rule = RULES.get(topic, ABOVE)
    if policy is None or against is None:
        missing = "on mixed budgets" if policy is None and topic in (REPAIR, PARITY) else "at a fixed budget"
        return _absent(topic, paper, name, f"no policy trained {missing}", rule)
    if comparison is None:
        return _absent(topic, paper, name, evidence.no_comparison, rule)
    agreement = over_tasks if len(comparison.seeds) == 1 else both
    place = (topic, (name, against), comparison.turns_at(percent))
    for claim in judge(comparison, agreement=agreement):
        if (claim.topic, claim.difference, claim.turns) == place:
            value = of_seed_mean(claim.value, claim.note)
            here = f"{value.text(_points(claim.k))}; tested: {claim.statement}"
            return _row(topic, paper, name, here, claim.verdict, claim.rule, value.remark)
    return _absent(topic, paper, name, f"{against} or {percent}% of the budget was not evaluated", rule)


def _points(k: int) -> Unit:
    return dataclasses.replace(POINTS, name=f" points of Pass@{k}")


def _decline_rows(evidence: Evidence, mixed: Policy | None, fixed: Policy | None) -> list[Json]:
    """Whether mixed budgets keep step quality: along training, and in probed states."""
    if mixed is None or fixed is None:
        missing = "on mixed budgets" if mixed is None else "at a fixed budget"
        name = mixed.name if mixed else ""
        return [_absent(DECLINE, DECLINE_PAPER, name, f"no policy trained {missing}", ABOVE)] * 2
    pairs = list(zip(evidence.pairs[mixed.name], evidence.pairs[fixed.name], strict=True))
    along = combine([_change_gap(*pair) for pair in pairs])
    probed = combine([_value_gap(*pair) for pair in pairs])
    minus = f"of {mixed.name} minus that of {fixed.name}"
    found = (
        (along, f"change of pooled step reward along training, {minus}", UNEQUAL, "no run directories with updates"),
        (
            probed,
            f"mean difference over the base in ordinary states, {minus}",
            "each policy was probed in states of its own and the base's trajectories",
            "no ordinary states that share tasks were probed",
        ),
    )
    return [
        _row(
            DECLINE,
            DECLINE_PAPER,
            mixed.name,
            f"{what}: {value.text(REWARD)}",
            value.verdict(judge_above, 0.0),
            ABOVE,
            _joined(note, value.remark),
        )
        if value
        else _absent(DECLINE, DECLINE_PAPER, mixed.name, reason, ABOVE)
        for value, what, note, reason in found
    ]


def _change_gap(mixed: Json, fixed: Json) -> Json | None:
    series = [look_up(pair, "dynamics", "step_reward_pooled") for pair in (mixed, fixed)]
    return dynamics.change_gap(*series) if all(series) else None


def _value_gap(mixed: Json, fixed: Json) -> Json | None:
    found = [look_up(pair, "measures", "ordinary_mean_difference", "per_task") for pair in (mixed, fixed)]
    if not all(found):
        return None
    values = [estimates.by_task([int(task) for task in one], list(one.values())) for one in found]
    return estimates.measure(estimates.paired(*values))


def _process_rows(evidence: Evidence) -> Iterator[Json]:
    """Whether process rewards help: Pass@1 at the full budget against policies trained alike without them."""
    rule = "every interval of the difference in Pass@1 above 0"
    rewarded = [policy for policy in evidence.policies if policy.process_rewards]
    plain = [policy for policy in evidence.policies if not policy.process_rewards]
    pairs = [(a, b) for a in rewarded for b in plain if a.mixes_budgets == b.mixes_budgets and b.method in PLAIN]
    if not rewarded:
        yield {**_absent(PROCESS, PROCESS_PAPER, "", NO_PROCESS, rule), "note": NO_PROCESS}
    for policy in rewarded:
        if policy not in [a for a, _ in pairs]:
            yield _absent(PROCESS, PROCESS_PAPER, policy.name, "no policy trained alike without process rewards", rule)
    for a, b in pairs:
        found = _pass_gap(evidence.comparison, a.name, b.name)
        if found is None:
            reason = f"{a.name} or {b.name} was not evaluated" if evidence.comparison else evidence.no_comparison
            yield _absent(PROCESS, PROCESS_PAPER, a.name, reason, rule)
            continue
        here = f"{a.name} minus {b.name} with all turns: {found.text(_points(1))}"
        yield _row(PROCESS, PROCESS_PAPER, a.name, here, found.verdict(judge_above, 0.0), rule, found.remark)


def _pass_gap(comparison: Comparison | None, a: str, b: str) -> Combined | None:
    """Pass@1 of a minus b at the full budget; None where it is not known."""
    cells = comparison.differences.get((a, b)) if comparison else None
    cell = (1, comparison.turns_at(100)) if comparison else None
    return of_seed_mean(cells[cell]) if cells and cell in cells else None
