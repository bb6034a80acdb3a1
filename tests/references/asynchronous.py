"""FedAsync, FedBuff, CA2FL, ACE, AREA, FADAS, Ringmaster, Ringleader, Delayed Nesterov over the event queue, in NumPy.

Clients are F_i(x) = ½ xᵀA_i x − b_iᵀx with full gradients, and F = Σ p_i F_i. A `Method` is what `queue.run`
needs: the server's first state, the clients' first memories, the work and the server's step. `go` runs one.

Δ_i = y_i − x, where y_i is client i's model after its τ_i local steps at rate `lr` from the model x of its start.
ω is the weight and s the staleness of an answer, K how many answers a step takes in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import queue

Weight = Callable[[int], float]  # of the staleness


@dataclass(frozen=True)
class Clients:
    """N quadratic clients in R^d."""

    A: np.ndarray  # [N, d, d]
    b: np.ndarray  # [N, d]
    p: np.ndarray  # [N], the objective's weights
    tau: np.ndarray  # [N], local steps

    def gradient(self, i: int, x: np.ndarray) -> np.ndarray:
        """∇F_i(x)."""
        return self.A[i] @ x - self.b[i]

    def local(self, i: int, x: np.ndarray, lr: float, rho: float = 0.0) -> np.ndarray:
        """y after τ_i steps y ← y − lr (∇F_i(y) + ρ (y − x)) from y = x."""
        y = x
        for _ in range(int(self.tau[i])):
            y = y - lr * (self.gradient(i, y) + rho * (y - x))
        return y

    def optimum(self, q: Sequence[float] | None = None) -> np.ndarray:
        """The minimiser of Σ q_i F_i; q = p unless given."""
        q = self.p if q is None else np.asarray(q)
        return np.linalg.solve(np.einsum("n,nij->ij", q, self.A), np.einsum("n,nj->j", q, self.b))

    def fixed_point(self, lr: float, q: Sequence[float] | None = None) -> np.ndarray:
        """Where Σ q_i Δ_i(x) = 0: Δ_i(x) = −P_i (A_i x − b_i), P_i = lr Σ_{k<τ_i} (I − lr A_i)^k."""
        q = self.p if q is None else np.asarray(q)
        eye = np.eye(self.b.shape[1])
        P = [
            lr * sum(np.linalg.matrix_power(eye - lr * A, k) for k in range(int(tau)))
            for A, tau in zip(self.A, self.tau, strict=True)
        ]
        left = sum(w * Pi @ A for w, Pi, A in zip(q, P, self.A, strict=True))
        return np.linalg.solve(left, sum(w * Pi @ b for w, Pi, b in zip(q, P, self.b, strict=True)))


class Method(NamedTuple):
    """What `queue.run` needs."""

    state: dict
    memory: list[Any] | None
    work: queue.Work
    server: queue.Server
    extra: dict | None = None  # max_staleness, count


def go(method: Method, clients: Clients, **schedule: Any) -> queue.Run:
    """`queue.run` of a method."""
    schedule = {"clients": len(clients.p), "taus": clients.tau, **(method.extra or {}), **schedule}
    return queue.run(method.state, memory=method.memory, work=method.work, server=method.server, **schedule)


# Staleness weights.


def constant(s: int) -> float:
    """w = 1."""
    return 1.0


def polynomial(a: float = 0.5) -> Weight:
    """w = (1 + s)^(−a)."""
    return lambda s: (1.0 + s) ** -a


def hinge(a: float = 10.0, b: float = 4.0) -> Weight:
    """w = 1 for s ≤ b, 1 / (a (s − b) + 1) above."""
    return lambda s: 1.0 if s <= b else 1.0 / (a * (s - b) + 1.0)


def _differences(clients: Clients, lr: float, rho: float = 0.0) -> queue.Work:
    """The upload Δ_i, no memory."""
    return lambda x, i, n, kept: (clients.local(i, x, lr, rho) - x, None)


def _mean(answers: list[queue.Answer], weight: Weight) -> np.ndarray:
    """(1/K) Σ ω w(s) u."""
    return sum(a.weight * weight(a.staleness) * a.upload for a in answers) / len(answers)


# Methods.


def fedasync(clients, x0, *, lr, alpha=0.6, weight: Weight = constant, rho=0.0) -> Method:
    """Xie, Koyejo, Gupta 2019: x ← (1 − α_s) x + α_s y_i, α_s = α w(s) ω. Published for K = 1; else the mean of K."""

    def server(state, answers):
        x = state["x"]
        mix = [alpha * weight(a.staleness) * a.weight / len(answers) for a in answers]
        return {"x": (1 - sum(mix)) * x + sum(m * a.upload for m, a in zip(mix, answers, strict=True))}

    return Method({"x": x0}, None, lambda x, i, n, kept: (clients.local(i, x, lr, rho), None), server)


def fedbuff(clients, x0, *, lr, server_lr=1.0, weight: Weight = polynomial(0.5)) -> Method:
    """Nguyen et al. 2022, Algorithm 1: x ← x + γ (1/K) Σ ω w(s) Δ. The divisor is K, not Σ w."""

    def server(state, answers):
        return {"x": state["x"] + server_lr * _mean(answers, weight)}

    return Method({"x": x0}, None, _differences(clients, lr), server)


def _changes(clients: Clients, lr: float) -> queue.Work:
    """The upload Δ_i − h_i, the memory h_i ← Δ_i."""

    def work(x, i, n, kept):
        new = clients.local(i, x, lr) - x
        return new - kept, new

    return work


def ca2fl(clients, x0, *, lr, server_lr=1.0, weight: Weight = constant) -> Method:
    """Wang et al. 2024, Algorithm 2: x ← x + γ v, v = h + (1/K) Σ ω w(s) (Δ_i − h_i).

    Then h ← h + Σ p_i (Δ_i − h_i) and h_i ← Δ_i, so that h = Σ p_i h_i; h_i = 0 before the first answer.
    Published with p_i = 1/N and w = 1.
    """

    def server(state, answers):
        v = state["h"] + _mean(answers, weight)
        h = state["h"] + sum(clients.p[a.client] * a.upload for a in answers)
        return {"x": state["x"] + server_lr * v, "h": h}

    zero = np.zeros_like(x0)
    return Method({"x": x0, "h": zero}, [zero] * len(clients.p), _changes(clients, lr), server)


def ace(clients, x0, *, lr, server_lr=1.0, full_start=True) -> Method:
    """Chang et al. 2025: h ← h + p_i (Δ_i − h_i), then x ← x + γ h, at each answer.

    full_start: x stays at x0 until every client was heard; its table begins with N answers from x0. Published with
    K = 1, p_i = 1/N and one gradient: τ_i = 1, where γ · lr is its step size.
    """

    def server(state, answers):
        h = state["h"] + sum(clients.p[a.client] * a.upload for a in answers)
        heard = state["heard"] | {a.client for a in answers}
        ready = not full_start or len(heard) == len(clients.p)
        return {"x": state["x"] + server_lr * h if ready else state["x"], "h": h, "heard": heard}

    zero = np.zeros_like(x0)
    return Method({"x": x0, "h": zero, "heard": frozenset()}, [zero] * len(clients.p), _changes(clients, lr), server)


def area(clients, x0, *, lr) -> Method:
    """Iakovidou, Kim 2024: client i keeps z_i and uploads y_i − z_i, z_i ← y_i; x ← x + Σ p_i (y_i − z_i).

    x = Σ p_i z_i, and z_i = x0 before the first answer. Published with p_i = 1/N: the divisor is N and not K.
    """

    def work(x, i, n, kept):
        y = clients.local(i, x, lr)
        return y - kept, y

    def server(state, answers):
        return {"x": state["x"] + sum(clients.p[a.client] * a.upload for a in answers)}

    return Method({"x": x0}, [x0] * len(clients.p), work, server)


def fadas(
    clients,
    x0,
    *,
    lr,
    server_lr=0.1,
    beta1=0.9,
    beta2=0.99,
    eps=1e-8,
    tau_c: float = 1,
    shorten="divide",
    bias_correction=False,
) -> Method:
    """Wang et al. 2024: AMSGrad on Δ = (1/K) Σ ω Δ_i; a smaller rate where the largest staleness exceeds τ_c.

    m ← β₁ m + (1 − β₁) Δ, v ← β₂ v + (1 − β₂) Δ², v̂ ← max(v̂, v).
    x ← x + η_t m / (√v̂ + ε), η_t = η but where τ_max > τ_c:
    shorten "divide" (the authors' code) η_t = η/τ_max, "cap" (the paper) min(η, 1/τ_max).
    bias_correction (the authors' code): η_t / (1 − β₁^t) and √v̂ / √(1 − β₂^t), t = 1, 2, …
    """

    def server(state, answers):
        delta = _mean(answers, constant)
        t = state["t"] + 1
        m = beta1 * state["m"] + (1 - beta1) * delta
        v = beta2 * state["v"] + (1 - beta2) * delta * delta
        top = np.maximum(state["top"], v)
        late = max(a.staleness for a in answers)
        rate = server_lr
        if late > tau_c:
            rate = server_lr / late if shorten == "divide" else min(server_lr, 1 / late)
        one, two = (1 - beta1**t, 1 - beta2**t) if bias_correction else (1.0, 1.0)
        x = state["x"] + rate / one * m / (np.sqrt(top / two) + eps)
        return {"x": x, "m": m, "v": v, "top": top, "t": t}

    zero = np.zeros_like(x0)
    return Method({"x": x0, "m": zero, "v": zero, "top": zero, "t": 0}, None, _differences(clients, lr), server)


def _gradients(clients: Clients) -> queue.Work:
    """The upload ∇F_i(x): no local steps, no memory."""
    return lambda x, i, n, kept: (clients.gradient(i, x), None)


def ringmaster(clients, x0, *, lr, delay: float = np.inf) -> Method:
    """Maranjyan, Tyurin, Richtárik 2025: x ← x − γ ω ∇F_i(x of the start) if s < R, else dropped.

    Published for K = 1; else the mean of K.
    """

    def server(state, answers):
        return {"x": state["x"] - lr * _mean(answers, constant)}

    return Method({"x": x0}, None, _gradients(clients), server, {"max_staleness": delay - 1})


def ringleader(clients, x0, *, lr) -> Method:
    """Maranjyan, Richtárik 2025: rounds of N steps from a table of each client's mean gradient; K = 1, all under way.

    Phase 1 collects into the table without a step until it holds every client. Its last client makes a step, then
    each other client, once, after its next gradient came into the table: x ← x − γ Σ p_i G_i / b_i. Gradients of
    clients that have had their step go into the next round's table. Published with p_i = 1/N.
    The version counts steps, not answers.
    """
    N = len(clients.p)

    def add(table, i, g):
        return {**table, i: (*table.get(i, ()), g)}

    def step(state):
        mean = sum(clients.p[i] * sum(gs) / len(gs) for i, gs in state["table"].items())
        return {**state, "x": state["x"] - lr * mean, "k": state["k"] + 1}

    def server(state, answers):
        (a,) = answers
        if not state["done"]:  # phase 1
            state = {**state, "table": add(state["table"], a.client, a.upload)}
            return {**step(state), "done": frozenset([a.client])} if len(state["table"]) == N else state
        if a.client in state["done"]:
            return {**state, "next": add(state["next"], a.client, a.upload)}
        state = step({**state, "table": add(state["table"], a.client, a.upload)})
        done = state["done"] | {a.client}
        if len(done) < N:
            return {**state, "done": done}
        return {**state, "table": state["next"], "next": {}, "done": frozenset()}

    state = {"x": x0, "k": 0, "table": {}, "next": {}, "done": frozenset()}
    return Method(state, None, _gradients(clients), server, {"count": lambda s: s["k"]})


def delayed_nesterov(clients, x0, *, lr, server_lr=0.7, momentum=0.9, every=1, c=0.0) -> Method:
    """Liu et al. 2024 (as coded in HALoS): momentum at each N-th step, by the mean of N; g = −(1/K) Σ ω Δ.

    D ← D + g. At each N-th: m ← β m + D/N, x ← x − γ ((1 − cN + c) β m + g/N), D ← 0.
    Else x ← x − γ (c β m + g/N). Published for K = 1.
    """

    def server(state, answers):
        x, m, D, t = state["x"], state["m"], state["D"], state["t"] + 1
        g = -_mean(answers, constant)
        D = D + g
        if t % every == 0:
            m, D = momentum * m + D / every, np.zeros_like(D)
            x = x - server_lr * ((1 - c * every + c) * momentum * m + g / every)
        else:
            x = x - server_lr * (c * momentum * m + g / every)
        return {"x": x, "m": m, "D": D, "t": t}

    zero = np.zeros_like(x0)
    return Method({"x": x0, "m": zero, "D": zero, "t": 0}, None, _differences(clients, lr), server)


# The objective of asynchrony.


class Shares(NamedTuple):
    """What a schedule does to the objective."""

    f: np.ndarray  # [N], the clients' shares of the answers taken in
    w: np.ndarray  # [N], their mean staleness weights, 0 where never heard
    q: np.ndarray  # [N], ∝ f ω w
    chi2: float  # Σ (q − p)² / p


def shares(
    steps: Sequence[queue.Step], p: Sequence[float], weight: Weight = constant, omega: Sequence[float] | None = None
) -> Shares:
    """q_i ∝ f_i ω_i E_i w(s) of the answers in `steps`."""
    p = np.asarray(p, dtype=np.float64)
    count, total = np.zeros(len(p)), np.zeros(len(p))
    for s in steps:
        for i, _, stale in s.heard:
            count[i] += 1
            total[i] += weight(stale)
    q = total * (1.0 if omega is None else np.asarray(omega))
    q = q / q.sum()
    return Shares(count / count.sum(), total / np.maximum(count, 1), q, float(np.sum((q - p) ** 2 / p)))


def corrected(shares: Shares, p: Sequence[float]) -> np.ndarray:
    """ω_i = p_i / (f_i E_i w), times a number that keeps the mean weight Σ f ω E w of ω = 1."""
    raw = np.asarray(p) / (shares.f * shares.w)
    return raw * (shares.f @ shares.w)


def mixing_shares(steps: Sequence[queue.Step], n_clients: int, alpha: float, weight: Weight = constant) -> np.ndarray:
    """FedAsync's q for any α: how fast x moves per unit of each client's Δ_i, were they constant; [N], sums to one.

    x ← (1 − α_s) x + α_s (x_start + Δ_i) is linear in Δ; a stale x_start takes back what others did meanwhile.
    At α → 0 that is f_i E_i w(s) again, and for w = 1 and α < 1 it is f_i at any α. Else it is not: those who
    are under way together with client i take its step back by their own weights. Needs K = 1 and all steps.
    """
    z = np.zeros((len(steps) + 1, n_clients))
    for k, s in enumerate(steps):
        ((i, _, stale),) = s.heard
        mix = alpha * weight(stale)
        z[k + 1] = (1 - mix) * z[k] + mix * z[k - stale]
        z[k + 1, i] += mix
    half = len(steps) // 2
    slope = z[-1] - z[half]
    return slope / slope.sum()


def settled(run: queue.Run, part: float = 0.5) -> np.ndarray:
    """The mean model over the last part of the steps."""
    return run.iterates[int(len(run.steps) * (1 - part)) :].mean(axis=0)
