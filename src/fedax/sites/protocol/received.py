"""A question as a node received it: its entries, checked, and the exchange that it asks for."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from fedax.contract.types import Unknown
from fedax.engine.loop import Clients
from fedax.sites.protocol.agreement import EVALUATION, STAGES, Asked, cohort_of, exchange_of, is_secret
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.runs import SiteRun

_Entry = TypeVar("_Entry")


class Received:
    """A question as it came, of which every entry is checked where it is read.

    Args:
        message: as it came.
        to: the digest of its head, which the answer repeats.
    """

    def __init__(self, message: Message, to: str):
        self.message, self.to, self.agreement = message, to, message.head.get("agreement")

    @property
    def stage(self) -> str:
        """``"warmup"``, ``"exchanges"`` or ``"evaluation"``."""
        if (found := self.message.head.get("stage")) not in (*STAGES, EVALUATION):
            raise Refusal(Rule.FORM)
        return str(found)

    @property
    def round(self) -> int:
        """The number of the round."""
        return self._whole(self.message.head, "round")

    @property
    def exchange(self) -> int:
        """The number of the exchange in its stage."""
        return self._whole(self.message.head, "exchange")

    @property
    def told(self) -> dict[str, Unknown]:
        """What the node cannot derive."""
        told = self.message.head.get("told", {})
        if not isinstance(told, dict):
            raise Refusal(Rule.FORM)
        return told

    def number(self, name: str) -> int:
        """A whole number from 0 to 2^31."""
        return self._whole(self.told, name)

    @staticmethod
    def _whole(table: Mapping[str, Unknown], name: str) -> int:
        if type(found := table.get(name)) is not int or not 0 <= found < 2**31:
            raise Refusal(Rule.FORM)
        return found

    def numbers(self, name: str, most: int, count: int | None = None) -> list[int]:
        """Whole numbers from 0 to ``most`` − 1."""
        found = self.told.get(name)
        if not isinstance(found, list) or not all(type(each) is int and 0 <= each < most for each in found):
            raise Refusal(Rule.FORM)
        if count is not None and len(found) != count:
            raise Refusal(Rule.FORM)
        return found

    def table(self, name: str, of: Callable[[Unknown], _Entry]) -> dict[int, _Entry]:
        """Entries by the position of a node; ``of``: makes each of JSON."""
        found = self.told.get(name)
        if not isinstance(found, dict) or not all(key.isdecimal() and len(key) < 8 for key in found):
            raise Refusal(Rule.FORM)
        return {int(key): of(each) for key, each in found.items()}

    def kept(self, count: int) -> list[list[int]]:
        """The versions of the memory of each of the clients that are asked, to which the server may return."""
        found = self.told.get("keep", [[]] * count)
        if not isinstance(found, list) or len(found) != count or not all(isinstance(each, list) for each in found):
            raise Refusal(Rule.FORM)
        if not all(type(version) is int for each in found for version in each):
            raise Refusal(Rule.FORM)
        return found

    @property
    def session(self) -> str:
        """The name of a secure sum: that of the exchange, and of the server's try at it."""
        names = [self.agreement, self.stage, self.round, self.exchange, self.number("session")]
        return "/".join(map(str, names))


def asked_of(run: SiteRun, received: Received) -> Asked:
    """The clients of this node that an exchange asks, as the run's agreement says; what it cannot say is told.

    Told are the clients of a secret cohort; the one that works alone; those that a guard has left out; and the work
    that a server asks for that does not wait.
    """
    job, told = run.job, received.told
    exchange = exchange_of(job, received.stage, received.round, received.exchange)
    rows = received.numbers("rows", len(run.ids))
    if len({*rows}) < len(rows) or not rows:
        raise Refusal(Rule.FORM)
    ids = [run.ids[row] for row in rows]
    sizes, offsets = run.train.sizes[rows].astype(np.int32), np.asarray(run.examples.fed.offsets)[rows]
    if job.pacing is not None:
        if len(rows) != 1 or received.stage != "exchanges":
            raise Refusal(Rule.COHORT)
        steps = np.array([run.steps(ids[0], received.number("group"))], np.int32)
        ones = np.ones(1, np.asarray(job.fed.weights).dtype)
        clients = Clients(np.array(ids, np.int32), ones, ones, steps, np.ones(1, bool), offsets, sizes)
        return Asked(exchange, clients, None, dataclasses.replace(job.hyper.wire, apart=True, lossy=False))  # type: ignore[arg-type]
    secret = is_secret(job) and received.stage == "exchanges"
    cohort, round_ = cohort_of(job, received.stage, received.round, ids if secret else None)
    where = {int(each): k for k, each in enumerate(cohort.ids) if cohort.present[k]}
    mine = {each for each in run.ids if each in where}
    whole = received.exchange == 0 and exchange.who != "one"
    if not {*ids} <= mine or (whole and {*ids} != mine) or (exchange.who == "one" and len(ids) != 1):
        raise Refusal(Rule.COHORT)
    at = np.array([where[each] for each in ids])
    clients = cohort.alone(at[0]) if exchange.who == "one" else Clients(*(leaf[at] for leaf in cohort))
    if told.get("out"):
        left = np.isin(rows, received.numbers("out", len(run.ids)))
        if job.hyper.wire.guard is None or received.exchange == 0:  # nobody has answered whom it could leave out
            raise Refusal(Rule.COHORT)
        clients = clients.only(~left)
    clients = clients._replace(offsets=offsets, sizes=sizes)
    return Asked(exchange, clients, round_, dataclasses.replace(job.hyper.wire.of(round_), lossy=False))
