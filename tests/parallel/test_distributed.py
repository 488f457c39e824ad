"""Several processes as one program: values and arrays that all agree on, one writer, one run directory."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.parallel import distributed
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.pods import run_together, start

AGREE = """
import json, jax, numpy as np
from jaxrl_agent.parallel import distributed
distributed.join_processes()
from jaxrl_agent.parallel.mesh import make_mesh
from jax.sharding import NamedSharding, PartitionSpec
mesh, me = make_mesh("data:4"), jax.process_index()
rows = jax.make_array_from_callback(
    (4, 2), NamedSharding(mesh, PartitionSpec("data")), lambda index: np.arange(8.0).reshape(4, 2)[index]
)
whole = distributed.replicate({"a": np.arange(3)}, mesh)
fetched = distributed.to_host({"rows": rows, "number": np.int32(7)})
print(json.dumps({
    "devices": [jax.device_count(), jax.local_device_count()],
    "writer": distributed.is_writer(),
    "from_writer": distributed.from_writer(10 + me),
    "to_host": {name: leaf.tolist() for name, leaf in fetched.items()},
    "replicated": whole["a"].is_fully_replicated and distributed.to_host(whole)["a"].tolist(),
}))
"""

TRAIN = """
import runpy, sys
sys.argv[0] = "launch/train.py"
runpy.run_path("launch/train.py", run_name="__main__")
"""
CONFIG = """
from jaxrl_agent.testing.small import small_values

def get_config():
    return small_values(model__preset="lake-tiny", train__updates=2, mesh="data:2")
"""


# ---- one process


def test_a_process_on_its_own_writes_and_agrees_with_itself():
    assert distributed.is_writer()
    assert distributed.from_writer(3) == 3


def test_arrays_come_to_the_host_wherever_their_pieces_lie():
    mesh = make_mesh("data:8")
    rows_BL = jax.device_put(jnp.arange(16).reshape(8, 2), NamedSharding(mesh, PartitionSpec("data")))
    tree = distributed.to_host({"rows": rows_BL, "number": np.float32(2)})
    assert isinstance(tree["rows"], np.ndarray)
    np.testing.assert_array_equal(tree["rows"], np.arange(16).reshape(8, 2))
    assert tree["number"] == 2


def test_replicated_arrays_lie_whole_on_every_device():
    tree = distributed.replicate({"a": np.arange(3), "key": jax.random.key(0)}, make_mesh("data:4,fsdp:2"))
    assert tree["a"].is_fully_replicated
    assert len(tree["a"].devices()) == len(tree["key"].devices()) == 8


def test_a_pod_that_is_not_described_is_refused_with_the_variables_to_set(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(ConfigError, match=r"find one another.*Set JAX_COORDINATOR_ADDRESS"):
        distributed.join_processes()


# ---- two processes


@pytest.mark.multiprocess
def test_two_processes_agree_on_values_and_arrays():
    results = [json.loads(out.splitlines()[-1]) for out in run_together(AGREE, devices=2)]
    assert [result.pop("writer") for result in results] == [True, False]
    assert results[0] == results[1]
    assert results[0] == {
        "devices": [4, 2],
        "from_writer": 10,
        "to_host": {"rows": np.arange(8.0).reshape(4, 2).tolist(), "number": 7},
        "replicated": [0, 1, 2],
    }


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_run_of_two_processes_is_that_of_one_with_two_devices(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    flags = [f"--config={tmp_path / 'config.py'}", "--progress=plain"]
    outs = run_together(TRAIN, *flags, f"--run_dir={tmp_path / 'pod'}", "--distributed", devices=1)
    assert "training 2/2" in outs[0]
    assert "training" not in outs[1], "one process speaks"
    alone = start(TRAIN, *flags, f"--run_dir={tmp_path / 'alone'}", devices=2)
    _, errors = alone.communicate(timeout=300)
    assert alone.returncode == 0, errors[-3000:]
    pod, expected = RunDir.open(tmp_path / "pod"), RunDir.open(tmp_path / "alone")
    assert len(pod.metrics()) == len(expected.metrics()) == 2
    for row, other in zip(pod.metrics(), expected.metrics(), strict=True):
        assert row["turns"] == other["turns"]
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-5)
    assert list(pod.trajectories("train_000002")) == list(expected.trajectories("train_000002"))
