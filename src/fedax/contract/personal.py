"""Parts of a model that stay at each client: the rest is trained by any method.

Collins, Hassani, Mokhtari and Shakkottai 2021, "Exploiting shared representations for personalized federated learning"
(FedRep), Algorithm 1: order "first". Arivazhagan et al. 2019, "Federated learning with personalization layers"
(FedPer): order "together".
"""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx

from fedax.contract.algorithm import Algorithm, Exchange, Layer
from fedax.contract.hyper import check, choice, count, hyper
from fedax.contract.local import phases
from fedax.contract.oracle import Oracle
from fedax.contract.types import Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.errors import ConfigError
from fedax.tasks.task import Task


@runtime_checkable
class SendsItsUpdate(Protocol):
    """A method whose clients train a model from x, and send of it y − x alone."""

    def train(self, x: Vector, oracle: Oracle) -> Vector:
        """The local model y."""

    def upload(self, dx: Vector, oracle: Oracle) -> Tree:
        """What is sent of y − x."""


class FineTuned(Layer):
    """A method whose shared model each client fine-tunes for itself, by SGD on its own examples, before it uses it.

    Training is the method's, bit for bit. Nothing of the fine-tuning is kept or sent; it is done anew wherever clients'
    own models are evaluated or used, also for clients that never took part.

    Args:
        inner: the method.
        lr: η > 0, the learning rate of the fine-tuning.
        steps: how many steps, ≥ 1; ``None``: τ_i.

    Raises:
        ConfigError: by a run: the method gives clients models of their own already.

    Source: fine-tuning, as in Yu, Bagdasaryan and Shmatikov 2020, "Salvaging federated learning by local adaptation".

    Example:
        >>> import fedax
        >>> FineTuned(fedax.create("scaffold"), lr=0.01, steps=20).steps
        20
    """

    lr: Number = hyper(0.05, "(0, ∞)")
    steps: int | None = count(None, off=True)

    def _around(self, stage: str, number: int, exchange: Exchange) -> Exchange:
        return exchange

    def adapt(self, model: Vector, oracle: Oracle) -> Vector:
        step = lambda v, k: v - self.lr * oracle.grad(v, k)  # noqa: E731
        return phases(step, model, oracle.steps if self.steps is None else self.steps, oracle)

    def validate(self) -> None:
        check(self)
        if has_personal(self.inner):
            hint = f"{self.inner.traits().name} gives clients models of their own already: leave fine_tune out"
            raise ConfigError("fine_tune", f"lr {self.lr}", hint)
        self.inner.validate()


def adapts(method: Algorithm) -> bool:
    """Whether clients' own models are made of the shared one whenever they are used; nothing of them is kept."""
    return type(method).adapt is not Algorithm.adapt or (isinstance(method, Layer) and adapts(method.inner))


def has_personal(method: Algorithm) -> bool:
    """Whether a method gives each client a model of its own.

    Example:
        >>> import fedax
        >>> has_personal(fedax.create("ditto")), has_personal(fedax.create("fedavg"))
        (True, False)
    """
    if isinstance(method, Layer) and type(method).personal is Layer.personal:
        return adapts(method) or has_personal(method.inner)
    return adapts(method) or type(method).personal is not Algorithm.personal


class OwnPart(NamedTuple):
    """A client's memory: the method's own, and the client's part h of the model."""

    own: Tree
    h: Tree


def _static(leaves: Unknown) -> Unknown:
    return tuple(leaves) if isinstance(leaves, list) else leaves


class PersonalPart(Layer):
    """A method that trains and sends a part of the model, φ; the other part, h, is each client's own and never sent.

    ``order="first"``: h takes steps of SGD with φ as received; then the method does its work on φ with h as it is. It
    costs as many gradients more. ``"together"``: both take each local step together, and h keeps its part of y − x; for
    methods whose clients send y − x. It costs nothing.

    Args:
        inner: the method.
        leaves: patterns of the names of the leaves of h, such as ``"head.*"``.
        lr: η_h > 0, the learning rate of h in the order "first".
        steps: its steps there; ``None``: τ_i.
        order: ``"first"`` or ``"together"``.
        start: h before a client's first turn; a run sets it to the task's own initial values.

    Raises:
        ConfigError: by a run: patterns that name no leaf, or all; a method that sends no model, or several; "together"
            where clients send something else than y − x.

    Source: Collins et al. 2021, Algorithm 1; Arivazhagan et al. 2019, Algorithm 1.

    Example:
        >>> import fedax
        >>> PersonalPart(fedax.create("scaffold"), "head.*", lr=0.1).order
        'first'
    """

    leaves: str | tuple[str, ...] = eqx.field(static=True, default=(), converter=_static)
    lr: Number = hyper(0.05, "(0, ∞)")
    steps: int | None = count(None, off=True)
    order: str = choice("first", "first", "together")
    start: Tree = None

    def arguments(self) -> dict[str, Unknown]:
        return {name: value for name, value in super().arguments().items() if name != "start"}

    def init_client(self, x: Vector) -> OwnPart:
        return OwnPart(self.inner.init_client(x), self.start)

    def own_memory(self, memory: OwnPart) -> Tree:
        return memory.own

    def personal(self, download: Tree, memory: OwnPart) -> Vector:
        return model_in(download)

    def own_part(self, memory: OwnPart) -> Tree:
        return memory.h

    def validate(self) -> None:
        check(self)
        if has_personal(self.inner):
            hint = "its method gives clients models of their own already: leave one of the two out"
            raise ConfigError("personal", self.leaves, hint)
        if not self.leaves:
            raise ConfigError("leaves", self.leaves, 'name the leaves that each client keeps, such as "head.*"')
        if self.order == "together" and not isinstance(self.inner, SendsItsUpdate):
            name = self.inner.traits().name
            hint = f"clients of {name} do not send y − x alone, so that h has no part of it: give order='first'"
            raise ConfigError("order", self.order, hint)

    def _around(self, stage: str, number: int, exchange: Exchange) -> Exchange:
        moves = stage == "exchanges" and number == 0  # else h stays as it is

        def client(download: Tree, memory: OwnPart, oracle: Oracle) -> tuple[Tree, OwnPart]:
            if moves and self.order == "together":
                return self._together(download, memory, oracle)
            h = self._first(model_in(download), memory.h, oracle) if moves else memory.h
            bound = oracle.about(oracle.task_with(h))
            upload, own = exchange.client(download, memory.own, bound)
            oracle.asked = bound.asked
            return upload, OwnPart(own, h)

        return exchange._replace(client=client)

    def _first(self, phi: Vector, h: Tree, oracle: Oracle) -> Tree:
        """h after its own steps with φ as received."""
        asking = oracle.about(Task(_none, lambda h, batch, key: oracle.task_with(h).loss(phi.tree, batch, key)))
        step = lambda v, k: v - self.lr * asking.grad(v, k)  # noqa: E731
        v = phases(step, Vector(h), oracle.steps if self.steps is None else self.steps, asking)
        oracle.asked = asking.asked
        return v.tree

    def _together(self, download: Tree, memory: OwnPart, oracle: Oracle) -> tuple[Tree, OwnPart]:
        """Local steps in φ and h together; of y − x the part of φ is sent, and that of h kept."""
        assert isinstance(self.inner, SendsItsUpdate)
        x = Vector((model_in(download).tree, memory.h))
        asking = oracle.about(Task(_none, lambda both, batch, key: oracle.task_with(both[1]).loss(both[0], batch, key)))
        y = self.inner.train(x, asking)
        upload = self.inner.upload(Vector((y - x).tree[0]), asking)
        oracle.asked = asking.asked
        return upload, OwnPart(memory.own, y.tree[1])


def _none(key: Tree) -> Tree:
    return None


def model_in(download: Tree) -> Vector:
    """The model in a download.

    Raises:
        ConfigError: there is none.

    Example:
        >>> model_in(Vector(1.0)).tree
        1.0
    """
    first = download[0] if isinstance(download, tuple) and download else None
    found = download if isinstance(download, Vector) else getattr(download, "x", first)
    if not isinstance(found, Vector):
        hint = "clients get no model to train their own part for: a download is x, has x as .x, or begins with it"
        raise ConfigError("personal", type(download).__name__, hint)
    return found
