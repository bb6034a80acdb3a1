"""Cohorts spread over devices: the same runs, whatever the number of devices."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import fedax
from fedax.engine import devices
from fedax.engine.clients import _deal
from fedax.errors import ConfigError

from .problem import DATA, MEASURED, TASK, UNEQUAL, federation

TEST = federation([11], [1.0], seed=5)
FOUR = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 devices: jax_num_cpu_devices was set to fewer")


def mesh(number, axis="clients"):
    return Mesh(np.array(jax.devices()[:number]), (axis,))


def run(method, number, memory="auto", **options):
    options = {"rounds": 4, "batch_size": 2, "test": TEST.examples, "evaluate_every": 2} | options
    return fedax.simulate(method, MEASURED, DATA, place=fedax.Place(mesh=mesh(number), client_memory=memory), **options)


def test_clients_with_like_steps_stay_together_and_devices_have_alike():
    """The next chunk goes to the device with the least to do, as long as there is room. Told: where each place goes."""

    def deal(devices, chunk_size, *steps):
        return _deal(jnp.array(steps), types.SimpleNamespace(devices=devices, chunk_size=chunk_size)).tolist()

    assert deal(2, 2, 9, 9, 8, 7, 4, 4, 2, 1) == [0, 1, 4, 5, 6, 7, 2, 3]  # 9 + 2 and 8 + 4
    assert deal(2, 2, 9, 9, 5, 5, 2) == [0, 1, 4, 5, 6, 7, 2, 3]  # the last three are empty places
    assert deal(2, 1, 100, 3, 2, 1) == [0, 2, 3, 1]
    assert deal(2, 1, 100, 4, 3, 2, 1, 1) == [0, 3, 4, 5, 1, 2]
    assert deal(4, 7, 3, 2, 1) == [0, 1, 2, 3]


@FOUR
def test_a_run_compiles_its_rounds_once_on_a_mesh(compilations):
    run(fedax.create("scaffold", lr=0.02), 2, rounds=6, work=fedax.Steps(2))
    assert compilations("some_rounds") == 1


@FOUR
def test_so_does_one_with_client_memory_on_the_host(compilations):
    run(fedax.create("scaffold", lr=0.02), 2, rounds=3, work=fedax.Steps(2), memory="host")
    assert compilations("_contribute") == 1


@FOUR
def test_large_evaluations_are_shared_out():
    data = federation([40_000, 9_001], [0.4, 0.6], seed=1)
    method, options = fedax.create("fedavg", lr=0.1), {"rounds": 1, "work": fedax.Steps(1), "batch_size": 2}
    runs = [
        fedax.simulate(method, MEASURED, data, place=fedax.Place(mesh=mesh(n)), test=data.examples, **options)
        for n in (1, 4)
    ]
    for column in ("train_loss", "grad_norm_sq", "test_loss", "test_error"):
        np.testing.assert_allclose(runs[1].history[column], runs[0].history[column], 1e-5)
    examples = data.examples
    x0 = np.array([1.0, 1.0, 1.0])
    losses = 0.5 * (examples["x"] @ x0 - examples["y"]) ** 2
    exact = 0.4 * losses[:40_000].mean() + 0.6 * losses[40_000:].mean()
    assert runs[1].history["train_loss"][0] == pytest.approx(exact, rel=1e-5)


@FOUR
def test_models_that_are_indexed():
    """A table of embeddings is gathered from, in the clients' work and in evaluation."""
    task = fedax.Task(
        lambda key: {"table": jax.numpy.linspace(0, 1, 12).reshape(4, 3)},
        lambda params, batch, key: (params["table"][batch["word"]].sum(1) - batch["y"]) ** 2,
    )
    rng = np.random.default_rng(0)
    examples = {"word": rng.integers(0, 4, 9000), "y": rng.normal(size=9000)}
    data = fedax.FederatedData(examples, [4000, 3000, 2000])
    options = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 4, "test": examples}
    task = task.with_metrics(grad_norm=fedax.metrics.GradNorm())
    one, two = (
        fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, place=fedax.Place(mesh=mesh(n)), **options)
        for n in (1, 2)
    )
    for column in ("train_loss", "grad_norm_sq", "test_loss"):
        np.testing.assert_allclose(two.history[column], one.history[column], 1e-5)


@FOUR
def test_a_sweep_on_a_mesh():
    options = {"rounds": 3, "work": UNEQUAL, "batch_size": 2, "participation": fedax.Uniform(3), "seeds": 2}
    make = lambda lr: fedax.create("scaffold", lr=lr)  # noqa: E731
    one, two = (
        fedax.sweep(make, {"lr": [0.01, 0.05]}, TASK, DATA, place=fedax.Place(mesh=mesh(n)), **options) for n in (1, 2)
    )
    np.testing.assert_allclose(one.scores(), two.scores(), 1e-5)
    assert len(np.unique(one.scores())) == 4


@FOUR
def test_other_meshes():
    method = fedax.create("fedavg", lr=0.05)
    plain = run(method, 1)
    named = fedax.simulate(
        method, TASK, DATA, rounds=4, batch_size=2, place=fedax.Place(mesh=jax.make_mesh((2,), ("data",)))
    )
    assert named.history["train_loss"][-1] == pytest.approx(plain.history["train_loss"][-1], rel=1e-5)
    square = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    for bad in (2, "all", square, jax.devices()):
        with pytest.raises(ConfigError, match="mesh"):
            fedax.simulate(method, TASK, DATA, rounds=4, place=fedax.Place(mesh=bad))


@FOUR
def test_cores_are_used_where_there_is_work_for_them():
    assert devices.cores(5, 100) is None
    assert devices.cores(2, 1e9).size == 2 and devices.cores(3, 1e9).size == 3 and devices.cores(50, 1e9).size == 4
    assert devices.cores(1, 1e12) is None
