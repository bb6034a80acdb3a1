"""What methods say of themselves as data: it is what runs show, what is refused, and what the docs say."""

import math

import numpy as np
import pytest

import fedax
from fedax.contract.algorithm import Traits
from fedax.contract.hyper import choice, hyper, rules
from fedax.engine.footprint import footprints

from .. import FORMS, mostly_long
from .bed import SCALAR, AnySteps, federation, limit
from .cases import CASES
from .test_cohorts import HYPER

METHODS = list(fedax.available())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name):
    traits = fedax.create(name).traits()
    assert traits.name and any(year in traits.source for year in (*map(str, range(2016, 2030)), "FedDA"))
    assert traits.cohorts in ("any", "all") and traits.steps in ("any", "equal") and traits.limit in ("F", "steps", "")
    assert traits.exact in ("always", "all clients", "equal steps", "never")
    assert traits.limit or traits.exact == "never"


# What a method sends, keeps and computes: the figures of the cases, which runs are held to.


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.cost])
def test_footprints_are_what_a_round_costs(name):
    case = CASES[name]
    cost, result = case.cost, footprints(fedax.create(case.method, lr=0.05, **case.hyper, **case.own))
    cohort, request = result.cohort, result.cohort.asked
    assert (*cohort.down, *cohort.up) == (cost.down, cost.numbers_down, cost.up, cost.numbers_up)
    assert (request.batches / 3 + request.step_batches, request.passes) == (cost.gradients, cost.passes)
    assert request.loops == cost.loops
    warmup = result.warmup.asked
    assert (-warmup.passes if warmup.passes else warmup.batches) == cost.warmup
    assert result.one.asked.step_batches == (2 if case.picks else 0)


# Where a method ends: three quadratics of one dimension, small rates, full gradients.

H, E, P, TAU = np.array([0.4, 0.7, 1.0]), np.array([1.0, -2.0, 3.0]), np.array([0.2, 0.5, 0.3]), (1, 5, 3)
DATA = federation(H[:, None, None], E[:, None], P)


def optimum(weights: np.ndarray) -> float:
    return float(weights @ E / (weights @ H))


LOCAL = ("scaffnew", "compressed-scaffnew", "locodl")
MORE = {"led": {"b": 0.2}} | {name: {"probability": 0.2} for name in LOCAL}  # else these need equal steps
RATE = {"local-adapt": 0.03, "local-amsgrad": 0.02}
ROUNDS = {"fedpd": 20_000}  # else 5,000


def distances(name: str, tau: object, target: float) -> tuple[float, float]:
    """From the target, for a rate and for its half, as a share of how far the clients' optima are apart."""
    hyper, lr = HYPER.get(name, {}) | MORE.get(name, {}), RATE.get(name, 0.02)
    methods = [fedax.create(name, **hyper | {"lr": rate}) for rate in (lr, lr / 2)]
    only = fedax.create(name).traits().steps == "equal"
    work = fedax.Steps(tau) if only else AnySteps(tau, clients=3)
    options = {"task": SCALAR, "data": DATA, "work": work, "params": np.zeros(1)}
    first, second = (abs(float(limit(method, ROUNDS.get(name, 5_000), **options)[0]) - target) for method in methods)
    return first / np.ptp(E / H), second / np.ptp(E / H)


@pytest.mark.parametrize("name", mostly_long(METHODS, *FORMS, "ef21", "locodl"))
def test_methods_end_where_they_say(name):
    """With all clients: what is exact, for all steps that are allowed; what drifts, half as far for half the rate."""
    traits = fedax.create(name).traits()
    if traits.exact != "never":
        steps = 3 if traits.steps == "equal" or traits.exact == "equal steps" else TAU
        assert max(distances(name, steps, optimum(P))) < 1e-9
        if traits.exact == "equal steps":
            assert min(distances(name, TAU, optimum(P))) > 0.1
        return
    equal = distances(name, 3, optimum(P))
    assert min(equal) > 1e-5
    if traits.limit:
        steps = 3 if traits.steps == "equal" else TAU
        far, near = distances(name, steps, optimum(P if traits.limit == "F" else P * TAU))
        assert far < 0.1 and near / far == pytest.approx(0.5, abs=0.1)
    if traits.limit == "steps":
        assert min(distances(name, TAU, optimum(P))) > 0.1


# What is declared is refused.


@pytest.mark.parametrize("name", METHODS)
def test_what_a_field_does_not_allow_is_refused(name):
    declared = rules(fedax.create(name))
    given = [field for field in declared if field in fedax.hyperparameters(name)]
    for field in given:
        rule = declared[field]
        bad = (
            ["no such choice", 3.5] if rule.choices else [0, 1.5] if rule.allowed.startswith("a whole") else [math.nan]
        )
        if rule.allowed[0] in "([":
            low = float(rule.allowed[1:].split(",")[0])
            bad += [low if rule.allowed[0] == "(" else low - 1e-6, "0.1"]
        for value in bad + ([] if rule.off else [None]):
            if value is None and field == "alpha":  # of methods by w and c: 0.1
                continue
            with pytest.raises(fedax.ConfigError) as caught:
                fedax.create(name, **{field: value})
            assert caught.value.field == field
    assert "lr" in given or hasattr(fedax.create(name), "solver") or "base" in fedax.hyperparameters(name)


class Fussy(fedax.Algorithm):
    """It takes all clients and equal steps, and nothing of it can be traced."""

    lr: float = hyper(0.1, "(0, 1]")
    form: str = choice("a", "a", "b")

    def traits(self):
        return Traits("Fussy", cohorts="all", steps="equal")

    def init(self, x):
        raise AssertionError("this was traced")


@pytest.mark.parametrize(
    "hyper, options, message",
    [
        ({}, {"participation": fedax.Uniform(2)}, "'2 of 3 clients': Fussy .*for full"),
        ({}, {"guard": True}, "'a guard may .*': Fussy .*for full"),
        ({}, {"work": fedax.Steps(TAU)}, "'unequal local steps': Fussy .*for equal"),
        ({"lr": 2.0}, {}, r"lr = 2.0: give a number in \(0, 1\]"),
        ({"form": "c"}, {}, "form = 'c': .*There are: a, b"),
    ],
)
def test_ones_own_method_is_held_to_what_it_says_before_it_is_traced(hyper, options, message):
    options = {"work": fedax.Steps(2)} | options
    with pytest.raises(fedax.ConfigError, match=message):
        fedax.simulate(Fussy(**hyper), fedax.tasks.quadratic(1), DATA, rounds=1, **options)
