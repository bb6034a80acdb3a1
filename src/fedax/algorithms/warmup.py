"""The warm-up that many methods begin with: a gradient at x^0, of all N clients."""

from collections.abc import Callable
from typing import Any

from fedax.contract.algorithm import Change, Exchange, Round
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector


def first_gradients(
    batches: int | None, start: Callable[[Any, Vector, Vector], Any], *, remember: bool = False
) -> tuple[Exchange, ...]:
    """Every client sends the mean of B minibatch gradients at x^0; ``None``: no warm-up.

    Args:
        batches: B ≥ 1, or ``None``.
        start: ``(server, mean, sum) -> server``, the server's state with the clients' weighted mean gradient; ``sum``
            is Σ p_i g_i over the clients that were heard, of those that remember theirs: another vector where a guard
            leaves some out.
        remember: whether a client keeps its gradient as its memory, a control variate.
    """
    if batches is None:
        return ()

    def client(download: Vector, memory: Any, oracle: Oracle) -> tuple[Any, Any]:
        g = oracle.grad_batches(download, batches)
        return ((g, Change(g)), g) if remember else ((g, ()), memory)

    def server(server: Any, mean: Any, round: Round) -> Any:
        return start(server, *mean)

    return (Exchange(client, server, lambda server: server.x),)
