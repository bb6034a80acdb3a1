"""Methods with a model for each client: Ditto, MR-MTL and IFCA.

Li, Hu, Beirami and Smith 2021, "Ditto: fair and robust federated learning through personalization", Algorithm 1.
Liu, Hu, Wu and Smith 2022, "On privacy and personalization in cross-silo federated learning", mean-regularised
multi-task learning. Ghosh, Chung, Yin and Ramchandran 2020, "An efficient framework for clustered federated learning",
Algorithm 1, option II.

| papers | here |
|---|---|
| w, v_k (Ditto); w̄, w_k (MR-MTL) | x, the client's memory v |
| η, λ | lr and personal_lr, lam |
| θ_1 … θ_k, s_i | ``server.models``, ``shares`` |

    Ditto    y: τ_i steps y ← y − η g_i(y) from x;   v ← v − η_v (g_i(v) + λ (v − x)), in the same steps
             x ← x + Σ ω_i (y_i − x)
    MR-MTL   v⁺: τ_i steps v ← v − η (g_i(v) + λ (v − x));   x ← x + Σ_S p_i (v_i⁺ − v_i), which is Σ p_i v_i always
    IFCA     j = argmin_j F_i(θ_j);   y: τ_i steps y ← y − η g_i(y) from θ_j
             θ_j ← θ_j + Σ ω_i s_ij (y_i − θ_j) / Σ ω_i s_ij,   s_ij = 1 for the client's choice and else 0
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Change, Exchange, Round, Traits
from fedax.contract.hyper import count, hyper
from fedax.contract.local import LocalMethod, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector


class Ditto(LocalMethod):
    """Ditto: FedAvg, and at each client a model of its own that is pulled to the shared one.

    The pull is to the model x that the client received, so that the shared and the personal steps do not disturb each
    other; both use the same minibatches. The paper's fixed number of personal steps is τ_i here, and its mean over
    clients has the weights ω_i.

    Args:
        lr: η > 0, the learning rate of the shared model.
        personal_lr: η_v > 0, that of the personal models; ``None``: η. It needs η_v (λ + L) < 2 for gradients that are
            L-Lipschitz.
        lam: λ ≥ 0, the pull; 0 is training alone.

    Source: Li et al. 2021, Algorithm 1.

    Example:
        >>> Ditto(lr=0.1, personal_lr=0.05, lam=0.5).lam
        0.5
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    personal_lr: Any = hyper(None, "(0, ∞)", off=True)
    lam: Any = hyper(1.0, "[0, ∞)")

    def traits(self) -> Traits:
        return Traits("Ditto", "Li et al. 2021, Algorithm 1", limit="steps")

    def init(self, x: Vector) -> Vector:
        return x

    def init_client(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Vector, Vector]:
        x, rate = download, self.personal_lr
        if rate is None:
            rate = self.lr if self.solver is None else self.solver.rate()

        def step(state: Any, k: Any) -> Any:
            y, buffer, v = state
            v = v - rate * (oracle.grad(v, k) + self.lam * (v - x))
            return *self.local_step(y, buffer, oracle.grad(y, k), k, x), v

        y, _, v = local_steps(step, (x, self.begin(x), memory), oracle)
        return y - x, v

    def server(self, server: Vector, mean: Vector, round: Round) -> Vector:
        return server + mean

    def personal(self, download: Vector, memory: Vector) -> Vector:
        return memory


class MRMTL(LocalMethod):
    """Mean-regularised multi-task learning: a model at each client, and a pull to the mean of all.

    The shared model is the mean of the personal ones, Σ p_i v_i over all clients, whoever takes part: clients send how
    much theirs changed. One λ goes from training alone, 0, to one model for all, ∞; one gradient a step, and no drift.

    Args:
        lr: η > 0; it needs η (λ + L) < 2 for gradients that are L-Lipschitz.
        lam: λ ≥ 0, the pull to the mean.

    Source: Liu et al. 2022, section 3; the mean of all clients under partial cohorts is an extension.

    Example:
        >>> MRMTL(lr=0.1, lam=0.5).traits().name
        'MR-MTL'
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    lam: Any = hyper(1.0, "[0, ∞)")

    def traits(self) -> Traits:
        return Traits("MR-MTL", "Liu et al. 2022, section 3", fair=True)

    def init(self, x: Vector) -> Vector:
        return x

    def init_client(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Change, Vector]:
        x = download
        v = self.descend(lambda v, k: oracle.grad(v, k) + self.lam * (v - x), memory, oracle)
        return Change(v - memory), v

    def server(self, server: Vector, mean: Vector, round: Round) -> Vector:
        return server + mean

    def personal(self, download: Vector, memory: Vector) -> Vector:
        return memory


class IFCAState(NamedTuple):
    """Server state: the models, leaves [C, ...], and the share of the last cohort that chose each, [C]."""

    models: Vector
    shares: Any


class IFCAUpload(NamedTuple):
    """The update of the chosen model, in its row of C; and a one in its place of C."""

    dx: Vector
    chosen: Any


class IFCA(LocalMethod):
    """IFCA: several models, of which each client trains the one with the least loss on its data.

    A client receives all C models, and takes C forward passes over its data. Equal models would never part: before
    round 0 each takes the local steps of another client, drawn at random. A model that nobody chooses stays as it is.
    What is delivered as the shared model is the one that most of the last cohort chose.

    Args:
        lr: η > 0.
        clusters: C ≥ 1; 1 is FedAvg. Of more than there are clients the rest begin where the task does.

    Source: Ghosh et al. 2020, Algorithm 1 with model averaging (option II). The start is one of those of its authors.

    Example:
        >>> IFCA(lr=0.1, clusters=3).clusters
        3
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    clusters: int = count(2)

    def traits(self) -> Traits:
        return Traits("IFCA", "Ghosh et al. 2020, Algorithm 1", limit="steps" if self.clusters == 1 else "")

    def init(self, x: Vector) -> IFCAState:
        shares = jnp.zeros(self.clusters, jnp.result_type(*jax.tree.leaves(x.tree)))
        return IFCAState(x.map(lambda leaf: jnp.stack([leaf] * self.clusters)), shares)

    def init_client(self, x: Vector) -> Any:
        return jnp.int32(0)

    def download(self, server: IFCAState) -> Vector:
        return server.models

    def model(self, server: IFCAState) -> Vector:
        return _row(server.models, jnp.argmax(server.shares))

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[IFCAUpload, Any]:
        losses = [oracle.full_loss(_row(download, j)) for j in range(self.clusters)] if self.clusters > 1 else [0.0]
        choice = jnp.argmin(jnp.stack(jax.tree.map(jnp.asarray, losses))).astype(jnp.int32)
        return self._trained(download, choice, oracle), choice

    def server(self, server: IFCAState, mean: IFCAUpload, round: Round) -> IFCAState:
        heard = jnp.where(mean.chosen > 0, mean.chosen, 1)
        divided = mean.dx.map(lambda leaf: leaf / heard.reshape(-1, *[1] * (leaf.ndim - 1)))
        return IFCAState(server.models + divided, mean.chosen)

    def warmup(self) -> tuple[Exchange, ...]:
        def client(download: Vector, memory: Any, oracle: Oracle) -> tuple[IFCAUpload, Any]:
            order = jax.random.permutation(oracle.round_key, oracle.num_clients)
            return self._trained(download, order[oracle.client], oracle), memory

        return (Exchange(client, self.server),) if self.clusters > 1 else ()

    def personal(self, download: Vector, memory: Any) -> Vector:
        return _row(download, memory)

    def _trained(self, models: Vector, choice: Any, oracle: Oracle) -> IFCAUpload:
        """What a client sends of the model that it trains; nothing where there is none of that number."""
        start = _row(models, jnp.minimum(choice, self.clusters - 1))
        y = self.descend(oracle.grad, start, oracle)
        chosen = jnp.arange(self.clusters) == choice
        dx = (y - start).map(lambda leaf: jnp.where(chosen.reshape(-1, *[1] * leaf.ndim), leaf, 0))
        return IFCAUpload(dx, chosen.astype(jnp.result_type(*jax.tree.leaves(dx.tree))))


def _row(models: Vector, j: Any) -> Vector:
    """The model of number j."""
    return models.map(lambda leaf: leaf[j])
