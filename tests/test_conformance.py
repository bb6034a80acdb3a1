"""fedax.check: fedax's own methods pass all checks, and each fault of a faulty method is found."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.algorithms.personal import Ditto
from fedax.contract.hyper import hyper

from . import long


class Plain(fedax.Algorithm):
    """FedAvg, of which the faulty methods differ in one place."""

    lr: Any = hyper(0.1, "(0, ∞)")

    def init(self, x):
        return x

    def model(self, server):
        return server

    def client(self, x, memory, oracle):
        return fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle) - x, memory

    def server(self, x, mean, round):
        return x + mean


class State(NamedTuple):
    x: Any
    c: Any


class Control(fedax.Algorithm):
    """SCAFFOLD, likewise."""

    lr: Any = hyper(0.1, "(0, ∞)")

    def init(self, x):
        return State(x, fedax.zeros_like(x))

    def init_client(self, x):
        return fedax.zeros_like(x)

    def client(self, download, c_i, oracle):
        x, c = download
        y = fedax.local_steps(lambda y, k: y - self.lr * (oracle.grad(y, k) - c_i + c), x, oracle)
        c_new = c_i - c + (x - y) / (oracle.steps * self.lr)
        return State(y - x, self.change(c_new - c_i)), self.keep(c_new, c_i)

    def change(self, dc):
        return fedax.Change(dc)

    def keep(self, c_new, c_i):
        return c_new

    def server(self, server, mean, round):
        return State(server.x + mean.x / round.total, server.c + mean.c)


class SumNotMean(Plain):
    def server(self, x, mean, round):
        return x + 0.4 * jnp.sum(round.present) * mean


class FirstPlace(Plain):
    """Who comes first in the cohort counts more."""

    def server(self, x, mean, round):
        return x + (1 + round.weights[0]) * mean


SEEN: list[int] = []


class CountsInPython(Plain):
    """A warm-up by a counter that is no part of the state."""

    def server(self, x, mean, round):
        SEEN.append(1)
        return x + (1 - 0.5 ** len(SEEN)) * mean


class WrongSign(Plain):
    def client(self, x, memory, oracle):
        dx, memory = Plain.client(self, x, memory, oracle)
        return -1.0 * dx, memory


class StaleMemory(Control):
    """The old control variate is kept."""

    def keep(self, c_new, c_i):
        return c_i


class OtherMemory(Control):
    """The upload is not the change of the client's memory."""

    def keep(self, c_new, c_i):
        return 0.9 * c_new + 0.1 * c_new.map(jnp.tanh)


class CountsClients(Control):
    """|S|/N, as the paper has it for equal weights."""

    def change(self, dc):
        return dc

    def server(self, server, mean, round):
        share = jnp.sum(round.present) / round.num_clients
        return State(server.x + mean.x / round.total, server.c + share * mean.c / round.total)


class OwnGradient(Plain):
    """A gradient that the oracle does not know of."""

    def client(self, x, memory, oracle):
        dx, memory = Plain.client(self, x, memory, oracle)
        batch, _ = oracle._all
        g = jax.grad(lambda tree: jnp.mean(oracle._task.loss(tree, batch, None)))(x.tree)
        return dx - 0.01 * fedax.Vector(g), memory


BOARD: list[float] = []


class PastTheWire(Plain):
    """Norms go to the server's process through Python."""

    def client(self, x, memory, oracle):
        dx, memory = Plain.client(self, x, memory, oracle)
        jax.debug.callback(lambda b: BOARD.append(float(b)), dx.tree["b"])
        return dx, memory


class LeavesOutAStep(Plain):
    """A loop of its own, one step short where clients take unequal numbers."""

    def client(self, x, memory, oracle):
        last = oracle.steps if isinstance(oracle.steps, int) else oracle.steps - 1
        return jax.lax.fori_loop(0, last, lambda k, y: y - self.lr * oracle.grad(y, k), x) - x, memory


class NumpyNoise(Plain):
    def server(self, x, mean, round):
        return x + (1 + 0.3 * float(np.random.default_rng().normal())) * mean


class Promotes(Plain):
    """An array of NumPy's float64 in the upload."""

    def client(self, x, memory, oracle):
        dx, memory = Plain.client(self, x, memory, oracle)
        return dx.map(lambda leaf: leaf * np.ones(leaf.shape)), memory


class CountsThoseOfNoWeight(Plain):
    def server(self, x, mean, round):
        return x + mean * jnp.mean(jnp.where(round.present, 1.0 * (round.weights > 0), 1.0))


class Idle(Plain):
    """A momentum that nothing uses."""

    momentum: Any = hyper(0.9, "[0, 1)")


class Branches(Plain):
    """if on a number, which is traced."""

    most: Any = hyper(1.0, "(0, ∞)")

    def server(self, x, mean, round):
        return x + (mean if self.most > 0.5 else 0.5 * mean)


class PythonLoop(Plain):
    """It needs to know the number of steps before compilation."""

    def client(self, x, memory, oracle):
        y = x
        for k in range(oracle.steps):
            y = y - self.lr * oracle.grad(y, k)
        return y - x, memory


class MeanOfModels(Plain):
    """Models in place of differences, which Σω ≠ 1 scales."""

    def client(self, x, memory, oracle):
        dx, memory = Plain.client(self, x, memory, oracle)
        return x + dx, memory

    def server(self, x, mean, round):
        return mean


class TowardsZero(Plain):
    def server(self, x, mean, round):
        return 0.99 * x + mean


class PromisesF(Plain):
    """FedAvg counts clients for more that take more steps."""

    def traits(self):
        return fedax.Traits("FedAvg", limit="F")


FAULTS = {
    SumNotMean: ("splitting", "mean"),
    FirstPlace: ("relabelling", "no client's place"),
    CountsInPython: ("no hidden state", "SEEN has changed"),
    WrongSign: ("descent", "y − x and the server adds"),
    StaleMemory: ("memory", "never changes"),
    OtherMemory: ("memory", "the new memory minus the old"),
    CountsClients: ("splitting", "no number of clients"),
    OwnGradient: ("costs", "32 were computed|40 were computed"),
    PastTheWire: ("no hidden state", "BOARD has changed|calls back into Python"),
    LeavesOutAStep: ("unequal steps", "fedax.local_steps"),
    NumpyNoise: ("determinism", "became a constant"),
    Promotes: ("types", "float64"),
    CountsThoseOfNoWeight: ("weight zero", "weight 0"),
    Idle: ("fields", "momentum"),
    Branches: ("descent", "jnp.where"),
    PythonLoop: ("unequal steps", "fedax.local_steps"),
    MeanOfModels: ("origin", "round.total"),
    TowardsZero: ("origin", "penalty"),
    PromisesF: ("drift", "not that of F"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_found_by_the_check_that_is_for_it(fault):
    name, messages = FAULTS[fault]
    only = ["determinism", name] if name == "no hidden state" else [name]
    report = fedax.check(fault(), only=only)
    assert not report.passed and name in report.failed and report[name].status == "does not hold"
    assert any(part in report[name].found for part in messages.split("|")), report


class Distilling(fedax.Algorithm):
    """Asks for losses, outputs and the gradient of a loss of its own."""

    lr: Any
    q: Any = 0.5

    def init(self, x):
        return x

    def model(self, server):
        return server

    def client(self, x, memory, oracle):
        before = oracle.full_loss(x)

        def step(y, k):
            teacher = oracle.outputs(x, k)
            near = lambda outputs, batch: (outputs - batch["y"]) ** 2 + 0.3 * (outputs - teacher) ** 2  # noqa: E731
            return y - self.lr * oracle.value_and_grad(y, k, loss=near)[1]

        return before**self.q * (fedax.local_steps(step, x, oracle) - x), memory

    def server(self, x, mean, round):
        return x + mean / round.total


def test_a_method_that_asks_for_losses_and_outputs_holds_everything():
    found = fedax.check(Distilling(lr=0.1))
    assert found.passed, found
    assert "gradients counted and computed" in found["costs"].found


def test_the_right_ones_hold_everything():
    report = fedax.check(Control())
    assert report.passed and len(report.checks) > 15, report
    assert {row["status"] for row in report.table} == {"holds", "not promised"} and "everything holds" in repr(report)
    assert "is in the server's state" in report["memory"].found


def test_what_is_not_promised_is_said():
    report = fedax.check(fedax.create("led"), only=["unequal steps", "cohorts"])
    assert [each.status for each in report.checks] == ["not promised"] * 2 and report.passed


def gradient_descent(method, clients, x):
    return x - 3 * method.lr * clients.mean(clients.grad(x))


def normalized(method, clients, x):
    y = clients.steps(lambda y: y - method.lr * clients.grad(y), x)
    return x + clients.mean(clients.tau) * clients.mean((y - x) / clients.tau)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda x: x, r"^reference cannot take .*method, clients, x, \*kept"),
        (lambda method, clients, x: clients.grad(x), r"^reference returned a model of shape \[5, 4\]; return x, \[4\]"),
        (lambda method, clients, x: x / clients.alpha, r"^reference raised AttributeError.*alpha"),
        (gradient_descent, r"^round 1 is not the reference's: it moves 0.333 times as far: a step size"),
        (normalized, r"^round 1 is not .* with unequal ones it is not: the weights of clients with more steps"),
    ],
)
def test_a_reference_that_is_no_round_and_another_method_s(reference, message):
    found = fedax.check(Plain(), only=["reference"], reference=reference)["reference"]
    assert found.status == "does not hold" and re.search(message, found.found), found


def test_without_a_reference_it_is_said_what_no_other_check_sees():
    found = fedax.check(Plain(), only=["reference"])["reference"]
    assert found.status == "not promised" and "the sign of a perturbation" in found.found


def test_a_schedule_is_resolved_for_the_reference():
    def paper(method, clients, x):
        return clients.mean(clients.steps(lambda y: y - method.lr * clients.grad(y), x))

    method = Plain(lr=fedax.Piecewise(0.1, {2: 0.5}))
    assert fedax.check(method, only=["reference"], reference=paper).passed


def test_a_task_that_does_not_fit():
    with pytest.raises(fedax.ConfigError, match=r"task.*the test problem has x, \[b, 3\]"):
        fedax.check(Plain(), task=fedax.tasks.softmax_regression(features=4, classes=3))


def test_no_method_and_no_check():
    with pytest.raises(fedax.ConfigError, match=r"^algorithm = 3: give a method"):
        fedax.check(3)
    with pytest.raises(fedax.ConfigError, match=r"^only = 'spliting': did you mean 'splitting'"):
        fedax.check(Plain(), only=["spliting"])


SOME = ["relabelling", "splitting", "unequal steps", "resume", "costs"]
TUNED = {name: {"eps": 1.0} for name in ("fedda", "fedda-mvr", "fedda-distributed")}  # near a stationary point 1/ε


@pytest.mark.parametrize("name", ["mime", "fedgate"])
def test_two_of_fedax_s_own_methods_hold_what_is_cheap_to_check(name):
    report = fedax.check(fedax.create(name), only=SOME)
    assert report.passed, report


class ForgetsThePull(Ditto):
    def client(self, x, memory, oracle):
        return Ditto.client(self.replaced(), x, memory, oracle)

    def replaced(self):
        return Ditto(lr=self.lr, personal_lr=self.personal_lr, lam=1.0)


def test_personal_models_count_as_results_and_their_evaluation_costs_nothing():
    for name in ("ditto", "mr-mtl", "ifca"):
        report = fedax.check(fedax.create(name), only=["costs", "fields"])
        assert report.passed, report
    assert "lam: another value changes nothing" in fedax.check(ForgetsThePull(), only=["fields"])["fields"].found


@long
@pytest.mark.parametrize("name", sorted(fedax.available()))
def test_fedax_s_own_methods_hold_everything(name):
    report = fedax.check(fedax.create(name, **TUNED.get(name, {})))
    assert report.passed, report
