"""Checks of what clients may do: be reordered, split, absent, or take unequal steps."""

from typing import Any

import jax
import numpy as np

from fedax.conformance.problem import COHORTS, FULL, STEPS, WEIGHTS, Fails, NotPromised, TestProblem, flat
from fedax.contract.vector import Vector
from fedax.engine.devices import Place
from fedax.engine.history import Run
from fedax.errors import ConfigError
from fedax.federation.participation import Participation, Uniform

_ORDER = np.array([3, 0, 4, 2, 1])  # new place -> old number


def check_relabelling(problem: TestProblem) -> str:
    place = np.argsort(_ORDER)
    rows = {name: leaf[_ORDER] for name, leaf in problem.data.items()}
    cohorts = [[int(place[i]) for i in reversed(cohort)] for cohort in COHORTS]
    hint = "use no client's place: of round.weights and round.steps take sums and means, no single entry"
    given = {"examples": rows, "weights": WEIGHTS[_ORDER], "cohorts": cohorts}
    what = "clients in another order"
    problem.alike(f"equal steps, {what}", problem.known, problem.model(**given, steps=3), hint)
    return problem.alike(what, problem.base, problem.model(**given, steps=STEPS[_ORDER]), hint)


def check_splitting(problem: TestProblem) -> str:
    """Split client 3 into clients 3 and 5."""
    which = np.array([0, 1, 2, 3, 4, 3])
    weights = WEIGHTS[which] * np.where(which == 3, 0.5, 1.0)
    cohorts = [[*cohort, 5] if 3 in cohort else cohort for cohort in COHORTS]
    rows = {name: leaf[which] for name, leaf in problem.data.items()}
    hint = (
        "the server has to use the mean with its weights, round.weights, round.data_weights and round.total, and no "
        "number of clients; what a client sends must not be scaled by it"
    )
    given = {"examples": rows, "weights": weights, "steps": STEPS[which], "cohorts": cohorts}
    return problem.alike("one client as two", problem.base, problem.model(**given), hint)


def _six(problem: TestProblem) -> dict[str, Any]:
    """Options with a sixth client, of weight 0, in every second round."""
    rows = {
        name: np.concatenate([leaf, leaf[1:2] if name == "y" else 7 * leaf[1:2]]) for name, leaf in problem.data.items()
    }
    cohorts = [[*cohort, 5] if r % 2 == 0 else cohort for r, cohort in enumerate(COHORTS)]
    weights = np.append(WEIGHTS, 0.0)
    return {"examples": rows, "weights": weights, "steps": np.append(STEPS, 3), "cohorts": cohorts}


def check_weight_zero(problem: TestProblem) -> str:
    hint = "its upload is in the mean with weight 0: count no clients, and weigh everything by round.weights"
    return problem.alike("with such a client", problem.base, problem.model(**_six(problem)), hint)


def check_unequal_steps(problem: TestProblem) -> str:
    """Compare steps that are part of the program with the same numbers given when it runs."""
    if problem.unequal:
        raise Fails(f"with unequal steps {problem.unequal}; or promise no more: steps='equal' in traits()")
    if problem.equal:
        raise NotPromised("with these hyper-parameters it is defined for equal steps only")
    steps = np.array([3, 3, 3, 3, 3, 1])  # the sixth has weight 0
    traced = problem.model(**_six(problem) | {"steps": steps})
    hint = "oracle.steps is a number or a traced one: loop by fedax.local_steps"
    text = problem.alike("τ = 3 compiled in, and given", problem.known, traced, hint)
    if problem.all_clients:
        return text
    gradients = {}
    for client in (2, 1):  # τ = 1 and 4
        run = problem.run(cohorts=[[client]] * 6, rounds=1, evaluate_every=1)
        gradients[STEPS[client]] = run.history["gradients"][-1] - run.history["gradients"][0]
    a_step = (gradients[4] - gradients[1]) / 3
    constant = gradients[1] - a_step
    if a_step > 0 and constant < 0:
        raise Fails(f"τ local steps take {a_step:g} τ − {-constant:g} gradients: the loop leaves a step out")
    return f"{text}; gradients of a client: {a_step:g} τ + {constant:g}"


def check_origin(problem: TestProblem) -> str:
    """Move the start and all clients' optima alike: the model moves with them."""
    if problem.own_task:
        raise NotPromised("it is checked on least squares")
    if problem.method.penalty(Vector(problem.start)) is not None:
        raise NotPromised("a regularizer depends on where zero is")
    far = 3.0
    moved = {"x": problem.data["x"], "y": problem.data["y"] + far * (problem.data["x"].sum(axis=-1) + 1)}
    found = problem.model(examples=moved, params=jax.tree.map(lambda leaf: leaf + far, problem.start))
    hint = (
        "a mean of models instead of differences y − x where Σω is not 1 (divide by round.total), or a pull towards "
        "zero, which penalty() declares"
    )
    return problem.compare("start and optima moved by 3", problem.base, found - far, hint)


def check_identical_clients(problem: TestProblem) -> str:
    rows = {name: np.repeat(leaf[:1], 5, axis=0) for name, leaf in problem.data.items()}
    five = problem.model(examples=rows, **FULL)
    one = {name: leaf[:1] for name, leaf in rows.items()}
    single = problem.model(examples=one, weights=np.ones(1), **FULL | {"cohorts": [[0]] * 6})
    hint = "the server has to use the mean of the uploads, not their sum"
    return problem.alike("five and one", single, five, hint)


def check_chunks(problem: TestProblem) -> str:
    hint = "the server must not use how many places there are: empty ones have round.present false"
    return problem.compare("two clients at a time", problem.base, problem.model(place=Place(chunk_size=2)), hint)


def check_places(problem: TestProblem) -> str:
    run = problem.run(place=Place(chunk_size=len(WEIGHTS), client_memory="host", stream=True))
    hint = "client() has to use what it is given only"
    return problem.compare("data and memory on the host", problem.base, flat(run.params), hint)


def check_cohorts(problem: TestProblem) -> str:
    if problem.all_clients:
        try:
            _federation_run(problem, Uniform(2))
        except ConfigError:
            raise NotPromised("it is defined for all clients, and refuses cohorts") from None
        raise Fails("traits() says cohorts='all', and a cohort of two was not refused")
    run = _federation_run(problem, Uniform(2))
    if not np.isfinite(flat(run.params)).all():
        hint = "Σω is not 1 here: divide models and second moments by round.total, or say cohorts='all' in traits()"
        raise Fails(f"two of five clients a round: not finite; {hint}")
    return f"two of five clients a round: loss {run.history['train_loss'][-1]:.4g} after 30 rounds"


def _federation_run(problem: TestProblem, who: Participation) -> Run:
    return problem.run(participation=who, rounds=30, evaluate_every=30)
