"""Methods whose clients take their local steps by any solver: the direction is the method's, the step the solver's."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedax
from fedax.algorithms import METHODS
from fedax.algorithms.scaffold import Scaffold
from fedax.contract.local import LocalMethod
from fedax.experiments.described import method as described
from fedax.theory.surrogate import view_of

from .. import mostly_long
from .bed import BED, DATA, GRADS, LR, QUADRATIC, ROUNDS, UNEQUAL, X0, path, picked_clients, reference_path
from .cases import CASES
from .test_against_references import ONE_EACH, Given, close, work

LOCAL = [name for name in METHODS if isinstance(fedax.create(name), LocalMethod)]
IDS = [[4, 1, 6], [0, 3, 5], [2, 6, 0], [1, 3, 2], [5, 4, 6]]
OMEGA = BED.p * 7 / 3  # of these cohorts; they do not sum to one


def clipped(learning_rate: Any, max_norm: Any) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(max_norm), optax.sgd(learning_rate))


WHY = {
    "led": "scaffnew",
    "locodl": "scaffnew",
    "fedmass": "nesterov-fedavg",
    "fedda": "dual",
    "fedda-mvr": "dual",
    "feddualavg": "fedavg",
    "local-adapt": "fedadam",
    "local-amsgrad": "fedadam",
}


def test_every_method_takes_a_solver_or_says_why_not():
    family = {name for name in METHODS if "solver" in METHODS.get(name).arguments} - set(LOCAL)
    assert {"fedavg", "fednova-vr", "delayed-nesterov"} <= family and "scaffold" in LOCAL
    for name in METHODS:
        if name in LOCAL or name in family:
            assert fedax.create(name, solver=fedax.SGD(0.02)).solver.lr == 0.02
            continue
        with pytest.raises(
            fedax.ConfigError, match=rf"solver = .*{name}: .*{WHY.get(name, 'no local steps')}"
        ) as caught:
            fedax.create(name, solver=fedax.SGD(0.02))
        assert caught.value.field == "solver"


# The asynchronous methods have one client's work, and each pair the same code for the solver.
ALIKE = ("ca2fl", "area", "fadas", "vrl-sgd", "mime-mvr", "bvr-l-sgd")


@pytest.mark.parametrize("name", mostly_long(LOCAL, *(name for name in LOCAL if name not in ALIKE)))
def test_sgd_of_optax_is_the_papers_method_and_clipping_is_another(name):
    """Beside the NumPy references, with weights of cohorts that do not sum to one; both by one program."""
    case = CASES[ONE_EACH[name]]
    ids = IDS if case.partial else [list(range(7))] * ROUNDS
    cohorts = [(cohort, (OMEGA if case.partial else BED.p)[cohort]) for cohort in ids]
    participation = Given(ids) if case.partial else fedax.Full()
    steps, hyper = BED.tau if case.steps is None else np.full(7, case.steps), case.hyper | case.theirs
    if case.picks:
        hyper |= {"chosen": picked_clients(DATA, work=work(case), participation=participation)}
    expected = case.reference(GRADS, BED.p, steps, cohorts, X0, ROUNDS, lr=LR, **hyper).iterates

    def by(max_norm: float) -> np.ndarray:
        solver = fedax.Optax(clipped, learning_rate=LR, max_norm=max_norm)
        method = fedax.create(name, solver=solver, **case.hyper, **case.own)
        return path(method, participation=participation, work=work(case))

    close(by(1e9), expected, 1e-12)
    short = by(0.5)
    assert np.isfinite(short).all() and np.abs(short[1] - expected[1]).max() > 1e-3


# Three of them in NumPy, two rounds.


class Adam:
    """Of optax: m̂/(√v̂ + ε), begun anew for each client and round."""

    def __init__(self, rate):
        self.rate, self.m, self.v, self.k = rate, 0.0, 0.0, 0

    def step(self, d):
        self.k += 1
        self.m, self.v = 0.9 * self.m + 0.1 * d, 0.999 * self.v + 0.001 * d**2
        return -self.rate * self.m / (1 - 0.9**self.k) / (np.sqrt(self.v / (1 - 0.999**self.k)) + 1e-8)


class Clipped:
    def __init__(self, rate, most):
        self.rate, self.most = rate, most

    def step(self, d):
        return -self.rate * d * min(1.0, self.most / np.linalg.norm(d))


def steps_of(i, x, solver, direction):
    """y − x, and the mean direction and mean gradient of client i."""
    y, tau, directions, gradients = x, int(BED.tau[i]), [], []
    for _ in range(tau):
        g = GRADS[i](y, 0, 0)
        directions.append(direction(y, g))
        gradients.append(g)
        y = y + solver.step(directions[-1])
    return y - x, np.mean(directions, axis=0), np.mean(gradients, axis=0)


def two_rounds(server_round):
    iterates = [X0]
    for ids in IDS[:2]:
        iterates.append(server_round(iterates[-1], [(i, OMEGA[i]) for i in ids]))
    return np.stack(iterates)


def ours(name, solver, **hyper):
    options = {"rounds": 2, "participation": Given(IDS), "work": UNEQUAL}
    return path(fedax.create(name, solver=solver, **hyper), **options)


def test_scaffold_with_adam():
    c_i, c = np.zeros((7, 4)), np.zeros(4)

    def server_round(x, cohort):
        nonlocal c
        total, dx, dc = sum(w for _, w in cohort), 0.0, 0.0
        for i, w in cohort:
            change, _, gradient = steps_of(i, x, Adam(0.1), lambda y, g, i=i: g - c_i[i] + c)
            dx, dc = dx + w * change / total, dc + BED.p[i] * (gradient - c_i[i])
            c_i[i] = gradient
        c = c + dc
        return x + 0.8 * dx

    expected = two_rounds(server_round)
    close(ours("scaffold", fedax.Optax(optax.adam, learning_rate=0.1), server_lr=0.8), expected, 1e-12)


def test_fedcm_with_adam():
    beta, g = 0.3, np.zeros(4)

    def server_round(x, cohort):
        nonlocal g
        total, dx, d, known = sum(w for _, w in cohort), 0.0, 0.0, (1 - beta) * g
        mean_steps = sum(w * BED.tau[i] for i, w in cohort) / total
        for i, w in cohort:
            change, direction, _ = steps_of(i, x, Adam(0.1), lambda y, gradient: beta * gradient + known)
            dx, d = dx + w * change / BED.tau[i], d + w * direction
        g = d + (1 - total) * known
        return x + 0.8 * mean_steps * (dx + (1 - total) * Adam(0.1).step(known))

    expected = two_rounds(server_round)
    close(ours("fedcm", fedax.Optax(optax.adam, learning_rate=0.1), beta=beta, server_lr=0.8), expected, 1e-12)


def test_feddyn_with_clipping():
    alpha, dual, h = 2.0, np.zeros((7, 4)), np.zeros(4)

    def server_round(x, cohort):
        nonlocal h
        total, dx = sum(w for _, w in cohort), 0.0
        for i, w in cohort:
            change, _, _ = steps_of(i, x, Clipped(LR, 0.7), lambda y, g, i=i: g - dual[i] + alpha * (y - x))
            dx, h = dx + w * change / total, h - alpha * BED.p[i] * change
            dual[i] -= alpha * change
        return x + dx - h / alpha

    expected = two_rounds(server_round)
    close(ours("feddyn", fedax.Optax(clipped, learning_rate=LR, max_norm=0.7), alpha=alpha), expected, 1e-12)


# What is around a method does not notice.

AROUND = {
    "compressed, by a deadline": (
        "scaffold",
        {
            "compress": fedax.ErrorFeedback(fedax.RandomK(0.5)),
            "participation": fedax.Uniform(4),
            "work": fedax.Deadline(5.0, np.arange(1.0, 8.0)),
            "place": fedax.Place(chunk_size=2, client_memory="host"),
        },
    ),
    "at a server that does not wait": (
        "ca2fl",
        {"pace": fedax.Async(3, buffer=2, start="idle"), "clock": fedax.Clock(step=1.0), "work": fedax.Steps(3)},
    ),
}


@pytest.mark.parametrize("kind", AROUND)
def test_around_a_method_plain_steps_by_a_solver_are_those_of_lr(kind):
    name, options = AROUND[kind]
    solver = fedax.Optax(optax.sgd, learning_rate=LR)
    ends = [
        fedax.simulate(fedax.create(name, **rate), QUADRATIC, DATA, params=X0, rounds=6, evaluate_every=6, **options)
        for rate in ({"lr": LR}, {"solver": solver})
    ]
    assert np.abs(ends[0].params - X0).max() > 0.1
    np.testing.assert_allclose(ends[0].params, ends[1].params, rtol=0, atol=1e-12)
    for column in ("gradients", "local_steps", "bytes_down", "bytes_up"):  # SCAFFOLD sends c_i⁺ in any case
        assert ends[0].history[column].tolist() == ends[1].history[column].tolist()


def test_rates_of_solvers_follow_the_round():
    rate = fedax.Piecewise(LR, {1: 0.5, 3: 2.0})
    plain = reference_path(CASES["scaffold"].reference, lr=lambda r: LR * (0.5 if 1 <= r < 3 else 1.0))
    for solver in (fedax.SGD(rate), fedax.Optax(optax.sgd, learning_rate=rate)):
        close(path(fedax.create("scaffold", solver=solver)), plain, 1e-12)


# How it is said.


def test_a_solver_and_a_rate_are_one_or_the_other():
    solver = fedax.SGD(0.1)
    for make in (
        lambda: fedax.create("scaffold", solver=solver, lr=0.05),
        lambda: Scaffold(lr=0.2, solver=solver),
        lambda: fedax.create("stem", solver=solver, lr=fedax.PowerDecay(0.1)),
    ):
        with pytest.raises(fedax.ConfigError, match=r"lr = .*solver"):
            make()
    with pytest.raises(fedax.ConfigError, match=r"w = 9.0: .*solver"):
        fedax.create("mime-mvr", solver=solver, w=9.0)
    with pytest.raises(fedax.ConfigError, match=r"solver = .*give a fedax Solver"):
        fedax.create("scaffold", solver=optax.sgd(0.1))
    with pytest.raises(fedax.ConfigError, match=r"solver.regularizer = .*fedavg"):
        fedax.create("scaffold", solver=fedax.SGD(0.1, regularizer=fedax.L1(0.1)))
    with pytest.raises(fedax.ConfigError, match=r"momentum = 2.0"):
        fedax.create("scaffold", solver=fedax.SGD(0.1, momentum=2.0))
    with pytest.raises(fedax.ConfigError, match=r"alpha = 11.0: .*at most 10 here"):
        fedax.create("feddyn", solver=solver, alpha=11.0)
    assert fedax.create("feddyn", solver=fedax.Optax(optax.adam, learning_rate=0.1), alpha=11.0).lr is None
    assert fedax.create("fedasync", solver=solver).prox == fedax.create("fedasync").prox  # its own, not the solver's


def test_a_method_with_a_solver_is_written_and_read_back():
    solver = fedax.Optax(optax.adamw, learning_rate=0.01, weight_decay=0.1)
    method = fedax.create("scaffold", solver=solver, server_lr=0.5)
    names = {"Scaffold": Scaffold, "Optax": fedax.Optax, "optax": optax}
    assert repr(eval(repr(method), names)) == repr(method) and "lr=None" not in repr(method)
    assert sorted(jax.tree.leaves(method)) == [0.01, 0.1, 0.5]  # what a sweep may vary in one program
    table = described("a", method, False)
    assert (table["name"], table["server_lr"]) == ("scaffold", 0.5) and "weight_decay=0.1" in str(table["solver"])
    assert "solver" not in Scaffold().arguments() and "lr" not in method.arguments()


def test_theorems_are_of_linear_solvers():
    adam = fedax.Optax(optax.adam, learning_rate=0.01)
    for name in ("scaffold", "fedbuff"):
        known = view_of(fedax.create(name, solver=fedax.SGD(0.1, momentum=0.5)), fedax.Full())
        unknown = view_of(fedax.create(name, solver=adam), fedax.Full())
        assert (known.exact or known.averaging) and not (unknown.exact or unknown.averaging) and known.lr == 0.1
    check = fedax.check(fedax.create("scaffold", solver=adam), only=["optimum"])
    assert check["optimum"].status == "not promised"
