"""STEM: a direction of recursive variance reduction that is averaged together with the model.

Khanduri, Sharma, Yang, Hong, Liu, Rajawat and Varshney 2021, "STEM: a stochastic two-sided momentum algorithm achieving
near-optimal sample and communication complexities for federated learning".

| paper | here |
|---|---|
| x̄_t, x_t^{(k)} | x, y |
| d_t^{(k)} | d |
| η_t | ``lr(t)`` |
| a_{t+1} = c η_t² | ``alpha(t)``, weight of the new gradient |

    Client   for t = rK + k:  y_new = y − η_t d;   d ← g_i(y_new) + (1 − a_{t+1}) (d − g_i(y))    same minibatch twice
    Server   x ← Σ ω̂_i y_i;   d ← Σ ω̂_i d_i
"""

from typing import Any, NamedTuple

from fedax.algorithms.parts import first_gradients
from fedax.contract.algorithm import Exchange, Round, Traits
from fedax.contract.hyper import choice, count, hyper
from fedax.contract.local import LocalMethod, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class STEMState(NamedTuple):
    """Server state and download: model and direction. Upload: the change of the model, and the direction."""

    x: Vector
    d: Vector


class STEM(LocalMethod):
    """STEM: two-sided momentum, with rates that change from one local step to the next.

    Published for equal steps, p_i = 1/N and full participation. Extensions: unequal p_i; with ``prev="averaged"`` a
    cohort's mean instead of all clients'. Unequal steps are refused.

    Args:
        lr: η_t > 0, a number or a schedule of the global step t; the paper's is ``PowerDecay(κ, w, 1/3)``.
        alpha: a_{t+1} in (0, 1] of step t, a number or a schedule; the paper's c η_t² is ``PowerDecay(c·κ², w, 2/3)``.
        prev: the old point of a round's first correction: ``"averaged"``, the model with which the round began;
            ``"local"``, the client's own last local model, as the original seems to read (memory; all clients).
        warmup_batches: d starts at the mean of so many minibatch gradients of every client at x^0; ``None``: at zero.

    Source: Khanduri et al. 2021, Algorithm 1.

    Example:
        >>> from fedax.contract.schedule import PowerDecay
        >>> method = STEM(lr=PowerDecay(0.1, 100.0, 1 / 3), alpha=PowerDecay(2000 * 0.1**2, 100.0, 2 / 3))
        >>> round(float(method.alpha(0)), 3)
        0.928
    """

    lr: Any = hyper(0.05, "(0, ∞)", by_step=True)
    alpha: Any = hyper(0.1, "(0, 1]", by_step=True)
    prev: str = choice("averaged", "averaged", "local")
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        local = self.prev == "local"
        name, source = "STEM with prev='local'" if local else "STEM", "Khanduri et al. 2021, Algorithm 1"
        return Traits(name, source, "all" if local else "any", "equal", limit="F")

    def init(self, x: Vector) -> STEMState:
        return STEMState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Any:
        return x if self.prev == "local" else ()

    def client(self, download: STEMState, memory: Any, oracle: Oracle) -> tuple[STEMState, Any]:
        x, d = download

        def step(state: Any, k: Any) -> Any:
            old, y, buffer, d = state
            t = oracle.t(k)
            y, buffer = self.local_step(y, buffer, d, k, x, self.lr(t))
            return y, y, buffer, oracle.grad(y, k) + (1 - self.alpha(t)) * (d - oracle.grad(old, k))

        _, y, _, d = local_steps(step, (memory if self.prev == "local" else x, x, self.begin(x), d), oracle)
        return STEMState(y - x, d), y if self.prev == "local" else ()

    def server(self, server: STEMState, mean: STEMState, round: Round) -> STEMState:
        return STEMState(server.x + mean.x / round.total, mean.d / round.total)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: server._replace(d=g))
