"""Secure sums, the server's side: it asks nodes for masked numbers, and learns their sum (:mod:`.masks`)."""

import secrets
from collections.abc import Callable, Collection, Generator, Mapping

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.errors import NodeError
from fedax.sites.protocol import masks
from fedax.sites.protocol.answered import Repeated
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message

NodeMessages = dict[int, Message]  # by node
NodeAnswers = dict[int, Message | None]  # by node; None of one that does not answer in time
Opened = Callable[[int, Message, Mapping[str, Tree]], dict[str, Tree]]


class SecureSums:
    """The secure sums of a run.

    Args:
        fleet: the nodes.
        keys: their signed keys.
        threshold: as of :class:`fedax.SecureSum`.
        opened: gives the arrays of a node's answer, after a check of their forms.
    """

    def __init__(self, fleet: Fleet, keys: Mapping[int, masks.Key], threshold: int | None, opened: Opened):
        self._fleet, self._keys, self._threshold, self._opened = fleet, keys, threshold, opened

    def sum(
        self, asked: NodeMessages, question: str, size: int, bits: int, lost: Callable[[int, str | None], None]
    ) -> Generator[NodeMessages, NodeAnswers, tuple[np.ndarray, dict[int, dict[str, Unknown]]]]:
        """The sum over the nodes that answer, and the heads of their answers; yields messages, and is sent answers.

        Args:
            asked: the message to each node, as it would be without masks.
            question: a digest of the question that all of them have in common.
            size: how many whole numbers each node has.
            bits: of each.
            lost: is called with a node that is lost on the way, and why it refuses, if it does.

        Raises:
            NodeError: too few nodes are left, or one answers something else than it was asked.
            Repeated: a node has answered this for another sum before.
        """
        order = sorted(asked)
        nodes, least = len(order), masks.least(len(order), self._threshold)
        index = asked[order[0]].head["round"] if order else 0
        self._check_enough(order, nodes, least, index)
        session = secrets.randbits(31)
        told: dict[str, Unknown] = {"session": session, "threshold": least, "question": question}
        told["keys"] = [self._keys[which]._asdict() for which in order]
        # First, the nodes offer masks.
        messages = {which: _with(asked[which], "offer", told | {"position": k}, b"") for k, which in enumerate(order)}
        offers = {}
        for which, (answer, _) in (yield from self._ask(messages, {}, lost)).items():
            try:
                offers[which] = masks.Offer.of(answer["offer"], order.index(which), nodes)
            except (LookupError, NodeError) as error:
                raise NodeError(f"clients {self._fleet.names(which)}: its masks are none ({error})") from error
        self._note_lost(order, offers, lost)
        self._check_enough(offers, nodes, least, index)
        # Second, they send masked sums.
        messages = {}
        for which in offers:
            received = {str(order.index(other)): offers[other].to(order.index(which)) for other in sorted(offers)}
            messages[which] = _with(asked[which], None, {"offers": received, "session": session})
        form = {"masked": jax.ShapeDtypeStruct((size * bits // 8,), np.uint8)}
        answers = yield from self._ask(messages, form, lost)
        self._note_lost(offers, answers, lost)
        self._check_enough(answers, nodes, least, index)
        # Third, they agree whose sums are added, and reveal the shares that remove the masks.
        told = {"session": session, "survivors": sorted(order.index(which) for which in answers)}
        replies = yield from self._ask({which: _with(asked[which], "agree", told, b"") for which in answers}, {}, lost)
        self._check_enough(replies, nodes, least, index)
        told = {"session": session}
        told["agreed"] = {str(order.index(which)): answer.get("agreed") for which, (answer, _) in replies.items()}
        replies = yield from self._ask({which: _with(asked[which], "unmask", told, b"") for which in replies}, {}, lost)
        self._check_enough(replies, nodes, least, index)
        head = asked[order[0]].head
        summed = masks.total(
            "/".join(str(head[name]) for name in ("agreement", "stage", "round", "exchange")) + f"/{session}",
            {order.index(which): arrays["masked"] for which, (_, arrays) in answers.items()},
            {order.index(which): offer for which, offer in offers.items()},
            {order.index(which): answer.get("told") for which, (answer, _) in replies.items()},
            least,
            bits,
        )
        return summed, {which: answer for which, (answer, _) in sorted(answers.items())}

    def _ask(
        self, messages: NodeMessages, wanted: Mapping[str, Tree], lost: Callable[[int, str | None], None]
    ) -> Generator[NodeMessages, NodeAnswers, dict[int, tuple[dict[str, Unknown], dict[str, Tree]]]]:
        """The answers of the nodes that do answer, and still have the secrets of the exchange."""
        answers = yield messages
        for which, answer in answers.items():
            if answer is not None and "repeated" in answer.head:
                lost(which, str(answer.head["repeated"]))
                raise Repeated(str(answer.head["repeated"]))
        return {
            which: (answer.head, self._opened(which, answer, wanted))
            for which, answer in answers.items()
            if answer is not None and answer.head.get("lost") is not True
        }

    @staticmethod
    def _note_lost(asked: Collection[int], answered: Collection[int], lost: Callable[[int, str | None], None]) -> None:
        for which in asked:
            if which not in answered:
                lost(which, None)

    def _check_enough(self, left: Collection[int], nodes: int, least: int, index: int) -> None:
        """Raise a NodeError where too few nodes are left for a sum that hides each of them."""
        if nodes < least:
            raise NodeError(
                f"in round {index} clients are asked at {nodes} nodes, and at {least} they have to be for a sum that "
                "hides each node: take more nodes, or a larger cohort"
            )
        if len(left) < least:
            raise NodeError(
                f"{len(left)} of {nodes} nodes are left in round {index}, and {least} have to be for a sum that hides "
                "each node; --resume goes on when they are back"
            )


def _with(message: Message, kind: str | None, told: Mapping[str, Unknown], tensors: bytes | None = None) -> Message:
    """The message to a node as a part of a secure sum; ``kind``: another one."""
    head = {**message.head, "kind": kind or message.head["kind"], "told": {**message.head["told"], **told}}
    return Message(head, message.tensors if tensors is None else tensors)
