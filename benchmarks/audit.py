"""Audit of private runs: a lower bound on ε from an attacker's errors. See README.md.

``python benchmarks/audit.py`` takes about ten minutes and prints the table of docs/results/privacy.md.

A canary is a client whose update is as long as the clip allows, in a direction in which nobody else moves. Many seeds
train side by side, with the canary and without. The attacker sees the whole trajectory, knows all but who was drawn,
and says "it was there" where the likelihood ratio is above a threshold. (ε, δ)-privacy bounds how often that is right:
P(says so | there) ≤ e^ε P(says so | not there) + δ, and the same for saying the opposite. Where cohorts are not drawn,
the attack is one on two normal distributions a distance μ apart, and a lower bound on μ gives a better one on ε (Nasr
et al. 2023, "Tight auditing of differentially private machine learning"). Probabilities are bounded as by Clopper and
Pearson.
"""

import argparse
import dataclasses
import math
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import special, stats

import fedax
from fedax.privacy import Ledger, banded

CLIENTS, DIMENSION = 40, 3  # the last dimension is the canary's own
CLIP, DELTA, CONFIDENCE = 0.5, 1e-3, 0.95


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is audited.

    Args:
        title: in words.
        participation: how cohorts are drawn.
        noise: z.
        rounds: R.
        bands: of correlated noise.
        replaced: the neighbour has the canary's opposite in its place; else nobody.
    """

    title: str
    participation: fedax.Participation
    noise: float
    rounds: int
    bands: int = 1
    replaced: bool = False

    @property
    def gaussian(self) -> bool:
        """Whether nothing but the noise is random: the attacker tells N(0, 1) from N(μ, 1), and μ says all of it."""
        drawn = self.participation.sampling(CLIENTS)
        return drawn.rate is None and drawn.cohort is None

    def epsilon(self) -> float:
        """What the ledger says."""
        drawn = self.participation.sampling(CLIENTS)
        places = {} if drawn.rate is None else {"places": self.participation.places(CLIENTS)}
        ledger = Ledger(self.noise, CLIENTS, rate=drawn.rate, cohort=drawn.cohort, apart=drawn.apart, **places)
        return ledger.epsilon(self.rounds, DELTA)


SETTINGS = {
    "full": Setting("all clients in every round", fedax.Full(), 2.0, 4),
    "poisson": Setting("Poisson, q = 0.5", fedax.Poisson(0.5), 2.0, 6),
    "uniform": Setting("20 of 40, uniformly", fedax.Uniform(20), 6.0, 6, replaced=True),
    "cyclic": Setting("8 groups that take turns, 8 bands", fedax.Cyclic(8), 2.0, 16, bands=8),
}


def federation(canary: float) -> fedax.FederatedData:
    """Quadratics ½xᵀHx − eᵀx that do not move the last dimension, but for client 0, which moves nothing else."""
    rng = np.random.default_rng(0)
    H, e = np.zeros((CLIENTS, DIMENSION, DIMENSION)), np.zeros((CLIENTS, DIMENSION))
    H[1:, range(DIMENSION - 1), range(DIMENSION - 1)] = rng.uniform(0.5, 1.5, (CLIENTS - 1, DIMENSION - 1))
    e[1:, :-1] = rng.normal(size=(CLIENTS - 1, DIMENSION - 1))
    e[0, -1] = canary
    return fedax.data.quadratics(H=H, e=e)


def moves(setting: Setting, canary: float, lanes: int, noises: list[float], first: int = 0) -> np.ndarray:
    """[noises, lanes, R] how far each round moves the last dimension, in units of what the clip lets one client do."""
    seen = {"H": np.zeros((1, DIMENSION, DIMENSION)), "e": -np.eye(DIMENSION)[-1:]}  # whose loss is the last dimension

    def run(noise: float) -> dict[str, Any]:
        private = fedax.DP(clip=CLIP, noise=noise, delta=DELTA, bands=setting.bands)
        return {"algorithm": fedax.create("fedavg", lr=0.1), "privacy": private}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedax.DivergedWarning)  # of the canary's own loss
        sweep = fedax.sweep(
            run,
            {"noise": noises},
            fedax.tasks.quadratic(DIMENSION),
            federation(canary),
            seeds=range(first, first + lanes),
            width=lanes * len(noises),
            rounds=setting.rounds,
            work=fedax.Steps(2),
            participation=setting.participation,
            test=seen,
            evaluate_every=1,
        )
    place = np.array([[run.history["test_loss"] for run in runs] for runs in sweep.runs])
    chance = setting.participation.sampling(CLIENTS).chance
    return np.diff(place) * CLIENTS * chance / CLIP


def evidence(setting: Setting, moved: np.ndarray, noise: float) -> np.ndarray:
    """[lanes] the logarithm of the likelihood of ``moved`` with the canary over that without it."""
    drawn = setting.participation.sampling(CLIENTS)
    if setting.bands > 1:
        # C turns the noise of the rounds into independent numbers; the rounds of the canary's group are known.
        c = banded(setting.bands, setting.rounds)
        r = range(setting.rounds)
        C = np.array([[c[i - j] if 0 <= i - j < setting.bands else 0.0 for j in r] for i in r])
        one = jnp.full(CLIENTS, 1 / CLIENTS)
        there = np.array([float(0 in setting.participation.draw(None, one, k).ids) for k in r])
        return (moved @ C.T - C @ there / 2) @ (C @ there) / noise**2

    def density(at: float) -> Any:
        away = -0.5 * (moved / noise) ** 2
        there = -0.5 * ((moved - at) / noise) ** 2
        return special.logsumexp([away + np.log1p(-drawn.chance), there + np.log(drawn.chance)], axis=0)

    def density_of_all(at: float) -> Any:
        return -0.5 * ((moved - at) / noise) ** 2

    of = density_of_all if drawn.chance == 1 else density
    return np.sum(of(1.0) - of(-1.0 if setting.replaced else 0.0), axis=1)


def lower_bound(setting: Setting, there: np.ndarray, away: np.ndarray) -> float:
    """A lower bound on ε, at CONFIDENCE.

    Between normal distributions the threshold is where both are as likely. Else it, and the side of it that counts, are
    those with the best bound on the even lanes; the bound is that of the odd.
    """
    if setting.gaussian:
        return _bound(setting, there, away, 1, 0.0)
    choices = np.quantile(np.concatenate([there[::2], away[::2]]), np.linspace(0.005, 0.995, 199))
    guesses = [(side, at) for side in (1, -1) for at in choices]
    best = max(guesses, key=lambda guess: _bound(setting, there[::2], away[::2], *guess))
    return max(0.0, _bound(setting, there[1::2], away[1::2], *best))


def _bound(setting: Setting, there: np.ndarray, away: np.ndarray, side: int, at: float) -> float:
    if side < 0:
        there, away = away, there
    right = _least(np.sum(side * there > side * at), len(there))
    wrong = 1 - _least(np.sum(side * away <= side * at), len(away))
    if setting.gaussian:
        # An attack on N(0, 1) or N(μ, 1) has right = Φ(Φ⁻¹(wrong) + μ) at best.
        mu = stats.norm.ppf(right) - stats.norm.ppf(wrong)
        return Ledger(1 / mu, 1).epsilon(1, DELTA) if mu > 1e-3 else 0.0
    return math.log((right - DELTA) / wrong) if right > DELTA else -math.inf


def _least(times: int, of: int) -> float:
    """A lower bound on a probability, of Clopper and Pearson; both of an attack hold with CONFIDENCE."""
    return float(stats.beta.ppf((1 - CONFIDENCE) / 2, times, of - times + 1)) if times else 0.0


def audit(setting: Setting, lanes: int, shares: list[float]) -> list[float]:
    """Lower bounds on ε, of runs with these shares of the noise that is accounted."""
    noises = [share * setting.noise for share in shares]
    there = moves(setting, 1e6, lanes, noises)
    away = moves(setting, -1e6 if setting.replaced else 0.0, lanes, noises, first=lanes)
    return [
        lower_bound(setting, evidence(setting, there[k], noise), evidence(setting, away[k], noise))
        for k, noise in enumerate(noises)
    ]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SETTINGS])
    parser.add_argument("--lanes", type=int, default=2500)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.7, 0.5, 0.1])
    given = parser.parse_args()
    print(f"| | accounted | {' | '.join(f'{share:g} of the noise' for share in given.shares)} |")
    print("|---|---|" + "---|" * len(given.shares))
    for name in given.names or SETTINGS:
        bounds = [f"{bound:.2f}" for bound in audit(SETTINGS[name], given.lanes, given.shares)]
        print(f"| {SETTINGS[name].title} | {SETTINGS[name].epsilon():.2f} | {' | '.join(bounds)} |", flush=True)


if __name__ == "__main__":
    main()
