"""A method that calls its oracle in any way and stores the answers, and a task whose gradients identify examples."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import fedax


class Server(NamedTuple):
    x: fedax.Vector


class Probe(fedax.Algorithm):
    """Every client stores ``ask(x, oracle)``, one answer for each exchange; the model does not change.

    ``like`` is the shape of an answer. A client that never took part has −1 in its memory.
    """

    ask: Callable[..., Any] = eqx.field(static=True)
    like: tuple[int, ...] = eqx.field(static=True, default=())
    times: int = eqx.field(static=True, default=1)

    def init(self, x: fedax.Vector) -> Server:
        return Server(x)

    def init_client(self, x: fedax.Vector) -> Any:
        return tuple(jnp.full(self.like, -1.0) for _ in range(self.times))

    def exchanges(self) -> tuple[fedax.Exchange, ...]:
        def client(number: int) -> Callable[..., Any]:
            def run(download: Any, memory: Any, oracle: Any) -> Any:
                answer = jnp.asarray(self.ask(download.x, oracle), float)
                return None, (*memory[:number], answer, *memory[number + 1 :])

            return run

        return tuple(fedax.Exchange(client(n), lambda server, mean, round: server) for n in range(self.times))


@functools.cache  # a task compares by identity: one object, one compilation
def named(n: int) -> fedax.Task:
    """∂/∂w_j of a mean loss is the share of example j in the batch; examples are {"id": [n]}."""
    return fedax.Task(lambda key: jnp.zeros(n), lambda w, batch, key: w[batch["id"]])


def numbered(sizes: Any, weights: Any = None) -> fedax.FederatedData:
    """Clients of these sizes whose examples are numbered from 0."""
    return fedax.FederatedData({"id": np.arange(sum(sizes))}, sizes, weights)


def oracle_answers(
    ask: Callable[..., Any], like: Any, task: fedax.Task, data: Any, times: int = 1, **options: Any
) -> Any:
    """``(answers, run)``: the clients' answers in the last round, [N, ...], or for ``times`` > 1 a tuple of them."""
    options = {"rounds": 1, "work": fedax.Steps(1)} | options
    run = fedax.simulate(Probe(ask, like, times), task, data, **options)
    answers = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(run.memory))
    return (answers[0] if times == 1 else answers), run
