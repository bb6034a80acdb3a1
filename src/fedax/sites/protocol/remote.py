"""Real clients, the server's side: each client is at a node, which answers for its clients with one weighted sum.

The server has no examples. The node's side is :mod:`fedax.sites.protocol.site`; a transport of
:mod:`fedax.sites.protocol.messages` carries the messages. Between rounds the state has, in the place of client memory,
its version at the node.

A round is a generator that yields messages to the nodes and is sent their answers. So the first messages of a round can
travel together with the evaluation of the model that the round begins with: a message to real clients takes a while,
however small it is.
"""

import contextlib
import dataclasses
import functools
import math
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import HEARD, TIME
from fedax.contract.compression import Compressor, Identity
from fedax.contract.schedule import resolve
from fedax.contract.types import Tree, Unknown
from fedax.engine.evaluate import measured, model_after
from fedax.engine.job import Job
from fedax.engine.layers import compressors_of
from fedax.engine.loop import Clients, Hyper, Request, Response, State, Tally, draw_rounds, exchanges
from fedax.engine.places.device import first_states, no_exclusions
from fedax.engine.places.host import (
    HostServer,
    downloaded,
    read_encoded,
)
from fedax.engine.places.layout import Layout
from fedax.engine.plan import ExchangeForm
from fedax.errors import NodeError
from fedax.federation.participation import Full
from fedax.metrics import AUC
from fedax.metrics.base import Metric, added
from fedax.sites.protocol import masks
from fedax.sites.protocol.agreement import (
    EVALUATION,
    Agreement,
    as_means,
    check_figures,
    common_question,
    digest_of,
    digest_of_text,
    figures_form,
    figures_tree,
    precise_versions,
    program_of,
    shared_sizes,
    traced,
    version_after,
)
from fedax.sites.protocol.answered import Repeated
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message, joined, packed, parted, unpacked
from fedax.sites.protocol.summed import NodeAnswers, NodeMessages, SecureSums
from fedax.tasks.task import Task
from fedax.wire.wire import Wire

_PARTING = 30.0  # seconds to wait for nodes when a run is over


class _Prefetched:
    """A round whose first messages go with the evaluation before it.

    Args:
        start: the number of the round.
        server: the server's state that it begins with.
        round: the generator of the round.

    Attributes:
        messages: those that it has yielded last; none when it is over.
        answers: the answers to them.
        state: the state after the round, when it is over.
        wire: the bytes of its messages on the wire so far, down and up; they count when the round is run.
        seconds: that it took so far, with the evaluation; they count likewise.
    """

    def __init__(self, start: int, server: Tree, round: Generator[NodeMessages, NodeAnswers, State]):
        self.start, self.server, self.round = start, server, round
        self.messages: NodeMessages = {}
        self.answers: NodeAnswers = {}
        self.state: State | None = None
        self.wire, self.seconds = (0, 0), 0.0

    def step(self, answers: NodeAnswers | None) -> None:
        """Go on to its next messages, or to its end; ``answers``: those to its last messages, ``None`` at its start."""
        if self.state is not None:
            return
        try:
            self.messages = next(self.round) if answers is None else self.round.send(answers)
        except StopIteration as finished:
            self.messages, self.state = {}, finished.value


def _together(task: Task, results: Sequence[tuple[int, Mapping[str, Tree]]]) -> dict[str, Tree]:
    """The figures of a held-out part over all nodes; ``results``: each node's number of examples, and its answer."""
    number = sum(n for n, _ in results)
    labels = {
        name: functools.reduce(task.whole_metrics[name].joined, [answer["labels"][name] for _, answer in results])
        for name in results[0][1]["labels"]
    }
    figures: dict[str, Tree] = {}
    for name in results[0][1]["figures"]:
        if isinstance(task.metrics.get(name), Metric):
            figures[name] = functools.reduce(added, [answer["figures"][name] for _, answer in results])
        else:
            figures[name] = sum(n * float(answer["figures"][name]) for n, answer in results) / number
    return {"figures": figures, "labels": labels}


def _parts_at_nodes(job: Job) -> list[str]:
    """The parts of the held-out data that are at the nodes, and not here."""
    return [part for part, number in job.census.held.items() if number and part not in job.evaluation.held]


class Figures(NamedTuple):
    """What nodes answer to an evaluation, together.

    Attributes:
        train: Σ p_i F_i, and its gradient where asked, over the clients that were heard.
        held: held-out part -> the figures, and sums of the labels.
        heard: the share of the weight of the clients that were heard.
    """

    train: list[Tree]
    held: dict[str, dict[str, Tree]]
    heard: float


class Remote(HostServer):
    """The program of one job whose clients are at nodes, and the place that answers its requests.

    Between two rounds ``state.memory`` is [N, 2]: the number of the run, which is random, and the version of each
    client's memory at its node.

    Args:
        job: made from the fleet's census.
        fleet: the nodes.
        config: the configuration in plain JSON, from which nodes derive the same job.
        number: the number of the run, random, below 2^62; a run that continues has the same.
        resumes: whether there is a checkpoint to go on from.

    Raises:
        NodeError: a node objects to the run.
    """

    def __init__(self, job: Job, fleet: Fleet, config: dict[str, Unknown], number: int, resumes: bool = False):
        super().__init__(job)
        self.fleet, self._resumes = fleet, resumes
        dry = traced(job)
        self._forms, self._number = dry.forms, number
        self._agreement = agreement_of(job, fleet, config, number, program_of(dry))
        self._run = self._agreement.digest
        self._older_versions: list[np.ndarray] = []  # at the two checkpoints before the last
        self._prefetched: _Prefetched | None = None
        self._sums: dict[tuple[str, int, int], tuple[Tree, Tree]] = {}
        self._done = np.zeros(3, np.int64)
        self._traffic_before = (fleet.transport.sent, fleet.transport.received, fleet.waited)
        self._seconds = 0.0  # that rounds took since the last look
        self.counts: dict[str, Tree] = {}  # of the last evaluation: part -> counts of scores
        check_figures(job)
        checked = fleet.agree(self._agreement, job.plan.task.frozen)
        self._secure: SecureSums | None = None
        if job.hyper.wire.secure is not None:
            masks.require()
            keys = {}
            for which, head in checked.items():
                try:
                    keys[which] = masks.Key.of(head.get("key"))
                except NodeError as error:
                    raise NodeError(f"clients {fleet.names(which)}: {error}") from error
            self._secure = SecureSums(fleet, keys, job.hyper.wire.secure.threshold, self._opened)

    # ---- what drive() asks

    def prepare(self) -> tuple[State, Tally]:
        """The state before round 0, and the tally of the warm-up; only its form, if a checkpoint replaces it."""
        job = self.job
        server, _ = first_states(job.hyper.method, job.x)
        versions = np.zeros((job.plan.num_clients, 2), np.int64)
        versions[:, 0] = self._number
        state = State(server, versions, jax.tree.map(np.array, no_exclusions(job.plan)))
        if not self._resumes and resolve(job.hyper.method, 0).warmup():
            everyone, began = job.hyper._replace(participation=Full()), time.perf_counter()
            state = self._run_round(self._round(state, 0, "warmup", everyone))
            self._seconds += time.perf_counter() - began
        return state, self._tally()

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        """Run rounds start … stop − 1: the new state, and the tally."""
        for index in range(start, stop):
            began = time.perf_counter()
            prefetched, self._prefetched = self._prefetched, None
            if prefetched is not None and prefetched.start == index and prefetched.server is state.server:
                state = prefetched.state or self._run_round(prefetched.round, prefetched.answers)
                self._traffic_before = (
                    self._traffic_before[0] - prefetched.wire[0],
                    self._traffic_before[1] - prefetched.wire[1],
                    self._traffic_before[2],
                )
                self._seconds += prefetched.seconds
            else:
                state = self._run_round(self._round(state, index, "exchanges", self.job.hyper))
            self._seconds += time.perf_counter() - began
        return state, self._tally()

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        """The figures of an evaluation after ``index`` rounds, over the clients whose nodes answer.

        ``heard`` is their share of the weight. Where it is not 1, F is the mean over them. The first messages of the
        next round are sent together with the evaluation, if it is certain that there is a next round.
        """
        job = self.job
        model = model_after(job.hyper.method, state.server, index)[0]
        evaluation = self._evaluation(model, index)
        train, held, heard = self._evaluate_and_prefetch(evaluation, state, index, model)
        self.counts = {
            part: of_part["figures"]["auc"]["counts"]
            for part, of_part in held.items()
            if isinstance(job.plan.task.metrics.get("auc"), AUC) and not np.any(of_part["figures"]["auc"]["lost"])
        }
        (row,) = measured(job, state.server, index, train, held)
        return [row | {HEARD: heard}]

    def _evaluation(self, model: Tree, index: int) -> Generator[NodeMessages, NodeAnswers, Figures]:
        """The figures of a model; yields messages to the nodes, and is sent their answers."""
        job, every = self.job, range(len(self.fleet))
        head = {
            "kind": "evaluate", "agreement": self._run, "stage": EVALUATION, "round": index, "exchange": 0, "told": {},
        }  # fmt: skip
        messages = dict.fromkeys(every, Message(head, packed({"model": model})))
        forms = figures_form(job, _parts_at_nodes(job))
        if self._secure is not None:
            return (yield from self._secure_figures(messages, digest_of(model), forms))
        answers = yield messages
        arrays: dict[int, dict[str, Tree]] = {}
        why = f"no node answered in {self.fleet.timeout:g} s, to evaluate the model of round {index}"
        for which, answer in answers.items():
            if answer is not None and "repeated" in answer.head:
                why = f"clients {self.fleet.names(which)}: {answer.head['repeated']}; begin a new run"
            elif answer is not None:
                wanted = {part: form for part, form in forms.items() if part in ("train", *self.fleet.held(which))}
                arrays[which] = self._opened(which, answer, wanted)
        if not arrays:
            raise NodeError(why)
        sums = [arrays[which]["train"] for which in sorted(arrays)]
        held = {}
        for part in forms.keys() - {"train"}:
            answered = {which: arrays[which][part] for which in sorted(arrays) if part in arrays[which]}
            results = [(self.fleet.held(which)[part], answer) for which, answer in answered.items()]
            if results:
                held[part] = _together(job.plan.task, results)
        return self._heard(functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), sums), held, arrays)

    def _secure_figures(
        self, messages: NodeMessages, model: str, forms: dict[str, Tree]
    ) -> Generator[NodeMessages, NodeAnswers, Figures]:
        """The figures as a secure sum: of all nodes that answer together, and of none alone."""
        assert self._secure is not None
        head = messages[0].head
        question = common_question(self._run, EVALUATION, head["round"], 0, model)
        size = 1 + sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(forms))
        try:
            total, heads = yield from self._secure.sum(messages, question, size, 64, lambda which, why: None)
        except Repeated as error:
            text = f"the model of round {head['round']} was evaluated over other nodes before, or is another one"
            raise NodeError(f"{text} ({error}); --resume goes on when they are back") from error
        found = figures_tree(masks.decode_figures(total), forms)
        held = {}
        for part, answer in found.items():
            number = sum(self.fleet.held(which).get(part, 0) for which in heads)
            if part != "train" and number:
                held[part] = answer | {"figures": as_means(self.job.plan.task, answer["figures"], number)}
        return self._heard(found["train"], held, heads)

    def _heard(self, train: list[Tree], held: dict[str, dict[str, Tree]], answered: Collection[int]) -> Figures:
        """Figures over the nodes that answered, as if there were no others."""
        share = sum(float(self.job.census.weights[self.fleet.clients(which)].sum()) for which in answered)
        heard = share if len(answered) < len(self.fleet) else 1.0
        real = np.asarray(self.job.fed.weights).dtype
        scaled = [jax.tree.map(lambda leaf: np.asarray(leaf / heard, real), each) for each in train]
        return Figures(scaled, held, heard)

    def traffic(self) -> dict[str, Unknown]:
        """Bytes on the wire, seconds of waiting and seconds of rounds, since the last call."""
        now = (self.fleet.transport.sent, self.fleet.transport.received, self.fleet.waited)
        down, up, waited = (new - old for new, old in zip(now, self._traffic_before, strict=True))
        self._traffic_before = now
        seconds, self._seconds = self._seconds, 0.0
        return {"wire_down": int(down), "wire_up": int(up), "waited": float(waited), TIME: seconds}

    def forget(self) -> None:
        """Tell the nodes that the run is over, and that they can delete its memory."""
        messages = dict.fromkeys(range(len(self.fleet)), Message({"kind": "forget", "agreement": self._run}))
        with contextlib.suppress(NodeError):  # the run is over, whatever a node says now
            for _ in self.fleet.ask(messages, min(self.fleet.timeout, _PARTING)):
                pass

    # ---- a round

    def _run_round(
        self, round_: Generator[NodeMessages, NodeAnswers, State], answers: NodeAnswers | None = None
    ) -> State:
        """Send a round's messages to the nodes until it ends; ``answers``: those to messages that were sent already."""
        try:
            messages = next(round_) if answers is None else round_.send(answers)
            while True:
                messages = round_.send(dict(self.fleet.ask(messages)))
        except StopIteration as finished:
            state: State = finished.value
            return state

    def _evaluate_and_prefetch(
        self, evaluation: Generator[NodeMessages, NodeAnswers, Figures], state: State, index: int, model: Tree
    ) -> Figures:
        """The figures of an evaluation; the messages of the next round are sent together with its own.

        Not if the figures, or a guard, may end the run: clients should not work for a round that does not take place.
        """
        job = self.job
        certain = index < job.rounds and job.until is None and not job.plan.stops
        round_ = None
        if certain and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model)):
            round_ = _Prefetched(index, state.server, self._round(state, index, "exchanges", job.hyper))
        began, messages = time.perf_counter(), next(evaluation)
        if round_ is not None:
            round_.step(None)
        while True:
            answers = self._ask_both(messages, round_)
            try:
                messages = evaluation.send(answers)
            except StopIteration as finished:
                figures: Figures = finished.value
                break
            if round_ is not None:
                round_.step(round_.answers)
        if round_ is not None:
            round_.seconds = time.perf_counter() - began
            self._prefetched = round_
        return figures

    def _ask_both(self, messages: NodeMessages, round_: "_Prefetched | None") -> NodeAnswers:
        """The answers to the messages of an evaluation; those to the ones of the next round are left with it."""
        first = {} if round_ is None else round_.messages
        joined_messages = {
            which: joined([each[which] for each in (messages, first) if which in each]) for which in messages | first
        }
        sent, received = self.fleet.transport.sent, self.fleet.transport.received
        answers: NodeAnswers = {}
        of_round: NodeAnswers = {}
        round_bytes = [0.0, 0.0]  # of the bytes, what the round's part is
        all_bytes = [0, 0]
        for which, answer in self.fleet.ask(joined_messages):
            owners = [each for each, sent_ in ((answers, messages), (of_round, first)) if which in sent_]
            answer_name = f"clients {self.fleet.names(which)}: the answer"
            parts = [None] * len(owners) if answer is None else parted(answer, len(owners), answer_name)
            for owner, part in zip(owners, parts, strict=True):
                owner[which] = part
            if which in first:
                round_bytes[0] += first[which].size
                round_bytes[1] += 0 if (part := of_round[which]) is None else part.size
            all_bytes[0] += joined_messages[which].size
            all_bytes[1] += 0 if answer is None else answer.size
        traffic = self.fleet.transport.sent - sent, self.fleet.transport.received - received
        # Arrays that are equal go once, so that the round's part alone may be larger than both parts joined.
        shares = [min(1.0, part / all_) if all_ else 0.0 for part, all_ in zip(round_bytes, all_bytes, strict=True)]
        if round_ is not None and first:
            down, up = (int(n * share) for n, share in zip(traffic, shares, strict=True))
            round_.answers, round_.wire = of_round, (round_.wire[0] + down, round_.wire[1] + up)
            before = self._traffic_before
            self._traffic_before = before[0] + down, before[1] + up, before[2]
        return answers

    def _round(self, state: State, index: int, stage: str, hyper: Hyper) -> Generator[NodeMessages, NodeAnswers, State]:
        """A round, or the warm-up; yields messages to the nodes, and is sent their answers."""
        job, plan = self.job, self.job.plan
        indices = np.array([index], np.int32)
        drawn = draw_rounds(hyper, job.fed, job.key, indices, plan=plan, stage=stage)
        clients, round_ = jax.tree.map(lambda leaf: leaf[0], drawn)
        self.index, versions = index, state.memory[:, 1]
        # A checkpoint is made after every round, and two are kept: at the start of this round, and of the one before.
        # That of the start may still have to be written, so a third version is kept.
        older = [*self._older_versions, versions, versions][:2]
        self._kept_versions = np.stack([versions, *older], axis=1)
        self._versions = versions.copy()
        self._answered = clients.present.copy()  # those that answered so far
        method = resolve(job.hyper.method, index)
        loop = exchanges(stage, method, clients, round_, state.server, job.hyper.wire, plan.watched, self)
        request = next(loop)
        while True:
            response = yield from self._answer(request)
            try:
                request = loop.send(response)
            except StopIteration as finished:
                end = finished.value
                break
        counted = clients.present & (np.asarray(end.counts) & ~np.asarray(end.skipped))
        ids = clients.ids[counted]
        memory = state.memory.copy()
        memory[ids, 1] = self._versions[ids]
        self._older_versions = [versions, *self._older_versions[:1]]
        self._done[0] += int(self._answered.sum())
        exclusions = state.exclusions.after(clients, end) if state.exclusions else ()
        return State(end.server, memory, exclusions)

    def _answer(self, request: Request) -> Generator[NodeMessages, NodeAnswers, Response]:
        """Ask the nodes of the clients; the response is the sum of their answers."""
        wire, cohort = request.wire, np.arange(len(request.counts))
        if request.at is not None:  # a cohort of its own
            request, cohort = request._replace(clients=request.clients.alone(request.at)), cohort[request.at][None]
        form, size, accepted = self._form(request.stage, request.number), len(cohort), self._answered[cohort]
        positions_asked = np.flatnonzero(accepted)
        at_nodes = self._by_node(request.clients, positions_asked)
        download = self._download(request)
        layout = Layout.of(form.upload, form.first)
        encoded = layout.nothing(size) if layout.messages else []
        if wire.secure is not None and request.exchange.server is not None:
            try:
                total, uploads = (yield from self._secure_sum(request, at_nodes, download)), ()
            except Repeated:  # asked over other nodes before the server was stopped: the round has no sum
                total, uploads = _zeros(self._summed(request, 0))
                self._answered[positions_asked] = False
            accepted &= self._answered
            at_nodes = {}
        else:
            total, uploads = ((), ()) if layout.messages else _zeros(self._summed(request, size))
        exchange_messages = {which: self._exchange_message(request, download, *at) for which, at in at_nodes.items()}
        answers = (yield exchange_messages) if exchange_messages else {}
        for which in sorted(at_nodes):
            positions, _ = at_nodes[which]
            answer = answers[which]
            if answer is None or "repeated" in answer.head:
                self._node_lost(which, None if answer is None else str(answer.head["repeated"]))
                self._answered[cohort[positions]] = accepted[positions] = False
                continue
            arrays = self._read(which, answer, request, len(positions))
            self._versions[request.clients.ids[positions]] = self._version(request)
            accepted[positions] = arrays.get("accepted", True) & self._plausible(arrays, len(positions))
            if "total" in arrays and not accepted[positions].any():
                continue
            if "total" in arrays:
                total = jax.tree.map(np.add, total, arrays["total"])
            if "uploads" in arrays:
                _write_rows(uploads, positions, arrays["uploads"])
            if "letters" in arrays:
                answer_name = f"clients {self.fleet.names(which)}: the answer"
                _write_rows(encoded, positions, layout.unpacked(arrays["letters"], self._up, answer_name))
        if layout.messages and request.exchange.server is not None:
            accepted_clients = request.clients.only(accepted)
            total, answer = read_encoded(
                self.inputs(request), encoded, accepted_clients, layout=layout, **self.static(request)
            )
            uploads = answer.upload
            if wire.guard is not None:
                accepted = accepted & np.asarray(answer.accepted)
        return Response(total, uploads, accepted if wire.excludes else ())

    def _secure_sum(
        self, request: Request, at_nodes: Mapping[int, tuple[np.ndarray, np.ndarray]], download: Tree
    ) -> Generator[NodeMessages, NodeAnswers, Tree]:
        """The masked sum over the nodes that answer; the server learns only that."""
        assert self._secure is not None and request.wire.secure is not None
        zero, _ = _zeros(self._summed(request, 0))
        if not at_nodes:
            return zero
        asked = {which: self._exchange_message(request, download, *at) for which, at in at_nodes.items()}
        model = digest_of(jax.tree.map(np.asarray, download))
        question = common_question(self._run, request.stage, self.index, request.number, model)

        def lost(which: int, why: str | None) -> None:
            self._node_lost(which, why)
            self._answered[at_nodes[which][0]] = False

        bits, size = request.wire.secure.bits, masks.flat(zero).size
        summed, heads = yield from self._secure.sum(asked, question, size, bits, lost)
        for which, head in heads.items():
            self._count_done(which, head)
            self._versions[request.clients.ids[at_nodes[which][0]]] = self._version(request)
        return masks.tree_of(summed, zero)

    def _version(self, request: Request) -> int:
        """The version of a client's memory after an exchange."""
        return version_after(request.stage, self.index, request.number)

    def _by_node(self, clients: Clients, positions_asked: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Node -> the positions of its clients in the cohort, and their rows at the node."""
        by_node = {}
        for which in range(len(self.fleet)):
            places = {int(id_): k for k, id_ in enumerate(self.fleet.clients(which))}
            positions = np.array([at for at in positions_asked if int(clients.ids[at]) in places], np.int64)
            if len(positions):
                by_node[which] = positions, np.array([places[int(clients.ids[at])] for at in positions], np.int32)
        return by_node

    def _download(self, request: Request, group: int | None = None) -> Tree:
        """The download as it is on the wire. ``group``: what its random numbers are from; default: the round."""
        job, down = self.job, self.job.hyper.wire.down
        if down is None:
            method = resolve(job.hyper.method, self.index)
            return (request.exchange.download or method.download)(request.server)
        inputs = self.inputs(request)
        if group is not None:
            method = resolve(job.hyper.method, self.index)
            inputs = (inputs[0]._replace(method=method), *inputs[1:3], np.int32(group))
        tree = downloaded(inputs, stage=request.stage, number=request.number)
        layout = Layout.of(self._form(request.stage, request.number).download)
        return layout.packed(jax.tree.map(lambda leaf: np.asarray(leaf)[None], layout.parts(tree)), down, 1)

    def _form(self, stage: str, number: int) -> ExchangeForm:
        """The form of an exchange."""
        return self._forms[0 if stage == "warmup" else 1][number]

    def _summed(self, request: Request, size: int) -> tuple[Tree, Tree]:
        """The forms of an exchange's sum and, where uploads are looked at one by one, of ``size`` uploads.

        They are the same in all rounds, and are kept: tracing them in each round took most of the server's time.
        """
        key = request.stage, request.number, size
        if key not in self._sums:
            self._sums[key] = _summed(self._form(*key[:2]), size, request.wire)
        return self._sums[key]

    @property
    def _up(self) -> Compressor:
        return compressors_of(self.job.hyper.method, self.job.hyper.wire)[1] or Identity()

    def _exchange_message(
        self, request: Request, download: Tree, positions: np.ndarray, rows: np.ndarray, **told: int
    ) -> Message:
        """The message to a node in an exchange: which one, the download, and what the node cannot derive."""
        clients = request.clients
        ids = clients.ids[positions]
        facts: dict[str, Unknown] = {
            "rows": rows.tolist(), "base": self._versions[ids].tolist(), "keep": self._kept_versions[ids].tolist(),
        }  # fmt: skip
        if self.job.hyper.wire.guard is not None and request.number:
            facts["out"] = rows[clients.weights[positions] == 0].tolist()
        head = {
            "kind": "exchange", "agreement": self._run, "stage": request.stage, "round": self.index,
            "exchange": request.number, "told": facts | told,
        }  # fmt: skip
        return Message(head, packed({"download": jax.tree.map(np.asarray, download)}))

    def _read(self, which: int, answer: Message, request: Request, size: int) -> dict[str, Tree]:
        """The arrays of a node's answer in an exchange."""
        wire, form = request.wire, self._form(request.stage, request.number)
        wanted: dict[str, Tree] = {}
        layout = Layout.of(form.upload, form.first)
        total, uploads = ((), ()) if layout.messages else self._summed(request, size)
        heard = request.exchange.server is not None
        if heard and layout.messages:
            wanted = {"letters": layout.on_wire(self._up, size)}
        elif heard:
            wanted = {"uploads": uploads} if wire.gathers else {"total": total}
        if wire.guard is not None and not layout.messages:
            wanted["accepted"] = jax.ShapeDtypeStruct((size,), bool)
        arrays = self._opened(which, answer, wanted)
        self._count_done(which, answer.head)
        return arrays

    def _count_done(self, which: int, head: dict[str, Unknown]) -> None:
        """Count the work that a node reports for its clients."""
        tally = head.get("tally")
        if not isinstance(tally, list) or len(tally) != 2 or not all(type(n) is int and 0 <= n < 2**31 for n in tally):
            raise NodeError(f"clients {self.fleet.names(which)}: the answer counts {tally!r} steps and gradients")
        self._done[1:] += tally

    def _opened(self, which: int, answer: Message, wanted: Mapping[str, Tree]) -> dict[str, Tree]:
        """The arrays of an answer."""
        return unpacked(answer.tensors, wanted, f"clients {self.fleet.names(which)}: the answer")

    def _plausible(self, arrays: dict[str, Tree], size: int) -> np.ndarray:
        """[size] whether uploads, or their sum, are within the guard's limits, whatever the node says of them."""
        guard = self.job.hyper.wire.guard
        fine = np.ones(size, bool)
        if guard is None:
            return fine
        most = float(guard.largest) * size * self.job.plan.num_clients
        for leaf in jax.tree.leaves(arrays.get("total")):
            fine &= bool(np.all(np.abs(leaf) <= most))
        for leaf in jax.tree.leaves(arrays.get("uploads")):
            fine &= np.all(np.abs(leaf.reshape(size, -1)) <= float(guard.largest), axis=1)
        return fine

    def _node_lost(self, which: int, repeated: str | None = None) -> None:
        """Handle a node that did not answer in time: raise unless the round can continue without it, or be skipped.

        ``repeated``: why it refuses to answer this exchange again, after it did before the server was stopped.
        """
        text = f"clients {self.fleet.names(which)}: no answer in {self.fleet.timeout:g} s, in round {self.index}"
        way_on = "--resume goes on when they are back"
        if repeated is not None:
            text, way_on = f"clients {self.fleet.names(which)}: {repeated}", "begin a new run"
        if not self.job.hyper.wire.lossy:
            name = self.job.hyper.method.traits().name or type(self.job.hyper.method).__name__
            raise NodeError(f"{text}, and {name} is defined for rounds with all clients only; {way_on}")
        if self.fleet.lost:
            raise NodeError(f"{text}, nor of any other; {way_on}")

    def _tally(self) -> Tally:
        """The work done since the last call."""
        tally, self._done = Tally(*self._done.tolist()), np.zeros(3, np.int64)
        return tally


def agreement_of(job: Job, fleet: Fleet, config: dict[str, Unknown], number: int, program: str) -> Agreement:
    """The agreement of a run over the nodes of a fleet.

    Args:
        job, fleet, config, number: as of :class:`Remote`.
        program: the digest of the job's program.
    """
    whole, frozen = fleet.whole.census, job.plan.task.frozen
    weights: str | tuple[float, ...] = tuple(map(float, whole.weights))
    for name, usual in (
        ("sizes", whole.sizes / whole.sizes.sum()),
        ("uniform", np.full(len(whole.sizes), 1 / len(whole.sizes))),
    ):
        weights = name if np.array_equal(whole.weights, usual) else weights
    return Agreement(
        number, job.seed, config, whole.names, shared_sizes(job, whole.sizes), weights, fleet.split,
        tuple(_parts_at_nodes(job)), program, digest_of(frozen) if jax.tree.leaves(frozen) else None,
        precise_versions(),
    )  # fmt: skip


def agreed(fleet: Fleet, config: dict[str, Unknown], seed: int, make: Callable[[], Job]) -> Agreement:
    """The agreement that the nodes have of a run, or a new one; ``make``: makes the run's job."""
    known = fleet.whole.agreements.get(digest_of_text(config, seed, fleet.split))
    if known is None:
        job = make()
        known = agreement_of(job, fleet, config, secrets.randbits(62), program_of(traced(job)))
        fleet.agree(known, job.plan.task.frozen)
    return known


def _write_rows(all_: Tree, positions: np.ndarray, part: Tree) -> None:
    """Write the rows of some clients of the cohort."""
    jax.tree.map(lambda whole, rows: whole.__setitem__(positions, rows), all_, part)


def _zeros(forms: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Zero arrays of these forms, to add to, or to write into."""
    total, uploads = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), forms)
    return total, uploads


def _summed(form: ExchangeForm, size: int, wire: Wire) -> tuple[Tree, Tree]:
    """The forms of a sum of uploads and, where they are looked at one by one, of the uploads of ``size`` clients."""
    if wire.gathers:
        return (), jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), form.upload)
    none = jnp.zeros(())
    usual = dataclasses.replace(wire, faults=None)  # faults do not change a form
    entering = lambda upload, download: usual.sent(upload, np.zeros((), np.int32), 1, download)[0]  # noqa: E731
    upload = jax.eval_shape(entering, form.upload, form.download)
    return jax.eval_shape(lambda upload: wire.weighted(upload, none, none), upload), ()
