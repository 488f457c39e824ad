"""The arena of host code on programming problems whose every reply is one token: what is known of them comes out.

Replies hang on nothing that was read, so success within h turns follows from a policy's odds alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxrl_agent.analysis.folder import analyse_folder
from jaxrl_agent.assemble import Game, Policy
from jaxrl_agent.config import TaskConfig
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.evaluation.arena_rows import CUT
from jaxrl_agent.evaluation.host_arena import UNKNOWN, HostArena
from jaxrl_agent.evaluation.host_histories import put_errors
from jaxrl_agent.evaluation.pair_probe import ProbeSettings, Study, Subject
from jaxrl_agent.evaluation.recovery_probe import inject_errors, probe_recovery
from jaxrl_agent.evaluation.state_probe import probe_states
from jaxrl_agent.progress import Display
from jaxrl_agent.rollout.collect import CollectSettings
from jaxrl_agent.rollout.seats import Said
from jaxrl_agent.run_dir import AnalysisDir, write_json
from jaxrl_agent.sandbox import Status, Verdict
from jaxrl_agent.sandbox.results import CaseVerdict
from jaxrl_agent.tasks.coding.probe import CodingProbe
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.deepcoder import make_deepcoder
from jaxrl_agent.testing.fake_probes import assert_ties_everywhere
from jaxrl_agent.testing.policies import SURE, leaning_policy
from jaxrl_agent.testing.replies import TagTokenizer
from jaxrl_agent.testing.small import small_config
from jaxrl_agent.types import StopReason

T_MAX = 3
PASSED = {"right": 4, "half": 2, "wrong": 0, "sly": 2}  # of two public and two hidden tests
REPLIES = {name: f"```python\n{name}()\n```" for name in (*PASSED, "flaky")} | {"silent": "I do not know."}
ODDS = {
    "base": {"right": 0.15, "half": 0.25, "wrong": 0.3, "sly": 0.05, "flaky": 0.15, "silent": 0.05, CUT: 0.05},
    "policy": {"right": 0.5, "half": 0.2, "wrong": 0.1, "sly": 0.05, "flaky": 0.05, "silent": 0.05, CUT: 0.05},
}
SETTINGS = ProbeSettings(samples=8, states=12, error_states=8, replies=8, continuations=8)


def judge(program: str, tests, *, limits) -> Verdict:
    """Give the verdict that the program's name asks for: public tests come first."""
    name = program.strip().removesuffix("()")
    if name == "flaky":
        raise SandboxError("a sandbox must start", value="no")
    passes = {"half": (0, 2), "sly": (0, 1)}.get(name, range(PASSED[name]))
    results = tuple(CaseVerdict(Status.OK if place in passes else Status.WRONG) for place in range(len(tests)))
    return Verdict(Status.WRONG, len(passes), len(tests), results)


def problem(number: int) -> Problem:
    tests = [{"input": f"{number}{place}\n", "output": "0\n"} for place in range(4)]
    return Problem(f"made/{number}", f"Problem {number}.", tuple(tests[:2]), tuple(tests[2:]), "stdin")


def policy_of(tokenizer: TagTokenizer, odds) -> Policy:
    """Draw a reply by its odds, whatever was read, and end it; a cut one says the same for ever."""
    ids = {name: tokenizer.tag_ids[text] for name, text in REPLIES.items()} | {CUT: ord("x")}
    logits_VV = np.full((tokenizer.vocab_size,) * 2, -SURE)
    for name, share in odds.items():
        logits_VV[:, ids[name]] = np.log(share)
        logits_VV[ids[name]] = -SURE
        logits_VV[ids[name], ids[name] if name == CUT else tokenizer.control_id("<|im_end|>")] = SURE
    config, params = leaning_policy(logits_VV, num_hidden_layers=1)
    return Policy(config, params, "tags", update=7)


class Table:
    """The game, both policies, and the probe of the pair."""

    def __init__(self):
        self.tokenizer = TagTokenizer(list(REPLIES.values()))
        config = TaskConfig(name="deepcoder", text="words", t_max=T_MAX, max_tokens=3, budget_visibility="remaining")
        options = {"vocab_size": self.tokenizer.vocab_size, "problems": [problem(n) for n in range(4)], "judge": judge}
        task, instances = make_deepcoder(config, self.tokenizer, "test", **options)
        self.game = Game(task, None, instances, self.tokenizer)
        self.policies = {name: policy_of(self.tokenizer, odds) for name, odds in ODDS.items()}
        self.arena = self.new_arena()
        facts = {"n_tasks": 4, "budget": T_MAX, "t_max": T_MAX, "task": "deepcoder", "split": "test"}
        self.study = Study(self.arena, SETTINGS, Display(mode="quiet"), facts)
        players = [
            self.study.play(Subject(name, small_config(init="hf:nowhere")), policy)
            for name, policy in self.policies.items()
        ]
        self.episodes = {player.subject.name: player.episodes for player in players}
        self.probed = self.study.pair(*players)

    def new_arena(self, **settings) -> HostArena:
        settings = CollectSettings(lanes=16, shelf=16, **settings)
        probe = CodingProbe(self.game.task, self.game.instances)
        return HostArena(self.game, probe, budget=T_MAX, settings=settings)

    def positions(self, wanted=lambda turn: True):
        """Every state of the base's way whose turn is wanted."""
        visits = self.arena.visits(self.episodes["base"])
        few = np.array([index for index, turn in enumerate(visits.turn_V.tolist()) if wanted(turn)])
        return self.arena.positions([self.episodes["base"]], few * 0, visits.row_V[few], visits.turn_V[few])


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


def test_an_analysis_in_which_nothing_could_be_checked_is_an_error(table):
    policy = policy_of(table.tokenizer, {"flaky": 1.0})
    with pytest.raises(SandboxError, match=r"all 8 failed: could_not_check"):
        table.new_arena().play(policy, samples=2)


def success_within(odds, turns: int) -> float:
    """Chance of success among those of which the machinery knows: a program that passes, before one that ends it."""
    known, won, there = 0.0, 0.0, 1.0
    for left in range(turns, 0, -1):
        won += there * odds["right"]
        known += there * (odds["right"] + odds["sly"] + odds[CUT])
        going = odds["half"] + odds["wrong"] + odds["silent"]
        known += there * going if left == 1 else 0.0
        there *= going
    return won / known


def near(found, expected: float) -> bool:
    """Within four standard errors of the mean of successes."""
    found = np.array(found, np.float64)
    return abs(found.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / found.size)


def test_episodes_end_as_the_odds_say_and_unknown_ends_are_named(table):
    for name, odds in ODDS.items():
        columns = table.arena.columns(table.episodes[name])
        assert columns["task"] == np.repeat(np.arange(4), SETTINGS.samples).tolist()
        known = [won for won in columns["success"] if won is not None]
        assert near(known, success_within(odds, T_MAX))
        for stop, won, quality in zip(columns["stop"], columns["success"], columns["quality"], strict=True):
            assert (stop == "could_not_check") == (won is None) == (quality[-1] is None)
        assert None in columns["success"]
        assert columns["call_ok"] is None


def test_states_are_named_by_problem_and_verdicts_of_the_latest_submission(table):
    visits = table.arena.visits(table.episodes["base"])
    names = {key.split("/", 2)[2] for key in visits.keys}
    assert {"start", "unusable"} < names
    assert len(names) == 4  # and what "half" and "wrong" leave behind; all others end the episode
    assert all(key.startswith(f"made/{task}/") for key, task in zip(visits.keys, visits.task_V, strict=True))
    np.testing.assert_array_equal(visits.turns_left_V, T_MAX - visits.turn_V)


def test_both_policies_reply_to_the_very_bytes_of_the_episode(table):
    positions = table.positions()
    replies = table.arena.act(list(table.policies.values()), positions, replies=2)
    for episodes in replies.rows:
        for row, played in enumerate(episodes.played_B):
            history = positions.starts[row // 2]
            assert played.row.ids[: len(history.ids)] == history.ids
            assert len(played.answers) == len(history.said) + 1
            assert played.row.turns[len(history.ids)] == len(history.said)
            assert played.logprobs[: len(history.ids)] == history.logprobs  # whoever said it
            assert any(history.logprobs) == bool(history.said)


def test_a_reply_is_worth_the_tests_that_it_passes(table):
    positions = table.positions()
    replies = table.arena.act(list(table.policies.values()), positions, replies=24)
    values = table.arena.exact(positions, replies)["pass_fraction"]
    met = {}
    for names, row in zip(replies.outcomes, values, strict=True):
        met |= {(name and name.split()[-1]): value for name, value in zip(names, row, strict=True)}
    assert met == {"4/4": 1.0, "2/4": 0.5, "0/4": 0.0, None: 0.0, "off": 0.0}
    assert {name for names in replies.outcomes for name in names} >= {None, CUT}


def test_replies_that_could_not_be_checked_amount_to_nothing_and_are_left_out(table, tmp_path):
    positions = table.positions()
    replies = table.arena.act([table.policies["base"]], positions, replies=16)
    unknown_SN = replies.outcome_SN[0] == UNKNOWN
    flaky = table.tokenizer.tag_ids[REPLIES["flaky"]]
    said = [flaky in played.row.ids[len(played.row.ids) - 2 :] for played in replies.rows[0].played_B]
    np.testing.assert_array_equal(unknown_SN.reshape(-1), said)
    states = table.probed.raw["states"]["ordinary"]
    flat = [action for row in states["base_actions"] for action in row]
    assert None in flat
    assert all(value is not None for row in states["base_llr"] for value in row)  # what was said can be scored
    write_probe(table.probed.raw, tmp_path)
    cell = analyse_folder(tmp_path, ["policy"])["step_quality"]["ordinary"]
    odds = {name: {reply: share for reply, share in of.items() if reply != "flaky"} for name, of in ODDS.items()}
    means = {name: (of["right"] + 0.5 * (of["half"] + of["sly"])) / sum(of.values()) for name, of in odds.items()}
    assert abs(cell["mean_difference"] - (means["policy"] - means["base"])) < 0.15


def test_a_state_whose_past_comes_out_otherwise_is_nobodys_and_has_no_reply(table):
    positions = table.positions(lambda turn: turn == 1).take(np.arange(2))
    history = positions.starts[0]
    positions.starts[0] = dataclasses.replace(history, ids=[*history.ids[:-1], history.ids[-1] + 1])
    found = probe_states(
        table.arena,
        positions,
        base=table.policies["base"],
        policy=table.policies["policy"],
        sources=["base"] * 2,
        replies=4,
        rollouts=0,
    )
    assert found["base_actions"][0] == found["policy_actions"][0] == found["base_llr"][0] == [None] * 4
    assert found["outcomes"][0] == ()
    assert None not in found["policy_llr"][1]


def test_injected_errors_are_the_bases_own_with_their_real_feedback(table):
    positions = table.positions()
    errors = table.arena.inject(positions)
    np.testing.assert_array_equal(errors.ok_S, positions.turns_left_S > 1)
    said = {table.tokenizer.tag_ids[REPLIES[name]]: name for name in ("half", "wrong")}
    for place in np.flatnonzero(errors.ok_S):
        before, after = positions.starts[place], errors.after.starts[place]
        *past, error = after.said
        assert (tuple(past), error.sampled) == (before.said, False)
        name = said[error.ids[0]]
        assert errors.names[place].endswith(f"{PASSED[name]}/4")
        assert after.answers[-1].is_error
        read = table.tokenizer.decode(after.ids[len(before.ids) :])
        assert f"{int(positions.task_S[place])}1" in read  # a public test that failed
        assert f"left {positions.turns_left_S[place] - 1}" in read
        assert errors.after.covariates["previous_pass_percent"][place] == 25 * PASSED[name]
        assert errors.after.keys[place].count("/") == 2
    np.testing.assert_array_equal(errors.after.turns_left_S[errors.ok_S], positions.turns_left_S[errors.ok_S] - 1)
    again = table.arena.inject(positions.take(np.arange(3, 5)))
    assert again.names == errors.names[3:5]  # drawn by the state's name, wherever it stands


def test_the_names_of_states_behind_errors_are_those_that_episodes_give_them(table):
    positions = table.positions(lambda turn: turn == 0)
    errors = table.arena.inject(positions)
    visits = table.arena.visits(table.episodes["base"])
    for place, key in enumerate(errors.after.keys):
        error = positions.starts[place].said, errors.after.starts[place].said[-1].ids
        for row, turn, name in zip(visits.row_V, visits.turn_V, visits.keys, strict=True):
            played = table.episodes["base"].played_B[row]
            first = [token for token, of in zip(played.row.ids, played.row.turns, strict=True) if of == 0]
            if turn == 1 and played.request.instance == positions.task_S[place] and tuple(first) == error[1]:
                assert name == key


def test_recovery_is_what_the_odds_say_and_injected_turns_are_never_scored(table):
    positions = table.positions(lambda turn: turn == 0)
    injected = inject_errors(table.arena, positions, 100)
    assert 4 <= len(injected.after) <= 8  # two errors for each of four problems, each once
    columns, ends = probe_recovery(table.arena, injected, **table.policies, continuations=64)
    for name, odds in ODDS.items():
        for column, turns in ((f"{name}_success", T_MAX - 1), (f"{name}_without_error", T_MAX)):
            expected = success_within(odds, turns)
            n = 64 * len(injected.after) - columns["not_known"][column]
            assert abs(np.mean(columns[column]) - expected) < 4 * np.sqrt(expected * (1 - expected) / n), column
            assert columns["not_known"][column] > 0
        scores = table.arena.score(table.policies[name], ends[name])
        assert not scores.tokens_BT[:, 0].any()
        assert not scores.turn_BT[:, 0].any()
        assert scores.tokens_BT[:, 1].all()
    assert columns["optimal_after"] is None


def first_states(arena: HostArena, policy: Policy):
    """Where every episode of a policy that plays as the base begins, and the episodes."""
    episodes = arena.play(policy, samples=2)
    rows = np.arange(len(episodes))
    return arena.positions([episodes], rows * 0, rows, rows * 0), episodes


def test_without_errors_of_the_base_none_is_injected(table):
    arena = table.new_arena()
    positions, _ = first_states(arena, policy_of(table.tokenizer, {"right": 1.0}))
    assert not arena.inject(positions).ok_S.any()
    with pytest.raises(ArgumentError, match="base must play"):
        table.new_arena().inject(positions)


def test_an_error_that_ends_the_episode_is_not_injected(table):
    start = table.game.task.reset(0, budget=T_MAX).row.ids
    arena = table.new_arena(max_context=len(start) + table.game.task.max_tokens + 8)  # no room for feedback
    positions, episodes = first_states(arena, policy_of(table.tokenizer, {"wrong": 1.0}))
    assert {one.stop for one in episodes.played_B} == {StopReason.CONTEXT_LIMIT}
    assert all(one.answers[0].is_error for one in episodes.played_B)
    assert not arena.inject(positions).ok_S.any()


def test_only_what_is_an_error_there_is_put_behind_a_history_that_comes_out_as_it_did(table):
    (history,) = table.positions(lambda turn: turn == 0).take(np.array([0])).starts
    end = table.tokenizer.control_id("<|im_end|>")
    said = {name: Said((table.tokenizer.tag_ids[text], end), sampled=False) for name, text in REPLIES.items()}
    other = dataclasses.replace(history, ids=[*history.ids[:-1], 0])
    wanted = [(history, name) for name in said] + [(other, "wrong")]
    found = put_errors(
        table.game.task,
        CollectSettings(),
        [place for place, _ in wanted],
        [said[name] for _, name in wanted],
        budget=T_MAX,
        context=2048,
        key=None,
    )
    put = [(place is history, name) for (place, name), new in zip(wanted, found, strict=True) if new]
    assert put == [(True, "half"), (True, "wrong")]


def test_sampled_values_are_the_references_chances_behind_the_reply(table):
    positions = table.positions(lambda turn: turn == 0)
    positions = positions.take(np.arange(0, len(positions), SETTINGS.samples))
    replies = table.arena.act([table.policies["base"]], positions, replies=24)
    values = table.arena.monte_carlo(table.policies["policy"], positions, replies, rollouts=96)
    found = {}
    for names, row in zip(replies.outcomes, values, strict=True):
        for name, value in zip(names, row, strict=True):
            found.setdefault(name and name.split()[-1], []).append(value)
    assert set(found["4/4"]) == {1.0}
    assert set(found["off"]) == {0.0}
    expected = success_within(ODDS["policy"], T_MAX - 1)
    for name in ("0/4", None):
        assert abs(np.mean(found[name]) - expected) < 4 * np.sqrt(expected * (1 - expected) / (80 * len(found[name])))


def test_a_policy_against_itself_ties_everywhere_and_has_ratios_of_exactly_zero(table):
    twin = Subject("twin", small_config(init="hf:nowhere"))
    base = table.study.play(Subject("base", small_config(init="hf:nowhere")), table.policies["base"])
    assert_ties_everywhere(table.study.pair(base, dataclasses.replace(base, subject=twin)).raw)


def test_likelihood_ratios_are_those_of_the_odds(table):
    for name in ODDS:
        columns = table.probed.raw["episodes"][name]
        for row, played in enumerate(table.episodes[name].played_B):
            llr = np.subtract(columns["logprobs"]["policy"][row], columns["logprobs"]["base"][row])
            assert len(llr) == len(played.answers)
            for turn, value in enumerate(llr):
                first = played.row.ids[played.row.turns.index(turn)]
                reply = next((r for r, text in REPLIES.items() if table.tokenizer.tag_ids[text] == first), CUT)
                assert value == pytest.approx(np.log(ODDS["policy"][reply] / ODDS["base"][reply]), abs=2e-3)


def test_episodes_for_people_say_who_spoke_and_what_was_injected(table):
    read = table.probed.trajectories
    assert {trajectory.policy_version for trajectory in read} == {7}
    for trajectory in read:
        marked = [turn for turn in trajectory.turns if turn.info.get("injected")]
        assert len(marked) == (trajectory.instance["condition"] != "ordinary")
        assert all(turn.logprobs == [] for turn in marked)
        assert all(len(turn.logprobs) == len(turn.tokens) for turn in trajectory.turns if turn not in marked)
        assert all(np.any(turn.logprobs) for turn in trajectory.turns if turn not in marked)


def write_probe(raw, folder) -> None:
    write_json(AnalysisDir.at(folder).probe("policy"), raw)


def test_the_whole_analysis_of_a_pair_is_finite(table, tmp_path):
    write_probe(table.probed.raw, tmp_path)
    found = analyse_folder(tmp_path, ["policy"])
    for kind in ("ordinary", "error_states"):
        cell = found["step_quality"][kind]
        assert cell["quality"] == "pass_fraction"
        assert np.isfinite(
            [cell[name] for name in ("win", "tie", "loss", "mean_difference", "ci_low", "ci_high")]
        ).all()
        assert cell["n_states"] > 0
        assert cell["by_previous_pass_percent"]
    assert found["step_quality"]["ordinary"]["mean_difference"] > 0
    recovery = found["recovery"]
    assert np.isfinite([recovery[name] for name in ("base", "policy", "difference", "ci_low", "ci_high")]).all()
    assert recovery["difference"] > 0
    llr = found["likelihood"]["llr"]
    assert llr["policy_all"] > 0 > llr["base_all"]
    assert found["tool_error_correction"] is None


def test_the_same_seed_gives_the_same_probe(table):
    again = table.new_arena().play(table.policies["base"], samples=SETTINGS.samples)
    assert [one.row.ids for one in again.played_B] == [one.row.ids for one in table.episodes["base"].played_B]
