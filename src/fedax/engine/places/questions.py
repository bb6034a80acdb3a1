"""What the server and the nodes of a run have to agree on: the job, the forms of an exchange, the question asked.

Both sides use the same functions, so that what one of them computes is what the other one expects.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import Compressor
from fedax.contract.types import Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine.dry_run import DryRun, dry_run
from fedax.engine.identity import versions
from fedax.engine.job import federation_of
from fedax.engine.loop import Hyper
from fedax.engine.places import masks
from fedax.engine.places.answered import question_of
from fedax.engine.places.nodes import arrays_of
from fedax.engine.plan import Plan
from fedax.federation.census import Census
from fedax.federation.participation import Full
from fedax.federation.work import Steps
from fedax.tasks.task import Task
from fedax.wire.secure import FixedPoint
from fedax.wire.wire import Wire

PLANNED = ("num_clients", "max_size", "batch_size", "epochs", "steps", "max_steps", "full", "missing", "by_number",
            "watched", "stops")  # fmt: skip
ECHOED = ("run", "stage", "number", "index", "write")  # entries of a message that its answer repeats


class Problem(NamedTuple):
    """The objects that a configuration describes, at the server and at a node; ``up``: the compressor of uploads."""

    method: Algorithm
    task: Task
    wire: Wire
    up: Compressor | None = None


def order(
    plan: Plan,
    problem: dict[str, Unknown],
    seed: int,
    program: str,
    deal: str | None = None,
    paced: bool = False,
) -> dict[str, Unknown]:
    """The description of a job in messages: the problem in plain JSON, the plan, the seed, a digest of the program.

    If a part of the model is frozen, also a digest of that part, which nodes are sent once; if nodes have dealt their
    own rows, the name of the deal. ``paced``: whether the server does not wait, and so asks single clients.
    """
    planned = {name: getattr(plan, name) for name in PLANNED}
    head = {"problem": problem, "plan": planned, "seed": seed, "program": program}
    head |= {} if deal is None else {"deal": deal}
    head |= {"paced": True} if paced else {}
    return head | ({"frozen": digest_of(plan.task.frozen)} if jax.tree.leaves(plan.task.frozen) else {})


def digest_of(tree: Tree) -> str:
    """A digest of the names and the bytes of some arrays."""
    hasher = hashlib.sha256()
    for name, leaf in sorted(arrays_of({"": tree}).items()):
        array = np.asarray(leaf)
        hasher.update(f"{name} {array.dtype} {array.shape}\n".encode())
        hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()[:32]


def client_round(problem: Problem, plan: Plan, example: Tree, x: Vector) -> DryRun:
    """A dry run of a job, with the forms of its exchanges; the same at the server and at a node.

    Participation and work are not in it, as a node does not know them.
    """
    n = plan.num_clients
    census = Census(np.ones(n, np.int64), np.full(n, 1 / n), example)
    frozen = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), plan.task.frozen)
    fed = federation_of(census, None, slice(0, n))._replace(examples=census.examples(2), frozen=frozen)
    hyper = Hyper(problem.method, Steps(1), Full(), dataclasses.replace(problem.wire, lossy=False))
    return dry_run(hyper, fed, jax.random.key(0), x, dataclasses.replace(plan, mesh=None, chunk_size=1))


def program_of(made: DryRun) -> str:
    """The digest of a job's program, by which server and nodes check that they have the same."""
    return hashlib.sha256(made.digest.encode()).hexdigest()[:16]


def clients_form(size: int, keep: int) -> dict[str, Tree]:
    """The form of a message's arrays for ``size`` clients, each with ``keep`` versions of memory to keep.

    ``clients``: their numbers in the federation, their rows at the node, ω, p and τ. ``base`` and ``keep``: versions
    of their memory, the one that they start from and those to keep; see :class:`Site`.
    """
    real = jnp.zeros(()).dtype
    kinds = {"ids": np.int32, "rows": np.int32, "weights": real, "data_weights": real, "steps": np.int32}
    clients = {name: jax.ShapeDtypeStruct((size,), kind) for name, kind in kinds.items()}
    shapes = {"base": (size, 2), "keep": (size, keep, 2)}
    return {"clients": clients} | {name: jax.ShapeDtypeStruct(shape, np.int64) for name, shape in shapes.items()}


def fixed_point_form(bits: int, places: int) -> FixedPoint:
    """The form of a message's fixed-point format."""
    form: FixedPoint = jax.eval_shape(lambda: FixedPoint(jnp.zeros(()), jnp.zeros(2), places, bits))
    return form


def common_question(head: dict[str, Unknown], download: Tree, fixed: FixedPoint) -> str:
    """A digest of the question that all nodes of a secure sum have in common; at the server and at a node."""
    about = {name: head[name] for name in ("job", "run", "stage", "number", "index", "heard")}
    text = json.dumps([about, fixed.places, fixed.bits], sort_keys=True)
    return question_of(text, map(np.asarray, jax.tree.leaves((download, fixed))))


def contribution_of(clients: Mapping[str, np.ndarray]) -> masks.Part:
    """What a node contributes to a secure sum, by the clients that are asked."""
    weights = (float(np.sum(clients[name], dtype=np.float64)) for name in ("weights", "data_weights"))
    return masks.Part(len(clients["rows"]), *weights)


def exchange_name(head: dict[str, Unknown]) -> str:
    """The unique name of an exchange, the same in all of its messages."""
    return "/".join(str(head[name]) for name in ("run", "write", "stage", "index", "number"))


def precise_versions() -> dict[str, Unknown]:
    """The versions that have to be the same at the server and at all nodes."""
    known = versions()
    return {"fedax": known["fedax"], "jax": known["jax"], "float64": bool(jax.config.read("jax_enable_x64"))}
