"""The agreement of a run at real clients: all that fixes the run, sent once, from which each node derives the rest.

Server and nodes make the same :class:`fedax.engine.job.Job` from it: the method with its layers, the task, the plan,
the cohort of each round with its weights and steps, the forms of the exchanges. So a question to a node names an
exchange and brings the download, and says nothing that the node can derive.
"""

import dataclasses
import hashlib
import hmac
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pydantic

from fedax.columns import PERSONAL
from fedax.contract.algorithm import Algorithm, Exchange, Round
from fedax.contract.schedule import resolve
from fedax.contract.types import Tree, Unknown
from fedax.data.split import part_sizes
from fedax.data.transform import Strict
from fedax.engine.checks import labels_of
from fedax.engine.dry_run import DryRun, dry_run
from fedax.engine.evaluate import held_out
from fedax.engine.fingerprint import versions
from fedax.engine.job import Job
from fedax.engine.load import federation_of
from fedax.engine.loop import Clients, Hyper, draw_rounds
from fedax.engine.make import begun_at, make_job
from fedax.errors import ConfigError, NodeError
from fedax.federation.census import Census
from fedax.federation.participation import Cohort, Full, Participation
from fedax.federation.work import Steps
from fedax.metrics.base import Metric
from fedax.numbers import check_number
from fedax.programs import compiled
from fedax.sites.protocol import masks
from fedax.sites.protocol.messages import arrays_of
from fedax.tasks.task import Task
from fedax.wire.privacy import Private
from fedax.wire.wire import Wire

STAGES = ("warmup", "exchanges")
EVALUATION = "evaluation"  # the stage of a question for figures
PARTS = ("val", "test")
_ORDER = 64  # more than the exchanges of a round


class Made(NamedTuple):
    """What a configuration describes: the method, the task, and the options of :func:`fedax.engine.job.make_job`."""

    method: Algorithm
    task: Task
    options: Mapping[str, Unknown]


_Named = Annotated[str, pydantic.Field(pattern="^(sizes|uniform)$")]


@dataclasses.dataclass(frozen=True)
class Agreement(Strict):
    """What the server and all nodes of a run agree on before its first round. It holds for the whole run.

    Args:
        run: the run's random name, below 2^62. The same run again has another one.
        seed: as of :func:`fedax.simulate`.
        config: the configuration in plain JSON: method, task, work, participation, and the options of the run.
        names: of all clients, in the order of their numbers.
        sizes: how many examples each has, before they are split. Where neither weights nor steps depend on them, each
            is the largest, and nodes do not learn the others' sizes.
        weights: ``"sizes"``, ``"uniform"``, or p_i for each client.
        split: how each client splits its rows, as arguments of :func:`fedax.data.split`; ``None``: not.
        parts: the held-out parts that are at the nodes, and are evaluated there.
        program: the digest of the traced program.
        frozen: the digest of the part of the model that is not trained; ``None``: all of it is.
        versions: as of :func:`precise_versions`.

    Raises:
        NodeError: an entry that cannot be.
    """

    run: Annotated[int, pydantic.Field(ge=0, lt=2**62)]
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**32)]
    config: Mapping[str, Unknown]
    names: Annotated[tuple[str, ...], pydantic.Field(min_length=1)]
    sizes: tuple[Annotated[int, pydantic.Field(ge=1, lt=2**31)], ...]
    weights: _Named | tuple[Annotated[float, pydantic.Field(ge=0, le=1)], ...]
    split: Mapping[str, Unknown] | None
    parts: tuple[Annotated[str, pydantic.Field(pattern="^(val|test)$")], ...]
    program: str
    frozen: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{32}$")] | None
    versions: Mapping[str, Unknown]

    def __post_init__(self) -> None:
        n, weights = len(self.names), self.weights
        fits = isinstance(weights, str) or (len(weights) == n and abs(math.fsum(weights) - 1) < 1e-6)
        if not fits or not len({*self.names}) == len(self.sizes) == n:
            raise NodeError("an entry of the run's agreement is not of its form")

    @property
    def text(self) -> str:
        """The agreement as JSON, the same text for the same agreement."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @property
    def digest(self) -> str:
        """By which questions name it."""
        return digest_of_text(self.text)

    @property
    def memory(self) -> str:
        """The name of the clients' memory: the same where a run goes on with more rounds, by another agreement."""
        return digest_of_text([self.run, self.program, self.names, self.split, self.frozen])

    @classmethod
    def of(cls, text: Unknown) -> "Agreement":
        """An agreement that came as text.

        Raises:
            NodeError: it is none.
        """
        try:
            return _AGREEMENT.validate_json(text)
        except pydantic.ValidationError:
            raise NodeError("what came as the agreement of a run is none") from None

    def census(self, example: Tree, own: Mapping[str, int] | None = None) -> Census:
        """The census of the training rows.

        Args:
            example: the form of an example.
            own: the sizes of a node's own clients, by name, where the roster has none.
        """
        whole = np.array([(own or {}).get(name, size) for name, size in zip(self.names, self.sizes, strict=True)])
        named = {"sizes": whole / whole.sum(), "uniform": np.full(len(whole), 1 / len(whole))}
        weights = named[self.weights] if isinstance(self.weights, str) else np.array(self.weights)
        sizes = whole if self.split is None else train_sizes(whole, self.split)["train"]
        return Census(sizes.astype(np.int64), weights, example, self.names, held=dict.fromkeys(self.parts, 1))


_AGREEMENT = pydantic.TypeAdapter(Agreement)


def train_sizes(sizes: np.ndarray, settings: Mapping[str, Unknown]) -> dict[str, np.ndarray]:
    """Part -> [N] how many rows of each client are in it, as :func:`fedax.data.split` deals them.

    Example:
        >>> {part: n.tolist() for part, n in train_sizes([10, 3], {"train": 0.7, "val": 0.1, "test": 0.2}).items()}
        {'train': [7, 2], 'val': [1, 0], 'test': [2, 1]}
    """
    shares = [check_number(part, settings[part], 0, 1) for part in ("train", *PARTS)]
    if abs(sum(shares) - 1) > 1e-9:
        raise NodeError("the shares of the split do not sum to 1")
    found = np.array([part_sizes(int(size), shares) for size in sizes])
    return dict(zip(("train", *PARTS), found.T, strict=True))


def derived(agreement: Agreement, made: Made, census: Census, frozen: Tree = None) -> Job:
    """The job of an agreement, the same at the server and at all nodes.

    Args:
        agreement: the agreement.
        made: what its configuration describes.
        census: of the training rows.
        frozen: what is frozen of the model.

    Raises:
        ConfigError, DataError: it cannot be; no example enters it, so that its text tells nothing of any.
    """
    method, task = made.method, made.task
    if frozen is not None:
        task = task.with_frozen(frozen)
        method = begun_at(method, frozen)
    return make_job(method, task, census, **(dict(made.options) | {"seed": agreement.seed}))


def shared_sizes(job: Job, whole: np.ndarray) -> tuple[int, ...]:
    """The sizes of the roster: of each client, or of each the largest where neither steps nor weights depend on them.

    Args:
        job: the server's.
        whole: [N] sizes before the split.
    """
    largest = np.full_like(whole, whole.max())
    uniform = float(np.ptp(job.census.weights)) == 0
    constant = job.hyper.work.equal(np.array([1, 10**6]), job.plan.batch_size) is not None
    return tuple(map(int, largest if uniform and constant else whole))


def traced(job: Job) -> DryRun:
    """A dry run of a job's method with its layers: the forms of its exchanges, the same at the server and at a node.

    Participation and work are not in it, as cohorts may be secret.
    """
    n, plan, example = job.plan.num_clients, job.plan, job.census.example
    census = Census(np.ones(n, np.int64), np.full(n, 1 / n), example)
    frozen = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), plan.task.frozen)
    fed = federation_of(census, None, slice(0, n))._replace(examples=census.examples(2), frozen=frozen)
    hyper = Hyper(job.hyper.method, Steps(1), Full(), dataclasses.replace(job.hyper.wire, lossy=False))
    return dry_run(hyper, fed, jax.random.key(0), job.x, dataclasses.replace(plan, mesh=None, chunk_size=1))


def program_of(made: DryRun) -> str:
    """The digest of a job's program, by which server and nodes check that they have the same."""
    return hashlib.sha256(made.digest.encode()).hexdigest()[:16]


# ---- what a question asks


class Asked(NamedTuple):
    """An exchange as a node derives it.

    Attributes:
        exchange: the method's.
        clients: those of this node that are asked, [k], but not where their examples are; weights of those that no
            longer count are 0.
        wire: that of the round.
    """

    exchange: Exchange
    clients: Clients
    wire: Wire


def is_secret(job: Job) -> bool:
    """Whether its cohorts are drawn in secret: nodes are told whom of their clients they hold."""
    return isinstance(job.hyper.method, Private) and not job.hyper.participation.everyone(job.plan.num_clients)


def cohort_of(job: Job, stage: str, index: int, told: Sequence[int] | None = None) -> tuple[Clients, Round]:
    """The clients of a round, [S], and what the server knows of it, NumPy leaves.

    Args:
        job: the job.
        stage, index: which round.
        told: of a secret cohort, the clients of it that a node was told of; the others are not in what is returned.
    """
    hyper, n = job.hyper if stage == "exchanges" else job.hyper._replace(participation=Full()), job.plan.num_clients
    if told is not None and is_secret(job) and stage == "exchanges":
        places, sampling = hyper.participation.places(n), hyper.participation.sampling(n)
        assert sampling is not None  # a private run has one
        ids = np.pad(np.array(told, np.int32), (0, places - len(told)), constant_values=n)
        hyper = hyper._replace(participation=_Told(ids, sampling.chance))
    found = draw_rounds(hyper, job.fed, job.key, np.array([index], np.int32), plan=job.plan, stage=stage)
    clients, round_ = jax.tree.map(lambda leaf: leaf[0], found)
    return clients, round_


class _Told(Participation):
    """A secret cohort, of which a node was told some: ``ids``, N in empty places; ``chance``: of each client."""

    ids: np.ndarray
    chance: float

    def draw(self, key: Unknown, weights: Unknown, index: Unknown) -> Cohort:
        return Cohort(self.ids, weights[jnp.minimum(self.ids, len(weights) - 1)] / self.chance)

    def places(self, num_clients: int) -> int:
        return len(self.ids)


def exchange_of(job: Job, stage: str, index: int, number: int) -> Exchange:
    """An exchange of a round.

    Raises:
        NodeError: there is no such one in the run.
    """
    if not (stage in STAGES and type(index) is int and type(number) is int and 0 <= index < max(1, job.rounds)):
        raise NodeError("there is no such round in the run's agreement")
    exchanges = getattr(resolve(job.hyper.method, index), stage)()
    if not 0 <= number < len(exchanges) or (stage == "warmup" and index):
        raise NodeError("there is no such exchange in the run's agreement")
    return exchanges[number]


def version_after(stage: str, index: int, number: int) -> int:
    """The version of a client's memory after an exchange; 0 is the initial one, and later ones have larger numbers.

    Example:
        >>> version_after("warmup", 0, 0), version_after("exchanges", 0, 0), version_after("exchanges", 2, 1)
        (1, 65, 194)
    """
    return 1 + number + (_ORDER * (index + 1) if stage == "exchanges" else 0)


def last_turns(versions: np.ndarray) -> np.ndarray:
    """The rounds of the clients' last turns by the versions of their memory; −1 of those that never took part.

    Example:
        >>> last_turns(np.array([0, 1, 65, 194])).tolist()
        [-1, -1, 0, 2]
    """
    return versions // _ORDER - 1


# ---- secure sums


def common_question(run: str, stage: str, index: int, number: int, model: str) -> str:
    """A digest of the question that all nodes of a secure sum have in common; ``model``: that of the download."""
    return digest_of_text([run, stage, index, number, model])


def contribution_of(clients: Clients) -> masks.MaskedPart:
    """What a node contributes to a secure sum, by its clients that are asked."""
    weights = (float(np.sum(each, dtype=np.float64)) for each in (clients.weights, clients.data_weights))
    return masks.MaskedPart(len(clients.ids), *weights)


# ---- figures


def figures_form(job: Job, parts: Iterable[str]) -> dict[str, Tree]:
    """The form of a node's answer to an evaluation: of the training data, and of held-out parts.

    ``"train"`` has Σ p_i F_i, its gradient where asked, and last Σ p_i F_i(v_i) of personal models where there are
    some; a part means and sums over its examples, and sums of the labels alone. Of personal models a part has the same
    once more, under its name and ``_personal``.
    """
    task, examples = job.plan.task, job.census.examples(1)
    real = jax.ShapeDtypeStruct((), np.asarray(job.fed.weights).dtype)
    found = _held_out.form(job.x, examples, task=task)
    labels = labels_of(task, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), examples))
    of_part = {"figures": found, "labels": labels}
    train, found = [real, job.x.tree] if job.evaluation.grad_norm else [real], dict.fromkeys(parts, of_part)
    if job.evaluation.personal is not None:
        train, found = [*train, real], found | {f"{part}{PERSONAL}": of_part for part in found}
    return {"train": train} | found


@compiled(static=["task"])
def _held_out(x: Tree, examples: Tree, *, task: Task) -> Tree:
    return held_out(task, x, examples, None)


def check_figures(job: Job) -> None:
    """Refuse metrics that secure sums cannot have.

    Raises:
        ConfigError: the parts of a metric cannot be added.
    """
    if job.hyper.wire.secure is None:
        return
    for name, metric in job.plan.task.whole_metrics.items():
        if type(metric).joined is not Metric.joined:
            hint = "with secure sums the figures of nodes are added, and the parts of this metric cannot be"
            raise ConfigError(f"run.metrics {name}", metric, f"{hint}; leave it out, or take rmse")


def figures_vector(
    task: Task, arrays: Mapping[str, Tree], counts: Mapping[str, int], form: Mapping[str, Tree]
) -> np.ndarray:
    """The figures of a node as numbers that can be added over nodes, float64 [d].

    Args:
        task: whose figures they are.
        arrays: the answer, without parts of which the node has no examples.
        counts: part -> how many examples the node has.
        form: the whole answer, :func:`figures_form`.
    """
    whole = {part: jax.tree.map(lambda leaf: np.zeros(leaf.shape), tree) for part, tree in form.items()}
    for part, found in arrays.items():
        whole[part] = found
        if part != "train":
            whole[part] = {**found, "figures": _scaled(task, found["figures"], operator.mul, counts[part])}
    return np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(whole)])


def figures_tree(total: np.ndarray, form: Mapping[str, Tree]) -> dict[str, Tree]:
    """The sums of :func:`figures_vector` over nodes, in the form of an answer; counts are whole numbers."""

    def typed(each: np.ndarray, leaf: Tree) -> np.ndarray:
        whole = np.dtype(leaf.dtype).kind in "iub" and np.isfinite(each).all()
        return np.rint(each).astype(np.int64) if whole else each

    tree: dict[str, Tree] = jax.tree.map(typed, masks.tree_of(total, dict(form)), dict(form))
    return tree


def as_means(task: Task, figures: Mapping[str, Tree], number: int) -> dict[str, Tree]:
    """Figures over so many examples: sums of means become means again."""
    return _scaled(task, figures, operator.truediv, number)


def _scaled(task: Task, figures: Mapping[str, Tree], scale: Callable[..., Tree], by: int) -> dict[str, Tree]:
    """Figures of which the means are scaled; metrics are sums already."""
    sums = {name for name in figures if isinstance(task.metrics.get(name), Metric)}
    return {name: each if name in sums else scale(np.asarray(each, float), by) for name, each in figures.items()}


# ---- digests


def digest_of(tree: Tree) -> str:
    """A digest of the names and the bytes of some arrays."""
    return hashed(hashlib.sha256(), arrays_of({"": tree}))[:32]


def hashed(hasher: "hashlib._Hash | hmac.HMAC", arrays: Mapping[str, Tree]) -> str:
    """What a hash gives of the names and the bytes of some arrays."""
    for name, leaf in sorted(arrays.items()):
        array = np.asarray(leaf)
        hasher.update(f"{name} {array.dtype} {array.shape}\n".encode())
        hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def digest_of_text(*parts: Unknown) -> str:
    """A digest of texts and plain JSON."""
    text = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def precise_versions() -> dict[str, Unknown]:
    """The versions that have to be the same at the server and at all nodes."""
    known = versions()
    return {"fedax": known["fedax"], "jax": known["jax"], "float64": bool(jax.config.read("jax_enable_x64"))}


def other_versions(versions: Mapping[str, Unknown]) -> str:
    """Which of a node's :func:`precise_versions` are others than the server's, for people; empty: none."""
    return "; ".join(
        f"{name} {versions.get(name)}, and the server has {own}"
        for name, own in precise_versions().items()
        if versions.get(name) != own
    )
