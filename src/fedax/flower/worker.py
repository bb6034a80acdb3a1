"""``python -m fedax.flower.worker``: answers a node's messages one after the other, in one process that keeps running.

It takes tasks from the SuperNode as Flower's own executor does. The app that comes with a message is run only if it is
the app that this fedax builds, which runs this installation's code, or an app that the node's owner trusts.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import flwr.app
import httpx
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, context_to_proto, fab_from_proto, run_from_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import push_message

from fedax._start import collect_rarely
from fedax.errors import FedaxError
from fedax.flower import client_app
from fedax.flower.app import app_hash, own_hash

_LOOK = 0.5  # seconds between polls for a task; a SuperNode polls its link even less often
_SOON, _RECENT = 0.05, 5.0  # seconds between polls during a run, until so many seconds after its last task
_PART = 0.1  # seconds: the longest pause between polls for a task's message


class Untrusted(FedaxError):
    """A message came with an app that the node's owner does not trust."""


class Worker:
    """Answers the messages of one SuperNode.

    Args:
        address: of the SuperNode's Runtime API.
        secret: of the same.
        trusted: :func:`fedax.flower.app.app_hash` of apps whose code may be run.
    """

    def __init__(self, address: str, secret: bytes, trusted: Sequence[str] = ()):
        self._trusted = frozenset(trusted)
        self._apps: dict[bytes, ClientApp] = {}
        self._token = _Token()
        acquire = SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
        )
        self._client = RuntimeHttpClient.from_server_address(address, True, None, [acquire, self._token])

    def run(self) -> None:
        """Answer messages for ever."""
        request, last = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]), -_RECENT
        while True:
            try:
                task = self._client.AcquireTask(request)
                if task.token:
                    self._token.value = task.token
                    self._one()
                    last = time.monotonic()
                    continue
            # The SuperNode is gone and may come back, or it has given up the task.
            except (httpx.HTTPError, ObjectPullError, ObjectPushError) as error:
                if self._token.value:
                    print(f"a message is left without an answer: {error}", file=sys.stderr, flush=True)
            finally:
                self._token.value = ""
            time.sleep(_SOON if time.monotonic() - last < _RECENT else _LOOK)

    def _one(self) -> None:
        beat = HeartbeatSender(self._beat)
        beat.start()
        status, details = SubStatus.COMPLETED, ""
        try:
            task = self._client.PullTaskInput(PullTaskInputRequest())
            context, run, fab = context_from_proto(task.context), run_from_proto(task.run), fab_from_proto(task.fab)
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, run.run_id
            TaskIdentity.node_id = context.node_id
            message = self._message(context)
            try:
                reply = self._app(run, fab)(message=message, context=context)
            except Exception as error:
                details = str(error) if isinstance(error, Untrusted) else f"{type(error).__name__}: {error}"
                print(details, file=sys.stderr, flush=True)
                status = SubStatus.FAILED
                reply = flwr.app.Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
            push_message(self._client, reply, context)
            self._client.PushTaskOutput(
                PushTaskOutputRequest(context=context_to_proto(context), sub_status=status, details=details)
            )
        finally:
            beat.stop()

    def _message(self, context: flwr.app.Context) -> flwr.app.Message:
        # The task arrives a moment before its message, and the message before its parts.
        while not (pulled := self._client.PullMessages(PullAppMessagesRequest())).messages_list:
            time.sleep(_PART / 10)
        tree: ObjectTree = pulled.message_object_trees[0]
        node = Node(node_id=context.node_id)
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._client.PullObject, node, context.run_id),
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, node, context.run_id),
            return_type=flwr.app.Message,
            max_tries_per_object=None,
            initial_backoff=_PART / 10,
            backoff_cap=_PART,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _app(self, run: Run, fab: Fab) -> ClientApp:
        if fab.content not in self._apps:
            digest = app_hash(fab.content)
            if digest == own_hash():
                self._apps[fab.content] = client_app.app
            elif digest in self._trusted:
                from flwr.cli.install import install_from_fab  # slow to import, and rarely needed
                from flwr.clientapp.utils import get_load_client_app_fn

                install_from_fab(fab.content, skip_prompt=True)
                load = get_load_client_app_fn("", None, True)
                self._apps[fab.content] = load(run.fab_id, run.fab_version, fab.hash_str)
            else:
                raise Untrusted(
                    f"this node does not run the app {run.fab_id} {run.fab_version}: it is not fedax's own; "
                    f"its owner can trust it with --trusted {digest}"
                )
        return self._apps[fab.content]

    def _beat(self) -> bool:
        try:
            self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError:
            pass  # the SuperNode has given up the task: handing over the answer will fail
        return True


class _Token:
    """Adds the token of the task that is at work to requests."""

    value = ""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        if self.value:
            context.request.headers[TASK_TOKEN_HEADER] = self.value
        return call_next(context)


def main(arguments: Sequence[str]) -> int:
    """Make the answering function and answer.

    ``--factory MODULE:NAME`` is called with the object of ``--arguments JSON`` as keywords.
    """
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.worker")
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--secret-file", required=True)
    parser.add_argument("--factory", required=True)
    parser.add_argument("--arguments", default="{}")
    parser.add_argument("--trusted", action="append", default=[])
    given = parser.parse_args(arguments)
    collect_rarely()
    module, _, name = given.factory.partition(":")
    try:
        client_app.answer = getattr(importlib.import_module(module), name)(**json.loads(given.arguments))
    except FedaxError as error:
        print(error, file=sys.stderr)
        return 2
    Worker(given.runtime, Path(given.secret_file).read_bytes(), given.trusted).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
