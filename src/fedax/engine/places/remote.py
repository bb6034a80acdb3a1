"""Real clients: each is at a node, which answers for its clients with one weighted sum; the server has no examples.

What a node does is in :mod:`fedax.engine.places.site`; who carries the messages is a transport of
:mod:`fedax.engine.places.nodes`. Between rounds the state has, in the place of client memory, its version at the node.

A round is a generator that yields what it asks the nodes and is sent what they answer. So the first messages of a round
can travel with the evaluation of the model that the round begins with: a message to real clients takes a while, however
small it is.
"""

import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.compression import Compressor, Identity
from fedax.contract.schedule import resolve
from fedax.contract.types import Tree, Unknown
from fedax.engine.checks import labels_of
from fedax.engine.evaluate import columns, held_out, measured, model_after
from fedax.engine.job import Job
from fedax.engine.layers import compressors_of
from fedax.engine.loop import Clients, Hyper, Request, Response, State, Tally, exchanges
from fedax.engine.places import masks
from fedax.engine.places.answered import Repeated
from fedax.engine.places.device import no_exclusions
from fedax.engine.places.fleet import Fleet
from fedax.engine.places.host import (
    HostServer,
    downloaded,
    draw_rounds,
    first_states,
    read_encoded,
)
from fedax.engine.places.layout import Layout
from fedax.engine.places.nodes import Message, joined, packed, parted, unpacked
from fedax.engine.places.site import (
    ECHOED,
    Problem,
    asked_form,
    client_round,
    exchange_name,
    order,
    part_of,
    program_of,
    question_in_common,
)
from fedax.engine.plan import ExchangeForm
from fedax.errors import NodeError
from fedax.federation.participation import Full
from fedax.metrics.base import Metric, added
from fedax.tasks.task import Task
from fedax.wire.wire import Wire

_PARTING = 30.0  # seconds that nodes have to hear that a run is over

Asked = dict[int, Message]  # by node
Answers = dict[int, Message | None]  # by node; None of one that does not answer in time


class _Ahead(NamedTuple):
    """A round whose first messages went with the evaluation before it.

    Attributes:
        start: the number of the round.
        server: the server's state that it begins with.
        round: the generator, which has yielded these messages.
        answers: to them.
        wire: the bytes that they took on it, down and up; they count when the round is run.
    """

    start: int
    server: Tree
    round: Generator[Asked, Answers, State]
    answers: Answers
    wire: tuple[int, int]


def _held_out_form(job: Job) -> dict[str, Tree]:
    """What a node answers of its held-out examples: means and sums, and sums of the labels alone."""
    task, examples = job.plan.task, job.census.examples(1)
    found = jax.eval_shape(lambda x, examples: held_out(task, x, examples, None), job.x, examples)
    labels = labels_of(task, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), examples))
    return {"figures": found, "labels": labels}


def _together(task: Task, tested: Sequence[tuple[int, Mapping[str, Tree]]]) -> dict[str, Tree]:
    """The figures of a part of the held-out examples of all nodes; of each how many it has, and what it answered."""
    number = sum(n for n, _ in tested)
    labels = functools.reduce(added, [answer["labels"] for _, answer in tested])
    figures: dict[str, Tree] = {}
    for name in tested[0][1]["figures"]:
        if isinstance(task.metrics.get(name), Metric):
            figures[name] = functools.reduce(added, [answer["figures"][name] for _, answer in tested])
        else:
            figures[name] = sum(n * float(answer["figures"][name]) for n, answer in tested) / number
    return {"figures": figures, "labels": labels}


def _at_nodes(job: Job) -> list[str]:
    """The parts of the held-out data that are at the nodes, and not here."""
    return [part for part, number in job.census.held.items() if number and part not in job.held]


def _leaving(job: Job) -> list[str]:
    """The measures of a job to which nodes contribute."""
    parts = tuple(f"{part}_" for part in _at_nodes(job))
    return [name for name in columns(job) if name in ("train_loss", "grad_norm_sq") or name.startswith(parts)]


class Remote(HostServer):
    """The program of one job whose clients are at nodes, and the place that answers in its rounds.

    Between two rounds ``state.memory`` is [N, 3]: the number of the run, which is random, and the version of each
    client's memory: the number of the process of the server that asked for it, random too, and a count.

    Args:
        job: made from the fleet's census.
        fleet: the nodes.
        problem: the configuration in plain JSON, from which nodes make the method, the task and the wire.
        number: of the run, below 2^62, random; a run that was stopped goes on under the same.
        resumes: whether there is a checkpoint to go on from.

    Raises:
        NodeError: something speaks against the run at a node.
    """

    def __init__(self, job: Job, fleet: Fleet, problem: dict[str, Unknown], number: int, resumes: bool = False):
        super().__init__(job)
        self.fleet, self._resumes = fleet, resumes
        made = Problem(job.hyper.method, job.plan.task, job.hyper.wire)
        found = client_round(made, job.plan, job.census.example, job.x)
        self._forms = found.forms
        self._order = order(job.plan, problem, job.seed, program_of(found), fleet.deal)
        self._process, self._count, self._run, self._number = secrets.randbits(62), 0, 0, number
        self._before: list[np.ndarray] = []  # the versions at the two checkpoints before the last
        self._ahead: _Ahead | None = None
        self._sums: dict[tuple[str, int, int], tuple[Tree, Tree]] = {}
        self._done = np.zeros(3, np.int64)
        self._seen = (fleet.transport.sent, fleet.transport.received, fleet.waited)
        # Of a run that goes on nodes have counted some rounds; whether they allow the others shows then.
        told = fleet.check(self._order, _leaving(job), 0 if resumes else job.rounds, job.plan.task.frozen)
        self._keys: dict[int, masks.Key] = {}
        if job.hyper.wire.secure is not None:
            masks.require()
            self._enough(told, len(told), masks.least(len(told), job.hyper.wire.secure.threshold))
            for which, head in told.items():
                try:
                    self._keys[which] = masks.Key.of(head.get("key"))
                except NodeError as error:
                    raise NodeError(f"clients {fleet.names(which)}: {error}") from error

    # ---- what drive() asks

    def prepare(self) -> tuple[State, Tally]:
        """The state before round 0, and what the warm-up did; where a checkpoint is to come, only its form."""
        job = self.job
        server, _ = first_states(job.hyper.method, job.x)
        versions = np.zeros((job.plan.num_clients, 3), np.int64)
        versions[:, 0] = self._number
        state = State(server, versions, jax.tree.map(np.array, no_exclusions(job.plan)))
        if not self._resumes and resolve(job.hyper.method, 0).warmup():
            everyone = job.hyper._replace(participation=Full())
            state = self._asking(self._round(state, 0, "warmup", everyone))
        return state, self._tally()

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        """Rounds start … stop − 1, and what they did."""
        for index in range(start, stop):
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead.start == index and ahead.server is state.server:
                state = self._asking(ahead.round, ahead.answers)
                self._seen = (self._seen[0] - ahead.wire[0], self._seen[1] - ahead.wire[1], self._seen[2])
            else:
                state = self._asking(self._round(state, index, "exchanges", self.job.hyper))
        return state, self._tally()

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        """What evaluation gives after ``index`` rounds, of the clients whose nodes answer.

        ``heard`` is their share of the weight. Where it is not 1, F is the mean over them. The first messages of the
        next round go to the nodes together with the question, where it is known that there is one.
        """
        job, census = self.job, self.job.census
        model = model_after(job.hyper.method, state.server, index)[0]
        parts = _at_nodes(job)
        given = {"kind": "evaluate", "job": self._order, "index": index, "run": int(state.memory[0, 0]),
                 "grad_norm": job.grad_norm, "parts": parts}  # fmt: skip
        weights = np.asarray(job.fed.weights)
        messages = {
            which: self.fleet.message(
                which, given, packed({"model": model, "weights": weights[self.fleet.clients(which)]})
            )
            for which in range(len(self.fleet))
        }
        real = jax.ShapeDtypeStruct((), weights.dtype)
        found: dict[int, dict[str, Tree]] = {}
        form = {"train": [real, job.x.tree] if job.grad_norm else [real]}
        held_form = self._held_out_form if parts else {}
        for which, answer in self._with_the_next(messages, state, index, model).items():
            if answer is not None:
                wanted = form | {part: held_form for part in parts if part in self.fleet.held(which)}
                found[which] = self._opened(which, answer, messages[which], wanted)
        if not found:
            raise NodeError(f"no node answered in {self.fleet.timeout:g} s, to evaluate the model of round {index}")
        share = sum(float(census.weights[self.fleet.clients(which)].sum()) for which in found)
        heard = share if len(found) < len(self.fleet) else 1.0
        sums = [found[which]["train"] for which in sorted(found)]
        train = functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), sums)
        train = jax.tree.map(lambda leaf: leaf / np.asarray(heard, leaf.dtype), train)
        held = {}
        for part in parts:
            answers = {which: found[which][part] for which in sorted(found) if part in found[which]}
            tested = [(self.fleet.held(which)[part], answer) for which, answer in answers.items()]
            if tested:
                held[part] = _together(job.plan.task, tested)
        (row,) = measured(job, state.server, index, train, held)
        return [row | {"heard": heard}]

    def traffic(self) -> dict[str, Unknown]:
        """Bytes on the wire, and seconds of waiting, since the last time."""
        now = (self.fleet.transport.sent, self.fleet.transport.received, self.fleet.waited)
        down, up, waited = (new - old for new, old in zip(now, self._seen, strict=True))
        self._seen = now
        return {"wire_down": int(down), "wire_up": int(up), "waited": float(waited)}

    def forget(self) -> None:
        """Tell the nodes that the run is over, and its memory not needed any more."""
        given = {"kind": "forget", "run": self._run}
        messages = {which: self.fleet.message(which, given) for which in range(len(self.fleet))}
        with contextlib.suppress(NodeError):  # the run is over, whatever a node says now
            for _ in self.fleet.ask(messages, min(self.fleet.timeout, _PARTING)):
                pass

    # ---- a round

    def _asking(self, round_: Generator[Asked, Answers, State], answers: Answers | None = None) -> State:
        """Ask the nodes all that a round asks; ``answers``: to what it has asked already."""
        try:
            asked = next(round_) if answers is None else round_.send(answers)
            while True:
                asked = round_.send(dict(self.fleet.ask(asked)))
        except StopIteration as stop:
            end: State = stop.value
            return end

    def _with_the_next(self, messages: Asked, state: State, index: int, model: Tree) -> Answers:
        """The answers to an evaluation's messages, with which those go that the next round begins with.

        Not where the figures, or a guard, may end the run: nobody should work, or be heard, for a round that is none.
        """
        job = self.job
        certain = index < job.rounds and job.until is None and not job.plan.stops
        if not certain or not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model)):
            return dict(self.fleet.ask(messages))
        round_ = self._round(state, index, "exchanges", job.hyper)
        try:
            first = next(round_)
        except StopIteration:  # nobody takes part
            return dict(self.fleet.ask(messages))
        asked = {which: joined([messages[which], *([first[which]] if which in first else [])]) for which in messages}
        sent, received = self.fleet.transport.sent, self.fleet.transport.received
        answers: Answers = {}
        of_round: Answers = {}
        share = [0.0, 0.0]  # of the bytes, what the round's part is
        whole = [0, 0]
        for which, answer in self.fleet.ask(asked):
            who = f"clients {self.fleet.names(which)}: the answer"
            parts = [None] * 2 if answer is None else parted(answer, 1 + (which in first), who)
            answers[which] = parts[0]
            if which in first:
                of_round[which] = parts[1]
                share[0] += first[which].size
                share[1] += 0 if parts[1] is None else parts[1].size
            whole[0] += asked[which].size
            whole[1] += 0 if answer is None else answer.size
        grew = self.fleet.transport.sent - sent, self.fleet.transport.received - received
        later = [int(n * part / all_) if all_ else 0 for n, part, all_ in zip(grew, share, whole, strict=True)]
        self._seen = (self._seen[0] + later[0], self._seen[1] + later[1], self._seen[2])
        self._ahead = _Ahead(index, state.server, round_, of_round, (later[0], later[1]))
        return answers

    def _round(self, state: State, index: int, stage: str, hyper: Hyper) -> Generator[Asked, Answers, State]:
        """A round, or the warm-up; yields what it asks the nodes, and is sent their answers."""
        job, plan = self.job, self.job.plan
        indices = np.array([index], np.int32)
        drawn = jax.tree.map(np.asarray, draw_rounds(hyper, job.fed, job.key, indices, plan=plan, stage=stage))
        clients, round_ = jax.tree.map(lambda leaf: leaf[0], drawn)
        self.index, self._run, versions = index, int(state.memory[0, 0]), state.memory[:, 1:]
        # A checkpoint is made after every round, and two of them stay: this round's start, and that of the one before.
        # That of the start may still have to be written, so a third version stays.
        older = [*self._before, versions, versions][:2]
        self._kept = np.stack([versions, *older], axis=1)
        self._now = versions.copy()
        self._there = clients.present.copy()  # those that answered so far
        method = resolve(job.hyper.method, index)
        loop = exchanges(stage, method, clients, round_, state.server, job.hyper.wire, plan.watched, self)
        request = next(loop)
        while True:
            heard = yield from self._answer(request)
            try:
                request = loop.send(heard)
            except StopIteration as stop:
                end = stop.value
                break
        stays = clients.present & (np.asarray(end.counts) & ~np.asarray(end.skipped))
        ids = clients.ids[stays]
        memory = state.memory.copy()
        memory[ids, 1:] = self._now[ids]
        self._before = [versions, *self._before[:1]]
        self._done[0] += int(self._there.sum())
        exclusions = state.exclusions.after(clients, end) if state.exclusions else ()
        return State(end.server, memory, exclusions)

    def _answer(self, request: Request) -> Generator[Asked, Answers, Response]:
        """Ask the nodes of the clients; what is heard is the sum of their answers."""
        wire, cohort = request.wire, np.arange(len(request.counts))
        if request.at is not None:  # a cohort of its own
            request, cohort = request._replace(clients=request.clients.alone(request.at)), cohort[[request.at]]
        form, size, accepted = self._form(request.stage, request.number), len(cohort), self._there[cohort]
        asked = np.flatnonzero(accepted)
        self._count += 1
        at_nodes = self._by_node(request.clients, asked)
        download = self._download(request)
        layout = Layout.of(form.upload, form.first)
        letters = layout.nothing(size) if layout.messages else []
        if wire.secure is not None and request.exchange.server is not None:
            try:
                total, uploads = (yield from self._masked(request, wire, at_nodes, download)), ()
            except Repeated:  # over other nodes than before a stop: the round has no sum
                total, uploads = _zeros(self._summed(request, 0))
                self._there[asked] = False
            accepted &= self._there
            at_nodes = {}
        else:
            total, uploads = ((), ()) if layout.messages else _zeros(self._summed(request, size))
        asks = {which: self._asked(request, download, *at) for which, at in at_nodes.items()}
        messages = {which: self.fleet.message(which, head, packed(arrays)) for which, (head, arrays) in asks.items()}
        answers = (yield messages) if messages else {}
        for which in sorted(at_nodes):
            positions, _ = at_nodes[which]
            answer = answers[which]
            if answer is None or "repeated" in answer.head:
                self._lost(which, None if answer is None else str(answer.head["repeated"]))
                self._there[cohort[positions]] = accepted[positions] = False
                continue
            found = self._read(which, answer, messages[which], request, len(positions))
            self._now[request.clients.ids[positions]] = self._process, self._count
            accepted[positions] = found.get("accepted", True) & self._believed(found, len(positions))
            if "total" in found and not accepted[positions].any():
                continue
            if "total" in found:
                total = jax.tree.map(np.add, total, found["total"])
            if "uploads" in found:
                _put(uploads, positions, found["uploads"])
            if "letters" in found:
                who = f"clients {self.fleet.names(which)}: the answer"
                _put(letters, positions, layout.unpacked(found["letters"], self._up, who))
        if layout.messages and request.exchange.server is not None:
            there = request.clients.only(accepted)
            total, answer = read_encoded(self.inputs(request), letters, there, layout=layout, **self.static(request))
            uploads = answer.upload
            if wire.guard is not None:
                accepted = accepted & np.asarray(answer.accepted)
        return Response(total, uploads, accepted if wire.excludes else ())

    def _masked(
        self,
        request: Request,
        wire: Wire,
        at_nodes: Mapping[int, tuple[np.ndarray, np.ndarray]],
        download: Tree,
    ) -> Generator[Asked, Answers, Tree]:
        """The sum over the nodes that answer; the server learns nothing else (:mod:`fedax.engine.places.masks`)."""
        assert wire.secure is not None and wire.fixed is not None
        zero, _ = _zeros(self._summed(request, 0))
        bits, order = wire.secure.bits, sorted(at_nodes)
        if not order:
            return zero
        nodes, least = len(order), masks.least(len(order), wire.secure.threshold)
        self._enough(order, nodes, least)
        # Who has offered masks.
        keys, about = [self._keys[which]._asdict() for which in order], self._about(request)
        fixed = jax.tree.map(lambda leaf: np.asarray(leaf, jnp.zeros(()).dtype), wire.fixed)
        asks = {which: self._asked(request, download, *at_nodes[which]) for which in order}
        question = question_in_common(asks[order[0]][0], download, fixed)
        given = about | {"kind": "offer", "keys": keys, "threshold": least, "question": question}
        parts = {which: list(part_of(arrays["clients"])) for which, (_, arrays) in asks.items()}
        heads = {which: (given | {"position": k, "part": parts[which]}, b"") for k, which in enumerate(order)}
        offers = {}
        for which, (answer, _) in (yield from self._replies(heads, {})).items():
            try:
                offers[which] = masks.Offer.of(answer["offer"], order.index(which), nodes)
            except (LookupError, TypeError, ValueError) as error:
                text = f"{type(error).__name__}: {error}"
                raise NodeError(f"clients {self.fleet.names(which)}: its masks are none ({text})") from error
        there = self._stay(order, offers, at_nodes, nodes, least)
        # Whose masked sum has come.
        heads = {}
        for which in there:
            head, arrays = asks[which]
            told = {str(order.index(other)): offers[other].to(order.index(which)) for other in there}
            secure = {"offers": told, "places": wire.fixed.places}
            heads[which] = (head | {"secure": secure}, packed(arrays | {"fixed": fixed}))
        size = masks.flat(zero).size * bits // 8
        answers = yield from self._replies(heads, {"masked": jax.ShapeDtypeStruct((size,), np.uint8)})
        there = self._stay(there, answers, at_nodes, nodes, least)
        for which in there:
            self._count_done(which, answers[which][0])
            self._now[request.clients.ids[at_nodes[which][0]]] = self._process, self._count
        # That they agree whose sums are added, and what takes the masks off.
        asked = about | {"kind": "agree", "survivors": [order.index(which) for which in there]}
        replies = yield from self._replies(dict.fromkeys(there, (asked, b"")), {})
        self._enough(replies, nodes, least)
        agreed = {str(order.index(which)): answer.get("agreed") for which, (answer, _) in replies.items()}
        asked = about | {"kind": "unmask", "agreed": agreed}
        replies = yield from self._replies(dict.fromkeys(replies, (asked, b"")), {})
        self._enough(replies, nodes, least)
        summed = masks.total(
            exchange_name(about),
            {order.index(which): answers[which][1]["masked"] for which in there},
            {order.index(which): offer for which, offer in offers.items()},
            {order.index(which): answer.get("told") for which, (answer, _) in replies.items()},
            least,
            bits,
        )
        return masks.tree_of(summed, zero)

    def _replies(
        self, asked: Mapping[int, tuple[dict[str, Unknown], bytes]], wanted: Mapping[str, Tree]
    ) -> Generator[Asked, Answers, dict[int, tuple[dict[str, Unknown], dict[str, Tree]]]]:
        """What nodes answer, of those that do and still have the secrets of the exchange."""
        messages = {which: self.fleet.message(which, *each) for which, each in asked.items()}
        answers = yield messages
        for which, answer in answers.items():
            if answer is not None and "repeated" in answer.head:
                self._lost(which, str(answer.head["repeated"]))
                raise Repeated(str(answer.head["repeated"]))
        return {
            which: (answer.head, self._opened(which, answer, messages[which], wanted))
            for which, answer in answers.items()
            if answer is not None and answer.head.get("lost") is not True
        }

    def _stay(
        self,
        asked: Sequence[int],
        there: Collection[int],
        at_nodes: Mapping[int, tuple[np.ndarray, np.ndarray]],
        nodes: int,
        least: int,
    ) -> list[int]:
        """Those of some nodes that are still there; the clients of the others are left out."""
        for which in asked:
            if which not in there:
                self._lost(which)
                self._there[at_nodes[which][0]] = False
        self._enough(there, nodes, least)
        return [which for which in asked if which in there]

    def _enough(self, there: Collection[int], nodes: int, least: int) -> None:
        """Raise where so few nodes are there that their sum would tell of single ones."""
        if nodes < least:
            raise NodeError(
                f"in round {self.index} clients are asked at {nodes} nodes, and at {least} they have to be for a sum "
                "that hides each node: take more nodes, or a larger cohort"
            )
        if len(there) < least:
            raise NodeError(
                f"{len(there)} of {nodes} nodes are left in round {self.index}, and {least} have to be for a sum that "
                "hides each node; --resume goes on when they are back"
            )

    def _about(self, request: Request) -> dict[str, Unknown]:
        """Which exchange it is."""
        return {
            "run": self._run, "stage": request.stage, "number": request.number, "index": self.index,
            "write": [self._process, self._count],
        }  # fmt: skip

    def _by_node(self, clients: Clients, asked: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Node -> the positions of its clients in the cohort, and their places at the node."""
        found = {}
        for which in range(len(self.fleet)):
            places = {int(id_): k for k, id_ in enumerate(self.fleet.clients(which))}
            positions = np.array([at for at in asked if int(clients.ids[at]) in places], np.int64)
            if len(positions):
                found[which] = positions, np.array([places[int(clients.ids[at])] for at in positions], np.int32)
        return found

    def _download(self, request: Request) -> Tree:
        """What goes to each client, as it goes over the wire."""
        job, down = self.job, self.job.hyper.wire.down
        if down is None:
            method = resolve(job.hyper.method, self.index)
            return (request.exchange.download or method.download)(request.server)
        tree = downloaded(self.inputs(request), stage=request.stage, number=request.number)
        layout = Layout.of(self._form(request.stage, request.number).download)
        return layout.packed(jax.tree.map(lambda leaf: np.asarray(leaf)[None], layout.parts(tree)), down, 1)

    def _form(self, stage: str, number: int) -> ExchangeForm:
        """Of an exchange, what goes to a client and comes back."""
        return self._forms[0 if stage == "warmup" else 1][number]

    def _summed(self, request: Request, size: int) -> tuple[Tree, Tree]:
        """Of an exchange, the forms of the sum and, where they are looked at one by one, of ``size`` uploads.

        They are the same in all rounds; to trace them anew in each took most of the server's time.
        """
        key = request.stage, request.number, size
        if key not in self._sums:
            self._sums[key] = _summed(self._form(*key[:2]), size, self.job.hyper.wire.of(request.round))
        return self._sums[key]

    @functools.cached_property
    def _held_out_form(self) -> dict[str, Tree]:
        return _held_out_form(self.job)

    @property
    def _up(self) -> Compressor:
        return compressors_of(self.job.hyper.method, self.job.hyper.wire)[1] or Identity()

    def _asked(
        self, request: Request, download: Tree, positions: np.ndarray, rows: np.ndarray
    ) -> tuple[dict[str, Unknown], dict[str, Tree]]:
        """What a node is asked in an exchange: head and arrays of the message."""
        clients = request.clients
        ids = clients.ids[positions]
        told = {name: getattr(clients, name)[positions] for name in ("ids", "weights", "data_weights", "steps")}
        given = {"clients": told | {"rows": rows}, "base": self._now[ids], "keep": self._kept[ids]}
        form = asked_form(len(positions), self._kept.shape[1])
        given = jax.tree.map(lambda leaf, kind: np.asarray(leaf, kind.dtype), given, form)
        about = {"kind": "exchange", "size": len(positions), "keep": self._kept.shape[1]}
        head = {"job": self._order} | self._about(request) | about | {"heard": request.exchange.server is not None}
        return head, given | {"download": download}

    def _read(self, which: int, answer: Message, message: Message, request: Request, size: int) -> dict[str, Tree]:
        """What a node answered in an exchange."""
        wire, form = self.job.hyper.wire, self._form(request.stage, request.number)
        wanted: dict[str, Tree] = {}
        layout = Layout.of(form.upload, form.first)
        total, uploads = ((), ()) if layout.messages else self._summed(request, size)
        if message.head["heard"] and layout.messages:
            wanted = {"letters": layout.on_wire(self._up, size)}
        elif message.head["heard"]:
            wanted = {"uploads": uploads} if wire.gathers else {"total": total}
        if wire.guard is not None and not layout.messages:
            wanted["accepted"] = jax.ShapeDtypeStruct((size,), bool)
        found = self._opened(which, answer, message, wanted)
        self._count_done(which, answer.head)
        return found

    def _count_done(self, which: int, head: dict[str, Unknown]) -> None:
        """Count what a node says that its clients did."""
        tally = head.get("tally")
        if not isinstance(tally, list) or len(tally) != 2 or not all(type(n) is int and 0 <= n < 2**31 for n in tally):
            raise NodeError(f"clients {self.fleet.names(which)}: the answer counts {tally!r} steps and gradients")
        self._done[1:] += tally

    def _opened(self, which: int, answer: Message, message: Message, wanted: Mapping[str, Tree]) -> dict[str, Tree]:
        """The arrays of an answer, if it is one to this message."""
        who = f"clients {self.fleet.names(which)}: the answer"
        for name in ECHOED:
            if answer.head.get(name) != message.head.get(name):
                raise NodeError(f"{who} is to another question: {name} is {answer.head.get(name)!r}")
        return unpacked(answer.tensors, wanted, who)

    def _believed(self, found: dict[str, Tree], size: int) -> np.ndarray:
        """[size] whether uploads, or their sum, can be what the guard accepts; a node need not be as it says."""
        guard = self.job.hyper.wire.guard
        fine = np.ones(size, bool)
        if guard is None:
            return fine
        most = float(guard.largest) * size * self.job.plan.num_clients
        for leaf in jax.tree.leaves(found.get("total")):
            fine &= bool(np.all(np.abs(leaf) <= most))
        for leaf in jax.tree.leaves(found.get("uploads")):
            fine &= np.all(np.abs(leaf.reshape(size, -1)) <= float(guard.largest), axis=1)
        return fine

    def _lost(self, which: int, repeated: str | None = None) -> None:
        """A node did not answer in time; raise unless the round can go on without its clients, or be skipped.

        ``repeated``: why it does not answer this exchange again, as it did before the server was stopped.
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
        """What was done since the last time."""
        done, self._done = Tally(*self._done.tolist()), np.zeros(3, np.int64)
        return done


def _put(all_: Tree, positions: np.ndarray, own: Tree) -> None:
    """Write the rows of some clients of the cohort."""
    jax.tree.map(lambda whole, rows: whole.__setitem__(positions, rows), all_, own)


def _zeros(forms: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Arrays of these forms to add to, or to write into."""
    total, uploads = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), forms)
    return total, uploads


def _summed(form: ExchangeForm, size: int, wire: Wire) -> tuple[Tree, Tree]:
    """The form of a sum of uploads, and of the uploads of ``size`` clients where they are looked at one by one."""
    if wire.gathers:
        return (), jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), form.upload)
    none = jnp.zeros(())
    usual = dataclasses.replace(wire, faults=None)  # which change no form
    entering = lambda upload, download: usual.sent(upload, 0, 1, download)[0]  # noqa: E731
    upload = jax.eval_shape(entering, form.upload, form.download)
    return jax.eval_shape(lambda upload: wire.weighted(upload, none, none), upload), ()
