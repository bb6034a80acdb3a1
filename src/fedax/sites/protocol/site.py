"""A site, the node's side of a run: the clients of one node, with their data, their memory and their programs.

It answers the messages of a server (:mod:`fedax.sites.protocol.remote`). Before a run it checks the run's agreement
against its owner's rules, and derives from it all that a question does not say. What is computed from its examples
leaves through its gate (:mod:`fedax.sites.protocol.gate`) alone.
"""

import dataclasses
import json
import os
import pathlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import PERSONAL, describe
from fedax.contract.compression import Identity, decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine import by_client, personal
from fedax.engine.checks import labels_of
from fedax.engine.clients import ClientResult, SharedInputs, client_program, contribute
from fedax.engine.devices import Place, in_precision
from fedax.engine.evaluate import held_out, train_sums
from fedax.engine.job import Job
from fedax.engine.layers import compressors_of
from fedax.engine.loop import Clients, Counters, Federation, empty_place, stage_key
from fedax.engine.make import names_of_classes, own_parts
from fedax.engine.places.blocks import Block
from fedax.engine.places.device import first_states
from fedax.engine.places.layout import Layout
from fedax.engine.plan import RunPlan
from fedax.engine.saved import model_of
from fedax.errors import ConfigError, FedaxError, NodeError
from fedax.files import hold, write_atomic
from fedax.metrics.base import Metric
from fedax.programs import compiled
from fedax.sites.protocol import masks
from fedax.sites.protocol.agreement import (
    EVALUATION,
    STAGES,
    Agreement,
    Asked,
    Made,
    cohort_of,
    common_question,
    contribution_of,
    digest_of,
    digest_of_text,
    figures_form,
    figures_vector,
    precise_versions,
    version_after,
)
from fedax.sites.protocol.answered import Answered, Repeated, Share
from fedax.sites.protocol.gate import Bounded, ClientTable, Evaluation, Gate, Question, Sum
from fedax.sites.protocol.messages import SEVERAL, Message, joined, packed, parted
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.received import Received, asked_of
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.roster import Roster
from fedax.sites.protocol.runs import SiteData, SiteRun, count, counts, run_of
from fedax.sites.protocol.store import Store, read_rounds, write_line
from fedax.tasks.task import Task
from fedax.wire.averages import Guard
from fedax.wire.wire import Wire

_READY = 128  # the most runs that are kept prepared
_MOST_ROUNDS = 10**7  # of a run, where the owner has no rule
_DEEPEST = 2  # levels of a joined message: the runs, and the questions of a run
_SUMS = 256  # the most secure sums under way
_ROUNDS = "rounds.json"

Mask = Callable[[np.ndarray, str], np.ndarray]  # masks the numbers that answer a question


class Lost(NodeError):
    """The secrets of a secure sum were lost when the node was started again."""


class _OwnModels(NamedTuple):
    """What the personal models of a node's clients are made of, as the arguments of :func:`personal.evaluated`."""

    job: Job
    fed: Federation
    server: Tree
    memory: Tree
    who: Clients
    round: int

    @property
    def model(self) -> Vector:
        """The shared model."""
        return personal.inner(resolve(self.job.hyper.method, self.round)).model(self.server)


class Site:
    """The clients of one node.

    Args:
        data: the clients' examples, a dict of arrays.
        make: gives what a configuration in plain JSON describes, :class:`fedax.sites.protocol.agreement.Made`.
        folder: for what has to outlive the process: agreements, memory, the record, the log. One process at a time.
        names: of the clients; no two clients of a federation have the same.
        test: held-out examples, like ``data.examples``, or ``None``.
        policy: what the node's owner allows; default: everything.
        val: held-out examples for validation, like ``test``.
        roster: the nodes that the owner knows, with which it may take part in secure sums; ``None``: none.

    Attributes:
        data: the clients' examples.
        held: part -> the owner's own held-out examples, or ``None``.

    Raises:
        ConfigError, DataError: names that do not fit the data; another process has the folder, or it cannot be written.
    """

    def __init__(
        self,
        data: FederatedData,
        make: Callable[[dict[str, Unknown]], Made],
        folder: str | os.PathLike[str],
        names: Sequence[str],
        test: Tree = None,
        policy: Policy | None = None,
        val: Tree = None,
        roster: Roster | None = None,
    ):
        self.names, self._make, self._roster = tuple(map(str, names)), make, roster
        self.folder, self.policy = pathlib.Path(folder), policy or Policy()
        try:
            self.store = Store(self.folder, self.names)
            self.open()
            self._data = SiteData(data, self.names, {"val": val, "test": test}, self.store.secret("secret"))
        except OSError as error:
            raise ConfigError("folder", str(folder), f"cannot write there ({error.strerror})") from error
        self.data, self.held = self._data.data, self._data.own
        self._runs: dict[str, SiteRun] = {}
        self._promised: dict[str, float] = {}  # runs under way -> what all their answers with noise will have cost
        self._sums: dict[str, tuple[str, str]] = {}  # secure sums under way -> their names, and digests of their models
        self._noted: dict[str, Unknown] = {}  # for the log
        self._masks: masks.Masks | None = None

    def open(self) -> None:
        """Take the folder again after :meth:`close`.

        Raises:
            ConfigError: another process has it.
        """
        busy = ConfigError("folder", str(self.folder), "another process is this node; stop it first")
        self._lock = hold(self.folder / ".lock", busy)
        self._rounds = read_rounds(self.folder / _ROUNDS)
        self._answered = Answered(self.folder)

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.release()

    def answer(self, message: Message) -> Message:
        """The answer to a message; ``{"error": why}`` if there is none. Joined messages get a joined answer."""
        answer = self._parts(message, 0)
        try:
            self._answered.sync()
        except (OSError, NodeError):  # what is not in the record does not leave, nor what is kept to be sent again
            traceback.print_exc()
            self._masks = None
            return Message({"error": str(Refusal(Rule.DISK))})
        return answer

    def _parts(self, message: Message, deep: int) -> Message:
        if message.head.get("kind") == SEVERAL:
            try:
                if deep == _DEEPEST:
                    raise Refusal(Rule.FORM)
                return joined([self._parts(part, deep + 1) for part in parted(message, 0)])
            except NodeError:
                return Message({"error": str(Refusal(Rule.FORM))})
        began, self._noted = time.perf_counter(), {}
        try:
            received = Received(message)
            answer_ = self._answer(received)
        except Lost:
            answer_ = Message({"to": received.to, "lost": True})
        except Repeated as error:  # the server may go on without this node's clients
            answer_ = Message({"to": received.to, "repeated": str(error)})
        except NodeError as error:  # of this package, and without a value of the data
            answer_ = Message({"error": str(error)})
        except Exception as error:  # its text may hold what is in the data
            traceback.print_exc()
            answer_ = Message({"error": str(Refusal(Rule.DISK if isinstance(error, OSError) else Rule.FAILED))})
        try:
            self._log(message, answer_, time.perf_counter() - began)
        except (OSError, NodeError):  # what is not in the owner's log does not leave
            traceback.print_exc()
            return Message({"error": str(Refusal(Rule.DISK))})
        return answer_

    def _answer(self, received: Received) -> Message:
        """The answer to a question of its kind. Most kinds are about a run, and are answered in its precision."""
        kind = str(received.message.head.get("kind"))
        others = {"hello": self._hello, "agreement": self._agreement, "forget": self._forget,
                  "agree": self._agree, "unmask": self._unmask}  # fmt: skip
        of_run = {"exchange": self._exchange, "evaluate": self._evaluate, "offer": self._offer,
                  "clients": self._table, "alone": self._table}  # fmt: skip
        if kind in others:
            return others[kind](received)
        if kind not in of_run:
            raise Refusal(Rule.FORM)
        run = self._run(received.agreement)
        with in_precision(run.plan.precision):
            return of_run[kind](run, received)

    # ---- before a run

    def _hello(self, received: Received) -> Message:
        """The clients of this node, and the form of their examples."""
        labels = self.data.examples.get("y")
        whole = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
        return Message(
            {
                "names": self.names,
                "sizes": self.data.sizes.tolist(),
                "digests": self._data.digests,
                "example": {
                    name: [str(leaf.dtype), list(leaf.shape)] for name, leaf in self._data.census.example.items()
                },
                "classes": int(labels.max()) + 1 if whole else None,
                "held": {part: 0 if tree is None else count(tree) for part, tree in self.held.items()},
                "mark": self._data.mark,
                "figures": self.policy.figures,
                "transform": None if self.data.transform is None else self.data.transform.to_json(),
                "versions": precise_versions(),
            }
        )

    def _agreement(self, received: Received) -> Message:
        """Check the agreement of a run against the owner's rules, and remember it for good."""
        head = received.message.head
        agreement = Agreement.of(head.get("text"))
        if agreement.digest not in self._runs:
            try:
                known = self.store.agreement(agreement.digest)
            except Refusal:
                known = None
            run = self._derive(*(known or (agreement, self._data.mark, str(head.get("server"))[:200])), received)
            self._check_rounds(run.digest, run.job.rounds)
            if known is None:  # else it has answered some of it
                self._promise(run)
                self.store.keep_agreement(agreement, self._data.mark, run.server)
            if agreement.frozen is not None:
                self.store.keep_frozen(agreement.frozen, run.job.plan.task.frozen)
            self._keep(run)
        run = self._run(agreement.digest)
        return Message({"to": received.to} | ({"key": self._masking().public._asdict()} if run.secure else {}))

    def _promise(self, run: SiteRun) -> None:
        """Refuse a run whose noise the budget does not cover, if its clients take part in every round."""
        figures, updates = self.policy.noise, self.policy.update_noise
        cost = 0.0  # Σ 1/z²
        if figures is not None:
            cost += len({0, *run.job.evaluation.stops}) * len(run.measured) * figures**-2
        if updates is not None:
            cost += (run.job.rounds * len(run.forms[1]) + len(run.forms[0])) * updates**-2
        together = self._answered.loss + sum(self._promised.values()) + cost
        if cost and self.policy.spent(together, self._answered.tail) > self.policy.budget:
            raise Refusal(Rule.BUDGET, self.policy.budget)
        self._promised[run.digest] = cost

    def _run(self, digest: Unknown) -> SiteRun:
        """A run by the digest of its agreement."""
        if (digest := str(digest)) not in self._runs:
            self._keep(self._derive(*self.store.agreement(digest)))
        return self._runs[digest]

    def _keep(self, run: SiteRun) -> None:
        self._runs = dict(list(self._runs.items())[1 - _READY :]) | {run.digest: run}

    def _check_rounds(self, digest: str, rounds: int) -> None:
        """Refuse so many rounds of a run, if they are too many with those of all others."""
        others = sum(count for each, count in self._rounds.items() if each != digest)
        if self.policy.rounds is not None and others + rounds > self.policy.rounds:
            raise Refusal(Rule.ROUNDS, self.policy.rounds, f"other runs had {others}")

    def _derive(self, agreement: Agreement, mark: str, server: str, received: Received | None = None) -> SiteRun:
        """The run of an agreement, after a check of all that the owner's rules say of it."""
        if dict(agreement.versions) != precise_versions():
            raise Refusal(Rule.VERSIONS)
        if mark != self._data.mark:
            raise Refusal(Rule.CHANGED)
        self.policy.check_agreement(agreement)
        try:
            made = self._make(dict(agreement.config))
            method, task = own_parts(made.method, made.task)
            made = made._replace(method=method, task=task)
        except FedaxError as error:  # no example enters it, so that its text tells nothing of any
            raise NodeError(str(error)) from error
        rounds, most = made.options.get("rounds", 0), self.policy.rounds or _MOST_ROUNDS
        if rounds > most:
            raise Refusal(Rule.ROUNDS, most)
        frozen = None
        if agreement.frozen is not None and received is not None and received.message.tensors:
            frozen = received.arrays("frozen", made.task.frozen)
            if digest_of(frozen) != agreement.frozen:
                raise Refusal(Rule.FROZEN)
        elif agreement.frozen is not None:
            frozen = self.store.frozen(agreement.frozen, made.task.frozen)
        with in_precision(made.options.get("place", Place()).precision):
            run = run_of(self._data, agreement, made, frozen, self._runs.values())
        self.policy.check_run(run.job, run.train.sizes.tolist(), run.single, run.measured)
        if run.secure is not None:
            self._masking()
        return run._replace(server=server)

    def _forget(self, received: Received) -> Message:
        """Delete the memory of a run that is over."""
        agreement, _, _ = self.store.agreement(str(received.agreement))
        self.store.forget(agreement.memory)
        self.store.keep_rounds(agreement, received.best)
        self._promised.pop(str(received.agreement), None)
        return Message({"to": received.to})

    # ---- an exchange

    def _exchange(self, run: SiteRun, received: Received) -> Message:
        """Run an exchange of some clients."""
        asked = asked_of(run, received)
        part = None if asked.exchange.server is None else contribution_of(asked.clients)
        return self._once(run, received, part, lambda mask: self._take_part(run, asked, received, mask))

    def _once(
        self, run: SiteRun, received: Received, part: masks.MaskedPart | None, make: Callable[[Mask | None], Message]
    ) -> Message:
        """An answer, made once where it contributes a ``part`` to a secure sum; ``make``: is given what masks it."""
        if run.secure is None or part is None:
            return make(None)
        masking, session = self._masked_session(received)
        bits = 64 if received.stage == EVALUATION else run.secure.bits
        offers = received.table("offers", masks.Offer)
        asked = json.dumps(received.message.head, sort_keys=True).encode() + received.message.tensors
        mask: Mask = lambda numbers, question: masking.masked(session, numbers, bits, offers, question, part)  # noqa: E731
        answer: Message = masking.once(session, asked) or make(mask)
        if (said := masking.stated(session)) is not None:
            answer = answer._replace(head=answer.head | {"said": said._asdict()})
        masking.keep(session, answer)
        return answer

    def _take_part(self, run: SiteRun, asked: Asked, received: Received, mask: Mask | None) -> Message:
        """Run the clients of an exchange, and answer with their sum."""
        job, stage, index, number = run.job, received.stage, received.round, received.exchange
        forms = run.forms[STAGES.index(stage)]
        form, memory_form = forms[number], run.row if number == 0 else forms[number - 1].memory
        rows = received.numbers("rows", len(self.names))
        names = self._noted["clients"] = [self.names[row] for row in rows]
        down, up = (each or Identity() for each in compressors_of(job.hyper.method, job.hyper.wire))
        layout, uploads = Layout.of(form.download), Layout.of(form.upload, form.first)
        download = received.arrays("download", layout.on_wire(down, 1) if layout.messages else form.download)
        model = digest_of(download)
        question = common_question(run.digest, stage, index, number, model)
        if layout.messages:
            parts = jax.tree.map(lambda leaf: leaf[0], layout.unpacked(download, down, "the message"))
            download = layout.whole(parts, down)
        if paced := job.pacing is not None:
            version, group = received.number("work") + 1, received.number("group")
        else:
            version, group = version_after(stage, index, number), index
        bases, kept = received.numbers("base", version, len(rows)), received.kept(len(rows))
        if stage != "warmup" and index >= self._rounds.get(run.digest, 0):  # a round is counted once
            self._check_rounds(run.digest, index + 1)
            rounds = {**self._rounds, run.digest: index + 1}
            write_atomic(self.folder / _ROUNDS, json.dumps(rounds))
            self._rounds = rounds
        memory = self._recalled(run, rows, bases, memory_form)
        # Messages are not decoded here: only the server knows all clients.
        wire = Wire(sealed=True) if uploads.messages else asked.wire
        wire = dataclasses.replace(wire, node_clip=self.policy.clip)
        if wire.guard is None and wire.zeroes and self.policy.clip is None:  # to know of whom nothing is in the sum
            wire = dataclasses.replace(wire, guard=Guard(float(np.finfo(np.asarray(job.fed.weights).dtype).max)))
        total, results, done = _run_clients(run, wire, received, asked.clients, download, memory, group)
        counters = {"tally": [int(done.local_steps), int(done.gradients)]}
        accepted = {} if job.hyper.wire.guard is None or uploads.messages else {"accepted": results.accepted}
        counted = np.ones(len(rows), bool) if isinstance(results.accepted, tuple) else results.accepted
        if asked.exchange.server is None:
            answer = Message({"to": received.to} | counters, packed(jax.tree.map(np.asarray, accepted)))
        else:
            arrays: dict[str, Tree] = {}
            if uploads.messages:
                arrays = {"letters": uploads.packed(uploads.parts(results.upload), up, len(rows))}
            elif mask is not None:
                arrays = {"masked": mask(masks.flat(total), question)}
            else:
                arrays = {"uploads": results.upload} if wire.gathers else {"total": total}
            told = {key: received.told.get(key) for key in ("rows", "base", "out", "group")}
            what = f"exchange {number} of round {index} ({stage})"
            if paced:  # of one client, so that nothing is learned from a difference
                what = f"work {digest_of_text(question, told)}"
            leaving = Sum(
                arrays | accepted, counters, names, counted * np.asarray(asked.clients.weights),
                counted * np.asarray(asked.clients.data_weights), run.train.sizes[rows],
                min(int(asked.clients.steps.min()), int(done.local_steps) // len(rows)),
                f"upload {number} ({stage})", self._data.about_split(run.agreement),
                bool(uploads.messages or form.one or wire.gathers), job.hyper.wire.guard is not None,
                bool(counted.all()), mask is not None,
            )  # fmt: skip
            answer = self._leave(run, received, what, model, leaving, question, told, digest_of(memory))
        for k, row in enumerate(rows):
            client_memory = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], results.memory)
            self.store.remember(run.agreement.memory, row, version, [bases[k], *kept[k]], client_memory)
        return answer

    def _recalled(self, run: SiteRun, rows: Sequence[int], versions: Sequence[int], form: Tree) -> list[Tree]:
        """The memory of some clients, at these versions."""
        which = zip(rows, versions, strict=True)
        return [self.store.recall(run.agreement.memory, row, version, form, run.row) for row, version in which]

    # ---- secure sums

    def _masking(self) -> masks.Masks:
        """The masks of this node; its key is in the folder, the secrets of exchanges are in memory only."""
        if self._masks is None:
            masks.require()
            if self._roster is None:
                raise Refusal(Rule.ROSTER)
            limits = (self.policy.colluding, self.policy.share, self.policy.nodes or 1)
            self._masks = masks.Masks(self.store.secret("key"), self._roster, *limits)
        return self._masks

    def _masked_session(self, received: Received) -> tuple[masks.Masks, str]:
        """The masks, and the name of a secure sum under way."""
        masking, session = self._masking(), received.session
        if not masking.knows(session):
            raise Lost(session)
        return masking, session

    def _whole(self, run: SiteRun) -> masks.MaskedPart:
        """What the node contributes to a secure sum of figures."""
        weight = float(np.sum(run.weights, dtype=np.float64))
        return masks.MaskedPart(len(run.ids), weight, weight)

    def _offer(self, run: SiteRun, received: Received) -> Message:
        """Draw the secrets of a coming exchange, and give shares of them to the other nodes."""
        keys = [masks.read(masks.Key, each) for each in received.entries("keys")]
        if run.secure is None:
            raise Refusal(Rule.FORM)
        self.policy.check_nodes(len(keys))
        position, threshold = received.number("position"), received.number("threshold")
        offer = self._masking().offer(received.session, position, keys, threshold)
        return Message({"to": received.to, "offer": offer._asdict()})

    def _agree(self, received: Received) -> Message:
        """Agree to the set of nodes whose sums are added."""
        masking, session = self._masked_session(received)
        tags = masking.agree(session, received.table("said", masks.Statement))
        self._note_nodes(masking, session)
        return Message({"to": received.to, "agreed": tags})

    def _unmask(self, received: Received) -> Message:
        """Reveal shares of the secrets of an exchange, which unmask the sum over the nodes that answered it."""
        masking, session = self._masked_session(received)
        said, agreed = received.table("said", masks.Statement), received.table("agreed", masks.Agreed)
        told = masking.unmask(session, said, agreed)
        self._note_nodes(masking, session)
        answer = {"to": received.to, "told": told}
        if "ahead" in received.told:  # the offer for the next exchange
            answer["offer"] = masking.following(session, received.named(received.number("ahead")))._asdict()
        return Message(answer)

    def _note_nodes(self, masking: masks.Masks, session: str) -> None:
        """Record the set of nodes whose sums are added, before anything leaves that unmasks them."""
        if session not in self._sums:
            raise Lost(session)
        nodes = masking.parts(session)
        self.policy.check_nodes(len(nodes))
        # The masks of a run that goes on after a stop are others, and the difference of two sums has none.
        name, model = self._sums[session]
        what = "evaluation" if name.startswith("evaluation") else name.partition(" of round")[0]
        share = Share(f"nodes {what} {model}", "nodes", dict(sorted(nodes.items())))
        content = digest_of_text(sorted(nodes.items()))
        name = f"the sum over nodes of {name}"
        if not self._answered.known(name, content):
            self._gate().check_shares([share])
        self._answered.take(name, content, self.policy, counts=False, shares=[share])

    # ---- figures

    def _evaluate(self, run: SiteRun, received: Received) -> Message:
        """Σ p_i F_i over the clients that are here, its gradient where asked, and figures of the held-out examples."""
        early = run.job.plan.stops and received.round <= run.job.rounds  # where a guard ends the run
        if (
            received.stage != EVALUATION
            or received.exchange
            or not (received.round in (0, *run.job.evaluation.stops) or early)
        ):
            raise Refusal(Rule.FORM)
        return self._once(run, received, self._whole(run), lambda mask: self._evaluated(run, received, mask))

    def _evaluated(self, run: SiteRun, received: Received, mask: Mask | None) -> Message:
        task, own, asked = run.job.plan.task, None, tuple[str, ...]()
        held, sealed = {part: counts(run.held[part]) for part in run.parts}, None
        if run.job.evaluation.personal is None:
            model = received.model(task)
            digest = digest_of(model)
        else:
            own = self._own_models(run, received)
            model, digest = own.model, digest_of(own.server)
            asked = run.digest, str(received.round), digest, digest_of(own.memory)
            held |= {f"{part}{PERSONAL}": held[part] for part in run.own}
        if mask is not None:
            question = common_question(run.digest, EVALUATION, received.round, 0, digest)
            sizes = {part: sum(each.values()) for part, each in held.items()}
            form, nodes = figures_form(run.job, run.agreement.parts), len(received.told["offers"])

            def sealed(arrays: Tree) -> Tree:
                numbers = masks.encode_figures(figures_vector(task, arrays, sizes, form), nodes)
                return {"masked": mask(numbers, question)}

        result = Evaluation(
            self.names, run.weights, run.train.sizes, held,
            lambda: _figures(run, model, own), lambda bound, unit: _bounded(run, model, bound, unit),
            lambda values: _noisy(run, values), self._data.about_split(run.agreement), sealed,
        )  # fmt: skip
        # With a pace, steps come out anew after a stop.
        what = "evaluation" if run.job.pacing is None else f"evaluation {digest}"
        answer = self._leave(run, received, f"{what} after round {received.round}", digest, result, *asked)
        if own is not None:
            self._keep_models(run, own, received.best)
        return answer

    def _keep_models(self, run: SiteRun, own: "_OwnModels", best: int | None) -> None:
        """Keep the model of each client, for predictions at this site, and those of the round that was best so far."""
        named = run.agreement.config.get("method")
        label = named.get("label") if isinstance(named, dict) else None
        method = str(label or run.job.hyper.method.traits().name)
        classes = names_of_classes(self._data.census, None)
        origin = run.job.origin._replace(labels=classes, transform=self.data.transform)
        for k, name in enumerate(self.names):
            memory, who = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], (own.memory, own.who))
            models = personal.own_models(own.job, own.fed, own.server, memory, who, own.round)
            params = jax.tree.map(lambda leaf: leaf[0], models)
            self.store.keep_model(run.agreement, method, own.round, name, model_of(origin, params))
        self.store.keep_rounds(run.agreement, best)

    def _own_models(self, run: SiteRun, received: Received) -> "_OwnModels":
        """What the personal models of this node's clients are made of, with which the server asks for their figures."""
        job, every = run.job, range(len(self.names))
        form, _ = first_states(job.hyper.method, job.x)
        server = received.arrays("server", personal.inner_state(job.hyper.method, form))
        memory = self._recalled(run, every, received.numbers("base", 2**31, len(every)), run.row)
        fed, who = _examples_of(run, _mine(run, personal.everyone(job, received.round)))
        rows = jax.tree.map(lambda *leaves: np.stack(leaves), *memory)
        return _OwnModels(run.with_own, fed, server, rows, who, received.round)

    def _table(self, run: SiteRun, received: Received) -> Message:
        """Figures on each client's own test examples: of a model, or of those that each client trains alone from it."""
        task, test, what = run.job.plan.task, run.held["test"], "figures of clients"
        try:
            if run.secure is not None:
                raise Refusal(Rule.TABLE)
            if not isinstance(test, FederatedData):
                raise Refusal(Rule.NOT_TESTED)
            self.policy.check_table(int(test.sizes.min()))
            if received.message.head["kind"] == "alone":
                what, model = f"{what} alone", received.arrays("model", run.row)
                models = self._trained_alone(run, model, test.names or ())
                figures = by_client.figures(task.trained, None, test, models)
            else:
                task = whole_task(task).trained
                model = received.model(task)
                figures = by_client.figures(task, model.tree, test)
            table = ClientTable({name: np.array(values) for name, values in figures.items()}, test.sizes)
            return self._leave(run, received, what, digest_of(model), table)
        except Refusal as refusal:
            return Message({"to": received.to, "withheld": str(refusal)})

    def _trained_alone(self, run: SiteRun, model: Tree, tested: Sequence[str]) -> Tree:
        """The models of the clients with test examples, [k, ...], each trained on its client's own rows."""
        form, memory = run.forms[1][0], [model] * len(self.names)
        for index in range(run.job.rounds):
            cohort, _ = cohort_of(run.job, "exchanges", 0)
            received = Received(Message({"stage": "exchanges", "round": index, "exchange": 0}))
            wire = dataclasses.replace(run.job.hyper.wire, lossy=False)
            _, results, _ = _run_clients(run, wire, received, _mine(run, cohort), form.download, memory, index)
            memory = [jax.tree.map(lambda leaf, k=k: leaf[k], results.memory) for k in range(len(memory))]
        kept = [memory[k] for k, name in enumerate(self.names) if name in tested]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *kept).tree

    def _gate(self) -> Gate:
        return Gate(self.policy, self._answered, self.store.secret("secret"), self._data.row_weights)

    def _leave(
        self,
        run: SiteRun,
        received: Received,
        what: str,
        model: str,
        result: Sum | Evaluation | ClientTable,
        *asked: Unknown,
    ) -> Message:
        """The answer with a result, through the gate.

        Args:
            run, received: the run, and the question as it came.
            what: what of the run is answered once.
            model: the digest of the model that came.
            result: what is to leave.
            asked: all that the answer depends on, besides the data and the owner's noise; default: ``what``, and the
                model.
        """
        rules, gate, name = self.policy, self._gate(), f"{what} of run {run.digest}"
        noise = [rules.noise, rules.bound, rules.unit, rules.clip, rules.update_noise]
        content = digest_of_text(self._data.about, noise, *(asked or (name, model)))
        answer = gate.leave(Question(name, content, model, received.to), result)
        if gate.noised:
            self._noted["noise"] = {"on": sorted(gate.noised), "noise": rules.noise, "bound": rules.bound}
        if run.secure is not None:
            self._sums = dict(list(self._sums.items())[1 - _SUMS :]) | {received.session: (name, model)}
        return answer

    def _log(self, message: Message, answer: Message, seconds: float) -> None:
        """Log a message: who asked what, and what left."""
        more = dict(self._noted)
        if self._answered.loss:
            more["epsilon"] = round(self.policy.spent(self._answered.loss, self._answered.tail), 4)
        digest = message.head.get("agreement")
        if isinstance(digest, str) and digest in self._runs:
            more |= {"run": digest, "server": self._runs[digest].server}
        write_line(self.store, message, answer, seconds, more)


def _figures(run: SiteRun, model: Vector, own: _OwnModels | None) -> Tree:
    """The figures of an evaluation; ``own``: of a method with personal models, these."""
    task, train = run.job.plan.task, list[Tree]()
    options = {"task": task, "grad_norm": run.job.evaluation.grad_norm, "mesh": run.plan.mesh}
    for piece in run.examples.pieces(run.weights):
        sums = jax.block_until_ready(_train_sums(model, piece._replace(frozen=run.frozen), **options))
        train = jax.tree.map(jnp.add, train, [*sums]) if train else [*sums]
    arrays: dict[str, Tree] = {"train": train}
    for part, tree in run.parts.items():
        arrays[part] = {"figures": _held_out(model, tree, run.frozen, task=task), "labels": labels_of(task, tree)}
    if own is None:
        return arrays
    found = personal.evaluated(*own)
    train.append(np.asarray(run.weights @ np.asarray(found.train), run.weights.dtype))
    for part, rows in run.own.items():
        figures = jax.tree.map(lambda leaf: np.asarray(leaf).sum(0, leaf.dtype), found.parts[part])
        means = {
            name: np.asarray(each / rows.sizes.sum(), each.dtype)
            for name, each in figures.items()
            if not isinstance(task.metrics.get(name), Metric)
        }
        arrays[f"{part}{PERSONAL}"] = {**arrays[part], "figures": figures | means}
    return arrays


def _bounded(run: SiteRun, model: Vector, bound: float, unit: str) -> list[Bounded]:
    """The figures of an evaluation, each clipped so that one client, or one row, moves it by so much at most."""
    task, p, by_row = run.job.plan.task, np.asarray(run.weights, float), unit == "rows"
    if by_row:
        rows = _clipped(_each_row(task, model.tree, run.train)["loss"], bound)
        losses, reach = np.add.reduceat(rows, run.train.offsets) / run.train.sizes, p / run.train.sizes
    else:
        losses, reach = _clipped(np.array(by_client.figures(task, model.tree, run.train)["loss"]), bound), p
    found = [Bounded("train_loss", float(p @ losses), bound * float(reach.max()))]
    for part, tree in run.parts.items():
        figures = _each_row(task, model.tree, tree) if by_row else _held_out(model, tree, run.frozen, task=task)
        for name, values in figures.items():
            top = 1.0 if describe(f"{part}_{name}").unit == "%" else bound
            mean = float(_clipped(np.asarray(values, float), top).mean())
            found.append(Bounded(f"{part}_{name}", mean, top / (count(tree) if by_row else 1)))
    return found


def _noisy(run: SiteRun, values: Mapping[str, float]) -> Tree:
    """The arrays of an evaluation, from figures with noise."""
    real = jnp.zeros(()).dtype
    arrays: dict[str, Tree] = {"train": [np.asarray(values["train_loss"], real)]}
    for part in run.parts:
        own = {name.partition("_")[2]: each for name, each in values.items() if name.startswith(f"{part}_")}
        arrays[part] = {"figures": {name: np.asarray(each, real) for name, each in own.items()}, "labels": {}}
    return arrays


def _each_row(task: Task, params: Tree, examples: Tree) -> dict[str, np.ndarray]:
    """The loss and the metrics of each row, by name; not-a-number of a model that is not finite."""
    if all(np.isfinite(np.asarray(leaf, float)).all() for leaf in jax.tree.leaves(params)):
        return by_client.each_example(task, params, examples)
    return {name: np.full(count(examples), np.nan) for name in ("loss", *task.metrics)}


def _clipped(values: np.ndarray, most: float) -> np.ndarray:
    """Figures clipped to [0, most]; one that is not finite becomes ``most``.

    Example:
        >>> _clipped(np.array([-1.0, 0.5, np.nan, np.inf]), 2.0).tolist()
        [0.0, 0.5, 2.0, 2.0]
    """
    return np.asarray(np.clip(np.nan_to_num(values, nan=most, posinf=most), 0.0, most))


def whole_task(task: Task) -> Task:
    """The task of the whole model, with all metrics."""
    return task if task.entire is task else task.entire.with_metrics(**task.whole_metrics)


# ---- programs


def _run_clients(
    run: SiteRun, wire: Wire, received: Received, clients: Clients, download: Tree, memory: list[Tree], group: int
) -> tuple[Tree, ClientResult, Counters]:
    """Run the clients; results are without padding. ``group``: what random numbers are from."""
    size = len(memory)
    fed, there = _examples_of(run, clients)
    rows_of = jax.tree.map(lambda *leaves: np.stack(leaves + leaves[-1:] * (len(there.ids) - size)), *memory)
    total, results, counters = _together(
        SharedInputs(run.job.hyper.method, wire, download, fed, run.job.key, np.int32(received.round)),
        np.int32(group), rows_of, there,
        stage=received.stage, number=received.exchange, plan=run.plan.of_clients,
    )  # fmt: skip
    return total, jax.tree.map(lambda leaf: np.asarray(leaf)[:size], results), counters


def _mine(run: SiteRun, everyone: Clients) -> Clients:
    """The clients of this node, of all."""
    at = [list(everyone.ids).index(each) for each in run.ids]
    return Clients(*(leaf[at] for leaf in everyone))


def _examples_of(run: SiteRun, clients: Clients) -> tuple[Federation, Clients]:
    """The examples of some clients of this node, and the clients with where these are.

    Their number is random where not all take part; empty places make it one of few, for each of which a program is
    compiled.
    """
    n, size = run.train.num_clients, len(clients.ids)
    width = min(1 << (size - 1).bit_length(), n)
    ids = np.asarray(clients.ids, np.int32)
    rows = np.array([run.ids.index(int(each)) for each in ids], np.int32)
    offsets, sizes = np.asarray(run.examples.fed.offsets)[rows], run.train.sizes[rows].astype(np.int32)
    fields = clients._replace(ids=rows, present=np.ones(size, bool), offsets=offsets, sizes=sizes)
    fill = (0, width - size)
    padded = Clients(
        *(np.pad(leaf, fill, constant_values=each) for leaf, each in zip(fields, empty_place(n), strict=True))
    )
    block = Block(np.where(padded.present, np.arange(width), -1), padded)
    fed = run.examples.take(block)._replace(weights=np.zeros(0), frozen=run.frozen)
    there = block.now(padded, run.examples.streamed)
    return fed, there._replace(ids=np.pad(ids, fill, constant_values=run.plan.num_clients))


@compiled(static=["stage", "number", "plan"])
def _together(
    shared: SharedInputs, group: Array, memory: Tree, clients: Clients, *, stage: str, number: int, plan: RunPlan
) -> tuple[Tree, ClientResult, Counters]:
    """The weighted sum of the clients' uploads, the result of each, and the counters of their work.

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
