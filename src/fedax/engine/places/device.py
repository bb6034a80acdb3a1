"""Clients whose examples and memory are on the device: rounds are traced into one compiled program."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import decoded
from fedax.contract.oracle import OracleCalls
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Number, Tree
from fedax.contract.vector import Vector
from fedax.engine.clients import BufferUse, Client, SharedInputs, alone, client_program, contribute
from fedax.engine.loop import (
    Clients,
    Counters,
    Exclusions,
    Federation,
    Hyper,
    Request,
    Response,
    State,
    conclude,
    converse,
    download_of,
    draw,
    draw_one,
    exchanges,
    stage_key,
)
from fedax.engine.plan import ExchangeForm, RunPlan, sent
from fedax.errors import ConfigError
from fedax.federation.participation import Full
from fedax.programs import compiled
from fedax.wire.sums import along


def prepare(
    hyper: Hyper, fed: Federation, key: Array, x: Vector, plan: RunPlan, forms: list[ExchangeForm] | None = None
) -> tuple[State, Counters]:
    """Server state and client memory at round 0, after the method's warm-up over all clients; and its counters."""
    server, row = first_state(hyper.method, x)
    memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (plan.num_clients, *leaf.shape)), row)
    state, counters = State(server, memory, no_exclusions(plan)), nothing()
    if resolve(hyper.method, 0).warmup():
        everyone = hyper._replace(participation=Full())
        state, counters = one_round(everyone, fed, key, state, 0, plan, "warmup", forms)
    return settle(state, plan), counters


def first_state(algorithm: Algorithm, x: Vector) -> tuple[Tree, Tree]:
    """The initial state of the server, and the initial memory of a client."""
    method = resolve(algorithm, 0)
    # Strong types: a Python number's weak one would change after the first rounds, and compile them a second time.
    state = (method.init(x), method.init_client(x))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


first_states = compiled()(first_state)


def no_exclusions(plan: RunPlan) -> Exclusions | tuple[()]:
    """No exclusions yet: the state before the first round."""
    return Exclusions(jnp.zeros(plan.num_clients, jnp.int32), jnp.zeros((), jnp.int32)) if plan.watched else ()


def some_rounds(
    hyper: Hyper, fed: Federation, key: Array, state: State, start: Array, stop: Array, plan: RunPlan
) -> tuple[State, Counters]:
    """Run rounds start … stop − 1: the new state, and the counters. Their number is traced, not compiled in."""

    def body(index: Array, carry: tuple[State, Counters]) -> tuple[State, Counters]:
        state, before = carry
        state, counters = one_round(hyper, fed, key, state, index, plan)
        return state, jax.tree.map(jnp.add, before, counters)

    state, counters = jax.lax.fori_loop(start, stop, body, (state, nothing()))
    return settle(state, plan), counters


def one_round(
    hyper: Hyper,
    fed: Federation,
    key: Array,
    state: State,
    index: Number,
    plan: RunPlan,
    stage: str = "exchanges",
    forms: list[ExchangeForm] | None = None,
) -> tuple[State, Counters]:
    """Run round ``index``: draw the cohort, gather its memory, run its exchanges, write its memory back.

    ``key`` is the run's: every random number is a function of it, the round, the exchange, the client and the step.
    While JAX traces, the form of each exchange is appended to ``forms``.
    """
    method, key = resolve(hyper.method, index), stage_key(key, index, stage)
    clients, round_ = draw(hyper, fed, key, index, plan)
    # All clients, in the order of their numbers: nothing to gather. Unequal work puts them in the order of their steps.
    whole = plan.full and plan.steps is not None
    before = state.memory if whole else jax.tree.map(lambda leaf: leaf.at[clients.ids].get(mode="clip"), state.memory)
    place = Device(hyper, method, fed, key, index, before, plan, forms)
    loop = exchanges(stage, method, clients, round_, state.server, hyper.wire, plan.watched, place)
    end = converse(loop, place)
    _check_memory(method, state.memory, place.memory)
    memory, exclusions = place.memory, state.exclusions
    if exclusions:
        stays = end.counts & ~end.skipped
        memory = jax.tree.map(lambda old, new: jnp.where(along(stays, new), new, old), before, memory)
        exclusions = exclusions.after(clients, end)
    if not whole:
        memory = jax.tree.map(lambda all_, part: all_.at[clients.ids].set(part, mode="drop"), state.memory, memory)
    done = place.done._replace(clients=jnp.sum(clients.present, dtype=jnp.int32))
    return State(end.server, memory, exclusions), done


class Device:
    """The place on the device, whose answers are traced.

    Attributes:
        memory: the memory of the round's clients, leaves [S, ...].
        done: the counters of their work so far.
    """

    def __init__(
        self,
        hyper: Hyper,
        method: Algorithm,
        fed: Federation,
        key: Array,
        index: Array,
        memory: Tree,
        plan: RunPlan,
        forms: list[ExchangeForm] | None,
    ):
        self.memory, self.done = memory, nothing()
        self._hyper, self._method, self._plan, self._forms = hyper, method, plan, forms
        self._shared = SharedInputs(method, hyper.wire, None, fed, key, index)
        self._sent: list[Tree] = []
        self._messages: list[tuple[Array, Tree]] = []

    def answer(self, request: Request, post: BufferUse | None = None) -> Response:
        """Run the clients that are asked; with a ``post`` the total is what :func:`contribute` has in its place."""
        plan = self._plan
        download = download_of(
            request.exchange, self._method, request.server, request.wire, self._shared.key, self._messages
        )
        shared = self._shared._replace(wire=request.wire, download=decoded(download))
        traced: list[tuple[Tree, Tree, OracleCalls]] = []

        def make(shared: SharedInputs) -> Client:
            return client_program(request.stage, request.number, plan, lambda *arrays: traced.append(arrays), shared)

        if request.at is None:
            total, results, counters = contribute(make, shared, self.memory, request.clients, plan, post)
        else:
            total, results, counters = alone(
                make, shared, self.memory, request.at, request.clients.alone(request.at), plan
            )
        self.memory, self.done = results.memory, jax.tree.map(jnp.add, self.done, counters)
        if self._forms is not None:
            self._forms.append(self._form(request, download, *traced[-1]))
        return Response(total, results.upload, results.accepted)

    def draw_one(self, stage: str, clients: Clients) -> Array:
        """The position of a client that is drawn by weight."""
        return draw_one(clients, self._shared.key)

    def conclude(self, request: Request, response: Response) -> Tree:
        """The server's state after the exchange."""
        return conclude(request, response, self._plan)

    def _form(self, request: Request, download: Tree, upload: Tree, memory: Tree, asked: OracleCalls) -> ExchangeForm:
        """The form of an exchange, from traced arrays: shapes, types, and which arrays are the same."""
        single, down, up = request.exchange.who == "one", sent(download), sent(upload)
        if request.exchange.server is None and (self._plan.full or request.stage == "warmup"):
            fresh = (False,) * len(down)  # all clients get this again at the start of the next round, where it counts
        else:
            fresh = tuple(not any(leaf is old for old in self._sent) for leaf in down)
        if not single:
            self._sent += [leaf for leaf, new in zip(down, fresh, strict=True) if new]
        first = tuple(next(k for k, other in enumerate(up) if other is leaf) for leaf in up)
        decided = any(isinstance(number, jax.core.Tracer) for number in asked)
        return ExchangeForm(
            single, form_of(download), fresh, form_of(upload), first, form_of(memory), None if decided else asked
        )


def form_of(tree: Tree) -> Tree:
    """Shapes and types of a pytree."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)


def nothing() -> Counters:
    """A counters of no work."""
    return Counters(*(jnp.zeros((), jnp.int32) for _ in range(3)))


def settle(state: State, plan: RunPlan) -> State:
    """Fix the sharding of the state between rounds: the server's on every device; memory with its client, if known.

    Left to the compiler it might change after the first rounds, and the next ones would be compiled again.
    """
    if plan.mesh is None:
        return state
    everywhere = NamedSharding(plan.mesh, P())
    by_client = NamedSharding(plan.mesh, P(*plan.mesh.axis_names))
    memory_sharding = by_client if plan.full and plan.num_clients % plan.devices == 0 else everywhere
    shardings = State(everywhere, memory_sharding, everywhere, everywhere)
    place = lambda tree, sharding: jax.lax.with_sharding_constraint(tree, jax.tree.map(lambda _: sharding, tree))  # noqa: E731
    return State(*map(place, state, shardings))


def _check_memory(method: Algorithm, before: Tree, after: Tree) -> None:
    """Raise a ConfigError where a round changes the form of client memory."""
    was, became = (
        [(jax.tree_util.keystr(path), leaf.shape[1:], leaf.dtype) for path, leaf in jax.tree.leaves_with_path(memory)]
        for memory in (before, after)
    )
    same_tree: Array = jax.tree.structure(before)
    if same_tree != jax.tree.structure(after) or was != became:
        raise ConfigError(
            "algorithm",
            type(method).__name__,
            f"a round changes a client's memory from {was} to {became}; "
            "the last exchange has to return memory in the form of init_client()",
        )
