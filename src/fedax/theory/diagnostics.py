"""Diagnosis of a problem: the theorems' constants at given models, what a method minimises, and advice.

Symbols and units are those of :mod:`fedax.theory.nova`; :mod:`fedax.theory.measure` says how each is measured.

Sources: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization", for
w, χ², β², κ² and the condition on η; Karimireddy et al. 2020, "SCAFFOLD", for drift; Cheng et al. 2024 for momentum in
the local steps. docs/methods.md says what the other methods minimise; tests check it. docs/asynchronous.md says what
becomes of it where the server does not wait.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedax.contract.algorithm import Algorithm
from fedax.contract.schedule import resolve
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine.arrivals import long_run
from fedax.engine.checks import check_parts
from fedax.engine.load import Shared, start
from fedax.engine.options import Options
from fedax.errors import ConfigError
from fedax.federation.census import Census
from fedax.federation.clock import Clock
from fedax.federation.pace import Async
from fedax.federation.participation import Participation, Uniform
from fedax.federation.work import Work
from fedax.numbers import check_count
from fedax.tasks.task import Task
from fedax.theory.advice import MATERIAL, SAME, Case, Class, View, shown, verdict
from fedax.theory.checks import number
from fedax.theory.measure import Bench, Diagnosis, Point, Rounds, dissimilarity_line
from fedax.theory.reasons import reasons
from fedax.theory.speedup import max_lr, objective_bound
from fedax.theory.surrogate import (
    DRAWS,
    arrivals_of,
    chi2_of,
    draw_cohorts,
    drawn_steps,
    expected_weights,
    mean_weights,
    rules_of,
    view_of,
    weight_square_of,
)

__all__ = ["MATERIAL", "Diagnosis", "diagnose"]

_CLASSES = 1000  # labels with more different values are not treated as classes
_UPDATES = 2**24  # the most numbers in the updates of sampled cohorts; between 8 and 256 cohorts are sampled


def diagnose(
    algorithm: Algorithm,
    task: Task,
    data: FederatedData,
    *,
    work: Work | None = None,
    batch_size: int | None = None,
    participation: Participation | None = None,
    pace: Async | None = None,
    clock: Clock | None = None,
    compress: Any = None,
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
        pace, clock: as of :func:`fedax.simulate`, of a server that does not wait: what it minimises follows from the
            clients' speeds.
        compress: as of :func:`fedax.simulate`, used with ``pace`` only, for how long transfers take.
        points: models to measure at, in the order of training; ``None`` instead of one, or of all, is the model
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
    options = Options(
        rounds=1, work=work, batch_size=batch_size, participation=participation, pace=pace, clock=clock,
        compress=compress, seed=seed,
    ).with_defaults()  # fmt: skip
    check_parts(algorithm, task, Census.of(data) if isinstance(data, FederatedData) else data, options)
    data.check(task)
    entire, task, work, participation = task, task.trained, options.work, options.participation
    assert work is not None and participation is not None
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    tolerance, seed = number("tolerance", tolerance, 1), check_count("seed", seed, 0)
    answers = None
    if pace is not None:
        answers = long_run(algorithm, entire, data, options)
        participation = Uniform(pace.buffer)
    view = view_of(resolve(algorithm, 0), participation, waits=pace is None)
    if pace is not None:
        view = view._replace(averages=False)  # the theorems are about servers that wait
    algorithm.traits().refuse(unequal=work.equal(data.sizes, batch_size) is None)
    models = _models(task, points, seed)

    p, steps = data.weights, drawn_steps(work, data, batch_size, seed)
    expected, heard = expected_weights(participation, p), None
    if answers is not None:
        heard = arrivals_of(answers, view, steps.mean(axis=0), fair=algorithm.traits().fair)
        expected = heard.counted
    rules, scheme = rules_of(view, steps, expected)
    w = p if view.exact else None if rules is None else mean_weights(rules)
    if heard is not None and view.gradients:
        w = expected
    weight_square = 1.0
    if pace is None and not participation.everyone(data.num_clients):
        scheme, weight_square = _with_cohorts(scheme, participation, p, expected, models[0].size, seed)
    bench = Bench(
        task, data, batch_size=batch_size, epochs=work.without_replacement(), rounds=scheme,
        weights=p if w is None else w, solver=view.solver, sample=sample, seed=seed, tolerance=tolerance,
        others={} if heard is None else heard.surrogates(view, steps, p),
    )  # fmt: skip
    measured = tuple(map(bench.measure, models))

    constants = _constants(measured, view, rules, p, w)
    diagnosis = Diagnosis(
        method=view.name,
        clients=data.num_clients,
        steps=(int(steps.min()), int(steps.max())),
        points=measured,
        clients_seen=len(bench.seen),
        weights=w,
        lr=view.lr,
        weight_square=weight_square,
        gained=max(measured[0].loss - measured[-1].loss, 0.0) + measured[-1].left,
        losses=np.stack(bench.losses),
        arrivals=None if heard is None else heard.q,
        **constants,
    )
    unknown = _unknown(diagnosis, view, bench.unconverged)
    if algorithm.penalty(models[0]) is not None:
        unknown.append("All figures are of F alone, without the regulariser ψ of F + ψ.")
    case = Case(
        diagnosis, view, p, batch_size, participation, _classes(data), pace,
        None if heard is None else heard.by_number, data.names or (),
    )  # fmt: skip
    text, take = verdict(case)
    return dataclasses.replace(diagnosis, verdict=text, take=take, advice=tuple(reasons(case)), unknown=tuple(unknown))


def _models(task: Task, points: Sequence[Any] | None, seed: int) -> list[Vector]:
    """The models to measure at."""
    requested = [None] if points is None else points
    models = [start(task, model, seed, Shared(), f"points[{k}]")[1] for k, model in enumerate(requested)]
    if not models:
        raise ConfigError("points", points, "give at least one model, or None for the initial one")
    return models


def _with_cohorts(
    scheme: Rounds, participation: Participation, p: np.ndarray, expected: np.ndarray, parameters: int, seed: int
) -> tuple[Rounds, float]:
    """The rounds with sampled cohorts, and E(Σω)² of their weights."""
    draws = min(256, max(8, _UPDATES // parameters))
    ids, weights = draw_cohorts(participation, p, draws, jax.random.key(seed))
    mean = np.append(np.where(expected > 0, expected, 1.0), 1.0)
    return scheme._replace(ids=ids, ratios=weights / mean[ids]), weight_square_of(participation, p, weights)


def _constants(
    measured: tuple[Point, ...], view: View, rules: Any, p: np.ndarray, w: np.ndarray | None
) -> dict[str, Any]:
    """The constants of the theorems, and what follows from them, as fields of :class:`Diagnosis`."""
    kappa2 = [max(0.0, x.client_gradients - x.surrogate_gradient) for x in measured]
    chi2 = None if w is None else chi2_of(p, w)
    rounds = [] if view.exact or rules is None else [chi2_of(p, rule.weights) for rule in rules]
    L = max(x.smoothness for x in measured)
    line = dissimilarity_line([x.surrogate_gradient for x in measured], [x.client_gradients for x in measured])
    with_limit = rules if rules and view.averages and L > 0 else None
    return {
        "smoothness": L,
        "constant": max(kappa2),
        "line": line,
        "chi2": chi2,
        "chi2_range": (min(rounds), max(rounds)) if len(rounds) > 1 else None,
        "floor": chi2 if chi2 in (None, math.inf) else objective_bound(chi2, 0, dissimilarity=kappa2[-1]).floor,
        "max_lr": max_lr(with_limit, smoothness=L, dissimilarity_factor=line[0]) if with_limit else None,
        "loosest_lr": max_lr(with_limit, smoothness=L) if with_limit else None,
    }


def _classes(data: FederatedData) -> list[Class]:
    """The classes, if labels are whole numbers, one for each example; else none."""
    labels = data.examples.get("y") if isinstance(data.examples, dict) else None
    if labels is None or np.ndim(labels) != 1 or np.asarray(labels).dtype.kind not in "iu":
        return []
    names, place = np.unique(np.asarray(labels), return_inverse=True)
    if not 2 <= len(names) <= _CLASSES:
        return []
    client = np.repeat(np.arange(data.num_clients), data.sizes)
    counts = np.zeros((data.num_clients, len(names)))
    np.add.at(counts, (client, place), 1.0)
    shares = data.weights @ (counts / data.sizes[:, None])
    known = () if data.transform is None else data.transform.classes or ()  # of tables: what a label was in them
    return [
        Class(str(known[int(name)] if known else name), float(shares[k]), tuple(map(int, np.flatnonzero(counts[:, k]))))
        for k, name in enumerate(names)
    ]


def _unknown(f: Diagnosis, view: View, unconverged: int) -> list[str]:
    """Sentences on what the figures cannot tell: those of a table whose condition holds."""
    at = "the one model" if len(f.points) == 1 else f"the {len(f.points)} models"
    some = "" if f.clients_seen == f.clients else f" and {f.clients_seen} of {f.clients} clients"
    low, high = map(shown, f.chi2_range or (0.0, 0.0))
    noise = view.own_steps or view.solver is None  # whether noise is measured
    sentences = [
        (True, f"L is the largest curvature at {at}{some} looked at. Elsewhere it may be larger."),
        (True, f"β² and κ² are the smallest that fit {at}: lower bounds of the theorems' constants."),
        (
            True,
            "What something costs is worked out from the last model as if its curvature held everywhere. Where a run "
            "has converged that is right to within a factor of about two; else what earlier rounds left comes on top.",
        ),
        (True, "Nothing here is about held-out data."),
        (unconverged > 0, f"{unconverged} eigenvalues have not converged: L may be larger."),
        (
            f.chi2_range is not None and f.chi2_range[1] > SAME,
            f"w of {f.method} is the mean of {DRAWS} draws of the random work; single rounds have χ² from {low} to "
            f"{high}.",
        ),
        (
            view.corrected,
            "Noise of cohorts is that for control variates that are fresh; with rare visits it is more.",
        ),
        (
            not view.corrected and not noise,
            f"Noise is not looked at for {f.method}, whose updates are not those of plain local steps.",
        ),
        (
            f.arrivals is not None,
            "Staleness is taken to have nothing to do with an answer, apart from whose it is. What it adds to drift, "
            "and the noise of who answers when, are not looked at.",
        ),
        (not view.averages, f"Which lr the theory of {f.method} asks for is not looked at."),
        (
            view.averages and not view.plain,
            "The condition on lr and the costs are those of plain averaging; this server's optimizer changes the step.",
        ),
    ]
    return [text for holds, text in sentences if holds]
