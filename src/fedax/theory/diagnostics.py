"""What the theorems say about one's own problem: their constants at given models, what a method minimises, advice.

Symbols and units are those of :mod:`fedax.theory.nova`; :mod:`fedax.theory.measure` has how each is measured.

Sources: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization", for
w, χ², β², κ² and the condition on η; Karimireddy et al. 2020, "SCAFFOLD", for drift; Cheng et al. 2024 for momentum in
the local steps. What the other methods minimise is said, and tested, in docs/methods.md.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax import algorithms as methods
from fedax.contract.algorithm import Algorithm
from fedax.contract.local import SGD, Solver, check_linear
from fedax.contract.schedule import Stepwise, resolve
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.errors import ConfigError
from fedax.federation.participation import Dropout, Full, Participation, Trace, Uniform, UniformNormalized
from fedax.federation.work import Epochs, Work
from fedax.numbers import check_count
from fedax.tasks.task import Task
from fedax.theory.checks import number
from fedax.theory.measure import Bench, Point, Rounds, accumulation_vectors, dissimilarity_line
from fedax.theory.nova import UpdateRule, chi_square, update_rule
from fedax.theory.speedup import max_lr, objective_bound

_DRAWS = 50  # of random work
_COHORTS = 2000  # drawn for the mean weights of normalised cohorts
_UPDATES = 2**24  # numbers that the updates of drawn cohorts may hold, of at most 256 and at least 8 cohorts
_SAME = 1e-6  # χ² up to which weights are the same
MATERIAL = 0.002  # of what training gains: a cost that is worth a remedy
# What the advice names, registered methods with the traits that it is about (tests hold them to these).
PLAIN, NORMALIZED, CORRECTED = "fedavg", "fednova", "scaffold"
_OFTEN = 20  # rounds between two visits of a client, up to which its control variate is fresh enough


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found.

    Attributes:
        method: its name in the advice.
        clients: N.
        steps: the fewest and the most local steps of a client in a round.
        points: one :class:`~fedax.theory.measure.Point` a model.
        smoothness: L, the largest over the points.
        clients_seen: the number of clients whose curvature was measured.
        constant: κ² for β² = 1, the largest Σ w_i‖∇F_i − ∇F̃‖² of the points.
        line: another β² and κ² that fit the points, those of :func:`~fedax.theory.measure.dissimilarity_line`.
        weights: [N] w of the surrogate Σ w_i F_i that the method minimises for small η; ``None``: not known.
        chi2, chi2_range: χ²(p‖w); the lowest and the highest of single rounds, where work is random.
        floor: 2χ²κ² with the κ² of the last point, for which ‖∇F‖² ≤ 2‖∇F̃‖² + 2χ²κ² holds with β² = 1: what stays
            of the bound however long the run, if clients remain as unlike.
        lr: η in round 0.
        max_lr: the largest η of Theorems 1 to 3, with the β² of ``line``; ``None`` where they do not cover the method.
        loosest_lr: the same with β² = 1, the loosest case.
        weight_square: E(Σω)² of the cohorts' weights, 1 where they always add up to one.
        gained: what training gains, to which costs are compared: F of the first model less that of the last, and what
            is left there.
        verdict: two sentences: what to take and why, and what comes next, or what it costs.
        take: the method that it says to take instead; empty: to stay with this one.
        advice: the reasons, with figures: on the objective, on drift, on noise, on η.
        unknown: what these figures cannot tell.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> diagnose(fedax.create("fedavg", lr=0.1), task, data).clients
        3
    """

    method: str
    clients: int
    steps: tuple[int, int]
    points: tuple[Point, ...]
    smoothness: float
    clients_seen: int
    constant: float
    line: tuple[float, float]
    weights: np.ndarray | None
    chi2: float | None
    chi2_range: tuple[float, float] | None
    floor: float | None
    lr: float
    max_lr: float | None
    loosest_lr: float | None
    weight_square: float
    gained: float
    verdict: str = ""
    take: str = ""
    advice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def diagnose(
    algorithm: Algorithm,
    task: Task,
    data: FederatedData,
    *,
    work: Work | None = None,
    batch_size: int | None = None,
    participation: Participation | None = None,
    points: Sequence[Any] | None = None,
    seed: int = 0,
    sample: int | None = None,
    tolerance: float = 1e-3,
) -> Diagnosis:
    """Measure the constants of the theorems at some models, and say what follows for a method and its work.

    Losses are taken without the noise that a task itself may draw, such as dropout; schedules at round 0. A point costs
    three passes of gradients over all data, four rounds of local steps with and without drift, and some ten to thirty
    passes of Hessian-vector products over the clients looked at, up to sixty more of all data where these are few.

    Args:
        algorithm, task, data, work, batch_size, participation: as of :func:`fedax.simulate`.
        points: models to measure at, in the order of training; ``None`` in the place of one, or of all, is the model
            that ``simulate`` starts from.
        seed: of that one, of random work and of the minibatches of the local steps.
        sample: clients whose curvature is measured, drawn at random; default: all where examples × parameters is at
            most 5·10⁸, else as many as that lets, at least one.
        tolerance: of an eigenvalue: its residual relative to it, in (0, 1); the error is at most that, and in general
            its square over the relative gap to the next.

    Raises:
        ConfigError, DataError: input that cannot be used.

    Source: Wang et al. 2020, Assumptions 1 to 3, Theorems 1 to 3.

    Example:
        >>> import fedax
        >>> data = fedax.FederatedData({"H": np.ones((2, 1, 1)), "e": np.array([[1.0], [3.0]])}, sizes=[1, 1])
        >>> problem = {"task": fedax.tasks.quadratic(1), "data": data, "work": fedax.Steps([1, 3])}
        >>> found = diagnose(fedax.create("fedavg", lr=0.01), **problem)
        >>> found.weights.tolist(), round(found.chi2, 4), round(found.smoothness, 6)
        ([0.25, 0.75], 0.3333, 1.0)
        >>> diagnose(fedax.create("fednova", lr=0.01), **problem).chi2
        0.0
    """
    work = Epochs(1) if work is None else work
    participation = Full() if participation is None else participation
    _check(algorithm, task, data, work, participation)
    task = task.trained
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    tolerance, seed = number("tolerance", tolerance, 1), check_count("seed", seed, 0)
    view = _view(resolve(algorithm, 0), participation)
    algorithm.traits().refuse(unequal=work.equal(data.sizes, batch_size) is None)
    given = [None] if points is None else points
    models = [_start(task, seed) if model is None else _point(task, model, k) for k, model in enumerate(given)]
    if not models:
        raise ConfigError("points", points, "give at least one model, or None for the initial one")

    p, steps = data.weights, _steps(work, data, batch_size, seed)
    expected = _expected(participation, p)
    rules, made = _rules(view, steps, expected)
    w = p if view.exact else None if rules is None else _mean_weights(rules)
    weight_square = 1.0
    if not participation.everyone(data.num_clients):
        draws = min(256, max(8, _UPDATES // models[0].size))
        ids, weights = _draw(participation, p, draws, jax.random.key(seed))
        mean = np.append(np.where(expected > 0, expected, 1.0), 1.0)
        made = made._replace(ids=ids, ratios=weights / mean[ids])
        weight_square = _weight_square(participation, p, weights)
    bench = Bench(
        task, data, batch_size=batch_size, epochs=work.without_replacement(), rounds=made,
        weights=p if w is None else w, solver=view.solver, sample=sample, seed=seed, tolerance=tolerance,
    )  # fmt: skip
    measured = tuple(map(bench.measure, models))

    kappa2 = [max(0.0, x.client_gradients - x.surrogate_gradient) for x in measured]
    chi2 = None if w is None else _chi2(p, w)
    rounds = [] if view.exact or rules is None else [_chi2(p, rule.weights) for rule in rules]
    L = max(x.smoothness for x in measured)
    line = dissimilarity_line([x.surrogate_gradient for x in measured], [x.client_gradients for x in measured])
    limited = rules if rules and view.averages and L > 0 else None
    found = Diagnosis(
        method=view.name,
        clients=data.num_clients,
        steps=(int(steps.min()), int(steps.max())),
        points=measured,
        smoothness=L,
        clients_seen=len(bench.seen),
        constant=max(kappa2),
        line=line,
        weights=w,
        chi2=chi2,
        chi2_range=(min(rounds), max(rounds)) if len(rounds) > 1 else None,
        floor=chi2 if chi2 is None or chi2 == math.inf else objective_bound(chi2, 0, dissimilarity=kappa2[-1]).floor,
        lr=view.lr,
        max_lr=max_lr(limited, smoothness=L, dissimilarity_factor=line[0]) if limited else None,
        loosest_lr=max_lr(limited, smoothness=L) if limited else None,
        weight_square=weight_square,
        gained=max(measured[0].loss - measured[-1].loss, 0.0) + measured[-1].left,
    )
    unknown = _unknown(found, view, bench.unconverged)
    if algorithm.penalty(models[0]) is not None:
        unknown.append("All figures are of F alone, without the regulariser ψ of F + ψ.")
    words = _Words(found, view, p, batch_size, participation)
    verdict, take = words.verdict()
    return dataclasses.replace(found, verdict=verdict, take=take, advice=tuple(words.advice()), unknown=tuple(unknown))


# ---- what a method minimises


class _View(NamedTuple):
    """A method of round 0 as the theorems see it.

    Attributes:
        solver: by which its clients drift; ``None``: it takes no local steps.
        averaging: ``"weighted"``, w_i ∝ p_i‖a_i‖₁; ``"normalized"``, w_i = p_i; ``None``: for the reason ``why`` it
            is ``exact``, at rest at the optimum of F whatever clients do, or not known.
        corrected: it corrects each client's steps, so that they do not drift.
        tau_eff: FedNova's rule.
        averages: the theorems of Wang et al. cover it, with plain averaging at the server or (not ``plain``) without.
        own_steps: its local steps are the solver's, which else only stand for them.
        remedy: against the bias of unequal work.
    """

    name: str
    lr: float
    solver: Solver | None
    averaging: str | None
    why: str = ""
    exact: bool = False
    corrected: bool = False
    tau_eff: Any = "default"
    averages: bool = False
    plain: bool = True
    own_steps: bool = False
    remedy: str = "Equal steps remove that."


def _view(method: Any, participation: Participation) -> _View:
    if isinstance(method, methods.FedAvg):
        return _averaging(method)
    name, traits, solver = type(method).__name__, method.traits(), getattr(method, "solver", None)
    rate = solver.rate() if isinstance(solver, Solver) else getattr(method, "lr", None)
    rate = rate(0) if isinstance(rate, Stepwise) else rate
    if rate is None:
        raise ConfigError("algorithm", name, "it has no lr by which its local steps could be judged")
    view = functools.partial(_View, name, float(rate))
    own = solver if isinstance(solver, Solver) else SGD(float(rate) * float(traits.own))
    everyone = isinstance(participation, Full)
    if traits.exact == "always" and not traits.corrects:
        return view(None, None, "it takes no local steps, its minibatches make one large one", exact=True)
    if traits.exact == "always" or (traits.exact == "all clients" and everyone):
        return view(own, None, f"it corrects each client's steps by {traits.corrects}", exact=True, corrected=True)
    if traits.exact == "equal steps":
        remedy = f"Steps that change between rounds make it diverge. Equal steps remove that; {CORRECTED} needs none."
        return view(own, "weighted", remedy=remedy)
    if traits.limit and traits.exact == "never":
        return view(own, {"F": "normalized", "steps": "weighted"}[traits.limit])
    return view(own, None, "fedax has no closed form of where it ends")


def _averaging(method: methods.FedAvg) -> _View:
    solver, optimizer = method.solver, method.optimizer
    plain = isinstance(optimizer, methods.Plain) and float(optimizer.server_lr) == 1
    remedy = (
        "FedNova removes what unequal work adds, as equal steps do; momentum at the server only goes to the same wrong "
        "point faster."
    )
    view = functools.partial(_View, lr=float(solver.rate()), solver=solver, plain=plain, own_steps=True, remedy=remedy)
    proximal = isinstance(solver, SGD) and solver.prox is not None
    if isinstance(method.averaging, methods.Normalized):
        rule = method.averaging.tau_eff if method.averaging.rule == "number" else method.averaging.rule
        return view("FedNova", averaging="normalized", tau_eff=rule, averages=True)
    name = "FedProx" if proximal else "FedAvg"
    if not isinstance(method.averaging, methods.Weighted):
        return view(name, averaging=None, why=f"its averaging, {type(method.averaging).__name__}, is not fedax's own")
    if not _linear(solver):
        return view(name, averaging=None, why="its local solver is not linear in the gradients")
    return view(name, averaging="weighted", averages=True)


def _linear(solver: Solver) -> bool:
    try:
        check_linear(solver)
    except ConfigError:
        return False
    return True


def _steps(work: Work, data: FederatedData, batch_size: int | None, seed: int) -> np.ndarray:
    """[draws, N] local steps; one draw where the work is not random."""
    ids, sizes, key = jnp.arange(data.num_clients), jnp.asarray(data.sizes, jnp.int32), jax.random.key(seed)
    draw = jax.jit(lambda k: work.draw(jax.random.fold_in(key, k), ids, sizes, batch_size))
    drawn = np.stack([draw(k) for k in range(_DRAWS)])
    return drawn[:1] if (drawn == drawn[0]).all() else drawn


def _draw(participation: Participation, p: np.ndarray, number: int, key: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights [number, S] of cohorts; of one that is given round by round, all rounds equally often."""
    given = participation.of if isinstance(participation, Dropout) else participation
    table = participation.available if isinstance(participation, Dropout) else None
    rounds = len(table) if table is not None else len(given.cohorts) if isinstance(given, Trace) else 1
    number = max(number, rounds) // rounds * rounds
    known, bound = jnp.asarray(p, float), participation.bind(p)
    draw = jax.jit(lambda at: jax.lax.map(lambda at: bound.draw(at[0], known, at[1])[:2], at))
    ids, weights = draw((jax.random.split(key, number), jnp.arange(number) % rounds))
    return np.asarray(ids), np.asarray(weights, np.float64)


def _expected(participation: Participation, p: np.ndarray) -> np.ndarray:
    """The mean weights E ω_i of cohorts, over their sum: p, unless each cohort's weights are divided by their sum."""
    given, some = participation, False
    if isinstance(participation, Dropout):
        given = participation.of
        some = participation.available is not None or isinstance(given, UniformNormalized | Trace)
    if some or isinstance(given, Trace):
        ids, weights = _draw(participation, p, _COHORTS if some else 1, jax.random.key(0))
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


def _weight_square(participation: Participation, p: np.ndarray, weights: np.ndarray) -> float:
    """E(Σω)², of drawn cohorts' weights where it has no closed form."""
    if not isinstance(participation, Uniform):
        return float(np.mean(weights.sum(1) ** 2))
    N, S = len(p), participation.size
    return 1 + N * (N - S) / (S * max(N - 1, 1)) * float(p @ p - 1 / N)


def _rules(view: _View, steps: np.ndarray, weights: np.ndarray) -> tuple[list[UpdateRule] | None, Rounds]:
    """For the cohorts' mean weights: the update rule of each draw of the steps, if known, and how rounds are made.

    Where the rule is not known, or the method is none of the averaging kind, rounds are those of FedAvg.
    """
    if view.solver is None or not _linear(view.solver):
        return None, Rounds(
            steps, np.broadcast_to(weights, steps.shape), None, view.lr * float(weights @ steps.mean(0))
        )
    vectors = accumulation_vectors(view.solver, np.unique(steps))
    lengths = {tau: float(np.abs(a).sum()) for tau, a in vectors.items()}
    normalized, there = view.averaging == "normalized", weights > 0  # clients that never count are in no rule
    rules, shares = [], np.zeros(steps.shape)
    for draw, tau in enumerate(steps[:, there]):
        p = weights[there]
        named = {"default": None, "ptau": float(p @ tau / p.sum()), "mean": float(tau.mean())}
        tau_eff = named[view.tau_eff] if isinstance(view.tau_eff, str) else float(view.tau_eff)
        rule = update_rule([vectors[t] for t in tau.tolist()], p, normalized=normalized, tau_eff=tau_eff)
        w = np.zeros(len(weights))
        w[there] = rule.weights
        shares[draw, there] = rule.tau_eff * rule.weights / np.array([lengths[t] for t in tau.tolist()])
        rules.append(rule._replace(weights=w))
    length = float(view.solver.rate()) * float(np.mean([rule.tau_eff for rule in rules]))
    made = Rounds(steps, shares, np.stack([rule.weights for rule in rules]), length)
    return (rules if view.averaging is not None else None), made


def _mean_weights(rules: Sequence[UpdateRule]) -> np.ndarray:
    """w of the mean update, Σ_r τ_eff w: in proportion to the mean of p_i‖a_i‖₁."""
    total = np.sum([rule.tau_eff * rule.weights for rule in rules], axis=0)
    return np.asarray(total / total.sum())


def _chi2(p: np.ndarray, w: np.ndarray) -> float:
    if ((p > 0) != (w > 0)).any():  # a client that counts never comes
        return math.inf
    return chi_square(p[p > 0], w[p > 0])


# ---- words


@dataclasses.dataclass(frozen=True)
class _Words:
    """What the figures mean, in sentences; docs/theory.md has the rules."""

    f: Diagnosis
    view: _View
    p: np.ndarray
    batch_size: int | None
    participation: Participation

    @property
    def last(self) -> Point:
        return self.f.points[-1]

    @property
    def least(self) -> float:
        """The cost up to which nothing is worth doing."""
        return MATERIAL * self.f.gained

    @property
    def uneven(self) -> bool:
        """Whether the cohorts' weights add up to one on average only, for clients that weigh differently."""
        drawn = self.participation.of if isinstance(self.participation, Dropout) else self.participation
        return isinstance(drawn, Uniform) and drawn.size < self.f.clients and self.f.weight_square > 1 + _SAME

    def noises(self) -> tuple[float, float]:
        """What the noise of minibatches and that of cohorts cost this method; 0 where it is not known."""
        x = self.last
        if x.noise_cost is None or x.cohort_cost is None or not (self.view.own_steps or self.view.corrected):
            return 0.0, 0.0
        return x.noise_cost, self.free_cohort_cost if self.view.corrected else x.cohort_cost

    @property
    def free_cohort_cost(self) -> float:
        return self.last.free_cohort_cost or 0.0

    def drift_harms(self) -> bool | None:
        """Whether drift costs plain local steps more than noise does, and enough to be seen; ``None``: not known."""
        x = self.last
        if x.drift_cost_range is None or x.noise_cost is None or x.cohort_cost is None:
            return None
        low, high = x.drift_cost_range
        least = max(self.least, x.noise_cost + x.cohort_cost)
        return True if low > least else False if high <= least else None

    def costs(self) -> dict[str, float]:
        """What keeps the method above the optimum."""
        noise, cohort = self.noises()
        known = self.f.chi2 is not None and self.f.chi2 > _SAME
        drift = 0.0 if self.view.corrected else self.last.drift_cost or 0.0
        other = self.last.inconsistency_cost if known else 0.0
        return {"inconsistency": other, "drift": drift, "noise": noise, "cohort": cohort}

    def advice(self) -> list[str]:
        sentences = (self.objective(), self.drift(), self.noise(), self.cohort(), self.sums(), self.rate())
        return [sentence for sentence in sentences if sentence]

    # ---- the verdict

    def verdict(self) -> tuple[str, str]:
        """Two sentences, what to do and what comes next; and the method to take instead of this one, if any."""
        costs = self.costs()
        total = sum(costs.values())
        if not math.isfinite(total + self.f.gained):
            return f"Nothing can be said of {self.f.method}: figures are not finite here. Lower its lr first.", ""
        text, next_, take = self._corrected() if self.view.corrected else self._plain(costs)
        if len(self.f.points) == 1:
            next_ = "This was measured at one model alone; diagnose a run to see what holds at its end."
        elif self.last.left > max(3 * total, self.least):
            ways = "train longer or with a larger lr"
            if self.view.plain and self.view.own_steps:
                ways = "train longer, with a larger lr, or with momentum (mime, fedavg-m, server-momentum)"
            next_ = (
                f"First of all, {ways}: {self._of(self.last.left)} is still to be had so, more than by anything else."
            )
        return f"{text} {next_}".strip(), take

    def _plain(self, costs: dict[str, float]) -> tuple[str, str, str]:
        """What to do with a method that corrects nothing, what comes next, and the method to take instead, if any."""
        name, x = self.f.method, self.last
        worth = {key: cost for key, cost in costs.items() if cost > self.least}
        if "drift" in worth and self.drift_harms() is not True:
            del worth["drift"]
        again = "Think again when clients take more local steps, lr grows, or fewer clients take part in a round."
        if not worth:
            if x.drift_cost is None and self.view.solver is not None:
                why = "its local steps cannot be compared with steps without drift, so that only noise was looked at"
            else:
                much = (
                    f"costs it more than {self._of(sum(costs.values()))}"
                    if any(costs.values())
                    else "costs it anything"
                )
                others = f"control variates ({CORRECTED})"
                if self._by_work:  # it does not have it already
                    others += f" or normalised averaging ({NORMALIZED})"
                why = f"neither that clients are unlike nor noise {much}, so {others} would gain nothing that shows"
            return f"Keep {name}: {why}.", again, ""
        cause = max(worth, key=lambda key: worth[key])
        gain = self._of(worth[cause])
        dear = "They cost twice the traffic, and memory of the model's size at every client"
        if cause == "drift" and (x.free_descent or 0.0) > (x.descent or 0.0):
            return (
                (
                    f"Take {CORRECTED} in place of {name}: its clients' unlike data pull their local models "
                    "apart, and the mean "
                    f"of these rests {gain} above the lowest loss, which control variates take away."
                ),
                (
                    f"{dear}{self._visits()}; "
                    "where that is too dear, take fewer local steps or a smaller lr, and more rounds."
                ),
                CORRECTED,
            )
        if cause == "drift":
            return (
                (
                    f"Keep {name} with fewer local steps or a smaller lr: local models drift so far that their mean "
                    "rests "
                    f"{gain} above the lowest loss, and control variates would not help with steps as long as these."
                ),
                "That costs more rounds; think again once it is done.",
                "",
            )
        if cause == "inconsistency" and self._by_work and self.view.own_steps:
            return (
                (
                    f"Take {NORMALIZED} in place of {name}: clients that work more pull harder, so that {name} "
                    "minimises another "
                    f"objective, {gain} above the lowest loss."
                ),
                (
                    "FedNova counts each client by its weight, and costs one number more in each upload; think again "
                    "when "
                    "all clients take equally many steps."
                ),
                NORMALIZED,
            )
        if cause == "inconsistency":
            way = "equal local steps for all clients" if self._by_work else "cohorts drawn by fedax.Systematic"
            return (
                (
                    f"Keep {name}, with {way}, which costs no traffic: as it is, it minimises another objective, "
                    f"{gain} "
                    "above the lowest loss."
                ),
                again,
                "",
            )
        if cause == "noise":
            return (
                (
                    f"Keep {name}, and let lr decay towards the end or take larger batches: the noise of minibatches "
                    "keeps "
                    f"it {gain} above the lowest loss."
                ),
                "A decay costs nothing, twice the batch twice the computation for half of the noise.",
                "",
            )
        noisy = f"that only some clients take part in a round keeps it {gain} above the lowest loss"
        if self.uneven:
            return (
                (
                    f"Keep {name}, with cohorts drawn by {self._systematic} in place of Uniform: {noisy}, and with "
                    "Uniform "
                    "the weights of a round do not even add up to one."
                ),
                "Systematic costs nothing; the noise that it leaves, twice the clients a round halve.",
                "",
            )
        if self.free_cohort_cost < x.cohort_cost / 2 and self._rounds_between <= _OFTEN:  # type: ignore[operator]
            return (
                (
                    f"Take {CORRECTED} in place of {name}: {noisy}, and control variates leave "
                    f"{self._of(self.free_cohort_cost)} "
                    f"of that, as corrected clients answer much alike."
                ),
                f"{dear}{self._visits()}; or take larger cohorts, of which twice the clients leave half.",
                CORRECTED,
            )
        return (
            (f"Keep {name}, with larger cohorts or an lr that decays towards the end: {noisy}."),
            "Twice the clients leave half of that, for twice the traffic; a decay costs nothing.",
            "",
        )

    def _corrected(self) -> tuple[str, str, str]:
        """:meth:`_plain` of a method that corrects drift."""
        name, x = self.f.method, self.last
        instead = PLAIN if self.f.steps[0] == self.f.steps[1] else NORMALIZED
        if x.drift_cost is None or x.cohort_cost is None:
            return f"Keep {name}: there is nothing here to compare it with.", "", ""
        saved = {"drift": x.drift_cost if self.drift_harms() else 0.0, "cohort": x.cohort_cost - self.free_cohort_cost}
        again = f"Think again when clients take {'fewer' if max(saved.values()) > self.least else 'more'} local steps"
        if saved["drift"] > self.least:
            reason = f"without its corrections drift would keep it {self._of(saved['drift'])} above the lowest loss"
        elif saved["cohort"] > self.least:
            reason = (
                f"that only some clients take part in a round would cost {instead} {self._of(x.cohort_cost)}, and with "
                f"corrections {self._of(self.free_cohort_cost)}"
            )
        else:
            return (
                (
                    f"Take {instead} in place of {name}: what {name} corrects would cost {instead} "
                    f"{self._of(x.drift_cost)} by drift and {self._of(x.cohort_cost)} by the choice of who takes part, "
                    "too little to be worth its price: memory of the model's size at every client, and for most such "
                    "methods twice the traffic."
                ),
                f"{again}, or lr grows.",
                instead,
            )
        return (
            (f"Keep {name}: {reason}."),
            (
                "Its price is memory of the model's size at every client, and for most such methods "
                f"twice the traffic of {instead}{self._visits()}."
            ),
            "",
        )

    @property
    def _by_work(self) -> bool:
        """Whether unequal steps, and not the cohorts' weights, make the objective another one."""
        return self.view.averaging == "weighted" and self.f.steps[0] != self.f.steps[1]

    @property
    def _rounds_between(self) -> float:
        return self.f.clients / min(self.participation.places(self.f.clients), self.f.clients)

    @property
    def _systematic(self) -> str:
        return f'fedax.Systematic({self.participation.places(self.f.clients)}) (participation.kind = "systematic")'

    def _visits(self) -> str:
        rounds = self._rounds_between
        return "" if rounds < 2 else f", and they need clients that come back (here once in about {rounds:.0f} rounds)"

    def _of(self, cost: float) -> str:
        """A cost, and how much of what training gains that is."""
        share = cost / self.f.gained if self.f.gained > 0 and math.isfinite(self.f.gained) else 0.0
        return f"about {_n(cost)} ({_percent(share)} of what training gains)" if cost > 0 else "nothing"

    # ---- the reasons

    def objective(self) -> str:
        """Wang et al. 2020, Theorems 1 and 2."""
        f, view, x = self.f, self.view, self.last
        (low, high), none = f.steps, "No objective inconsistency: "
        if view.exact:
            return f"{none}{f.method} is at rest at the optimum of the data's own objective; {view.why}."
        if f.chi2 is None or f.weights is None or f.floor is None:
            return (
                f"What {f.method} minimises with unlike clients is not known: {view.why}. Compare its "
                "loss with that of "
                f"{NORMALIZED} or {CORRECTED}, which minimise the data's own objective."
            )
        equal, weighted = low == high, view.averaging == "weighted"
        steps = f"every client takes {low} step{'s' * (low > 1)}" if equal else f"clients take {low} to {high} steps"
        if f.chi2 <= _SAME:
            alike = ", but all alike in each" if weighted else f", but {f.method} counts each by its weight"
            nova = "; FedNova would be FedAvg" * (equal and view.averages)
            return f"{none}{steps} a round{'' if equal else alike} (χ² = 0){nova}."
        cohorts = "cohorts' weights are divided by their sum"
        cause = f"{steps} a round" if self._by_work else cohorts
        ratio = np.divide(f.weights, self.p, out=np.ones_like(self.p), where=self.p > 0)
        i = int(np.argmax(ratio))
        worst = (
            "and is still above it: more rounds come first"
            if x.gradient > f.floor
            else "so that this worst case does not occur here"
        )
        small = x.inconsistency_cost <= self.least
        text = (
            f"Objective inconsistency: {cause}, so {f.method} minimises a surrogate whose weights "
            "differ from the data's "
            f"by χ² = {_n(f.chi2)}; client {i} counts {_n(ratio[i])} times what it should. By the "
            "last model's curvature "
            f"it rests {self._of(x.inconsistency_cost)} above the lowest loss for that: "
            f"{'too little to act upon' if small else 'that is worth a remedy'}. (However long the run, ‖∇F‖² may stay "
            f"at up to 2χ²κ² = {_n(f.floor)} by Theorem 2; the last model has {_n(x.gradient)}, {worst}.)"
        )
        if small:
            return text
        if cause is cohorts:
            return f"{text} Uniform or Systematic participation, which do not divide, remove that."
        if isinstance(self.participation, UniformNormalized | Trace | Dropout):
            text += f" Part of it is that {cohorts}; Uniform and Systematic participation do not divide."
        return f"{text} {view.remedy}"

    def drift(self) -> str:
        """What local steps do because they leave x, and clients are unlike: the bias of the mean update."""
        f, view, x = self.f, self.view, self.last
        if f.steps == (1, 1) or x.move is None:
            return ""
        if x.bias is None or x.free_move is None or x.drift_cost is None or x.drift_cost_range is None:
            return (
                "Client drift cannot be told: the local solver is not linear in the gradients, so there are no steps "
                "without drift to compare with. Compare with a run of fewer local steps."
            )
        those = "the local steps" if view.own_steps else f"local steps of plain SGD at {_n(f.lr)}"
        takes = [self._taken(point) for point in f.points]
        text = f"Client drift: because {those} leave the model and clients are unlike, the mean update {takes[-1]}"
        text += f" ({takes[0]} at the first model)" if len(takes) > 1 else ""
        low, high = x.drift_cost_range
        text += f". Left to it, a run rests {self._of(x.drift_cost)} above the lowest loss: "
        noise, harms = (x.noise_cost or 0.0) + (x.cohort_cost or 0.0), self.drift_harms()
        if view.corrected:
            rest = "" if harms else ", and it is too little, or less than noise costs, to be worth a correction"
            return f"{text}{f.method} corrects that{rest}."
        if harms is None:
            return (
                f"{text}whether it harms cannot be told, for the noise of minibatches leaves anything "
                f"from {_n(low)} to "
                f"{_n(high)}. Diagnose with a larger batch to know."
            )
        if harms:
            return (
                f"{text}drift harms here. Control variates ({CORRECTED}) take it away; half "
                "the lr or half the "
                "local steps leave about a quarter, and want twice the rounds."
            )
        if x.drift_cost > self.least:
            return (
                f"{text}less than noise costs ({_n(noise)}), so drift does not harm as long as noise is what it is. "
                "Lower the noise first."
            )
        return f"{text}drift does not harm here, and control variates would gain nothing that shows."

    def _taken(self, x: Point) -> str:
        descent, free = x.descent or 0.0, x.free_descent or 0.0
        if not free > 0:
            return "no longer lowers the loss, with drift or without"
        if not descent > 0:
            return "no longer lowers the loss"
        share = 1 - descent / free
        if share > 0.95:
            return "hardly lowers the loss, where it would without"
        if abs(share) < 0.001:
            return "lowers the loss as much as it would without"
        return f"lowers the loss by {_percent(abs(share))} {'less' if share > 0 else 'more'} than without"

    def noise(self) -> str:
        """The second term of Wang et al. 2020, eq. 97, as rounds show it."""
        x = self.last
        if not self.view.own_steps or not x.variance or x.noise is None or x.noise_cost is None:
            return ""
        act = (
            "too little for lr to decay yet"
            if x.noise_cost <= self.least
            else "let lr decay towards the end, or take larger batches"
        )
        return (
            f"Noise of minibatches: with {self.batch_size} examples each (σ² = {_n(x.variance)}) they "
            "scatter a round's "
            f"update by {self._beside(x.noise)}, which keeps a run at this lr "
            f"{self._of(x.noise_cost)} above the lowest "
            f"loss: {act}."
        )

    def cohort(self) -> str:
        """Karimireddy et al. 2020 have this term, (1 − S/N) ζ²/S, in FedAvg's rate; here drawn and measured."""
        x = self.last
        shown = self.view.own_steps or self.view.corrected
        if not shown or x.cohort_noise is None or x.cohort_cost is None or not x.cohort_noise:
            return ""
        size, free = self.participation.places(self.f.clients), x.free_cohort_noise
        own = free if self.view.corrected and free is not None else x.cohort_noise
        cost = self.noises()[1]
        text = (
            f"Noise of cohorts: with {size} of {self.f.clients} clients a round, who is drawn scatters the update by "
            f"{self._beside(own)}, which keeps a run at this lr {self._of(cost)} above the lowest loss: "
        )
        if cost <= self.least:
            return f"{text}too little for larger cohorts to be worth their traffic."
        text += "larger cohorts, an lr that decays towards the end"
        if self.view.corrected or free is None or not self.free_cohort_cost < cost / 2:
            return f"{text} or momentum at the server help."
        return (
            f"{text} or control variates help, of which fresh ones leave {_n(self.free_cohort_cost)}; they are as old "
            f"as a client's last visit, here about {self._rounds_between:.0f} rounds."
        )

    def sums(self) -> str:
        """Σω is random under Uniform participation with unequal p."""
        if not self.uneven:
            return ""
        excess = self.f.weight_square - 1
        matter = (
            "and methods with momentum or control variates suffer most"
            if excess > 0.01
            else "which is little here, but costs nothing to remove"
        )
        return (
            "Weights of cohorts: clients weigh differently and Uniform draws them alike, so the weights of a round add "
            f"up to one on average only, E(Σω)² = {1 + excess:.4g}. Every round is too long or too short by chance, "
            f"even where all clients agree, {matter}. Take {self._systematic}: as unbiased, no dearer, and its weights "
            "add up to one in every round."
        )

    def _beside(self, noise: float) -> str:
        """A noise beside the mean update, in squares, which is how they add."""
        move = self.last.free_move if self.view.corrected else self.last.move
        if not move:
            return f"{_n(noise)} (root mean square) about a mean of 0"
        return f"{_percent((noise / move) ** 2)} of the mean update's square"

    def rate(self) -> str:
        """The condition of Wang et al. 2020, Theorems 1 to 3; beyond ηL = 2 gradient steps on a quadratic diverge."""
        f, solver, text = self.f, self.view.solver, ""
        first, last = f.points[0].loss, f.points[-1].loss
        if f.max_lr is not None and f.loosest_lr is not None:
            ratio, beta = f.lr / f.max_lr, f.line[0]
            case = (
                "for β² = 1, the loosest case: the models seen show no larger β²"
                if beta == 1
                else f"for β² = {_n(beta)} as measured; for β² = 1, the loosest case, {_n(f.loosest_lr)}"
            )
            reason = f"for L = {_n(f.smoothness)} and the longest work ({case})"
            if ratio <= 1:
                text = f"lr = {_n(f.lr)} meets the theorems' lr ≤ {_n(f.max_lr)} {reason}"
                text += (
                    f". Try a larger one: {_n(1 / ratio)} times as large still does." if ratio < 0.1 else ": keep it."
                )
            else:
                text = f"lr = {_n(f.lr)} is {_times(ratio)} times the {_n(f.max_lr)} up to which the theorems hold "
                text += f"{reason}. "
                if len(f.points) == 1:
                    text += "Their condition is cautious: keep lr while the loss falls, and halve it when it jumps."
                elif last < first:
                    text += (
                        f"Keep it: the loss fell from {_n(first)} to {_n(last)} with it, and their "
                        "condition is cautious. "
                        "Lower it only where the loss jumps."
                    )
                else:
                    text += f"Lower it: the loss went from {_n(first)} to {_n(last)} with it."
        overshoot = f.lr * f.smoothness
        plain = isinstance(solver, SGD) and solver.momentum is None and solver.decay is None
        if self.view.own_steps and plain and overshoot > 2:
            text += (
                f" lr · L = {_n(overshoot)} is above 2: along the sharpest direction of some client's loss local steps "
                f"overshoot and grow until the curvature falls. If the loss jumps, take lr below 2/L = "
                f"{_n(2 / f.smoothness)}."
            )
        return text.strip()


def _unknown(f: Diagnosis, view: _View, unconverged: int) -> list[str]:
    at = "the one model" if len(f.points) == 1 else f"the {len(f.points)} models"
    some = "" if f.clients_seen == f.clients else f" and {f.clients_seen} of {f.clients} clients"
    texts = [
        f"L is the largest curvature at {at}{some} looked at. Elsewhere it may be larger.",
        f"β² and κ² are the smallest that fit {at}: lower bounds of the theorems' constants.",
        "What something costs is worked out from the last model as if its curvature held everywhere. Where a run has "
        "converged that is right to within a factor of about two; else what earlier rounds left comes on top.",
        "Nothing here is about held-out data.",
    ]
    if unconverged:
        texts.append(f"{unconverged} eigenvalues have not converged: L may be larger.")
    if f.chi2_range is not None and f.chi2_range[1] > _SAME:
        low, high = map(_n, f.chi2_range)
        texts.append(f"w is the mean of {_DRAWS} draws of the random work; single rounds have χ² from {low} to {high}.")
    if view.corrected:
        texts.append("Noise of cohorts is that for control variates that are fresh; with rare visits it is more.")
    elif not view.own_steps and view.solver is not None:
        texts.append(f"Noise is not looked at for {f.method}, whose updates are not those of plain local steps.")
    if not view.averages:
        texts.append(f"Which lr the theory of {f.method} asks for is not looked at.")
    elif not view.plain:
        texts.append(
            "The condition on lr and the costs are those of plain averaging; this server's optimizer changes the step."
        )
    return texts


def _n(value: float) -> str:
    return f"{value:.3g}"


def _times(ratio: float) -> str:
    return _n(ratio) if ratio < 1000 else f"{ratio:,.0f}"


def _percent(share: float) -> str:
    if share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


# ---- input


def _check(algorithm: Any, task: Any, data: Any, work: Any, participation: Any) -> None:
    for name, value, kind, way_out in (
        ("algorithm", algorithm, Algorithm, "give a method, for instance fedax.create('fedavg', lr=0.1)"),
        ("task", task, Task, "give a fedax.Task, for instance one of fedax.tasks"),
        ("data", data, FederatedData, "give a fedax.FederatedData"),
        ("work", work, Work, "give Steps, Epochs, RandomEpochs, RandomSteps, GeometricSteps or Deadline"),
        ("participation", participation, Participation, "give Full, Uniform, Proportional, ... or Trace"),
    ):
        if not isinstance(value, kind):
            raise ConfigError(name, value, way_out)
    algorithm.validate()
    work.validate(data.sizes)
    participation.validate(data.num_clients, 1)
    data.check(task)


def _start(task: Task, seed: int) -> Vector:
    """The model from which :func:`fedax.simulate` starts."""
    key = jax.random.fold_in(jax.random.key(seed), jnp.iinfo(jnp.int32).max - 1)
    return Vector(task.init(key))


def _point(task: Task, params: Any, k: int) -> Vector:
    expected = jax.eval_shape(task.init, jax.random.key(0))
    own: Any = jax.tree.structure(expected)
    if own != jax.tree.structure(params):
        raise ConfigError(f"points[{k}]", jax.tree.structure(params), f"the task's are {own}")
    for (path, want), got in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(params), strict=True):
        field = f"points[{k}]{jax.tree_util.keystr(path)}"
        if jnp.shape(got) != want.shape:
            raise ConfigError(field, jnp.shape(got), f"the task's shape is {want.shape}")
        if not np.isfinite(np.asarray(got, float)).all():
            raise ConfigError(field, got, "there are values that are not finite; leave this model out")
    return Vector(jax.tree.map(lambda got, want: jnp.asarray(np.array(got, want.dtype)), params, expected))
