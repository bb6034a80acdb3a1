"""Clocks: distributions against scipy.stats, draws that depend on nothing else, periods against a literal search."""

import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.errors import ConfigError, DataError
from fedax.federation.census import Census
from fedax.federation.clock import DISTRIBUTIONS, uniform

DRAWN = {
    "half-normal": (fedax.HalfNormal(3.0), scipy.stats.halfnorm(scale=3.0)),
    "lognormal": (fedax.Lognormal(2.0, 0.7), scipy.stats.lognorm(0.7, scale=2.0)),
    "exponential": (fedax.Exponential(0.3), scipy.stats.expon(scale=0.3)),
    "uniform-between": (fedax.UniformBetween(1.0, 5.0), scipy.stats.uniform(1.0, 4.0)),
}


def census(n, names=()):
    return Census(np.ones(n, int), np.full(n, 1 / n), None, tuple(names))


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_draws_have_the_distribution_that_scipy_has(name):
    drawn, want = DRAWN[name]
    u = np.array([2.0**-53, 1e-9, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9])
    np.testing.assert_allclose(drawn.quantile(u), want.ppf(u), rtol=1e-8, atol=1e-12)
    assert np.isfinite(drawn.quantile(np.array([1 - 2.0**-53]))).all()
    for anew in (False, True):
        bound = fedax.Clock(type(drawn)(**{**drawn.arguments(), "anew": anew})).bind(census(4000), seed=3)
        seconds = bound.durations(np.arange(3)[:, None], np.arange(4000), 1, 0, 0)
        assert seconds.shape == (3, 4000) and (len(np.unique(seconds, axis=0)) == 3) == anew
        assert scipy.stats.kstest(seconds[1], want.cdf).pvalue > 0.01


def test_random_numbers_are_uniform_and_independent_of_neighbours():
    u = uniform(0, 0, np.arange(200)[:, None], np.arange(1000))
    assert scipy.stats.kstest(u.ravel(), "uniform").pvalue > 0.01
    for other in (
        uniform(1, 0, np.arange(200)[:, None], np.arange(1000)),  # another seed
        uniform(0, 1, np.arange(200)[:, None], np.arange(1000)),  # another quantity
        np.roll(u, 1, 0),  # the piece of work before
        np.roll(u, 1, 1),  # the client before
    ):
        assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(u.size)
    assert len(np.unique(uniform(7, 2, np.arange(10**6)))) == 10**6


def test_a_draw_depends_on_seed_quantity_work_and_client_alone():
    each = fedax.Exponential(1.0, anew=True)
    clock = fedax.Clock(step=each, up=fedax.Lognormal(100.0, 1.0), down=each, latency=each)
    bound = clock.bind(census(50), seed=5)
    many = bound.durations(np.arange(20)[:, None], np.arange(50), 3, 10, 20)
    some = bound.durations(np.array([4, 19, 4]), np.array([7, 0, 7]), np.array([3, 3, 3]), 10, 20)
    assert some.tolist() == [many[4, 7], many[19, 0], many[4, 7]]
    assert clock.bind(census(80), seed=5).durations(4, np.arange(50), 3, 10, 20).tolist() == many[4].tolist()
    assert not np.isclose(clock.bind(census(50), seed=6).durations(4, np.arange(50), 3, 10, 20), many[4]).any()
    warmup = bound.durations(-1, np.arange(50), 3, 10, 20)
    assert not np.isclose(warmup, many).any()


def test_durations_are_the_sum_of_their_parts():
    clock = fedax.Clock(step=[0.1, 0.2, 0.3], up=1e3, down={"a": 10.0, "c": 30.0, "b": 20.0}, latency=[1, 2, 3])
    bound = clock.bind(census(3, "abc"), seed=0)
    ids, gradients = np.array([2, 0, 1]), np.array([5, 6, 7])
    want = [3 + 5 * 0.3 + 60 / 30 + 0.5, 1 + 6 * 0.1 + 60 / 10 + 0.5, 2 + 7 * 0.2 + 60 / 20 + 0.5]
    np.testing.assert_allclose(bound.durations(0, ids, gradients, down=60, up=500), want, rtol=1e-14)
    assert fedax.Clock().bind(census(3), 0).durations(0, ids, 9, 10**9, 10**9).tolist() == [0.0, 0.0, 0.0]
    assert bound.server == 0.0 and fedax.Clock(server=2).bind(census(1), 0).server == 2.0


def test_a_million_clients_cost_what_is_asked_of_them():
    bound = fedax.Clock(step=fedax.Lognormal(0.01, 1.0)).bind(census(10**6), seed=0)
    assert not any(isinstance(value, np.ndarray) for value in bound.values.values())
    assert bound.durations(0, np.array([999_999]), 1, 0, 0).shape == (1,)


PERIODS = [True, [[2.0, 3.0], [5.0, 7.0]], {"on": [[0.0, 1.0], [4.0, 6.0]], "repeat": 10.0}, [[0.0, 4.0]]]


def literal(periods, time):
    """When a client can begin, by looking at one period after the other."""
    if periods is True:
        return time
    spans, repeat = (periods["on"], periods["repeat"]) if isinstance(periods, dict) else (periods, math.inf)
    turn = 0 if repeat == math.inf else math.floor(time / repeat)
    for k in (turn, turn + 1) if repeat < math.inf else (0,):
        for on, off in spans:
            shift = k * repeat if k else 0.0
            if time < shift + off:
                return max(time, shift + on)
    return math.inf


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=20))
def test_who_is_off_begins_when_it_is_on_again(asked):
    bound = fedax.Clock(available=PERIODS).bind(census(4), seed=0)
    ids, times = np.array([i for i, _ in asked]), np.array([t / 8 for _, t in asked])
    want = [literal(PERIODS[i], t) for i, t in zip(ids, times, strict=True)]
    assert bound.on(ids, times).tolist() == want
    always = fedax.Clock().bind(census(4), 0).on(ids, times)
    assert always.tolist() == times.tolist()


def test_clients_that_a_dictionary_of_periods_does_not_name_are_always_on():
    bound = fedax.Clock(available={"b": [[10, 20]]}).bind(census(2, "ab"), seed=0)
    assert bound.on([0, 1], 3).tolist() == [3.0, 10.0]
    numbered = fedax.Clock(step={0: 1, 1: 2}, available={"1": [[10, 20]]}).bind(census(2), seed=0)
    assert numbered.on([0, 1], 3).tolist() == [3.0, 10.0] and numbered.durations(0, [0, 1], 1, 0, 0).tolist() == [1, 2]


CLOCKS = [
    fedax.Clock(),
    fedax.Clock(0.1, up=1e6, down=2e6, latency=0.05, server=1),
    fedax.Clock(step=[1, 2.5], up={"a": 3}, latency=fedax.HalfNormal(2), down=fedax.UniformBetween(1, 2, anew=True)),
    fedax.Clock(available=PERIODS),
    fedax.Clock(available={"a": PERIODS[2], "b": PERIODS[1]}),
]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_is_what_it_prints(clock):
    names = {name: getattr(fedax, name) for name in ("Clock", *(type(d).__name__ for d, _ in DRAWN.values()))}
    again = eval(repr(clock), names)
    assert again == clock and repr(again) == repr(clock)
    assert fedax.Clock(**clock.arguments()) == clock
    assert clock != fedax.Clock(step=99.0)


def test_a_clock_of_a_json_file(tmp_path):
    table = {
        "step": {"name": "lognormal", "median": 0.01, "sigma": 1.0, "anew": True},
        "up": {"a": 1000, "name": 500},  # a client that is called "name"
        "server": 0.5,
        "available": {"a": {"on": [[0, 10]], "repeat": 20}},
    }
    path = tmp_path / "clock.json"
    path.write_text(json.dumps(table))
    want = fedax.Clock(
        step=fedax.Lognormal(0.01, 1.0, anew=True),
        up={"a": 1000.0, "name": 500.0},
        server=0.5,
        available={"a": {"on": [[0.0, 10.0]], "repeat": 20.0}},
    )
    assert fedax.Clock.from_json(path) == want
    for text, word in (("{", "no JSON"), ("[" * 100_000, "no JSON"), ("[1]", "no table")):
        path.write_text(text)
        with pytest.raises(DataError, match=word):
            fedax.Clock.from_json(path)
    for wrong, field in (
        ({"stepp": 1}, "clock.stepp"),
        ({"step": -1}, "clock.step"),
        ({"step": {"name": "lognormal", "median": 1}}, "step.sigma"),
        ({"step": {"name": "normal", "median": 1}}, "step.name"),
        ({"step": {"name": "exponential", "mean": 0}}, "step.mean"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError) as error:
            fedax.Clock.from_json(path)
        assert error.value.field.endswith(field)


def test_a_clock_of_a_csv_file(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,step,up,on,off,repeat\na,0.5,100,0,10,60\na,,,30,40,\nb,1.5,200,,,\n")
    clock = fedax.Clock.from_csv(path, server=2.0)
    assert clock == fedax.Clock(
        step={"a": 0.5, "b": 1.5},
        up={"a": 100.0, "b": 200.0},
        server=2.0,
        available={"a": {"on": [[0.0, 10.0], [30.0, 40.0]], "repeat": 60.0}},
    )
    path.write_bytes(b"\xef\xbb\xbfclient, step\na,1,\n\nb , 2\nb,2\n")  # as Excel writes it, and people do
    assert fedax.Clock.from_csv(path) == fedax.Clock(step={"a": 1.0, "b": 2.0})
    for text, word in (
        ("name,step\na,1\n", "no column client"),
        ("client,steps\na,1\n", "no column 'steps'"),
        ("client,step\na,fast\n", "line 2: step is 'fast', no number"),
        ("client,on\na,1\n", "a period has on and off"),
        ("client,step\n,1\n", "there is no client"),
        ("client,step\na,1\na,2\n", "line 3: client a has another step above"),
        ("client,step\na,1,2\n", "line 2: more cells than columns"),
        ("client,step\n", "no value in it"),
        ("client,step\na,nan\n", "line 2: step is 'nan', no number"),
        ("client,step,step\na,1,2\n", "two columns 'step'"),
        ("client,step\na,1\na ,2\n", "line 3: client a has another step above"),
        ("number,client,version,begun,seconds\n", "no answer in it"),
        ("client,step,on,off,repeat\na,1,,,60\n", "client a has repeat, and no period"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=word):
            fedax.Clock.from_csv(path)
    with pytest.raises(DataError, match="cannot be read"):
        fedax.Clock.from_csv(tmp_path / "missing.csv")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"step": -0.1}, "step"),
        ({"step": math.nan}, "step"),
        ({"step": True}, "step"),
        ({"step": "fast"}, "step"),
        ({"step": []}, "step"),
        ({"step": {}}, "step"),
        ({"step": [[1.0]]}, "step"),
        ({"step": [1.0, True]}, "step"),
        ({"step": {"a": -1}}, "step.a"),
        ({"up": 0}, "up"),
        ({"up": [1, 0]}, "up"),
        ({"down": {"a": 0}}, "down.a"),
        ({"latency": math.inf}, "latency"),
        ({"server": [1.0]}, "server"),
        ({"server": -1}, "server"),
        ({"available": []}, "available"),
        ({"available": "always"}, "available"),
        ({"available": [[]]}, "available[0]"),
        ({"available": [[[3, 2]]]}, "available[0]"),
        ({"available": [[[0, 2], [1, 3]]]}, "available[0]"),
        ({"available": [[[-1, 2]]]}, "available[0]"),
        ({"available": {"a": {"on": [[0, 2]], "repeat": 1}}}, "available.a.repeat"),
        ({"available": {"a": {"off": [[0, 2]]}}}, "available.a"),
    ],
)
def test_what_is_no_clock_is_refused_by_name(arguments, field):
    with pytest.raises(ConfigError) as error:
        fedax.Clock(**arguments)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"step": [1.0, 2.0]}, "clock.step = '2 clients': .*each of the 3"),
        ({"up": {"a": 1, "b": 2}}, "clock.up = 'c': these clients are missing"),
        ({"latency": {"a": 1, "b": 2, "c": 3, "d": 4}}, "clock.latency = 'd': .*no such clients"),
        ({"available": [True]}, "clock.available = '1 clients'"),
        ({"available": {"z": [[0, 1]]}}, "clock.available = 'z': .*no such clients"),
    ],
)
def test_a_clock_of_other_clients_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        fedax.Clock(**arguments).bind(census(3, "abc"), seed=0)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: fedax.HalfNormal(0), "scale"),
        (lambda: fedax.Lognormal(1, -1), "sigma"),
        (lambda: fedax.Lognormal(0, 1), "median"),
        (lambda: fedax.Exponential("1"), "mean"),
        (lambda: fedax.UniformBetween(2, 2), "high"),
        (lambda: fedax.UniformBetween(-1, 2), "low"),
        (lambda: fedax.Exponential(1, anew=1), "anew"),
    ],
)
def test_what_is_no_distribution_is_refused_by_name(make, field):
    with pytest.raises(ConfigError) as error:
        make()
    assert error.value.field == field


ARRIVALS = "number,client,version,begun,seconds\n1,b,0,0.0,0.5\n0,a,0,0.0,2.0\n2,b,1,0.5,0.25\n"


def test_a_clock_of_recorded_arrivals(tmp_path):
    path = tmp_path / "arrivals.csv"
    path.write_text(ARRIVALS)
    clock = fedax.Clock.from_csv(path)
    bound = clock.bind(census(2, "ab"), 0)
    assert bound.anew and bound.durations([0, 1, 2, 3], [0, 1, 1, 0], 5, 1, 1).tolist() == [2.0, 0.5, 0.25, math.inf]
    assert repr(clock).startswith("Clock(latency=Recorded(3 answers of 2 clients, ")
    path.write_text(ARRIVALS.replace("2.0", "2.5"))
    assert repr(fedax.Clock.from_csv(path)) != repr(clock)
    with pytest.raises(ConfigError, match=r"answer 2 is client b's, .* client a"):
        bound.durations(2, 0, 1, 0, 0)
    with pytest.raises(ConfigError, match="no such clients; there are a, c"):
        clock.bind(census(2, "ac"), 0)
    for other in ({"step": 1.0}, {"up": [1.0, 2.0]}, {"server": 2.0}):
        with pytest.raises(ConfigError, match="leave the other settings out"):
            fedax.Clock(**clock.arguments() | other)
    for wrong in ("0,a,0,0.0,1.0", "x,a,0,0.0,1.0", "3,a,0,0.0,-1", "3,a,0,0.0,inf", "3,a,0,0.0,"):
        path.write_text(ARRIVALS + wrong + "\n")
        with pytest.raises(DataError, match="line 5: no answer of a run"):
            fedax.Clock.from_csv(path)


def test_a_simulation_ends_with_the_recorded_arrivals(tmp_path):
    path = tmp_path / "arrivals.csv"
    path.write_text(ARRIVALS.replace(",a,", ",0,").replace(",b,", ",1,"))
    clock, data = fedax.Clock.from_csv(path), fedax.data.quadratics(clients=2, dimension=2)
    given = {"clock": clock, "pace": fedax.Async(2, start="idle")}
    method, task = fedax.create("fedavg", lr=0.1), fedax.tasks.quadratic(2)
    assert fedax.arrivals(method, task, data, rounds=3, **given).times.tolist() == [0.5, 0.75, 2.0]
    with pytest.raises(ConfigError, match="over after 3 steps: ask for fewer rounds"):
        fedax.arrivals(method, task, data, rounds=4, **given)
    with pytest.raises(ConfigError, match="the recorded answer 0 is client 0's"):
        fedax.simulate(method, task, data, rounds=3, clock=clock)


def test_one_piece_of_work_takes_as_long_as_it_does_among_many():
    lognormal = fedax.Lognormal(1.0, 0.7, anew=True)
    clock = fedax.Clock(step=lognormal, up=fedax.HalfNormal(3.0), down=[1.0, 2.0, 3.0], latency=0.1)
    bound = clock.bind(Census.of(fedax.data.quadratics(clients=3, dimension=2)), seed=2**40 + 1)
    numbers, ids = np.arange(-1, 50)[:, None], np.arange(3)
    many = bound.durations(numbers, ids, 4, 8, 16)
    assert [[bound.duration(int(number), i, 4, 8, 16) for i in range(3)] for number in numbers[:, 0]] == many.tolist()
