"""The server's side: a run at a link, and messages to its nodes."""

import datetime
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import flwr.app
import httpx
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedax.engine.places.nodes import Failure, Message, Talk
from fedax.errors import NodeError
from fedax.flower import require
from fedax.flower.app import build
from fedax.flower.calls import Retries, Secret, control, over_tls, poll_often
from fedax.flower.certificates import connection_problem
from fedax.flower.records import FlowerMessage, pack, unpack

_GONE = {  # Flower's errors that mean that a node is not there, or was not for a moment
    ErrorCode.MESSAGE_UNAVAILABLE: "the message or its answer was lost on the way",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "the answer was lost on the way",
    ErrorCode.NODE_UNAVAILABLE: "the node is gone",
    ErrorCode.CLIENT_APP_CRASHED: "the node's worker is gone",
}
_FIRST_LOOK, _LONGEST_LOOK = 0.1, 0.5  # seconds between looks for answers
_ROLL_CALL = 2.0  # seconds between looks whether nodes were restarted
_SPARE = 2.0  # seconds by which a message outlives the wait for its answer, so that this side gives up first
_EXPIRY = 65.0  # seconds after which a link has noticed that a server was killed
_FRESH = 1.0  # seconds for which the list of nodes is not asked for again
_SMALL = 1 << 20  # bytes of a message that is sent with others
_PATIENCE = 30.0  # seconds in which a link may come back


class _Asked(NamedTuple):
    """A message that waits for its answer: the node, until when, and when the node was activated as it was sent."""

    node: int
    until: float
    activated: str | None


class FlowerTransport:
    """A ``fedax.engine.places.nodes.Transport`` over one of Flower's grids, in a run that has begun.

    Args:
        grid: an ``HttpGrid`` with its run set, or the grid that Flower's simulation gives a ServerApp.
        ahead: seconds by which the link's clock is ahead of this machine's.
    """

    def __init__(self, grid: Grid, ahead: float = 0.0):
        self._grid, self._ahead = grid, ahead
        self._seen: tuple[float, dict[int, str]] = (
            -math.inf,
            {},
        )  # time of the last list; activations
        self.sent = self.received = 0

    def nodes(self) -> list[int]:
        """The nodes that are there now, in ascending order.

        Raises:
            NodeError: the link cannot be reached, or has ended the run.
        """
        return sorted(self._since() if isinstance(self._grid, HttpGrid) else self._grid.get_node_ids())

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        """Ask some nodes.

        Args:
            messages: by the node's number.
            timeout: seconds from now, above 0.

        Yields:
            Of each node its answer as it comes, or a failure.

        Raises:
            NodeError: the link cannot be reached, or has ended the run.
        """
        talk = self.talk(timeout)
        next(talk)
        came, waiting = talk.send(messages), len(messages)
        while True:
            yield from came
            waiting -= len(came)
            if not waiting:
                return
            came = talk.send({})

    def talk(self, timeout: float) -> Talk:
        """Ask nodes without an end: it is sent messages, and yields answers and failures, look by look.

        Args:
            timeout: seconds that each message has from when it is sent, above 0.

        Raises:
            NodeError: the link cannot be reached, or has ended the run.
        """
        waiting: dict[str, _Asked] = {}  # by the number of the message
        pause, roll_call = _FIRST_LOOK, time.monotonic() + _ROLL_CALL
        came: list[tuple[int, Message | Failure]] = []
        while True:
            messages = yield came
            came = []
            if messages:
                came, pause = self._send(messages, timeout, waiting), _FIRST_LOOK
            if not came:
                until = min((each.until for each in waiting.values()), default=math.inf)
                time.sleep(max(0.0, min(pause, until - time.monotonic())))
            replies = list(self._grid.pull_messages(list(waiting))) if waiting else []
            for reply in replies:
                node = waiting.pop(reply.metadata.reply_to_message_id).node
                self.received += _size(reply)
                came.append((node, _answer(reply)))
            for number, each in list(waiting.items()):
                if time.monotonic() >= each.until:
                    del waiting[number]
                    came.append((each.node, Failure(f"no answer in {timeout:g} s", True)))
            if waiting and time.monotonic() >= roll_call:
                now, roll_call = self._since(), time.monotonic() + _ROLL_CALL
                for number, each in list(waiting.items()):
                    if each.activated and now.get(each.node, each.activated) != each.activated:
                        del waiting[number]
                        came.append((each.node, Failure("the node was restarted while it was asked", True)))
            pause = _FIRST_LOOK if replies else min(1.3 * pause, _LONGEST_LOOK)

    def _send(
        self, messages: Mapping[int, Message], timeout: float, waiting: dict[str, "_Asked"]
    ) -> list[tuple[int, Message | Failure]]:
        """Send messages, and note them as waiting; failures of those that cannot be sent."""
        at, since = self._seen
        if time.monotonic() - at > _FRESH:
            since = self._since()
        failures: list[tuple[int, Message | Failure]] = []
        until = time.monotonic() + timeout
        for nodes in _parcels(messages):
            requests = []
            for node in nodes:
                # A node that comes too late for this answer does not begin with it.
                request = FlowerMessage(pack(messages[node]), node, "query", ttl=timeout + _SPARE)
                request.metadata.created_at += self._ahead
                requests.append(request)
            sizes = [_size(each) for each in requests]
            numbers = list(self._grid.push_messages(requests)) or [""] * len(requests)
            for node, number, size in zip(nodes, numbers, sizes, strict=True):
                if not number:
                    failures.append((node, Failure("the link does not take messages for this node", True)))
                    continue
                self.sent += size
                waiting[number] = _Asked(node, until, since.get(node))
        return failures

    def _since(self) -> dict[int, str]:
        """When each node that is there was activated; empty for a simulation, whose nodes do not come and go."""
        if not isinstance(self._grid, HttpGrid):
            return {}
        activated = {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}
        self._seen = time.monotonic(), activated
        return activated


def _parcels(messages: Mapping[int, Message]) -> list[list[int]]:
    """Groups of nodes whose messages go to the link in one request: all small ones together, each large one alone."""
    small = [node for node, message in messages.items() if message.size <= _SMALL]
    return ([small] if small else []) + [[node] for node, message in messages.items() if message.size > _SMALL]


@contextmanager
def connect(
    address: str, ca: str | Path, secret: str, *, say: Callable[[str], None] = print
) -> Iterator[FlowerTransport]:
    """A new run at a link, for as long as the context lasts; it ends with the context, also after an error.

    Args:
        address: of the link, ``host:port``.
        ca: the file ``ca.pem`` of the link's folder.
        secret: what is in the file ``secret`` of the link's folder.
        say: is called with lines for people.

    Raises:
        NodeError: there is no link, it is not the right one, it refuses the secret, or another run is under way.
        ConfigError: the address or the file cannot be used.
    """
    require()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    poll_often()
    if reason := connection_problem(address, Path(ca)):
        raise NodeError(f"the link at {address} cannot be reached ({reason}); start it with `fedax deploy link`")
    ca = Path(ca)
    retries = Retries(address, _PATIENCE)
    commands = control(address, ca, secret)
    try:
        ahead = _wait_for_others(commands, address, say)
        number, token = _begin(commands, address, ca, secret, retries)
    finally:
        commands.close()
    grid = _Grid(address, ca, secret, token, retries)
    pulse = _runtime(address, ca, secret, token)
    beat = HeartbeatSender(lambda: _lives(pulse))
    status, details = SubStatus.FAILED, ""
    try:
        beat.start()
        task = grid.runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, number
        TaskIdentity.node_id = context_from_proto(task.context).node_id
        grid.set_run(run_from_proto(task.run))
        yield FlowerTransport(grid, ahead)
        status = SubStatus.COMPLETED
    except BaseException as error:
        details = f"{type(error).__name__}: {error}"[:1000]
        raise
    finally:
        retries.seconds = 0.0  # an end must not wait for a link that is gone
        with suppress(NodeError):  # the link has ended the run already, or notices in a minute that nobody is there
            grid.runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        if beat.is_running:
            beat.stop()
        pulse.close()
        grid.close()


class _Grid(HttpGrid):
    """Flower's grid with the link's secret, and with fedax's errors instead of signals."""

    def __init__(self, address: str, ca: Path, secret: str, token: str, retries: Retries):
        super().__init__(address, False, ca.read_bytes(), token=token)
        self._client = _runtime(address, ca, secret, token, retries)

    @property
    def runtime(self) -> RuntimeHttpClient:
        return self._runtime_client


def _runtime(
    address: str, ca: Path, secret: str, token: str | None = None, retries: Retries | None = None
) -> RuntimeHttpClient:
    headers: list[ProtobufClientInterceptor] = [
        Secret(secret),
        *([RuntimeTokenHttpInterceptor(token)] if token else []),
    ]
    return over_tls(RuntimeHttpClient, address, ca, headers, retries)


def _wait_for_others(commands: ControlHttpClient, address: str, say: Callable[[str], None]) -> float:
    """Wait until no other run is under way. A killed server's run counts for up to a minute; longer ones are an error.

    Returns:
        Seconds by which the link's clock is ahead of this machine's.
    """
    until, announced = time.monotonic() + _EXPIRY, False
    while True:
        listed = commands.ListRuns(ListRunsRequest(limit=20))
        runs = listed.run_dict.items()
        others = [number for number, run in runs if run.status.status in (Status.STARTING, Status.RUNNING)]
        if not others:
            return datetime.datetime.fromisoformat(listed.now).timestamp() - time.time()
        if time.monotonic() >= until:
            raise NodeError(
                f"another run ({others[0]}) is under way at the link at {address}, and nodes do one thing at a time: "
                "wait for its end, or use a link of its own"
            )
        if not announced:
            say(f"another run is under way at {address}, or its server was killed: waiting up to {_EXPIRY:g} s")
            announced = True
        time.sleep(1.0)


def _begin(commands: ControlHttpClient, address: str, ca: Path, secret: str, retries: Retries) -> tuple[int, str]:
    """Start a run and take its task; tasks left over from commands that died before taking them are failed."""
    fab = build()
    number = commands.StartRun(StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})))).run_id
    try:
        with _runtime(address, ca, secret, retries=retries) as runtime:
            while (task := runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))).token:
                if task.task.run_id == number:
                    return number, task.token
                with _runtime(address, ca, secret, task.token, retries) as old:
                    gone = "the command that started this run ended before the run began"
                    old.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=gone))
        raise NodeError(f"another command has taken this run at the link at {address}; start again")
    except BaseException:
        with suppress(NodeError):  # it is finished, or the link is gone: the error that is under way says more
            commands.StopRun(StopRunRequest(run_id=number))
        raise


def _lives(client: RuntimeHttpClient) -> bool:
    """Tell the link that this server is there; ``False``: try again."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.TransportError:
        return False
    except httpx.HTTPStatusError as error:
        return error.response.status_code < 500  # that a run is over shows at the next question
    return True


def _answer(reply: flwr.app.Message) -> Message | Failure:
    if reply.has_error():
        code = reply.error.code
        return Failure(_GONE.get(code, reply.error.reason or "an error without a reason"), code in _GONE)
    try:
        return unpack(reply.content)
    except ValueError as error:
        return Failure(str(error), False)


def _size(message: flwr.app.Message) -> int:
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
