"""A run as a node derives it from its agreement, and the data of the node that it is derived for."""

import copy
import dataclasses
import functools
import hashlib
import hmac
import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedax.columns import PERSONAL, TRAIN, held_column, measured_names
from fedax.contract.types import Tree, Unknown
from fedax.data.federated import FederatedData
from fedax.data.split import split
from fedax.engine.checks import pooled_of
from fedax.engine.job import Job
from fedax.engine.load import federation_of, on_devices, streamed
from fedax.engine.places.blocks import Examples
from fedax.engine.places.device import first_states
from fedax.engine.places.layout import Layout
from fedax.engine.plan import ExchangeForm, RunPlan, make_plan
from fedax.engine.timetable import steps_of
from fedax.engine.turns import OwnRows, own_rows
from fedax.errors import ConfigError, DataError, FedaxError, NodeError
from fedax.federation.census import Census
from fedax.federation.participation import Full
from fedax.federation.work import Steps
from fedax.sites.protocol.agreement import (
    PARTS,
    Agreement,
    Made,
    derived,
    digest_of_text,
    hashed,
    precise_versions,
    program_of,
    traced,
)
from fedax.sites.protocol.answered import Share
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.wire.secure import SecureSum

_SPLITS = 128  # the most that are kept


class SiteData:
    """The data of a node.

    Args:
        data: the clients' examples, a dict of arrays.
        names: of the clients.
        own: held-out part -> the owner's own examples for it, or ``None``.
        key: a secret of the node.

    Attributes:
        mark: changes where the clients, their examples or the versions do.
        about: the same without the versions.
        digests: of each client's examples, made with the secret.

    Raises:
        ConfigError, DataError: names that do not fit the data; examples of another form.
    """

    def __init__(self, data: FederatedData, names: Sequence[str], own: Mapping[str, Tree], key: bytes):
        if not isinstance(data.examples, dict):
            raise DataError("examples: of a real client they are a dict of arrays, such as {'x': ..., 'y': ...}")
        if len(names) != data.num_clients or len({*names}) < data.num_clients or not all(names):
            raise ConfigError("names", list(names), f"give each of the {data.num_clients} clients its own name")
        if data.unseen is not None:
            raise DataError("unseen: at a node all clients take part; give data without others")
        self.names, self.own = tuple(names), dict(own)
        self.data = FederatedData(
            data.examples, data.sizes, data.weights, names=self.names, transform=data.transform, _finite=True
        )
        self.census = Census.of(self.data)
        self.digests = [_digest(key, data.client(i)) for i in range(data.num_clients)]
        # Of other data a question is another one: with the same noise, two answers would show what changed.
        self.about = digest_of_text([*self.names, *self.digests, *(_digest(key, tree) for tree in self.own.values())])
        self.mark = digest_of_text([self.about, precise_versions()])[:16]
        self._kept_parts = functools.lru_cache(_SPLITS)(self._parts)

    def split(self, agreement: Agreement) -> dict[str, FederatedData | None]:
        """The clients' rows in their parts; the same objects for the same split."""
        return self._kept_parts(json.dumps(self.about_split(agreement), sort_keys=True))[0]

    def about_split(self, agreement: Agreement) -> Unknown:
        """How an agreement splits the rows, in plain JSON; ``None``: not."""
        if agreement.split is None:
            return None
        return [dict(agreement.split), [agreement.names.index(name) for name in self.names], self.about]

    def row_weights(self, share: Share) -> np.ndarray:
        """The weight of each of the node's rows in a share: first those of the clients, then those held out apart."""
        weights = {"train": np.zeros(self.data.num_examples)}  # of the clients' rows, in whichever part they are
        weights |= {part: np.zeros(0 if tree is None else count(tree)) for part, tree in self.own.items()}
        if share.part != "train" and self.own[share.part] is not None:
            weights[share.part] += 1
        else:
            _, rows = self._kept_parts(json.dumps(share.split, sort_keys=True))
            for client, weight in share.weights.items():
                at = rows[f"{share.part} {client}"]
                weights["train"][at] = weight / len(at) if share.part == "train" else 1
        return np.concatenate([*weights.values()])

    def _parts(self, about: str) -> tuple[dict[str, FederatedData | None], dict[str, np.ndarray]]:
        """The clients' rows in their parts by a split, and part and client -> the numbers of its rows."""
        whole = copy.copy(self.data)
        whole.examples = {**whole.examples, " row": np.arange(whole.num_examples)}
        parts: dict[str, FederatedData | None] = {"train": whole, "val": None, "test": None}
        if (how := json.loads(about)) is not None:
            parts = split(whole, **how[0], places=how[1])._asdict()
        rows: dict[str, np.ndarray] = {}
        for part, tree in parts.items():
            if tree is not None:
                each = np.split(tree.examples.pop(" row"), tree.offsets[1:])
                rows |= {f"{part} {tree.name(i)}": at for i, at in enumerate(each)}
        return parts, rows


class SiteRun(NamedTuple):
    """A run as the node has derived it.

    Attributes:
        agreement, job: the agreement, and the job that follows from it.
        digest: of the agreement.
        plan: with the node's own devices, and number of clients side by side.
        row: the initial memory of a client.
        forms: of the exchanges of the warm-up, and of a round.
        examples: the training examples, and where they are.
        frozen: on the device, the part of the model that is not trained.
        train: the training examples.
        held: part -> held-out examples: by client if they were split off, else a pytree; or ``None``.
        ids: [k] the numbers of the node's clients in the run.
        steps: gives the steps of a client, by its number, that starts in a group, where the server does not wait.
        server: who asked for the run.
    """

    agreement: Agreement
    job: Job
    digest: str
    plan: RunPlan
    row: Tree
    forms: tuple[list[ExchangeForm], list[ExchangeForm]]
    examples: Examples
    frozen: Tree
    train: FederatedData
    held: dict[str, Tree]
    ids: list[int]
    steps: Callable[[int, int], int]
    server: str = ""

    @property
    def secure(self) -> SecureSum | None:
        """How uploads and figures are summed in secret; ``None``: they are not."""
        return self.job.hyper.wire.secure

    @property
    def weights(self) -> np.ndarray:
        """[k] the weights p of the node's clients."""
        return np.asarray(self.job.fed.weights)[self.ids]

    @property
    def parts(self) -> dict[str, Tree]:
        """The held-out parts that are evaluated here -> all of their examples, those that a client has."""
        return {part: pooled_of(self.held[part]) for part in self.agreement.parts if self.held[part] is not None}

    @property
    def own(self) -> dict[str, OwnRows]:
        """The parts with examples that are of a client, for personal models -> which are whose.

        What the owner of one client holds out is that client's.
        """
        if self.job.evaluation.personal is None:
            return {}
        found = {}
        for part, examples in self.parts.items():
            held = self.held[part]
            if not isinstance(held, FederatedData) and len(self.ids) == 1:
                name = self.agreement.names[self.ids[0]]
                held = FederatedData(examples, [count(examples)], names=[name], _finite=True)
            if (rows := own_rows(held, self.agreement.names)) is not None:
                found[part] = rows
        return found

    @property
    def with_own(self) -> Job:
        """The job as personal models are evaluated here: on the node's devices, with the examples that it holds out."""
        evaluation = self.job.evaluation
        assert evaluation.personal is not None
        mine = evaluation._replace(
            held=self.parts, personal=evaluation.personal._replace(rows=self.own), train=TRAIN[0]
        )
        return self.job._replace(plan=self.plan, evaluation=mine)

    @property
    def single(self) -> bool:
        """Whether uploads leave one by one."""
        one = any(form.one or Layout.of(form.upload, form.first).messages for stage in self.forms for form in stage)
        return one or self.job.hyper.wire.gathers or self.job.pacing is not None

    @property
    def measured(self) -> list[str]:
        """The columns to which the node contributes."""
        val, test = (part in self.parts for part in PARTS)
        metrics, evaluation = self.job.plan.task.metrics, self.job.evaluation
        shared = measured_names(
            metrics, val=val, test=test, grad_norm=evaluation.grad_norm, objective=False, density=False
        )
        if evaluation.personal is None:
            return shared
        own = [held_column(f"{part}{PERSONAL}", name) for part in self.own for name in ("loss", *metrics)]
        return [*shared, f"train_loss{PERSONAL}", *own]


def run_of(site: SiteData, agreement: Agreement, made: Made, frozen: Tree, known: Iterable[SiteRun]) -> SiteRun:
    """The run of an agreement.

    Args:
        site: the node's data.
        agreement, made, frozen: as of :func:`fedax.sites.protocol.agreement.derived`.
        known: other runs, with which it shares what is equal.

    Raises:
        NodeError: it cannot be; no text holds a value of the data.
    """
    own = dict(zip(site.names, site.data.sizes.tolist(), strict=True))
    there = dict(zip(agreement.names, agreement.sizes, strict=True))
    hidden = len({*agreement.sizes}) == 1 and agreement.weights != "sizes"  # the roster does not tell sizes
    if any(size != there.get(name, 0) and not (hidden and size < there.get(name, 0)) for name, size in own.items()):
        raise Refusal(Rule.CLIENT)
    if any((agreement.split or {}).get(part) and site.own[part] is not None for part in PARTS):
        raise Refusal(Rule.HELD_OUT)
    try:
        job = derived(agreement, made, agreement.census(site.census.example, own), frozen)
        dry = traced(job)
    except FedaxError as error:
        raise NodeError(str(error)) from error
    if program_of(dry) != agreement.program:
        raise Refusal(Rule.PROGRAM)
    try:
        parts = site.split(agreement)
        train = parts["train"]
        assert train is not None
        train.check(job.plan.task)
    except FedaxError as error:  # it may hold what is in the data
        traceback.print_exc()
        raise Refusal(Rule.EXAMPLES_FIT) from error
    held = {part: parts[part] if site.own[part] is None else site.own[part] for part in PARTS}
    # The node itself chooses how many clients run side by side, and on which devices.
    usual = Steps(max(1, job.plan.max_steps))
    mine = make_plan(Census.of(train), job.plan.task, job.x, usual, job.plan.batch_size, Full(), job.hyper.wire)
    plan = dataclasses.replace(job.plan, chunk_size=mine.chunk_size, mesh=mine.mesh, graphs=mine.graphs)
    same = [run for run in known if run.plan.mesh == plan.mesh and run.train is train]
    every = slice(0, train.num_clients)
    if same:
        examples = same[0].examples
    else:
        stream = streamed(None, train, every, plan.devices)
        fed = on_devices(federation_of(Census.of(train), None if stream else train, every), plan.mesh)
        examples = Examples(train if stream else None, fed, every)
    alike = [run.frozen for run in same if run.agreement.frozen == agreement.frozen]
    on_device = alike[0] if alike else on_devices(job.plan.task.frozen, plan.mesh)
    row = jax.tree.map(np.asarray, first_states(job.hyper.method, job.x)[1])
    steps = steps_of(job.hyper.work, job.key, job.census, job.plan)
    ids = [agreement.names.index(name) for name in site.names]
    return SiteRun(agreement, job, agreement.digest, plan, row, dry.forms, examples, on_device, train, held, ids, steps)


def counts(examples: Tree) -> dict[str, int]:
    """Client -> how many held-out examples of it there are; ``""``: of nobody."""
    if not isinstance(examples, FederatedData):
        return {"": count(examples)}
    return {examples.name(i): int(size) for i, size in enumerate(examples.sizes)}


def count(examples: Tree) -> int:
    """How many examples a pytree of them has, or clients have."""
    return len(jax.tree.leaves(pooled_of(examples))[0])


def _digest(key: bytes, examples: Tree) -> str:
    """A digest of examples, keyed by a secret of the node: it shows that data changed, and no more."""
    return hashed(hmac.new(key, digestmod=hashlib.sha256), examples or {})[:16]
