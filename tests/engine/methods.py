"""Small methods that together exercise every part of the contract, each beside its own loop in NumPy.

A loop takes the cohort of every round and the clients' τ, and returns the final model and the final memory.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.contract.schedule import stepwise

from .problem import TAUS, X0, P, gradient


class Server(NamedTuple):
    x: Any


class WithControl(NamedTuple):
    x: Any
    c: Any


def omega(cohort: list[int]) -> np.ndarray:
    """ω of the cohort."""
    return P[cohort] / P[cohort].sum()


class Scaffold(fedax.Algorithm):
    """Option II: client memory, two uploads, of which one is a change of memory."""

    lr: Any
    server_lr: Any = 1.0

    def init(self, x):
        return WithControl(x, fedax.zeros_like(x))

    def init_client(self, x):
        return fedax.zeros_like(x)

    def client(self, server, c_i, oracle):
        x, c = server.x, server.c
        y = fedax.local_steps(lambda y, k: y - self.lr * (oracle.grad(y, k) - c_i + c), x, oracle)
        c_new = c_i - c + (x - y) / (oracle.steps * self.lr)
        return WithControl(y - x, fedax.Change(c_new - c_i)), c_new

    def server(self, server, mean, round):
        return WithControl(server.x + self.server_lr * mean.x, server.c + mean.c)


def scaffold(cohorts, lr, server_lr=1.0, taus=TAUS):
    x, c, memory = X0.copy(), np.zeros(4), np.zeros((5, 4))
    for cohort in cohorts:
        weights = omega(cohort)
        dx, dc = [], []
        for i in cohort:
            y = x.copy()
            for _ in range(taus[i]):
                y = y - lr * (gradient(i, y) - memory[i] + c)
            new = memory[i] - c + (x - y) / (taus[i] * lr)
            dx.append(y - x)
            dc.append(new - memory[i])
            memory[i] = new
        x, c = x + server_lr * weights @ np.array(dx), c + P[cohort] @ np.array(dc)
    return x, memory


class Mime(fedax.Algorithm):
    """Mime-SGD: an exchange for the mean full gradient, one for the local steps; the server state grows in between."""

    lr: Any

    def init(self, x):
        return Server(x)

    def exchanges(self):
        return fedax.Exchange(self.gather, self.keep), fedax.Exchange(self.client, self.server)

    def gather(self, server, memory, oracle):
        return oracle.full_grad(server.x), memory

    def keep(self, server, mean, round):
        return WithControl(server.x, mean)

    def client(self, server, memory, oracle):
        x, c = server.x, server.c
        step = lambda y, k: y - self.lr * (oracle.grad(y, k) - oracle.grad(x, k) + c)  # noqa: E731
        return fedax.local_steps(step, x, oracle) - x, memory

    def server(self, server, mean, round):
        return Server(server.x + mean)


def mime(cohorts, lr, taus=TAUS):
    x = X0.copy()
    for cohort in cohorts:
        weights = omega(cohort)
        c = weights @ np.array([gradient(i, x) for i in cohort])
        dx = []
        for i in cohort:
            y = x.copy()
            for _ in range(taus[i]):
                y = y - lr * (gradient(i, y) - gradient(i, x) + c)
            dx.append(y - x)
        x = x + weights @ np.array(dx)
    return x, ()


class Pending(NamedTuple):
    correction: Any
    y: Any


class Listening(fedax.Algorithm):
    """VRL-SGD: the clients hear the new model in a second exchange; their memory has another shape in between."""

    lr: Any

    def init(self, x):
        return Server(x)

    def init_client(self, x):
        return fedax.zeros_like(x)

    def exchanges(self):
        return fedax.Exchange(self.client, self.server), fedax.Exchange(self.listen)

    def client(self, server, correction, oracle):
        y = fedax.local_steps(lambda y, k: y - self.lr * (oracle.grad(y, k) - correction), server.x, oracle)
        return y - server.x, Pending(correction, y)

    def server(self, server, mean, round):
        return Server(server.x + mean)

    def listen(self, server, memory, oracle):
        return None, memory.correction + (server.x - memory.y) / (self.lr * oracle.steps)


def listening(cohorts, lr, taus=TAUS):
    x, memory = X0.copy(), np.zeros((5, 4))
    for cohort in cohorts:
        weights = omega(cohort)
        ys = []
        for i in cohort:
            y = x.copy()
            for _ in range(taus[i]):
                y = y - lr * (gradient(i, y) - memory[i])
            ys.append(y)
        x = x + weights @ (np.array(ys) - x)
        for i, y in zip(cohort, ys, strict=True):
            memory[i] += (x - y) / (lr * taus[i])
    return x, memory


class Warm(fedax.Algorithm):
    """Before round 0 all clients send and keep a gradient; later only the cohort moves the mean of what they keep."""

    lr: Any

    def init(self, x):
        return Server(x)

    def init_client(self, x):
        return fedax.zeros_like(x)

    def warmup(self):
        return (fedax.Exchange(self.first, lambda server, mean, round: WithControl(server.x, mean)),)

    def first(self, server, memory, oracle):
        g = oracle.grad_batches(server.x, 2)
        return g, g

    def client(self, server, kept, oracle):
        step = lambda y, k: y - self.lr * (0.5 * oracle.grad(y, k) + 0.5 * server.c)  # noqa: E731
        y = fedax.local_steps(step, server.x, oracle)
        g = oracle.grad(y)
        return WithControl(y - server.x, fedax.Change(g - kept)), g

    def server(self, server, mean, round):
        return WithControl(server.x + mean.x, server.c + mean.c)


def warm(cohorts, lr, taus=TAUS):
    x = X0.copy()
    memory = np.array([gradient(i, x) for i in range(5)])
    c = P @ memory
    for cohort in cohorts:
        weights = omega(cohort)
        dx, dc = [], []
        for i in cohort:
            y = x.copy()
            for _ in range(taus[i]):
                y = y - lr * (0.5 * gradient(i, y) + 0.5 * c)
            g = gradient(i, y)
            dx.append(y - x)
            dc.append(g - memory[i])
            memory[i] = g
        x, c = x + weights @ np.array(dx), c + P[cohort] @ np.array(dc)
    return x, memory


class OneWalks(fedax.Algorithm):
    """A gradient from the cohort, then one client of it makes the local steps; everyone keeps how often it worked."""

    lr: Any

    def init(self, x):
        return Server(x)

    def init_client(self, x):
        return jnp.zeros(2)

    def exchanges(self):
        return fedax.Exchange(self.gather, self.keep), fedax.Exchange(self.client, self.server, who="one")

    def gather(self, server, memory, oracle):
        return oracle.full_grad(server.x), memory + jnp.array([1.0, 0.0])

    def keep(self, server, mean, round):
        return WithControl(server.x, mean)

    def client(self, server, memory, oracle):
        x = server.x
        step = lambda y, k: y - self.lr * (oracle.grad(y, k) - oracle.grad(x, k) + server.c)  # noqa: E731
        return fedax.local_steps(step, x, oracle), memory + jnp.array([0.0, 1.0])

    def server(self, server, mean, round):
        return Server(mean)


def one_walks(cohorts, lr, taus=TAUS):
    """The last of each cohort is the one."""
    x, memory = X0.copy(), np.zeros((5, 2))
    for cohort in cohorts:
        weights = omega(cohort)
        c = weights @ np.array([gradient(i, x) for i in cohort])
        one = cohort[-1]
        memory[cohort, 0] += 1
        memory[one, 1] += 1
        y = x.copy()
        for _ in range(taus[one]):
            y = y - lr * (gradient(one, y) - gradient(one, x) + c)
        x = y
    return x, memory


class Decaying(fedax.Algorithm):
    """Local SGD whose step size changes with the global step, inside the round; the server's with the round."""

    lr: Any = stepwise()
    server_lr: Any = 1.0

    def init(self, x):
        return Server(x)

    def client(self, server, memory, oracle):
        step = lambda y, k: y - self.lr(oracle.t(k)) * oracle.grad(y, k)  # noqa: E731
        return fedax.local_steps(step, server.x, oracle) - server.x, memory

    def server(self, server, mean, round):
        return Server(server.x + self.server_lr * self.lr(round.t) * mean)


def decaying(cohorts, lr, taus=TAUS):
    """Step t has lr/√(1 + t), round r begins at t = r·max τ_i, and the server's rate halves at round 2."""
    x = X0.copy()
    for r, cohort in enumerate(cohorts):
        weights = omega(cohort)
        rate = lambda k, r=r: lr / np.sqrt(1 + r * max(taus) + k)  # noqa: E731
        dx = []
        for i in cohort:
            y = x.copy()
            for k in range(taus[i]):
                y = y - rate(k) * gradient(i, y)
            dx.append(y - x)
        x = x + (0.5 if r >= 2 else 1.0) * rate(0) * (weights @ np.array(dx))
    return x, ()


class Seen(NamedTuple):
    x: Any
    row: Any


class Watching(fedax.Algorithm):
    """The server stores the figures of the last round in its state."""

    def init(self, x):
        return Seen(x, jnp.zeros(10))

    def client(self, server, memory, oracle):
        return jnp.asarray(oracle.steps, float), memory

    def server(self, server, mean, round):
        row = [round.index, round.t, round.num_clients, round.total, round.heard, round.weights.sum()]
        row += [round.present.sum(), jnp.sum(round.steps * round.present), jnp.sum(round.weights * round.steps), mean]
        return Seen(server.x, jnp.stack([jnp.asarray(number, float) for number in row]))


class Weighing(fedax.Algorithm):
    """x becomes Σ ω_i ∇F_i(x), clients mark that they took part, and the server counts those whose upload arrived.

    On a task whose gradient names the client, x is ω itself.
    """

    def init(self, x):
        return WithControl(x, fedax.zeros_like(x))

    def init_client(self, x):
        return jnp.zeros(2)

    def exchanges(self):
        return (
            fedax.Exchange(self.client, lambda server, mean, round: WithControl(mean, server.c)),
            fedax.Exchange(self.client, lambda server, mean, round: WithControl(server.x, server.c + mean), who="one"),
        )

    def client(self, server, memory, oracle):
        return oracle.full_grad(server.x), memory + jnp.array([1.0, 0.0])


class Drawing(fedax.Algorithm):
    """The server draws a number each round and adds it to the model."""

    def init(self, x):
        return Server(x)

    def client(self, server, memory, oracle):
        return None, memory

    def server(self, server, mean, round):
        return Server(server.x + jax.random.normal(round.key))
