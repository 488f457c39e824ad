"""FrozenLake maps on the host: drawing them, checking them, and splitting them into train, validation and test.

A map is a list of equally long strings over `S` start, `F` ice, `H` hole, `G` goal, as in gymnasium.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import numbers
import random
from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jaxrl_agent.envs.frozenlake import LakeMap
from jaxrl_agent.errors import MapError

MIN_SIZE, MAX_SIZE = 2, 10
_LETTERS = frozenset("SFHG")
_MAX_TRIES = 20_000  # draws before a setting is called impossible; a usual one needs 1 to 10
_SHARE = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}  # percent of all maps

Split = Literal["train", "validation", "test"]
Start = Literal["corner", "random"]


@dataclasses.dataclass(frozen=True)
class _MapSetting:
    """What a drawn map must satisfy; checked once, at the border."""

    sizes: tuple[int, int]
    frozen_prob: float
    start: str
    min_path: int
    min_holes: int
    max_holes: int | None

    def __post_init__(self):
        if len(self.sizes) != 2 or not all(isinstance(side, numbers.Integral) for side in self.sizes):
            raise MapError("size must be an integer or a pair (low, high) of integers", value=self.sizes)
        low, high = self.sizes
        if not MIN_SIZE <= low <= high <= MAX_SIZE:
            raise MapError(f"size must lie in {MIN_SIZE}..{MAX_SIZE}, a range low first", value=self.sizes)
        if not 0.0 < self.frozen_prob <= 1.0:
            raise MapError("frozen_prob must lie in (0, 1]", value=self.frozen_prob, remedy="0.8 is usual.")
        if self.start not in ("corner", "random"):
            raise MapError("start must be 'corner' or 'random'", value=self.start)
        if self.min_path < 1:
            raise MapError("min_path must be at least 1", value=self.min_path)
        most = low**2 - 2
        if not 0 <= self.min_holes <= most:
            raise MapError(f"min_holes must lie in 0..{most} on a lake of size {low}", value=self.min_holes)
        if self.max_holes is not None and self.max_holes < self.min_holes:
            raise MapError(f"max_holes must be at least min_holes ({self.min_holes})", value=self.max_holes)

    def draw(self, rng: random.Random) -> list[str]:
        """Draw maps until one satisfies the setting; the size is drawn once."""
        low, high = self.sizes
        size = low + int(rng.random() * (high - low + 1))
        for _ in range(_MAX_TRIES):
            desc = _draw_map(rng, size=size, frozen_prob=self.frozen_prob, start=self.start)
            if self._accepts(desc):
                return desc
        raise MapError(
            f"a solvable map of this setting must turn up within {_MAX_TRIES} draws of size {size}",
            value=dataclasses.asdict(self),
            remedy="Raise frozen_prob, lower min_path, or loosen the bounds on the number of holes.",
        )

    def _accepts(self, desc: list[str]) -> bool:
        n_holes = sum(row.count("H") for row in desc)
        if n_holes < self.min_holes or (self.max_holes is not None and n_holes > self.max_holes):
            return False
        path = shortest_path(desc)
        return path is not None and path >= self.min_path


def random_map(
    seed: int,
    *,
    size: int,
    frozen_prob: float,
    start: Start = "corner",
    min_path: int = 1,
    min_holes: int = 0,
    max_holes: int | None = None,
) -> list[str]:
    """Draw one solvable map, a function of the arguments alone.

    Every cell but start and goal is ice with probability `frozen_prob`; draws are repeated, at most
    20,000 times, until the goal can be reached and the other bounds hold. The same arguments give the same map in
    every process, on every platform and Python version.

    Args:
        seed: non-negative integer.
        size: cells along one side, 2..10.
        frozen_prob: probability of ice, in (0, 1].
        start: `corner` puts S top left and G bottom right, `random` puts both on distinct random cells.
        min_path: least number of moves from start to goal.
        min_holes: least number of holes.
        max_holes: greatest number of holes, no bound by default.

    Returns:
        `size` strings of `size` letters.

    Raises:
        MapError: a setting out of range, or one for which no map turned up.
    """
    setting = _MapSetting((size, size), frozen_prob, start, min_path, min_holes, max_holes)
    return setting.draw(_generator(seed))


def map_set(
    split: Split,
    count: int,
    *,
    seed: int,
    size: int | tuple[int, int],
    frozen_prob: float,
    start: Start = "corner",
    min_path: int = 1,
    min_holes: int = 0,
    max_holes: int | None = None,
) -> list[list[str]]:
    """Draw `count` distinct maps of one split.

    Which split a map belongs to follows from its hash, so splits never share a map, whatever the seeds. A shorter
    set is a prefix of a longer one. Budgets play no part.

    Args:
        split: `train`, `validation` or `test` (80, 10 and 10 percent of all maps).
        count: number of maps.
        seed: non-negative integer.
        size: cells along one side, or an inclusive range (low, high) from which each map's size is drawn. Small
            sizes run out of distinct maps (of size 2 there are a handful), and larger ones then take their place.
        frozen_prob, start, min_path, min_holes, max_holes: as in `random_map`.

    Raises:
        MapError: a setting out of range, or one that has too few distinct maps in this split.
    """
    if split not in _SHARE:
        raise MapError(f"split must be one of {', '.join(_SHARE)}", value=split)
    if count < 1:
        raise MapError("count must be at least 1", value=count)
    sizes = (size, size) if isinstance(size, numbers.Integral) else tuple(size)
    setting = _MapSetting(sizes, frozen_prob, start, min_path, min_holes, max_holes)
    rng = _generator(seed)
    found: dict[str, list[str]] = {}
    fruitless = 0
    while len(found) < count:
        desc = setting.draw(rng)
        digest = map_hash(desc)
        fruitless = fruitless + 1 if digest in found or _bucket(digest) not in _SHARE[split] else 0
        if not fruitless:
            found[digest] = desc
        if fruitless >= _MAX_TRIES:
            raise MapError(
                f"the {split} split of this setting must have {count} distinct maps",
                value=len(found),
                remedy="Ask for fewer maps, or for larger lakes.",
            )
    return list(found.values())


def shortest_path(desc: Sequence[str]) -> int | None:
    """Count the moves of the shortest path from S to G by breadth-first search; None if there is none.

    Raises:
        MapError: the map has no S.
    """
    cells = "".join(desc)
    start = cells.find("S")
    if start < 0:
        raise MapError("a map must have a start, S", value=list(desc))
    near = _neighbour_lists(len(desc), len(desc[0]))
    distance = {start: 0}
    queue = collections.deque([start])
    while queue:
        cell = queue.popleft()
        if cells[cell] == "G":
            return distance[cell]
        for other in near[cell]:
            if other not in distance and cells[other] != "H":
                distance[other] = distance[cell] + 1
                queue.append(other)
    return None


def check_letters(desc: Sequence[str]) -> None:
    """Refuse what is no map at all.

    Raises:
        MapError: no rows, rows of different lengths, or letters other than S, F, H, G.
    """
    if isinstance(desc, str) or not desc or not all(isinstance(row, str) and row for row in desc):
        raise MapError("a map must be a list of non-empty strings, one a row", value=desc)
    if len({len(row) for row in desc}) > 1:
        raise MapError("all rows of a map must be equally long", value=list(desc))
    if strange := set("".join(desc)) - _LETTERS:
        raise MapError("a map must consist of the letters S, F, H and G", value="".join(sorted(strange)))


def validate(desc: Sequence[str]) -> None:
    """Refuse a map that cannot be played.

    Raises:
        MapError: as `check_letters`; or a map that is not square, is outside sizes 2..10, has not exactly one
            start and one goal, or whose goal cannot be reached.
    """
    check_letters(desc)
    if len(desc) != len(desc[0]) or not MIN_SIZE <= len(desc) <= MAX_SIZE:
        shape = f"{len(desc)}x{len(desc[0])}"
        raise MapError(f"a map must be square with {MIN_SIZE} to {MAX_SIZE} cells a side", value=shape)
    cells = "".join(desc)
    if cells.count("S") != 1 or cells.count("G") != 1:
        raise MapError("a map must have exactly one S and one G", value=list(desc))
    if shortest_path(desc) is None:
        raise MapError("the goal must be reachable from the start", value=list(desc), remedy="Remove a hole.")


def map_hash(desc: Sequence[str]) -> str:
    """Name a map: SHA-256 of its rows joined by newlines, as hexadecimal digits."""
    return hashlib.sha256("\n".join(desc).encode("ascii")).hexdigest()


def split_of(desc: Sequence[str]) -> Split:
    """Tell which split a map belongs to, from its hash alone."""
    bucket = _bucket(map_hash(desc))
    return next(name for name, share in _SHARE.items() if bucket in share)


def stack_maps(descs: Sequence[Sequence[str]], max_size: int | None = None) -> LakeMap:
    """Pack maps into one `LakeMap` with a leading axis [N], holes padded to `max_size**2` cells.

    Args:
        descs: N maps; sizes may differ.
        max_size: side length to pad to; the largest of the maps by default.

    Raises:
        MapError: no maps, one that cannot be played, or one that is larger than `max_size`.
    """
    if not descs:
        raise MapError("at least one map is needed")
    for desc in descs:
        validate(desc)
    sizes = np.array([len(desc) for desc in descs], np.int32)
    max_size = int(sizes.max()) if max_size is None else max_size
    if sizes.max() > max_size:
        raise MapError(f"maps must fit max_size ({max_size})", value=int(sizes.max()))
    texts = ["".join(desc) for desc in descs]
    hole_NX = np.zeros((len(descs), max_size**2), bool)
    for row_X, text in zip(hole_NX, texts, strict=True):
        row_X[: len(text)] = [letter == "H" for letter in text]
    return LakeMap(
        hole_X=jnp.asarray(hole_NX),
        start=jnp.asarray([text.index("S") for text in texts], jnp.int32),
        goal=jnp.asarray([text.index("G") for text in texts], jnp.int32),
        size=jnp.asarray(sizes),
    )


def _generator(seed: int) -> random.Random:
    """Start a stream. Only `random()` is drawn from it: the one method whose sequence Python promises to keep."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise MapError("seed must be a non-negative integer", value=seed)  # Random(-1) would equal Random(1)
    return random.Random(int(seed))


def _draw_map(rng: random.Random, *, size: int, frozen_prob: float, start: str) -> list[str]:
    """Draw one map, solvable or not."""
    n_cells = size**2
    begin, end = 0, n_cells - 1
    if start == "random":
        begin = int(rng.random() * n_cells)
        end = (begin + 1 + int(rng.random() * (n_cells - 1))) % n_cells
    cells = ["F" if rng.random() < frozen_prob else "H" for _ in range(n_cells)]
    cells[begin], cells[end] = "S", "G"
    text = "".join(cells)
    return [text[row : row + size] for row in range(0, n_cells, size)]


def _bucket(digest: str) -> int:
    """Map a hash to 0..99."""
    return int(digest[:16], 16) % 100


@functools.cache
def _neighbour_lists(rows: int, cols: int) -> list[list[int]]:
    """List the cells next to each cell of a rows x cols grid."""
    return [
        [
            r * cols + c
            for r, c in ((row, col - 1), (row + 1, col), (row, col + 1), (row - 1, col))
            if 0 <= r < rows and 0 <= c < cols
        ]
        for row in range(rows)
        for col in range(cols)
    ]
