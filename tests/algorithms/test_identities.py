"""Methods that coincide: with each other, with plain gradient descent, with themselves under other names."""

import functools
import itertools
from typing import Any

import numpy as np
import optax
import pytest

import fedax
from tests.references import fedavg_family as fed
from tests.references import momentum_family as mom
from tests.references import quadratics as quad

from .. import mostly_long
from .bed import (
    BED,
    COHORTS,
    DATA,
    GRADS,
    LR,
    QUADRATIC,
    ROUNDS,
    SCALAR,
    X0,
    AnySteps,
    federation,
    noisy,
    path,
    reference_path,
)
from .cases import SOLVERS

CONSTANT = fedax.Piecewise(LR, {2: 1.0})
DECAYING = fedax.Piecewise(LR, {2: 0.4})
EQUAL = AnySteps(3)
ONE = AnySteps(1)
NEUTRAL = {"momentum": 0.0, "prox": 0.0, "decay": 1.0}


def same(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-10) -> None:
    assert np.isfinite(a).all() and np.abs(a[-1] - a[0]).max() > 0.05  # the run goes somewhere
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def equal_steps(name: str, number: int) -> fedax.Work:
    """So many steps for each client; compiled in for methods that need equal ones, also for their defaults."""
    only = fedax.create(name).traits().steps == "equal" or name in ("led", "scaffnew")
    return fedax.Steps(number) if only else AnySteps(number)


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
    same(path(fedax.create(method, lr=LR, **hyper), work=ONE), descent(mean, ROUNDS))


def test_one_client_is_gradient_descent():
    alone = federation(BED.H[:1], BED.e[:1], np.ones(1))
    expected = descent(lambda x: GRADS[0](x, 0, 0), 3 * ROUNDS)[::3]
    same(path(fedax.create("fedavg", lr=LR), data=alone, work=fedax.Steps(3)), expected)


NO_DRIFT = ["fedavg", "fednova", "fednova-vr", "scaffold", "vrl-sgd", "fedgate", "led", "scaffnew", "ce-lsgd"]
NO_DRIFT += ["bvr-l-sgd", "stem", "fedglomo", "mime", "mimelite", "mime-mvr", "mimelite-mvr"]
NO_DRIFT += ["fedbuff", "ca2fl", "area"]


@pytest.mark.parametrize("name", NO_DRIFT)
def test_identical_clients_are_one_client(name):
    twins = federation(np.stack([BED.H[1]] * 7), np.stack([BED.e[1]] * 7), BED.p)
    expected = descent(lambda x: GRADS[1](x, 0, 0), 3 * ROUNDS)[::3]
    same(path(fedax.create(name, lr=LR), data=twins, work=equal_steps(name, 3)), expected)


@pytest.mark.parametrize("name", [*NO_DRIFT, "fedavg-m-vr", "scaffold-m-vr", "mb-storm"])
def test_one_step_is_gradient_descent_whatever_the_clients(name):
    """All of them, with full gradients: the centralised method. Averaged, where one client would work alone."""
    hyper = {"pick": "average"} if name in ("ce-lsgd", "bvr-l-sgd") else {}
    mean = lambda x: sum(p * g(x, 0, 0) for p, g in zip(BED.p, GRADS, strict=True))  # noqa: E731
    same(path(fedax.create(name, lr=LR, **hyper), work=equal_steps(name, 1)), descent(mean, ROUNDS))


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
        same(run(name), run(float(number)))
    once, twice = run(3.0), run(6.0)
    np.testing.assert_allclose(twice[1] - X0, 2 * (once[1] - X0), rtol=1e-10)
    differ(once, twice)


def test_fednova_vr_is_vrl_sgd_for_equal_steps():
    """On minibatches: both draw the same, as a client's minibatches do not depend on the method."""
    same(noisy(fedax.create("fednova-vr", lr=LR)), noisy(fedax.create("vrl-sgd", lr=LR)))


# FedExP.


def test_fedexp_by_hand():
    """½(x − 3)² and ½(x + 1)², one local step of 0.1 from 0: updates .3 and −.1, of mean .1; η_g = .05/(2·.0125)."""
    data = federation(np.ones((2, 1, 1)), np.array([[3.0], [-1.0]]), np.array([0.5, 0.5]))
    options = {"task": SCALAR, "data": data, "x0": np.zeros(1), "work": fedax.Steps(1), "rounds": 2}
    models = path(fedax.create("fedexp", lr=0.1, eps=0.0025, average_last=False), **options)
    np.testing.assert_allclose(models[:, 0], [0.0, 0.2, 0.2 + 0.08 * 0.0464 / (2 * 0.0089)], rtol=1e-10)
    means = path(fedax.create("fedexp", lr=0.1, eps=0.0025), **options)
    np.testing.assert_allclose(means[1:], (models[1:] + models[:-1]) / 2, rtol=1e-10)


def test_fedexp_with_cohorts_in_which_it_extrapolates():
    """From the optimum, where the clients of a cohort pull in different directions."""
    start, hyper = BED.optimum(), {"lr": LR, "eps": 1e-4}
    rates = fed.fedexp(GRADS, BED.p, BED.tau, fed.trace_cohorts(BED.p, COHORTS), start, ROUNDS, **hyper).state["rates"]
    assert rates.max() > 1.9 and rates.min() == 1
    ours = path(fedax.create("fedexp", **hyper), x0=start, participation=fedax.Trace(COHORTS))
    np.testing.assert_allclose(ours, reference_path(fed.fedexp, COHORTS, x0=start, **hyper), rtol=0, atol=1e-10)


@pytest.mark.parametrize("hyper, alike", [({"eps": 1e-9}, True), ({"eps": 1e9}, False)], ids=["alike", "large eps"])
def test_fedexp_is_fedavg_for_clients_that_are_alike_or_a_large_eps(hyper, alike):
    data = federation(np.repeat(BED.H[:1], 7, 0), np.repeat(BED.e[:1], 7, 0), BED.p) if alike else DATA
    options = {"data": data, "work": EQUAL}
    ours = path(fedax.create("fedexp", lr=LR, average_last=False, **hyper), **options)
    same(ours, path(fedax.create("fedavg", lr=LR), **options))


# Control variates and momentum. On minibatches, which both sides draw alike.

FEW = fedax.Uniform(3)
RESET = {"warmup_batches": None}
_VARIANT = {"alpha": 0.4, "b": 0.9, "eps": 0.5, "regularizer": fedax.L1(0.05)}
PAIRS = {
    "fedavg-m, beta 1": (("fedavg-m", {"beta": 1.0, "server_lr": 0.7}), ("fedavg", {"server_lr": 0.7}), {}),
    "fedavg-m-vr, beta 1": (("fedavg-m-vr", {"beta": 1.0, "server_lr": 0.7}), ("fedavg", {"server_lr": 0.7}), {}),
    "fedavg-m is fedcm": (("fedavg-m", {"beta": 0.3}), ("FedCM", {"beta": 0.3}), {}),
    "scaffold-m, beta 1": (
        ("scaffold-m", {"beta": 1.0, "server_lr": 0.7} | RESET),
        ("scaffold", {"server_lr": 0.7}),
        {"participation": FEW},
    ),
    "scaffold-m-vr, beta 1": (
        ("scaffold-m-vr", {"beta": 1.0, "server_lr": 0.7} | RESET),
        ("scaffold", {"server_lr": 0.7}),
        {"participation": FEW},
    ),
    "fedavg-m reparameterised": (
        ("fedavg-m", {"beta": 0.3, "lr": 0.3 * LR, "form": "reparameterised", "server_lr": 0.7}),
        ("fedavg-m", {"beta": 0.3, "server_lr": 0.7}),
        {"participation": FEW},
    ),
    "scaffold-m reparameterised": (
        ("scaffold-m", {"beta": 0.3, "lr": 0.3 * LR, "form": "reparameterised", "server_lr": 0.7}),
        ("scaffold-m", {"beta": 0.3, "server_lr": 0.7}),
        {"participation": FEW},
    ),
    "vrl-sgd is scaffold": (("vrl-sgd", {}), ("scaffold", {}), {}),
    "fedgate is scaffold": (("fedgate", {"server_lr": 0.7}), ("scaffold", {"server_lr": 0.7}), {}),
    "led with b = 1/K": (("led", {}), ("vrl-sgd", {}), {}),
    "scaffnew every K steps": (("scaffnew", {}), ("vrl-sgd", {}), {}),
    "led is scaffnew": (
        ("led", {"b": 0.1}),
        ("scaffnew", {"probability": 0.1}),
        {"steps": (1, 5, 2, 4, 3)},
    ),
    "feddyn is fedpd": (("feddyn", {"alpha": 2.0}), ("fedpd", {"alpha": 2.0}), {}),
    "fedpd never skips": (("fedpd", {"alpha": 2.0, "skip": 0.0}), ("fedpd", {"alpha": 2.0}), {}),
    "ce-lsgd, one step": (
        ("ce-lsgd", {"beta": 0.3, "pick": "average"}),
        ("mb-storm", {"beta": 0.3}),
        {"steps": 1},
    ),
    "mimelite": (("mimelite", {"server_lr": 0.7}), ("fedavg", {"server_lr": 0.7}), {}),
    "mimelite-mvr, a = 1": (("mimelite-mvr", {"alpha": 1.0}), ("fedavg", {}), {}),
    "mime-mvr, a = 1": (("mime-mvr", {"alpha": 1.0}), ("mime", {}), {"participation": FEW}),
    "feddualavg without a regularizer": (
        ("feddualavg", {"server_lr": 0.7}),
        ("fedavg", {"server_lr": 0.7}),
        {"participation": FEW},
    ),
    **{
        f"fedda-{gradient}-{metric}, one step": (
            ("fedda", variant := _VARIANT | {"gradient": gradient, "metric": metric}),
            ("fedda-distributed", variant),
            {"steps": 1},
        )
        for gradient in ("mvr", "momentum")
        for metric in ("coordinate", "norm")
    },
    "fedda, alpha 1": (
        ("fedda", _VARIANT | {"alpha": 1.0}),
        ("fedda", _VARIANT | {"alpha": 1.0, "gradient": "momentum"}),
        {},
    ),
    "fedda with H = I is stem": (
        ("fedda", {"alpha": 0.4, "b": 1.0, "eps": 0.25, "h0": 0.75}),
        ("stem", {"alpha": 0.4}),
        {},
    ),
    "fedda with H = λI by norm is stem": (
        ("fedda", {"alpha": 0.4, "b": 1.0, "eps": 0.25, "h0": 1.75, "lam": 2.0, "metric": "norm"}),
        ("stem", {"alpha": 0.4}),
        {},
    ),
    "fedda-mvr": (("fedda-mvr", _VARIANT), ("fedda", _VARIANT), {}),
    **{
        f"nesterov-{sync} without momentum": (
            ("nesterov-fedavg", {"momentum": 0.0, "sync": sync}),
            ("fedavg", {}),
            {},
        )
        for sync in ("paper", "both", "restart")
    },
    "fedmass without lr2, restart": (
        ("fedmass", {"momentum": 0.4, "lr2": 0.0, "sync": "restart"}),
        ("nesterov-fedavg", {"momentum": 0.4, "sync": "restart"}),
        {"participation": FEW},
    ),
    "fedmass with lr2 = momentum · lr": (
        ("fedmass", {"momentum": 0.4, "lr2": 0.4 * LR, "sync": "both"}),
        ("fedavg", {}),
        {},
    ),
    "mime without momentum": (("mime", {"base": "momentum", "momentum": 0.0}), ("mime", {}), {"participation": FEW}),
    "fedbuff in rounds": (("fedbuff", {"server_lr": 0.7}), ("fedavg", {"server_lr": 0.7}), {"participation": FEW}),
    "fedasync in rounds": (
        ("fedasync", {"mixing": 0.7, "prox": 2.0}),
        ("fedprox", {"prox": 2.0, "server_lr": 0.7}),
        {"participation": FEW},
    ),
    "ca2fl, all clients": (("ca2fl", {"server_lr": 0.7}), ("fedavg", {"server_lr": 0.7}), {}),
    "area, all clients": (("area", {}), ("fedavg", {}), {}),
    "ace, one step": (("ace", {}), ("fedavg", {}), {"steps": 1}),
    "ace, all clients": (("ace", {}), ("ef21", {"compress": fedax.Identity()}), {}),
    "ringmaster, one step": (("ringmaster", {}), ("fedavg", {}), {"steps": 1, "participation": FEW}),
    "ringleader, all clients": (("ringleader", {}), ("ringmaster", {}), {}),
    "delayed-nesterov, every = 1, without momentum": (
        ("delayed-nesterov", {"every": 1, "server_momentum": 0.0}),
        ("fedavg", {"server_lr": 0.7}),
        {"participation": FEW},
    ),
    "fadas, shortened": (
        ("fadas", {"server_lr": 0.02, "threshold": 1, "shorten": "cap"}),
        ("fadas", {"server_lr": 0.02, "threshold": None}),
        {},
    ),
}


@functools.cache
def _run(name: str, hyper: tuple[tuple[str, Any], ...], options: tuple[tuple[str, Any], ...]) -> np.ndarray:
    options = {"steps": 4} | dict(options)
    return noisy(fedax.create(name, **{"lr": LR} | dict(hyper)), work=fedax.Steps(options.pop("steps")), **options)


# Of the others the references show the same, on minibatches in cohorts.
SOME_PAIRS = (
    "fedavg-m, beta 1", "fedavg-m is fedcm", "scaffold-m-vr, beta 1", "scaffold-m reparameterised",
    "scaffnew every K steps", "feddyn is fedpd", "ce-lsgd, one step", "mimelite-mvr, a = 1",
    "feddualavg without a regularizer", "fedda-mvr-norm, one step", "fedda with H = I is stem",
    "nesterov-both without momentum", "fedmass without lr2, restart", "mime without momentum", "fedasync in rounds",
    "ringmaster, one step",
)  # fmt: skip


@pytest.mark.parametrize("pair", mostly_long(PAIRS, *SOME_PAIRS))
def test_pairs(pair):
    left, right, options = PAIRS[pair]
    runs = [_run(name, tuple(hyper.items()), tuple(options.items())) for name, hyper in (left, right)]
    same(*runs)


def test_the_pairs_are_different_methods():
    """Else the test above would see nothing."""
    plain = ["fedavg", "scaffold", "mime", "feddyn"]
    runs = [_run(name, (("alpha", 2.0),) if name == "feddyn" else (), ()) for name in plain]
    runs += [_run("fedavg-m", (("beta", 0.3),), ()), _run("mb-storm", (), ())]
    for a, b in itertools.combinations(runs, 2):
        differ(a, b)


def test_fedavg_m_without_momentum_is_fednova_for_unequal_steps():
    same(path(fedax.create("fedavg-m", lr=LR, beta=1.0)), path(fedax.create("fednova", lr=LR)))


def test_fedglomo_is_fedavg_without_noise():
    for beta in (0.3, 1.0):
        method = fedax.create("fedglomo", lr=LR, beta=beta)
        same(path(method, work=EQUAL), path(fedax.create("fedavg", lr=LR), work=EQUAL))


def test_bvr_l_sgd_is_ce_lsgd_without_noise():
    for period, beta in ((1, 1.0), (None, 1e-9)):
        pick = {"lr": LR, "pick": "random"}
        both = fedax.create("bvr-l-sgd", period=period, **pick), fedax.create("ce-lsgd", beta=beta, **pick)
        same(*(path(method, work=EQUAL) for method in both))


@pytest.mark.parametrize("name", ["fedavg-m", "mime", "mimelite"])
def test_one_step_is_centralised_momentum(name):
    """v ← (1−β) v + β ∇F;  x ← x − η v, v from zero."""
    hyper = {"beta": 0.3} if name == "fedavg-m" else {"base": "momentum", "momentum": 0.7}
    x, v, expected = X0, np.zeros(4), [X0]
    for _ in range(ROUNDS):
        v = 0.7 * v + 0.3 * sum(p * g(x, 0, 0) for p, g in zip(BED.p, GRADS, strict=True))
        x = x - LR * v
        expected.append(x)
    same(path(fedax.create(name, lr=LR, **hyper), work=ONE), np.stack(expected))


@pytest.mark.parametrize("name", ["mime", "mimelite"])
def test_one_step_is_centralised_adam_with_the_second_moment_of_the_past(name):
    x, m, v, expected = X0, np.zeros(4), np.zeros(4), [X0]
    for _ in range(ROUNDS):
        g = sum(p * g_i(x, 0, 0) for p, g_i in zip(BED.p, GRADS, strict=True))
        m = 0.6 * m + 0.4 * g
        x = x - LR * m / (np.sqrt(v) + 0.3)
        v = 0.8 * v + 0.2 * g * g
        expected.append(x)
    hyper = {"base": "adam", "beta1": 0.6, "beta2": 0.8, "eps": 0.3}
    same(path(fedax.create(name, lr=LR, **hyper), work=ONE), np.stack(expected))


def test_a_step_of_fedpd_that_is_skipped():
    """With skips a round holds several phases; their number is in the history, the reference gets it."""
    method = fedax.create("fedpd", lr=LR, alpha=2.0, skip=0.6)
    run = fedax.simulate(method, QUADRATIC, DATA, rounds=ROUNDS, work=EQUAL, params=X0, test=None, evaluate_every=1)
    phases = np.diff(run.history["local_steps"]) // (3 * len(BED.p))
    assert phases.max() > 1 and phases.min() >= 1
    assert (np.diff(run.history["gradients"]) == 3 * len(BED.p) * phases).all()
    same(path(method, work=EQUAL), reference_path(mom.fedpd, taus=3, lr=LR, alpha=2.0, phases=phases))


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


# Methods for a server that does not wait, in rounds.


def test_delayed_nesterov_that_is_not_delayed_is_nesterovs_momentum():
    """Optax: m ← βm + g; x ← x − γ (g + βm). The share of each step does not matter where there is one."""
    nesterov = fedavg(server=optax.sgd(0.8, momentum=0.7, nesterov=True))
    for spread in (0.0, 0.4, 1.0):
        hyper = {"server_momentum": 0.7, "server_lr": 0.8, "every": 1, "spread": spread}
        same(path(fedax.create("delayed-nesterov", lr=DECAYING, **hyper), work=EQUAL), nesterov)


def test_delayed_nesterov_by_hand():
    """N = 4, constant updates of 10: 10/4 in each step, and half the momentum, 10, then 15, at the fourth or in all."""
    step = fedax.Vector(np.array([10.0]))
    for spread, moves in ((0.0, [2.5, 2.5, 2.5, 7.5]), (1.0, [2.5, 2.5, 2.5, 3.75, 3.75, 3.75, 3.75, 4.375])):
        server = fedax.DelayedNesterov(1.0, 0.5, every=4, spread=spread)
        state, found = server.init(step), []
        for _ in moves:
            moved, state = server.update(state, step, step, LR)
            found.append(float(moved.tree[0]))
        np.testing.assert_allclose(found, moves, rtol=1e-10)


def test_fadas_is_amsgrad_of_optax():
    """Which corrects both moments before it takes the largest, so that they agree without a first moment's history."""
    hyper = {"server_lr": 0.05, "beta1": 0.0, "beta2": 0.0, "eps": 0.1}
    ours = path(fedax.create("fadas", lr=DECAYING, bias_correction=True, **hyper), work=EQUAL)
    same(ours, fedavg(server=optax.amsgrad(0.05, b1=0.0, b2=0.0, eps=0.1)))
    same(path(fedax.create("fadas", lr=DECAYING, **hyper), work=EQUAL), ours)


def answers(weights: list[float], staleness: list[int]) -> fedax.Round:
    """What a server that does not wait knows of a step; the last place is empty."""
    weights, ids = np.array([*weights, 0.0]), np.array([*staleness, 99])
    there = np.arange(len(ids)) < len(staleness)
    known = {"index": 5, "t": 5, "key": None, "num_clients": 7, "steps": there, "total": weights.sum()}
    return fedax.Round(weights=weights, present=there, data_weights=weights, staleness=ids, **known)


@pytest.mark.parametrize(
    "hyper, staleness, rate",
    [
        ({}, [0, 1], 0.5),
        ({}, [2, 4], 0.5 / 4),
        ({"threshold": 4}, [2, 4], 0.5),
        ({"threshold": None}, [2, 4], 0.5),
        ({"shorten": "cap"}, [0, 2], 0.5),
        ({"shorten": "cap"}, [8, 0], 1 / 8),
    ],
)
def test_fadas_makes_shorter_steps_where_an_answer_is_late(hyper, staleness, rate):
    method = fedax.create("fadas", server_lr=0.5, beta1=0.0, beta2=0.0, eps=1e-12, **hyper)
    state = method.init(fedax.Vector(np.zeros(2)))
    after = method.server(state, fedax.Vector(np.array([3.0, -0.2])), answers([0.5, 0.5], staleness))
    np.testing.assert_allclose(after.x.tree, [rate, -rate], rtol=1e-10)


def test_fedasync_is_pulled_by_what_an_answer_counts():
    """α = .6 and a weight of ½: 1 − .3 of the model, and .3 of the client's."""
    method = fedax.create("fedasync", mixing=0.6)
    state = method.init(fedax.Vector(np.array([10.0])))
    after = method.server(state, 0.5 * fedax.Vector(np.array([2.0])), answers([0.5], [3]))
    np.testing.assert_allclose(after.tree, [0.7 * 10 + 0.3 * 2], rtol=1e-10)


def test_fedasync_of_one_client_that_mixes_all_is_its_model():
    alone = federation(BED.H[:1], BED.e[:1], np.ones(1))
    expected = descent(lambda x: GRADS[0](x, 0, 0), 3 * ROUNDS)[::3]
    same(path(fedax.create("fedasync", lr=LR, mixing=1.0, prox=0.0), data=alone, work=fedax.Steps(3)), expected)


def test_ca2fl_of_one_client_a_round_is_saga_of_updates():
    """One local step of full gradients, equal weights: x ← x − η (g_i − u_i + mean of u), then u_i ← g_i."""
    equal = federation(BED.H, BED.e, np.full(7, 1 / 7))
    order = [3, 1, 3, 6, 3]
    x, u, expected = X0, np.zeros((7, 4)), [X0]
    for i in order:
        g = GRADS[i](x, 0, 0)
        x = x - LR * (g - u[i] + u.mean(axis=0))
        u[i] = g
        expected.append(x)
    cohorts = fedax.Trace([[i] for i in order])
    options = {"data": equal, "participation": cohorts, "work": ONE}
    same(path(fedax.create("ca2fl", lr=LR), **options), np.stack(expected))


def test_ace_of_one_client_a_round_is_the_incremental_aggregated_gradient():
    """x ← x − η Σ p_i u_i, of which one is new; the server waits for nobody else."""
    order = [3, 1, 3, 6, 3]
    x, u, expected = X0, np.zeros((7, 4)), [X0]
    for i in order:
        u[i] = GRADS[i](x, 0, 0)
        x = x - LR * BED.p @ u
        expected.append(x)
    ours = path(fedax.create("ace", lr=LR), participation=fedax.Trace([[i] for i in order]))
    same(ours, np.stack(expected))


# Optax at the clients.


def test_optax_momentum_is_sgd_with_momentum():
    """Under unequal steps: FedNova-VR needs the solver's η and ‖a_i‖₁ too."""
    theirs = fedax.create("fednova-vr", solver=fedax.Optax(optax.sgd(LR, momentum=0.6)))
    same(path(theirs), path(fedax.create("fednova-vr", lr=LR, momentum=0.6)))


def test_clients_differ():
    """Otherwise the identities above would hold for wrong methods too."""
    assert max(np.abs(g(BED.optimum(), 0, 0)).max() for g in GRADS) > 0.5
    assert BED.p.std() > 0.02
