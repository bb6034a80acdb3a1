"""What rounds spend: against dp-accounting's own events, jax-privacy, closed forms; searches invert it."""

import builtins
import dataclasses
import logging
import math
import re

import dp_accounting as dp
import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import fedax
from fedax import ConfigError
from fedax.cli import app
from fedax.privacy import Ledger, noise_for
from tests import long

DELTA = 1e-6


def direct(z, n, rounds, delta, rate=None, places=None, cohort=None, apart=1, exchanges=1, warmup=0):
    """By dp-accounting's accountants and events, without a thought for speed."""
    if cohort == n:
        return direct(z / 2, n, rounds, delta, exchanges=exchanges, warmup=warmup)
    if cohort is not None:
        accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        gaussian = dp.GaussianDpEvent(z / 2)  # a replaced client moves the sum by two clips
        together = dp.SelfComposedDpEvent(gaussian, exchanges)
        accountant.compose(dp.SampledWithoutReplacementDpEvent(n, cohort, together), rounds)
        if warmup:
            accountant.compose(gaussian, warmup)
        return accountant.get_epsilon(delta)
    accountant = dp.pld.PLDAccountant()
    each = z / math.sqrt(exchanges)
    if rate is None:
        accountant.compose(dp.GaussianDpEvent(each), math.ceil(rounds / apart))
    elif rounds == 0:
        pass
    elif places is not None and places < n:
        accountant.compose(dp.TruncatedSubsampledGaussianDpEvent(n, rate, places, each), rounds)
    else:
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(each)), rounds)
    if warmup:
        accountant.compose(dp.GaussianDpEvent(z), warmup)
    return accountant.get_epsilon(delta)


SETTINGS = [  # noise, clients, rounds, delta, the rest
    (3.0, 10_000, 1000, 1e-6, {"rate": 0.01}),
    pytest.param(0.6, 10_000, 100, 1e-6, {"rate": 0.01}, marks=long),
    (1.5, 1000, 1, 1e-4, {"rate": 0.3}),
    pytest.param(4.0, 1000, 500, 1e-5, {"rate": 0.1}, marks=long),
    (2.0, 1000, 10, 1e-5, {"rate": 1.0}),
    (3.0, 10_000, 200, 1e-6, {"rate": 0.05, "exchanges": 2}),
    (3.0, 10_000, 200, 1e-6, {"rate": 0.05, "exchanges": 3, "warmup": 2}),
    (5.0, 10_000, 0, 1e-6, {"rate": 0.05, "warmup": 1}),
    (5.0, 1000, 100, 1e-5, {"rate": 0.1, "places": 120}),
    (5.0, 1000, 100, 1e-5, {"rate": 0.1, "places": 1000}),
    (1.0, 10_000, 1000, 1e-5, {"cohort": 100}),
    (4.0, 1000, 50, 1e-5, {"cohort": 100, "exchanges": 2}),
    (4.0, 1000, 50, 1e-5, {"cohort": 100, "warmup": 3}),
    (9.0, 50, 20, 1e-3, {"cohort": 50}),
    (9.0, 50, 20, 1e-3, {"cohort": 50, "warmup": 2}),
    (20.0, 100_000, 5000, 1e-7, {"cohort": 1000, "exchanges": 2, "warmup": 1}),
    (1.0, 100, 1, 1e-5, {}),
    (6.0, 100, 30, 1e-5, {}),
    (3.0, 100, 100, 1e-6, {"apart": 8}),
    (8.0, 100, 100, 1e-6, {"apart": 7, "exchanges": 2}),
    (8.0, 100, 5, 1e-6, {"apart": 10, "warmup": 1}),
]


@pytest.mark.parametrize(("z", "n", "rounds", "delta", "how"), SETTINGS)
def test_epsilon_is_that_of_dp_accounting(z, n, rounds, delta, how):
    logging.getLogger("absl").setLevel(logging.ERROR)
    result = Ledger(z, n, **how).epsilon(rounds, delta)
    assert type(result) is float
    assert result == pytest.approx(direct(z, n, rounds, delta, **how), rel=1e-6)


@pytest.mark.parametrize(
    ("z", "n", "rounds", "delta", "how", "expected"),
    [  # jax-privacy 2.0.0: DpsgdTrainingAccountant, and SingleReleaseTrainingAccountant where nothing is sampled; PLD
        (1.0, 10_000, 1000, 1e-6, {"rate": 0.01}, 2.1245225256749363),
        (2.0, 60_000, 5000, 1e-6, {"rate": 0.01}, 1.6829248201859233),
        (4.0, 1000, 100, 1e-4, {"rate": 0.5}, 5.1178801434811705),
        pytest.param(1.0, 10_000, 1000, 1e-6, {"rate": 0.01, "places": 130}, 4.920767913438276, marks=long),
        (1.0, 10_000, 8, 1e-6, {"apart": 8}, 4.886554124377032),
        (3.0, 10_000, 1, 1e-6, {}, 1.4479880288830957),
    ],
)
def test_epsilon_is_that_of_jax_privacy(z, n, rounds, delta, how, expected):
    assert Ledger(z, n, **how).epsilon(rounds, delta) == pytest.approx(expected, rel=1e-6)


def gaussian_delta(epsilon, z):
    """δ(ε) of the Gaussian mechanism, Balle and Wang 2018, Theorem 8."""
    return norm.cdf(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * norm.cdf(-1 / (2 * z) - epsilon * z)


@pytest.mark.parametrize(("z", "rounds"), [(0.5, 1), (1.0, 1), (4.0, 16), (30.0, 50), (0.05, 1)])
def test_nothing_sampled_is_the_gaussian_mechanism_in_closed_form(z, rounds):
    epsilon = Ledger(z, 100).epsilon(rounds, DELTA)
    assert gaussian_delta(epsilon, z / math.sqrt(rounds)) == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.2), (2.0, 0.01), (0.4, 0.05)])
def test_one_round_of_poisson_sampling_in_closed_form(z, q):
    # Balle et al. 2018, Theorem 8: δ(log(1 + q (e^ε − 1))) = q times the δ(ε) of the mechanism that is sampled.
    epsilon = Ledger(z, 100, rate=q).epsilon(1, DELTA)
    inner = math.log1p(math.expm1(epsilon) / q)
    assert q * gaussian_delta(inner, z) == pytest.approx(DELTA, rel=2e-4)


def test_without_replacement_is_no_less_than_an_attack_on_it():
    # All others send the opposite of what the client sends: its place in the cohort moves the sum by two clips, or it
    # is not in the cohort. That is a Poisson-sampled Gaussian with half of the noise.
    for z, cohort, rounds in ((2.0, 100, 1000), (4.0, 300, 50)):
        attack = Ledger(z / 2, 10_000, rate=cohort / 10_000).epsilon(rounds, DELTA)
        assert attack <= Ledger(z, 10_000, cohort=cohort).epsilon(rounds, DELTA) < 2.5 * attack


@pytest.mark.parametrize("how", [{"rate": 0.02}, {"cohort": 20}, {"apart": 3}])
def test_more_rounds_and_less_noise_spend_more(how):
    by_rounds = [Ledger(4.0, 1000, **how).epsilon(rounds, DELTA) for rounds in (0, 1, 4, 50, 51)]
    assert by_rounds[0] == 0.0 < by_rounds[1] and (np.diff(by_rounds) >= 0).all()
    by_noise = [Ledger(z, 1000, **how).epsilon(40, DELTA) for z in (0.0, 0.03, 1.0, 16.0)]
    assert by_noise[0] == math.inf > by_noise[1] and (np.diff(by_noise) < 0).all()
    more = [Ledger(4.0, 1000, **how, **two).epsilon(40, DELTA) for two in ({}, {"exchanges": 2}, {"warmup": 1})]
    assert more[0] < min(more[1:])


def test_larger_cohorts_spend_more():
    rates = [Ledger(8.0, 1000, rate=q).epsilon(40, DELTA) for q in (0.001, 0.1, 0.9, 1.0)]
    cohorts = [Ledger(8.0, 1000, cohort=s).epsilon(40, DELTA) for s in (1, 100, 700, 1000)]
    places = [Ledger(8.0, 1000, rate=0.01, places=m).epsilon(40, DELTA) for m in (1000, 20, 12)]
    assert all((np.diff(each) >= 0).all() for each in (rates, cohorts, places)) and places[0] < places[-1]
    assert rates[-1] == pytest.approx(Ledger(8.0, 1000).epsilon(40, DELTA), rel=1e-6)


@pytest.mark.parametrize(
    "how",
    [
        {"rate": 0.2},
        pytest.param({"rate": 0.2, "places": 220}, marks=long),
        {"cohort": 20},
        {"apart": 8, "exchanges": 2, "warmup": 1},
    ],
)
def test_the_least_noise_and_the_most_rounds(how):
    noise = noise_for(1.0, DELTA, 100, 1000, **how)
    assert Ledger(noise, 1000, **how).epsilon(100, DELTA) <= 1.0
    assert Ledger(noise * (1 - 1e-4), 1000, **how).epsilon(100, DELTA) > 1.0
    ledger = Ledger(noise * 1.001, 1000, **how)
    most = ledger.rounds(1.0, DELTA)
    assert most >= 100
    assert ledger.epsilon(most, DELTA) <= 1.0 < ledger.epsilon(most + 1, DELTA)


@pytest.mark.parametrize("how", [{"rate": 0.5}, {"rate": 0.5, "places": 60}, {"cohort": 20}, {}])
def test_noises_that_no_accountant_can_count(how):
    """Without a limit some came back as no loss at all, others as an overflow."""
    for noise in (1e-320, 1e-160, 1e-9, 1e7, 1e160, 1e308):
        with pytest.raises(ConfigError, match=r"^noise = "):
            Ledger(noise, 100, **how)
    assert Ledger(1e-6, 100, **how).epsilon(3, DELTA) > 1e11 and Ledger(1e6, 100, **how).epsilon(3, DELTA) < 1e-3
    for epsilon in (1e-15, 1e15):
        with pytest.raises(ConfigError, match=r"^epsilon = .*no noise from 1e-06 to 1e\+06"):
            noise_for(epsilon, DELTA, 3, 100, **how)


@pytest.mark.parametrize("rate", [0, 1e-320, 1e-13, 1.1])
def test_rates_that_cannot_be(rate):
    with pytest.raises(ConfigError, match=r"^rate = "):
        Ledger(1.0, 100, rate=rate)


def test_ends_of_the_searches():
    assert noise_for(1.0, DELTA, 0, 100, rate=0.1) == 0.0
    assert noise_for(1.0, DELTA, 0, 100, rate=0.1, warmup=1) == pytest.approx(4.2247, rel=1e-4)
    assert Ledger(0.0, 100).rounds(10.0, DELTA) == Ledger(1.0, 100).rounds(0.1, DELTA) == 0
    assert Ledger(1.0, 100, rate=0.1, warmup=9).rounds(1.0, DELTA) == 0
    assert Ledger(1e6, 100).rounds(1e9, DELTA) == 999_999_999
    assert Ledger(0.0, 100).epsilon(0, DELTA) == 0.0 and Ledger(0.0, 100, warmup=1).epsilon(0, DELTA) == math.inf
    assert Ledger(1e3, 100, rate=0.1).epsilon(1, 0.01) == 0.0
    # What a grid of losses would take gigabytes for.
    assert 9e4 < Ledger(1.0, 100, rate=0.01).epsilon(10**9 - 1, DELTA) < 1e6
    assert Ledger(0.3, 100, rate=0.01, places=50).epsilon(10**6, DELTA) > 1e6
    assert Ledger(1.0, 10**6, rate=1e-6).epsilon(10**8, DELTA) < 1


def test_remarks_of_dp_accounting_are_kept_from_users(caplog):
    logger = logging.getLogger("absl")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.WARNING)
    try:
        assert Ledger(1e6, 10**6, rate=1e-6).epsilon(3, DELTA) == 0.0
        assert not caplog.records
        accountant = dp.rdp.RdpAccountant()
        accountant.compose(dp.PoissonSampledDpEvent(1e-6, dp.GaussianDpEvent(1e6)))
        accountant.get_epsilon(DELTA)
        assert "Negative" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)


def test_a_column_of_a_run_is_computed_once():
    ledger = Ledger(3.0, 1000, rate=0.01)
    first = [ledger.epsilon(rounds, DELTA) for rounds in range(10, 60, 10)]
    again = Ledger(np.float32(3.0), np.int64(1000), rate=0.01)
    assert again == ledger and [again.epsilon(np.int64(rounds), DELTA) for rounds in range(10, 60, 10)] == first


@pytest.mark.parametrize(("z", "how", "shift"), [(1.0, {}, 1), (0.5, {"rate": 0.1}, 1), (0.7, {"cohort": 3}, 2)])
def test_what_the_end_of_the_noise_takes(z, how, shift):
    """Pairs have a last radius T. An attacker waits for a sum that one of two neighbours cannot give."""
    T = math.sqrt(144 * math.log(2))
    angle = (np.arange(4000) + 0.5) * 2 * np.pi / 4000
    for pairs in (1, 50, 5000):
        seen = []
        for moved in {1, 2, pairs // 2, pairs} - {0}:  # so many pairs, all equally far
            each = shift / z / math.sqrt(moved)
            border = -each * np.cos(angle) + np.sqrt(T**2 - (each * np.sin(angle)) ** 2)
            inside = np.exp(-(np.minimum(border, T) ** 2) / 2) - math.exp(-(T**2) / 2)
            seen.append(40 * (moved * inside.mean() + pairs * math.exp(-(T**2) / 2)))  # or beyond its own last radius
        bound = Ledger(z, 100, numbers=2 * pairs, **how).tail(40)
        assert max(seen) <= bound < 1000 * max(seen), (pairs, seen, bound)
    for numbers in (0, 10**6):
        left = DELTA - Ledger(z, 100, numbers=numbers, **how).tail(40)
        epsilon = Ledger(z, 100, numbers=numbers, **how).epsilon(40, DELTA)
        assert epsilon == (Ledger(z, 100, **how).epsilon(40, left) if left > 0 else math.inf)
    assert Ledger(0.1, 100, numbers=1).epsilon(1, DELTA) == math.inf  # a clip is ten times the noise


def test_what_a_ledger_says():
    for how, relation, accountant in (
        ({"rate": 0.1}, "add or remove a client", "PLD"),
        ({"cohort": 3}, "replace a client", "RDP"),
        ({"apart": 3}, "add or remove a client", "PLD"),
    ):
        ledger = Ledger(1.0, 10, **how)
        assert (ledger.relation, ledger.accountant) == (relation, accountant)
        assert eval(repr(ledger)) == ledger
    with pytest.raises(dataclasses.FrozenInstanceError):
        ledger.noise = 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise": -1.0}, "noise = -1.0: give a number in [0, 1e+06]"),
        ({"noise": math.nan}, "noise = nan"),
        ({"noise": fedax.PowerDecay(1.0)}, "this does not follow a schedule"),
        ({"rate": fedax.PowerDecay(0.1)}, "this does not follow a schedule"),
        ({"clients": 0}, "clients = 0: give a whole number"),
        ({"rate": 0.0}, "rate = 0.0: give a number in [1e-12, 1]"),
        ({"rate": 1.5}, "rate = 1.5"),
        ({"cohort": 101}, "cohort = 101: give a whole number of at least 1 and at most 100"),
        ({"rate": 0.1, "cohort": 10}, "cohort = 10: give either rate"),
        ({"rate": 0.1, "apart": 2}, "apart = 2: it is for clients"),
        ({"cohort": 10, "apart": 2}, "apart = 2: it is for clients"),
        ({"places": 10}, "places = 10: it belongs to Poisson sampling"),
        ({"apart": 0}, "apart = 0"),
        ({"exchanges": 0}, "exchanges = 0"),
        ({"warmup": -1}, "warmup = -1"),
        ({"numbers": -1}, "numbers = -1"),
    ],
)
def test_a_ledger_that_cannot_be(given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Ledger(**({"noise": 1.0, "clients": 100} | given))


def test_questions_that_cannot_be_asked():
    ledger = Ledger(1.0, 100)
    for ask, message in (
        (lambda: ledger.epsilon(-1, DELTA), "rounds = -1"),
        (lambda: ledger.epsilon(1, 0.0), "delta = 0.0: give a number in [1e-12, 1)"),
        (lambda: ledger.epsilon(1, 1.0), "delta = 1.0"),
        (lambda: ledger.rounds(0.0, DELTA), "epsilon = 0.0: give a number in (0, ∞)"),
        (lambda: noise_for(-1.0, DELTA, 10, 100), "epsilon = -1.0"),
        (lambda: noise_for(1.0, 2.0, 10, 100), "delta = 2.0"),
        (lambda: noise_for(1.0, DELTA, 1.5, 100), "rounds = 1.5"),
        (lambda: noise_for(1.0, DELTA, 10, 100, rate=0.1, cohort=3), "cohort = 3"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            ask()


def test_without_dp_accounting_the_error_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def none_here(name, *rest):
        if name.startswith("dp_accounting"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", none_here)
    with pytest.raises(ConfigError, match=re.escape("pip install 'fedax[privacy]'")):
        Ledger(1.2345, 100).epsilon(1, DELTA)


def command(*arguments):
    return CliRunner().invoke(app, ["privacy", *map(str, arguments)])


RUN = ("--delta", 1e-6, "--rounds", 100, "--clients", 1000)


def test_the_command_finds_the_noise_for_a_budget():
    result = command("--epsilon", 1, *RUN, "--rate", 0.1, "--clip", 0.5)
    assert result.exit_code == 0, result.output
    rows = {line.split("  ")[0].strip(): line for line in result.stdout.splitlines() if line.strip()}
    noise = float(rows["Noise"].split()[1])
    least = noise_for(1.0, DELTA, 100, 1000, rate=0.1)
    assert least <= noise <= least * 1.0002 and Ledger(noise, 1000, rate=0.1).epsilon(100, DELTA) <= 1
    assert float(rows["On the mean"].split()[3]) == pytest.approx(noise * 0.5 / 100, rel=1e-3)
    assert "add or remove a client" in rows["Neighbours"] and "PLD" in rows["Accountant"]
    table = [line.split() for line in result.stdout.splitlines()[-3:]]
    assert [int(row[0]) for row in table] == [25, 50, 100]
    expected = [Ledger(noise, 1000, rate=0.1).epsilon(rounds, DELTA) for rounds in (25, 50, 100)]
    assert [float(row[1]) for row in table] == pytest.approx(expected, rel=1e-3)


def test_the_command_says_what_a_noise_spends():
    result = command("--noise", 5, "--delta", 0.01, "--rounds", 1, "--clients", 1000, "--cohort", 100, "--clip", 1)
    spent = Ledger(5.0, 1000, cohort=100).epsilon(1, 0.01)
    assert f"{spent:.4g} at delta 0.01, after 1 round\n" in re.sub(" +\n", "\n", result.stdout)
    assert "replace a client" in result.stdout and "0.05 in each number, in a mean over 100" in result.stdout
    assert "not below 1/clients = 0.001" in result.stdout
    result = command("--noise", 5, *RUN, "--apart", 8, "--exchanges", 2, "--warmup", 1, "--clip", 1)
    spent = Ledger(5.0, 1000, apart=8, exchanges=2, warmup=1).epsilon(100, DELTA)
    assert f"{spent:.4g} at delta 1e-06, after 100 rounds" in result.stdout
    assert "0.04 in each number, in a mean over 125 clients (all of them in turn), clip 1" in result.stdout
    assert "inf at delta" in command("--noise", 0, *RUN, "--rate", 0.5).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", 1, "--noise", 1, *RUN, "--rate", 0.1), "epsilon = 1.0: give either --epsilon, a budget, or"),
        ((*RUN, "--rate", 0.1), "epsilon = None: give either --epsilon"),
        (("--noise", 1, *RUN), "by one of --rate, --cohort and --apart, not by none of them"),
        (("--noise", 1, *RUN, "--rate", 0, "--apart", 2), "not by --rate 0, --apart 2"),
        (("--noise", 1, *RUN, "--rate", 0), "rate = 0.0: give a number in [1e-12, 1]"),
        (("--noise", 1, *RUN, "--rate", 0.1, "--clip", 0), "clip = 0.0: give a number in (0, ∞)"),
        (("--noise", 1, "--delta", 0, "--rounds", 1, "--clients", 9, "--rate", 0.1), "delta = 0.0"),
        (("--noise", 1, "--delta", 0.1, "--rounds", -4, "--clients", 9, "--rate", 0.1), "rounds = -"),
    ],
)
def test_bad_input_of_the_command_is_one_line(arguments, message):
    result = command(*arguments)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ") and message in result.stderr
