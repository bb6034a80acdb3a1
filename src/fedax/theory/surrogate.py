"""The objective that a method minimises: its traits for the theorems, the steps and cohorts of a round, the weights w.

Sources are those of :mod:`fedax.theory.diagnostics`. docs/methods.md says what each method minimises; tests check it.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax import algorithms as methods
from fedax.contract.local import SGD, Solver, is_linear
from fedax.contract.schedule import Stepwise
from fedax.data.federated import FederatedData
from fedax.engine.arrivals import LongRun
from fedax.errors import ConfigError
from fedax.federation.participation import Dropout, Full, Participation, Trace, Uniform, UniformNormalized
from fedax.federation.work import Work
from fedax.programs import compiled
from fedax.theory.advice import CORRECTED, View
from fedax.theory.measure import Rounds
from fedax.theory.nova import UpdateRule, accumulation_vectors, chi_square, update_rule

DRAWS = 50  # draws of random work
_COHORTS = 2000  # cohorts that are drawn to estimate the mean weights of normalised cohorts


def view_of(method: Any, participation: Participation, waits: bool = True) -> View:
    """The traits of a method in round 0 that the theorems need; ``waits``: whether its server waits for all clients."""
    if isinstance(method, methods.FedAvg):
        return _averaging(method)
    name, traits, solver = type(method).__name__, method.traits(), getattr(method, "solver", None)
    rate = solver.rate() if isinstance(solver, Solver) else getattr(method, "lr", None)
    rate = rate(0) if isinstance(rate, Stepwise) else rate
    if rate is None:
        raise ConfigError("algorithm", name, "it has no lr by which its local steps could be judged")
    view = functools.partial(View, name, float(rate))
    local_solver = solver if isinstance(solver, Solver) else SGD(float(rate) * float(traits.own))
    if isinstance(solver, Solver) and not (is_linear(solver) and traits.own == 1.0):
        return view(local_solver, None, "fedax has no closed form of where it ends with this local solver")
    everyone = isinstance(participation, Full)
    if not waits and not traits.fair and traits.limit == "F":
        if traits.exact == "always" and not traits.corrects:
            return view(None, "normalized", gradients=True)
        return view(local_solver, None, "fedax has no closed form of where it ends where the server does not wait")
    if traits.exact == "always" and not traits.corrects:
        return view(None, None, "it takes no local steps, its minibatches make one large one", exact=True)
    if traits.exact == "always" or (traits.exact == "all clients" and everyone):
        return view(
            local_solver, None, f"it corrects each client's steps by {traits.corrects}", exact=True, corrected=True
        )
    if traits.exact == "equal steps":
        remedy = f"Steps that change between rounds make it diverge. Equal steps remove that; {CORRECTED} needs none."
        return view(local_solver, "weighted", remedy=remedy)
    if traits.limit and traits.exact == "never":
        return view(local_solver, {"F": "normalized", "steps": "weighted"}[traits.limit])
    return view(local_solver, None, "fedax has no closed form of where it ends")


def _averaging(method: methods.FedAvg) -> View:
    solver, optimizer = method.solver, method.optimizer
    plain = isinstance(optimizer, methods.Plain) and float(optimizer.server_lr) == 1
    remedy = (
        "FedNova removes what unequal work adds, as equal steps do; momentum at the server only goes to the same wrong "
        "point faster."
    )
    view = functools.partial(View, lr=float(solver.rate()), solver=solver, plain=plain, own_steps=True, remedy=remedy)
    proximal = isinstance(solver, SGD) and solver.prox is not None
    if isinstance(method.averaging, methods.Normalized):
        rule = method.averaging.tau_eff if method.averaging.rule == "number" else method.averaging.rule
        return view("FedNova", averaging="normalized", tau_eff=rule, averages=True)
    name = "FedProx" if proximal else "FedAvg"
    if not isinstance(method.averaging, methods.Weighted):
        return view(name, averaging=None, why=f"its averaging, {type(method.averaging).__name__}, is not fedax's own")
    if not is_linear(solver):
        return view(name, averaging=None, why="its local solver is not linear in the gradients")
    return view(name, averaging="weighted", averages=True)


def drawn_steps(work: Work, data: FederatedData, batch_size: int | None, seed: int) -> np.ndarray:
    """[draws, N] local steps; a single draw if the work is not random."""
    drawn = np.asarray(draw_steps(work, np.asarray(data.sizes, np.int32), batch_size, jax.random.key(seed)))
    return drawn[:1] if (drawn == drawn[0]).all() else drawn


@compiled(static=["batch_size"])
def draw_steps(work: Work, sizes: Any, batch_size: int | None, key: Any = None) -> jax.Array:
    """[draws, N] the local steps of all clients in some rounds.

    ``key``: of which the rounds' keys are made; default: they are those of the seeds 0, 1, …
    """
    ids, key_of = jnp.arange(sizes.shape[0]), jax.random.key
    if key is not None:
        key_of = functools.partial(jax.random.fold_in, key)
    return jax.lax.map(lambda k: work.draw(key_of(k), ids, sizes, batch_size), jnp.arange(DRAWS))


def draw_cohorts(participation: Participation, p: np.ndarray, number: int, key: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights [number, S] of cohorts; given cohorts are taken equally often."""
    design = participation.of if isinstance(participation, Dropout) else participation
    table = participation.available if isinstance(participation, Dropout) else None
    rounds = len(table) if table is not None else len(design.cohorts) if isinstance(design, Trace) else 1
    number = max(number, rounds) // rounds * rounds
    ids, weights = _draw_cohorts(participation.bind(p), np.asarray(p, float), key, number, rounds)
    return np.asarray(ids), np.asarray(weights, np.float64)


@compiled(static=["number", "rounds"])
def _draw_cohorts(participation: Participation, p: Any, key: Any, number: int, rounds: int) -> tuple[Any, Any]:
    """Ids and weights [number, S] of cohorts, of rounds 0, 1, … in turn."""
    draw = lambda at: participation.draw(at[0], p, at[1])[:2]  # noqa: E731
    ids, weights = jax.lax.map(draw, (jax.random.split(key, number), jnp.arange(number) % rounds))
    return ids, weights


def expected_weights(participation: Participation, p: np.ndarray) -> np.ndarray:
    """The mean weights E ω_i of cohorts, over their sum: p, unless each cohort's weights are divided by their sum."""
    design, varies = participation, False
    if isinstance(participation, Dropout):
        design = participation.of
        varies = participation.available is not None or isinstance(design, UniformNormalized | Trace)
    if varies or isinstance(design, Trace):
        ids, weights = draw_cohorts(participation, p, _COHORTS if varies else 1, jax.random.key(0))
        total = np.zeros(len(p) + 1)
        np.add.at(total, ids, weights)
        return total[:-1] / total.sum()
    if not isinstance(participation, UniformNormalized) or participation.size == len(p):
        return p
    # A client comes with probability S/N, beside S − 1 others: those of a cohort that has it, or all but one of a
    # cohort that has it not. So each cohort counts for each client, and equal p give exactly p.
    rng, total = np.random.default_rng(0), np.zeros(len(p))
    for _ in range(_COHORTS):
        cohort = rng.permutation(len(p))[: participation.size]
        others = np.full(len(p), p[cohort[1:]].sum())
        others[cohort] = p[cohort].sum() - p[cohort]
        total += p / np.where(p > 0, p + others, 1.0)
    return total / total.sum()


def weight_square_of(participation: Participation, p: np.ndarray, weights: np.ndarray) -> float:
    """E(Σω)²: in closed form for Uniform, else the mean over drawn cohorts' weights."""
    if not isinstance(participation, Uniform):
        return float(np.mean(weights.sum(1) ** 2))
    N, S = len(p), participation.size
    return 1 + N * (N - S) / (S * max(N - 1, 1)) * float(p @ p - 1 / N)


class ArrivalWeights(NamedTuple):
    """Whose answers count how much in the long run, [N] each.

    Attributes:
        q: the weights of the answers.
        counted: what the objective has of them: q, or p where the server knows what each client sent last; with
            normalised averaging the common step is that of the answers that come together.
        even: the same, if arrivals were even.
        by_number: q, if late answers counted as others do; ``None``: they do not matter.
    """

    q: np.ndarray
    counted: np.ndarray
    even: np.ndarray
    by_number: np.ndarray | None

    def surrogates(self, view: View, steps: np.ndarray, p: np.ndarray) -> dict[str, np.ndarray]:
        """The name of a cost -> the weights by arrivals alone, and by unequal work alone."""
        plain = view._replace(averaging="weighted") if view.corrected else view
        rules = None if view.averaging is None and not view.corrected else rules_of(plain, steps, self.even)[0]
        return {"arrival_cost": self.q, "work_cost": p if rules is None else mean_weights(rules)}


def arrivals_of(answers: LongRun, view: View, steps: np.ndarray, fair: bool) -> ArrivalWeights:
    """Whose answers count how much for a method with these traits.

    Args:
        answers: of a long schedule.
        view: of the method; ``fair``: whether its server knows what each client sent last.
        steps: [N] the mean local steps.
    """
    clients, weights, p = answers
    q = answers.shares(weights)
    if fair:
        return ArrivalWeights(q, p, p, None)
    by_number = answers.shares(p[clients])
    if view.averaging != "normalized" or view.gradients or not isinstance(view.tau_eff, str):
        return ArrivalWeights(q, q, p, by_number)
    lengths = steps
    if view.tau_eff == "default" and view.solver is not None:
        taken = np.rint(steps).astype(int)
        norms = {tau: float(np.abs(a).sum()) for tau, a in accumulation_vectors(view.solver, np.unique(taken)).items()}
        lengths = np.array([norms[tau] for tau in taken.tolist()])

    def counted(weights: np.ndarray) -> np.ndarray:
        by = np.ones_like(weights) if view.tau_eff == "mean" else weights
        common = np.sum(by * lengths[clients], axis=1) / np.sum(by, axis=1)
        return answers.shares(weights * common[:, None])

    even = np.divide(p, q, out=np.ones_like(p), where=q > 0)
    return ArrivalWeights(q, counted(weights), counted(weights * even[clients]), by_number)


def rules_of(view: View, steps: np.ndarray, weights: np.ndarray) -> tuple[list[UpdateRule] | None, Rounds]:
    """The update rule for each draw of the steps, if known, with the cohorts' mean weights; and the scheme of a round.

    If the rule is not known, or the method does not average, rounds are those of FedAvg.
    """
    if view.solver is None or not is_linear(view.solver):
        return None, Rounds(
            steps, np.broadcast_to(weights, steps.shape), None, view.lr * float(weights @ steps.mean(0))
        )
    vectors = accumulation_vectors(view.solver, np.unique(steps))
    lengths = {tau: float(np.abs(a).sum()) for tau, a in vectors.items()}
    normalized, counted = view.averaging == "normalized", weights > 0  # clients of weight 0 are left out
    rules, shares = [], np.zeros(steps.shape)
    for draw, tau in enumerate(steps[:, counted]):
        p = weights[counted]
        named = {"default": None, "ptau": float(p @ tau / p.sum()), "mean": float(tau.mean())}
        tau_eff = named[view.tau_eff] if isinstance(view.tau_eff, str) else float(view.tau_eff)
        rule = update_rule([vectors[t] for t in tau.tolist()], p, normalized=normalized, tau_eff=tau_eff)
        w = np.zeros(len(weights))
        w[counted] = rule.weights
        scale = rule.tau_eff / np.array([lengths[t] for t in tau.tolist()])
        shares[draw, counted] = scale * rule.weights
        rules.append(rule._replace(weights=w))
    length = float(view.solver.rate()) * float(np.mean([rule.tau_eff for rule in rules]))
    scheme = Rounds(steps, shares, np.stack([rule.weights for rule in rules]), length)
    return (rules if view.averaging is not None else None), scheme


def mean_weights(rules: Sequence[UpdateRule]) -> np.ndarray:
    """w of the mean update, Σ_r τ_eff w: in proportion to the mean of p_i‖a_i‖₁."""
    total = np.sum([rule.tau_eff * rule.weights for rule in rules], axis=0)
    return np.asarray(total / total.sum())


def chi2_of(p: np.ndarray, w: np.ndarray) -> float:
    """χ²(p‖w); infinite where a client that counts never comes."""
    if ((p > 0) != (w > 0)).any():
        return math.inf
    return chi_square(p[p > 0], w[p > 0])
