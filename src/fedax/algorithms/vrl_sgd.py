"""VRL-SGD and FedGATE: local SGD whose steps are corrected by what the client's rounds lacked of the mean.

Liang, Shen, Liu, Pan, Chen and Cheng 2019, "Variance reduced local SGD with lower communication complexity";
Haddadpour, Kamani, Mokhtari and Mahdavi 2021, "Federated learning with compression: unified analysis and sharp
guarantees" (FedGATE, and FedCOMGATE, its form with compression).

| paper | here |
|---|---|
| x̂, x_i | x, y |
| γ (VRL-SGD), η (FedGATE): learning rate; k, τ: local steps | lr, ``oracle.steps`` |
| γ (FedGATE) | server_lr |
| Δ_i (VRL-SGD); −δ_i (FedGATE) | Λ_i, the client's memory |

    Client   y_i: τ_i steps y ← y − η (g_i(y) − Λ_i)
    Server   x_new = x + γ ⟨Δ_j⟩, ⟨Δ_j⟩ = Σ p_j (y_j − x)
    Client   Λ_i ← Λ_i + (⟨Δ_j⟩ − (y_i − x))/(η τ_i)

With a solver the sum D_i of the client's directions g_i − Λ_i, which is sent too, replaces −Δ_i/η:
Λ_i ← Λ_i + (D_i − ⟨D_j⟩)/τ_i.

FedCOMGATE has C(y_i − x) instead of y_i − x, in the mean and in the memory alike. The paper compresses
(x − y_i)/η, which is the same for compressors with C(ax) = a C(x).
"""

from typing import Any, NamedTuple

import jax

from fedax.algorithms.led import DualState
from fedax.algorithms.parts import unbiased
from fedax.contract.algorithm import Exchange, Round, Traits
from fedax.contract.compression import Compressor
from fedax.contract.hyper import hyper
from fedax.contract.local import LocalMethod
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class Between(NamedTuple):
    """What a client holds until it hears the means: its correction, and x/γ + y_i − x or its sum of directions."""

    correction: Vector
    expected: Vector


class VRLSGD(LocalMethod):
    """VRL-SGD, and FedGATE where γ is not 1. With equal steps and exact gradients it
    reaches the optimum of F; all clients take part.

    Published for equal τ_i. With unequal ones τ_i replaces the common number, as Wang et al. 2020 do:
    fixed τ_i lead exactly to the optimum of Σ p_i τ_i F_i instead, and τ_i that change from round to round diverge.

    Args:
        lr: η > 0, the local learning rate.
        server_lr: γ > 0; 1 is VRL-SGD.
        compress: an unbiased compressor of the updates, such as ``QSGD(8)``: FedCOMGATE. ``None`` is off.

    Raises:
        ConfigError: numbers out of range, a compressor that is not unbiased.

    Example:
        >>> VRLSGD(lr=0.05).server_lr
        1.0
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    compress: Compressor | None = unbiased("FedGATE", None)

    def traits(self) -> Traits:
        source = "Liang et al. 2019, Algorithm 1; FedGATE: Haddadpour et al. 2021"
        return Traits("VRL-SGD", source, "all", limit="steps", exact="equal steps")

    def init(self, x: Vector) -> DualState:
        return DualState(x, () if self.solver is None else zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def client(self, download: DualState, memory: Vector, oracle: Oracle) -> tuple[Any, Between]:
        x = download.x
        direction = lambda y, k: oracle.grad(y, k) - memory  # noqa: E731
        if self.solver is not None:
            y, total = self.descend_summed(direction, x, oracle)
            if self.compress is None:
                return (y - x, total), Between(memory, total)
            keys = jax.random.split(oracle.key)
            (update, _), (summed, _) = self.compress.encode(keys[0], y - x), self.compress.encode(keys[1], total)
            return (update, summed), Between(memory, summed.decode())
        y = self.descend(direction, x, oracle)
        sent: Any
        sent, read = y - x, y - x
        if self.compress is not None:
            sent, _ = self.compress.encode(oracle.key, y - x)
            read = sent.decode()
        return sent, Between(memory, x / self.server_lr + read)

    def server(self, server: DualState, mean: Any, round: Round) -> DualState:
        dx, total = (mean, ()) if self.solver is None else mean
        return DualState(server.x + self.server_lr * dx, total)

    def listen(self, download: DualState, memory: Between, oracle: Oracle) -> tuple[None, Vector]:
        """The client hears the new model and corrects its memory."""
        if self.solver is not None:
            return None, memory.correction + (memory.expected - download.total) / oracle.steps
        lacked = download.x / self.server_lr - memory.expected
        return None, memory.correction + lacked / (self.lr * oracle.steps)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange(self.client, self.server), Exchange(self.listen))
