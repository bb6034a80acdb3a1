"""The wire: the order of its parts, against NumPy; and that its numbers are no part of a program."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.algorithm import Round
from fedax.wire.wire import Wire
from tests.engine.problem import DATA, TASK

N = 5
W = np.array([0.4, 0.1, 0.2, 0.0, 0.3], np.float32)
P = np.array([0.1, 0.3, 0.2, 0.25, 0.15], np.float32)
UPLOADS = np.array([[3.0, 4.0], [0.3, 0.4], [1e12, 1.0], [5.0, 0.0], [-6.0, 8.0]], np.float32)


def round_of(weights=W):
    ones = jnp.ones(N, int)
    return Round(0, 0, None, N, jnp.asarray(weights), ones, ones > 0, jnp.asarray(P), jnp.sum(weights))


def sent(wire, client):
    upload, accepted = wire.sent(jnp.asarray(UPLOADS[client]), client, N)
    return np.asarray(upload), accepted


def test_parts_come_in_their_order():
    """Faults, then the guard, which sees what the faults have made, then clipping of what is left."""
    wire = Wire(fedax.Faults([0], times=-1e12), fedax.Guard(largest=10.0), fedax.ClippedMean(1.0))
    results = [sent(wire, i) for i in range(N)]
    assert [bool(accepted) for _, accepted in results] == [False, True, False, True, True]
    norms = np.maximum(1, np.linalg.norm(UPLOADS, axis=1, keepdims=True))
    clipped = UPLOADS / norms * np.array([0, 1, 0, 1, 1])[:, None]
    np.testing.assert_allclose([upload for upload, _ in results], clipped, 1e-6)


def test_a_wire_without_parts_changes_nothing():
    upload, accepted = sent(Wire(), 2)
    assert upload.tolist() == UPLOADS[2].tolist() and accepted == ()
    mean, round_ = Wire().received(jnp.ones(2), (), round_of(), jnp.ones(N, bool), True, False)
    assert mean.tolist() == [1.0, 1.0] and round_.total == pytest.approx(W.sum())


@pytest.mark.parametrize("by_number", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_the_weights_of_those_left_grow(by_number, alone):
    counts = np.array([True, True, False, True, False])
    total = {"x": jnp.array(2.0), "c": fedax.Change(jnp.array(7.0))}
    mean, round_ = Wire(guard=fedax.Guard()).received(total, (), round_of(), jnp.asarray(counts), by_number, alone)
    grow = N / counts.sum() if by_number else W.sum() / W[counts].sum()
    np.testing.assert_allclose(round_.weights, W * counts * grow, 1e-6)
    np.testing.assert_allclose(round_.data_weights, P * counts, 1e-6)
    assert float(round_.total) == pytest.approx(float((W * counts * grow).sum()), rel=1e-6)
    assert float(mean["x"]) == pytest.approx(2.0 if alone else 2.0 * grow) and float(mean["c"]) == 7.0


def test_a_robust_average_takes_the_place_of_the_sum():
    wire = Wire(guard=fedax.Guard(largest=1e6), aggregate=fedax.CoordinateMedian())
    counts = jnp.array([True, True, False, True, True])
    uploads = jnp.where(counts[:, None], UPLOADS, 0)
    mean, round_ = wire.received((), uploads, round_of(), counts, False, False)
    # Client 3 has no weight. Of the others, with .5, .125 and .375 of it, in order: −6, .3 and 3; then .4, 4 and 8.
    np.testing.assert_allclose(mean / round_.total, [(0.3 + 3) / 2, 4.0], 1e-5)
    assert wire.gathers and not Wire(aggregate=fedax.ClippedMean(1.0)).gathers


@pytest.mark.parametrize(
    "part",
    [
        lambda number: {"aggregate": fedax.ClippedMean(number), "faults": fedax.Faults([1], times=-number)},
        lambda number: {"aggregate": fedax.TrimmedMean(number), "guard": fedax.Guard(largest=number)},
    ],
    ids=["clip and faults", "trim and guard"],
)
def test_a_sweep_over_a_number_of_the_wire_compiles_once(part):
    def make(number):
        return {"algorithm": fedax.create("fedavg", lr=0.05), **part(number)}

    options = {"rounds": 3, "work": fedax.Steps(2), "batch_size": 2}
    sweep = fedax.sweep(make, {"number": [0.02, 0.4]}, TASK, DATA, **options)
    assert sweep.programs == 1
    for number, (run,) in zip((0.02, 0.4), sweep.runs, strict=True):
        alone = fedax.simulate(task=TASK, data=DATA, **options, **make(number))
        np.testing.assert_allclose(run.history["train_loss"], alone.history["train_loss"], 1e-5)
    assert len({run.history["train_loss"][-1] for (run,) in sweep.runs}) == 2


def test_another_number_of_the_wire_compiles_nothing(compilations):
    options = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 2}
    for norm in (0.1, 0.2):
        compilations()
        fedax.simulate(fedax.create("fedavg"), TASK, DATA, aggregate=fedax.ClippedMean(norm), **options)
    assert compilations() == 0
