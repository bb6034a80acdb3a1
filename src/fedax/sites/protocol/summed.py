"""Secure sums, the server's side: it asks nodes for masked numbers, and learns their sum (:mod:`.masks`)."""

import itertools
import secrets
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.errors import NodeError
from fedax.sites.protocol import masks
from fedax.sites.protocol.answered import Repeated
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message

_Result = TypeVar("_Result")
NodeMessages = dict[int, Message]  # by node
NodeAnswers = dict[int, Message | None]  # by node; None of one that does not answer in time
Asking = Generator[NodeMessages, NodeAnswers, _Result]  # asks nodes until it has its result
Opened = Callable[[int, Message, Mapping[str, Tree]], dict[str, Tree]]
_Replies = dict[int, tuple[dict[str, Unknown], dict[str, Tree]]]  # by position: heads and arrays
_AHEAD = 4  # the most exchanges for which nodes have offered masks ahead: two sums are under way at a time


class _Offers(NamedTuple):
    """What nodes have offered for an exchange.

    Attributes:
        session: its number.
        order: the nodes that were asked.
        of: the offers, by the position of a node among these.
    """

    session: int
    order: list[int]
    of: dict[int, masks.Offer]


class SecureSums:
    """The secure sums of a run.

    Args:
        fleet: the nodes.
        keys: their signed keys.
        threshold: as of :class:`fedax.SecureSum`.
        opened: gives the arrays of a node's answer, after a check of their forms.
    """

    def __init__(self, fleet: Fleet, keys: Mapping[int, masks.Key], threshold: int | None, opened: Opened):
        self.fleet, self.keys, self.threshold, self.opened = fleet, keys, threshold, opened
        self.sessions = itertools.count(secrets.randbits(30))
        self.ahead: list[_Offers] = []  # for the next exchanges

    def sum(
        self, asked: NodeMessages, size: int, bits: int, lost: Callable[[int, str | None], None]
    ) -> Asking[tuple[np.ndarray, dict[int, dict[str, Unknown]]]]:
        """The sum over the nodes that answer, and the heads of their answers; yields messages, and is sent answers.

        Args:
            asked: the message to each node, as it would be without masks.
            size: how many whole numbers each node has.
            bits: of each.
            lost: is called with a node that is lost on the way, and why it refuses, if it does.

        Raises:
            NodeError: too few nodes are left, or one answers something else than it was asked.
            Repeated: a node has answered this for another sum before.
        """
        return (yield from _Sum(self, asked, size * bits // 8, lost).summed(bits))


class _Sum:
    """One secure sum; nodes are known by their positions among those that are asked."""

    def __init__(self, sums: SecureSums, asked: NodeMessages, size: int, lost: Callable[[int, str | None], None]):
        self._sums, self._asked, self._lost, self._order = sums, asked, lost, sorted(asked)
        self._form = {"masked": jax.ShapeDtypeStruct((size,), np.uint8)}
        self._least, self._round = masks.least(len(asked), sums.threshold), asked[self._order[0]].head["round"]
        if len(asked) < self._least:
            raise NodeError(
                f"in round {self._round} clients are asked at {len(asked)} nodes, and at {self._least} they have to be "
                "for a sum that hides each node: take more nodes, or a larger cohort"
            )

    def summed(self, bits: int) -> Asking[tuple[np.ndarray, dict[int, dict[str, Unknown]]]]:
        """As :meth:`SecureSums.sum`."""
        sums, order, masked = self._sums, self._order, None
        offers = next((each for each in sums.ahead if each.order == order), None)
        if offers is not None:
            sums.ahead.remove(offers)
            masked = yield from self._masked(offers, True)
        if offers is None or masked is None:
            offers = yield from self._offered()
            masked = yield from self._masked(offers, False)
        assert masked is not None
        said = {k: self._read(k, masks.Statement, head, "said") for k, (head, _) in masked.items()}
        told: dict[int, dict[str, Unknown]] = {
            k: {"said": {str(j): each.to(k) for j, each in said.items()}, "agreed": {}} for k in said
        }
        if said.keys() != offers.of.keys():  # the others agree whose sums are added
            agreed = yield from self._ask("agree", offers, told)
            assert agreed is not None
            tags = {j: each if isinstance(each := head.get("agreed"), dict) else {} for j, (head, _) in agreed.items()}
            told = {
                k: {"said": {}, "agreed": {str(j): [tags[j].get(str(k), "" if j == k else None)] for j in tags}}
                for k in tags
            }
        session = next(sums.sessions)
        if whole := len(said) == len(order):
            told = {k: each | {"ahead": session} for k, each in told.items()}
        replies = yield from self._ask("unmask", offers, told)
        if whole and len(replies) == len(order):
            of = {k: self._offer(k, head) for k, (head, _) in replies.items()}
            sums.ahead = [*sums.ahead, _Offers(session, order, of)][-_AHEAD:]
        summed = masks.total(
            f"{self._asked[order[0]].head['agreement']}/{offers.session}",
            {k: arrays["masked"] for k, (_, arrays) in masked.items()},
            offers.of,
            {k: head.get("told") for k, (head, _) in replies.items()},
            self._least,
            bits,
        )
        return summed, {order[k]: head for k, (head, _) in masked.items()}

    def _offered(self) -> Asking[_Offers]:
        """Ask the nodes to offer masks."""
        keys = [self._sums.keys[which]._asdict() for which in self._order]
        offers = _Offers(next(self._sums.sessions), self._order, {})
        told = {k: {"threshold": self._least, "keys": keys, "position": k} for k in range(len(keys))}
        replies = yield from self._ask("offer", offers, told)
        return offers._replace(of={k: self._offer(k, head) for k, (head, _) in replies.items()})

    def _masked(self, offers: _Offers, ahead: bool) -> Asking[_Replies | None]:
        """The masked sums; ``None``: offers were made ahead, and a node has lost its secrets since."""
        told = {k: {"offers": {str(j): offer.to(k) for j, offer in offers.of.items()}} for k in offers.of}
        return (yield from self._ask(None, offers, told, ahead))

    def _ask(
        self, kind: str | None, offers: _Offers, told: Mapping[int, dict[str, Unknown]], ahead: bool = False
    ) -> Asking[Any]:
        """The heads and arrays of the nodes that answer, and still have the secrets of the exchange.

        Args:
            kind: of the message; ``None``: the one that the nodes would be asked without masks.
            offers: of the exchange.
            told: what each node is told.
            ahead: gives ``None`` where a node has lost its secrets.
        """
        answers = yield {
            self._order[k]: _part(self._asked[self._order[k]], kind, {"session": offers.session} | each)
            for k, each in told.items()
        }
        found: _Replies = {}
        for which, answer in answers.items():
            if answer is not None and "repeated" in answer.head:
                self._lost(which, str(answer.head["repeated"]))
                raise Repeated(str(answer.head["repeated"]))
            if answer is not None and answer.head.get("lost") is not True:
                arrays = self._sums.opened(which, answer, self._form if kind is None else {})
                found[self._order.index(which)] = answer.head, arrays
            elif answer is not None and ahead:
                return None
        for k in told if kind in ("offer", None) else ():  # later its sum is there, whatever becomes of it
            if k not in found:
                self._lost(self._order[k], None)
        if len(found) < self._least:
            raise NodeError(
                f"{len(found)} of {len(self._order)} nodes are left in round {self._round}, and {self._least} have to "
                "be for a sum that hides each node; --resume goes on when they are back"
            )
        return dict(sorted(found.items()))

    def _offer(self, k: int, head: Mapping[str, Unknown]) -> masks.Offer:
        offer = self._read(k, masks.Offer, head, "offer")
        if offer.shares.keys() != {str(j) for j in range(len(self._order)) if j != k}:
            raise self._wrong(k, "it has not the shares for the other nodes")
        return offer

    def _read(self, k: int, form: type[masks.Form], head: Mapping[str, Unknown], name: str) -> masks.Form:
        """An entry of a node's answer."""
        try:
            return masks.read(form, head.get(name))
        except NodeError as error:
            raise self._wrong(k, error) from error

    def _wrong(self, k: int, why: object) -> NodeError:
        return NodeError(f"clients {self._sums.fleet.names(self._order[k])}: its masks are none ({why})")


def _part(message: Message, kind: str | None, told: Mapping[str, Unknown]) -> Message:
    """The message to a node as a part of a secure sum. ``kind``: another one, which needs no arrays."""
    head = message.head | {"kind": kind or message.head["kind"], "told": message.head["told"] | told}
    return Message(head, message.tensors if kind is None else b"")
