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
from fedax.algorithm import Algorithm
from fedax.data.federated import FederatedData
from fedax.errors import ConfigError
from fedax.local import SGD, Solver, check_linear
from fedax.numbers import check_count
from fedax.participation import Dropout, Full, Participation, Trace, UniformNormalized
from fedax.schedule import Stepwise, resolve
from fedax.tasks.task import Task
from fedax.theory.checks import number
from fedax.theory.measure import Bench, Point, accumulation_vectors, dissimilarity_line
from fedax.theory.nova import UpdateRule, chi_square, update_rule
from fedax.theory.speedup import max_lr, objective_bound
from fedax.vector import Vector
from fedax.work import Epochs, Work

_DRAWS = 50  # of random work
_COHORTS = 2000  # drawn for the mean weights of normalised cohorts
_SAME = 1e-6  # χ² up to which weights are the same


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
        max_lr: the largest η of Theorems 1 to 3, with β² = 1; ``None`` where they do not cover the method.
        advice: sentences with reason and figures: on the objective, on drift, on noise, on η.
        unknown: what these figures cannot tell.
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
    two passes of gradients over all data, four rounds of local steps, and some ten to thirty passes of Hessian-vector
    products over the clients looked at.

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
    if view.equal_only and work.equal(data.sizes, batch_size) is None:
        raise ConfigError("work", type(work).__name__, f"{view.name} needs equal local steps; give Steps(10)")
    given = [None] if points is None else points
    models = [_start(task, seed) if model is None else _point(task, model, k) for k, model in enumerate(given)]
    if not models:
        raise ConfigError("points", points, "give at least one model, or None for the initial one")

    p, steps = data.weights, _steps(work, data, batch_size, seed)
    rules = _rules(view, steps, _expected(participation, p))
    w = p if view.exact else None if rules is None else _mean_weights(rules)
    bench = Bench(
        task, data, batch_size=batch_size, epochs=work.epochs(), steps=steps, weights=p if w is None else w,
        solver=view.solver, sample=sample, seed=seed, tolerance=tolerance,
    )  # fmt: skip
    measured = tuple(map(bench.measure, models))

    kappa2 = [max(0.0, x.client_gradients - x.surrogate_gradient) for x in measured]
    chi2 = None if w is None else _chi2(p, w)
    rounds = [] if view.exact or rules is None else [_chi2(p, rule.weights) for rule in rules]
    L = max(x.smoothness for x in measured)
    found = Diagnosis(
        method=view.name,
        clients=data.num_clients,
        steps=(int(steps.min()), int(steps.max())),
        points=measured,
        smoothness=L,
        clients_seen=len(bench.seen),
        constant=max(kappa2),
        line=dissimilarity_line([x.surrogate_gradient for x in measured], [x.client_gradients for x in measured]),
        weights=w,
        chi2=chi2,
        chi2_range=(min(rounds), max(rounds)) if len(rounds) > 1 else None,
        floor=chi2 if chi2 is None or chi2 == math.inf else objective_bound(chi2, 0, dissimilarity=kappa2[-1]).floor,
        lr=view.lr,
        max_lr=max_lr(rules, smoothness=L) if view.averages and rules and L > 0 else None,
    )
    unknown = _unknown(found, view, participation, bench.unconverged)
    if algorithm.penalty(models[0]) is not None:
        unknown.append("All figures are of F alone, without the regulariser ψ of F + ψ.")
    advice = _advice(found, view, data.weights, batch_size, participation)
    return dataclasses.replace(found, advice=tuple(advice), unknown=tuple(unknown))


# ---- what a method minimises


class _View(NamedTuple):
    """A method of round 0 as the theorems see it.

    Attributes:
        solver: by which its clients drift; ``None``: it takes no local steps.
        averaging: ``"weighted"``, w_i ∝ p_i‖a_i‖₁; ``"normalized"``, w_i = p_i; ``None``: for the reason ``why`` it
            is ``exact``, at rest at the optimum of F whatever clients do, or not known.
        tau_eff: FedNova's rule.
        averages: the theorems of Wang et al. cover it, with plain averaging at the server or (not ``plain``) without.
        own_steps: its local steps are the solver's, which else only stand for them.
        equal_only: it is defined for equal steps.
        remedy: against the bias of unequal work.
    """

    name: str
    lr: float
    solver: Solver | None
    averaging: str | None
    why: str = ""
    exact: bool = False
    tau_eff: Any = "default"
    averages: bool = False
    plain: bool = True
    own_steps: bool = False
    equal_only: bool = False
    remedy: str = "Equal steps remove that."


_CORRECTED = (
    methods.FedNovaVR, methods.Scaffold, methods.ScaffoldWithMomentum, methods.ScaffoldWithMomentumVR, methods.LED,
    methods.Scaffnew, methods.FedDyn, methods.CELSGD, methods.BVRLSGD,
)  # fmt: skip
_WITHOUT_LOCAL_STEPS = (methods.MBStorm, methods.FedDADistributed)
_BY_STEP = (methods.FedAvgWithMomentum, methods.FedAvgWithMomentumVR, methods.FedGLOMO)
_EQUAL_ONLY = (methods.STEM, methods.NesterovFedAvg, methods.FedMaSS, methods.FedDA, methods.LocalAMSGrad)


def _view(method: Any, participation: Participation) -> _View:
    name = type(method).__name__
    if isinstance(method, methods.FedAvg):
        return _averaging(method)
    solver = getattr(method, "solver", None)
    rate = solver.rate() if isinstance(solver, Solver) else getattr(method, "lr", None)
    rate = rate(0) if isinstance(rate, Stepwise) else rate
    if rate is None:
        raise ConfigError("algorithm", name, "it has no lr by which its local steps could be judged")
    view = functools.partial(_View, name, float(rate))
    solver = solver if isinstance(solver, Solver) else SGD(float(rate))
    if isinstance(method, _WITHOUT_LOCAL_STEPS):
        return view(None, None, "it takes no local steps, its minibatches make one large one", exact=True)
    if isinstance(method, _CORRECTED) or (isinstance(method, methods.FedPD) and method.skip is None):
        return view(solver, None, "it corrects each client's steps by what the others' gradients are", exact=True)
    if isinstance(method, methods.Mime | methods.MimeMVR) and not method.lite and isinstance(participation, Full):
        return view(solver, None, "it corrects each client's steps by the mean gradient of all", exact=True)
    if isinstance(method, _BY_STEP):
        return view(solver, "normalized")
    if isinstance(method, _EQUAL_ONLY):
        return view(solver, "normalized", equal_only=True)
    if isinstance(method, methods.VRLSGD):
        remedy = (
            "Steps that change between rounds make it diverge. Equal steps remove that; led and scaffold need none."
        )
        return view(solver, "weighted", remedy=remedy)
    if isinstance(method, methods.FedDualAvg):
        return view(solver, "weighted")
    return view(solver, None, "fedax has no closed form of where it ends")


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


def _expected(participation: Participation, p: np.ndarray) -> np.ndarray:
    """The mean weights E ω_i of cohorts, over their sum: p, unless each cohort's weights are divided by their sum."""
    if isinstance(participation, Dropout):
        drawn_by, table = participation.of, participation.available
        if table is None and not isinstance(drawn_by, UniformNormalized | Trace):
            return p
        rounds = len(table) if table is not None else len(drawn_by.lengths) if isinstance(drawn_by, Trace) else 1
        number = max(_COHORTS, rounds) // rounds * rounds
        keys, indices = jax.random.split(jax.random.key(0), number), np.arange(number) % rounds
        found = jax.vmap(participation.draw, in_axes=(0, None, 0))(keys, jnp.asarray(p), indices)
        total = np.zeros(len(p) + 1)
        np.add.at(total, np.asarray(found.ids), np.asarray(found.weights, np.float64))
        return total[:-1] / total.sum()
    if isinstance(participation, Trace):
        total = np.zeros(len(p) + 1)
        for index in range(len(participation.lengths)):
            drawn = participation.draw(None, jnp.asarray(p), index)
            np.add.at(total, np.asarray(drawn.ids), np.asarray(drawn.weights, np.float64))
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


def _rules(view: _View, steps: np.ndarray, weights: np.ndarray) -> list[UpdateRule] | None:
    """The update rule of each draw of the steps, for the cohorts' mean weights."""
    if view.averaging is None or view.solver is None:
        return None
    vectors = accumulation_vectors(view.solver, np.unique(steps))
    there = weights > 0  # clients that never count are in no rule
    found = []
    for tau in steps[:, there]:
        p = weights[there]
        named = {"default": None, "ptau": float(p @ tau / p.sum()), "mean": float(tau.mean())}
        tau_eff = named[view.tau_eff] if isinstance(view.tau_eff, str) else float(view.tau_eff)
        rule = update_rule(
            [vectors[t] for t in tau.tolist()], p, normalized=view.averaging == "normalized", tau_eff=tau_eff
        )
        w = np.zeros(len(weights))
        w[there] = rule.weights
        found.append(rule._replace(weights=w))
    return found


def _mean_weights(rules: Sequence[UpdateRule]) -> np.ndarray:
    """w of the mean update, Σ_r τ_eff w: in proportion to the mean of p_i‖a_i‖₁."""
    total = np.sum([rule.tau_eff * rule.weights for rule in rules], axis=0)
    return np.asarray(total / total.sum())


def _chi2(p: np.ndarray, w: np.ndarray) -> float:
    if ((p > 0) != (w > 0)).any():  # a client that counts never comes
        return math.inf
    return chi_square(p[p > 0], w[p > 0])


# ---- words


def _advice(
    f: Diagnosis, view: _View, p: np.ndarray, batch_size: int | None, participation: Participation
) -> list[str]:
    sentences = (_objective(f, view, p, participation), _drift(f, view), _noise(f, view, batch_size), _rate(f, view))
    return [sentence for sentence in sentences if sentence]


def _objective(f: Diagnosis, view: _View, p: np.ndarray, participation: Participation) -> str:
    """Wang et al. 2020, Theorems 1 and 2."""
    (low, high), none = f.steps, "No objective inconsistency: "
    if view.exact:
        return f"{none}{f.method} is at rest at the optimum of the data's own objective; {view.why}."
    if f.chi2 is None or f.weights is None or f.floor is None:
        return f"What {f.method} minimises with unlike clients is not known: {view.why}."
    equal, weighted = low == high, view.averaging == "weighted"
    steps = f"every client takes {low} step{'s' * (low > 1)}" if equal else f"clients take {low} to {high} steps"
    if f.chi2 <= _SAME:
        reason = (
            "" if equal else ", but all alike in each" if weighted else f", but {f.method} counts each by its weight"
        )
        return f"{none}{steps} a round{reason} (χ² = 0){'; FedNova would be FedAvg' * (equal and view.averages)}."
    cohorts = "cohorts' weights are divided by their sum"
    cause = f"{steps} a round" if weighted and not equal else cohorts
    ratio = np.divide(f.weights, p, out=np.ones_like(p), where=p > 0)
    i, last = int(np.argmax(ratio)), f.points[-1]
    text = (
        f"Objective inconsistency: {cause}, so {f.method} minimises a surrogate whose weights differ from the data's "
        f"by χ² = {_n(f.chi2)}; client {i} counts {_n(ratio[i])} times what it should. With clients as unlike as at "
        f"the last model, ‖∇F‖² may stay at up to 2χ²κ² = {_n(f.floor)} however long the run; there it is "
        f"{_n(last.gradient)}, the surrogate's {_n(last.surrogate_gradient)}. "
    )
    if cause is cohorts:
        return f"{text}Uniform participation, which does not divide, removes that."
    if isinstance(participation, UniformNormalized | Trace | Dropout):
        text += f"Part of it is that {cohorts}; uniform participation does not divide. "
    return text + view.remedy


def _drift(f: Diagnosis, view: _View) -> str:
    """Karimireddy et al. 2020, section 3; the fourth term of Wang et al. 2020, eq. 97."""
    last = f.points[-1]
    if last.drift is None or last.move is None:
        return f"No client drift: {f.method} takes no local steps."
    if last.drift == 0:
        return "No client drift: the local models stay together."
    ratio = last.drift / last.move if last.move else math.inf
    text = (
        f"Client drift: after {'the local steps' if view.own_steps else f'local steps of plain SGD at {_n(f.lr)}'} the "
        f"models lie {_n(last.drift)} from their mean (root mean square), {_n(ratio)} times as far as the mean moves"
    )
    if view.exact:
        return f"{text}; {f.method} corrects that."
    if ratio < 1:
        return f"{text}: the clients mostly agree."
    noise = _share(last.drift_noise, last.drift)
    text += f"; {_percent(noise)} of its square comes of the minibatches"
    if noise > 0.5:
        return text + ". So a larger batch, more clients or a smaller lr help; control variates do not."
    return text + (
        ", the rest of the clients' unlike data and work. Control variates (scaffold; fednova-vr) take away the bias "
        "that it leaves, fedavg-m drifts as at the lr βη; fewer steps or a smaller lr cost progress."
    )


def _noise(f: Diagnosis, view: _View, batch_size: int | None) -> str:
    """The second term of Wang et al. 2020, eq. 97, as far as a round shows it."""
    last = f.points[-1]
    if not view.own_steps or not last.variance:
        return ""
    noise = _share(last.move_noise, last.move)
    return (
        f"Noise: minibatches of {batch_size} have σ² = {_n(last.variance)} at the last model and make up "
        f"{_percent(noise)} of the square of the mean's move: "
    ) + (
        "lr need not decay yet."
        if noise <= 0.5
        else "more noise than direction, so let lr decay or take larger batches."
    )


def _rate(f: Diagnosis, view: _View) -> str:
    """The condition of Wang et al. 2020, Theorems 1 to 3; beyond ηL = 2 gradient descent on a quadratic diverges."""
    text = ""
    if f.max_lr is not None:
        ratio, reason = f.lr / f.max_lr, f"for L = {_n(f.smoothness)} and the longest work"
        if ratio <= 1:
            text = f"lr = {_n(f.lr)} meets the theorems' lr ≤ {_n(f.max_lr)}, {reason}"
            text += f"; it could be {_n(1 / ratio)} times as large." if ratio < 0.1 else "."
        else:
            text = (
                f"lr = {_n(f.lr)} is {_n(ratio)} times what the theorems ask for, {_n(f.max_lr)} {reason}. That is "
                "sufficient, not necessary: runs often do well beyond, but the bounds then promise nothing."
            )
    solver, overshoot = view.solver, f.lr * f.smoothness
    plain = isinstance(solver, SGD) and solver.momentum is None and solver.decay is None
    if view.own_steps and plain and overshoot > 2:
        text += (
            f" lr · L = {_n(overshoot)} is above 2: along the sharpest direction of some client's loss local steps "
            "overshoot and grow until the curvature falls."
        )
    return text.strip()


def _unknown(f: Diagnosis, view: _View, participation: Participation, unconverged: int) -> list[str]:
    at = "the one model" if len(f.points) == 1 else f"the {len(f.points)} models"
    some = "" if f.clients_seen == f.clients else f" and {f.clients_seen} of {f.clients} clients"
    texts = [
        f"L is the largest curvature at {at}{some} looked at. Elsewhere it may be larger.",
        f"β² and κ² are the smallest that fit {at}: lower bounds of the theorems' constants.",
        "2χ²κ² bounds ‖∇F‖², and does not predict it; nothing here is about held-out data.",
    ]
    if unconverged:
        texts.append(f"{unconverged} eigenvalues have not converged: L may be larger.")
    if not isinstance(participation, Full):
        texts.append("w is the mean over cohorts. Drift and noise are those of all clients; a cohort has more of both.")
    if f.chi2_range is not None and f.chi2_range[1] > _SAME:
        low, high = map(_n, f.chi2_range)
        texts.append(f"w is the mean of {_DRAWS} draws of the random work; single rounds have χ² from {low} to {high}.")
    if view.averaging is not None:
        texts.append(
            "w holds for small lr. At a finite one drift moves the end point further; how far is not measured."
        )
    if not view.averages:
        texts.append(f"Which lr the theory of {f.method} asks for is not looked at.")
    elif not view.plain:
        texts.append("The condition on lr is that of plain averaging; this server's optimizer changes the step.")
    return texts


def _n(value: float) -> str:
    return f"{value:.3g}"


def _share(part: float | None, whole: float | None) -> float:
    return min((part / whole) ** 2, 1.0) if part and whole else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"


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
