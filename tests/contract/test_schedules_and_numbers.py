"""Schedules have the values of their formulas; numbers are checked with one clear error."""

import dataclasses
import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.schedule import resolve, stepwise
from fedax.contract.settings import Settings
from fedax.errors import unknown
from fedax.numbers import check_count, check_number

PIECEWISE = fedax.Piecewise(0.05, {900: 0.5, 600: 0.2})


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (PIECEWISE, {0: 0.05, 599: 0.05, 600: 0.01, 899: 0.01, 900: 0.005, 10_000: 0.005}),
        (fedax.Piecewise(2.0, {}), {0: 2.0, 7: 2.0}),
        (fedax.Piecewise(2.0, {0: 0.5}), {0: 1.0}),
        (fedax.PowerDecay(1.0), {0: 1.0, 3: 0.5}),
        (fedax.PowerDecay(2.0, offset=8.0, power=1 / 3), {0: 1.0, 19: 2 / 3}),
        (fedax.PowerDecay(6.0, 2.0, 2.0), {1: 6 / 9}),
        (fedax.PowerDecay(8.0, power=1.0, cap=2.0), {0: 2.0, 3: 2.0, 7: 1.0}),
        (fedax.FromFunction(lambda t: 3.0 * t), {0: 0.0, 4: 12.0}),
    ],
)
def test_values_plain_and_traced(schedule, points):
    for t, value in points.items():
        assert float(schedule(t)) == pytest.approx(value, rel=1e-6)
        assert float(jax.jit(lambda s, t: s(t))(schedule, t)) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "reached"),
    [
        (fedax.PowerDecay(8.0, 4.0, 0.5), (4.0,)),
        (fedax.PowerDecay(8.0, 4.0, 0.5, cap=2.0), (2.0,)),
        (fedax.Piecewise(0.5, {3: 3.0, 6: 0.1}), (0.5, 1.5, 0.15)),
        (fedax.Piecewise(0.5, {0: 3.0}), (1.5,)),
        (fedax.PowerDecay(jnp.array([1.0, 2.0])), ()),  # of a sweep
        (fedax.FromFunction(lambda t: 3.0 * t), ()),
    ],
)
def test_a_schedule_is_checked_by_the_values_that_it_takes(schedule, reached):
    known = schedule.reached() if hasattr(schedule, "reached") else ()
    assert known == pytest.approx(reached)
    for t, value in zip((0, 3, 6), reached, strict=False):
        assert float(schedule(t)) == pytest.approx(value, rel=1e-6)
    if reached:
        largest = max(reached)
        assert check_number("x", schedule, 0, largest) is schedule
        with pytest.raises(fedax.ConfigError, match=rf"it reaches {largest:.4g}; give values in \[0, "):
            check_number("x", schedule, 0, largest, open_high=True)


def test_the_constants_of_a_schedule_are_swept_by_vmap():
    values = jax.vmap(lambda v, f: fedax.Piecewise(v, {2: f})(2))(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.1]))
    np.testing.assert_allclose(values, [0.5, 0.2], rtol=1e-6)


class Inner(eqx.Module):
    lr: Any


class Method(eqx.Module):
    lr: Any = stepwise()
    momentum: Any = 0.9
    inner: Any = None
    off: Any = None


def test_resolve_replaces_schedules_everywhere_but_stepwise_fields():
    method = Method(
        lr=fedax.PowerDecay(1.0, power=1.0), momentum=PIECEWISE, inner=Inner(fedax.Piecewise(4.0, {3: 0.5}))
    )
    now = resolve(method, 600)
    assert float(now.momentum) == pytest.approx(0.01) and float(now.inner.lr) == 2.0 and now.off is None
    assert float(now.lr(3)) == 0.25
    assert Method(lr=0.5).lr(99) == 0.5 and resolve(Method(lr=0.5), 3).lr(0) == 0.5
    assert resolve(now, 5).lr(1) == 0.5  # resolving twice changes nothing


@pytest.mark.parametrize("at", [{-1: 0.5}, {1.5: 0.5}, {3: 0.0}, {3: -1.0}, {"3": 0.5}])
def test_piecewise_refuses(at):
    with pytest.raises(fedax.ConfigError, match=r"^at"):
        fedax.Piecewise(1.0, at)


@pytest.mark.parametrize("rounds", [0, 3, 10.0, True, 2**31])
def test_cosine_refuses(rounds):
    with pytest.raises(fedax.ConfigError, match=rf"^rounds = {rounds}: .* at least 4 and less than 2\*\*31"):
        fedax.Cosine(1.0, rounds, warmup=3)
    assert float(fedax.Cosine(1.0, 2**31 - 1, warmup=3)(3)) == 1


@pytest.mark.filterwarnings("error")
def test_whole_numbers_of_numpy_are_those_of_python():
    four = np.int64(4)
    for made, wanted in [
        (fedax.Cosine(1.0, four, warmup=np.int8(3)), fedax.Cosine(1.0, 4, warmup=3)),
        (fedax.Piecewise(1.0, {four: 0.5}), fedax.Piecewise(1.0, {4: 0.5})),
        (fedax.create("ifca", lr=1.0, clusters=four), fedax.create("ifca", lr=1.0, clusters=4)),
        (fedax.Cyclic(four, seed=four), fedax.Cyclic(4, seed=4)),
        (fedax.PowerSGD(four), fedax.PowerSGD(4)),
        (fedax.GeometricMedian(steps=four), fedax.GeometricMedian(steps=4)),
        (fedax.DP(1.0, 1.0, np.float64(0.1), bands=four), fedax.DP(1.0, 1.0, 0.1, bands=4)),
        (fedax.SecureSum(threshold=four), fedax.SecureSum(threshold=4)),
        (fedax.Patience("val_loss", four), fedax.Patience("val_loss", 4)),
        (fedax.Range(0.1, 1.0, points=four), fedax.Range(0.1, 1.0, points=4)),
        (fedax.tasks.LoRA(rank=four), fedax.tasks.LoRA(rank=4)),
        (fedax.metrics.AUC(bits=four), fedax.metrics.AUC(bits=4)),
        (fedax.metrics.CalibrationError(bins=four), fedax.metrics.CalibrationError(bins=4)),
    ]:
        assert repr(made) == repr(wanted) and jax.tree.structure(made) == jax.tree.structure(wanted)


def test_every_number_that_is_compiled_in_is_made_one_of_python():
    """By a converter, or in an ``__init__`` of the class's own."""

    def kinds(of):
        return {kind for each in of.__subclasses__() for kind in (each, *kinds(each))}

    [getattr(fedax, name) for name in fedax.__all__]  # loads all of them
    found = {
        f"{kind.__name__}.{field.name}": "converter" in field.metadata or "def __init__" in inspect.getsource(kind)
        for kind in kinds(Settings)
        if kind.__module__.startswith("fedax.")
        for field in dataclasses.fields(kind)
        if field.metadata.get("static") and ("int" in str(field.type) or "float" in str(field.type))
    }
    assert {"DP.bands", "PowerSGD.rank", "Uniform.size"} <= found.keys()
    assert [name for name, right in found.items() if not right] == []


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.25), np.array(0.1), jnp.ones(()), PIECEWISE])
def test_numbers_in_range_pass_unchanged(value):
    assert check_number("lr", value, 0, 1, open_low=True) is value


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (0, {"open_low": True}),
        (-0.1, {}),
        (1.0, {"open_high": True}),
        (1.1, {}),
        (float("nan"), {}),
        (np.array([0.5, np.inf]), {}),
        (np.array([0.5, 0.7]), {}),
        (True, {}),
        ("0.1", {}),
        (None, {}),
        ([0.1], {}),
        (0.5j, {}),
    ],
)
def test_numbers_out_of_range_name_field_value_and_way_out(value, options):
    with pytest.raises(fedax.ConfigError) as caught:
        check_number("lr", value, 0, 1, **options)
    assert caught.value.field == "lr" and caught.value.value is value and isinstance(caught.value, fedax.FedaxError)
    brackets = "(" if options.get("open_low") else "[", ")" if options.get("open_high") else "]"
    assert str(caught.value) == f"lr = {value!r}: give a number in {brackets[0]}0, 1{brackets[1]}"


def test_infinity_is_written_as_such_and_never_allowed():
    with pytest.raises(fedax.ConfigError, match=r"lr = inf: give a number in \(0, ∞\)"):
        check_number("lr", float("inf"), 0, open_low=True)


@pytest.mark.parametrize("value", [0, -1, 2.0, 2.5, True, "3", None, np.float64(3), float("inf")])
def test_counts_refuse(value):
    with pytest.raises(fedax.ConfigError, match=r"rounds = .*: give a whole .* at least 1"):
        check_count("rounds", value)


def test_counts_become_plain_integers():
    got = check_count("rounds", np.int64(3))
    assert got == 3 and type(got) is int and check_count("seed", 0, 0) == 0


def test_errors_shorten_long_values_and_name_the_nearest_choice():
    assert len(str(fedax.ConfigError("data", np.arange(10_000).tolist(), "give less"))) < 300
    assert "'fedprox'? There are: fedavg, fedprox" in str(unknown("method", "FedProxx", ["fedprox", "fedavg"]))
    assert "no such name. There are: a, b" in str(unknown("method", 3, ["b", "a"]))
