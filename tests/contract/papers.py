"""Fourteen methods as a user writes them from their papers, and the rounds of eleven in NumPy, written beside them.

Each class stands for itself, so that its source can be changed and run alone.
"""

# ruff: noqa: E731
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedax


class FedSAM(fedax.Algorithm):
    """Qu et al. 2022: gradients are taken at the worst point of a ball of radius rho."""

    lr: Any = 0.1
    rho: Any = 0.2

    def init(self, x):
        return x

    def client(self, x, memory, oracle):
        def step(y, k):
            g = oracle.grad(y, k)
            return y - self.lr * oracle.grad(y + self.rho * g / jnp.sqrt(g.dot(g)), k)

        return fedax.local_steps(step, x, oracle) - x, memory

    def server(self, x, mean, round):
        return x + mean


class MoFedSAM(fedax.Algorithm):
    """Qu et al. 2022: FedSAM, whose steps also go along the last round's mean step."""

    lr: Any = 0.1
    rho: Any = 0.2
    beta: Any = 0.4

    def init(self, x):
        return x, fedax.zeros_like(x)

    def model(self, server):
        return server[0]

    def client(self, download, memory, oracle):
        x, delta = download

        def step(y, k):
            g = oracle.grad(y, k)
            g = oracle.grad(y + self.rho * g / jnp.sqrt(g.dot(g)), k)
            return y - self.lr * (self.beta * g + (1 - self.beta) * delta)

        dx = fedax.local_steps(step, x, oracle) - x
        return (dx, dx / (-self.lr * oracle.steps)), memory

    def server(self, server, mean, round):
        return server[0] + mean[0], mean[1] / round.total


class FedLESAM(fedax.Algorithm):
    """Fan et al. 2024: the perturbation goes from the received model to the one received before."""

    lr: Any = 0.1
    rho: Any = 0.2

    def init(self, x):
        return x

    def init_client(self, x):
        return x

    def client(self, x, before, oracle):
        d = before - x
        d = self.rho * d / jnp.sqrt(d.dot(d) + 1e-24)
        return fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y + d, k), x, oracle) - x, x

    def server(self, x, mean, round):
        return x + mean


class FedSpeed(fedax.Algorithm):
    """Sun et al. 2023: a pull to x, its sum as a correction, and a gradient that is mixed with one uphill."""

    lr: Any = 0.1
    rho: Any = 0.2
    alpha: Any = 0.7
    lam: Any = 2.0

    def init(self, x):
        return x

    def init_client(self, x):
        return fedax.zeros_like(x)

    def client(self, x, kept, oracle):
        def step(y, k):
            g = oracle.grad(y, k)
            g = (1 - self.alpha) * g + self.alpha * oracle.grad(y + self.rho * g, k)
            return y - self.lr * (g - kept + (y - x) / self.lam)

        y = fedax.local_steps(step, x, oracle)
        kept = kept - (y - x) / self.lam
        return y - x - self.lam * kept, kept

    def server(self, x, mean, round):
        return x + mean / round.total


class FedDC(fedax.Algorithm):
    """Gao et al. 2022: each client keeps its drift, which is taken off again, and a control variate."""

    lr: Any = 0.1
    alpha: Any = 0.3

    def init(self, x):
        return x, fedax.zeros_like(x)

    def init_client(self, x):
        return fedax.zeros_like(x), fedax.zeros_like(x)

    def model(self, server):
        return server[0]

    def client(self, download, memory, oracle):
        (x, c), (h, c_i) = download, memory

        def step(y, k):
            return y - self.lr * (oracle.grad(y, k) + self.alpha * (y - x + h) + c_i - c)

        dx = fedax.local_steps(step, x, oracle) - x
        h, c_new = h + dx, dx / (self.lr * oracle.steps)
        return (dx + h, fedax.Change(c_new - c_i)), (h, c_new)

    def server(self, server, mean, round):
        return server[0] + mean[0] / round.total, server[1] + mean[1]


class FedLin(fedax.Algorithm):
    """Mitra et al. 2021: first all gradients at x, then steps of length lr/τ_i corrected by them."""

    lr: Any = 0.2

    def init(self, x):
        return x, fedax.zeros_like(x)

    def model(self, server):
        return server[0]

    def exchanges(self):
        first = fedax.Exchange(self.gradient, lambda server, mean, round: (server[0], mean / round.total))
        return first, fedax.Exchange(self.client, self.server)

    def gradient(self, download, memory, oracle):
        return oracle.full_grad(download[0]), memory

    def client(self, download, memory, oracle):
        x, g = download
        own = oracle.full_grad(x)
        lr = self.lr / oracle.steps
        return fedax.local_steps(lambda y, k: y - lr * (oracle.grad(y, k) - own + g), x, oracle) - x, memory

    def server(self, server, mean, round):
        return server[0] + mean, server[1]

    def traits(self):
        return fedax.Traits("FedLin", "Mitra et al. 2021", limit="F", exact="all clients")


class FedCMAdam(fedax.Algorithm):
    """Xu et al. 2021: gradients mixed with the last round's mean direction, here as steps of Adam."""

    lr: Any = 0.05
    alpha: Any = 0.3
    b1: Any = 0.8
    b2: Any = 0.9
    eps: Any = 0.1

    def init(self, x):
        return x, fedax.zeros_like(x)

    def model(self, server):
        return server[0]

    def client(self, download, memory, oracle):
        x, delta = download

        def step(state, k):
            y, m, v = state
            g = self.alpha * oracle.grad(y, k) + (1 - self.alpha) * delta
            m, v = self.b1 * m + (1 - self.b1) * g, self.b2 * v + (1 - self.b2) * g**2
            up, root = m / (1 - self.b1 ** (k + 1)), (v / (1 - self.b2 ** (k + 1))).map(jnp.sqrt)
            return y - self.lr * up / (root + self.eps), m, v

        zero = fedax.zeros_like(x)
        y, _, _ = fedax.local_steps(step, (x, zero, zero), oracle)
        return (y - x, (x - y) / (self.lr * oracle.steps)), memory

    def server(self, server, mean, round):
        return server[0] + mean[0], mean[1] / round.total


class FedNTD(fedax.Algorithm):
    """Lee et al. 2022: the global model's view of the classes that are not the label is kept."""

    lr: Any = 0.1
    beta: Any = 0.7

    def init(self, x):
        return x

    def client(self, x, memory, oracle):
        def step(y, k):
            teacher = oracle.outputs(x, k)

            def loss(outputs, batch):
                hot = jax.nn.one_hot(batch["y"], outputs.shape[1])
                p, q = (jax.nn.log_softmax(z - 1e9 * hot) for z in (teacher, outputs))
                kept = jnp.sum((1 - hot) * jnp.exp(p) * (p - q), 1)
                return -jnp.sum(hot * jax.nn.log_softmax(outputs), 1) + self.beta * kept

            return y - self.lr * oracle.grad(y, k, loss=loss)

        return fedax.local_steps(step, x, oracle) - x, memory

    def server(self, x, mean, round):
        return x + mean


class Moon(fedax.Algorithm):
    """Li et al. 2021: outputs are pulled to those of the global model, away from those of the last local one."""

    lr: Any = 0.1
    mu: Any = 0.8
    temperature: Any = 0.5

    def init(self, x):
        return x

    def init_client(self, x):
        return x

    def client(self, x, last, oracle):
        def step(y, k):
            good, bad = oracle.outputs(x, k), oracle.outputs(last, k)

            def loss(z, batch):
                norm = lambda a: jnp.sqrt(jnp.sum(a**2, 1) + 1e-12)
                near, far = (jnp.sum(z * a, 1) / norm(z) / norm(a) / self.temperature for a in (good, bad))
                own = -jnp.sum(jax.nn.one_hot(batch["y"], z.shape[1]) * jax.nn.log_softmax(z), 1)
                return own + self.mu * jnp.logaddexp(0.0, far - near)

            return y - self.lr * oracle.grad(y, k, loss=loss)

        y = fedax.local_steps(step, x, oracle)
        return y - x, y

    def server(self, x, mean, round):
        return x + mean


class FedBN(fedax.Algorithm):
    """Li et al. 2021b: the leaves of one name stay with their clients."""

    lr: Any = 0.1

    def init(self, x):
        return x

    def init_client(self, x):
        return self.only(x, own=True)

    def only(self, x, own):
        keep = lambda path, leaf: leaf if ("b" in jax.tree_util.keystr(path)) == own else jnp.zeros_like(leaf)
        return fedax.Vector(jax.tree_util.tree_map_with_path(keep, x.tree))

    def client(self, x, kept, oracle):
        start = self.only(x, own=False) + kept
        y = fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), start, oracle)
        return self.only(y - x, own=False), self.only(y, own=True)

    def server(self, x, mean, round):
        return x + mean


class QFedAvg(fedax.Algorithm):
    """Li et al. 2020: clients with a higher loss count for more."""

    lr: Any = 0.1
    q: Any = 1.5

    def init(self, x):
        return x

    def client(self, x, memory, oracle):
        f = oracle.full_loss(x)
        y = fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle)
        d = (x - y) / self.lr
        return (f**self.q * d, self.q * f ** (self.q - 1) * d.dot(d) + f**self.q / self.lr), memory

    def server(self, x, mean, round):
        return x - mean[0] / mean[1]


class IFCA(fedax.Algorithm):
    """Ghosh et al. 2020: several models; each client trains the one of the least loss."""

    lr: Any = 0.1
    spread: Any = 0.5

    def init(self, x):
        return x - self.spread, x + self.spread

    def model(self, server):
        return server[0]

    def client(self, models, memory, oracle):
        losses = jnp.stack([oracle.full_loss(x) for x in models])
        mine = [jnp.where(jnp.argmin(losses) == j, 1.0, 0.0) for j in range(len(models))]
        x = mine[0] * models[0] + mine[1] * models[1]
        dx = fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle) - x
        return ([one * dx for one in mine], mine), memory

    def server(self, models, mean, round):
        return tuple(x + dx / jnp.maximum(n, 1e-12) for x, dx, n in zip(models, *mean, strict=True))


class Ditto(fedax.Algorithm):
    """Li et al. 2021a: each client also keeps a model of its own, pulled to the received one."""

    lr: Any = 0.1
    own_lr: Any = 0.1
    lam: Any = 0.5

    def init(self, x):
        return x, x

    def init_client(self, x):
        return x

    def model(self, server):
        return server[1]

    def client(self, download, v, oracle):
        x = download[0]
        y = fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle)
        new = fedax.local_steps(lambda v, k: v - self.own_lr * (oracle.grad(v, k) + self.lam * (v - x)), v, oracle)
        return (y - x, fedax.Change(new - v)), new

    def server(self, server, mean, round):
        return server[0] + mean[0], server[1] + mean[1]


class PyLoop(fedax.Algorithm):
    """FedAvg by a loop of Python, for equal steps."""

    lr: Any = 0.1

    def init(self, x):
        return x

    def client(self, x, memory, oracle):
        y = x
        for k in range(oracle.steps):
            y = y - self.lr * oracle.grad(y, k)
        return y - x, memory

    def server(self, x, mean, round):
        return x + mean

    def traits(self):
        return fedax.Traits("PyLoop", steps="equal")


def unit(g):
    return g / np.sqrt((g**2).sum(axis=-1, keepdims=True) + 1e-24)


def fedsam(method, clients, x):
    worst = lambda y: clients.grad(y + method.rho * unit(clients.grad(y)))
    return clients.mean(clients.steps(lambda y: y - method.lr * worst(y), x))


def mofedsam(method, clients, x, delta=0.0):
    worst = lambda y: clients.grad(y + method.rho * unit(clients.grad(y)))
    blend = lambda y: method.beta * worst(y) + (1 - method.beta) * delta
    y = clients.steps(lambda y: y - method.lr * blend(y), x)
    return clients.mean(y), clients.mean((x - y) / (method.lr * clients.tau))


def fedlesam(method, clients, x, before=None):
    uphill = 0.0 if before is None else method.rho * unit(before - x)
    return clients.mean(clients.steps(lambda y: y - method.lr * clients.grad(y + uphill), x)), x


def fedspeed(method, clients, x, corrections=0.0):
    a, lam = method.alpha, method.lam

    def step(y):
        g = clients.grad(y)
        mixed = (1 - a) * g + a * clients.grad(y + method.rho * g)
        return y - method.lr * (mixed - corrections + (y - x) / lam)

    y = clients.steps(step, x)
    corrections = corrections - (y - x) / lam
    return clients.mean(y - lam * corrections), corrections


def feddc(method, clients, x, drift=0.0, moved=0.0):
    """Algorithm 1; moved are the last Δθ_i/(ητ_i)."""
    g = lambda y: clients.grad(y) + method.alpha * (drift + y - x) + moved - clients.mean(moved)
    y = clients.steps(lambda y: y - method.lr * g(y), x)
    drift = drift + y - x
    return clients.mean(y + drift), drift, (y - x) / (method.lr * clients.tau)


def fedlin(method, clients, x):
    at_x = clients.grad(x)
    g = lambda y: clients.grad(y) - at_x + clients.mean(at_x)
    return clients.mean(clients.steps(lambda y: y - method.lr / clients.tau * g(y), x))


def fedcm_adam(method, clients, x, delta=0.0):
    b1, b2 = method.b1, method.b2

    def step(y, m, v, k):
        g = method.alpha * clients.grad(y) + (1 - method.alpha) * delta
        m, v, k = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g, k + 1
        return y - method.lr * (m / (1 - b1**k)) / (np.sqrt(v / (1 - b2**k)) + method.eps), m, v, k

    y = clients.steps(step, x, 0.0 * x, 0.0 * x, 0.0)[0]
    return clients.mean(y), clients.mean((x - y) / (method.lr * clients.tau))


def fedbn(method, clients, x, own=None):
    """The own leaf is the first number of x."""
    start = x + np.zeros_like(clients.weights)
    start[:, 0] = x[0] if own is None else own
    y = clients.steps(lambda y: y - method.lr * clients.grad(y), start)
    return np.append(x[0], clients.mean(y)[1:]), y[:, 0]


def q_fedavg(method, clients, x):
    """Algorithm 2, with L = 1/η."""
    q, inverse, f = method.q, 1 / method.lr, clients.loss(x)
    moved = inverse * (x - clients.steps(lambda y: y - method.lr * clients.grad(y), x))
    h = q * f ** (q - 1) * (moved**2).sum(axis=1, keepdims=True) + inverse * f**q
    return x - clients.mean(f**q * moved) / clients.mean(h)


def ifca(method, clients, x, other=None):
    models = (x - method.spread, x + method.spread) if other is None else (x, other)
    first = clients.loss(models[0]) <= clients.loss(models[1])
    y = clients.steps(lambda y: y - method.lr * clients.grad(y), np.where(first, *models))
    return tuple(
        model + clients.mean(of * (y - model)) / max(clients.mean(of), 1e-12)
        for model, of in zip(models, (first, ~first), strict=True)
    )


def ditto(method, clients, mean_own, x=None, own=None):
    """What is looked at is the mean of the clients' own models."""
    x, own = (mean_own, mean_own) if x is None else (x, own)
    pulled = lambda v: clients.grad(v) + method.lam * (v - x)
    own = clients.steps(lambda v: v - method.own_lr * pulled(v), own)
    return clients.mean(own), clients.mean(clients.steps(lambda y: y - method.lr * clients.grad(y), x)), own


def local_loop(method, clients, x):
    return clients.mean(clients.steps(lambda y: y - method.lr * clients.grad(y), x))


REFERENCES = {
    FedSAM: fedsam,
    MoFedSAM: mofedsam,
    FedLESAM: fedlesam,
    FedSpeed: fedspeed,
    FedDC: feddc,
    FedLin: fedlin,
    FedCMAdam: fedcm_adam,
    FedBN: fedbn,
    QFedAvg: q_fedavg,
    IFCA: ifca,
    Ditto: ditto,
    PyLoop: local_loop,
    FedNTD: None,
    Moon: None,
}
