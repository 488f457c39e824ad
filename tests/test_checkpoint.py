"""Checkpoints: every bit comes back, on any mesh, and what is half written or does not fit is refused in one line."""

from __future__ import annotations

import dataclasses
import functools
import shutil

import jax
import numpy as np
import pytest

from jaxrl_agent.checkpoint import (
    REINFORCE,
    WARM_START,
    Checkpoints,
    abstract_params,
    describe_policy,
    load_policy,
    policy_version,
    split_policy_name,
    with_shardings,
)
from jaxrl_agent.errors import CheckpointError, ConfigError, RunError, WeightsError
from jaxrl_agent.learner.optimizer import SkipCounter, make_optimizer
from jaxrl_agent.learner.train_state import new_state, state_shardings
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.small import EVEN_MODEL, ODD_MODEL, one_device

# A read that fails leaves other reads of orbax unfinished, which the garbage collector then notices.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

OPTIMIZER, _ = make_optimizer(learning_rate=1e-2, weight_decay=0.01, clip_norm=1.0)
META = describe_policy(EVEN_MODEL, "lake_words", {"seed": 0}, phase=REINFORCE, update=7)


@functools.cache
def a_state():
    """A state in which every array holds numbers of its own."""
    state = new_state(init_params(EVEN_MODEL, jax.random.key(0)), OPTIMIZER, jax.random.key(123))
    grads = jax.tree.map(lambda leaf: leaf + 0.5, state.params)
    _, opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
    skips = SkipCounter(consecutive=np.int32(1), total=np.int32(3))
    return state.replace(opt_state=opt_state, skips=skips, update=np.int32(7), cursor=np.int32(28))


def like(mesh, model=EVEN_MODEL, optimizer=OPTIMIZER):
    make = functools.partial(new_state, optimizer=optimizer)
    shapes = jax.eval_shape(make, abstract_params(model, mesh), key=jax.random.key(0))
    return with_shardings(shapes, state_shardings(model, shapes, mesh))


def bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.replace(key=jax.random.key_data(state.key)))]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints 5 and 7."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(5, a_state().replace(update=np.int32(5)), META | {"update": 5})
        checkpoints.save(7, a_state(), META)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


# ---- coming back


def test_every_bit_of_the_state_comes_back(saved):
    with Checkpoints(saved) as checkpoints:
        state = checkpoints.restore(like(one_device()))
    assert bits(state) == bits(a_state())
    assert jax.tree.structure(state) == jax.tree.structure(a_state())
    drawn = jax.random.uniform(jax.random.fold_in(state.key, state.update))
    assert drawn == jax.random.uniform(jax.random.fold_in(jax.random.key(123), 7))
    assert (int(state.cursor), int(state.skips.consecutive), int(state.skips.total)) == (28, 1, 3)


@pytest.mark.parametrize("mesh_text", ["fsdp:8", "data:2,fsdp:2,tensor:2"])
def test_a_state_comes_back_on_another_mesh_straight_into_its_shardings(saved, mesh_text):
    mesh = make_mesh(mesh_text)
    with Checkpoints(saved) as checkpoints:
        state = checkpoints.restore(like(mesh))
    assert bits(state) == bits(a_state())
    expected = state_shardings(EVEN_MODEL, state, mesh)
    same = jax.tree.map(lambda leaf, sharding: leaf.sharding.is_equivalent_to(sharding, leaf.ndim), state, expected)
    assert all(jax.tree.leaves(same))


def test_a_state_saved_from_many_devices_comes_back_on_one(tmp_path):
    mesh = make_mesh("data:2,fsdp:2,tensor:2")
    spread = jax.device_put(a_state(), state_shardings(EVEN_MODEL, a_state(), mesh))
    spread = jax.tree.map(lambda leaf: leaf.copy(), spread)  # which is about to be donated
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, spread, META)
        jax.jit(lambda state: jax.tree.map(lambda leaf: leaf, state), donate_argnums=0)(spread)  # at once
        checkpoints.wait()
        assert bits(checkpoints.restore(like(one_device()))) == bits(a_state())


def test_what_a_checkpoint_is_can_be_read_without_its_arrays(saved):
    with Checkpoints(saved) as checkpoints:
        assert checkpoints.latest() == 7
        assert checkpoints.meta() == META
        assert checkpoints.meta(5)["update"] == 5
        assert int(checkpoints.restore(like(one_device()), 5).update) == 5


def test_parameters_can_be_read_alone(saved):
    with Checkpoints(saved) as checkpoints:
        params = checkpoints.restore_params(abstract_params(EVEN_MODEL, one_device()))
    assert bits(a_state().replace(params=params)) == bits(a_state())


def test_a_policy_saved_alone_has_parameters_but_no_state(tmp_path):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save_params(0, a_state().params, META)
        params = checkpoints.restore_params(abstract_params(EVEN_MODEL, one_device()))
        assert bits(a_state().replace(params=params)) == bits(a_state())
        with pytest.raises(CheckpointError, match="checkpoint 0 must be readable"):
            checkpoints.restore(like(one_device()))


def test_only_the_newest_are_kept(tmp_path):
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save_params(step, {"a": np.ones(2, np.float32)}, META)
        checkpoints.wait()
        assert checkpoints.latest() == 3
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert kept == {"2", "3"}


# ---- damage


def test_a_checkpoint_that_was_being_written_is_not_taken_for_one(copied):
    shutil.copytree(copied / "7", copied / "9.orbax-checkpoint-tmp-1700000000")
    shutil.rmtree(copied / "9.orbax-checkpoint-tmp-1700000000" / "meta")
    with Checkpoints(copied) as checkpoints:
        assert checkpoints.latest() == 7
        assert bits(checkpoints.restore(like(one_device()))) == bits(a_state())


def test_a_folder_without_checkpoints_says_so(tmp_path):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest() is None
        with pytest.raises(CheckpointError, match=r"must have a finished checkpoint.*Train it first"):
            checkpoints.restore(like(one_device()))
        with pytest.raises(CheckpointError, match="must have a finished checkpoint"):
            checkpoints.meta()


@pytest.mark.parametrize("lost", ["params", "learner", "meta"])
def test_a_checkpoint_that_lost_a_part_is_refused_in_one_line(copied, lost):
    shutil.rmtree(copied / "7" / lost)
    with Checkpoints(copied) as checkpoints, pytest.raises(CheckpointError) as caught:
        checkpoints.meta() if lost == "meta" else checkpoints.restore(like(one_device()))
    assert "checkpoint 7 must be readable" in str(caught.value)
    assert "remove the checkpoint to go on from an older one" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_with_damaged_arrays_is_refused(copied):
    (copied / "7" / "params" / "manifest.ocdbt").write_bytes(b"\0" * 100)
    with Checkpoints(copied) as checkpoints, pytest.raises(CheckpointError, match="checkpoint 7 must be readable"):
        checkpoints.restore(like(one_device()))


@pytest.mark.parametrize(
    "model",
    [
        dataclasses.replace(EVEN_MODEL, hidden_size=32),
        dataclasses.replace(EVEN_MODEL, num_hidden_layers=2),
        dataclasses.replace(EVEN_MODEL, vocab_size=60),
        dataclasses.replace(EVEN_MODEL, tie_word_embeddings=False),
        dataclasses.replace(EVEN_MODEL, attention_bias=True),
    ],
    ids=["wider", "deeper", "fewer words", "untied", "biases"],
)
def test_arrays_of_another_model_are_refused_in_one_line(saved, model):
    with Checkpoints(saved) as checkpoints, pytest.raises(CheckpointError) as caught:
        checkpoints.restore_params(abstract_params(model, one_device()))
    assert "must be readable and fit the model" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_moments_of_another_optimizer_are_refused(saved):
    import optax

    with Checkpoints(saved) as checkpoints, pytest.raises(CheckpointError, match="fit the model"):
        checkpoints.restore(like(one_device(), optimizer=optax.sgd(0.1, momentum=0.9)))


# ---- policies by name


@pytest.fixture
def run(copied):
    return RunDir.create(copied.parent, {"seed": 0})


def test_a_run_is_loaded_as_its_newest_checkpoint(run):
    mesh = make_mesh("fsdp:8")
    policy = load_policy(f"run:{run.path}", mesh=mesh)
    assert dataclasses.replace(policy.model, remat=False) == EVEN_MODEL
    assert (policy.tokenizer, policy.update) == ("lake_words", 7)
    kernel = policy.params["layers"]["self_attn"]["q_proj"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 8 == kernel.size
    assert bits(a_state().replace(params=policy.params)) == bits(a_state())
    assert policy_version(f"run:{run.path}") == f"run:{run.path}@7"


def test_supervised_updates_are_no_updates_of_the_policy(run):
    with Checkpoints(run.checkpoints) as checkpoints:
        meta = describe_policy(EVEN_MODEL, "lake_words", {}, phase=WARM_START, update=400)
        checkpoints.save_params(400, a_state().params, meta)
    assert load_policy(f"run:{run.path}", mesh=one_device()).update == 0


def test_a_weights_folder_is_loaded_into_its_shardings(tmp_path):
    params = init_params(ODD_MODEL, jax.random.key(0))
    save_hf(tmp_path / "weights", ODD_MODEL, params)
    name = f"hf:{tmp_path / 'weights'}"
    policy = load_policy(name, mesh=make_mesh("data:4,fsdp:2"))
    assert dataclasses.replace(policy.model, remat=False) == ODD_MODEL
    assert (policy.tokenizer, policy.update) == (None, 0)
    for leaf, expected in zip(jax.tree.leaves(policy.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    before = policy_version(name)
    assert before.startswith(f"{name}@")
    weights = tmp_path / "weights" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert policy_version(name) != before


@pytest.mark.parametrize("name", ["", "runs/base", "hf:", "run:", "ckpt:x", "run"])
def test_a_name_of_another_form_is_refused(name):
    with pytest.raises(ConfigError, match="hf:DIR or run:DIR"):
        split_policy_name(name)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"config\.json"):
        load_policy(f"run:{tmp_path}", mesh=one_device())
    with pytest.raises(WeightsError, match=r"config\.json"):
        load_policy(f"hf:{tmp_path / 'none'}", mesh=one_device())
    RunDir.create(tmp_path / "young", {})
    with pytest.raises(CheckpointError, match="finished checkpoint"):
        load_policy(f"run:{tmp_path / 'young'}", mesh=one_device())
