"""Secure sums, the server's side: it asks nodes for masked numbers, and learns their sum (:mod:`.masks`)."""

import secrets
from collections.abc import Callable, Collection, Generator, Mapping
from typing import TypeVar

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.errors import NodeError
from fedax.sites.protocol import masks
from fedax.sites.protocol.agreement import common_question
from fedax.sites.protocol.answered import Repeated
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message

_Result = TypeVar("_Result")
NodeMessages = dict[int, Message]  # by node
NodeAnswers = dict[int, Message | None]  # by node; None of one that does not answer in time
Asking = Generator[NodeMessages, NodeAnswers, _Result]  # asks nodes until it has its result
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
        self, asked: NodeMessages, model: str, size: int, bits: int, lost: Callable[[int, str | None], None]
    ) -> Asking[tuple[np.ndarray, dict[int, dict[str, Unknown]]]]:
        """The sum over the nodes that answer, and the heads of their answers; yields messages, and is sent answers.

        Args:
            asked: the message to each node, as it would be without masks.
            model: the digest of the download that all of them have in common.
            size: how many whole numbers each node has.
            bits: of each.
            lost: is called with a node that is lost on the way, and why it refuses, if it does.

        Raises:
            NodeError: too few nodes are left, or one answers something else than it was asked.
            Repeated: a node has answered this for another sum before.
        """
        order, session = sorted(asked), secrets.randbits(31)  # nodes are known by their positions in it
        least, head = masks.least(len(order), self._threshold), asked[order[0]].head
        if len(order) < least:
            raise NodeError(
                f"in round {head['round']} clients are asked at {len(order)} nodes, and at {least} they have to be for "
                "a sum that hides each node: take more nodes, or a larger cohort"
            )

        def ask(
            positions: Collection[int], kind: str | None, told: Callable[[int], dict[str, Unknown]], wanted: Tree = None
        ) -> Asking[dict[int, tuple[dict[str, Unknown], dict[str, Tree]]]]:
            """The answers of the nodes that do answer, and still have the secrets of the exchange."""
            answers = yield {order[k]: _part(asked[order[k]], kind, {"session": session} | told(k)) for k in positions}
            found = {}
            for which, answer in answers.items():
                if answer is not None and "repeated" in answer.head:
                    lost(which, str(answer.head["repeated"]))
                    raise Repeated(str(answer.head["repeated"]))
                if answer is not None and answer.head.get("lost") is not True:
                    found[order.index(which)] = answer.head, self._opened(which, answer, wanted or {})
            for k in positions if kind in ("offer", None) else ():  # later its sum is there, whatever becomes of it
                if k not in found:
                    lost(order[k], None)
            if len(found) < least:
                raise NodeError(
                    f"{len(found)} of {len(order)} nodes are left in round {head['round']}, and {least} have to be for "
                    "a sum that hides each node; --resume goes on when they are back"
                )
            return dict(sorted(found.items()))

        # First, the nodes offer masks.
        question = common_question(head["agreement"], head["stage"], head["round"], head["exchange"], model)
        keys = [self._keys[which]._asdict() for which in order]
        told = {"threshold": least, "question": question, "keys": keys}
        replies = yield from ask(range(len(order)), "offer", lambda k: told | {"position": k})
        offers = {}
        for k, (answer, _) in replies.items():
            try:
                offers[k] = masks.Offer.of(answer["offer"], k, len(order))
            except (LookupError, NodeError) as error:
                raise NodeError(f"clients {self._fleet.names(order[k])}: its masks are none ({error})") from error
        # Second, they send masked sums.
        form = {"masked": jax.ShapeDtypeStruct((size * bits // 8,), np.uint8)}
        offered = lambda k: {"offers": {str(other): offer.to(k) for other, offer in offers.items()}}  # noqa: E731
        sums = yield from ask(offers, None, offered, form)
        # Third, they agree whose sums are added, and reveal the shares that remove the masks.
        replies = yield from ask(sums, "agree", lambda k: {"survivors": [*sums]})
        agreed = {str(k): answer.get("agreed") for k, (answer, _) in replies.items()}
        replies = yield from ask(replies, "unmask", lambda k: {"agreed": agreed})
        summed = masks.total(
            "/".join(str(head[name]) for name in ("agreement", "stage", "round", "exchange")) + f"/{session}",
            {k: arrays["masked"] for k, (_, arrays) in sums.items()},
            offers,
            {k: answer.get("told") for k, (answer, _) in replies.items()},
            least,
            bits,
        )
        return summed, {order[k]: answer for k, (answer, _) in sums.items()}


def _part(message: Message, kind: str | None, told: Mapping[str, Unknown]) -> Message:
    """The message to a node as a part of a secure sum. ``kind``: another one, which needs no arrays."""
    head = message.head | {"kind": kind or message.head["kind"], "told": message.head["told"] | told}
    return Message(head, message.tensors if kind is None else b"")
