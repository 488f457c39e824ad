"""The critic's head: from a hidden state and the turns that are left to one number."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_agent.models.qwen3 import Params


class ValueHead(nn.Module):
    """Two layers; turns left enter as one learned vector each, added to the hidden state.

    Attributes:
        width: hidden units.
        turns: largest number of turns left; 0 hides it from the critic.
    """

    width: int
    turns: int

    @nn.compact
    def __call__(self, hidden_xD: jax.Array, turns_left_x: jax.Array) -> jax.Array:
        """Value of each position, float32, the shape of `turns_left_x` (int32, 0 .. turns)."""
        hidden_xD = hidden_xD.astype(jnp.float32)
        if self.turns:
            hidden_xD += nn.Embed(self.turns + 1, hidden_xD.shape[-1], name="turns_left")(
                jnp.clip(turns_left_x, 0, self.turns)
            )
        inner_xF = nn.tanh(nn.Dense(self.width, name="inner")(hidden_xD))
        # It starts at 0 everywhere, so that the first advantages are the returns themselves.
        return nn.Dense(1, kernel_init=nn.initializers.zeros, name="value")(inner_xF)[..., 0]


def init_value_head(head: ValueHead, hidden_size: int, key: jax.Array) -> Params:
    """Fresh parameters of a head on states of `hidden_size`, float32."""
    return head.init(key, jnp.zeros((1, hidden_size)), jnp.zeros(1, jnp.int32))["params"]
