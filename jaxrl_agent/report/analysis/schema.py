"""What analysis.json must hold for the report to draw it; a part that was not measured is null and is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxrl_agent.errors import RunError
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import CONTRADICTED, SUPPORTED, UNDECIDED

COMPARED = ("task", "t_max", "budget_visibility", "data_hash")
VERDICT = ("topic", "paper", "here", "verdict", "rule", "policy", "note")
SIDES = ("policy", "base")
KINDS = ("ordinary", "error_states")
STEP_REWARDS = ("step_reward_first_turn", "step_reward_mean_of_means", "step_reward_pooled")

_FIGURE = ("value", "ci_low", "ci_high")
_BIN = ("low", "high", "n_states", "n_tasks")
_SHARES = ("win", "tie", "loss", "wins_plus_half_ties", "mean_difference", "ci_low", "ci_high")
_CELL = (*_SHARES, "n_states", "n_tasks", "intervals.wins_plus_half_ties", "by_turns_left")
_DIFFERENCE = ("base", "policy", "difference", "ci_low", "ci_high")
_RECOVERY = (*_DIFFERENCE, "base_ci", "policy_ci", "n_states", "n_tasks")
_NLL = tuple(f"{by}_actions_under_{under}" for by in SIDES for under in SIDES)
_LLR = tuple(f"{side}_{group}" for group in ("success", "failure", "all") for side in SIDES)
_SANITY = ("policy_all_at_least_0", "base_all_at_most_0")
_DYNAMICS = ("updates", "trajectory_reward", *STEP_REWARDS)
_TOOLS = (*_DIFFERENCE, "n_tasks", *(f"{side}.{key}" for side in SIDES for key in ("rate", "ci_low", "ci_high")))

_PAIR = (
    *(f"step_quality.{key}" for key in ("primary_quality", "by_quality", "qualities")),
    *(f"recovery.{key}" for key in (*_RECOVERY, "by_turns_left")),
    *(f"recovery.without_error.{key}" for key in _RECOVERY),
    *(f"recovery.{part}.{key}" for part in ("extra_gain", "error_cost.policy", "error_cost.base") for key in _FIGURE),
    "recovery.error_cost.optimal",
    *(f"likelihood.action_nll.{key}" for key in (*_NLL, "n_actions.policy", "n_actions.base")),
    *(f"likelihood.action_nll.intervals.{key}" for key in _NLL),
    *(f"likelihood.llr.{key}" for key in (*_LLR, "by_turn.policy", "by_turn.base")),
    *(f"likelihood.llr.{part}.{key}" for part in ("intervals", "n") for key in _LLR),
    *(f"likelihood.llr.per_action.{side}_all.{key}" for side in SIDES for key in _FIGURE),
    *(f"likelihood.llr.by_state_kind.{kind}.{side}" for kind in KINDS for side in SIDES),
    *(f"likelihood.llr.sanity.{key}" for key in _SANITY),
    *(f"tool_error_correction.{key}" for key in _TOOLS),
    *(f"dynamics.{key}" for key in (*_DYNAMICS, "change.trajectory_reward")),
)
_NUMBERS = {
    *("value", "ci_low", "ci_high", "low", "high", "mean", "turn", "n", "n_states", "n_tasks", "difference", "rate"),
    *(*_SHARES, *_NLL, *_LLR, *_DYNAMICS),
}
_AGAIN = "Run analyze.py again."


def fault(key: str, where: str, expected: str) -> RunError:
    """The error that names a key which is there but malformed."""
    return RunError(f'"{key}" of an analysis must be {expected}', value=where, remedy=_AGAIN)


def check(content: Any, where: str) -> None:
    """Refuse what the report could not draw.

    Args:
        content: analysis.json.
        where: the file, for the message.

    Raises:
        RunError: names the first key that is missing or malformed.
    """
    if not isinstance(content, dict):
        raise fault("analysis.json", where, "an object")
    _require(content, ("base", "pairs", "verdicts", *COMPARED), "", where)
    pairs = content["pairs"]
    if not isinstance(pairs, dict) or not pairs:
        raise fault("pairs", where, "an object with an entry for each policy")
    for name, pair in pairs.items():
        _check_pair(pair, f"pairs.{name}.", where)
    _check_rows(content["verdicts"], VERDICT, "verdicts", where)
    for i, row in enumerate(content["verdicts"]):
        if row["verdict"] not in (SUPPORTED, CONTRADICTED, UNDECIDED):
            raise fault(f"verdicts[{i}].verdict", where, f"{SUPPORTED}, {CONTRADICTED} or {UNDECIDED}")


def _require(value: Any, keys: Sequence[str], prefix: str, where: str) -> None:
    """Refuse an object without one of the dotted `keys`; below a null nothing is asked for."""
    for key in keys:
        inner, way = value, key.split(".")
        for depth, part in enumerate(way, start=1):
            if inner is None:
                break
            if not isinstance(inner, dict) or part not in inner:
                missing = f"{prefix}{'.'.join(way[:depth])}"
                raise RunError(f'an analysis must hold "{missing}"', value=where, remedy=_AGAIN)
            inner = inner[part]


def _check_pair(pair: Any, prefix: str, where: str) -> None:
    if pair is None:
        raise fault(prefix.rstrip("."), where, "an object")
    _require(pair, _PAIR, prefix, where)
    for key, expected in _misshapen(pair, prefix):
        raise fault(key, where, expected)
    for place, cell in _cells(pair["step_quality"], f"{prefix}step_quality.", where):
        _require(cell, _CELL, place, where)
        for key, rows in (cell or {}).items():
            if key.startswith("by_"):
                _check_rows(rows, (*_BIN, *_SHARES), f"{place}{key}", where)
    if pair["recovery"] is not None:
        rows = pair["recovery"]["by_turns_left"]
        _check_rows(rows, (*_BIN, *_DIFFERENCE), f"{prefix}recovery.by_turns_left", where)
    if pair["likelihood"] is not None and pair["likelihood"]["llr"] is not None:
        for side, rows in (pair["likelihood"]["llr"]["by_turn"] or {}).items():
            place = f"{prefix}likelihood.llr.by_turn.{side}"
            _check_rows(rows, ("turn", "mean", "ci_low", "ci_high", "n"), place, where)
    dynamics = pair["dynamics"] or {}
    for key in _DYNAMICS if dynamics else ():
        if not isinstance(dynamics[key], list) or len(dynamics[key]) != len(dynamics["updates"]):
            raise fault(f"{prefix}dynamics.{key}", where, "a list as long as updates")


def _cells(quality: Json | None, prefix: str, where: str) -> Iterator[tuple[str, Any]]:
    """Every comparison of step quality with its place in the file."""
    if quality is None:
        return
    by_quality = quality["by_quality"]
    if not isinstance(by_quality, dict) or quality["primary_quality"] not in by_quality:
        raise fault(f"{prefix}primary_quality", where, "a key of by_quality")
    for name, kinds in by_quality.items():
        _require(kinds, KINDS, f"{prefix}by_quality.{name}.", where)
        for kind in KINDS if kinds is not None else ():
            yield f"{prefix}by_quality.{name}.{kind}.", kinds[kind]


def _check_rows(rows: Any, keys: Sequence[str], place: str, where: str) -> None:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise fault(place, where, "a list of objects")
    for i, row in enumerate(rows):
        _require(row, keys, f"{place}[{i}].", where)


def _misshapen(value: Any, place: str, parent: str = "") -> Iterator[tuple[str, str]]:
    """Keys whose value is no number, or no pair of ends, where the report would draw one."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        here = f"{place}{key}" if isinstance(value, dict) else f"{place.rstrip('.')}[{key}]"
        if parent == "intervals" or str(key).endswith("_ci"):
            if item is not None and not (isinstance(item, list) and len(item) == 2):
                yield here, "a list of two ends, or null"
        elif key in _NUMBERS and isinstance(item, (str, bool)):
            yield here, "a number or null"
        if isinstance(item, (dict, list)):
            yield from _misshapen(item, f"{here}.", str(key))
