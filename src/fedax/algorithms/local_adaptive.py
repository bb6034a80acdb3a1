"""Local adaptivity: Adam at the clients, restarted every round (Local-Adapt), or with a shared scale (Local-AMSGrad).

Local-Adapt: Wang, Xu, Garrett, Charles, Liu and Joshi 2021, "Local adaptivity in federated learning: convergence and
consistency". Local-AMSGrad: Chen, Li and Li 2020, "Toward communication efficient adaptive gradient method".

| paper | here |
|---|---|
| x; x_i; m_i, v_i; v̂ | x; y; m, v; ``server.scale`` |
| η, α (server) | lr, server_lr |

    Local-Adapt, client     m = v = 0; τ_i steps:  m ← β₁m + (1−β₁) g,  v ← β₂v + (1−β₂) g²,  y ← y − η m/(√v + ε)
                            a ← β₁a + (1−β₁)/(√v + ε),  C_i = Σ a
    Local-Adapt, server     Adam (FedAdam) on Σ ω_i Δ_i;  corrected "local": on Σ ω_i Δ_i/C_i;
                            corrected "joint": on (Σ ω_i Δ_i/C_i)/(Σ ω_i/C_i)

    Local-AMSGrad, client   τ steps from its own m_i, v_i:  m, v as above,  y ← y − η m/√v̂
    Local-AMSGrad, server   v̂ ← max(v̂, Σ ω̂_i v_i), with which the clients' last step is taken;  x ← Σ ω̂_i y_i
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedax.algorithms.server import Adaptive
from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.hyper import choice, flag, hyper
from fedax.contract.local import local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class LocalAdaptState(NamedTuple):
    """Local-Adapt's server state: the model, and the server's Adam."""

    x: Vector
    optimizer: Any


class Corrected(NamedTuple):
    """Upload of the joint correction: Δ_i/C_i and 1/C_i."""

    dx: Vector
    inverse: Vector


class LocalAdapt(Algorithm):
    """Local-Adapt: Adam at the clients, begun anew in every round, and Adam at the server.

    Without correction the limit is far from the optimum however small η: unlike clients scale their steps differently.
    Both corrections end at one point, whose error is in proportion to η; ``"joint"`` restores the update's size.

    Args:
        lr: η > 0, the clients' learning rate.
        server_lr: > 0, the server's.
        beta1, beta2: in [0, 1), of both Adams. There is no bias correction.
        eps: ε > 0, of both, outside of the root; the server's v starts at ε².
        correction: ``None``, ``"local"`` or ``"joint"``.

    Source: Wang et al. 2021, Algorithm 1 and its corrections.

    Example:
        >>> LocalAdapt(lr=0.001, server_lr=0.09, correction="joint").beta2
        0.999
    """

    lr: Any = hyper(0.001, "(0, ∞)")
    server_lr: Any = hyper(0.01, "(0, ∞)")
    beta1: Any = hyper(0.9, "[0, 1)")
    beta2: Any = hyper(0.999, "[0, 1)")
    eps: Any = hyper(0.01, "(0, ∞)")
    correction: str | None = choice(None, "local", "joint", off=True)

    def traits(self) -> Traits:
        return Traits("Local-Adapt", "Wang et al. 2021, Algorithm 1")

    def init(self, x: Vector) -> LocalAdaptState:
        return LocalAdaptState(x, self.adam().init(x))

    def download(self, server: LocalAdaptState) -> Vector:
        return server.x

    def adam(self) -> Adaptive:
        """The server's optimizer."""
        return Adaptive("adam", self.server_lr, self.beta1, self.beta2, self.eps)

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Any, Any]:
        x, zero = download, zeros_like(download)

        def step(state: Any, k: Any) -> Any:
            y, m, v, a, total = state
            g = oracle.grad(y, k)
            m, v = self.beta1 * m + (1 - self.beta1) * g, self.beta2 * v + (1 - self.beta2) * (g * g)
            scale = 1 / (v.map(jnp.sqrt) + self.eps)
            a = self.beta1 * a + (1 - self.beta1) * scale
            return y - self.lr * (m * scale), m, v, a, total + a

        y, *_, total = local_steps(step, (x, zero, zero, zero, zero), oracle)
        if self.correction is None:
            return y - x, memory
        dx = (y - x) / total
        return (dx if self.correction == "local" else Corrected(dx, 1 / total)), memory

    def server(self, server: LocalAdaptState, mean: Any, round: Round) -> LocalAdaptState:
        dx = mean
        if self.correction == "joint":  # 1/C is 0 only where nobody of weight took part
            dx = mean.dx / mean.inverse.map(lambda leaf: jnp.where(leaf > 0, leaf, 1.0))
        step, optimizer = self.adam().update(server.optimizer, dx, server.x, self.lr)
        return LocalAdaptState(server.x + step, optimizer)


class LocalAMSGradState(NamedTuple):
    """Local-AMSGrad's server state and download: the model, and the shared second moment v̂."""

    x: Vector
    scale: Vector


class Moments(NamedTuple):
    """A client's own moments."""

    m: Vector
    v: Vector


class AMSGradUpload(NamedTuple):
    """The update of the model before the last step (with ``lag``, after it), and the client's moments (``lag``: v)."""

    dx: Vector
    moments: Any


class LocalAMSGrad(Algorithm):
    """Local-AMSGrad: each client keeps its moments, and all divide by one v̂ that is frozen during the round.

    Published for equal steps, p_i = 1/N and full participation. Unequal p_i, and a cohort's mean instead of all
    clients', are extensions; unequal steps are refused.

    Args:
        lr: η > 0.
        beta1, beta2: in [0, 1).
        eps: > 0, where v̂ starts.
        lag: whether the last step of a round too has the old v̂: one model less to send.

    Source: Chen et al. 2020, Algorithm 3.

    Example:
        >>> LocalAMSGrad(lr=0.001).lag
        False
    """

    lr: Any = hyper(0.001, "(0, ∞)")
    beta1: Any = hyper(0.9, "[0, 1)")
    beta2: Any = hyper(0.999, "[0, 1)")
    eps: Any = hyper(1e-4, "(0, ∞)")
    lag: bool = flag()

    def traits(self) -> Traits:
        return Traits("Local-AMSGrad", "Chen et al. 2020, Algorithm 3", steps="equal", limit="F")

    def init(self, x: Vector) -> LocalAMSGradState:
        return LocalAMSGradState(x, x.map(lambda leaf: jnp.full_like(leaf, self.eps)))

    def init_client(self, x: Vector) -> Moments:
        return Moments(zeros_like(x), zeros_like(x))

    def client(self, download: LocalAMSGradState, memory: Moments, oracle: Oracle) -> tuple[AMSGradUpload, Moments]:
        x, root = download.x, download.scale.map(jnp.sqrt)

        def step(state: Any, k: Any) -> Any:
            _, y, m, v = state
            g = oracle.grad(y, k)
            m, v = self.beta1 * m + (1 - self.beta1) * g, self.beta2 * v + (1 - self.beta2) * (g * g)
            return y, y - self.lr * m / root, m, v

        before, y, m, v = local_steps(step, (x, x, *memory), oracle)
        upload = AMSGradUpload(y - x, v) if self.lag else AMSGradUpload(before - x, Moments(m, v))
        return upload, Moments(m, v)

    def server(self, server: LocalAMSGradState, mean: AMSGradUpload, round: Round) -> LocalAMSGradState:
        v = mean.moments if self.lag else mean.moments.v
        scale = server.scale.map(jnp.maximum, v / round.total)
        x = server.x + mean.dx / round.total
        if not self.lag:
            x = x - self.lr * (mean.moments.m / round.total) / scale.map(jnp.sqrt)
        return LocalAMSGradState(x, scale)
