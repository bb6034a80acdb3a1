"""A site, the node's side of a run: the clients of one node, with their data, their memory and their programs.

It answers the messages of a server (:mod:`fedax.engine.places.remote`). A message has everything on which its answer
depends, except data and memory, so that a site that was stopped and started again answers as if it had not been.
"""

import dataclasses
import hashlib
import hmac
import itertools
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import describe, measured_names
from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import Compressor, Identity, decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.data.formats import parse_json
from fedax.data.split import split
from fedax.engine import by_client
from fedax.engine.checkpoint import write_tensors
from fedax.engine.checks import labels_of, pooled_of
from fedax.engine.clients import ClientResult, SharedInputs, client_program, contribute
from fedax.engine.devices import in_precision
from fedax.engine.dry_run import DryRun
from fedax.engine.evaluate import held_out, train_sums
from fedax.engine.job import (
    federation_of,
    on_devices,
    one_type,
    start,
    streamed,
)
from fedax.engine.layers import compressors_of, inside, layered
from fedax.engine.loop import Clients, Tally, empty_place, stage_key
from fedax.engine.places import masks
from fedax.engine.places.answered import Answered, Repeated, question_of
from fedax.engine.places.blocks import Block, Examples
from fedax.engine.places.device import first_states
from fedax.engine.places.layout import Layout
from fedax.engine.places.nodes import SEVERAL, Message, arrays_of, joined, packed, parted, unpacked
from fedax.engine.places.policy import Policy
from fedax.engine.places.questions import (
    ECHOED,
    PLANNED,
    Problem,
    client_round,
    clients_form,
    common_question,
    contribution_of,
    digest_of,
    exchange_name,
    fixed_point_form,
    precise_versions,
    program_of,
)
from fedax.engine.places.roster import Roster
from fedax.engine.plan import ExchangeForm, Plan, make_plan
from fedax.errors import ConfigError, DataError, FedaxError, NodeError
from fedax.federation.census import Census
from fedax.federation.participation import Full
from fedax.federation.work import Epochs, Steps
from fedax.files import WRITING, damage, has_digest, rotate, seal, with_digest, write_atomic
from fedax.numbers import check_count
from fedax.programs import compiled
from fedax.tasks.task import Task
from fedax.wire.sums import by_kind
from fedax.wire.wire import Wire

_READY = 128  # the most jobs that are kept prepared
_DEEPEST = 2  # levels of a joined message: the runs, and the questions of a run
_DIGEST = re.compile(r"[0-9a-f]{32}")
_VERSION = re.compile(r"(\d+)-(\d+)-(\d+)\.safetensors")  # a client's place, and a version of its memory


class SplitData(NamedTuple):
    """The examples of a site's clients, split into training and held-out parts.

    Attributes:
        data: the training examples.
        held: part, "val" or "test" -> held-out examples: by client if the site has dealt them, else a pytree, or
            ``None``.
        places: [k] the number of each client in the federation, if they are dealt.
        census: that of ``data``.
    """

    data: FederatedData
    held: dict[str, Tree]
    places: tuple[int, ...]
    census: Census

    def pooled(self) -> dict[str, Tree]:
        """Part -> all of its held-out examples."""
        return {part: pooled_of(tree) for part, tree in self.held.items() if tree is not None}


class _PreparedJob(NamedTuple):
    """A job with everything that answers need.

    ``row``: the initial memory of a client; ``frozen``: on the device, the part of the model that is not learned.
    """

    problem: Problem
    plan: Plan
    key: Array
    row: Tree
    forms: tuple[list[ExchangeForm], list[ExchangeForm]]
    program: str
    examples: Examples
    frozen: Tree
    split_data: SplitData

    @property
    def down(self) -> Compressor:
        """The compressor of downloads; the identity, if they are not compressed."""
        return compressors_of(self.problem.method, self.problem.wire)[0] or Identity()

    @property
    def up(self) -> Compressor:
        """The compressor of uploads; the identity, if they are not compressed."""
        return compressors_of(self.problem.method, self.problem.wire)[1] or Identity()


class Site:
    """The clients of one node.

    Memory has versions: each exchange starts from one version and writes another, as the server says; versions to which
    the server may return are kept. So a repeated exchange changes nothing, and a run that continues from an older
    checkpoint finds the memory of that time. A version that is missing is an error, never zero.

    Args:
        data: the clients' examples, a dict of arrays.
        make: gives the :class:`Problem` of a configuration in plain JSON.
        folder: for what has to outlive the process: the memory of the clients, the number of rounds, the log. One
            process at a time.
        names: of the clients; no two clients of a federation have the same.
        test: held-out examples, like ``data.examples``, or ``None``.
        policy: what the node's owner allows; default: everything.
        val: held-out examples for validation, like ``test``.
        roster: the nodes that the owner knows, with which it may take part in secure sums; ``None``: none.

    Raises:
        ConfigError, DataError: names that do not fit the data; another process has the folder, or it cannot be written.
    """

    def __init__(
        self,
        data: FederatedData,
        make: Callable[[dict[str, Unknown]], Problem],
        folder: str | os.PathLike[str],
        names: Sequence[str],
        test: Tree = None,
        policy: Policy | None = None,
        val: Tree = None,
        roster: Roster | None = None,
    ):
        self.data, self.names, self.policy = data, tuple(map(str, names)), policy or Policy()
        self.held = {"val": val, "test": test}
        self.folder, self._make, self._roster = pathlib.Path(folder), make, roster
        if not isinstance(data.examples, dict):
            raise DataError("examples: of a real client they are a dict of arrays, such as {'x': ..., 'y': ...}")
        if len(self.names) != data.num_clients or len({*self.names}) < data.num_clients or not all(self.names):
            raise ConfigError("names", list(self.names), f"give each of the {data.num_clients} clients its own name")
        try:
            (self.folder / "memory").mkdir(parents=True, exist_ok=True)
            self._lock = filelock.FileLock(self.folder / ".lock")
            self.open()
            key = _secret(self.folder / "secret")
        except OSError as error:
            raise ConfigError("folder", str(folder), f"cannot write there ({error.strerror})") from error
        self._whole = SplitData(data, self.held, (), Census.of(data))
        self._deals: dict[str, SplitData] = {}
        self._digests = [_digest(key, data.client(i)) for i in range(data.num_clients)]
        # Of other data a question is another one: with the same noise, two answers would show what changed.
        about = [*self.names, *self._digests, *(_digest(key, tree) for tree in self.held.values())]
        self._data_mark = hashlib.sha256("\n".join(about).encode()).hexdigest()
        # Other data or another version give another mark.
        marks = [self._data_mark, json.dumps(precise_versions(), sort_keys=True)]
        self.mark = hashlib.sha256("\n".join(marks).encode()).hexdigest()[:16]
        self._ready: dict[str, _PreparedJob] = {}
        self._asked_clients: list[str] = []  # the clients of the current message, for the log
        self._noisy_columns: list[str] = []  # the figures that left with noise, for the log
        self._masks: masks.Masks | None = None

    def open(self) -> None:
        """Take the folder again after :meth:`close`.

        Raises:
            ConfigError: another process has it.
        """
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise ConfigError("folder", str(self.folder), "another process is this node; stop it first") from None
        self._rounds = read_rounds(self.folder / "rounds.json")
        self._answered = Answered(self.folder)

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.release()

    def answer(self, message: Message, deep: int = 0) -> Message:
        """The answer to a message; ``{"error": why}`` if there is none. Joined messages get a joined answer."""
        if message.head.get("kind") == SEVERAL:
            try:
                if deep == _DEEPEST:
                    raise NodeError("a message in parts, in parts, in parts: no server asks so")
                return joined([self.answer(part, deep + 1) for part in parted(message, 0)])
            except NodeError as error:
                return Message({"error": str(error)})
        began, head, self._asked_clients, self._noisy_columns = time.perf_counter(), message.head, [], []
        kinds = {"hello": self._hello, "check": self._check, "exchange": self._exchange, "evaluate": self._evaluate,
                 "forget": self._forget, "offer": self._offer, "agree": self._agree, "unmask": self._unmask,
                 "deal": self._deal,
                 "figures": self._figures, "alone": self._alone}  # fmt: skip
        try:
            if (kind := head.get("kind")) not in kinds:
                raise NodeError(f"a message of kind {kind!r}, which this version does not know")
            if kind != "hello" and head.get("mark") != self.mark:
                raise NodeError(
                    "the clients at this node, their examples, or its versions, are others than when the run began"
                )
            problem = head.get("problem") or head.get("job", {}).get("problem", {})
            with in_precision(problem.get("run", {}).get("precision")):
                answer_ = kinds[kind](head, message.tensors)
        except Repeated as error:  # the server may go on without this node's clients
            answer_ = Message(_echo(head) | {"repeated": str(error)})
        except FedaxError as error:
            answer_ = Message({"error": str(error)})
        except Exception as error:  # the server gets the message, the node has the traceback
            traceback.print_exc(file=sys.stderr)
            answer_ = Message({"error": f"{type(error).__name__}: {str(error)[:500]}"})
        self._log(message, answer_, time.perf_counter() - began)
        return answer_

    def _hello(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """The clients of this node, and the form of their examples."""
        labels = self.data.examples.get("y")
        whole = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
        about = {
            "names": self.names,
            "sizes": self.data.sizes.tolist(),
            "digests": self._digests,
            "example": {name: [str(leaf.dtype), list(leaf.shape)] for name, leaf in self._whole.census.example.items()},
            "classes": int(labels.max()) + 1 if whole else None,
            "held": {part: 0 if tree is None else _count(tree) for part, tree in self.held.items()},
            "mark": self.mark,
            "transform": None if self.data.transform is None else self.data.transform.to_json(),
        }
        return Message(about | {"versions": precise_versions()})

    def _check(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """The objections to a run, before its first round."""
        if "frozen" in head["job"]:
            self._keep_frozen(head["job"], tensors)
        job, problems = self._prepared(head["job"]), []
        try:
            job.split_data.data.check(job.problem.task)
        except DataError as error:
            problems.append(str(error))
        wire = job.problem.wire
        try:
            self._check_problem(job, head["job"])
            single = wire.gathers or "paced" in head["job"]
            self.policy.check_upload(single, wire.guard is not None, wire.secure is not None)
        except NodeError as error:
            problems.append(str(error))
        if (why := self.policy.why(head["columns"], job.plan.task)) is not None:
            problems.append(why)
        done, rounds = sum(self._rounds.values()), head["rounds"]
        if self.policy.rounds is not None and done + rounds > self.policy.rounds:
            text = f"its owner allows {self.policy.rounds} rounds (--max-rounds)"
            problems.append(f"{text}: other runs had {done}, and this one is to have {rounds}")
        if job.problem.wire.secure is None:
            return Message({"problems": problems})
        return Message({"problems": problems, "key": self._masking().public._asdict()})

    def _masking(self) -> masks.Masks:
        """The masks of this node; its key is in the folder, the secrets of exchanges are in memory only."""
        if self._masks is None:
            masks.require()
            if self._roster is None:
                raise NodeError("secure sums need the keys of the other nodes: its owner gives --roster FOLDER")
            limits = (self.policy.colluding, self.policy.share)
            self._masks = masks.Masks(_secret(self.folder / "key"), self._roster, *limits)
        return self._masks

    def _offer(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Draw the secrets of a coming exchange, and give shares of them to the other nodes."""
        keys, contribution = [masks.Key.of(each) for each in head["keys"]], masks.Part.of(head["part"])
        self.policy.check_nodes(len(keys))
        offer = self._masking().offer(
            exchange_name(head), head["position"], keys, head["threshold"], str(head["question"]), contribution
        )
        return Message(_echo(head) | {"offer": offer._asdict()})

    def _agree(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Sign the set of nodes whose sums are added."""
        masking, name, survivors = self._masking(), exchange_name(head), head["survivors"]
        if not masking.knows(name):
            return Message(_echo(head) | {"lost": True})
        self.policy.check_nodes(len({*survivors}))
        signature = masking.agree(name, survivors)
        # The masks of a run that goes on after a stop are others, and the difference of two sums has none.
        names = json.dumps(sorted(masking.names(name, survivors)))
        self._answered.take(
            f"the sum over nodes of {_question_name(head)}", question_of(names, []), self.policy, counts=False
        )
        return Message(_echo(head) | {"agreed": signature})

    def _unmask(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Reveal shares of the secrets of an exchange, which unmask the sum over the nodes that answered it."""
        masking, name = self._masking(), exchange_name(head)
        if not masking.knows(name):
            return Message(_echo(head) | {"lost": True})
        agreed = {int(k): signature for k, signature in head["agreed"].items()}
        return Message(_echo(head) | {"told": masking.unmask(name, agreed)})

    def _secure_sum(self, head: dict[str, Unknown], tensors: bytes, job: _PreparedJob, bits: int) -> Message:
        """Run an exchange of some clients, once, and answer with their masked sum."""
        masking, name = self._masking(), exchange_name(head)
        if not masking.knows(name):
            return Message(_echo(head) | {"lost": True})
        if (kept := masking.once(name, json.dumps(head, sort_keys=True).encode() + tensors)) is not None:
            answer: Message = kept
            return answer
        received = head["secure"]
        offers = {int(k): masks.Received.of(each) for k, each in received["offers"].items()}
        about, arrays = self._take_part(head, tensors, job, bits, int(received["places"]))
        question, contribution = arrays["question"], arrays["part"]
        masked = masking.masked(name, masks.flat(arrays["total"]), bits, offers, question, contribution)
        answer = Message(about, packed({"masked": masked}))
        masking.keep(name, answer)
        return answer

    def _exchange(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Run an exchange of some clients."""
        job = self._prepared(head["job"])
        self._check_problem(job, head["job"])
        if (secure := job.problem.wire.secure) is not None and head["heard"]:
            return self._secure_sum(head, tensors, job, secure.bits)
        about, arrays = self._take_part(head, tensors, job)
        return Message(about, packed(arrays))

    def _take_part(
        self, head: dict[str, Unknown], tensors: bytes, job: _PreparedJob, bits: int = 0, places: int = 0
    ) -> tuple[dict[str, Unknown], dict[str, Tree]]:
        """Run the clients of an exchange; the head and the arrays of the answer.

        ``bits``, ``places``: of a secure sum, the bits of its whole numbers, and the most clients in it.
        """
        name, size = _question_name(head), int(head["size"])
        stage, number, index = head["stage"], head["number"], head["index"]
        paced, group = "paced" in head["job"], head.get("group", index)
        forms = job.forms[0 if stage == "warmup" else 1]
        form, memory_form = forms[number], job.row if number == 0 else forms[number - 1].memory
        if not 0 <= index < 2**31 or type(group) is not int or not 0 <= group < 2**31:
            raise NodeError(f"round {index} is asked, and there is no such round")
        if paced and (size != 1 or bits):
            raise NodeError("a server that does not wait asks one client at a time, and for no secure sum")
        if not 0 < size <= self.data.num_clients:
            raise NodeError(f"{size} clients are asked, and {self.data.num_clients} are here")
        received = Layout.of(form.download)
        download = received.on_wire(job.down, 1) if received.messages else form.download
        wanted = {"download": download} | clients_form(size, int(head["keep"]))
        if bits:
            wanted["fixed"] = fixed_point_form(bits, places)
        sent = unpacked(tensors, wanted, "the message")
        secure: dict[str, Tree] = {}
        if bits:  # what nodes have signed
            question = common_question(head, sent["download"], sent["fixed"])
            secure = {"question": question, "part": contribution_of(sent["clients"])}
        if received.messages:
            parts = jax.tree.map(lambda leaf: leaf[0], received.unpacked(sent["download"], job.down, "the message"))
            sent["download"] = received.whole(parts, job.down)
        rows = sent["clients"]["rows"].tolist()
        if min(rows) < 0 or max(rows) >= self.data.num_clients or len({*rows}) < size:
            raise NodeError(f"clients {rows} are asked, and {self.data.num_clients} are here")
        self._asked_clients = [self.names[row] for row in rows]
        uploads = Layout.of(form.upload, form.first)
        if head["heard"]:
            self._check_upload(job, sent["clients"], uploads.messages or form.one or paced, bool(bits))
        run, write = int(head["run"]), (int(head["write"][0]), int(head["write"][1]))
        self._count_round(run, stage, index)
        bases = sent["base"].tolist()
        memory = [self._recall(run, row, base, memory_form, job) for row, base in zip(rows, bases, strict=True)]
        # Messages are not decoded here: only the server knows all clients.
        wire = Wire(sealed=True) if uploads.messages else dataclasses.replace(job.problem.wire, apart=paced)
        if bits:
            wire = dataclasses.replace(wire, fixed=sent["fixed"])
        wire = dataclasses.replace(wire, node_clip=self.policy.clip)
        total, results, done = self._run_clients(job, wire, stage, number, index, sent, memory, group)
        if head["heard"]:
            self.policy.check_work(sent["clients"]["steps"], int(done.local_steps))
            asked = [head["job"], stage, number, index, bits, places, *([group] if paced else [])]
            text = json.dumps(asked, sort_keys=True)
            question_arrays = {name: each for name, each in sent.items() if name in ("clients", "download", "fixed")}
            question = self._question(text, [*jax.tree.leaves(question_arrays), *jax.tree.leaves(memory)])
            noise_scale = self.policy.update_noise
            numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(total))
            if paced:  # of one client, so that nothing is learned from a difference
                name = f"work {question} of run {run}"
            self._answered.take(name, question, self.policy, 0.0 if noise_scale is None else noise_scale**-2, numbers)
            total = self._noised(total, sent["clients"], question)
        for k, row in enumerate(rows):
            client_memory = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], results.memory)
            self._remember(run, row, write, [bases[k], *sent["keep"][k].tolist()], client_memory)
        arrays: dict[str, Tree] = {}
        if head["heard"] and uploads.messages:
            arrays = {"letters": uploads.packed(uploads.parts(results.upload), job.up, size)}
        elif head["heard"]:
            arrays = {"uploads": results.upload} if wire.gathers else {"total": total}
        if not isinstance(results.accepted, tuple):
            arrays["accepted"] = results.accepted
        tally = [int(done.local_steps), int(done.gradients)]
        return _echo(head) | {"tally": tally}, jax.tree.map(np.asarray, arrays) | secure

    def _check_problem(self, job: _PreparedJob, head: dict[str, Unknown]) -> None:
        self.policy.check_problem(head["problem"], job.plan.batch_size, job.split_data.data.sizes.tolist())

    def _check_upload(self, job: _PreparedJob, clients: dict[str, np.ndarray], single: bool, secure: bool) -> None:
        """Refuse an upload that the policy forbids, before any work."""
        wire, sizes = job.problem.wire, job.split_data.data.sizes[clients["rows"]]
        single = single or wire.gathers
        if secure and int(clients["steps"].min()) < 1:
            raise NodeError("a client is to add to a secure sum without a local step, and would hide nobody")
        self.policy.check_upload(single, wire.guard is not None, secure)
        for weights in (clients["weights"], clients["data_weights"]):
            self.policy.check_sum("an update", np.ones(1) if single else weights, sizes[:1] if single else sizes)

    def _question(self, text: str, arrays: Iterable[Unknown]) -> str:
        """The digest of a question about the data that are here."""
        return question_of(f"{self._data_mark} {text}", arrays)

    def _noised(self, total: Tree, clients: dict[str, np.ndarray], question: str) -> Tree:
        """A sum of updates with the node's own noise, of a secret of the node."""
        clip, noise, places = self.policy.clip, self.policy.update_noise, itertools.count()
        if clip is None or noise is None:
            return total
        scale = noise * clip  # per unit of weight

        def noised(leaf: Array, weight: float) -> Array:
            value = np.asarray(leaf)
            drawn = self._normals(f"update {next(places)}", question, value.shape)
            return np.asarray(value + scale * weight * drawn, value.dtype)

        of_estimates, of_changes = (float(clients[name].max()) for name in ("weights", "data_weights"))
        return by_kind(lambda leaf: noised(leaf, of_estimates), lambda leaf: noised(leaf, of_changes), total)

    def _run_clients(
        self,
        job: _PreparedJob,
        wire: Wire,
        stage: str,
        number: int,
        index: int,
        sent: dict[str, Tree],
        memory: list[Tree],
        group: int | None = None,
    ) -> tuple[Tree, ClientResult, Tally]:
        """Run the clients; results are without padding. ``group``: what random numbers are from; default: the round."""
        data, size = job.split_data.data, len(memory)
        # Their number is random where not all take part; empty places make it one of few, for each of which a program
        # is compiled.
        width = min(1 << (size - 1).bit_length(), data.num_clients)
        clients_sent = sent["clients"]
        rows = clients_sent["rows"]
        unpadded = Clients(
            rows, clients_sent["weights"], clients_sent["data_weights"], clients_sent["steps"], np.ones(size, bool),
            np.asarray(job.examples.fed.offsets)[rows], data.sizes[rows].astype(np.int32),
        )  # fmt: skip
        fill = empty_place(data.num_clients)
        padded = Clients(*(_padded(leaf, width, value) for leaf, value in zip(unpadded, fill, strict=True)))
        block = Block(np.where(padded.present, np.arange(width), -1), padded)
        # A node does not know the weights of the others' clients.
        fed = job.examples.take(block)._replace(weights=np.zeros(0), frozen=job.frozen)
        clients = block.now(padded, job.examples.streamed)
        clients = clients._replace(ids=_padded(clients_sent["ids"], width, job.plan.num_clients))
        rows_of = jax.tree.map(lambda *leaves: np.stack(leaves + leaves[-1:] * (width - size)), *memory)
        total, results, tally = _together(
            SharedInputs(job.problem.method, wire, sent["download"], fed, job.key, np.int32(index)),
            np.int32(index if group is None else group), rows_of, clients,
            stage=stage, number=number, plan=job.plan,
        )  # fmt: skip
        return total, jax.tree.map(lambda leaf: np.asarray(leaf)[:size], results), tally

    def _evaluate(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Σ p_i F_i over the clients that are here, its gradient where asked, and figures of the held-out examples."""
        job = self._prepared(head["job"])
        self._check_problem(job, head["job"])
        parts = {part: tree for part, tree in job.split_data.pooled().items() if part in head["parts"]}
        task, mesh = job.plan.task, job.plan.mesh
        leaving = measured_names(
            task.metrics,
            val="val" in parts,
            test="test" in parts,
            grad_norm=bool(head["grad_norm"]),
            objective=False,
            density=False,
        )
        if (reason := self.policy.why(leaving, task)) is not None:
            raise NodeError(reason)
        x = jax.eval_shape(lambda: Vector(task.init(jax.random.key(0))))
        weights = jax.ShapeDtypeStruct((self.data.num_clients,), jnp.zeros(()).dtype)
        sent = unpacked(tensors, {"model": x, "weights": weights}, "the message")
        options = {"task": task, "grad_norm": bool(head["grad_norm"]), "mesh": mesh}
        self.policy.check_sum("train_loss", sent["weights"], job.split_data.data.sizes)
        for part, tree in parts.items():
            self.policy.check_held(f"an evaluation ({part})", _count(tree))
        text = json.dumps([head["job"], options["grad_norm"], sorted(parts)], sort_keys=True)
        question = self._question(text, jax.tree.leaves(sent))
        figures = 1 + sum(len(task.metrics) + 1 for _ in parts)
        loss = figures * self.policy.noise**-2 if self.policy.noise else 0.0
        self._answered.take(f"evaluation {question}", question, self.policy, loss, figures)
        if self.policy.noise:
            noisy = self._noisy_figures(job, question, sent["model"], sent["weights"], parts)
            return Message(_echo(head), packed(noisy))
        train: Tree = None
        for piece in job.examples.pieces(sent["weights"]):
            part = jax.block_until_ready(_train_sums(sent["model"], piece._replace(frozen=job.frozen), **options))
            train = part if train is None else jax.tree.map(jnp.add, train, part)
        arrays: dict[str, Tree] = {"train": list(train)}
        for part, tree in parts.items():
            figures = _held_out(sent["model"], tree, job.frozen, task=task)
            arrays[part] = {"figures": figures, "labels": labels_of(task, tree)}
        return Message(_echo(head), packed(jax.tree.map(np.asarray, arrays)))

    def _noisy_figures(self, job: _PreparedJob, question: str, model: Vector, weights: Array, parts: Tree) -> Tree:
        """The figures of an evaluation, with noise."""
        task, bound, noise = job.plan.task, self.policy.bound, self.policy.noise
        assert bound is not None and noise is not None
        p = np.asarray(weights, float)
        real = jnp.zeros(()).dtype

        def noised(name: str, value: float, sensitivity: float) -> np.ndarray:
            """``sensitivity``: how far one client can move it."""
            self._noisy_columns.append(name)
            return np.asarray(value + noise * sensitivity * self._normals(name, question, ()), real)

        losses = by_client.figures(task, model.tree, job.split_data.data)["loss"]
        total = float(p @ np.array([_clipped_figure(each, bound) for each in losses]))
        arrays: dict[str, Tree] = {"train": [noised("train_loss", total, bound * float(p.max()))]}
        for part, tree in parts.items():
            figures = {}
            for name, value in _held_out(model, tree, job.frozen, task=task).items():
                column = f"{part}_{name}"
                top = 1.0 if describe(column).unit == "%" else bound
                figures[name] = noised(column, _clipped_figure(float(value), top), top).astype(value.dtype)
            arrays[part] = {"figures": figures, "labels": {}}
        return arrays

    def _normals(self, name: str, question: str, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal numbers from the node's secret: the same for the same question.

        Made like those of :func:`fedax.wire.privacy.standard_normal`, in float64.
        """
        seed = hmac.digest((self.folder / "secret").read_bytes(), f"noise {name} {question}".encode(), "sha256")
        drawn, number = np.random.default_rng(int.from_bytes(seed, "big")), math.prod(shape)
        high, low, turn = drawn.integers(2**64, size=(3, -(-number // 2)), dtype=np.uint64).astype(float)
        radius = np.sqrt(-2 * np.log(high * 2.0**-64 + (low + 0.5) * 2.0**-128))
        angle = 2 * math.pi * 2.0**-64 * turn
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return np.asarray(both[:number].reshape(shape))

    def _forget(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Delete the memory of a run that is over."""
        shutil.rmtree(self.folder / "memory" / str(int(head["run"])), ignore_errors=True)
        return Message({})

    def _prepared(self, head: dict[str, Unknown]) -> _PreparedJob:
        text = json.dumps(head, sort_keys=True)
        if text not in self._ready:
            self._ready = dict(list(self._ready.items())[1 - _READY :])
            self._ready[text] = self._prepare(head)
        if self._ready[text].program != head["program"]:
            raise NodeError("its code makes another program of this configuration than the server's")
        return self._ready[text]

    def _prepare(self, head: dict[str, Unknown]) -> _PreparedJob:
        configured, split_data = self._make(head["problem"]), self._split(head.get("deal"))
        if "frozen" in head:
            configured = configured._replace(
                task=configured.task.with_frozen(self._frozen(head, configured.task.frozen))
            )
        problem = configured._replace(
            method=one_type(configured.method), wire=one_type(configured.wire), up=one_type(configured.up)
        )
        task, planned = problem.task.trained, head["plan"]
        key, x = start(task, None, head["seed"], {})
        # The node itself chooses how many clients run side by side, and on which devices.
        usual = Steps(max(1, planned["max_steps"]))
        own_plan = make_plan(split_data.census, task, x, usual, planned["batch_size"], Full(), problem.wire)
        plan = dataclasses.replace(own_plan, **{name: planned[name] for name in PLANNED})

        def trace(method: Algorithm, wire: Wire) -> DryRun:
            return client_round(Problem(method, task, wire), plan, split_data.census.example, x)

        alone = trace(problem.method, inside(problem.wire))
        layers = layered(problem.method, alone, problem.up, problem.wire, trace)
        problem = problem._replace(method=layers.method)
        every = slice(0, self.data.num_clients)
        stream = streamed(None, split_data.data, every, plan.devices)
        same_data = [
            ready.examples
            for ready in self._ready.values()
            if ready.plan.mesh == plan.mesh and ready.split_data is split_data
        ]
        examples = same_data[0] if same_data else None
        if examples is None:
            fed = on_devices(federation_of(split_data.census, None if stream else split_data.data, every), plan.mesh)
            examples = Examples(split_data.data if stream else None, fed, every)
        row = jax.tree.map(np.asarray, first_states(problem.method, x)[1])
        same_frozen = [
            self._ready[text].frozen for text in self._ready if json.loads(text).get("frozen") == head.get("frozen")
        ]
        frozen = same_frozen[0] if same_frozen and same_data else on_devices(task.frozen, plan.mesh)
        return _PreparedJob(
            problem, plan, key, row, layers.made.forms, program_of(layers.made), examples, frozen, split_data
        )

    # ---- rows that the site deals

    def _deal(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Deal the rows of each client to training, validation and test, by the configuration's ``[data.split]``."""
        settings = dict(head["split"])
        if not self.policy.split:
            raise NodeError(
                "its owner does not let a run deal its rows (--no-split): --set data.split={} runs without held-out "
                "rows, or ask the owner for --test and --val"
            )
        for part in ("val", "test"):
            if settings[part] and self.held[part] is not None:
                way_out = "none can be split off: give data.split." + part + " = 0"
                raise NodeError(f"its owner has given held-out examples for {part} (--{part}), and {way_out}")
        path, stored = self._split_path(head["deal"]), {"split": settings, "places": list(head["places"])}
        content = with_digest(json.dumps(seal(head["deal"]) | stored).encode())
        if not path.exists() or path.read_bytes() != content:
            self._split_from(stored)  # before it is kept
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, content)
            self._deals.pop(head["deal"], None)
            self._ready = {}
        split_data = self._split(head["deal"])
        held: dict[str, Unknown] = {}
        for part, tree in split_data.held.items():
            sizes: Unknown = {}
            if isinstance(tree, FederatedData):
                sizes = {tree.name(i): int(tree.sizes[i]) for i in range(tree.num_clients)}
            held[part] = [sizes.get(name, 0) for name in self.names] if sizes else 0 if tree is None else _count(tree)
        return Message({"sizes": split_data.data.sizes.tolist(), "held": held})

    def _split_path(self, deal: Unknown) -> pathlib.Path:
        if not _DIGEST.fullmatch(str(deal)):
            raise NodeError(f"{str(deal)[:50]!r} is no name of a deal of rows")
        return self.folder / "deals" / f"{deal}.json"

    def _split(self, deal: str | None) -> SplitData:
        """The examples, split by a deal; ``None``: not split."""
        if deal is None:
            return self._whole
        if deal not in self._deals:
            path = self._split_path(deal)
            if not path.exists():
                raise NodeError(f"how its rows are dealt, {path}, is not there: --resume sends it again")
            self._deals = dict(list(self._deals.items())[1 - _READY :])
            content = path.read_bytes()
            if has_digest(content) and (wrong := damage(content, deal)) is not None:
                raise NodeError(f"how its rows are dealt, {path}, is {wrong}: --resume sends it again")
            self._deals[deal] = self._split_from(json.loads(content))
        return self._deals[deal]

    def _split_from(self, stored: dict[str, Unknown]) -> SplitData:
        named = FederatedData(self.data.examples, self.data.sizes, names=self.names, transform=self.data.transform)
        parts = split(named, **stored["split"], places=stored["places"])
        held = {part: getattr(parts, part) if self.held[part] is None else self.held[part] for part in self.held}
        return SplitData(parts.train, held, tuple(stored["places"]), Census.of(parts.train))

    def _figures(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """The figures of a model on each client's own test examples."""
        task = whole_task(self._make(head["problem"]).task).trained
        model = jax.eval_shape(lambda: Vector(task.init(jax.random.key(0))))
        model_sent = unpacked(tensors, {"model": model}, "the message")["model"]
        self.policy.check_problem({"task": head["problem"].get("task")}, None, [1])
        test, reason = self._test_examples(head)
        if test is None:
            return Message({"withheld": reason})
        question = self._question(json.dumps(["figures", head["problem"], head.get("deal")], sort_keys=True), [tensors])
        self._answered.take(f"figures {question}", question, self.policy)
        return self._figures_answer(by_client.figures(task, model_sent.tree, test))

    def _alone(self, head: dict[str, Unknown], tensors: bytes) -> Message:
        """Train each client alone, and give the figures of its model on its own test examples."""
        job, rounds = self._prepared(head["job"]), check_count("rounds", head["rounds"])
        self.policy.check_problem({"task": head["job"]["problem"].get("task")}, None, [1])
        test, reason = self._test_examples(head["job"])
        if test is None:
            return Message({"withheld": reason})
        question = self._question(json.dumps(["alone", head["job"], rounds], sort_keys=True), [tensors])
        self._answered.take(f"figures {question}", question, self.policy)
        model = unpacked(tensors, {"model": job.row}, "the message")["model"]
        places, data = job.split_data.places, job.split_data.data
        ids, sizes = np.array(places, np.int32), data.sizes.astype(np.int32)
        steps = Epochs(1).draw(job.key, jnp.asarray(ids), jnp.asarray(sizes), job.plan.batch_size)
        ones = np.ones(len(ids), jnp.zeros(()).dtype)
        rows = np.arange(len(ids), dtype=np.int32)
        clients_sent = {"ids": ids, "rows": rows, "weights": ones, "data_weights": ones, "steps": np.asarray(steps)}
        form = job.forms[1][0]
        memory: list[Tree] = [model] * len(ids)
        for index in range(rounds):
            sent = {"clients": clients_sent, "download": form.download}
            _, results, _ = self._run_clients(job, job.problem.wire, "exchanges", 0, index, sent, memory)
            memory = [jax.tree.map(lambda leaf, k=k: leaf[k], results.memory) for k in range(len(ids))]
        tested = [k for k, name in enumerate(self.names) if name in (test.names or ())]
        models = jax.tree.map(lambda *leaves: np.stack(leaves), *(memory[k] for k in tested))
        return self._figures_answer(by_client.figures(job.problem.task.trained, None, test, models.tree))

    def _test_examples(self, head: dict[str, Unknown]) -> tuple[FederatedData | None, str | None]:
        """The test examples by client; or the reason why figures of single clients may not leave."""
        test = self._split(head.get("deal")).held["test"]
        if self.policy.noise:
            return None, "its owner lets figures leave it with noise only (--noise)"
        if self.policy.refused(["test_loss"]):
            return None, "its owner does not let test_loss leave it (--columns)"
        if not self.policy.single or self.policy.clients > 1:
            return None, "its owner does not let figures of single clients leave it (sums.single, sums.clients)"
        if not isinstance(test, FederatedData):
            return None, "it has dealt no test examples to its clients"
        if (fewest := int(test.sizes.min())) < self.policy.examples:
            return None, f"its owner's policy (sums.examples = {self.policy.examples}): a client has {fewest} of them"
        return test, None

    def _figures_answer(self, figures: dict[str, list[float]]) -> Message:
        allowed = {name: values for name, values in figures.items() if not self.policy.refused([f"test_{name}"])}
        return Message({"columns": [*allowed]}, packed({name: np.array(values) for name, values in allowed.items()}))

    # ---- what outlives the process

    def _frozen_path(self, head: dict[str, Unknown]) -> pathlib.Path:
        if not _DIGEST.fullmatch(str(head["frozen"])):
            raise NodeError(f"{str(head['frozen'])[:50]!r} is no digest of what is frozen of a model")
        return self.folder / "frozen" / f"{head['frozen']}.safetensors"

    def _keep_frozen(self, head: dict[str, Unknown], tensors: bytes) -> None:
        """Write the frozen part of the model, which comes with the first message of a run only."""
        path, form = self._frozen_path(head), self._make(head["problem"]).task.frozen
        frozen = unpacked(tensors, {"frozen": form}, "the message")["frozen"]
        if digest_of(frozen) != head["frozen"]:
            raise NodeError("what is frozen of the model is not what the message says")
        path.parent.mkdir(exist_ok=True)
        write_tensors(path, arrays_of({"frozen": frozen}), "frozen", head["frozen"])

    def _frozen(self, head: dict[str, Unknown], form: Tree) -> Tree:
        path = self._frozen_path(head)
        if not path.exists() or (wrong := damage(path, head["frozen"])) is not None:
            state = "not there" if not path.exists() else wrong
            raise NodeError(f"what is frozen of the model, {path}, is {state}: --resume sends it again")
        return unpacked(path.read_bytes(), {"frozen": form}, str(path))["frozen"]

    def _version(self, run: int, row: int, version: Sequence[int]) -> pathlib.Path:
        return self.folder / "memory" / str(run) / f"{row}-{version[0]}-{version[1]}.safetensors"

    def _recall(self, run: int, row: int, version: Sequence[int], form: Tree, job: _PreparedJob) -> Tree:
        """A client's memory at a version; (0, 0) is the initial one."""
        if not jax.tree.leaves(form):
            return form
        if tuple(version) == (0, 0):
            return job.row
        path, who = self._version(run, row, version), f"client {self.names[row]!r}"
        if not path.exists():
            raise NodeError(f"{who}: its memory is lost: {path.name} is not at its node any more; begin a new run")
        if (wrong := damage(path, f"{run}/{path.name}")) is not None:
            raise NodeError(f"{who}: its memory, {path}, is {wrong}; restore it, or begin a new run")
        memory: Tree = unpacked(path.read_bytes(), {"memory": form}, f"{who}: its memory, {path}")["memory"]
        return memory

    def _remember(
        self, run: int, row: int, version: Sequence[int], keep: Sequence[Sequence[int]], memory: Tree
    ) -> None:
        """Write a version of a client's memory, and remove older ones except those to keep.

        A message that arrives late removes nothing that later messages wrote.
        """
        if not jax.tree.leaves(memory):
            return
        path = self._version(run, row, version)
        path.parent.mkdir(exist_ok=True)
        write_tensors(path, arrays_of({"memory": memory}), "memory", f"{run}/{path.name}")
        kept = {path.name} | {self._version(run, row, each).name for each in keep}
        for old in path.parent.iterdir():
            match = _VERSION.fullmatch(old.name)
            stale = match is not None and int(match[1]) == row and old.name not in kept
            newer = match is not None and int(match[2]) == version[0] and int(match[3]) > version[1]
            if (stale and not newer) or old.name.startswith(WRITING):
                old.unlink(missing_ok=True)

    def _count_round(self, run: int, stage: str, index: int) -> None:
        """Count a round, once; refuse it where it is beyond what the owner allows."""
        if stage == "warmup" or index < self._rounds.get(run, 0):
            return
        rounds = self._rounds | {run: index + 1}
        if self.policy.rounds is not None and sum(rounds.values()) > self.policy.rounds:
            raise NodeError(
                f"its owner allows {self.policy.rounds} rounds (--max-rounds), and that many were asked for"
            )
        self._rounds = rounds
        path = self.folder / "rounds.json"
        write_atomic(path, json.dumps({str(each): count for each, count in rounds.items()}))

    def _log(self, message: Message, answer: Message, seconds: float) -> None:
        """Log a message: who asked what, and what left."""
        more: dict[str, Unknown] = {"clients": self._asked_clients} if self._asked_clients else {}
        if self._noisy_columns:
            more["noise"] = {"on": sorted(self._noisy_columns), "noise": self.policy.noise, "bound": self.policy.bound}
        if self._answered.loss:
            more["epsilon"] = round(self.policy.spent(self._answered.loss, self._answered.tail), 4)
        write_line(self.folder, message, answer, seconds, more)


def write_line(
    folder: pathlib.Path, message: Message, answer: Message, seconds: float, more: Mapping[str, Unknown] | None = None
) -> None:
    """Write a line of a node's log: a message, the size of its answer, and further entries."""
    logged = ("kind", "server", "run", "stage", "index", "number", "columns", "grad_norm", "parts")
    line: dict[str, Unknown] = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    line |= {name: message.head[name] for name in logged if name in message.head}
    for name, message_ in (("came", message), ("left", answer)):
        line[name] = len(message_.tensors) + len(json.dumps(message_.head))
    line |= {"seconds": round(seconds, 3), **(more or {})}
    for name in ("error", "repeated"):
        if name in answer.head:
            line["error"] = answer.head[name]
    rotate(folder / "log.jsonl")
    with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _echo(head: dict[str, Unknown]) -> dict[str, Unknown]:
    return {name: head[name] for name in ECHOED if name in head}


def _question_name(head: dict[str, Unknown]) -> str:
    """The name of an exchange that is answered once, whichever process of the server asks for it.

    Raises:
        NodeError: its form is not that of a server: −1 would be a second name of the last exchange.
    """
    run, stage, index, number = (head[name] for name in ("run", "stage", "index", "number"))
    numbers = all(type(each) is int and each >= 0 for each in (run, index, number))
    if not numbers or stage not in ("warmup", "exchanges"):
        raise NodeError(f"there is no exchange {number!r} of round {index!r} ({stage!r}) of run {run!r}")
    return f"exchange {number} of round {index} ({stage}) of run {run}"


def _clipped_figure(value: float, most: float) -> float:
    """A figure clipped to [0, most]; one that is not finite becomes ``most``.

    Example:
        >>> _clipped_figure(-1.0, 2.0), _clipped_figure(float("nan"), 2.0)
        (0.0, 2.0)
    """
    return min(max(value, 0.0), most) if math.isfinite(value) else most


def whole_task(task: Task) -> Task:
    """The task of the whole model, with all metrics."""
    return task if task.entire is task else task.entire.with_metrics(**task.whole_metrics)


def _count(examples: Tree) -> int:
    return len(jax.tree.leaves(pooled_of(examples))[0])


def _padded(leaf: Array, width: int, value: int) -> np.ndarray:
    return np.concatenate([leaf, np.full(width - len(leaf), value, leaf.dtype)])


def _secret(file: pathlib.Path) -> bytes:
    """32 random bytes of the node, drawn when they are first needed."""
    if not file.exists():
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as written:
            written.write(secrets.token_bytes(32))
    return file.read_bytes()


def _digest(key: bytes, examples: Tree) -> str:
    """A digest of examples, keyed by a secret of the node: it shows that data changed, and no more."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for name, leaf in sorted((examples or {}).items()):
        digest.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def read_rounds(path: pathlib.Path) -> dict[int, int]:
    """Run -> the number of its rounds that were answered."""
    try:
        found = parse_json(path.read_bytes()) if path.exists() else {}
        if any(type(count) is not int or count < 0 for count in found.values()):
            raise ValueError("a count that is none")
        return {int(run): count for run, count in found.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError("folder", str(path), f"this should count rounds, and cannot be read ({error})") from error


# ---- programs


@compiled(static=["stage", "number", "plan"])
def _together(
    shared: SharedInputs, group: Array, memory: Tree, clients: Clients, *, stage: str, number: int, plan: Plan
) -> tuple[Tree, ClientResult, Tally]:
    """The weighted sum of the clients' uploads, the result of each, and the tally of their work.

    Args:
        shared: with the run's key, a method whose schedules are not yet resolved, and a download as it came.
        group: the number that random numbers are from: the round's, or that of a group of starts.
        memory, clients, stage, number, plan: as of :func:`fedax.engine.clients.client_program`.
    """
    method, _, download, _, key, index = shared
    shared = shared._replace(
        method=resolve(method, index), download=decoded(download), key=stage_key(key, group, stage)
    )
    return contribute(lambda inputs: client_program(stage, number, plan, None, inputs), shared, memory, clients, plan)


_train_sums = compiled(static=["task", "grad_norm", "mesh"])(train_sums)


@compiled(static=["task"])
def _held_out(model: Vector, tests: Tree, frozen: Tree, *, task: Task) -> dict[str, Unknown]:
    return held_out(task.bound(frozen), model, tests, None)
