"""Methods that coincide: with each other, with plain gradient descent, with themselves under other names."""

from typing import Any

import numpy as np
import optax
import pytest

import fedax
from tests.references import quadratics as quad

from .bed import BED, GRADS, LR, ROUNDS, X0, federation, noisy, path
from .cases import SOLVERS

CONSTANT = fedax.Piecewise(LR, {2: 1.0})
DECAYING = fedax.Piecewise(LR, {2: 0.4})
EQUAL = fedax.Steps(3)
NEUTRAL = {"momentum": 0.0, "prox": 0.0, "decay": 1.0}


def same(a: np.ndarray, b: np.ndarray, tolerance: float = 2e-6) -> None:
    assert np.isfinite(a).all() and np.abs(a[-1] - a[0]).max() > 0.05  # the run goes somewhere
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def differ(a: np.ndarray, b: np.ndarray) -> None:
    assert np.isfinite(a).all() and np.isfinite(b).all() and np.abs(a - b).max() > 1e-3


def descent(gradient: Any, steps: int, lr: float = LR) -> np.ndarray:
    """Plain gradient descent from X0 in float64: [steps + 1, d]."""
    x = [X0]
    for _ in range(steps):
        x.append(x[-1] - lr * gradient(x[-1]))
    return np.stack(x)


# FedAvg and FedProx.


def test_fedprox_without_pull_is_fedavg_bit_for_bit():
    work = fedax.Steps([1, 5, 2, 4, 3])
    plain = noisy(fedax.create("fedavg", lr=LR), work=work)
    same(noisy(fedax.create("fedprox", lr=LR, prox=0.0), work=work), plain, 0)
    differ(noisy(fedax.create("fedprox", lr=LR, prox=2.0), work=work), plain)


@pytest.mark.parametrize("hyper", [{}, {"prox": 5.0}], ids=["fedavg", "fedprox"])
def test_one_local_step_is_gradient_descent_whatever_the_pull(hyper):
    method = "fedprox" if hyper else "fedavg"
    mean = lambda x: sum(p * g(x, 0, 0) for p, g in zip(BED.p, GRADS, strict=True))  # noqa: E731
    same(path(fedax.create(method, lr=LR, **hyper), work=fedax.Steps(1)), descent(mean, ROUNDS))


def test_one_client_is_gradient_descent():
    alone = federation(BED.H[:1], BED.e[:1], np.ones(1))
    expected = descent(lambda x: GRADS[0](x, 0, 0), 3 * ROUNDS)[::3]
    same(path(fedax.create("fedavg", lr=LR), data=alone, work=EQUAL), expected)


@pytest.mark.parametrize("name", ["fedavg", "fednova", "fednova-vr", "vrl-sgd"])
def test_identical_clients_are_one_client(name):
    twins = federation(np.stack([BED.H[1]] * 7), np.stack([BED.e[1]] * 7), BED.p)
    expected = descent(lambda x: GRADS[1](x, 0, 0), 3 * ROUNDS)[::3]
    same(path(fedax.create(name, lr=CONSTANT), data=twins, work=EQUAL), expected)


# FedNova.


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_equal_steps_make_fednova_fedavg(solver):
    """On minibatches, with cohorts whose weights do not sum to one."""
    hyper = {"lr": LR, **NEUTRAL, **solver}
    names = ("fedavg", "fednova")
    fedavg, fednova = (noisy(fedax.create(name, **hyper), participation=fedax.Uniform(3)) for name in names)
    same(fednova, fedavg)


def test_options_at_their_neutral_value_are_off():
    same(path(fedax.create("fedavg", lr=LR, **NEUTRAL)), path(fedax.create("fedavg", lr=LR)))


def test_tau_eff_is_the_length_of_the_step_and_nothing_else():
    """By name and by number it is the same; a first step twice as long has twice the length."""

    def run(tau_eff: Any) -> np.ndarray:
        return path(fedax.create("fednova", lr=LR, prox=2.0, tau_eff=tau_eff))

    norms = [quad.proximal_norm(int(tau), 2 * LR) for tau in BED.tau]
    for name, number in (("default", BED.p @ norms), ("ptau", BED.p @ BED.tau), ("mean", BED.tau.mean())):
        same(run(name), run(float(number)), 1e-5)
    once, twice = run(3.0), run(6.0)
    np.testing.assert_allclose(twice[1] - X0, 2 * (once[1] - X0), rtol=1e-5)
    differ(once, twice)


def test_fednova_vr_is_vrl_sgd_for_equal_steps():
    """On minibatches: both draw the same, as a client's minibatches do not depend on the method."""
    same(noisy(fedax.create("fednova-vr", lr=LR)), noisy(fedax.create("vrl-sgd", lr=LR)))


# Servers. With equal steps, and a rate that is cut after two rounds.


def fedavg(**hyper: Any) -> np.ndarray:
    return path(fedax.create("fedavg", lr=DECAYING, **hyper), work=EQUAL)


def test_server_momentum_of_fednova_is_slowmo_for_equal_steps():
    beta = {"lr": DECAYING, "server_momentum": 0.7}
    nova, slowmo = (fedax.create("fednova", server="slowmo", **beta), fedax.create("slowmo", **beta))
    same(path(nova, work=EQUAL), path(slowmo, work=EQUAL))


def test_slowmo_is_fedavgm_while_the_rate_is_constant():
    hyper = {"server_momentum": 0.7, "server_lr": 0.8}
    for lr, check in ((CONSTANT, same), (DECAYING, differ)):
        check(*(path(fedax.create(name, lr=lr, **hyper), work=EQUAL) for name in ("slowmo", "server-momentum")))


@pytest.mark.parametrize("name, server", [("slowmo", {}), ("server-momentum", {}), ("fednova", {"server": "slowmo"})])
def test_server_momentum_zero_is_plain_averaging(name, server):
    method = fedax.create(name, lr=DECAYING, server_momentum=0.0, server_lr=0.8, **server)
    same(path(method, work=EQUAL), fedavg(server_lr=0.8))


def test_optax_at_the_server():
    same(fedavg(server=optax.sgd(1.0)), fedavg())
    own = fedavg(server="momentum", server_momentum=0.7, server_lr=0.8)
    same(fedavg(server=optax.sgd(0.8, momentum=0.7)), own)


# Optax at the clients.


def test_optax_momentum_is_sgd_with_momentum():
    """Under unequal steps: FedNova-VR needs the solver's η and ‖a_i‖₁ too."""
    theirs = fedax.create("fednova-vr", solver=fedax.Optax(optax.sgd(LR, momentum=0.6)))
    same(path(theirs), path(fedax.create("fednova-vr", lr=LR, momentum=0.6)))


def test_clients_differ():
    """Otherwise the identities above would hold for wrong methods too."""
    assert max(np.abs(g(BED.optimum(), 0, 0)).max() for g in GRADS) > 0.5
    assert BED.p.std() > 0.02
