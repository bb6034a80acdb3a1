"""The baseline where each client trains alone, written as a method so that it runs on every place, nodes included."""

from typing import Any, NamedTuple

from fedax.contract.algorithm import Algorithm
from fedax.contract.local import local_steps
from fedax.contract.vector import Vector

LOCAL_ONLY = "local only"


class LocalOnly(Algorithm):
    """Each client trains alone: its model is its memory, and its uploads are zero.

    Args:
        lr: learning rate of stochastic gradient descent.
    """

    lr: Any

    def init(self, x: Vector) -> "_Server":
        return _Server(x)

    def init_client(self, x: Vector) -> Vector:
        return x

    def download(self, server: "_Server") -> tuple[()]:
        return ()

    def client(self, download: Any, memory: Vector, oracle: Any) -> tuple[Any, Vector]:
        y = local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), memory, oracle)
        return 0.0 * y, y

    def server(self, server: "_Server", mean: Any, round: Any) -> "_Server":
        return server


class _Server(NamedTuple):
    x: Vector
