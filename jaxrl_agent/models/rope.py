"""Rotary position embedding, with the YaRN and linear extensions of the context."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent.errors import ConfigError

_IGNORED_KEYS = {"rope_type", "type", "rope_theta"}


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How the rotation is stretched beyond the trained context; names and defaults are Hugging Face's.

    Linear: every frequency divided by `factor`. YaRN (Peng et al. 2023, sections 3.2 to 3.4): slow
    frequencies divided, fast ones kept, a ramp between `beta_slow` and `beta_fast` rotations, and
    cosine and sine multiplied by `attention_factor`.
    """

    rope_type: str  # "linear" or "yarn"
    factor: float  # new context / trained context
    original_max_position_embeddings: int | None = None  # trained context, tokens
    attention_factor: float | None = None  # None: 0.1 ln(factor) + 1
    beta_fast: float | None = None  # rotations within the trained context; None: 32
    beta_slow: float | None = None  # rotations; None: 1
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True  # round the ends of the ramp outwards to whole dimensions

    def __post_init__(self):
        _check_type(self.rope_type)
        if not _is_number(self.factor) or self.factor < 1:
            raise ConfigError("the RoPE scaling factor must be a number of at least 1", value=self.factor)
        original = self.original_max_position_embeddings
        if self.rope_type == "yarn" and (not _is_number(original) or original < 1):
            raise ConfigError("yarn needs original_max_position_embeddings, a positive number", value=original)

    @classmethod
    def from_hf(cls, entry: Mapping[str, Any], *, max_position_embeddings: int) -> RopeScaling | None:
        """Read a `rope_scaling` or `rope_parameters` entry; None for the plain rotation.

        Raises:
            ConfigError: unknown rope type, unknown key, or a factor below 1.
        """
        rope_type = entry.get("rope_type", entry.get("type", "default"))
        options = {name: value for name, value in entry.items() if name not in _IGNORED_KEYS}
        if options.pop("partial_rotary_factor", None) not in (None, 1, 1.0):
            raise ConfigError("every dimension of a head must be rotated (partial_rotary_factor 1)", value=dict(entry))
        if rope_type == "default":
            return None
        _check_type(rope_type)
        unknown = sorted(set(options) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ConfigError("RoPE scaling has unknown keys", value=unknown)
        if rope_type == "yarn":
            options.setdefault("original_max_position_embeddings", max_position_embeddings)
            if options.get("factor") is None:
                options["factor"] = max_position_embeddings / options["original_max_position_embeddings"]
        return cls(rope_type=rope_type, **{"factor": None, **options})

    def to_hf(self) -> dict[str, Any]:
        """Write the entry as Hugging Face does, without the options that were left at None."""
        entry = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if self.truncate:
            del entry["truncate"]  # the default; older readers do not know the key
        return entry


def _check_type(rope_type: object) -> None:
    if rope_type not in ("linear", "yarn"):
        raise ConfigError(
            "rope_type must be one of default, linear, yarn",
            value=rope_type,
            remedy="This port does not implement other extensions of the context.",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _magnitude(scale: float, weight: float = 1.0) -> float:
    return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _magnitude(scaling.factor, scaling.mscale) / _magnitude(scaling.factor, scaling.mscale_all_dim)
    return _magnitude(scaling.factor)


def _yarn_kept_share(scaling: RopeScaling, theta: float, head_dim: int) -> np.ndarray:
    """Share of each frequency that stays as trained: 1 for fast rotations, 0 for slow ones."""

    def dimension_of(rotations: float) -> float:
        turns = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast or 32), dimension_of(scaling.beta_slow or 1)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    return 1 - np.clip((np.arange(head_dim // 2) - low) / width, 0, 1)


def frequencies(theta: float, head_dim: int, scaling: RopeScaling | None = None) -> tuple[np.ndarray, float]:
    """Compute the angle per position of each pair of dimensions, and the factor on cosine and sine.

    Plain: f_i = theta^(-2i / head_dim), i = 0 .. head_dim/2 - 1 (Su et al. 2021, section 3.2.2).

    Args:
        theta: base of the geometric series.
        head_dim: size of a head, even.
        scaling: extension of the context, if any.

    Returns:
        Frequencies [head_dim / 2] float32 in radians a position, and the factor.
    """
    plain = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return plain.astype(np.float32), 1.0
    if scaling.rope_type == "linear":
        return (plain / scaling.factor).astype(np.float32), 1.0
    kept = _yarn_kept_share(scaling, theta, head_dim)
    mixed = plain * kept + plain / scaling.factor * (1 - kept)
    return mixed.astype(np.float32), _yarn_attention_factor(scaling)


def rotation(positions_BC: jax.Array, theta: float, head_dim: int, scaling: RopeScaling | None = None):
    """Compute cosine and sine of every position's angles.

    Args:
        positions_BC: int32 positions in their row.
        theta: base of the frequencies.
        head_dim: size of a head.
        scaling: extension of the context, if any.

    Returns:
        Cosine and sine, each float32 [B, C, 1, head_dim / 2], ready to broadcast over heads.
    """
    frequencies_E2, factor = frequencies(theta, head_dim, scaling)
    angles = positions_BC[..., None, None].astype(jnp.float32) * frequencies_E2
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x_BCHE: jax.Array, cos_sin: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate the pairs (i, i + E/2) of every head, in float32, and return the dtype of the input."""
    cos, sin = cos_sin
    first, second = jnp.split(x_BCHE.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BCHE.dtype)
