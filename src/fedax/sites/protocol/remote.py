"""Real clients, the server's side: each client is at a node, which answers for its clients with one weighted sum.

The server has no examples. The node's side is :mod:`fedax.sites.protocol.site`; a transport of
:mod:`fedax.sites.protocol.messages` carries the messages. Between rounds the state has, instead of client memory,
its version at the node.

A round is a generator that yields messages to the nodes and is sent their answers. So the first messages of a round can
travel together with the evaluation of the model that the round begins with: a message to real clients takes a while,
however small it is.
"""

import collections
import contextlib
import dataclasses
import functools
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import HEARD, PARTS, PERSONAL, TIME
from fedax.contract.compression import Compressor, Identity
from fedax.contract.schedule import resolve
from fedax.contract.types import Tree, Unknown
from fedax.engine import personal
from fedax.engine.checkpoint import Best
from fedax.engine.clients import ClientResult
from fedax.engine.evaluate import measured, model_after
from fedax.engine.job import Job
from fedax.engine.layers import compressors_of
from fedax.engine.loop import Clients, Counters, Request, Response, State, exchanges
from fedax.engine.places.device import first_states, no_exclusions
from fedax.engine.places.host import HostServer, downloaded, read_encoded
from fedax.engine.places.layout import Layout
from fedax.engine.plan import ExchangeForm
from fedax.errors import NodeError
from fedax.metrics import AUC
from fedax.metrics.base import Metric, added
from fedax.sites.protocol import masks
from fedax.sites.protocol.agreement import (
    EVALUATION,
    STAGES,
    Agreement,
    as_means,
    check_figures,
    cohort_of,
    digest_of,
    digest_of_text,
    figures_form,
    figures_tree,
    last_turns,
    precise_versions,
    program_of,
    shared_sizes,
    traced,
    version_after,
)
from fedax.sites.protocol.answered import Repeated
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message, packed, unpacked
from fedax.sites.protocol.summed import Asking, NodeAnswers, NodeMessages, SecureSums
from fedax.tasks.task import Task

_Result = TypeVar("_Result")
AtNodes = dict[int, tuple[np.ndarray, np.ndarray]]  # node -> positions of its clients in a cohort, and rows at the node
_PARTING = 30.0  # seconds to wait for nodes when a run is over


class UnderWay(Generic[_Result]):
    """A round or an evaluation under way, up to where it asks nodes next.

    Attributes:
        messages: what it asks; none when it is over.
        answers: those to its messages, with which it goes on; ``None``: there are none yet.
        result: what it has made, when it is over.
    """

    result: _Result

    def __init__(self, steps: Asking[_Result]):
        self._steps = steps
        self.answers: NodeAnswers | None = None
        self.go_on()

    def go_on(self) -> None:
        """Go on with the answers, or begin."""
        try:
            self.messages = next(self._steps) if self.answers is None else self._steps.send(self.answers)
        except StopIteration as finished:
            self.messages, self.result = {}, finished.value
        self.answers = None


def _together(task: Task, results: Sequence[tuple[int, Mapping[str, Tree]]]) -> dict[str, Tree]:
    """The figures of a held-out part over all nodes; ``results``: each node's number of examples, and its answer."""
    number = sum(n for n, _ in results)
    labels = {
        name: functools.reduce(task.whole_metrics[name].joined, [answer["labels"][name] for _, answer in results])
        for name in results[0][1]["labels"]
    }
    figures: dict[str, Tree] = {
        name: functools.reduce(added, [answer["figures"][name] for _, answer in results])
        if isinstance(task.metrics.get(name), Metric)
        else sum(n * float(answer["figures"][name]) for n, answer in results) / number
        for name in results[0][1]["figures"]
    }
    return {"figures": figures, "labels": labels}


def _parts_at_nodes(job: Job) -> list[str]:
    """The parts of the held-out data that are at the nodes, and not here."""
    return [part for part, number in job.census.held.items() if number and part not in job.evaluation.held]


class NodeFigures(NamedTuple):
    """What nodes answer to an evaluation, together.

    Attributes:
        train: Σ p_i F_i, its gradient where asked, and Σ p_i F_i(v_i) of personal models, over the clients that were
            heard.
        held: held-out part -> the figures, and sums of the labels; those of personal models at the part and
            ``_personal``.
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

    Attributes:
        best: its one entry is the best model so far, where one is looked for.

    Raises:
        NodeError: a node objects to the run.
    """

    def __init__(self, job: Job, fleet: Fleet, config: dict[str, Unknown], number: int, resumes: bool = False):
        super().__init__(job)
        self.fleet, self._resumes = fleet, resumes
        self.best: Sequence[Best | None] = (None,)
        dry = traced(job)
        self._forms, self._number = dry.forms, number
        agreement = agreement_of(job, fleet, config, number, program_of(dry))
        self._digest = agreement.digest
        self._at_node = np.zeros((job.plan.num_clients, 2), int)  # each client's node, and its row there
        for which in range(len(fleet)):
            self._at_node[fleet.clients(which)] = [(which, row) for row in range(len(fleet.clients(which)))]
        self._checkpoints: collections.deque[np.ndarray] = collections.deque(maxlen=3)  # versions at the last ones
        self._prefetched: UnderWay[State] | None = None
        self._sums: dict[tuple[str, int], Tree] = {}
        self._done = np.zeros(3, np.int64)
        self._seconds = 0.0  # that rounds took so far
        self._ahead = np.zeros(4)  # what was spent on the prefetched round, and counts when it is run
        self._counted = self._spent()
        self.counts: dict[str, Tree] = {}  # of the last evaluation: part -> counts of scores
        check_figures(job)
        checked = fleet.agree(agreement, job.plan.task.frozen)
        self._secure: SecureSums | None = None
        if job.hyper.wire.secure is not None:
            masks.require()
            keys = {}
            for which, head in checked.items():
                try:
                    keys[which] = masks.read(masks.Key, head.get("key"))
                except NodeError as error:
                    raise NodeError(f"clients {fleet.names(which)}: {error}") from error
            self._secure = SecureSums(fleet, keys, job.hyper.wire.secure.threshold, self._opened)

    # ---- what drive() asks

    def prepare(self) -> tuple[State, Counters]:
        """The state before round 0, and the counters of the warm-up; only its form, if a checkpoint replaces it."""
        job = self.job
        server, _ = first_states(job.hyper.method, job.x)
        versions = np.zeros((job.plan.num_clients, 2), np.int64)
        versions[:, 0] = self._number
        state = State(server, versions, jax.tree.map(np.array, no_exclusions(job.plan)))
        if not self._resumes and resolve(job.hyper.method, 0).warmup():
            began = time.perf_counter()
            state = self._run(UnderWay(self._round(state, 0, "warmup")))
            self._seconds += time.perf_counter() - began
        return state, self._tally()

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        """Run rounds start … stop − 1: the new state, and the counters."""
        for index in range(start, stop):
            began = time.perf_counter()
            round_ = self._prefetched or UnderWay(self._round(state, index, "exchanges"))
            self._prefetched, self._ahead = None, np.zeros(4)
            state = self._run(round_)
            self._seconds += time.perf_counter() - began
        return state, self._tally()

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        """The figures of an evaluation after ``index`` rounds, over the clients whose nodes answer.

        ``heard`` is their share of the weight. Where it is not 1, F is the mean over them. The first messages of the
        next round are sent together with the evaluation, if it is certain that there is a next round.
        """
        job = self.job
        model = model_after(job.hyper.method, state.server, index)[0]
        evaluation = UnderWay(self._evaluation(state, model, index))
        train, held, heard = self._evaluate_and_prefetch(evaluation, state, index, model)
        self.counts = {
            part: held[part]["figures"]["auc"]["counts"]
            for part in PARTS
            if part in held
            and isinstance(job.plan.task.metrics.get("auc"), AUC)
            and not np.any(held[part]["figures"]["auc"]["lost"])
        }
        own: dict[str, Unknown] = {}
        if (plan := job.evaluation.personal) is not None:
            weights, last = np.asarray(job.fed.weights, float), self._last_turns(state.memory[:, 1])
            own = {f"train_loss{PERSONAL}": float(train.pop()), **personal.turns(plan, weights, last, index)}
        (row,) = measured(job, state.server, index, train, held, own)
        return [row | {HEARD: heard}]

    def _last_turns(self, versions: np.ndarray) -> np.ndarray:
        """The rounds of the clients' last turns, by the versions of their memory."""
        return last_turns(versions)

    def _with_best(self, message: Message) -> Message:
        """A message that also says which round was best so far: a node keeps its clients' own models of that round."""
        best = self.best[0]
        return message if best is None else message._replace(head=message.head | {"best": int(best.round)})

    def _evaluation(self, state: State, model: Tree, index: int) -> Asking[NodeFigures]:
        """The figures of a model; yields messages to the nodes, and is sent their answers."""
        if self.job.evaluation.personal is None:
            question = self._question("evaluate", EVALUATION, index, 0, {}, {"model": model})
            messages = dict.fromkeys(range(len(self.fleet)), question)
        else:  # personal models are made of the server's state, and of the memory of this time
            arrays = {"server": personal.inner_state(self.job.hyper.method, state.server)}
            bases = {which: state.memory[self.fleet.clients(which), 1].tolist() for which in range(len(self.fleet))}
            messages = {
                which: self._with_best(self._question("evaluate", EVALUATION, index, 0, {"base": base}, arrays))
                for which, base in bases.items()
            }
        forms = figures_form(self.job, _parts_at_nodes(self.job))
        if self._secure is not None:
            return (yield from self._secure_figures(messages, forms))
        answers = yield messages
        found: dict[int, dict[str, Tree]] = {}
        why = f"no node answered in {self.fleet.timeout:g} s, to evaluate the model of round {index}"
        for which, answer in sorted(answers.items()):
            if answer is not None and "repeated" in answer.head:
                why = f"clients {self.fleet.names(which)}: {answer.head['repeated']}; begin a new run"
            elif answer is not None:
                wanted = {part: form for part, form in forms.items() if part in ("train", *self._held(which))}
                found[which] = self._opened(which, answer, wanted)
        if not found:
            raise NodeError(why)
        train = jax.tree.map(
            lambda *leaves: functools.reduce(np.add, leaves), *[each["train"] for each in found.values()]
        )
        held = {}
        for part in forms.keys() - {"train"}:
            results = [(self._held(which)[part], each[part]) for which, each in found.items() if part in each]
            if results:
                held[part] = _together(self.job.plan.task, results)
        return self._heard(train, held, found)

    def _secure_figures(self, messages: NodeMessages, forms: dict[str, Tree]) -> Asking[NodeFigures]:
        """The figures as a secure sum: of all nodes that answer together, and of none alone."""
        assert self._secure is not None
        size = 1 + sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(forms))
        try:
            total, heads = yield from self._secure.sum(messages, size, 64, lambda which, why: None)
        except Repeated as error:
            text = (
                f"the model of round {messages[0].head['round']} was evaluated over other nodes before, or is another"
            )
            raise NodeError(f"{text} one ({error}); --resume goes on when they are back") from error
        found = figures_tree(masks.decode_figures(total), forms)
        held = {}
        for part, answer in found.items():
            number = sum(self._held(which).get(part, 0) for which in heads)
            if part != "train" and number:
                held[part] = answer | {"figures": as_means(self.job.plan.task, answer["figures"], number)}
        return self._heard(found["train"], held, heads)

    def _held(self, which: int) -> dict[str, int]:
        """How many held-out examples a node has; of those that are of a client, for personal models."""
        held, split = self.fleet.held(which), self.fleet.split or {}
        if self.job.evaluation.personal is None:
            return held
        known = [part for part in held if split.get(part) or len(self.fleet.clients(which)) == 1]
        return held | {f"{part}{PERSONAL}": held[part] for part in known}

    def _heard(self, train: list[Tree], held: dict[str, dict[str, Tree]], answered: Collection[int]) -> NodeFigures:
        """NodeFigures over the nodes that answered, as if there were no others."""
        share = sum(float(self.job.census.weights[self.fleet.clients(which)].sum()) for which in answered)
        heard = share if len(answered) < len(self.fleet) else 1.0
        real = np.asarray(self.job.fed.weights).dtype
        scaled = [jax.tree.map(lambda leaf: np.asarray(leaf / heard, real), each) for each in train]
        return NodeFigures(scaled, held, heard)

    def traffic(self) -> dict[str, Unknown]:
        """Bytes on the wire, seconds of waiting and seconds of rounds, since the last call."""
        now = self._spent() - self._ahead
        (down, up, waited, seconds), self._counted = (now - self._counted).tolist(), now
        return {"wire_down": int(down), "wire_up": int(up), "waited": waited, TIME: seconds}

    def _spent(self) -> np.ndarray:
        """Bytes sent and received, seconds of waiting and seconds of rounds, so far."""
        transport = self.fleet.transport
        return np.array([transport.sent, transport.received, self.fleet.waited, self._seconds])

    def forget(self) -> None:
        """Tell the nodes that the run is over, and that they can delete its memory."""
        message = Message({"kind": "forget", "agreement": self._digest})
        if self.job.evaluation.personal is not None:
            message = self._with_best(message)
        messages = dict.fromkeys(range(len(self.fleet)), message)
        with contextlib.suppress(NodeError):  # the run is over, whatever a node says now
            dict(self.fleet.ask(messages, min(self.fleet.timeout, _PARTING)))

    # ---- a round

    def _run(self, under_way: UnderWay[_Result]) -> _Result:
        """Ask the nodes what a round, or an evaluation, asks, until it is over: its result."""
        while under_way.messages:
            if under_way.answers is None:
                under_way.answers = dict(self.fleet.ask(under_way.messages))
            under_way.go_on()
        return under_way.result

    def _evaluate_and_prefetch(
        self, evaluation: UnderWay[NodeFigures], state: State, index: int, model: Tree
    ) -> NodeFigures:
        """The figures of an evaluation; the messages of the next round are sent together with its own.

        Not if the figures, or a guard, may end the run: clients should not work for a round that does not take place.
        """
        job, began = self.job, time.perf_counter()
        certain = index < job.rounds and job.until is None and not job.plan.stops
        if not certain or not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model)):
            return self._run(evaluation)
        round_ = UnderWay(self._round(state, index, "exchanges"))
        while evaluation.messages:
            if round_.answers is not None:
                round_.go_on()
            before = self._spent()
            (evaluation.answers, first), shares = self.fleet.ask_together([evaluation.messages, round_.messages])
            round_.answers = first or None
            self._ahead[:2] += np.floor((self._spent() - before)[:2] * shares[1])
            evaluation.go_on()
        self._prefetched, self._ahead[3] = round_, time.perf_counter() - began
        self._seconds += self._ahead[3]
        return evaluation.result

    def _round(self, state: State, index: int, stage: str) -> Asking[State]:
        """A round, or the warm-up; yields messages to the nodes, and is sent their answers."""
        job, self.index = self.job, index
        clients, round_ = cohort_of(job, stage, index)
        # A checkpoint is made after every round, and two are kept: at the start of this round, and of the one before.
        # That of the start may still have to be written, so a third version is kept.
        self._checkpoints.append(state.memory[:, 1])
        self._kept_versions = np.stack(self._checkpoints, axis=1)
        self._versions = self._checkpoints[-1].copy()
        self._answered = clients.present.copy()  # those that answered so far
        method = resolve(job.hyper.method, index)
        loop = exchanges(stage, method, clients, round_, state.server, job.hyper.wire, job.plan.watched, self)
        request = next(loop)
        while True:
            response = yield from self._answer(request)
            try:
                request = loop.send(response)
            except StopIteration as finished:
                end = finished.value
                break
        ids = clients.ids[clients.present & (np.asarray(end.counts) & ~np.asarray(end.skipped))]
        memory = state.memory.copy()
        memory[ids, 1] = self._versions[ids]
        self._done[0] += int(self._answered.sum())
        exclusions = state.exclusions.after(clients, end) if state.exclusions else ()
        return State(end.server, memory, exclusions)

    def _answer(self, request: Request) -> Asking[Response]:
        """Ask the nodes of the clients; the response is the sum of their answers."""
        wire, cohort = request.wire, np.arange(len(request.counts))
        if request.at is not None:  # a cohort of its own
            request, cohort = request._replace(clients=request.clients.alone(request.at)), cohort[request.at][None]
        asked = np.flatnonzero(self._answered[cohort])
        nodes, rows = self._at_node[request.clients.ids[asked]].T
        at_nodes: AtNodes = {int(which): (asked[nodes == which], rows[nodes == which]) for which in np.unique(nodes)}
        download = self._download(request)
        messages = {which: self._exchange_message(request, download, *at) for which, at in at_nodes.items()}
        if wire.secure is not None and request.exchange.server is not None:
            total = yield from self._secure_sum(request, at_nodes, messages)
            return Response(total, (), self._answered[cohort] if wire.excludes else ())
        wanted = self._answer_form(request, len(cohort))
        whole = {"parts": self._layout(request).nothing(len(cohort))} if "letters" in wanted else _zeros(wanted)
        fine = np.ones(len(cohort), bool)  # whose uploads are so, in the guard's view
        answers = (yield messages) if messages else {}
        for which, answer in sorted(answers.items()):
            positions, _ = at_nodes[which]
            if answer is None or "repeated" in answer.head:
                self._node_lost(which, cohort[positions], None if answer is None else str(answer.head["repeated"]))
                continue
            arrays = self._read(which, answer, request, len(positions))
            self._versions[request.clients.ids[positions]] = self._version(request)
            fine[positions] = arrays.pop("accepted", True) & self._plausible(arrays, len(positions))
            if "total" not in arrays:
                write_rows(whole, positions, arrays)
            elif fine[positions].any():
                whole = jax.tree.map(np.add, whole, arrays)
        accepted, total, uploads = fine & self._answered[cohort], whole.get("total", ()), whole.get("uploads", ())
        if "parts" in whole:
            total, found = self._decoded(request, whole["parts"], request.clients.only(accepted))
            uploads = found.upload
            if wire.guard is not None:
                accepted = accepted & np.asarray(found.accepted)
        return Response(total, uploads, accepted if wire.excludes else ())

    def _secure_sum(self, request: Request, at_nodes: AtNodes, messages: NodeMessages) -> Asking[Tree]:
        """The masked sum over the nodes that answer; the server learns only that."""
        assert self._secure is not None and request.wire.secure is not None
        zero = _zeros(self._sum_form(request))
        if not messages:
            return zero
        lost = lambda which, why: self._node_lost(which, at_nodes[which][0], why)  # noqa: E731
        bits, size = request.wire.secure.bits, masks.flat(zero).size
        try:
            summed, heads = yield from self._secure.sum(messages, size, bits, lost)
        except Repeated:  # asked over other nodes before the server was stopped: the round has no sum
            for positions, _ in at_nodes.values():
                self._answered[positions] = False
            return zero
        for which, head in heads.items():
            self._count_done(which, head)
            self._versions[request.clients.ids[at_nodes[which][0]]] = self._version(request)
        return masks.tree_of(summed, zero)

    def _version(self, request: Request) -> int:
        """The version of a client's memory after an exchange."""
        return version_after(request.stage, self.index, request.number)

    def _download(self, request: Request, group: int | None = None) -> Tree:
        """The download as it is on the wire. ``group``: what its random numbers are from; default: the round."""
        method, inputs = resolve(self.job.hyper.method, self.index), self.inputs(request)
        if (down := self.job.hyper.wire.down) is None:
            return (request.exchange.download or method.download)(request.server)
        if group is not None:
            inputs = (inputs[0]._replace(method=method), *inputs[1:3], np.int32(group))
        tree = downloaded(inputs, stage=request.stage, number=request.number)
        layout = Layout.of(self._form(request).download)
        return layout.packed(jax.tree.map(lambda leaf: np.asarray(leaf)[None], layout.parts(tree)), down, 1)

    def _form(self, request: Request) -> ExchangeForm:
        """The form of an exchange."""
        return self._forms[STAGES.index(request.stage)][request.number]

    def _layout(self, request: Request) -> Layout:
        """The layout of its uploads."""
        form = self._form(request)
        return Layout.of(form.upload, form.first)

    def _sum_form(self, request: Request) -> Tree:
        """The form of an exchange's sum. It is the same in all rounds: tracing it took most of the server's time."""
        key = request.stage, request.number
        if key not in self._sums:
            form, wire, none = self._form(request), request.wire, jnp.zeros(())
            usual = dataclasses.replace(wire, faults=None)  # faults do not change a form

            def weighted(upload: Tree, download: Tree) -> Tree:
                return wire.weighted(usual.sent(upload, np.zeros((), np.int32), 1, download)[0], none, none)

            self._sums[key] = jax.eval_shape(weighted, form.upload, form.download)
        return self._sums[key]

    def _answer_form(self, request: Request, size: int) -> dict[str, Tree]:
        """The form of what ``size`` clients send: their sum, or uploads one by one, which may have messages."""
        layout = self._layout(request)
        if request.exchange.server is None:
            return {}
        if layout.messages:
            return {"letters": layout.on_wire(self._up, size)}
        if not request.wire.gathers:
            return {"total": self._sum_form(request)}
        several = lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype)  # noqa: E731
        return {"uploads": jax.tree.map(several, self._form(request).upload)}

    def _decoded(self, request: Request, parts: Tree, clients: Clients) -> tuple[Tree, ClientResult]:
        """The weighted sum of uploads that have messages, and the result of each client."""
        inputs, static = self.inputs(request), self.static(request)
        found: tuple[Tree, ClientResult] = read_encoded(inputs, parts, clients, layout=self._layout(request), **static)
        return found

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
        arrays = {"download": jax.tree.map(np.asarray, download)}
        return self._question("exchange", request.stage, self.index, request.number, facts | told, arrays)

    def _question(
        self, kind: str, stage: str, index: int, number: int, told: dict[str, Unknown], arrays: dict[str, Tree]
    ) -> Message:
        head = {
            "kind": kind, "agreement": self._digest, "stage": stage, "round": index, "exchange": number, "told": told,
        }  # fmt: skip
        return Message(head, packed(arrays))

    def _read(self, which: int, answer: Message, request: Request, size: int) -> dict[str, Tree]:
        """The arrays of a node's answer in an exchange; those of messages are in ``parts``."""
        wanted, layout = self._answer_form(request, size), self._layout(request)
        if request.wire.guard is not None and not layout.messages:
            wanted["accepted"] = jax.ShapeDtypeStruct((size,), bool)
        arrays = self._opened(which, answer, wanted)
        self._count_done(which, answer.head)
        if "letters" in arrays:
            answer_name = f"clients {self.fleet.names(which)}: the answer"
            return {"parts": layout.unpacked(arrays["letters"], self._up, answer_name)}
        return arrays

    def _count_done(self, which: int, head: dict[str, Unknown]) -> None:
        """Count the work that a node reports for its clients."""
        counters = head.get("tally")
        if (
            not isinstance(counters, list)
            or len(counters) != 2
            or not all(type(n) is int and 0 <= n < 2**31 for n in counters)
        ):
            raise NodeError(f"clients {self.fleet.names(which)}: the answer counts {counters!r} steps and gradients")
        self._done[1:] += counters

    def _opened(self, which: int, answer: Message, wanted: Mapping[str, Tree]) -> dict[str, Tree]:
        """The arrays of an answer."""
        return unpacked(answer.tensors, wanted, f"clients {self.fleet.names(which)}: the answer")

    def _plausible(self, arrays: dict[str, Tree], size: int) -> np.ndarray:
        """[size] whether uploads, or their sum, are within the guard's limits, whatever the node says of them."""
        fine, guard = np.ones(size, bool), self.job.hyper.wire.guard
        if guard is not None:
            most = float(guard.largest) * size * self.job.plan.num_clients
            for leaf in jax.tree.leaves(arrays.get("total")):
                fine &= bool(np.all(np.abs(leaf) <= most))
            for leaf in jax.tree.leaves(arrays.get("uploads")):
                fine &= np.all(np.abs(leaf.reshape(size, -1)) <= float(guard.largest), axis=1)
        return fine

    def _node_lost(self, which: int, places: np.ndarray, repeated: str | None) -> None:
        """Go on without the clients of a node, in these places of the cohort, or raise where that cannot be.

        ``repeated``: why it refuses to answer this exchange again, after it did before the server was stopped;
        ``None``: it did not answer in time.
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
        self._answered[places] = False

    def _tally(self) -> Counters:
        """The work done since the last call."""
        counters, self._done = Counters(*self._done.tolist()), np.zeros(3, np.int64)
        return counters


def agreement_of(job: Job, fleet: Fleet, config: dict[str, Unknown], number: int, program: str) -> Agreement:
    """The agreement of a run over the nodes of a fleet.

    Args:
        job, fleet, config, number: as of :class:`Remote`.
        program: the digest of the job's program.
    """
    whole, frozen = fleet.whole.census, job.plan.task.frozen
    usual = {"sizes": whole.sizes / whole.sizes.sum(), "uniform": np.full(len(whole.sizes), 1 / len(whole.sizes))}
    known = [name for name, each in usual.items() if np.array_equal(whole.weights, each)]
    weights = known[-1] if known else tuple(map(float, whole.weights))
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


def write_rows(all_: Tree, positions: np.ndarray | int, part: Tree) -> None:
    """Write the rows of some clients of the cohort."""
    jax.tree.map(lambda whole, rows: whole.__setitem__(positions, rows), all_, part)


def _zeros(forms: Tree) -> Tree:
    """Zero arrays of these forms, to add to, or to write into."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), forms)
