"""Objects of settings: their repr can be pasted back, and their constructors refuse bad values."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
import fedax.algorithms
from fedax.contract.settings import Settings

from .test_compression import ALL as COMPRESSORS

L1, SGD, Uniform = fedax.L1(0.1), fedax.SGD(0.1), fedax.Uniform(2)

EXAMPLES = [
    fedax.L1(0.5), fedax.L1(np.float32(0.5)), fedax.L1(fedax.Piecewise(1.0, {900: 0.5, 3: jnp.asarray(0.25)})),
    fedax.ElasticNet(0.5, 1), fedax.Box(-1.0, np.array(0.5)), fedax.L1Ball(2.0), fedax.L2Ball(2.0),
    fedax.NonNegative(), fedax.Simplex(), fedax.Simplex(2.0), fedax.Unconstrained(),
    fedax.Piecewise(0.1, {}), fedax.PowerDecay(1.0, 2.0, 1 / 3), fedax.PowerDecay(1.0, cap=0.5),
    fedax.Cosine(0.5, 100), fedax.Cosine(0.5, 100, warmup=5), fedax.StepDecay(0.5, 10, 0.2, 3),
    SGD, fedax.SGD(0.1, 0.9, True, 0.5, 0.99), fedax.SGD(fedax.PowerDecay(1.0), regularizer=L1),
    fedax.Steps(5), fedax.Steps([1, 7]), fedax.Steps(np.arange(1, 2000)), fedax.Epochs(2.5), fedax.RandomEpochs(2, 5),
    fedax.RandomSteps(30, 20.0, 1, 96), fedax.GeometricSteps(10.0), fedax.GeometricSteps(10.0, 40),
    fedax.Deadline(10.0, 1.5), fedax.Deadline(10, [1, 2]), fedax.Deadline(10.0, np.array([0.5, 2.0])),
    fedax.Full(), Uniform, fedax.UniformNormalized(2), fedax.Proportional(2), fedax.Systematic(2),
    fedax.Trace([[0, 2], [1]]), fedax.Trace(np.arange(4).reshape(2, 2)), fedax.Dropout(Uniform, 0.5),
    fedax.Dropout(fedax.Full(), [0.5, 0.1]), fedax.Dropout(Uniform, available=[[True, False], [False, True]]),
    fedax.Range(0.01, 1), fedax.Range(-1, 1, 3, log=False), fedax.Patience(), fedax.Patience("val_auc", 3, 0.1, True),
    fedax.Place(), fedax.Place(chunk_size=8, client_memory="host", stream=True),
    fedax.Place(precision="float32"),
    fedax.Checkpoints("run"), fedax.Checkpoints("run", 10, None, 3, "test_accuracy", True),
    fedax.Poisson(0.5), fedax.Cyclic(3), fedax.Cyclic(3, 1), fedax.AdaptiveClip(), fedax.AdaptiveClip(0.9, 0.1, 2.0),
    fedax.DP(1.0, 0.5, 1e-5), fedax.DP(1.0, 0.5, 1e-5, 3.0, fedax.AdaptiveClip(0.9), True),
    fedax.DP(1, 1, 0.1, bands=3),
    fedax.Guard(), fedax.Guard(10.0, True), fedax.SecureSum(2.0), fedax.SecureSum(2.0, 16, 3),
    fedax.Faults([3, 1], times=-1.0), fedax.Faults(0.2, sends=1.0, seed=3),
    fedax.CoordinateMedian(), fedax.TrimmedMean(0.2), fedax.GeometricMedian(), fedax.ClippedMean(2.5),
    fedax.Plain(), fedax.Momentum(0.8, 0.5), fedax.SlowMo(0.7), fedax.Adaptive("yogi"),
    fedax.DelayedNesterov(0.5, every=8, spread=1.0),
    fedax.HalfNormal(2.0), fedax.Lognormal(1.0, 0.5, anew=True), fedax.Exponential(3.0), fedax.UniformBetween(1.0, 2.0),
    fedax.Clock(step=fedax.Lognormal(1.0, 0.5), up=[1e6, 2e6], server=0.5),
    fedax.PolynomialStaleness(1.0), fedax.HingeStaleness(2.0, after=3),
    fedax.Async(8), fedax.Async(8, 4, fedax.HingeStaleness(), 0.5, "idle", "corrected", 7),
    fedax.Weighted(), fedax.Normalized(), fedax.Normalized("mean"), fedax.Normalized(5.0), fedax.VRLSGD(0.1),
    *COMPRESSORS,
    fedax.FedAvg(SGD, server=fedax.SlowMo(0.7)), fedax.FedNovaVR(SGD, fedax.Normalized(2.0)),
    fedax.PersonalPart(fedax.FedAvg(SGD), "head.*"), fedax.PersonalPart(fedax.VRLSGD(0.1), ("a", "b"), 0.1, 3),
    fedax.FineTuned(fedax.FedAvg(SGD), 0.1, 20),
]  # fmt: skip

# Bases of the user's own classes; what holds functions or arrays of any size; and what a run makes.
NOT_SETTINGS = {
    "Aggregator", "Algorithm", "LocalMethod", "Participation", "Regularizer", "Schedule", "Solver", "Staleness", "Work",
    "FromFunction", "Optax", "OptaxServer", "Task", "FederatedData", "Vector", "Change", "Exchange",
    "Baselines", "Cohort", "Comparison", "Compressor", "Distribution", "Message", "Model", "Oracle", "Round", "Run",
    "Sweep", "Traits", "Arrivals", "show_progress",
}  # fmt: skip


def test_every_public_class_has_an_example():
    classes = {name for name in fedax.__all__ if inspect.isclass(kind := getattr(fedax, name))
               and not issubclass(kind, Exception)}  # fmt: skip
    assert {type(example).__name__ for example in EXAMPLES} == classes - NOT_SETTINGS


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_repr_can_be_pasted_back(example):
    again = eval(repr(example), vars(fedax) | {name: getattr(fedax, name) for name in fedax.__all__})
    assert type(again) is type(example) and repr(again) == repr(example)
    (leaves, form), (wanted, wanted_form) = (jax.tree.flatten(each) for each in (again, example))
    assert form == wanted_form and all(map(np.array_equal, leaves, wanted))


def test_a_repr_has_the_names_of_the_arguments_and_leaves_defaults_out():
    assert repr(fedax.Steps(np.array([1, 7]))) == "Steps(steps=[1, 7])"
    assert repr(fedax.SGD(0.1, prox=0.5)) == "SGD(lr=0.1, prox=0.5)"
    assert repr(fedax.Dropout(fedax.Trace([[0, 2], [1]]), [0.5, 0.25, 0.0])) == (
        "Dropout(of=Trace(cohorts=[[0, 2], [1]]), rate=[0.5, 0.25, 0.0])"
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_attributes_have_the_names_of_the_arguments(example):
    for name in inspect.signature(type(example)).parameters:
        # A method of FedAvg's kind has a function `server`, and keeps the argument as `optimizer`.
        assert (name == "server" and hasattr(example, "optimizer")) or not inspect.ismethod(getattr(example, name))


@pytest.mark.parametrize("name", fedax.available())
def test_a_method_made_by_name_has_a_repr_that_can_be_pasted_back(name):
    method = fedax.create(name)
    again = eval(repr(method), vars(fedax.algorithms) | {each: getattr(fedax, each) for each in fedax.__all__})
    assert type(again) is type(method) and repr(again) == repr(method)
    assert jax.tree.structure(again) == jax.tree.structure(method)
    assert jax.tree.leaves(again) == jax.tree.leaves(method)


def test_an_object_that_is_traced_has_a_repr():
    seen = []
    jax.jit(lambda sgd: seen.append(repr(sgd)) or sgd.lr)(fedax.SGD(0.1))
    assert seen[0].startswith("SGD(lr=") and "Trace" in seen[0]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        *((lambda v=v: fedax.SGD(v), "lr") for v in (0.0, -0.1, math.nan, "0.1", None, np.ones(2))),
        (lambda: fedax.SGD(0.1, momentum=1.0), "momentum"),
        (lambda: fedax.SGD(0.1, nesterov=True), "nesterov"),
        (lambda: fedax.SGD(0.1, nesterov=1), "nesterov"),
        (lambda: fedax.SGD(0.5, prox=4.0), "prox"),
        (lambda: fedax.SGD(0.1, decay=0.0), "decay"),
        (lambda: fedax.SGD(0.1, regularizer=0.1), "regularizer"),
        (lambda: fedax.Optax(optax.adam), "transformation"),
        (lambda: fedax.FromFunction(0.1), "function"),
        (lambda: fedax.Piecewise(0.0, {}), "value"),
        (lambda: fedax.Piecewise(1.0, [1, 2]), "at"),
        (lambda: fedax.PowerDecay(1.0, -1.0), "offset"),
        (lambda: fedax.PowerDecay(1.0, cap=0.0), "cap"),
        (lambda: fedax.Trace([[0], [[1]]]), "cohorts[1]"),
        (lambda: fedax.Trace([[0, [1]]]), "cohorts[0]"),
        (lambda: fedax.Trace([[2**40]]), "cohorts[0]"),
        (lambda: fedax.Dropout(fedax.Full(), fedax.PowerDecay(1.0)), "dropout.rate"),
        (lambda: fedax.Dropout(fedax.Full(), [0.1, "0.1"]), "dropout.rate"),
        (lambda: fedax.Dropout(fedax.Full(), [0.1, [0.1]]), "dropout.rate"),
        (lambda: fedax.Dropout(fedax.Full(), available=[[True], [True, False]]), "dropout.available"),
        (lambda: fedax.Range(0.0, 1.0), "low"),
        (lambda: fedax.Range(1.0, 1.0), "high"),
        (lambda: fedax.Range(0.1, 1.0, log="no"), "log"),
        (lambda: fedax.Range(0.1, fedax.PowerDecay(1.0)), "high"),
        (lambda: fedax.Checkpoints(3), "checkpoint.folder"),
    ],
)  # fmt: skip
def test_constructors_refuse_at_once(make, field):
    with pytest.raises(fedax.ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_settings_are_the_base_of_what_is_configured():
    for base in (fedax.Schedule, fedax.Regularizer, fedax.Solver, fedax.Work, fedax.Participation):
        assert issubclass(base, Settings)
