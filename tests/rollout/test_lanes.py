"""Lanes, shelf and stock: whatever moves a row makes, it gains the tokens of a row that never moved."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_agent.errors import NonFiniteError
from jaxrl_agent.models.kv_cache import KVCache
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.lanes import LANE, SHELF, STOCK, Gained, LaneInput, Lanes, Move
from jaxrl_agent.rollout.sampler import generate
from jaxrl_agent.rollout.sampling import row_keys
from jaxrl_agent.testing.small import EVEN_MODEL

PARAMS = init_params(EVEN_MODEL, jax.random.key(0))
SEED = 3
PROMPTS = [[5, 9, 2], [7], [30, 31, 32, 33, 34, 35, 36], [1, 1], [40, 2, 60], [8, 8, 8, 8]]
WHOLE = 12  # tokens of a reply


class Rows:
    """Rows of ids on the host, and the lanes that decode them."""

    def __init__(self, *, lanes: int, shelf: int, stop_ids: tuple[int, ...] = (), params=PARAMS):
        self.device = Lanes(EVEN_MODEL, params, SamplingSettings(), stop_ids, lanes=lanes, shelf=shelf)
        self.ids = {row: list(prompt) for row, prompt in enumerate(PROMPTS)}
        self.lane_of: dict[int, int] = {}
        ids_N = np.arange(len(PROMPTS), dtype=np.uint32)
        self._keys_N2 = np.asarray(jax.random.key_data(row_keys(jax.random.key(SEED), ids_N)))

    def enter_fresh(self, rows: list[int], *, shelves: list[int | None] | None = None, lanes: list[int] | None = None):
        """Read prompts and give their rows lanes, `move_width` at a time."""
        lanes, shelves = lanes or rows, shelves or [None] * len(rows)
        width = self.device.move_width
        for start in range(0, len(rows), width):
            self.device.read_prompts([PROMPTS[row] for row in rows[start : start + width]])
            part = list(zip(rows, lanes, shelves, strict=True))[start : start + width]
            self.device.enter([Move(STOCK, place, lane, shelf, []) for place, (_, lane, shelf) in enumerate(part)])
            self.lane_of |= {row: lane for row, lane, _ in part}

    def decode(self, allowed: dict[int, int], *, enough: int = 0, steps: int = 128) -> Gained:
        """Decode rows that have lanes, each for so many tokens at most."""
        given = LaneInput.empty(self.device.count)
        for row, tokens in allowed.items():
            lane = self.lane_of[row]
            given.keys_B2[lane], given.last_B[lane], given.allowed_B[lane] = (
                self._keys_N2[row],
                self.ids[row][-1],
                tokens,
            )
        self.device.reserve(max(len(self.ids[row]) - 1 + tokens for row, tokens in allowed.items()))
        gained = self.device.decode(given, enough=enough, steps=steps)
        for row in allowed:
            self.ids[row] += gained.tokens[self.lane_of[row]]
        return gained


def undisturbed(row: int, new_tokens: int, prompt: list[int] | None = None) -> list[int]:
    """The row as the sampler grows it, alone."""
    start = prompt or PROMPTS[row]
    (reply,) = generate(
        EVEN_MODEL, PARAMS, [start], max_new_tokens=new_tokens, temperature=1.0, seed=SEED, row_ids=[row]
    )
    return start + reply.tokens


def arrays(cache: KVCache) -> list[np.ndarray]:
    """Copies of everything that a cache holds, rows first."""
    return [np.array(leaf) for leaf in jax.tree.leaves(cache)]


def assert_rows_unchanged(before: list[np.ndarray], after: list[np.ndarray], rows: list[int]) -> None:
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old[rows], new[rows])


def test_rows_from_the_stock_gain_what_the_sampler_gives_them():
    table = Rows(lanes=4, shelf=0)
    table.enter_fresh([0, 1, 2, 3])
    gained = table.decode(dict.fromkeys(range(4), WHOLE))
    assert gained.steps == WHOLE
    for row in range(4):
        assert table.ids[row] == undisturbed(row, WHOLE)
        assert np.isfinite(gained.logprobs[row]).all()
        assert max(gained.logprobs[row]) <= 0


def test_one_prompt_is_forked_to_several_lanes():
    table = Rows(lanes=4, shelf=0)
    table.ids[1] = list(PROMPTS[0])
    table.device.read_prompts([PROMPTS[0]])
    for row in (0, 1):
        table.device.enter([Move(STOCK, 0, row, None, [])])
        table.lane_of[row] = row
    table.decode({0: WHOLE, 1: WHOLE})
    assert table.ids[0] == undisturbed(0, WHOLE)
    assert table.ids[1] == undisturbed(1, WHOLE, PROMPTS[0]) != table.ids[0]


def test_a_row_that_was_on_the_shelf_goes_on_as_if_it_had_never_left():
    table = Rows(lanes=4, shelf=3)
    table.enter_fresh([0, 1, 2, 3])
    table.decode(dict.fromkeys(range(4), 5))
    table.enter_fresh([4], lanes=[1], shelves=[2])  # row 1 makes room
    table.decode({0: WHOLE - 5, 2: 3, 4: WHOLE})
    table.device.enter([Move(SHELF, 2, 3, 0, [])])  # row 1 comes back, row 3 makes room
    table.lane_of[1] = 3
    table.decode({1: WHOLE - 5, 2: WHOLE - 8})
    table.device.enter([Move(SHELF, 0, 0, None, [])])  # row 3 comes back, row 0 is over
    table.lane_of[3] = 0
    table.decode({3: WHOLE - 5})
    for row in range(5):
        assert table.ids[row] == undisturbed(row, WHOLE), row


def test_two_rows_change_places_in_one_move():
    table = Rows(lanes=4, shelf=1)
    table.enter_fresh([0, 1, 2, 3])
    table.decode(dict.fromkeys(range(4), 2))
    table.enter_fresh([4], lanes=[0], shelves=[0])
    table.decode({4: 2})
    table.device.enter([Move(SHELF, 0, 0, 0, [])])  # row 0 takes the lane of row 4, which takes its place
    table.decode({0: WHOLE - 2})
    table.device.enter([Move(SHELF, 0, 2, None, [])])
    table.lane_of[4] = 2
    table.decode({4: WHOLE - 2})
    assert [table.ids[row] for row in (0, 4)] == [undisturbed(row, WHOLE) for row in (0, 4)]


@pytest.mark.parametrize("source", ["lane", "shelf"])
def test_what_the_environment_said_is_read_on_the_way_in(source):
    table, said = Rows(lanes=4, shelf=2), [11, 12, 13, 14, 15]
    table.enter_fresh([0, 1])
    table.decode({0: 4, 1: 4})
    unread = [table.ids[1][-1], *said[:-1]]
    table.ids[1] += said
    so_far = list(table.ids[1])
    if source == "shelf":
        table.enter_fresh([5], lanes=[1], shelves=[0])
        table.device.enter([Move(SHELF, 0, 3, None, unread)])
        table.lane_of[1] = 3
    else:
        table.device.enter([Move(LANE, 1, 1, None, unread)])
    table.decode({0: WHOLE - 4, 1: WHOLE})
    assert table.ids[1] == undisturbed(1, WHOLE, so_far)
    assert table.ids[0] == undisturbed(0, WHOLE), "its neighbour read nothing"


def test_moves_touch_only_the_rows_that_move():
    table = Rows(lanes=8, shelf=4)
    table.enter_fresh([0, 1, 2, 3])
    table.decode(dict.fromkeys(range(4), 4))
    device = table.device
    lanes, shelf = arrays(device._lanes), arrays(device._shelf)
    device.read_prompts([PROMPTS[4], PROMPTS[5]])
    assert_rows_unchanged(lanes, arrays(device._lanes), list(range(8)))
    device.enter([Move(STOCK, 1, 2, 3, [])])  # row 5 into the lane of row 2, which goes to place 3
    after_lanes, after_shelf = arrays(device._lanes), arrays(device._shelf)
    assert_rows_unchanged(lanes, after_lanes, [0, 1, 3, 4, 5, 6, 7])
    assert_rows_unchanged(shelf, after_shelf, [0, 1, 2])
    for old, new in zip(lanes, after_shelf, strict=True):
        np.testing.assert_array_equal(old[2], new[3])
    assert any((old[2] != new[2]).any() for old, new in zip(lanes, after_lanes, strict=True))
    device.enter([])
    assert_rows_unchanged(after_lanes, arrays(device._lanes), list(range(8)))


def test_rows_outgrow_their_slots_and_keep_what_they_hold():
    table = Rows(lanes=4, shelf=2)
    table.enter_fresh([0, 1])
    table.decode({0: 10, 1: 10})
    table.enter_fresh([2], lanes=[1], shelves=[0])
    assert table.device.slots == 64
    table.decode({0: 100})  # grows lanes, shelf and stock
    assert table.device.slots == 128
    table.device.enter([Move(SHELF, 0, 3, None, [])])
    table.lane_of[1] = 3
    table.decode({1: 40, 2: 50})
    assert table.ids[0] == undisturbed(0, 110)
    assert table.ids[1] == undisturbed(1, 50)
    assert table.ids[2] == undisturbed(2, 50)


def test_no_row_gets_more_slots_than_the_model_has_positions():
    table = Rows(lanes=4, shelf=0)
    table.device.reserve(250)
    assert table.device.slots == 256
    table.device.reserve(10_000)
    assert table.device.slots == EVEN_MODEL.max_position_embeddings


def test_lanes_that_are_dropped_leave_the_kept_ones_as_they_were():
    table = Rows(lanes=4, shelf=2)
    table.enter_fresh([0, 1, 2, 3])
    table.decode(dict.fromkeys(range(4), 5))
    table.device.shrink([3, 1], 2)
    table.lane_of = {3: 0, 1: 1}
    assert table.device.count == 2
    table.decode({3: WHOLE - 5, 1: 2})
    table.device.shrink([1], 1)
    table.lane_of = {1: 0}
    table.decode({1: WHOLE - 7})
    assert [table.ids[row] for row in (1, 3)] == [undisturbed(row, WHOLE) for row in (1, 3)]


def test_a_window_ends_when_enough_rows_are_over_or_its_steps_are_used_up():
    table = Rows(lanes=4, shelf=0)
    table.enter_fresh([0, 1, 2])
    gained = table.decode({0: 2, 1: 9, 2: 9}, enough=2)
    assert (gained.steps, [len(tokens) for tokens in gained.tokens]) == (2, [2, 2, 2, 0])
    gained = table.decode({1: 7, 2: 7}, steps=3)
    assert (gained.steps, [len(tokens) for tokens in gained.tokens]) == (3, [0, 3, 3, 0])
    table.decode({1: 4, 2: 4})
    assert table.ids[1] == undisturbed(1, 9)


def test_a_stop_id_ends_a_reply_and_belongs_to_it():
    whole = undisturbed(0, WHOLE)[len(PROMPTS[0]) :]
    table = Rows(lanes=4, shelf=0, stop_ids=(whole[6],))
    table.enter_fresh([0])
    gained = table.decode({0: WHOLE})
    assert gained.tokens[0] == whole[: whole.index(whole[6]) + 1]


def test_weights_that_are_not_finite_are_refused():
    broken = jax.tree.map(lambda leaf: leaf * np.nan, PARAMS)
    table = Rows(lanes=4, shelf=0, params=broken)
    table.enter_fresh([0])
    with pytest.raises(NonFiniteError, match="must be finite"):
        table.decode({0: 3})
