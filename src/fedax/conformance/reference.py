"""Compare a method with its paper, which its author writes down in NumPy: one round, all clients at once."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedax.conformance.problem import CLOSE, FULL, STEPS, WEIGHTS, Fails, NotPromised, TestProblem, flat
from fedax.contract.schedule import resolve
from fedax.errors import CodeError, call, place_of

Reference = Callable[..., Any]
_CALLED_AS = "reference(method, clients, x, *kept), where all of kept have defaults"
_ALIKE = 0.05  # two directions that differ by less are one, up to a factor


class Clients:
    """The clients of the test problem, all at once: arrays of NumPy with a row for each client.

    Attributes:
        weights: [N, 1] p_i.
        tau: [N, 1] τ_i.
    """

    def __init__(self, problem: TestProblem, weights: np.ndarray, tau: np.ndarray):
        start, unravel = ravel_pytree(problem.start)
        self.weights, self.tau = weights[:, None], tau[:, None]

        def loss(y: Any, examples: Any) -> Any:
            return problem.task.loss(unravel(y), examples, None).mean()

        both = jax.jit(jax.vmap(jax.value_and_grad(loss)))
        self._of = lambda y: both(np.broadcast_to(y, (len(WEIGHTS), len(start))), problem.data)

    def grad(self, y: np.ndarray) -> np.ndarray:
        """[N, d] ∇F_i at each client's row of y, [N, d], or at y, [d]."""
        return np.asarray(self._of(y)[1])

    def loss(self, y: np.ndarray) -> np.ndarray:
        """[N, 1] F_i, likewise."""
        return np.asarray(self._of(y)[0])[:, None]

    def mean(self, v: np.ndarray) -> np.ndarray:
        """Σ p_i v_i of v, [N, …]."""
        total: np.ndarray = (self.weights * v).sum(axis=0)
        return total

    def steps(self, step: Callable[..., Any], *start: Any) -> Any:
        """``step(y)`` τ_i times by each client, from ``start``; of several, ``step(y, m)`` returns all of them."""
        state = [part + np.zeros((len(self.tau), 1)) for part in start]
        for k in range(int(self.tau.max())):
            new = step(*state)
            new = new if isinstance(new, tuple) else (new,)
            state = [np.where(k < self.tau, one, old) for one, old in zip(new, state, strict=True)]
        return tuple(state) if len(state) > 1 else state[0]


class _Both:
    """The models after each round, by the method and by the reference."""

    def __init__(self, problem: TestProblem, reference: Reference, weights: np.ndarray, tau: np.ndarray):
        self._problem, self._reference, self._tau = problem, reference, tau
        self._clients = Clients(problem, weights, tau)
        self.start = flat(problem.start)

    def found(self, rounds: int) -> np.ndarray:
        given = FULL | {"steps": self._tau, "weights": self._clients.weights[:, 0]}
        return self._problem.model(**given, rounds=rounds, evaluate_every=1)

    def round(self, number: int, x: np.ndarray, kept: tuple[Any, ...]) -> tuple[np.ndarray, tuple[Any, ...]]:
        method, function = resolve(self._problem.method, number), self._reference
        found = call("reference", _CALLED_AS, function, method, self._clients, x, *kept)
        x_new, *rest = found if isinstance(found, tuple) else (found,)
        if np.shape(x_new) != x.shape:
            what = f"returned a model of shape {list(np.shape(x_new))}"
            raise CodeError("reference", what, f"return x, [{x.size}], or (x, *kept)", place_of(function))
        return np.asarray(x_new), tuple(rest)

    def wanted(self, rounds: int) -> np.ndarray:
        x, kept = self.start, ()
        for number in range(rounds):
            x, kept = self.round(number, x, kept)
        return x

    def apart(self, rounds: int) -> float:
        """How far the models are apart, as a share of their way."""
        want = self.wanted(rounds)
        moved = float(np.abs(want - self.start).max())
        return float(np.abs(self.found(rounds) - want).max()) / max(moved, 1e-300)

    def first(self) -> tuple[float, float]:
        """The method's first round as a multiple of the reference's, and how large the rest is."""
        return _along(self.found(1) - self.start, self.wanted(1) - self.start)


def check_reference(problem: TestProblem) -> str:
    """Compare six rounds of all clients with the reference's; where they differ, say from which round on and how."""
    reference = problem.reference
    if reference is None:
        why = "no reference= was given, and no other check sees the sign of a perturbation, momentum or control variate"
        raise NotPromised(why)

    def with_steps(*tau: int) -> _Both:
        # The last client takes another number of steps, and does not count: one program serves all.
        weights = np.append(WEIGHTS[:-1] / WEIGHTS[:-1].sum(), 0.0)
        return _Both(problem, reference, weights, np.array(tau))

    both = _Both(problem, reference, WEIGHTS, np.full(5, 3) if problem.equal else STEPS)
    apart = both.apart(6)
    if apart <= CLOSE:
        return f"six rounds of all clients: models {apart:.1e} of their way from the reference's"
    if not both.apart(1) <= CLOSE:
        with_one, with_three = (both, both) if problem.equal else (with_steps(1, 1, 1, 1, 2), with_steps(3, 3, 3, 3, 2))
        raise Fails(f"round 1 is not the reference's: {_first_round(with_one, with_three)}")
    if not both.apart(2) <= CLOSE:
        fresh = both.round(1, both.wanted(1), ())[0]  # as if nothing had been kept
        added = _kept(both.found(2) - fresh, both.wanted(2) - fresh)
        raise Fails(f"round 1 is the reference's, round 2 is not: {added}")
    raise Fails("rounds 1 and 2 are the reference's, later ones are not: see what is added up from round to round")


def _first_round(with_one: _Both, with_three: _Both) -> str:
    if with_one is not with_three and with_one.apart(1) <= CLOSE:
        if with_three.apart(1) <= CLOSE:
            return "with equal steps it is, with unequal ones it is not: the weights of clients with more steps"
        return "with one local step it is: the sign or weight of a pull towards x, of a correction or a local momentum"
    factor, rest = with_one.first()
    if rest > (_ALIKE if with_one is with_three else 1e-6):
        return "it moves in another direction: the sign or size of a perturbation or correction, or clients' weights"
    if factor < 0:
        return "it moves the other way: the sign of the update"
    return f"it moves {factor:.3g} times as far: a step size, or the weight of a gradient"


def _kept(added: np.ndarray, want: np.ndarray) -> str:
    """What the method adds by what is kept between rounds, and what it should add."""
    factor, rest = _along(added, want)
    if np.abs(added).max() <= CLOSE * np.abs(want).max():
        return "what is kept has no effect: return it, and use it"
    if rest < 0.5 and factor < 0:
        return "what is kept between rounds counts the other way: the sign of a momentum or a control variate"
    if rest < _ALIKE:
        return f"what is kept between rounds counts {factor:.3g} times as much: its weight, or the step size in it"
    return "what is kept between rounds is another: the sign or weight of one of its terms"


def _along(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """``one`` as a multiple of the other, and how large the rest is."""
    factor = float(one @ other) / max(float(other @ other), 1e-300)
    return factor, float(np.linalg.norm(one - factor * other)) / max(float(np.linalg.norm(one)), 1e-300)
