"""Every method under every design of cohorts, with weights that differ much: what no cohort may change."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.algorithms.fedavg import Normalized
from fedax.federation.participation import Cohort

from .. import LAST_BITS, mostly_long
from .bed import federation

N, SIZE, ROUNDS = 50, 5, 8000
P = np.random.default_rng(0).lognormal(sigma=2.0, size=N)
P = P / P.sum()  # the largest is .25, and of uniform cohorts Σω is .04 to 4.7
IDENTICAL = federation(np.tile(np.diag([1.0, 0.5]), (N, 1, 1)), np.tile([1.0, -1.0], (N, 1)), P)
UNLIKE = federation(
    np.tile(np.diag([1.0, 0.5]), (N, 1, 1)), np.random.default_rng(1).normal([1.0, -1.0], 0.5, (N, 2)), P
)
OPTIMUM = np.array([1.0, -2.0])  # of the identical clients
TASK = fedax.tasks.quadratic(2)
DESIGNS = {
    "full": fedax.Full(),
    "uniform": fedax.Uniform(SIZE),
    "uniform-normalized": fedax.UniformNormalized(SIZE),
    "proportional": fedax.Proportional(SIZE),
    "systematic": fedax.Systematic(SIZE),
    "trace": fedax.Trace(np.random.default_rng(2).permuted(np.tile(np.arange(N), (ROUNDS, 1)), axis=1)[:, :SIZE]),
    "dropout, full": fedax.Dropout(fedax.Full(), 0.5),
    "dropout, uniform": fedax.Dropout(fedax.Uniform(SIZE), 0.3),
    "dropout, systematic, by client": fedax.Dropout(fedax.Systematic(SIZE), np.linspace(0, 0.8, N)),
    "available": fedax.Dropout(fedax.Uniform(SIZE), available=np.random.default_rng(3).random((ROUNDS, N)) < 0.7),
}
HYPER = {
    **{method: {"eps": 1.0, "server_lr": 1.0} for method in ("fedadagrad", "fedadam", "fedyogi", "fadas")},
    **{method: {"eps": 1.0} for method in ("fedda", "fedda-mvr", "fedda-distributed")},
    "local-adapt": {"lr": 0.3, "server_lr": 0.3, "eps": 1.0},
    "local-amsgrad": {"lr": 0.05, "eps": 1.0, "beta1": 0.5},
    "mb-storm": {"lr": 0.2},
}


class Replay(fedax.Participation):
    """Cohorts that were drawn before: arrays [rounds, places], so that all designs share one program."""

    ids: Any
    weights: Any

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        return Cohort(jnp.asarray(self.ids)[index], jnp.asarray(self.weights, weights.dtype)[index])

    def places(self, num_clients: int) -> int:
        return np.shape(self.ids)[1]


@functools.cache
def replayed(design: str) -> Replay:
    bound = DESIGNS[design].bind(P)
    keys = jax.random.split(jax.random.key(7), ROUNDS)
    drawn = jax.jit(jax.vmap(lambda key, index: bound.draw(key, jnp.asarray(P), index)))(keys, jnp.arange(ROUNDS))
    ids, weights = map(np.asarray, drawn)
    room = ((0, 0), (0, N - ids.shape[1]))
    return Replay(np.pad(ids, room, constant_values=N).astype(np.int32), np.pad(weights, room))


def made(method: str) -> fedax.Algorithm:
    return fedax.create(method, **({"lr": 0.05} | HYPER.get(method, {})))


def ends(method: str, start: np.ndarray, rounds: int) -> dict[str, np.ndarray]:
    """Where the method ends by each design, in float64; all clients are the same."""
    sweep = fedax.sweep(
        lambda design: {"algorithm": made(method), "participation": replayed(design)},
        {"design": list(DESIGNS)},
        TASK,
        IDENTICAL,
        rounds=rounds,
        work=fedax.Steps(3),
        evaluate_every=rounds,
        params=start,
    )
    assert sweep.programs == 1
    return {design: np.asarray(runs[0].params) for design, runs in zip(DESIGNS, sweep.runs, strict=True)}


ALL_CLIENTS = [name for name in fedax.available() if fedax.create(name).traits().cohorts == "all"]


SAMPLED = sorted(set(fedax.available()) - set(ALL_CLIENTS))


QUICK = ("ce-lsgd", "fedda-mvr", "local-amsgrad", "scaffold")  # end after half as many rounds


@pytest.mark.parametrize("method", mostly_long(SAMPLED, *QUICK))
def test_identical_clients_end_where_full_participation_does(method):
    # A client of weight 1e-5 is drawn once in 20,000 rounds, if as often as it weighs, and keeps as long what it has.
    keeps = bool(jax.tree.leaves(made(method).init_client(fedax.Vector(np.zeros(2)))))
    rounds = ROUNDS // 2 if method in QUICK else ROUNDS
    result = ends(method, OPTIMUM + 1e-5, rounds) if keeps else ends(method, OPTIMUM + 3.0, rounds // 4)
    for design, x in result.items():
        np.testing.assert_allclose(x, result["full"], rtol=0, atol=1e-9, err_msg=design)
    np.testing.assert_allclose(result["full"], OPTIMUM, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ALL_CLIENTS)
def test_methods_for_all_clients_refuse_every_cohort(method):
    for participation in (fedax.Systematic(SIZE), fedax.Uniform(SIZE), fedax.Dropout(fedax.Full(), 0.5)):
        with pytest.raises(fedax.ConfigError, match="full participation only"):
            fedax.simulate(made(method), TASK, IDENTICAL, rounds=1, work=fedax.Steps(3), participation=participation)


BAD = np.argsort(P)[-9::4].tolist()  # one of the heaviest clients, and two lighter ones
SUMS = {  # Σ p_i of what clients keep, and what they keep
    "scaffold": lambda server, kept: (server.c, kept),
    "scaffold-m": lambda server, kept: (server.c, kept),
    "scaffold-m-vr": lambda server, kept: (server.c, kept),
    "fednova-vr": lambda server, kept: (server.h, kept),
    "feddyn": lambda server, kept: (server.h, kept),
    "ca2fl": lambda server, kept: (server.h, kept),
    "ace": lambda server, kept: (server.h, kept),
    "area": lambda server, kept: (server, kept),
}


@pytest.mark.parametrize(
    "method, watched",
    # A watched run has rounds in which nobody is left out, too; the plain form is here for each kind of sum.
    [*((method, True) for method in SUMS), ("scaffold-m-vr", False), ("ace", False), ("area", False)],
    ids=lambda value: value if isinstance(value, str) else "guard and faults" if value else "plain",
)
def test_the_server_has_the_sum_of_what_all_clients_keep(method, watched):
    """Exactly, whoever is drawn, drops out, or is left out by a guard."""
    options = {"guard": True, "faults": fedax.Faults(BAD, sends=np.nan)} if watched else {}
    for design in DESIGNS:
        run = fedax.simulate(
            fedax.create(method, lr=0.05),
            TASK,
            UNLIKE,
            rounds=25,
            evaluate_every=25,
            work=fedax.Steps(3),
            participation=replayed(design),
            **options,
        )
        server, kept = (value.tree for value in SUMS[method](run.state, run.memory))
        np.testing.assert_allclose(server, P @ np.asarray(kept), rtol=0, atol=1e-14, err_msg=design)
        assert np.abs(server).max() > 1e-3
        assert not watched or run.history["left_out"][-1] > 0


@pytest.mark.parametrize(
    "name, where", [("proportional", "device"), *(("dropout, systematic, by client", to) for to in ("device", "host"))]
)
def test_the_real_designs_keep_the_sum_too(name, where):
    """With the participations themselves, in both places of client memory."""
    run = fedax.simulate(
        fedax.create("scaffold-m", lr=0.05),
        TASK,
        UNLIKE,
        rounds=10,
        evaluate_every=10,
        work=fedax.RandomSteps(3, 1, 1, 5),
        participation=DESIGNS[name],
        guard=True,
        faults=fedax.Faults(BAD, sends=np.inf),
        place=fedax.Place(client_memory=where),
    )
    kept = run.memory.tree if where == "device" else run.memory[np.arange(N)].tree
    np.testing.assert_allclose(run.state.c.tree, P @ np.asarray(kept), rtol=0, atol=LAST_BITS)
    assert sum(run.left_out.values()) > 0


def test_the_mean_of_the_steps_is_of_those_who_came():
    """A cohort of random size has places for more, which count for nothing."""
    steps, present = jnp.array([4, 9, 7]), jnp.array([True, True, False])
    round = SimpleNamespace(steps=steps, present=present)
    assert Normalized("mean").effective_steps(None, round) == 6.5
