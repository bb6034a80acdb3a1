"""Runs over nodes that share messages: their results, the number of messages, and how they end together."""

import functools
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import safetensors.numpy

import fedax
from fedax.sites.protocol import fleet as fleet_module
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import SEVERAL, Failure, Message, heads_of, joined, packed, parted
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.side_by_side import side_by_side
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.train import train

from . import here
from .here import Here
from .problem import DATA, TASK, flat

NODES = [[3, 0], [1], [4, 2]]
OPTIONS = {"rounds": 3, "batch_size": 2}
METHODS = {"fedavg": fedax.create("fedavg", lr=0.05), "scaffold": fedax.create("scaffold", lr=0.05)}


class Counting(Here):
    """Counts the messages to each node; ``gone``: whether a message does not arrive."""

    def __init__(self, sites, gone=lambda number, message: False):
        super().__init__(sites)
        self.messages, self.gone = [], gone

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        for number, message in messages.items():
            if self.gone(number, message):
                yield number, Failure("no answer", True)
                continue
            self.messages.append((number, heads_of(message)))
            yield from super().ask({number: message}, timeout)


def sites() -> dict[int, Site]:
    """Sites that make what configurations describe."""
    return here.sites(DATA, NODES)


def trained(at: Here, runs: list[tuple[str, int]], timeout: float = 0.2, **options: object) -> list[fedax.Run]:
    """Some methods and seeds, side by side."""
    fleet = Fleet(at, timeout=timeout)
    fleet.census = fleet.census._replace(weights=DATA.weights)

    def work(there, name, seed):
        given, method = OPTIONS | options, METHODS[name]
        return train(method, TASK, fleet.by(there), here.told(method, TASK, **given), seed=seed, **given)

    return side_by_side(at, [functools.partial(work, name=name, seed=seed) for name, seed in runs])


RUNS = [("fedavg", 0), ("fedavg", 1), ("scaffold", 0)]


def test_each_run_is_as_it_is_alone_and_they_share_messages():
    at = Counting(sites())
    together = trained(at, RUNS)
    for (name, seed), result in zip(RUNS, together, strict=True):
        (alone,) = trained(one := Counting(sites()), [(name, seed)])
        assert result.history["train_loss"].tolist() == alone.history["train_loss"].tolist()
        assert flat(result.params).tolist() == flat(alone.params).tolist()
        assert len(at.messages) == len(one.messages)
    # hello and the agreement; an evaluation with each round's exchange; the last evaluation; and that the run is over
    assert len(at.messages) == len(NODES) * (2 + 3 + 1 + 1)
    kinds = [sorted(head["kind"] for head in heads) for _, heads in at.messages]
    assert kinds.count(["evaluate"] * 3 + ["exchange"] * 3) == len(NODES) * 3
    for column, whole in (("wire_down", at.sent), ("wire_up", at.received)):
        assert sum(result.history[column][-1] for result in together) == pytest.approx(whole, rel=0.05)


def test_a_node_that_is_away_for_a_message_is_left_out_of_all_that_it_asked(monkeypatch):
    # Asked once: again, it might miss the next message of one run along with this one of the other.
    monkeypatch.setattr(fleet_module, "_PAUSE", 10.0)

    def gone(number: int, message: Message) -> bool:
        return number == 8 and any(head.get("round") == 1 and head["kind"] == "exchange" for head in heads_of(message))

    for result in trained(Counting(sites(), gone), [("fedavg", 0), ("fedavg", 1)], timeout=0.5):
        assert result.left_out == {1: 1}
        assert result.history["heard"].tolist() == [1.0, pytest.approx(1 - DATA.weights[1]), 1.0, 1.0]


def test_what_one_fails_at_ends_all():
    at = sites()
    at[8].policy = type(at[8].policy)(rounds=1)
    with pytest.raises(fedax.NodeError, match=r"runs.rounds = 1\) is against more rounds"):
        trained(Counting(at), RUNS, rounds=2)
    assert not [thread for thread in threading.enumerate() if "_run" in thread.name]


def test_a_signal_ends_all_between_two_messages():
    at, seen = Counting(sites()), []

    def ask(messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        seen.append(1)
        if len(seen) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        yield from Counting.ask(at, messages, timeout)

    at.ask = ask
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            trained(at, RUNS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(seen) == 4


def test_no_round_begins_where_the_figures_may_end_the_run():
    at = Counting(sites())
    (result,) = trained(at, [("fedavg", 0)], until=lambda row: row["round"] == 1)
    assert result.history["round"].tolist() == [0, 1]
    counted = [json.loads((site.folder / "rounds.json").read_text()) for site in at.sites.values()]
    assert [[*each.values()] for each in counted] == [[1]] * len(NODES)


@pytest.mark.filterwarnings("ignore:the training loss is")
def test_a_model_that_is_not_finite_is_sent_to_nobody(monkeypatch):
    monkeypatch.setitem(METHODS, "fedavg", fedax.create("fedavg", lr=1e38))
    at = Counting(sites())
    (result,) = trained(at, [("fedavg", 0)], rounds=9)
    assert result.status == "diverged"
    requests = [head["round"] for _, heads in at.messages for head in heads if head["kind"] == "exchange"]
    assert max(requests) == result.history["round"][-1] - 1


def test_messages_that_are_joined_come_apart():
    big = np.arange(1000.0)
    parts = [Message({"kind": str(k)}, packed({"model": big, "own": np.full(k, k)})) for k in range(1, 4)]
    whole = joined([joined(parts[:2]), parts[2]])
    assert len(whole.tensors) < 2 * big.nbytes
    first, last = parted(whole, 2)
    for part, was in zip([*parted(first, 2), last], parts, strict=True):
        assert part.head == was.head
        assert arrays(part) == arrays(was)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"kind": "other"},
        {"kind": SEVERAL},
        {"kind": SEVERAL, "parts": []},
        {"kind": SEVERAL, "parts": [1, 2]},
        {"kind": SEVERAL, "parts": [{"head": 1, "arrays": {}}] * 2},
        {"kind": SEVERAL, "parts": [{"head": {}, "arrays": {"a": "9"}}] * 2},
        {"kind": SEVERAL, "parts": [{"head": {}, "arrays": 5}] * 2},
        {"kind": SEVERAL, "parts": [{"head": {}, "arrays": {}}]},
    ],
)
def test_several_that_are_none(spoiled):
    with pytest.raises(fedax.NodeError, match=r"^clients .a.: the answer: .*of 2 parts"):
        parted(Message(spoiled), 2, "clients 'a': the answer")


def test_a_site_refuses_parts_in_parts_in_parts():
    (site, *_) = sites().values()
    deep = Message({"kind": "hello"})
    for _ in range(4):
        deep = joined([deep, Message({"kind": "hello"})])
    refused = {"error": str(Refusal(Rule.FORM))}
    heads = heads_of(site.answer(deep))
    assert heads[0] == refused and all("names" in head for head in heads[1:])
    assert site.answer(Message({"kind": SEVERAL, "parts": 3})).head == refused


def arrays(message: Message) -> dict[str, list[float]]:
    """What a message has, by name."""
    return {name: array.tolist() for name, array in safetensors.numpy.load(message.tensors).items()}
