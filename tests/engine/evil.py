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
import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("cryptography", reason="needs pip install 'fedax[deploy]'")
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import fedax
from fedax.data import FederatedData, split
from fedax.engine.places.device import first_states
from fedax.experiments.config.experiment import problem_of
from fedax.federation.census import Census
from fedax.sites.protocol import masks
from fedax.sites.protocol.agreement import (
    EVALUATION,
    Agreement,
    cohort_of,
    derived,
    precise_versions,
    program_of,
    traced,
)
from fedax.sites.protocol.messages import Message, packed
from fedax.sites.protocol.policy import STRICT
from fedax.sites.service.deploy import answering
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

    def tree(self, model: Sequence[float]) -> Any:
        """A model, from [b, w]."""
        leaves, form = jax.tree.flatten(self.job.x)
        made = [np.float32(model[0]), np.array(model[1:], np.float32)]
        return jax.tree.unflatten(form, [np.asarray(m, v.dtype) for m, v in zip(made, leaves, strict=True)])

    def model(self, model: Sequence[float]) -> bytes:
        """The tensors of an evaluation, from [b, w]."""
        return packed({"model": self.tree(model)})

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

    def of_evaluation(self, index: int = 0, **changes: Any) -> Table:
        """The head of an evaluation."""
        usual = {"kind": "evaluate", "agreement": self.digest, "stage": EVALUATION, "round": index, "exchange": 0}
        return {**usual, "told": {}, **changes}

    def evaluate(self, k: int, model: Sequence[float], index: int = 0) -> dict[str, np.ndarray]:
        """A node's figures, where they leave without masks."""
        answer = self.nodes.ask(k, self.of_evaluation(index), self.model(model))
        fine(answer)
        return safetensors.numpy.load(answer.tensors)

    def figures(self, model: Sequence[float], index: int = 0, **how: Any) -> np.ndarray:
        """The figures of all nodes, by a secure sum: of the training rows first those of the leaves in their order."""
        heads = {k: self.of_evaluation(index) for k in range(len(self.nodes.names))}
        return masks.decode_figures(self._in_secret(heads, self.model(model), 64, **how))

    def secure(self, model: Sequence[float], index: int = 0, download: bytes | None = None, **how: Any) -> np.ndarray:
        """The sum Σ ω v over nodes, [b, w], by the protocol.

        Args:
            model: that is sent.
            index: the round.
            download: the tensors, instead of those of ``model``.
            how: as of :meth:`_in_secret`.
        """
        heads = {k: self.head(k, index) for k in range(len(self.nodes.names))}
        tensors = packed({"download": self.download(model)}) if download is None else download
        whole = self._in_secret(heads, tensors, self.job.hyper.wire.secure.bits, **how)
        return self.numbers(whole, index)

    def _in_secret(
        self,
        heads: dict[int, Table],
        tensors: bytes,
        bits: int,
        over: Sequence[int] | None = None,
        survivors: Sequence[int] | None = None,
        threshold: int | None = None,
        session: int | None = None,
        tells: Sequence[int] | None = None,
    ) -> np.ndarray:
        """A secure sum, whole numbers.

        Args:
            over: the nodes that are asked; default: all.
            survivors: those that are summed; default: all of them.
            threshold: that is told; default: all that are asked.
            session: that is told; default: a new one.
            tells: those that give shares; default: survivors.
        """
        over = list(heads) if over is None else list(over)
        survivors = over if survivors is None else list(survivors)
        threshold = len(over) if threshold is None else threshold
        session = secrets.randbits(31) if session is None else session
        place = {k: over.index(k) for k in over}
        asked = {"keys": [self.keys[k] for k in over], "threshold": threshold}

        def sent(k: int, kind: str | None, more: Table, tensors: bytes = b"") -> Message:
            head = {**heads[k], "told": {**heads[k]["told"], "session": session, **more}}
            answer = self.nodes.ask(k, head | ({"kind": kind} if kind else {}), tensors)
            fine(answer)
            return answer

        offers = {}
        for k in over:
            offer = sent(k, "offer", {**asked, "position": place[k]}).head["offer"]
            offers[k] = masks.read(masks.Offer, offer)
        masked, said = {}, {}
        for k in survivors:
            answer = sent(k, None, {"offers": {str(place[j]): offers[j].to(place[k]) for j in survivors}}, tensors)
            masked[place[k]] = safetensors.numpy.load(answer.tensors)["['masked']"]
            said[place[k]] = masks.read(masks.Statement, answer.head["said"])
        told = {k: {"said": {str(j): each.to(place[k]) for j, each in said.items()}, "agreed": {}} for k in survivors}
        telling = survivors if tells is None else tells
        shares = {place[k]: sent(k, "unmask", told[k]).head["told"] for k in telling}
        name = heads[over[0]]["agreement"]
        by_place = {place[k]: offers[k] for k in survivors}
        whole: np.ndarray = masks.total(f"{name}/{session}", masked, by_place, shares, threshold, bits)
        return whole

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


# ---- random attacks, and what an answer may tell


class Oracle:
    """Random agreements and questions to two federations, and a judge that knows all data.

    The judge has the clients' updates from NumPy. It finds out with which weights an answer sums them, whatever the
    node says, and keeps what was told of each model: no combination may be of fewer clients, rows or nodes than the
    owners want. It knows nothing of how nodes check that.

    Args:
        folder: empty.
    """

    CLIENTS, ROWS, NODES, ROUNDS = 2, 50, 3, 200
    MODELS = tuple(np.random.default_rng(seed).normal(size=1 + FEATURES).tolist() for seed in range(12))

    def __init__(self, folder: pathlib.Path):
        free = {"messages": None, "runs": {"rounds": 10**6}}
        (folder / "several").mkdir()
        (folder / "strict").mkdir()
        rows = [[rows_of(60 + 10 * i, i + 1) for i in range(3)]]
        self.several = Federation(folder / "several", rows, plain(**free))
        apart = [[rows_of(n, n)] for n in (80, 60, 100)]
        self.strict = Federation(folder / "strict", apart, strict(**free, figures=None, budget=None))
        self.runs: dict[str, Run | None] = {}
        self.told: dict[Any, list[np.ndarray]] = {}  # what was summed, and of which model -> weights
        self.answers = self.asked = 0

    # ---- what is asked

    def attack(self, rng: Any) -> None:
        """One random question, with a random agreement.

        Args:
            rng: of :mod:`random`.

        Raises:
            AssertionError: an answer tells more than it may.
        """
        self.asked += 1
        secure = rng.random() < 0.15
        nodes = self.strict if secure else self.several
        run, model = self._run(rng, nodes, secure), rng.choice(self.MODELS)
        if run is None:
            return
        known = rng.randrange(self.ROUNDS)
        index = known if rng.random() < 0.95 else rng.choice([-1, self.ROUNDS, 10**9])
        if secure:
            how: Table = {"threshold": rng.choice([3, 3, 3, 2]), "over": rng.choice([None, None, None, [0, 1]])}
            how["survivors"] = rng.choice([None, None, None, [0, 1], [2]]) if how["over"] is None else None
            try:
                total = run.secure(model, known, **how)
            except (Refused, ValueError, LookupError, fedax.NodeError):
                return
            self._judge_nodes(run, model, total)
        elif rng.random() < 0.2:
            index = rng.choice([0, self.ROUNDS, index])
            head = run.of_evaluation(index) | self._change(rng)
            self._judge_figures(run, model, nodes.ask(0, head, run.model(model)))
        else:
            rows = run.rows(0, known)
            if rng.random() < 0.15:
                rows = [row for row in range(3) if rng.random() < 0.5]
            more: Table = {"rows": rows, "base": [0] * len(rows), "keep": [[]] * len(rows)}
            if rng.random() < 0.15:
                more["out"] = rng.choice([[0], [1], [0, 2], rows])
            if rng.random() < 0.1:
                more["base"] = rng.choice([[1] * len(rows), [65] * len(rows), [-1] * len(rows)])
            head = run.head(0, known, rng.choice([0, 0, 0, 0, 1, -1]), **more) | {"round": index} | self._change(rng)
            self._judge_sum(run, model, rows, nodes.ask(0, head, packed({"download": run.download(model)})))

    def _run(self, rng: Any, nodes: Federation, secure: bool) -> "Run | None":
        """A random agreement, where the nodes take it, or one that they have; of few kinds, as each is compiled."""
        there = [each for each in self.runs.values() if each is not None and each.nodes is nodes]
        if len(there) > 3 and rng.random() < 0.93:
            return rng.choice(there)
        table = config() if secure else without_secure()
        table["run"]["rounds"] = self.ROUNDS
        names: Table = {}
        if rng.random() < 0.5:
            names["weights"] = rng.choice(["sizes", "uniform"])
        else:
            parts = [rng.choice([0, 1, 1, 2, 3, 8]) for _ in range(3)]
            parts = parts if sum(parts) else [1, 1, 1]
            names["weights"] = tuple(each / sum(parts) for each in parts)
        if rng.random() < 0.3:
            table["participation"] = {"kind": "uniform", "size": rng.choice([1, 2, 3])}
        if rng.random() < 0.2:
            table["work"] = {"kind": "steps", "steps": [5, 5, rng.choice([5, 7])]}
        if rng.random() < 0.1:
            table["work"] = {"kind": "steps", "steps": 1}
        if rng.random() < 0.15:
            table["run"]["guard"] = {"largest": rng.choice([0.3, 1e10])}
        if rng.random() < 0.1:
            table["run"]["faults"] = {"clients": [rng.choice([0, 1])], "times": 0.0}
        if rng.random() < 0.1 and not secure:
            table["privacy"] = {"clip": rng.choice([0.2, 1e3]), "noise": 0.0, "delta": 1e-5}
        if rng.random() < 0.2 and not secure:
            share = rng.choice([0.1, 0.3])
            split = {"train": 1 - share, "val": 0.0, "test": share, "stratify": False, "seed": rng.choice([0, 1, 2])}
            names["split"] = split
        if rng.random() < 0.1:
            table["run"]["grad_norm"] = True
        names["seed"] = rng.choice([0, 1])
        key = json.dumps([secure, table, names, rng.randrange(2)], sort_keys=True)
        if key not in self.runs:
            try:
                self.runs[key] = Run(nodes, table, **names)
            except (Refused, fedax.FedaxError):
                self.runs[key] = None
        return self.runs[key]

    @staticmethod
    def _change(rng: Any) -> Table:
        if rng.random() < 0.9:
            return {}
        name = rng.choice(["stage", "round", "exchange", "told", "agreement", "kind"])
        return {name: rng.choice([None, True, -1, 0, 1, 10**20, "0", "exchanges", "warmup", [], {}])}

    # ---- what is told

    def _rows(self, run: Run) -> list[Rows]:
        """The training rows of each client."""
        data = FederatedData.from_clients([rows for each in run.nodes.clients for rows in each])
        if run.agreement.split is not None:
            data = split(data, **run.agreement.split).train
        return [data.client(i) for i in range(data.num_clients)]

    def _updates(self, run: Run, model: Sequence[float]) -> np.ndarray:
        found: np.ndarray = updates(self._rows(run), model, run.config["work"]["steps"])
        if clip := run.config.get("privacy", {}).get("clip"):
            found = found * np.minimum(1, clip / np.linalg.norm(found, axis=1))[:, None]
        return found

    def _weights(self, of: np.ndarray, total: np.ndarray) -> np.ndarray:
        """With which weights a total sums the rows of ``of``; fails where it is no such sum."""
        weights = np.linalg.lstsq(of.T, total, rcond=None)[0]
        assert np.allclose(of.T @ weights, total, rtol=1e-3, atol=1e-4 * abs(of).max()), "it is no sum of updates"
        assert weights.min() > -2e-3 * max(1, weights.max()), f"negative weights {weights}"
        return np.where(weights > 2e-3 * weights.max(), weights, 0)

    def _judge_sum(self, run: Run, model: Sequence[float], rows: Sequence[int], answer: Message) -> None:
        if not self._answers(answer, {"tally"}):
            return
        arrays = safetensors.numpy.load(answer.tensors)
        assert not any("accepted" in name for name in arrays), "a guard tells of single clients"
        total = array_of(answer)
        assert total.shape == (4,), total.shape
        if not np.isfinite(total).all() or not total.any():
            return
        weights = self._weights(self._updates(run, model), total)
        self._judge_weights(run, ("sum", json.dumps(run.config["work"])), model, weights)

    def _judge_figures(self, run: Run, model: Sequence[float], answer: Message) -> None:
        if not self._answers(answer, set()):
            return
        arrays = safetensors.numpy.load(answer.tensors)
        assert {*arrays} == {"['train'][0]"}, {*arrays}
        losses = [np.mean((rows["x"] @ np.array(model[1:]) + model[0] - rows["y"]) ** 2) for rows in self._rows(run)]
        given, sizes = run.agreement.weights, np.array(run.nodes.sizes, float)
        usual = {"sizes": sizes / sizes.sum(), "uniform": np.full(3, 1 / 3)}
        weights = usual[given] if isinstance(given, str) else np.array(given)
        assert np.isclose(arrays["['train'][0]"], weights @ losses, rtol=1e-3), "it is no mean of losses"
        self._judge_weights(run, "figures", model, weights)

    def _judge_weights(self, run: Run, kind: Any, model: Sequence[float], weights: np.ndarray) -> None:
        """Whether sums with these weights over clients, and all that were told of the model, are of enough of them."""
        share, sizes = weights / weights.sum(), np.array([len(rows["y"]) for rows in self._rows(run)])
        assert share.max() <= 1 / self.CLIENTS + 1e-3, f"one client has {share.max():.3f} of a sum"
        assert (share / sizes).max() <= 1 / self.ROWS + 1e-4, "one row has too much of a sum"
        known = self.told.setdefault((kind, *model), [])
        mine = self._by_rows(run, share / sizes)
        for other in known:
            common = {a / b for a, b in zip(mine, other, strict=True) if a and b}
            for ratio in common:
                left = np.count_nonzero(abs(mine - ratio * other) > 1e-3 * mine.max())
                assert left == 0 or left >= self.ROWS, f"a difference of two sums is of {left} rows"
        known.append(mine)
        by_client = self.told.setdefault((kind, json.dumps(run.agreement.split), "clients", *model), [])
        by_client.append(share)
        for client in range(3):
            all_ = np.array(by_client).T
            alone = np.linalg.lstsq(all_, np.eye(3)[client], rcond=1e-2)[0]
            miss = np.linalg.norm(all_ @ alone - np.eye(3)[client])
            assert miss > 0.05, f"client {client} alone, from {len(by_client)} sums"

    def _by_rows(self, run: Run, each: np.ndarray) -> np.ndarray:
        """The weight of each row that the node has."""
        found = []
        for client, rows in enumerate(self._rows(run)):
            there = np.isin(run.nodes.clients[0][client]["y"], rows["y"])
            found.append(there * each[client])
        return np.concatenate(found)

    def _judge_nodes(self, run: Run, model: Sequence[float], total: np.ndarray) -> None:
        """Whether a secure sum, and all of the model, are of three nodes."""
        self.answers += 1
        if not np.any(abs(total) > 1e-6):
            return
        weights = self._weights(self._updates(run, model), total)
        assert np.count_nonzero(weights) >= self.NODES and (weights / weights.sum()).max() < 0.91
        known = self.told.setdefault(("nodes", json.dumps(run.config["work"]), *model), [])
        known.append(weights / weights.sum())
        # Of two different sums over three nodes there is always a difference of two nodes.
        assert np.ptp(np.array(known), axis=0).max() < 5e-3, "sums of one model with other weights of nodes"

    def _answers(self, answer: Message, more: set[str]) -> bool:
        """Whether it is an answer; fails where its head says something that it should not."""
        if answer.head.keys() & {"error", "repeated"}:
            assert not answer.tensors
            return False
        assert answer.head.keys() <= {"to"} | more, answer.head
        self.answers += 1
        return True
