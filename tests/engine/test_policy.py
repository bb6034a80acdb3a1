"""The rules of a node's owner, each enforced against a server's attack."""

import itertools
import json
import pathlib
import re
import time
import tomllib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats
from fedax.engine.places.questions import Problem

import fedax
from fedax.engine.places import answered, masks
from fedax.engine.places import fleet as fleets
from fedax.engine.places.answered import Answered, Repeated
from fedax.engine.places.nodes import Message
from fedax.engine.places.policy import _SECTIONS, STRICT, Policy
from fedax.engine.places.site import Site
from fedax.engine.train import train

from ..wire import test_secure as secure_problem
from . import here, test_secure
from .here import Here
from .methods import Mime, OneWalks
from .problem import DATA, LR, TASK, P, flat

FIRST, SECOND = 7, 8
WHERE = [[3, 0, 4], [1, 2]]
FEDAVG = fedax.create("fedavg", lr=LR)
OPTIONS: dict[str, Any] = {"rounds": 2, "work": fedax.Steps(3), "batch_size": 2}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(fleets, "_PAUSE", 0.01)


def nodes(method: Any = FEDAVG, policy: Policy | None = None, tests: Any = None, **options: Any) -> Here:
    """Two nodes in this process, the first of which has a policy; the messages to it are kept."""
    at = Here(here.sites(DATA, WHERE, Problem(method, TASK, here.wire_of(**options)), tests))
    at.sites[FIRST].policy = policy or Policy()
    at.asked = []

    def spy(number: int, message: Message, answer: Any) -> Any:
        at.asked += [(message, answer)] if number == FIRST else []
        return answer

    at.spy = spy
    return at


def run(at: Here, method: Any = FEDAVG, **options: Any) -> fedax.Run:
    return here.trained(method, TASK, DATA, at, **OPTIONS | options)


def of(at: Here, kind: str) -> Message:
    """The first message of a kind to the first node."""
    return next(message for message, _ in at.asked if message.head["kind"] == kind)


def changed(message: Message, head: dict[str, Any] | None = None, **arrays: Any) -> Message:
    """A message with changes; ``arrays``: a part of a name -> a function of the array."""
    result = safetensors.numpy.load(message.tensors)
    for part, change in arrays.items():
        names = [name for name in result if part in name]
        assert names, (part, list(result))
        result |= {name: np.asarray(change(result[name]), order="C") for name in names}
    return Message(message.head | (head or {}), safetensors.numpy.save(result))


def restarted(site: Site) -> Site:
    site.close()
    return Site(site.data, site._make, site.folder, site.names, policy=site.policy)


def upload(answer: Message) -> np.ndarray:
    assert "error" not in answer.head and "repeated" not in answer.head, answer.head
    return np.concatenate([leaf.ravel() for _, leaf in sorted(safetensors.numpy.load(answer.tensors).items())])


def fewer(message: Message) -> Message:
    """The same exchange, without the last of its clients."""
    less = {name: lambda leaf: leaf[:-1] for name in ("ids", "rows", "weights", "steps", "base", "keep")}
    return changed(message, {"size": message.head["size"] - 1}, **less)


# ---- one sum once


@pytest.mark.parametrize("meanwhile", ["nothing", "restarted", "forgotten", "another process of the server"])
def test_an_exchange_is_answered_for_one_cohort(meanwhile):
    """The difference of two sums would be the upload of one client."""
    at = nodes()
    run(at)
    site, request = at.sites[FIRST], of(at, "exchange")
    first = next(answer for message, answer in at.asked if message is request)
    if meanwhile == "restarted":
        site = restarted(site)
    if meanwhile == "forgotten":
        site.answer(of(at, "forget"))
    head = {"write": [12345, 1]} if meanwhile.startswith("another") else {}
    why = "exchange 0 of round 0 (exchanges) of run"
    for other in (
        fewer(request),
        changed(request, weights=lambda leaf: leaf * np.array([1, 0, 0], leaf.dtype)),
        changed(request, steps=lambda leaf: leaf + 1),
        changed(request, download=lambda leaf: leaf + np.float32(1e-6)),
    ):
        answer = site.answer(Message(other.head | head, other.tensors))
        assert answer.head["repeated"].startswith(why) and not answer.tensors
    again = site.answer(Message(request.head | head, request.tensors))
    assert again.tensors == first.tensors  # and the same question has the same answer
    line = [json.loads(line) for line in (site.folder / "log.jsonl").read_text().splitlines()][-2]
    assert why in line["error"]


NAMES: list[dict[str, Any]] = [
    {"number": -1}, {"number": "0"}, {"number": False}, {"number": 0.5}, {"index": 0.5}, {"index": "0"},
    {"index": -1}, {"stage": "exchange"}, {"stage": "__init__"}, {"stage": ["exchanges"]},
]  # fmt: skip


@pytest.mark.parametrize("method", [FEDAVG, Mime(LR)], ids=["one exchange", "two"])
def test_an_exchange_has_one_name(method):
    """Under another one it would be answered again, for another cohort: −1 is the last of several."""
    at = nodes(method)
    run(at, method)
    site, requests = at.sites[FIRST], [message for message, _ in at.asked if message.head["kind"] == "exchange"]
    for message, head in itertools.product(requests[: len(requests) // 2], NAMES):  # of the first round
        answer = site.answer(changed(fewer(message), head))
        assert not answer.tensors and answer.head.keys() & {"error", "repeated"}, head


def test_without_the_record_the_difference_is_an_upload(monkeypatch):
    """What the test above holds off: one client's own part, to the last digits of float32."""
    at = nodes()
    run(at)
    site, request = at.sites[FIRST], of(at, "exchange")
    monkeypatch.setattr(Answered, "take", lambda *_, **__: None)
    alone = changed(request, weights=lambda leaf: leaf * np.array([0, 0, 1], leaf.dtype))
    difference = upload(site.answer(request)) - upload(site.answer(fewer(request)))
    np.testing.assert_allclose(difference, upload(site.answer(alone)), rtol=1e-5, atol=1e-6)
    assert abs(difference).max() > 1e-3


class Broken(Exception):
    pass


def secure_sums(monkeypatch: Any) -> list[tuple[list[int], np.ndarray]]:
    """The sums that servers learn, with the positions of the nodes that they are over."""
    results, total = [], masks.total

    def noted(name: str, masked: Any, *more: Any) -> Any:
        value = total(name, masked, *more)
        results.append((sorted(masked), value))
        return value

    monkeypatch.setattr(masks, "total", noted)
    return results


@pytest.mark.parametrize("kept", [True, False])
def test_a_resumed_server_has_no_second_sum(kept, monkeypatch, tmp_path):
    """It is stopped when it has the sum over three nodes, and asks the round again while the second one is away."""
    sums = secure_sums(monkeypatch)
    own: list[np.ndarray] = []
    masked = masks.Masks.masked

    def noted(self: Any, name: str, values: np.ndarray, *more: Any) -> Any:
        own.append(values)
        return masked(self, name, values, *more)

    monkeypatch.setattr(masks.Masks, "masked", noted)
    if not kept:
        take = Answered.take
        monkeypatch.setattr(Answered, "take", lambda self, name, *more, **options: (
            None if name.startswith("the sum over") else take(self, name, *more, **options)))  # fmt: skip
    secure = test_secure.TWO
    at = Here(test_secure.sites(secure=secure))

    def stop(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "evaluate" and message.head["index"] == 1:
            raise Broken  # the round is over, and no checkpoint is made of it yet
        return answer

    at.spy = stop
    with pytest.raises(Broken):
        test_secure.run(transport=at, checkpoint=tmp_path, secure=secure)
    (who, whole), second = sums[0], own[0]
    assert who == [0, 1, 2] and len(sums) == 1
    sums.clear()
    at.spy = test_secure.gone("exchange", SECOND, 0)
    run = test_secure.run(transport=at, checkpoint=tmp_path, timeout=0.05, secure=secure)
    if kept:
        assert [who for who, _ in sums] == [[0, 1, 2]]  # of round 1 alone
        assert set(run.left_out.values()) == {1} and len(run.left_out) == secure_problem.DATA.num_clients
        x0 = secure_problem.TASK.init(jax.random.key(0))
        assert jax.tree.structure(run.params) == jax.tree.structure(x0)
        assert run.history["train_loss"][1] == run.history["train_loss"][0]  # the round has no sum
        assert run.history["train_loss"][2] < run.history["train_loss"][1]
    else:
        assert sums[0][0] == [1, 2]
        assert (whole - sums[0][1]).tolist() == second.tolist()  # the second node's own, bit for bit


def test_a_run_that_was_stopped_before_its_first_checkpoint_is_the_same_run(tmp_path):
    """Otherwise its first round would be requested anew under another number."""
    at = nodes()

    def stop(number: int, message: Message, answer: Any) -> Any:
        if message.head["kind"] == "exchange" and number == FIRST:
            raise Broken
        return at.asked.append((message, answer)) or answer

    at.spy = stop
    for _ in range(2):
        with pytest.raises(Broken):
            run(at, checkpoint=tmp_path)
    with pytest.raises(Broken):
        run(at, checkpoint=tmp_path / "other")
    numbers = [message.head["run"] for message, _ in at.asked if message.head["kind"] == "exchange"]
    assert len({*numbers}) == 2 and numbers.count(numbers[0]) == 2
    with pytest.raises(Broken):
        here.trained(fedax.create("fedavg", lr=LR / 2), TASK, DATA, at, **OPTIONS, checkpoint=tmp_path)
    assert at.asked[-1][0].head["run"] not in numbers


def test_a_round_that_cannot_be_asked_again_ends_a_method_for_all_clients():
    method = fedax.create("vrl-sgd", lr=LR)
    at = nodes(method)
    spy = at.spy

    def repeated(number: int, message: Message, answer: Any) -> Any:
        spy(number, message, answer)
        if (number, message.head["kind"]) != (FIRST, "exchange"):
            return answer
        return at.sites[FIRST].answer(changed(message, download=lambda leaf: leaf + np.float32(1)))

    at.spy = repeated
    with pytest.raises(fedax.NodeError, match=r"^clients '3', '0', '4': exchange 0 of .*new run$"):
        run(at, method)


def test_the_record(tmp_path):
    known = Answered(tmp_path)
    known.take("a", "1", Policy())
    known.take("b", "2", Policy(), loss=0.25)
    with (tmp_path / answered.FILE).open("ab") as file:
        file.write(b'{"name": "c", "digest": "3", "da')  # half a line: its answer has not left
    again = Answered(tmp_path)
    assert (again.total, again.loss) == (2, 0.25)
    again.take("c", "4", Policy())
    with pytest.raises(Repeated, match=r"^b was answered before, to another question"):
        Answered(tmp_path).take("b", "3", Policy())
    lines = (tmp_path / answered.FILE).read_bytes().splitlines()
    assert len(lines) == 3
    for bad in (b"{}", b"nonsense", b"[1]", b'{"name": 1, "digest": "", "day": ""}', lines[1].replace(b"0.25", b"-1")):
        (tmp_path / answered.FILE).write_bytes(lines[0] + b"\n" + bad + b"\n")
        with pytest.raises(fedax.ConfigError, match="line 2 of what was answered cannot be read"):
            Answered(tmp_path)


# ---- the rules


def one_of(leaf: np.ndarray) -> np.ndarray:
    """All weight on one client."""
    return np.eye(len(leaf), dtype=leaf.dtype)[0]


def nearly(leaf: np.ndarray) -> np.ndarray:
    return np.maximum(one_of(leaf), leaf.dtype.type(1e-3))


RULES: list[tuple[Policy, str, Callable[[Message], Message], str]] = [
    (Policy(clients=2), "exchange", lambda m: changed(m, weights=one_of), "sums.clients = 2"),
    (Policy(clients=2), "exchange", lambda m: changed(m, weights=nearly), "sums.clients = 2"),
    (Policy(clients=2), "exchange", lambda m: changed(m, data_weights=nearly), "sums.clients = 2"),
    (Policy(clients=2), "exchange", lambda m: fewer(fewer(m)), "sums.clients = 2"),
    (Policy(clients=2), "evaluate", lambda m: changed(m, weights=one_of), "sums.clients = 2"),
    (Policy(examples=4), "exchange", lambda m: fewer(fewer(m)), "sums.examples = 4"),
    (Policy(examples=4), "evaluate", lambda m: changed(m, weights=one_of), "sums.examples = 4"),
    (Policy(), "evaluate", lambda m: changed(m, weights=lambda leaf: leaf * np.nan), "are not numbers ≥ 0"),
    (Policy(), "exchange", lambda m: changed(m, weights=lambda leaf: -leaf), "are not numbers ≥ 0"),
    (Policy(steps=3), "exchange", lambda m: changed(m, steps=lambda leaf: leaf - 1), "work.steps = 3"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RULES)))
def test_a_rule_is_kept_whatever_is_asked(number):
    policy, kind, attack, text = RULES[number]
    at = nodes()
    run(at)
    site, request = at.sites[FIRST], of(at, kind)
    # A node that has not answered yet, so that the record is not what refuses.
    fresh = Site(site.data, site._make, site.folder.parent / f"{site.folder.name}-new", site.names, policy=policy)
    answer = fresh.answer(Message(attack(request).head | {"mark": fresh.mark}, attack(request).tensors))
    assert text in answer.head["error"] and not answer.tensors, answer.head
    lines = (fresh.folder / "log.jsonl").read_text().splitlines()
    assert text in json.loads(lines[-1])["error"]
    assert not (fresh.folder / answered.FILE).exists()
    honest = fresh.answer(Message(request.head | {"mark": fresh.mark}, request.tensors))
    assert honest.tensors, honest.head


TABLE = {"method": {"name": "fedavg", "label": "x"}, "task": {"name": "mine"}}


@pytest.mark.parametrize(
    ("policy", "method", "options", "text"),
    [
        (Policy(batch=3), FEDAVG, {}, r"work.batch = 3\) is against local steps of 2 examples"),
        (Policy(steps=4), FEDAVG, {}, r"work.steps = 4\) is against an upload after 3 steps"),
        (Policy(steps=1), Mime(LR), {}, r"work.steps = 1\) is against an upload after 0 steps"),
        (Policy(nodes=2), FEDAVG, {}, r"secure.nodes = 2\) is against an update that is not in a secure sum"),
        (Policy(single=False), FEDAVG, {"aggregate": fedax.CoordinateMedian()}, r"sums.single = False\)"),
        (Policy(single=False), OneWalks(LR), {}, r"sums.single = False\)"),
        (Policy(single=False), FEDAVG, {"pace": fedax.Async(2)}, r"sums.single = False\)"),
        (Policy(clients=2), OneWalks(LR), {}, r"sums.clients = 2\)"),
        (Policy(columns=[], clip=1.0, update_noise=2.0), FEDAVG, {"guard": True}, r"updates.clip = 1.0\)"),
        (Policy(methods=["scaffold"]), FEDAVG, {}, r"runs.methods = \['scaffold'\]\) is against a run with the method"),
        (Policy(tasks=[]), FEDAVG, {}, r"runs.tasks = \[\]\) is against a run with the task 'mine'"),
        (
            Policy(examples=12),
            FEDAVG,
            {},
            r"examples = 12\) is against train_loss in which an example counts as one of",
        ),
    ],
)
def test_a_run_that_a_rule_is_against(policy, method, options, text):
    at = nodes(method, policy, **options)
    fleet = fleets.Fleet(at, timeout=5.0)
    with pytest.raises(fedax.NodeError, match=rf"^clients '3', '0', '4': its owner.*{text}"):
        train(method, TASK, fleet, TABLE, **OPTIONS | options)


def test_a_batch_may_be_all_that_a_client_has():
    run(nodes(policy=Policy(batch=100)), batch_size=None)
    run(nodes(policy=Policy(batch=100)), batch_size=6)


def test_so_many_questions_and_no_more(monkeypatch):
    """Of all runs and kinds, over a restart; on one day, and in all."""
    day = ["2026-01-01"]
    monkeypatch.setattr(answered.time, "strftime", lambda form, *_: day[0] if form == "%Y-%m-%d" else time.asctime())
    at = nodes(policy=Policy(total=8, daily=5))
    run(at)  # two exchanges, three evaluations
    with pytest.raises(fedax.NodeError, match=r"messages.daily = 5\): .*answered today"):
        run(at)
    day[0] = "2026-01-02"
    at.sites[FIRST] = restarted(at.sites[FIRST])
    with pytest.raises(fedax.NodeError, match=r"messages.total = 8\): .*answered"):
        run(at, rounds=3)
    # One run of one round, asked again and again for other models: how rows of small batches were recovered.
    at = nodes(policy=Policy(total=30))
    run(at, rounds=1)
    request, answers = of(at, "exchange"), []
    for k in range(100):
        step = np.float32(1e-3 * k)
        answers.append(
            at.sites[FIRST].answer(changed(request, {"run": 100 + k}, download=lambda leaf, s=step: leaf + s))
        )
    assert sum(bool(answer.tensors) for answer in answers) == 30 - 3


# ---- noise of the node's own


def test_questions_that_differ_a_little_do_not_average_noise_away():
    policy = Policy(noise=7.0, bound=3.0, epsilon=8.0)
    at = nodes(policy=policy)
    run(at, rounds=0)
    site, request = at.sites[FIRST], of(at, "evaluate")
    answers = []
    for k in range(4000):
        answer = site.answer(changed(request, model=lambda leaf, k=k: leaf + leaf.dtype.type(1e-7 * k)))
        if not answer.tensors:
            assert re.search(r"its owner's budget \(budget.epsilon = 8\) is spent: ε = (7.99|8 )", answer.head["error"])
            break
        answers.append(safetensors.numpy.load(answer.tensors))
    figures = len(answers[0])
    assert len({json.dumps([leaf.tolist() for leaf in each.values()]) for each in answers}) == len(
        answers
    )  # other noise
    # By numerics of our own: δ(ε) of a Gaussian mechanism with μ = √k/z (Balle and Wang 2018).
    mu = np.sqrt(len(answers) * figures) / 7.0
    assert delta_of(8.0, mu) <= 1e-5 < delta_of(8.0, np.sqrt((1 + len(answers)) * figures) / 7.0)
    lines = [json.loads(line) for line in (site.folder / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["epsilon"] == pytest.approx(policy.spent(mu**2), abs=1e-3)
    # What was asked before is still answered, with the same noise.
    assert upload(site.answer(request)).tolist() == upload(next(a for m, a in at.asked if m is request)).tolist()


def delta_of(epsilon: float, mu: float) -> float:
    phi = scipy.stats.norm.cdf
    return float(phi(-epsilon / mu + mu / 2) - np.exp(epsilon) * phi(-epsilon / mu - mu / 2))


def test_updates_leave_with_noise_of_the_node():
    """Clipped, as large as the largest weight makes it, other noise in each round; within the budget of all runs."""
    policy = Policy(columns=["train_loss"], noise=50.0, bound=3.0, clip=0.02, update_noise=5.0, epsilon=5.0)
    at = nodes()
    run(at)
    site, request = at.sites[FIRST], of(at, "exchange")
    clients = [3, 0, 4]
    # What would leave clipped, but without noise: client by client.
    clipped = np.zeros(4)
    for k, i in enumerate(clients):
        weights = np.eye(3, dtype=np.float32)[k]
        own = upload(site.answer(changed(request, {"run": 10 + k}, weights=lambda leaf, w=weights: w)))
        clipped += P[i] * own * min(1, 0.02 / np.linalg.norm(own))
    site.policy = policy
    drawn = []
    for k in range(400):
        (site.folder / "secret").write_bytes(bytes([k % 256, k // 256] * 16))
        fresh = changed(request, {"run": 50})
        site._answered._known.clear()
        site._answered.loss = 0.0
        drawn.append((upload(site.answer(fresh)) - clipped) / (5.0 * 0.02 * P[clients].max()))
    z = np.array(drawn)
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert abs(z.mean(0)).max() < 4 / np.sqrt(400) and abs(np.corrcoef(z.T) - np.eye(4)).max() < 0.25
    # The budget, over runs and a restart: the sums of some rounds, and the figures with them.
    at = nodes(policy=policy)
    with pytest.raises(fedax.NodeError, match=r"^clients '3', '0', '4': .*budget.epsilon = 5\)"):
        for _ in range(20):
            run(at)
            at.sites[FIRST] = restarted(at.sites[FIRST])
    losses = [json.loads(line)["loss"] for line in (at.sites[FIRST].folder / answered.FILE).read_text().splitlines()]
    assert {*losses} == {1 / 25, 1 / 2500} and 4.5 < policy.spent(sum(losses)) <= 5.0
    assert policy.spent(sum(losses) + 1 / 25) > 5.0


def test_a_run_at_nodes_with_noise_is_still_a_run():
    at = nodes(policy=Policy(columns=["train_loss"], noise=50.0, bound=3.0, clip=1.0, update_noise=5.0))
    noisy, plain = run(at, rounds=1), run(nodes(), rounds=1)
    assert np.isfinite(flat(noisy.params)).all() and (flat(noisy.params) != flat(plain.params)).all()


# ---- the file


def test_the_strict_policy_has_every_rule():
    Policy.of(tomllib.loads(STRICT))
    # Each rule is in it, those behind a # too.
    text = re.sub(r"^# ((\[?[a-z]+\]?)( = .*)?)$", r"\1", STRICT, flags=re.MULTILINE)
    result = tomllib.loads(text)
    assert {name: {*rules} for name, rules in result.items()} == {name: {*rules} for name, rules in _SECTIONS.items()}
    assert all(len(line) <= 120 for line in STRICT.splitlines())
    with pytest.raises(fedax.ConfigError, match="have no room for noise of the node's own"):
        Policy.of(result)
    del result["secure"]
    assert Policy.of(result).update_noise == 4.0


def test_the_policy_of_the_page_on_privacy():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[updates]" in block]
    policy = Policy.of(tomllib.loads(block))
    assert (policy.clip, policy.update_noise, policy.noise, policy.epsilon) == (1.0, 10.0, 50.0, 8.0)
    # And the figure of the text: 100 evaluations of three figures within ε = 8.
    assert policy.spent(300 / 10.6**2) <= 8.0 < policy.spent(300 / 10.3**2)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"sum": {}}, "policy = 'sum'"),
        ({"sums": {"client": 3}}, "sums = 'client'"),
        ({"sums": 3}, r"sums = 3: it is a section: \[sums\]"),
        ({"sums": {"clients": 0}}, "sums.clients = 0"),
        ({"sums": {"clients": True}}, "sums.clients = True"),
        ({"sums": {"single": 1}}, "sums.single = 1: give true or false"),
        ({"runs": {"methods": "fedavg"}}, "runs.methods = 'fedavg': .*list"),
        ({"work": {"steps": -1}}, "work.steps = -1"),
        ({"figures": {"noise": 1.0}}, "figures.bound = None: .*go together"),
        ({"updates": {"clip": 1.0}}, "updates.noise = None"),
        ({"updates": {"clip": 1.0, "noise": 3.0}}, "figures.noise = None: figures without"),
        ({"figures": {"noise": 0.1, "bound": 1.0}}, "figures.noise = 0.1: .*more noise"),
        ({"budget": {"epsilon": 1.0}}, "budget.epsilon = 1.0: .*no noise"),
        ({"budget": {"delta": 2.0}}, "budget.delta = 2.0"),
    ],
)
def test_rules_that_cannot_be(table, text):
    with pytest.raises(fedax.ConfigError, match=text):
        Policy.of(table)


def test_a_file_that_cannot_be_read(tmp_path):
    for content in (b"[sums", b"\xff"):
        (tmp_path / "policy.toml").write_bytes(content)
        with pytest.raises(fedax.ConfigError, match=r"policy = .*policy.toml.*: it cannot be read"):
            Policy.read(tmp_path / "policy.toml")
    with pytest.raises(fedax.ConfigError, match="No such file"):
        Policy.read(tmp_path / "none.toml")
