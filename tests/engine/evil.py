"""Nodes as ``fedax deploy node`` starts them, in this process, and a server that writes every message as it likes.

The server keeps to the protocol where that serves it, and knows what it can: the agreement, and all answers. What it
computes of them is compared with the clients' updates, which :func:`updates` has from the data, in NumPy alone.
"""

import copy
import dataclasses
import json
import pathlib
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedax.data import FederatedData
from fedax.engine.places import masks
from fedax.engine.places.agreement import (
    Agreement,
    cohort_of,
    common_question,
    derived,
    digest_of,
    precise_versions,
    program_of,
    traced,
)
from fedax.engine.places.device import first_states
from fedax.engine.places.nodes import Message, packed
from fedax.engine.places.policy import STRICT
from fedax.experiments.config.experiment import problem_of
from fedax.federation.census import Census
from fedax.flower.deploy import answering
from fedax.wire.secure import most

FEATURES = 3
LR = 0.02
TAU = 5
CLIP = 20.0

Table = dict[str, Any]
Rows = dict[str, np.ndarray]


class Refused(Exception):
    """A node did not answer; the text says why."""


def strict(**changes: Table | None) -> Table:
    """The policy that ``fedax deploy policy`` writes; ``changes``: to its sections, ``None`` leaves one out."""
    table = tomllib.loads(STRICT)
    for section, rules in changes.items():
        if rules is None:
            del table[section]
        else:
            table[section] = {**table.get(section, {}), **rules}
    return table


def plain(**changes: Table | None) -> Table:
    """The same without secure sums and noise, for nodes of several clients: sums over two clients at least."""
    usual: Table = {"secure": None, "budget": None, "sums": {"clients": 2, "examples": 50}}
    table = strict(**usual)
    table["figures"] = {"columns": ["train_loss", "test_loss", "val_loss", "test_error"]}
    for section, rules in changes.items():
        table[section] = {**table.get(section, {}), **(rules or {})}
    return table


def rows_of(n: int, seed: int) -> Rows:
    """The rows of a client of linear regression."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES)).astype(np.float32)
    y = x @ rng.normal(size=FEATURES) + rng.normal(size=n) + seed
    return {"x": x, "y": y.astype(np.float32)}


def updates(clients: Sequence[Rows], model: Sequence[float], steps: int | Sequence[int] = TAU, lr: float = LR) -> Any:
    """[k, 4] the uploads of FedAvg with all rows in each step: y − x of [b, w], by NumPy in float64."""
    found = []
    for rows, tau in zip(clients, np.broadcast_to(steps, len(clients)), strict=True):
        x, y = np.c_[np.ones(len(rows["y"])), rows["x"]].astype(float), rows["y"].astype(float)
        v = np.array(model, float)
        for _ in range(tau):
            v = v - lr * 2 * x.T @ (x @ v - y) / len(y)
        found.append(v - model)
    return np.array(found)


CONFIG: Table = {
    "task": {"name": "linear_regression", "features": FEATURES, "bias": True},
    "method": {"name": "fedavg", "label": "fedavg", "lr": LR},
    "work": {"kind": "steps", "steps": TAU},
    "participation": {"kind": "full"},
    "run": {"rounds": 3, "secure": {"clip": CLIP, "threshold": 3}},
}


def config(**changes: Any) -> Table:
    """The configuration of a run; a table is merged with what is there, ``None`` leaves something out."""
    found = copy.deepcopy(CONFIG)
    for name, value in changes.items():
        section = {**found.get(name, {}), **value} if isinstance(value, dict) else value
        found[name] = {k: v for k, v in section.items() if v is not None} if isinstance(section, dict) else section
    return {name: value for name, value in found.items() if value is not None}


def without_secure(**changes: Any) -> Table:
    """The same without secure sums."""
    return config(**{**changes, "run": {"secure": None, **changes.get("run", {})}})


class Federation:
    """Nodes of this process.

    Args:
        folder: empty; gets each node's data, state and keys.
        clients: of each node the rows of each of its clients.
        policy: of all nodes, the tables of a file; or one for each.
        test: of each node the rows that its owner holds out.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        clients: Sequence[Sequence[Rows]],
        policy: Table | Sequence[Table],
        test: Rows | None = None,
    ):
        self.folder, self.clients = folder, [list(each) for each in clients]
        self.policies = [policy] * len(clients) if isinstance(policy, Mapping) else list(policy)
        self.names = [[f"n{k}c{i}" for i in range(len(each))] for k, each in enumerate(clients)]
        self.test = None
        if test is not None:
            self.test = folder / "test"
            FederatedData.from_clients([test]).save(self.test)
        (folder / "roster").mkdir()
        for k in range(len(clients)):
            key = ec.generate_private_key(ec.SECP384R1())
            private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
            (folder / f"n{k}").write_bytes(private)
            public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            (folder / "roster" / f"n{k}.pub").write_bytes(public)
        self._answer: list[Any] = [None] * len(clients)
        for k in range(len(clients)):
            self.start(k)

    def start(self, k: int, clients: Sequence[Rows] | None = None, policy: Table | None = None) -> None:
        """Start a node, or start it again; with other data, or another policy."""
        if self._answer[k] is not None:
            self.site(k).close()
        self.clients[k] = self.clients[k] if clients is None else list(clients)
        self.policies[k] = self.policies[k] if policy is None else policy
        data = self.folder / f"data{k}-{secrets.token_hex(4)}"
        FederatedData.from_clients(self.clients[k]).save(data)
        self._answer[k] = answering(
            str(data), str(self.folder / f"state{k}"), self.names[k], policy=self.policies[k],
            test=None if self.test is None else str(self.test),
            roster=(str(self.folder / "roster"), str(self.folder / f"n{k}")),
        )  # fmt: skip

    def site(self, k: int) -> Any:
        """The site of a node, to look at; attacks ask it by messages alone."""
        return self._answer[k].__self__

    def state(self, k: int) -> pathlib.Path:
        """The folder of a node."""
        return self.folder / f"state{k}"

    def ask(self, k: int, head: Table, tensors: bytes = b"") -> Message:
        """A node's answer, as it goes over the network."""
        answer: Message = self._answer[k](Message(json.loads(json.dumps(head)), tensors))
        return Message(json.loads(json.dumps(answer.head)), answer.tensors)

    def lines(self, k: int) -> list[Table]:
        """The record of a node."""
        path = self.state(k) / "answered.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def sizes(self) -> list[int]:
        return [len(rows["y"]) for each in self.clients for rows in each]

    @property
    def all_names(self) -> list[str]:
        return [name for each in self.names for name in each]


class Run:
    """An agreement as the attacker writes it.

    Args:
        nodes: with which it is made.
        table: the configuration.
        agreed: whether all nodes are sent it, and agree.
        changes: to the agreement.
    """

    def __init__(self, nodes: Federation, table: Table | None = None, agreed: bool = True, **changes: Any):
        self.nodes, self.config = nodes, config() if table is None else table
        usual: Table = {
            "run": secrets.randbits(60), "seed": 0, "config": self.config, "names": tuple(nodes.all_names),
            "sizes": tuple(nodes.sizes), "weights": "uniform", "split": None, "parts": (), "program": "",
            "frozen": None, "versions": precise_versions(),
        }  # fmt: skip
        self.agreement = Agreement(**{**usual, **changes})
        made = problem_of(self.config)
        data = FederatedData.from_clients([nodes.clients[0][0]])
        self.job = derived(self.agreement, made, self.agreement.census(Census.of(data).example))
        dry = traced(self.job)
        self.forms = dry.forms
        if "program" not in changes:
            self.agreement = dataclasses.replace(self.agreement, program=program_of(dry))
        self.digest = self.agreement.digest
        self.keys: dict[int, Any] = {}
        for k in range(len(nodes.names)) if agreed else ():
            self.keys[k] = fine(agree(nodes, k, self.agreement)).get("key")

    # ---- tensors

    def download(self, model: Sequence[float], number: int = 0) -> Any:
        """The download of an exchange, from [b, w]."""
        server, _ = first_states(self.job.hyper.method, self.job.x)
        tree = self.job.hyper.method.download(server)
        leaves, form = jax.tree.flatten(tree)
        given = iter([np.float32(model[0]), np.array(model[1:], np.float32)])
        made = [next(given, np.zeros(leaf.shape, leaf.dtype)) for leaf in leaves]
        return jax.tree.unflatten(form, [np.asarray(each, leaf.dtype) for each, leaf in zip(made, leaves, strict=True)])

    def model(self, model: Sequence[float]) -> bytes:
        """The tensors of an evaluation, from [b, w]."""
        leaves, form = jax.tree.flatten(self.job.x)
        made = [np.float32(model[0]), np.array(model[1:], np.float32)]
        return packed({"model": jax.tree.unflatten(form, [np.asarray(m, v.dtype) for m, v in zip(made, leaves)])})

    # ---- questions

    def rows(self, k: int, index: int = 0) -> list[int]:
        """The rows of a node's clients in a round's cohort, as derived."""
        clients, _ = cohort_of(self.job, "exchanges", index)
        there = {int(each) for each, present in zip(clients.ids, clients.present, strict=True) if present}
        return [row for row, name in enumerate(self.nodes.names[k]) if self.agreement.names.index(name) in there]

    def head(self, k: int, index: int = 0, exchange: int = 0, **told: Any) -> Table:
        """The head of an exchange with a node."""
        rows = self.rows(k, index)
        usual = {"rows": rows, "base": [0] * len(rows), "keep": [[]] * len(rows)}
        given = {name: value for name, value in {**usual, **told}.items() if value is not None}
        return {
            "kind": "exchange", "agreement": self.digest, "stage": "exchanges", "round": index, "exchange": exchange,
            "told": given,
        }  # fmt: skip

    def exchange(self, k: int, model: Sequence[float], index: int = 0, exchange: int = 0, **told: Any) -> np.ndarray:
        """A node's own sum, [b, w], where it leaves without masks."""
        head = self.head(k, index, exchange, **told)
        answer = self.nodes.ask(k, head, packed({"download": self.download(model)}))
        fine(answer)
        return array_of(answer)

    def evaluate(self, k: int, model: Sequence[float], index: int = 0) -> dict[str, np.ndarray]:
        """A node's figures."""
        head = {"kind": "evaluate", "agreement": self.digest, "round": index}
        answer = self.nodes.ask(k, head, self.model(model))
        fine(answer)
        return safetensors.numpy.load(answer.tensors)

    def secure(
        self,
        model: Sequence[float],
        index: int = 0,
        over: Sequence[int] | None = None,
        survivors: Sequence[int] | None = None,
        threshold: int | None = None,
        session: int | None = None,
        download: bytes | None = None,
        tells: Sequence[int] | None = None,
    ) -> np.ndarray:
        """The sum Σ ω v over nodes, [b, w], by the protocol.

        Args:
            model: that is sent.
            over: the nodes that are asked; default: all.
            survivors: those that are summed; default: all of them.
            threshold: that is told; default: all.
            download: the tensors, in the place of those of ``model``.
            tells: those that give shares; default: survivors.
        """
        over = list(range(len(self.nodes.names))) if over is None else list(over)
        survivors = over if survivors is None else list(survivors)
        threshold = len(over) if threshold is None else threshold
        session = secrets.randbits(31) if session is None else session
        tree = self.download(model)
        question = common_question(self.digest, "exchanges", index, 0, digest_of(tree))
        tensors = packed({"download": tree}) if download is None else download
        told = {"session": session, "keys": [self.keys[k] for k in over], "threshold": threshold, "question": question}
        heads = {k: self.head(k, index) for k in over}

        def sent(k: int, kind: str, more: Table, tensors: bytes = b"") -> Message:
            head = {**heads[k], "kind": kind, "told": {**heads[k]["told"], "session": session, **more}}
            return self.nodes.ask(k, head, tensors)

        offers = {k: masks.Offer.of(fine(sent(k, "offer", {**told, "position": over.index(k)}))["offer"],
                                    over.index(k), len(over)) for k in over}  # fmt: skip
        masked = {}
        for k in survivors:
            received = {str(over.index(j)): offers[j].to(over.index(k)) for j in survivors}
            answer = sent(k, "exchange", {"offers": received}, tensors)
            fine(answer)
            masked[over.index(k)] = safetensors.numpy.load(answer.tensors)["['masked']"]
        agreed = {}
        for k in survivors:
            where = [over.index(j) for j in survivors]
            agreed[str(over.index(k))] = fine(sent(k, "agree", {"survivors": where}))["agreed"]
        telling = survivors if tells is None else tells
        told_ = {over.index(k): fine(sent(k, "unmask", {"agreed": agreed}))["told"] for k in telling}
        bits, name = self.job.hyper.wire.secure.bits, f"{self.digest}/exchanges/{index}/0/{session}"
        by_place = {over.index(k): offers[k] for k in survivors}
        whole = masks.total(name, masked, by_place, told_, threshold, bits)
        return self.numbers(whole, index)

    def numbers(self, whole: np.ndarray, index: int = 0) -> np.ndarray:
        """The numbers that the whole numbers of a secure sum stand for."""
        _, round_ = cohort_of(self.job, "exchanges", index)
        secure = self.job.hyper.wire.secure
        places, bits = len(round_.weights), secure.bits
        signed = ((whole.astype(np.int64) + 2 ** (bits - 1)) % 2**bits) - 2 ** (bits - 1)
        return signed * float(round_.weights.max()) * float(secure.clip) / most(places, bits)


def agree(nodes: Federation, k: int, agreement: Agreement | str, tensors: bytes = b"") -> Message:
    """A node's answer to an agreement."""
    text = agreement if isinstance(agreement, str) else agreement.text
    return nodes.ask(k, {"kind": "agreement", "text": text, "server": "evil@elsewhere"}, tensors)


def fine(answer: Message) -> Table:
    """The head of an answer; raises if it is none."""
    for name in ("error", "repeated", "withheld"):
        if name in answer.head:
            raise Refused(str(answer.head[name]))
    if answer.head.get("lost"):
        raise Refused("lost")
    return answer.head


def array_of(answer: Message) -> np.ndarray:
    """All numbers of an answer, by the names of its arrays."""
    arrays = safetensors.numpy.load(answer.tensors)
    return np.concatenate([arrays[name].astype(float).ravel() for name in sorted(arrays)])


def recovered(found: Any, secret: Any, digits: float = 2.0) -> bool:
    """Whether numbers that the attacker has show a secret [d], up to a relative error of 10^-digits."""
    found, secret = np.atleast_1d(np.asarray(found, float)), np.asarray(secret, float)
    return found.shape == secret.shape and bool(np.linalg.norm(found - secret) <= 10**-digits * np.linalg.norm(secret))


def combinations(sums: Sequence[np.ndarray], weights: Sequence[Sequence[float]]) -> np.ndarray:
    """What least squares makes of sums [m, d] with weights [m, n]: the summands [n, d]."""
    found: np.ndarray = np.linalg.lstsq(np.array(weights, float), np.array(sums), rcond=1e-9)[0]
    return found


def zeros() -> Any:
    return jnp.zeros(())
