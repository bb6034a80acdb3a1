"""A site, the node's side of a run: the clients of one node, with their data, their memory and their programs.

It answers the messages of a server (:mod:`fedax.sites.protocol.remote`). Before a run it checks the run's agreement
against its owner's rules, and derives from it all that a question does not say. What is computed from its examples
leaves through its gate (:mod:`fedax.sites.protocol.gate`) alone.
"""

import dataclasses
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import describe
from fedax.contract.compression import decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine import by_client
from fedax.engine.checks import labels_of, pooled_of
from fedax.engine.clients import ClientResult, SharedInputs, client_program, contribute
from fedax.engine.devices import Place, in_precision
from fedax.engine.evaluate import held_out, train_sums
from fedax.engine.loop import Clients, Tally, empty_place, stage_key
from fedax.engine.places.blocks import Block
from fedax.engine.places.layout import Layout
from fedax.engine.plan import Plan
from fedax.errors import ConfigError, FedaxError, NodeError
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
from fedax.sites.protocol.gate import Bounded, Evaluation, Gate, Question, Sum, Table
from fedax.sites.protocol.messages import SEVERAL, Message, joined, packed, parted, unpacked
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.received import Received, asked_of
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.roster import Roster
from fedax.sites.protocol.runs import SiteData, SiteRun, count, run_of
from fedax.sites.protocol.store import Store, read_rounds, write_line
from fedax.tasks.task import Task
from fedax.wire.guard import Guard
from fedax.wire.wire import Wire

_READY = 128  # the most runs that are kept prepared
_MOST_ROUNDS = 10**7  # of a run, where the owner has no rule
_DEEPEST = 2  # levels of a joined message: the runs, and the questions of a run
_SUMS = 256  # the most secure sums under way


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
            self._lock = filelock.FileLock(self.folder / ".lock")
            self.open()
            self._data = SiteData(data, self.names, {"val": val, "test": test}, self.store.secret("secret"))
        except OSError as error:
            raise ConfigError("folder", str(folder), f"cannot write there ({error.strerror})") from error
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
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise ConfigError("folder", str(self.folder), "another process is this node; stop it first") from None
        self._rounds = read_rounds(self.folder / "rounds.json")
        self._answered = Answered(self.folder)

    @property
    def data(self) -> FederatedData:
        """The clients' examples."""
        return self._data.data

    @property
    def held(self) -> dict[str, Tree]:
        """Part -> the owner's own held-out examples, or ``None``."""
        return self._data.own

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.release()

    @property
    def _gate(self) -> Gate:
        return Gate(self.policy, self._answered, self.store.secret("secret"), self._data.row_weights)

    def answer(self, message: Message, deep: int = 0) -> Message:
        """The answer to a message; ``{"error": why}`` if there is none. Joined messages get a joined answer."""
        if message.head.get("kind") == SEVERAL:
            try:
                if deep == _DEEPEST:
                    raise Refusal(Rule.FORM)
                return joined([self.answer(part, deep + 1) for part in parted(message, 0)])
            except NodeError:
                return Message({"error": str(Refusal(Rule.FORM))})
        began, self._noted, to = time.perf_counter(), {}, digest_of_text([message.head])
        kinds = {"hello": self._hello, "agreement": self._agreement, "exchange": self._exchange,
                 "evaluate": self._evaluate, "forget": self._forget, "offer": self._offer, "agree": self._agree,
                 "unmask": self._unmask, "clients": self._clients, "alone": self._alone}  # fmt: skip
        try:
            if (kind := str(message.head.get("kind"))) not in kinds:
                raise Refusal(Rule.FORM)
            answer_ = kinds[kind](Received(message, to))
        except Repeated as error:  # the server may go on without this node's clients
            answer_ = Message({"to": to, "repeated": str(error)})
        except NodeError as error:  # of this package, and without a value of the data
            answer_ = Message({"error": str(error)})
        except Exception as error:  # its text may hold what is in the data
            traceback.print_exc(file=sys.stderr)
            answer_ = Message({"error": str(Refusal(Rule.DISK if isinstance(error, OSError) else Rule.FAILED))})
        try:
            self._log(message, answer_, time.perf_counter() - began)
        except (OSError, NodeError):  # what is not in the owner's log does not leave
            traceback.print_exc(file=sys.stderr)
            return Message({"error": str(Refusal(Rule.DISK))})
        return answer_

    # ---- before a run

    def _hello(self, received: Received) -> Message:
        """The clients of this node, and the form of their examples."""
        labels = self._data.data.examples.get("y")
        whole = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
        about = {
            "names": self.names,
            "sizes": self._data.data.sizes.tolist(),
            "digests": self._data.digests,
            "example": {name: [str(leaf.dtype), list(leaf.shape)] for name, leaf in self._data.census.example.items()},
            "classes": int(labels.max()) + 1 if whole else None,
            "held": {part: 0 if tree is None else count(tree) for part, tree in self._data.own.items()},
            "mark": self._data.mark,
            "figures": self.policy.figures,
            "transform": None if self._data.data.transform is None else self._data.data.transform.to_json(),
        }
        return Message(about | {"versions": precise_versions()})

    def _agreement(self, received: Received) -> Message:
        """Check the agreement of a run against the owner's rules, and remember it for good."""
        head = received.message.head
        agreement = Agreement.of(head.get("text"))
        if agreement.digest not in self._runs:
            frozen = None
            if agreement.frozen is not None and received.message.tensors:
                form = {"frozen": self._described(agreement).task.frozen}
                frozen = unpacked(received.message.tensors, form, "the message")["frozen"]
                if digest_of(frozen) != agreement.frozen:
                    raise Refusal(Rule.FROZEN)
            run = self._derive(agreement, self.store.mark(agreement.digest) or self._data.mark, frozen)
            others = sum(count for each, count in self._rounds.items() if each != run.digest)
            if self.policy.rounds is not None and others + run.job.rounds > self.policy.rounds:
                raise Refusal(Rule.ROUNDS, self.policy.rounds, f"other runs had {others}")
            if self.store.mark(run.digest) is None and (cost := self._cost(run)):  # else it has answered some of it
                together = self._answered.loss + sum(self._promised.values()) + cost
                if self.policy.spent(together, self._answered.tail) > self.policy.budget:
                    raise Refusal(Rule.BUDGET, self.policy.budget)
                self._promised[run.digest] = cost
            if frozen is not None:
                self.store.keep_frozen(frozen)
            self.store.keep_agreement(agreement, self._data.mark, str(head.get("server"))[:200])
            self._keep(run, self.store.agreement(run.digest)[2])
        run = self._run(agreement.digest)
        agreed: dict[str, Unknown] = {"to": received.to}
        if run.job.hyper.wire.secure is not None:
            agreed["key"] = self._masking().public._asdict()
        return Message(agreed)

    def _cost(self, run: SiteRun) -> float:
        """Σ 1/z² of the noise on all answers of a run, if its clients take part in every round."""
        evaluations, uploads = (
            len({0, *run.job.evaluation.stops}),
            run.job.rounds * len(run.forms[1]) + len(run.forms[0]),
        )
        figures, updates = self.policy.noise, self.policy.update_noise
        cost = 0.0 if figures is None else evaluations * len(run.measured) * figures**-2
        return cost + (0.0 if updates is None else uploads * updates**-2)

    def _run(self, digest: Unknown) -> SiteRun:
        """A run by the digest of its agreement."""
        if (digest := str(digest)) not in self._runs:
            agreement, mark, server = self.store.agreement(digest)
            self._keep(self._derive(agreement, mark), server)
        run = self._runs[digest]
        if run.mark != self._data.mark:
            raise Refusal(Rule.CHANGED)
        return run

    def _keep(self, run: SiteRun, server: str) -> None:
        self._runs = dict(list(self._runs.items())[1 - _READY :]) | {run.digest: run._replace(server=server)}

    def _described(self, agreement: Agreement) -> Made:
        """What an agreement's configuration describes. No example enters it, so that errors tell nothing of any."""
        try:
            return self._make(dict(agreement.config))
        except FedaxError as error:
            raise NodeError(str(error)) from error

    def _derive(self, agreement: Agreement, mark: str, frozen: Tree = None) -> SiteRun:
        """The run of an agreement, after a check of all that the owner's rules say of it."""
        if dict(agreement.versions) != precise_versions():
            raise Refusal(Rule.VERSIONS)
        if mark != self._data.mark:
            raise Refusal(Rule.CHANGED)
        self.policy.check_problem(agreement.config)
        made = self._described(agreement)
        rounds, most = made.options.get("rounds", 0), self.policy.rounds or _MOST_ROUNDS
        if rounds > most:
            raise Refusal(Rule.ROUNDS, most)
        if agreement.frozen is not None and frozen is None:
            frozen = self.store.frozen(agreement.frozen, made.task.frozen)
        with in_precision(made.options.get("place", Place()).precision):
            run = run_of(self._data, agreement, made, frozen, self._runs.values(), self.policy.split)
        sizes = run.train.sizes.tolist()
        self.policy.check_run(agreement, run.job, sizes, run.single, run.measured)
        if run.job.hyper.wire.secure is not None:
            self._masking()
        return run

    def _forget(self, received: Received) -> Message:
        """Delete the memory of a run that is over."""
        agreement, _, _ = self.store.agreement(str(received.agreement))
        self.store.forget(agreement.memory)
        self._promised.pop(str(received.agreement), None)
        return Message({"to": received.to})

    # ---- an exchange

    def _exchange(self, received: Received) -> Message:
        """Run an exchange of some clients."""
        run = self._run(received.agreement)
        with in_precision(run.plan.precision):
            asked = asked_of(run, received)
            secure = run.job.hyper.wire.secure
            if secure is None or asked.exchange.server is None:
                return self._take_part(run, asked, received)
            return self._in_secret(
                received, secure.bits, contribution_of(asked.clients),
                lambda mask: self._take_part(run, asked, received, lambda total, text: mask(masks.flat(total), text)),
            )  # fmt: skip

    def _in_secret(
        self,
        received: Received,
        bits: int,
        contribution: masks.Part,
        make: Callable[[Callable[[np.ndarray, str], np.ndarray]], Message],
    ) -> Message:
        """The answer with a masked sum, made once; ``make``: is given what masks the numbers of a question."""
        masking, session, message = self._masking(), received.session, received.message
        if not masking.knows(session):
            return Message({"to": received.to, "lost": True})
        asked = json.dumps(message.head, sort_keys=True).encode() + message.tensors
        if (kept := masking.once(session, asked)) is not None:
            answer: Message = kept
            return answer
        offers = received.table("offers", masks.Received.of)
        answer = make(lambda numbers, question: masking.masked(session, numbers, bits, offers, question, contribution))
        masking.keep(session, answer)
        return answer

    def _take_part(
        self,
        run: SiteRun,
        asked: Asked,
        received: Received,
        masked: Callable[[Tree, str], np.ndarray] | None = None,
    ) -> Message:
        """Run the clients of an exchange, and answer with their sum; ``masked``: masks the sum of a question."""
        job, stage, index, number = run.job, received.stage, received.round, received.exchange
        forms = run.forms[STAGES.index(stage)]
        form, memory_form = forms[number], run.row if number == 0 else forms[number - 1].memory
        rows = received.numbers("rows", len(self.names))
        self._noted["clients"] = [self.names[row] for row in rows]
        down, up = run.compressors
        layout, uploads = Layout.of(form.download), Layout.of(form.upload, form.first)
        wanted = layout.on_wire(down, 1) if layout.messages else form.download
        download = unpacked(received.message.tensors, {"download": wanted}, "the message")["download"]
        model = digest_of(download)
        question = common_question(run.digest, stage, index, number, model)
        if layout.messages:
            parts = jax.tree.map(lambda leaf: leaf[0], layout.unpacked(download, down, "the message"))
            download = layout.whole(parts, down)
        paced = job.pacing is not None
        work = received.number("work") if paced else 0
        version = work + 1 if paced else version_after(stage, index, number)
        bases, kept = received.numbers("base", version, len(rows)), received.kept(len(rows))
        self._count_round(run, stage, index)
        memory = [
            self.store.recall(run.agreement.memory, row, base, memory_form, run.row)
            for row, base in zip(rows, bases, strict=True)
        ]
        # Messages are not decoded here: only the server knows all clients.
        wire = Wire(sealed=True) if uploads.messages else asked.wire
        wire = dataclasses.replace(wire, node_clip=self.policy.clip)
        if wire.guard is None and wire.zeroes and self.policy.clip is None:  # to know of whom nothing is in the sum
            wire = dataclasses.replace(wire, guard=Guard(float(np.finfo(np.asarray(job.fed.weights).dtype).max)))
        group = received.number("group") if paced else index
        total, results, done = self._run_clients(run, wire, received, asked.clients, download, memory, group)
        answer = Message({"to": received.to})
        tally = {"tally": [int(done.local_steps), int(done.gradients)]}
        accepted = {} if job.hyper.wire.guard is None or uploads.messages else {"accepted": results.accepted}
        counts = np.ones(len(rows), bool) if isinstance(results.accepted, tuple) else results.accepted
        if asked.exchange.server is not None:
            arrays: dict[str, Tree] = {}
            if uploads.messages:
                arrays = {"letters": uploads.packed(uploads.parts(results.upload), up, len(rows))}
            elif masked is not None:
                arrays = {"masked": masked(total, question)}
            else:
                arrays = {"uploads": results.upload} if wire.gathers else {"total": total}
            single = uploads.messages or form.one or wire.gathers
            name = f"exchange {number} of round {index} ({stage}) of run {run.digest}"
            told = {key: received.told.get(key) for key in ("rows", "base", "out", "group")}
            if paced:  # of one client, so that nothing is learned from a difference
                name = f"work {digest_of_text(question, told)} of run {run.digest}"
            leaving = Sum(
                arrays | accepted, tally, self._noted["clients"], counts * np.asarray(asked.clients.weights),
                counts * np.asarray(asked.clients.data_weights), run.train.sizes[rows],
                min(int(asked.clients.steps.min()), int(done.local_steps) // len(rows)),
                f"upload {number} ({stage})", self._data.about_split(run.agreement), bool(single),
                job.hyper.wire.guard is not None, bool(counts.all()), masked is not None,
            )  # fmt: skip
            content = self._content(question, told, digest_of(memory))
            answer = self._gate.leave(Question(name, content, model, received.to), leaving)
            if masked is not None:
                self._sums = dict(list(self._sums.items())[1 - _SUMS :]) | {received.session: (name, model)}
        else:
            answer = Message({"to": received.to} | tally, packed(jax.tree.map(np.asarray, accepted)))
        for k, row in enumerate(rows):
            client_memory = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], results.memory)
            self.store.remember(run.agreement.memory, row, version, [bases[k], *kept[k]], client_memory)
        return answer

    def _run_clients(
        self,
        run: SiteRun,
        wire: Wire,
        received: Received,
        clients: Clients,
        download: Tree,
        memory: list[Tree],
        group: int,
    ) -> tuple[Tree, ClientResult, Tally]:
        """Run the clients; results are without padding. ``group``: what random numbers are from."""
        n, size = run.train.num_clients, len(memory)
        # Their number is random where not all take part; empty places make it one of few, for each of which a program
        # is compiled.
        width = min(1 << (size - 1).bit_length(), n)
        ids = np.asarray(clients.ids, np.int32)
        rows = np.array([run.ids.index(int(each)) for each in ids], np.int32)
        fields = clients._replace(ids=rows, present=np.ones(size, bool))
        padded = Clients(
            *(_padded(np.asarray(leaf), width, value) for leaf, value in zip(fields, empty_place(n), strict=True))
        )
        block = Block(np.where(padded.present, np.arange(width), -1), padded)
        fed = run.examples.take(block)._replace(weights=np.zeros(0), frozen=run.frozen)
        there = block.now(padded, run.examples.streamed)
        there = there._replace(ids=_padded(ids, width, run.plan.num_clients))
        rows_of = jax.tree.map(lambda *leaves: np.stack(leaves + leaves[-1:] * (width - size)), *memory)
        total, results, tally = _together(
            SharedInputs(run.job.hyper.method, wire, download, fed, run.job.key, np.int32(received.round)),
            np.int32(group), rows_of, there,
            stage=received.stage, number=received.exchange, plan=run.plan,
        )  # fmt: skip
        return total, jax.tree.map(lambda leaf: np.asarray(leaf)[:size], results), tally

    def _count_round(self, run: SiteRun, stage: str, index: int) -> None:
        """Count a round, once; refuse it where it is beyond what the owner allows."""
        if stage == "warmup" or index < self._rounds.get(run.digest, 0):
            return
        others = sum(count for each, count in self._rounds.items() if each != run.digest)
        if self.policy.rounds is not None and others + index + 1 > self.policy.rounds:
            raise Refusal(Rule.ROUNDS, self.policy.rounds)
        self._rounds = self.store.count_round(self._rounds, run.digest, index)

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

    def _offer(self, received: Received) -> Message:
        """Draw the secrets of a coming exchange, and give shares of them to the other nodes."""
        run, told = self._run(received.agreement), received.told
        with in_precision(run.plan.precision):
            everyone = received.stage == EVALUATION
            contribution = self._whole(run) if everyone else contribution_of(asked_of(run, received).clients)
        if run.job.hyper.wire.secure is None or not isinstance(told.get("keys"), list):
            raise Refusal(Rule.FORM)
        keys = [masks.Key.of(each) for each in told["keys"]]
        self.policy.check_nodes(len(keys))
        position, threshold = received.number("position"), received.number("threshold")
        offer = self._masking().offer(
            received.session, position, keys, threshold, str(told.get("question")), contribution
        )
        return Message({"to": received.to, "offer": offer._asdict()})

    def _agree(self, received: Received) -> Message:
        """Sign the set of nodes whose sums are added."""
        masking, session = self._masking(), received.session
        survivors = received.numbers("survivors", 2**16)
        if not masking.knows(session) or session not in self._sums:
            return Message({"to": received.to, "lost": True})
        self.policy.check_nodes(len({*survivors}))
        signature = masking.agree(session, survivors)
        # The masks of a run that goes on after a stop are others, and the difference of two sums has none.
        name, model = self._sums[session]
        nodes = masking.parts(session, survivors)
        what = "evaluation" if name.startswith("evaluation") else name.partition(" of round")[0]
        share = Share(f"nodes {what} {model}", "nodes", dict(sorted(nodes.items())))
        content = digest_of_text(sorted(nodes.items()))
        if not self._answered.known(f"the sum over nodes of {name}", content):
            self._gate.check_shares([share])
        self._answered.take(f"the sum over nodes of {name}", content, self.policy, counts=False, shares=[share])
        return Message({"to": received.to, "agreed": signature})

    def _unmask(self, received: Received) -> Message:
        """Reveal shares of the secrets of an exchange, which unmask the sum over the nodes that answered it."""
        masking = self._masking()
        if not masking.knows(received.session):
            return Message({"to": received.to, "lost": True})
        told = masking.unmask(received.session, received.table("agreed", masks.Agreed.of))
        return Message({"to": received.to, "told": told})

    # ---- figures

    def _evaluate(self, received: Received) -> Message:
        """Σ p_i F_i over the clients that are here, its gradient where asked, and figures of the held-out examples."""
        run = self._run(received.agreement)
        early = run.job.plan.stops and received.round <= run.job.rounds  # where a guard ends the run
        if received.stage != EVALUATION or received.exchange:
            raise Refusal(Rule.FORM)
        if received.round not in (0, *run.job.evaluation.stops) and not early:
            raise Refusal(Rule.FORM)
        if run.job.hyper.wire.secure is None:
            return self._evaluated(run, received)
        return self._in_secret(received, 64, self._whole(run), lambda mask: self._evaluated(run, received, mask))

    def _whole(self, run: SiteRun) -> masks.Part:
        """What the node contributes to a secure sum of figures."""
        weight = float(np.sum(np.asarray(run.job.fed.weights)[run.ids], dtype=np.float64))
        return masks.Part(len(run.ids), weight, weight)

    def _evaluated(
        self, run: SiteRun, received: Received, mask: Callable[[np.ndarray, str], np.ndarray] | None = None
    ) -> Message:
        task = run.job.plan.task
        with in_precision(run.plan.precision):
            form = jax.eval_shape(lambda: Vector(task.init(jax.random.key(0))))
            model = unpacked(received.message.tensors, {"model": form}, "the message")["model"]
            weights = np.asarray(run.job.fed.weights)[run.ids]
            parts = {part: pooled_of(tree) for part, tree in run.parts.items()}
            held = {
                part: {tree.name(i): int(tree.sizes[i]) for i in range(tree.num_clients)}
                if isinstance(tree, FederatedData)
                else {"": count(tree)}
                for part, tree in run.parts.items()
            }
            digest = digest_of(model)
            sealed = None
            if mask is not None:
                question = common_question(run.digest, EVALUATION, received.round, 0, digest)
                counts = {part: count(tree) for part, tree in parts.items()}
                form, nodes = figures_form(run.job, run.agreement.parts), len(received.told["offers"])
                sealed = lambda arrays: {  # noqa: E731
                    "masked": mask(masks.encode_figures(figures_vector(task, arrays, counts, form), nodes), question)
                }
            result = Evaluation(
                self.names, weights, run.train.sizes, held,
                lambda: self._figures(run, model, weights, parts),
                lambda bound, unit: self._bounded(run, model, weights, parts, bound, unit),
                lambda values: self._noisy(run, values, parts),
                self._data.about_split(run.agreement), sealed,
            )  # fmt: skip
            name = f"evaluation after round {received.round} of run {run.digest}"
            if run.job.pacing is not None:  # whose steps come out anew after a stop
                name = f"evaluation {digest} after round {received.round} of run {run.digest}"
            if mask is not None:
                self._sums = dict(list(self._sums.items())[1 - _SUMS :]) | {received.session: (name, digest)}
            return self._leave(Question(name, self._content(name, digest), digest, received.to), result)

    def _figures(self, run: SiteRun, model: Vector, weights: Array, parts: Mapping[str, Tree]) -> Tree:
        """The figures of an evaluation."""
        task = run.job.plan.task
        options = {"task": task, "grad_norm": run.job.evaluation.grad_norm, "mesh": run.plan.mesh}
        train: Tree = None
        for piece in run.examples.pieces(weights):
            part = jax.block_until_ready(_train_sums(model, piece._replace(frozen=run.frozen), **options))
            train = part if train is None else jax.tree.map(jnp.add, train, part)
        arrays: dict[str, Tree] = {"train": list(train)}
        for name, tree in parts.items():
            arrays[name] = {
                "figures": _held_out(model, tree, run.frozen, task=task),
                "labels": labels_of(task, tree),
            }
        return arrays

    def _bounded(
        self, run: SiteRun, model: Vector, weights: Array, parts: Mapping[str, Tree], bound: float, unit: str
    ) -> list[Bounded]:
        """The figures of an evaluation, each clipped so that one client, or one row, moves it by so much at most."""
        task, p = run.job.plan.task, np.asarray(weights, float)
        if unit == "rows":
            rows = _clipped(_each_row(task, model.tree, run.train)["loss"], bound)
            losses = np.add.reduceat(rows, run.train.offsets) / run.train.sizes
            found = [Bounded("train_loss", float(p @ losses), bound * float((p / run.train.sizes).max()))]
        else:
            losses = _clipped(np.array(by_client.figures(task, model.tree, run.train)["loss"]), bound)
            found = [Bounded("train_loss", float(p @ losses), bound * float(p.max()))]
        for part, tree in parts.items():
            values = _each_row(task, model.tree, tree) if unit == "rows" else None
            for name, value in _held_out(model, tree, run.frozen, task=task).items():
                top = 1.0 if describe(f"{part}_{name}").unit == "%" else bound
                if values is None:
                    found.append(Bounded(f"{part}_{name}", float(_clipped(np.asarray(value, float), top)), top))
                else:
                    found.append(
                        Bounded(f"{part}_{name}", float(_clipped(values[name], top).mean()), top / count(tree))
                    )
        return found

    def _noisy(self, run: SiteRun, values: Mapping[str, float], parts: Mapping[str, Tree]) -> Tree:
        """The arrays of an evaluation, from figures with noise."""
        real = jnp.zeros(()).dtype
        arrays: dict[str, Tree] = {"train": [np.asarray(values["train_loss"], real)]}
        for part in parts:
            own = {name.partition("_")[2]: each for name, each in values.items() if name.startswith(f"{part}_")}
            arrays[part] = {"figures": {name: np.asarray(each, real) for name, each in own.items()}, "labels": {}}
        return arrays

    def _clients(self, received: Received) -> Message:
        """The figures of a model on each client's own test examples."""
        run = self._run(received.agreement)
        try:
            test = self._tested(run)
            with in_precision(run.plan.precision):
                task = whole_task(run.job.plan.task).trained
                form = jax.eval_shape(lambda: Vector(task.init(jax.random.key(0))))
                model = unpacked(received.message.tensors, {"model": form}, "the message")["model"]
                figures = by_client.figures(task, model.tree, test)
            name, digest = f"figures of clients of run {run.digest}", digest_of(model)
            return self._leave(Question(name, self._content(name, digest), digest, received.to), _table(figures, test))
        except Refusal as refusal:
            return Message({"to": received.to, "withheld": str(refusal)})

    def _alone(self, received: Received) -> Message:
        """Train each client alone, and give the figures of its model on its own test examples."""
        run = self._run(received.agreement)
        try:
            test = self._tested(run)
            with in_precision(run.plan.precision):
                model = unpacked(received.message.tensors, {"model": run.row}, "the message")["model"]
                models = self._trained_alone(run, model, test.names or ())
                figures = by_client.figures(run.job.plan.task.trained, None, test, models)
            name, digest = f"figures of clients alone of run {run.digest}", digest_of(model)
            return self._leave(Question(name, self._content(name, digest), digest, received.to), _table(figures, test))
        except Refusal as refusal:
            return Message({"to": received.to, "withheld": str(refusal)})

    def _trained_alone(self, run: SiteRun, model: Tree, tested: Sequence[str]) -> Tree:
        """The models of the clients with test examples, [k, ...], each trained on its client's own rows."""
        form, memory = run.forms[1][0], [model] * len(self.names)
        for index in range(run.job.rounds):
            cohort, _ = cohort_of(run.job, "exchanges", 0)
            at = [list(cohort.ids).index(each) for each in run.ids]
            fields = {"offsets": np.asarray(run.examples.fed.offsets), "sizes": run.train.sizes.astype(np.int32)}
            clients = Clients(*(leaf[at] for leaf in cohort))._replace(**fields)
            received = Received(Message({"stage": "exchanges", "round": index, "exchange": 0}), "")
            wire = dataclasses.replace(run.job.hyper.wire, lossy=False)
            _, results, _ = self._run_clients(run, wire, received, clients, form.download, memory, index)
            memory = [jax.tree.map(lambda leaf, k=k: leaf[k], results.memory) for k in range(len(memory))]
        kept = [memory[k] for k, name in enumerate(self.names) if name in tested]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *kept).tree

    def _tested(self, run: SiteRun) -> FederatedData:
        """The test examples by client; raises the reason why figures of single clients may not leave."""
        test = run.held["test"]
        if run.job.hyper.wire.secure is not None:
            raise Refusal(Rule.TABLE)
        if not isinstance(test, FederatedData):
            raise Refusal(Rule.NOT_TESTED)
        self.policy.check_table(int(test.sizes.min()))
        return test

    def _leave(self, question: Question, result: Evaluation | Table) -> Message:
        gate = self._gate
        answer = gate.leave(question, result)
        if gate.noised:
            self._noted["noise"] = {"on": sorted(gate.noised), "noise": self.policy.noise, "bound": self.policy.bound}
        return answer

    # ---- what an answer depends on

    def _content(self, *parts: Unknown) -> str:
        """The digest of a question about the data that are here, under the owner's noise."""
        rules = self.policy
        noise = [rules.noise, rules.bound, rules.unit, rules.clip, rules.update_noise]
        return digest_of_text(self._data.about, noise, *parts)

    def _log(self, message: Message, answer: Message, seconds: float) -> None:
        """Log a message: who asked what, and what left."""
        more = dict(self._noted)
        if self._answered.loss:
            more["epsilon"] = round(self.policy.spent(self._answered.loss, self._answered.tail), 4)
        digest = message.head.get("agreement")
        if isinstance(digest, str) and digest in self._runs:
            more |= {"run": digest, "server": self._runs[digest].server}
        write_line(self.store, message, answer, seconds, more)


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


def _table(figures: Mapping[str, Sequence[float]], test: FederatedData) -> Table:
    return Table({name: np.array(values) for name, values in figures.items()}, test.sizes)


def _padded(leaf: Array, width: int, value: int) -> np.ndarray:
    return np.concatenate([leaf, np.full(width - len(leaf), value, leaf.dtype)])


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
