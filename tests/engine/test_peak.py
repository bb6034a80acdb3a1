"""How much memory a gradient takes, and how many clients therefore run side by side on an accelerator."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.vector import Vector
from fedax.engine import batch, plan
from fedax.engine.make import make_job
from fedax.engine.memory import _peak, gradient_bytes
from fedax.engine.plan import make_plan
from fedax.federation.census import Census
from fedax.wire.wire import Wire

from .problem import DATA, TASK

GB = 10**9
FEDAVG = fedax.create("fedavg", lr=0.05)


def images(clients, shape=(32, 32, 3)):
    """The census of clients with 500 images each."""
    form = {"x": jax.ShapeDtypeStruct(shape, jnp.float32), "y": jax.ShapeDtypeStruct((), jnp.int32)}
    return Census(np.full(clients, 500), np.full(clients, 1 / clients), form)


@pytest.fixture
def accelerator(monkeypatch):
    """``accelerator(bytes)``: plans are made as for a GPU with so much memory."""

    def make(size):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(plan, "device_bytes", lambda: size)
        monkeypatch.setattr(plan, "cores", lambda *_: None)

    return make


def planned(task, census, batch_size, place=fedax.Place()):
    task = task.trained
    x = Vector(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), task.form()))
    return make_plan(census, task, x, fedax.Epochs(1), batch_size, fedax.Full(), Wire(), place)


@pytest.mark.parametrize("batch_size", [1, 64, 4096])
def test_a_network_as_counted_by_hand(batch_size):
    layers = [784, 300, 100, 10]
    task = fedax.tasks.mlp(784, 10, hidden=(300, 100)).trained
    found = gradient_bytes(task, task.form(), images(2, (784,)), batch_size)
    parameters = sum((a + 1) * b for a, b in itertools.pairwise(layers))
    # Parameters and their gradient; the inputs; of each layer the sums, and what comes out of them.
    by_hand = 4 * (2 * parameters + batch_size * (784 + 2 * sum(layers[1:])))
    assert by_hand < found < 3 * by_hand


def test_what_is_alive_at_once_counts():
    def peak(function, *shapes):
        return _peak(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).jaxpr)

    n, each = 1000, 4 * 1000
    assert peak(lambda x: x + 1, (n,)) == each
    assert peak(lambda x: jnp.sin(jnp.sin(jnp.sin(x))), (n,)) == 2 * each  # an argument and its result
    assert peak(lambda x: (a := jnp.sin(x)) * jnp.cos(jnp.cos(a)), (n,)) == 3 * each
    inner = lambda x: jnp.sum(jnp.outer(x, x))  # noqa: E731
    for way in (jax.jit(inner), lambda x: jax.lax.fori_loop(0, 9, lambda _, s: s + inner(x), 0.0)):
        assert n * each <= peak(way, (n,)) < 1.1 * n * each
    both = lambda x: jax.lax.cond(x[0] > 0, lambda x: jnp.sum(x), inner, x)  # noqa: E731
    assert n * each <= peak(both, (n,)) < 1.1 * n * each
    platforms = lambda x: jax.lax.platform_dependent(x, cpu=jnp.sum, default=inner)  # noqa: E731
    assert n * each <= peak(platforms, (n,)) < 1.1 * n * each


def test_a_large_network_fits_into_a_gpu(accelerator):
    task = fedax.tasks.resnet18((32, 32, 3), 10)
    census = images(100)
    accelerator(80 * GB)
    chosen = planned(task, census, 128).chunk_size
    # The copies of images that products take, 9 of each of 17 inputs of 3×3 kernels; with 64 channels of 32×32 pixels
    # they take 302 MB each.
    each = gradient_bytes(task.trained, task.trained.form(), census, 128)
    assert 4 * 302e6 < each < 5 * GB
    assert 1 < chosen < 100 and chosen * each <= 80 * GB / 2 < (chosen + 1) * each  # 11
    accelerator(GB)
    assert planned(task, census, 128).chunk_size == 1


def test_small_networks_keep_all_clients(accelerator):
    accelerator(80 * GB)
    for batch_size in (16, None):
        assert planned(fedax.tasks.softmax_regression(784, 10), images(100, (784,)), batch_size).chunk_size == 100
    assert planned(fedax.tasks.softmax_regression(784, 10), images(100, (784,)), 16, fedax.Place(7)).chunk_size == 7


def test_a_batch_of_all_data_takes_more(accelerator):
    task, census = fedax.tasks.mlp(784, 10), images(100, (784,))
    accelerator(GB // 10)
    narrow, wide = (planned(task, census, batch_size).chunk_size for batch_size in (None, 1))
    assert 1 < narrow < wide < 100


def test_runs_side_by_side_share_the_memory(accelerator):
    accelerator(80 * GB)
    data = fedax.FederatedData(DATA.examples, DATA.sizes)
    job = make_job(FEDAVG, TASK, data, rounds=1, batch_size=2)
    each = gradient_bytes(job.plan.task, job.x.tree, job.census, 2)
    wide = batch._width(job)
    accelerator(2 * 7 * 5 * each)  # of half of it each run takes that of five clients
    assert job.plan.chunk_size == 5 and batch._width(job) == 7 < wide


def test_the_gradient_is_traced_once(accelerator):
    """By the plan, for the rounds too."""
    accelerator(80 * GB)
    traced = []

    def loss(params, batch, key):
        if key is not None:
            traced.append(jnp.shape(batch["y"]))
        return TASK.loss(params, batch, key)

    for batch_size, shape in ((2, (2,)), (None, (6,))):
        for place in (fedax.Place(), fedax.Place(precision="float32")):
            make_job(FEDAVG, fedax.Task(TASK.init, loss), DATA, rounds=1, batch_size=batch_size, place=place)
            assert traced == [shape]
            traced.clear()


def test_on_a_cpu_nothing_is_traced_for_it(monkeypatch):
    monkeypatch.setattr(plan, "gradient_bytes", lambda *_: pytest.fail("it was"))
    monkeypatch.setattr(plan.jax, "default_backend", lambda: "cpu")
    make_job(FEDAVG, TASK, DATA, rounds=1, batch_size=2)
