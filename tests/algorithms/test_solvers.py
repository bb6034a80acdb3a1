"""Local solvers: accumulation vectors and their length, and which optimizers are linear."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.contract.local import check_linear
from tests.references import fedavg_family as fed
from tests.references import quadratics as quad

from .. import LAST_BITS
from .bed import DATA, QUADRATIC, X0, path
from .cases import SOLVERS

RATE = 0.05
CLOSED = {
    "sgd": ({}, lambda t: quad.sgd_norm(t)),
    "momentum": ({"momentum": 0.9}, lambda t: quad.momentum_norm(t, 0.9)),
    "nesterov": ({"momentum": 0.9, "nesterov": True}, lambda t: quad.nesterov_norm(t, 0.9)),
    "prox": ({"prox": 4.0}, lambda t: quad.proximal_norm(t, 4 * RATE)),
    "prox-one": ({"prox": 1 / RATE}, lambda t: 1.0),
    "decay": ({"decay": 0.7}, lambda t: quad.decayed_norm(t, 0.7)),
    "all": (SOLVERS["all"], lambda t: quad.recursion_norm(t, RATE, **SOLVERS["all"])),
    "momentum-prox": ({"momentum": 0.5, "prox": 8.0}, lambda t: quad.recursion_norm(t, RATE, momentum=0.5, prox=8.0)),
}
_static = jax.jit(lambda solver, steps: solver.norm(steps), static_argnums=1)
_traced = jax.jit(lambda solver, steps: solver.norm(steps))


@pytest.mark.parametrize("hyper, norm", CLOSED.values(), ids=CLOSED.keys())
def test_norm_is_the_closed_form(hyper, norm):
    """For a number of steps that is known when compiling, and for one that is not."""
    solver = fedax.SGD(RATE, **hyper)
    for steps in (1, 2, 5, 17):
        np.testing.assert_allclose(_static(solver, steps), norm(steps), rtol=1e-5)
        np.testing.assert_allclose(_traced(solver, steps), norm(steps), rtol=1e-5)


def test_norm_of_optax_is_that_of_sgd():
    momentum = fedax.Optax(optax.sgd(RATE, momentum=0.9))
    np.testing.assert_allclose(momentum.rate(), RATE, rtol=1e-6)
    np.testing.assert_allclose(_static(momentum, 5), quad.momentum_norm(5, 0.9), rtol=1e-5)
    np.testing.assert_allclose(_traced(momentum, 5), quad.momentum_norm(5, 0.9), rtol=1e-5)


def test_norm_takes_arrays_of_hyper_parameters():
    """A sweep is a vmap over the solver."""
    solvers = jax.tree.map(lambda *both: jnp.array(both), fedax.SGD(0.1, momentum=0.5), fedax.SGD(0.2, momentum=0.9))
    norms = jax.vmap(lambda solver: solver.norm(5))(solvers)
    np.testing.assert_allclose(norms, [quad.momentum_norm(5, 0.5), quad.momentum_norm(5, 0.9)], rtol=1e-5)


@pytest.mark.parametrize("hyper", SOLVERS.values(), ids=SOLVERS.keys())
def test_steps_accumulate_gradients_as_the_reference_does(hyper):
    """Δ = −η Σ_k a[k] g_k for gradients that have nothing to do with each other, far from zero."""
    solver = fedax.SGD(RATE, **hyper)
    x = fedax.Vector(jnp.array([3.0, -1.0]))
    gradients = jnp.asarray(np.random.default_rng(1).normal(size=(6, 2)), float)

    @jax.jit
    def change(gradients):
        def step(state, k):
            y, buffer = state
            return solver.step(y, buffer, fedax.Vector(gradients[k]), k, x), None

        (y, _), _ = jax.lax.scan(step, (x, solver.init(x)), jnp.arange(6))
        return (y - x).tree

    a = fed.accumulation(6, RATE, **hyper)
    np.testing.assert_allclose(change(gradients), -RATE * a @ np.asarray(gradients), rtol=1e-4, atol=1e-6)


LINEAR = {
    **{name: fedax.SGD(RATE, **hyper) for name, hyper in SOLVERS.items()},
    "schedule": fedax.SGD(fedax.Piecewise(RATE, {3: 0.1}), momentum=0.9),
    "large": fedax.SGD(10.0, momentum=0.99),
    "small": fedax.SGD(1e-6),
    "optax": fedax.Optax(optax.sgd(RATE, momentum=0.9, nesterov=True)),
    "optax-schedule": fedax.Optax(optax.sgd(optax.exponential_decay(RATE, 1, 0.8))),
}
NONLINEAR = {
    "adam": optax.adam(RATE),
    "small-adam": optax.adam(1e-7),
    "trust": optax.chain(optax.scale_by_trust_ratio(), optax.scale(-RATE)),
    "sign": optax.sign_sgd(RATE),
    "clip": optax.chain(optax.clip(1.0), optax.sgd(RATE)),
    "clip-norm": optax.chain(optax.clip_by_global_norm(5.0), optax.sgd(RATE)),
    "weight-decay": optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(RATE)),
}


@pytest.mark.parametrize("solver", LINEAR.values(), ids=LINEAR.keys())
def test_linear_solvers_are_accepted(solver):
    check_linear(solver)


@pytest.mark.parametrize("transformation", NONLINEAR.values(), ids=NONLINEAR.keys())
def test_other_optimizers_are_refused_by_normalised_averaging(transformation):
    solver = fedax.Optax(transformation)
    for name in ("fednova", "fednova-vr"):
        with pytest.raises(fedax.ConfigError, match=r"solver = .*linear"):
            fedax.create(name, solver=solver)
    assert fedax.create("fedavg", solver=solver).solver is solver


WITH_NUMBERS = {
    "sgd": (optax.sgd, {"momentum": 0.9, "nesterov": True}),
    "adam": (optax.adam, {"b1": 0.8, "eps": 1e-3}),
    "adamw": (optax.adamw, {"weight_decay": 0.01}),
}


@pytest.mark.parametrize(("make", "given"), WITH_NUMBERS.values(), ids=WITH_NUMBERS)
def test_learning_rates_of_optax_sweep_in_one_program(make, given):
    """At the clients and at the server; and give what they give where they are compiled in."""

    def method(rate, of_server):
        server = fedax.OptaxServer(make, learning_rate=of_server, **given)
        return fedax.create("fedavg", solver=fedax.Optax(make, learning_rate=rate, **given), server=server)

    space, options = {"rate": [0.01, 0.05], "of_server": [0.5, 0.8]}, {"rounds": 3, "work": fedax.Steps(3)}
    sweep = fedax.sweep(method, space, QUADRATIC, DATA, params=X0, evaluate_every=3, **options)
    assert sweep.programs == 1
    ends = [run.params for (run,) in sweep.runs]
    assert len({tuple(end) for end in ends}) == 4
    for point, end in zip(sweep.points, ends, strict=True):
        np.testing.assert_allclose(path(method(**point), **options)[-1], end, 1e-5, LAST_BITS)
    solver, server = fedax.Optax(make(0.05, **given)), fedax.OptaxServer(make(0.5, **given))
    ready = path(fedax.create("fedavg", solver=solver, server=server), **options)
    np.testing.assert_allclose(path(method(0.05, 0.5), **options), ready, LAST_BITS, LAST_BITS)


def test_optax_with_numbers_tells_them_and_refuses_others():
    solver = fedax.Optax(optax.sgd, learning_rate=0.1, nesterov=True, momentum=0.9)
    assert repr(solver) == "Optax(transformation=optax.sgd, learning_rate=0.1, momentum=0.9, nesterov=True)"
    assert repr(eval(repr(solver), {"Optax": fedax.Optax, "optax": optax})) == repr(solver)
    check_linear(solver)
    assert jax.tree.leaves(solver) == [0.1, 0.9]
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), fedax.Vector({"w": np.ones(2)}))
    step, _ = solver.step(half, solver.init(half), half, 0, half)
    assert step.tree["w"].dtype == jnp.bfloat16
    for wrong in (
        lambda: fedax.Optax(optax.sgd, rate=0.1),
        lambda: fedax.Optax(optax.sgd(0.1), momentum=0.9),
        lambda: fedax.Optax(lambda rate: rate, rate=0.1),
        lambda: fedax.create("fedavg", server=fedax.OptaxServer(optax.sgd, rate=0.1)),
    ):
        with pytest.raises(fedax.ConfigError, match="transformation"):
            wrong()
