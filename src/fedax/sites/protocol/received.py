"""A question as a node received it: its entries, checked, and the exchange that it asks for."""

import dataclasses

import jax
import numpy as np

from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine.loop import Clients
from fedax.programs import compiled
from fedax.sites.protocol import masks
from fedax.sites.protocol.agreement import EVALUATION, STAGES, Asked, cohort_of, digest_of_text, exchange_of
from fedax.sites.protocol.messages import Message, unpacked
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.runs import SiteRun
from fedax.tasks.task import Task


class Received:
    """A question as it came, of which every entry is checked where it is read.

    Args:
        message: as it came.

    Attributes:
        to: the digest of its head, which the answer repeats.
        told: what the node cannot derive.

    Raises:
        Refusal: it is not of its form.
    """

    def __init__(self, message: Message):
        self.message, self.to, self.agreement = message, digest_of_text([message.head]), message.head.get("agreement")
        self.told: dict[str, Unknown] = message.head.get("told", {})
        if not isinstance(self.told, dict):
            raise Refusal(Rule.FORM)

    @property
    def stage(self) -> str:
        """``"warmup"``, ``"exchanges"`` or ``"evaluation"``."""
        if (found := self.message.head.get("stage")) not in (*STAGES, EVALUATION):
            raise Refusal(Rule.FORM)
        return str(found)

    @property
    def round(self) -> int:
        """The number of the round."""
        return _whole(self.message.head.get("round"))

    @property
    def exchange(self) -> int:
        """The number of the exchange in its stage."""
        return _whole(self.message.head.get("exchange"))

    @property
    def best(self) -> int | None:
        """The round that was best so far, of a run that looks for one."""
        return _whole(self.message.head["best"]) if "best" in self.message.head else None

    @property
    def session(self) -> str:
        """The name of a secure sum in a run."""
        return self.named(self.number("session"))

    def named(self, session: int) -> str:
        """The name of the secure sum with this number."""
        return f"{self.agreement}/{session}"

    def number(self, name: str) -> int:
        """A whole number from 0 to 2^31."""
        return _whole(self.told.get(name))

    def numbers(self, name: str, most: int, count: int | None = None) -> list[int]:
        """Whole numbers from 0 to ``most`` − 1."""
        return [_whole(each, most) for each in self.entries(name, count)]

    def kept(self, count: int) -> list[list[int]]:
        """The versions of the memory of each of the clients that are asked, to which the server may return."""
        kept = self.entries("keep", count) if "keep" in self.told else [[]] * count
        return [[_whole(version) for version in _listed(each)] for each in kept]

    def entries(self, name: str, count: int | None = None) -> list[Unknown]:
        """The entries of a list."""
        return _listed(self.told.get(name), count)

    def table(self, name: str, form: type[masks.Form]) -> dict[int, masks.Form]:
        """Entries by the position of a node; ``form``: of each."""
        found = self.told.get(name)
        if not isinstance(found, dict) or not all(key.isdecimal() and len(key) < 8 for key in found):
            raise Refusal(Rule.FORM)
        return {int(key): masks.read(form, each) for key, each in found.items()}

    def arrays(self, name: str, form: Tree) -> Tree:
        """The pytree that came with the message, of this form."""
        return unpacked(self.message.tensors, {name: form}, "the message")[name]

    def model(self, task: Task) -> Vector:
        """The model that came with the message."""
        model: Vector = self.arrays("model", Vector(_initial.form(jax.random.key(0), task=task)))
        return model


@compiled(static=["task"])
def _initial(key: Array, *, task: Task) -> Tree:
    return task.init(key)


def _whole(found: Unknown, most: int = 2**31) -> int:
    if type(found) is not int or not 0 <= found < most:
        raise Refusal(Rule.FORM)
    return found


def _listed(found: Unknown, count: int | None = None) -> list[Unknown]:
    if not isinstance(found, list) or count not in (None, len(found)):
        raise Refusal(Rule.FORM)
    return found


def asked_of(run: SiteRun, received: Received) -> Asked:
    """The clients of this node that an exchange asks, as the run's agreement says; what it cannot say is told.

    Told are the clients of a secret cohort; the one that works alone; those that a guard has left out; and the work
    that a server asks for that does not wait.
    """
    job = run.job
    exchange = exchange_of(job, received.stage, received.round, received.exchange)
    rows = received.numbers("rows", len(run.ids))
    if len({*rows}) < len(rows) or not rows:
        raise Refusal(Rule.FORM)
    ids = [run.ids[row] for row in rows]
    if job.pacing is not None:
        if len(rows) != 1 or received.stage != "exchanges":
            raise Refusal(Rule.COHORT)
        steps = np.array([run.steps(ids[0], received.number("group"))], np.int32)
        ones, nowhere = np.ones(1, np.asarray(job.fed.weights).dtype), np.zeros(1, np.int32)
        clients = Clients(np.array(ids, np.int32), ones, ones, steps, np.ones(1, bool), nowhere, nowhere)
        return Asked(exchange, clients, dataclasses.replace(job.hyper.wire, apart=True, lossy=False))
    cohort, round_ = cohort_of(job, received.stage, received.round, ids)
    where = {int(each): k for k, each in enumerate(cohort.ids) if cohort.present[k]}
    mine, one = {each for each in run.ids if each in where}, exchange.who == "one"
    whole = received.exchange == 0 and not one
    if not {*ids} <= mine or (whole and {*ids} != mine) or (one and len(ids) != 1):
        raise Refusal(Rule.COHORT)
    at = np.array([where[each] for each in ids])
    clients = cohort.alone(at[0]) if one else Clients(*(leaf[at] for leaf in cohort))
    if received.told.get("out"):
        left = np.isin(rows, received.numbers("out", len(run.ids)))
        if job.hyper.wire.guard is None or received.exchange == 0:  # nobody has answered whom it could leave out
            raise Refusal(Rule.COHORT)
        clients = clients.only(~left)
    return Asked(exchange, clients, dataclasses.replace(job.hyper.wire.of(round_), lossy=False))
