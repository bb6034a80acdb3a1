"""The contract of a method: what the server keeps, what a client does, and what goes on the wire."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

import equinox as eqx
import jax.numpy as jnp

from fedax.contract import hyper
from fedax.contract.settings import Settings
from fedax.contract.staleness import Staleness
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.errors import ConfigError, unknown


class Change(eqx.Module):
    """A part of an upload that is the change of what its client keeps, such as SCAFFOLD's c_i⁺ − c_i.

    The other parts of an upload estimate a mean over all clients, and count with the cohort's weights ω_i. A change
    counts with the data's weights p_i: in its place the server finds Σ p_i · change_i over the clients that were
    heard. So a server that adds up all changes has Σ p_i · memory_i over *all* clients, to rounding, whoever is drawn,
    drops out or is left out by a guard. An array that an upload holds both inside of a ``Change`` and outside is sent
    once.

    Args:
        value: the change, any pytree of arrays and Vectors.

    Example:
        >>> Change(jnp.array([1.0, 2.0])).value.tolist()
        [1.0, 2.0]
    """

    value: Tree


class Traits(NamedTuple):
    """Properties of a method with its hyper-parameters that its functions do not show.

    Attributes:
        name: what its paper calls it.
        source: the paper's authors and year, and where it is there.
        cohorts: ``"any"``, or ``"all"``: all clients take part in every round.
        steps: ``"any"``, or ``"equal"``: all clients take equally many local steps.
        limit: what it minimises with exact gradients as η → 0: ``"F"``, the data's own objective; ``"steps"``,
            Σ p_i‖a_i‖₁ F_i, in which clients count for more that take more steps; ``""``: not known.
        exact: where it ends at the optimum of a convex F itself for constant η, with exact gradients (minibatches leave
            noise in proportion to η): ``"always"``, with ``"all clients"``, with ``"equal steps"``, or ``"never"``:
            drift of the local steps, in proportion to η, or another limit remains.
        corrects: by what it corrects its local steps, so that they do not drift; ``""``: it does not.
        own: the weight of a client's own gradient in its local steps.
        fair: whether clients count by p_i however often and late each is heard, as the server knows what each of them
            sent last.

    Example:
        >>> import fedax
        >>> fedax.create("scaffold").traits().exact, fedax.create("vrl-sgd").traits().cohorts
        ('always', 'all')
    """

    name: str = ""
    source: str = ""
    cohorts: Literal["any", "all"] = "any"
    steps: Literal["any", "equal"] = "any"
    limit: Literal["F", "steps", ""] = ""
    exact: Literal["always", "all clients", "equal steps", "never"] = "never"
    corrects: str = ""
    own: Number = 1.0
    fair: bool = False

    def refuse(self, *, missing: str | None = None, unequal: bool = False) -> None:
        """Raise a ConfigError for rounds for which the method is not defined, and for a word that means nothing here.

        Args:
            missing: why a round may lack some of the N clients; ``None``: it never does.
            unequal: whether clients may take different numbers of local steps.

        Example:
            >>> Traits(name="LED", cohorts="all").refuse(missing="3 of 7 clients")
            Traceback (most recent call last):
            fedax.errors.ConfigError: participation = '3 of 7 clients': LED is defined for full participation only; ...
        """
        for field, words in get_type_hints(Traits).items():
            if get_origin(words) is Literal and getattr(self, field) not in get_args(words):
                raise unknown(f"traits.{field}", getattr(self, field), filter(None, get_args(words)))
        if self.cohorts == "all" and missing is not None:
            hint = "is defined for full participation only; use Full(), and no guard that leaves clients out"
            raise ConfigError("participation", missing, f"{self.name} {hint}")
        if self.steps == "equal" and unequal:
            hint = f"{self.name} is defined for equal local steps; use Steps(K)"
            raise ConfigError("work", "unequal local steps", hint)


class Pace(NamedTuple):
    """What a method asks of :class:`fedax.Async`, where the run does not say otherwise.

    Attributes:
        staleness: how much late answers count; ``None``: all the same.
        max_staleness: answers with a greater staleness are thrown away; ``None``: none are.
        buffer: how many answers a step takes; ``None``: any number. Rounds for which the method is not defined where
            the server waits are then no matter.

    Example:
        >>> Pace(max_staleness=7).staleness is None
        True
    """

    staleness: Staleness | None = None
    max_staleness: int | None = None
    buffer: int | None = None


class Round(NamedTuple):
    """What a server knows about the round whose uploads it aggregates.

    All arrays run over the cohort, in the engine's order; ``present`` is false on padding.

    Attributes:
        index: r, from 0.
        t: global step at the start of the round, r·K, where K is the most steps that a client may take.
        key: a random key of the server's own.
        num_clients: N.
        weights: [S] ω_i, such that the aggregate is Σ ω_i v_i (0 on padding).
        steps: [S] τ_i. Of private uploads the largest that a client may take, for all.
        present: [S] whether the place holds a client.
        data_weights: [S] p_i (0 on padding, and for a client that a guard leaves out).
        total: Σ ω_i (1 where all ω are 0); divide by it where a convex combination is needed (models, second
            moments).
        staleness: [S] how many steps the server has taken since each client began; 0 where the server waits for all.
        ids: [S] who the clients are, 0 … N − 1; N at an empty place. Of private uploads ``()``.

    Example:
        >>> def server(self, server, mean, round):  # a method's: steps along the mean gradient, fewer in later rounds
        ...     return server - self.lr / (1 + round.index) * mean / round.total
    """

    index: Number
    t: Number
    key: Array
    num_clients: int
    weights: Array
    steps: Array
    present: Array
    data_weights: Array
    total: Number
    staleness: Number = 0
    ids: Tree = ()

    @property
    def heard(self) -> Number:
        """Σ p_i over the clients that were heard: their share of the objective, in [0, 1]."""
        return jnp.sum(self.data_weights)

    @property
    def shortfall(self) -> Number:
        """1 − Σ ω_i, which is 0 in each round or on average.

        A vector b that is in every upload comes to (Σ ω_i) b in the mean. A server that knows b need not estimate it:
        it adds ``shortfall * b``, and has b exactly.
        """
        return 1 - jnp.sum(self.weights)

    @property
    def mean_steps(self) -> Number:
        """Σ ω_i τ_i / Σ ω_i, the cohort's weighted mean of the local steps."""
        return jnp.sum(self.weights * self.steps) / self.total


class Exchange(NamedTuple):
    """One exchange of a round: the clients receive, work and answer; the server hears the weighted mean.

    Attributes:
        client: ``(download, memory, oracle) -> (upload, memory)``.
        server: ``(server, mean, round) -> server``; ``None``: the clients only listen, and their upload is ``None``.
        download: ``(server) -> download``; ``None``: the method's own.
        who: ``"cohort"``, or ``"one"``: a single client, drawn from the cohort by weight; only it runs.

    Example:
        >>> exchange = Exchange(client=lambda download, memory, oracle: (oracle.full_grad(download), memory))
        >>> exchange.who
        'cohort'
    """

    client: Callable[..., Tree]
    server: Callable[..., Tree] | None = None
    download: Callable[..., Tree] | None = None
    who: str = "cohort"


class Algorithm(Settings):
    """A federated optimization method: a frozen pytree of hyper-parameters with pure methods, and no state.

    A method never knows where it runs. What :meth:`download` returns and what a client uploads are the only things
    on the wire; a client's memory never leaves it. ``x`` is a :class:`fedax.Vector`; uploads, memory and server state
    are any pytrees (of arrays and Vectors). An update is ``dx = y − x`` and the server adds it.

    A new method gives :meth:`client` and :meth:`server` (or :meth:`exchanges`) and may override the other defaults.
    No concrete method is subclassed: a variant is a field, or wraps.

    Example:
        >>> class GradientDescent(Algorithm):
        ...     lr: float
        ...
        ...     def init(self, x):
        ...         return x
        ...
        ...     def client(self, download, memory, oracle):
        ...         return oracle.full_grad(download), memory
        ...
        ...     def server(self, server, mean, round):
        ...         return server - self.lr * mean
        >>> GradientDescent(lr=0.1).server(Vector(jnp.ones(2)), Vector(jnp.array([0.0, 5.0])), None).tree.tolist()
        [1.0, 0.5]
    """

    def init(self, x: Vector) -> Tree:
        """Server state at round 0: the model, or what has it as ``.x``, unless :meth:`model` says otherwise."""
        raise NotImplementedError

    def init_client(self, x: Vector) -> Tree:
        """What one client keeps between rounds, its memory; ``()`` is nothing."""
        return ()

    def download(self, server: Tree) -> Tree:
        """All that a client receives."""
        return server

    def client(self, download: Tree, memory: Tree, oracle: Unknown) -> tuple[Tree, Tree]:
        """The work of one client in one round: ``-> (upload, memory)``."""
        raise NotImplementedError

    def server(self, server: Tree, mean: Tree, round: Round) -> Tree:
        """The new server state; ``mean`` is Σ ω_i · upload_i over the cohort, Σ p_i · change_i for each Change."""
        raise NotImplementedError

    def model(self, server: Tree) -> Vector:
        """What is evaluated and delivered, by default a state that is the model itself, or its ``.x``."""
        return server if isinstance(server, Vector) else server.x

    def personal(self, download: Tree, memory: Tree) -> Vector | None:
        """A client's own model, of the newest download and the memory of its last turn; ``None``: it has none.

        A client that never took part first takes turns of its own from ``init_client(x)`` of the newest model x; what
        it would upload is thrown away.
        """
        return None

    def adapt(self, model: Vector, oracle: Unknown) -> Vector | None:
        """A client's own model where it keeps none: made of the newest shared one whenever it is used; else ``None``.

        The gradients of it are not counted: nothing of them is sent.
        """
        return None

    def own_part(self, memory: Tree) -> Tree:
        """The part of the model that a client keeps itself, in the form of the task's ``frozen``; ``None``: none."""
        return None

    def penalty(self, x: Vector) -> Number:
        """ψ(x) of a method for composite objectives F + ψ; ``None``: the objective is F."""
        return None

    def exchanges(self) -> tuple[Exchange, ...]:
        """A round's exchanges in order."""
        return (Exchange(self.client, self.server),)

    def warmup(self) -> tuple[Exchange, ...]:
        """Exchanges over all N clients before round 0."""
        return ()

    def traits(self) -> Traits:
        """For which rounds the method is defined, and where it ends."""
        return Traits(type(self).__name__)

    def pace(self) -> Pace:
        """What the method asks of a server that does not wait."""
        return Pace()

    def paced(self, weights: Array) -> "Algorithm":
        """The method at a server that does not wait, for clients with these weights p, [N]; asked before all else."""
        return self

    def validate(self) -> None:
        """Raise :class:`fedax.errors.ConfigError` for hyper-parameters that cannot be used; called before a run.

        The default is :func:`fedax.contract.hyper.check`: each field as it is declared.
        """
        hyper.check(self)


class Layer(Algorithm):
    """A method that wraps another one and changes its exchanges with the wire, in :meth:`_around`.

    Args:
        inner: the other method, which may be a layer itself.
    """

    inner: Algorithm

    def init(self, x: Vector) -> Tree:
        return self.inner.init(x)

    def init_client(self, x: Vector) -> Tree:
        return self.inner.init_client(x)

    def download(self, server: Tree) -> Tree:
        return self.inner.download(self.own_state(server))

    def model(self, server: Tree) -> Vector:
        return self.inner.model(self.own_state(server))

    def personal(self, download: Tree, memory: Tree) -> Vector | None:
        return self.inner.personal(download, self.own_memory(memory))

    def own_part(self, memory: Tree) -> Tree:
        return self.inner.own_part(self.own_memory(memory))

    def penalty(self, x: Vector) -> Number:
        return self.inner.penalty(x)

    def exchanges(self) -> tuple[Exchange, ...]:
        return self._stage("exchanges")

    def warmup(self) -> tuple[Exchange, ...]:
        return self._stage("warmup")

    def _stage(self, stage: str) -> tuple[Exchange, ...]:
        inner = self.inner.exchanges() if stage == "exchanges" else self.inner.warmup()
        return tuple(self._around(stage, number, exchange) for number, exchange in enumerate(inner))

    def _around(self, stage: str, number: int, exchange: Exchange) -> Exchange:
        """What becomes of an exchange of the inner method, by its place in a round or in the warm-up."""
        raise NotImplementedError

    def traits(self) -> Traits:
        return self.inner.traits()

    def pace(self) -> Pace:
        return self.inner.pace()

    def validate(self) -> None:
        self.inner.validate()

    def own_state(self, server: Tree) -> Tree:
        """The inner method's part of the server's state."""
        return server

    def own_memory(self, memory: Tree) -> Tree:
        """The inner method's part of a client's memory, or of that of all clients."""
        return memory


def layers_of(method: Algorithm) -> tuple[Layer, ...]:
    """The layers around a method, the outermost first."""
    return (method, *layers_of(method.inner)) if isinstance(method, Layer) else ()


def without_layers(method: Algorithm) -> Algorithm:
    """The innermost method."""
    return without_layers(method.inner) if isinstance(method, Layer) else method
