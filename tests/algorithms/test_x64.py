"""With jax_enable_x64 every number is a float64: no float32 gets into a method, a compressor or the wire.

A constant of a method that is made in float32 costs eight of sixteen digits, which the tolerances of other tests let
pass. JAX has to widen such a number before it meets a float64, so that is what is looked for in the traced programs.
Float32 numbers that only choose whole numbers, as in the draw of minibatches, are never widened.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import fedax
from fedax.engine import dry_run
from fedax.engine.dry_run import DryRun
from fedax.engine.fingerprint import is_program
from fedax.engine.make import make_job
from fedax.wire import averages

from .bed import BED, DATA, LR, QUADRATIC, UNEQUAL, X0, federation


def programs(method: fedax.Algorithm, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """The jaxprs of the start and of a round; nothing is compiled."""
    results: list[Any] = []
    monkeypatch.setattr(
        dry_run, "DryRun", lambda *given: results.append([each for each in given if is_program(each)]) or DryRun(*given)
    )
    dry_run._dry_run.cache_clear()
    with jax.enable_x64(True):
        data = options.pop("data", DATA)
        make_job(method, QUADRATIC, data, rounds=1, params=X0, **{"work": fedax.Steps(3)} | options)
    return results[-1]


def equations(program: Any) -> Iterator[Any]:
    """All equations of a jaxpr, with those of loops and branches."""
    for equation in getattr(program, "jaxpr", program).eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else [value]:
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield from equations(part)


def widened(result: list[Any]) -> list[str]:
    """The equations that make a float64 of a float32."""
    return [
        str(equation)
        for program in result
        for equation in equations(program)
        if equation.primitive.name == "convert_element_type"
        and equation.outvars[0].aval.dtype == np.float64
        and equation.invars[0].aval.dtype == np.float32
    ]


def test_a_number_that_is_narrow_is_found():
    """``half`` is 0.5 in float32, made as a careless method would."""
    with jax.enable_x64(True):
        half = lambda n: 1 / jax.numpy.asarray(n, np.int32)  # noqa: E731
        result = jax.make_jaxpr(lambda x: jax.lax.map(lambda y: half(2) * y, x))(np.zeros(3))
        wide = jax.make_jaxpr(lambda x: 0.5 * x)(np.zeros(3))
    assert widened([result]) and not widened([wide])


@pytest.mark.parametrize("name", fedax.available())
def test_methods_have_no_float32(name, monkeypatch):
    """With their defaults, and with unequal steps where they allow them."""
    method = fedax.create(name)
    assert not widened(programs(method, monkeypatch))
    if method.traits().steps == "any" and getattr(method, "probability", 1) is not None and name != "led":
        assert not widened(programs(method, monkeypatch, work=UNEQUAL))


COMPRESSORS = [
    fedax.RandomK(0.3),
    fedax.TopK(0.3),
    fedax.QSGD(3),
    fedax.Natural(),
    fedax.Sign(),
    fedax.PowerSGD(1),
    fedax.Rotated(fedax.RandomK(0.3)),
    fedax.ErrorFeedback(fedax.RandomK(0.3)),
]


@pytest.mark.parametrize("compress", COMPRESSORS, ids=lambda each: type(each).__name__)
def test_compressors_have_no_float32(compress, monkeypatch):
    """On the wire, and inside of a method, where their numbers are traced."""
    on_wire = compress if compress.keeps else fedax.ErrorFeedback(compress)  # SCAFFOLD's clients send changes
    assert not widened(programs(fedax.create("scaffold"), monkeypatch, compress=on_wire))
    unbiased = compress.omega(4) is not None and not compress.keeps
    name = "locodl" if unbiased else "ef21" if compress.alpha(4) is not None and not compress.keeps else ""
    if name:
        assert not widened(programs(fedax.create(name, compress=compress), monkeypatch))


AROUND = {
    "epochs": {"work": fedax.RandomEpochs(1, 3), "batch_size": 1},
    "steps": {"work": fedax.RandomSteps(4, 2, low=1, high=7)},
    "coin": {"work": fedax.GeometricSteps(3.0)},
    "deadline": {"work": fedax.Deadline(5.0, np.arange(1.0, 8.0))},
    "uniform": {"participation": fedax.Uniform(3)},
    "systematic": {"participation": fedax.Systematic(3)},
    "proportional": {"participation": fedax.Proportional(3)},
    "normalised": {"participation": fedax.UniformNormalized(3)},
    "poisson": {"participation": fedax.Poisson(0.4)},
    "cyclic": {"participation": fedax.Cyclic(7)},
    "dropout": {"participation": fedax.Dropout(fedax.Uniform(3), 0.3)},
    "guard": {"guard": fedax.Guard(largest=3.0)},
    "median": {"aggregate": averages.CoordinateMedian()},
    "trimmed": {"aggregate": averages.TrimmedMean(0.1)},
    "geometric": {"aggregate": averages.GeometricMedian()},
    "clipped": {"aggregate": averages.ClippedMean(1.0)},
    "private": {
        "data": federation(BED.H, BED.e, np.full(7, 1 / 7)),
        "participation": fedax.Poisson(0.5),
        "privacy": fedax.DP(clip=1.0, noise=1.0, delta=1e-5),
    },
}


@pytest.mark.parametrize("kind", AROUND)
def test_work_cohorts_and_the_wire_have_no_float32(kind, monkeypatch):
    for name in ("fedavg",) if kind == "clipped" else ("fedavg", "fednova"):  # what FedNova sends has no clip
        assert not widened(programs(fedax.create(name), monkeypatch, **AROUND[kind]))


def test_numbers_that_a_compressor_gives_have_sixteen_digits():
    """DASHA's 1/(1 + 2ω) with ω = d/k − 1 = 1/3, against the same number given by hand."""
    ends = []
    for hyper in ({}, {"alpha": 3 / 5}):
        method = fedax.create("dasha", lr=LR, compress=fedax.RandomK(0.75), **hyper)
        with jax.enable_x64(True):
            options = {"rounds": 5, "evaluate_every": 5, "params": X0, "work": fedax.Steps(3)}
            ends.append(np.asarray(fedax.simulate(method, QUADRATIC, DATA, **options).params))
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-14)
