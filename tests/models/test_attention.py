from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.models import attention
from jaxrl_agent.models.attention import cached_attention, causal_attention


def draw(batch: int, length: int, heads: int, kv_heads: int, head_dim: int, seed: int = 0):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = ((batch, length, heads, head_dim), *[(batch, length, kv_heads, head_dim)] * 2)
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def textbook_attention(q_BLHE, k_BLKE, v_BLKE) -> np.ndarray:
    """One query at a time, in float64."""
    q_BLHE, k_BLKE, v_BLKE = (np.asarray(x, np.float64) for x in (q_BLHE, k_BLKE, v_BLKE))
    out_BLHE = np.zeros_like(q_BLHE)
    batch, length, heads, head_dim = q_BLHE.shape
    group = heads // k_BLKE.shape[2]
    for b, position, h in np.ndindex(batch, length, heads):
        scores = k_BLKE[b, : position + 1, h // group] @ q_BLHE[b, position, h] / np.sqrt(head_dim)
        weights = np.exp(scores - scores.max())
        out_BLHE[b, position, h] = weights @ v_BLKE[b, : position + 1, h // group] / weights.sum()
    return out_BLHE


def test_two_tokens_by_hand():
    q_BLHE = jnp.array([[[[5.0, 5.0]], [[np.sqrt(2.0), 0.0]]]])
    k_BLKE = jnp.array([[[[0.0, 9.0]], [[np.log(3.0), -9.0]]]])
    v_BLKE = jnp.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    # The first token sees itself alone; the second weighs 1 : 3, since q k / sqrt(2) is 0 and ln 3.
    out_BLHE = causal_attention(q_BLHE, k_BLKE, v_BLKE, implementation="xla")
    np.testing.assert_allclose(out_BLHE[0, :, 0], [[1.0, 0.0], [0.25, 0.75]], atol=1e-6)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (4, 1)])
@pytest.mark.parametrize("jit", [False, True])
def test_any_ratio_of_heads_equals_the_textbook(heads, kv_heads, jit):
    q_BLHE, k_BLKE, v_BLKE = draw(2, 7, heads, kv_heads, 8)
    expected_BLHE = textbook_attention(q_BLHE, k_BLKE, v_BLKE)

    def causal(q_BLHE, k_BLKE, v_BLKE):
        return causal_attention(q_BLHE, k_BLKE, v_BLKE, implementation="xla")

    found_BLHE = (jax.jit(causal) if jit else causal)(q_BLHE, k_BLKE, v_BLKE)
    np.testing.assert_allclose(found_BLHE, expected_BLHE, atol=2e-6)


@pytest.mark.parametrize("path", ["row by row", "in blocks of queries"])
@pytest.mark.parametrize("length", [8, 21])
def test_every_path_gives_the_same_values_and_gradients(monkeypatch, path, length):
    arrays = draw(3, length, 4, 2, 8)
    weights_BLHE = jax.random.normal(jax.random.key(9), arrays[0].shape)

    def loss(arrays):
        return jnp.sum(weights_BLHE * causal_attention(*arrays, implementation="xla"))

    expected, expected_gradients = jax.jit(jax.value_and_grad(loss))(arrays)
    if path == "row by row":
        monkeypatch.setattr(attention, "_CPU_CACHE_BYTES", 0)
    else:
        monkeypatch.setattr(attention, "_QUERY_BLOCK", 5)
    assert "scan" in str(jax.make_jaxpr(lambda arrays: loss(arrays))(arrays))
    found, gradients = jax.jit(jax.value_and_grad(lambda arrays: loss(arrays)))(arrays)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    for one, other in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)


def test_rows_stay_together_on_several_devices(monkeypatch):
    monkeypatch.setattr(attention, "_CPU_CACHE_BYTES", 0)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    if mesh.size == 1:
        pytest.skip("needs several devices")
    with jax.set_mesh(mesh):
        program = str(jax.make_jaxpr(lambda *x: causal_attention(*x, implementation="xla"))(*draw(2, 6, 2, 1, 4)))
    assert "scan" not in program


@pytest.mark.parametrize("chunk", [1, 3])
def test_cached_attention_equals_causal_attention_over_the_whole_row(chunk):
    q_BLHE, k_BLKE, v_BLKE = draw(2, 9, 4, 2, 8)
    expected_BLHE = textbook_attention(q_BLHE, k_BLKE, v_BLKE)
    # Slots behind a row's last token hold numbers that would show if they were seen.
    room = ((0, 0), (0, 4), (0, 0), (0, 0))
    key_BKES = jnp.pad(k_BLKE, room, constant_values=50.0).transpose(0, 2, 3, 1)
    value_BKSE = jnp.pad(v_BLKE, room, constant_values=50.0).transpose(0, 2, 1, 3)
    starts_B = jnp.array([6, 2])
    positions_BC = starts_B[:, None] + jnp.arange(chunk)
    q_BCHE = jnp.take_along_axis(q_BLHE, positions_BC[..., None, None], axis=1)
    found_BCHE = cached_attention(q_BCHE, key_BKES, value_BKSE, positions_BC)
    for row, start in enumerate([6, 2]):
        np.testing.assert_allclose(found_BCHE[row], expected_BLHE[row, start : start + chunk], atol=2e-6)


def test_large_scores_stay_finite():
    q_BLHE, k_BLKE, v_BLKE = draw(1, 5, 2, 1, 4)
    out_BLHE = causal_attention(1e4 * q_BLHE, 1e4 * k_BLKE, v_BLKE, implementation="xla")
    assert np.isfinite(out_BLHE).all()


def test_softmax_is_float32_under_bfloat16():
    q_BLHE, k_BLKE, v_BLKE = (x.astype(jnp.bfloat16) for x in draw(2, 64, 4, 2, 16))
    out_BLHE = causal_attention(q_BLHE, k_BLKE, v_BLKE, implementation="xla")
    assert out_BLHE.dtype == jnp.bfloat16
    expected_BLHE = textbook_attention(q_BLHE, k_BLKE, v_BLKE)
    assert np.abs(np.asarray(out_BLHE, np.float64) - expected_BLHE).max() < 0.03


def test_unknown_implementation_is_refused():
    with pytest.raises(ArgumentError, match="one of xla, cudnn; got 'flash'"):
        causal_attention(*draw(1, 2, 1, 1, 2), implementation="flash")


@pytest.mark.gpu
def test_cudnn_equals_xla():
    if jax.default_backend() != "gpu":
        pytest.skip("cuDNN runs on NVIDIA GPUs")
    arrays = [x.astype(jnp.bfloat16) for x in draw(2, 256, 8, 2, 64)]
    expected_BLHE = textbook_attention(*arrays)

    def loss(arrays, implementation):
        out_BLHE = causal_attention(*arrays, implementation=implementation)
        return jnp.sum(out_BLHE.astype(jnp.float32) ** 2), out_BLHE

    value_and_grad = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (_, found_BLHE), gradients = value_and_grad(arrays, "cudnn")
    (_, _), expected_gradients = value_and_grad(arrays, "xla")
    assert np.abs(np.asarray(found_BLHE, np.float64) - expected_BLHE).max() < 0.03
    for one, other in zip(gradients, expected_gradients, strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        assert np.abs(one - other).max() < 0.03 * np.abs(other).max()
