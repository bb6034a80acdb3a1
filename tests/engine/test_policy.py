"""The rules of a node's owner, each enforced against a server's attack."""

import dataclasses
import itertools
import json
import pathlib
import re
import time
import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

import fedax
from fedax.sites.protocol import answered, masks
from fedax.sites.protocol import fleet as fleets
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.answered import Answered, Repeated
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.policy import _SECTIONS, STRICT, Policy, read_table
from fedax.sites.protocol.refusals import Refusal, Rule
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.train import train

from . import here, test_secure
from .here import Here
from .methods import Mime, OneWalks
from .problem import DATA, LR, MEASURED, TASK, P, flat

FIRST, SECOND = 7, 8
WHERE = [[3, 0, 4], [1, 2]]
FEDAVG = fedax.create("fedavg", lr=LR)
OPTIONS: dict[str, Any] = {"rounds": 2, "work": fedax.Steps(3), "batch_size": 2}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(fleets, "_PAUSE", 0.01)


def nodes(policy: Policy | None = None, tests: Any = None) -> Here:
    """Two nodes in this process, the first of which has a policy; the messages to it are kept."""
    at = Here(here.sites(DATA, WHERE, tests=tests))
    at.sites[FIRST].policy = policy or Policy()
    at.asked = []

    def spy(number: int, message: Message, answer: Any) -> Any:
        at.asked += [(message, answer)] if number == FIRST else []
        return answer

    at.spy = spy
    return at


def run(at: Here, method: Any = FEDAVG, weights: Any = None, task: Any = TASK, **options: Any) -> fedax.Run:
    """A run; ``weights``: of the clients, by an agreement of the server's choice."""
    data = DATA if weights is None else fedax.FederatedData(DATA.examples, DATA.sizes, weights)
    return here.trained(method, task, data, at, **OPTIONS | options)


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
    told = {name: list_[:-1] for name, list_ in message.head["told"].items()}
    return Message(message.head | {"told": told}, message.tensors)


# ---- one sum once


@pytest.mark.parametrize("meanwhile", ["nothing", "restarted", "forgotten"])
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
    assert "other clients are asked" in site.answer(fewer(request)).head["error"]
    why = "exchange 0 of round 0 (exchanges) of run"
    answer = site.answer(changed(request, download=lambda leaf: leaf + np.float32(1e-6)))
    assert answer.head["repeated"].startswith(why) and not answer.tensors
    again = site.answer(request)
    assert again.tensors == first.tensors  # and the same question has the same answer
    line = [json.loads(line) for line in (site.folder / "log.jsonl").read_text().splitlines()][-2]
    assert why in line["error"]


NAMES: list[dict[str, Any]] = [
    {"exchange": -1}, {"exchange": "0"}, {"exchange": False}, {"exchange": 0.5}, {"round": 0.5}, {"round": "0"},
    {"round": -1}, {"stage": "exchange"}, {"stage": "__init__"}, {"stage": ["exchanges"]},
]  # fmt: skip


@pytest.mark.parametrize("method", [FEDAVG, Mime(LR)], ids=["one exchange", "two"])
def test_an_exchange_has_one_name(method):
    """Under another one it would be answered again, for another cohort: −1 is the last of several."""
    at = nodes()
    run(at, method)
    site, requests = at.sites[FIRST], [message for message, _ in at.asked if message.head["kind"] == "exchange"]
    for message, head in itertools.product(requests[: len(requests) // 2], NAMES):  # of the first round
        other = changed(message, head, download=lambda leaf: leaf + leaf.dtype.type(1))
        answer = site.answer(other)
        assert not answer.tensors and answer.head.keys() & {"error", "repeated"}, head


def test_without_the_record_the_difference_is_an_upload(monkeypatch):
    """What the record holds off: of two sums over two of three clients, and one over all, one client's own part."""
    weights = {"all": [0.2, 0.3, 0.1, 0.2, 0.2], "two": [0.3, 0.3, 0.1, 0.3, 0.0]}

    def sums(at: Here) -> list[np.ndarray]:
        for each in weights.values():
            run(at, weights=each, rounds=1, batch_size=None)
        return [upload(answer) for message, answer in at.asked if message.head["kind"] == "exchange"]

    with pytest.raises(fedax.NodeError, match=r"sums.clients = 2.*difference"):
        sums(nodes(Policy(clients=2)))
    monkeypatch.setattr(Answered, "shares", lambda *_: [])
    found = sums(nodes(Policy(clients=2)))
    alone = nodes()
    run(alone, weights=np.eye(5)[4], rounds=1, batch_size=None)
    own = next(upload(answer) for message, answer in alone.asked if message.head["kind"] == "exchange")
    np.testing.assert_allclose(found[0] / 0.2 - found[1] / 0.3, own, rtol=1e-4, atol=1e-5)
    assert abs(own).max() > 1e-3


class Broken(Exception):
    pass


def broken_at(kind: str, at: Here) -> Callable[..., Any]:
    """Ends the server when the first node has answered a message of a kind."""

    def spy(number: int, message: Message, answer: Any) -> Any:
        at.asked += [(message, answer)] if number == FIRST else []
        if (number, message.head["kind"]) == (FIRST, kind):
            raise Broken
        return answer

    return spy


def secure_sums(monkeypatch: Any) -> list[tuple[list[int], np.ndarray]]:
    """The sums that servers learn, with the positions of the nodes that they are over."""
    results, total = [], masks.total

    def noted(name: str, masked: Any, *more: Any) -> Any:
        value = total(name, masked, *more)
        results.extend([(sorted(masked), value)] if more[-1] < 64 else [])  # figures have 64 bits
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
        own.extend([values] if more[0] < 64 else [])
        return masked(self, name, values, *more)

    monkeypatch.setattr(masks.Masks, "masked", noted)
    if not kept:
        take = Answered.take
        monkeypatch.setattr(Answered, "take", lambda self, name, *more, **options: (
            None if name.startswith("the sum over") else take(self, name, *more, **options)))  # fmt: skip
    secure = test_secure.TWO
    at, total = Here(test_secure.sites()), masks.total

    def stops(*given: Any) -> Any:
        value = total(*given)
        if sums:
            raise Broken  # the round is over, and no checkpoint is made of it yet
        return value

    with monkeypatch.context() as patch, pytest.raises(Broken):
        patch.setattr(masks, "total", stops)
        test_secure.run(transport=at, checkpoint=tmp_path, secure=secure)
    (who, whole), second = sums[0], own[0]
    assert who == [0, 1, 2] and len(sums) == 1
    sums.clear()
    away = test_secure.gone("exchange", SECOND, 0)
    at.spy = lambda n, message, answer: away(n, message, answer) if message.head.get("stage") == "exchanges" else answer
    if kept:
        with pytest.raises(fedax.NodeError, match=r"over other nodes before.*--resume"):
            test_secure.run(transport=at, checkpoint=tmp_path, timeout=0.05, secure=secure)
        assert not sums
        at.spy = None
        run = test_secure.run(transport=at, checkpoint=tmp_path, secure=secure)  # it is back
        assert [who for who, _ in sums] == [[0, 1, 2]] * 2
        assert sums[0][1].tolist() == whole.tolist()
        assert run.history["train_loss"][2] < run.history["train_loss"][0]
    else:
        test_secure.run(transport=at, checkpoint=tmp_path, timeout=0.05, secure=secure)
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
    numbers = [message.head["agreement"] for message, _ in at.asked if message.head["kind"] == "exchange"]
    assert len({*numbers}) == 2 and numbers.count(numbers[0]) == 2
    with pytest.raises(Broken):
        here.trained(fedax.create("fedavg", lr=LR / 2), TASK, DATA, at, **OPTIONS, checkpoint=tmp_path)
    assert at.asked[-1][0].head["agreement"] not in numbers


def test_a_round_that_cannot_be_asked_again_ends_a_method_for_all_clients():
    method = fedax.create("vrl-sgd", lr=LR)
    at = nodes()
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


ONE, MOST = [0.0, 0.4, 0.3, 0.3, 0.0], [0.01, 0.4, 0.3, 0.28, 0.01]  # the first node has clients 3, 0 and 4

RULES: list[tuple[Policy, dict[str, Any], str]] = [
    (Policy(clients=2), {"weights": ONE}, "sums.clients = 2"),
    (Policy(clients=2), {"weights": MOST}, "sums.clients = 2"),
    (Policy(clients=2), {"participation": fedax.Trace([[3, 1]] * 2)}, "sums.clients = 2"),
    (Policy(examples=4), {"participation": fedax.Trace([[3, 1]] * 2)}, "sums.examples = 4"),
    (Policy(examples=4), {"weights": ONE}, "sums.examples = 4"),
    (Policy(examples=12), {}, "sums.examples = 12"),
    (Policy(batch=3), {}, r"work.batch = 3\) is against local steps of fewer examples"),
    (Policy(steps=4), {}, r"work.steps = 4\) is against an upload after fewer local steps"),
    (Policy(steps=1), {"method": Mime(LR)}, r"work.steps = 1\)"),
    (Policy(steps=2), {"task": MEASURED}, r"work.steps = 2\)"),
    (Policy(clients=2), {"task": MEASURED}, r"sums.clients = 2\) is against gradients"),
    (Policy(columns=["train_loss"]), {"task": MEASURED}, r"figures.columns = \[train_loss\]\).*grad_norm_sq"),
    (Policy(nodes=2), {}, r"secure.nodes = 2\) is against an update that is not in a secure sum"),
    (Policy(single=False), {"aggregate": fedax.CoordinateMedian()}, r"sums.single = False\)"),
    (Policy(single=False), {"method": OneWalks(LR)}, r"sums.single = False\)"),
    (Policy(single=False), {"pace": fedax.Async(2)}, r"sums.single = False\)"),
    (Policy(clients=2), {"method": OneWalks(LR)}, r"sums.clients = 2\)"),
    (Policy(clients=2), {"guard": True}, r"sums.clients = 2\) is against a guard"),
    (Policy(clients=2), {"faults": fedax.Faults([3], times=0.0)}, "leave out run.faults"),
    (Policy(examples=2), {"faults": fedax.Faults([3], times=0.0)}, "leave out run.faults"),
    (Policy(columns=[], clip=1.0, update_noise=2.0), {"guard": True}, r"figures.columns|updates.clip = 1.0\)"),
    (Policy(rounds=1), {}, r"runs.rounds = 1\)"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RULES)))
def test_a_rule_is_kept_whatever_is_asked(number):
    """The run is refused when it is agreed on, or at the first answer that is against the rule; nothing has left."""
    policy, options, text = RULES[number]
    at = nodes(policy)
    with pytest.raises(fedax.NodeError, match=rf"^clients '3', '0', '4': .*{text}"):
        run(at, **options)
    site = at.sites[FIRST]
    lines = [json.loads(line) for line in (site.folder / "log.jsonl").read_text().splitlines()]
    assert re.search(text, next(line["error"] for line in lines if "error" in line))
    assert "method" in options or not any(a.tensors for m, a in at.asked if m.head["kind"] == "exchange")
    assert not any(answer.tensors for _, answer in at.asked if "error" in answer.head)
    at.sites[FIRST].policy = Policy()
    if "pace" not in options:
        run(at, **options)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(methods=["scaffold"]), r"runs.methods = \[scaffold\]\) is against a run with this method \(fedavg\)"),
        (Policy(tasks=[]), r"runs.tasks = \[\]\) is against a run with this task \(mine\)"),
    ],
)
def test_methods_and_tasks(policy, text, monkeypatch):
    """By their names in the configuration, before anything is made of it."""
    table = {"method": {"name": "fedavg", "label": "x"}, "task": {"name": "mine"}}
    at = nodes(policy)
    made: list[Any] = []
    at.sites[FIRST]._make = lambda config: made.append(config)
    at.sites[SECOND]._make = lambda config: Made(FEDAVG, TASK, OPTIONS)
    with pytest.raises(fedax.NodeError, match=rf"^clients '3', '0', '4': its owner.*{text}"):
        train(FEDAVG, TASK, fleets.Fleet(at, timeout=5.0), table, **OPTIONS)
    assert not made


def test_a_batch_may_be_all_that_a_client_has():
    run(nodes(Policy(batch=100)), batch_size=None)
    run(nodes(Policy(batch=100)), batch_size=6)


def test_so_many_questions_and_no_more(monkeypatch):
    """Of all runs and kinds, over a restart; on one day, and in all."""
    day = ["2026-01-01"]
    monkeypatch.setattr(answered.time, "strftime", lambda form, *_: day[0] if form == "%Y-%m-%d" else time.asctime())
    at = nodes(Policy(total=8, daily=5))
    run(at)  # two exchanges, three evaluations
    with pytest.raises(fedax.NodeError, match=r"messages.daily = 5\) .*answered today"):
        run(at)
    day[0] = "2026-01-02"
    at.sites[FIRST] = restarted(at.sites[FIRST])
    with pytest.raises(fedax.NodeError, match=r"messages.total = 8\) .*answered"):
        run(at, rounds=3)
    # One run of one round, asked again and again for other models: how rows of small batches were recovered.
    at = nodes(Policy(total=30))
    run(at, rounds=1)
    with pytest.raises(fedax.NodeError, match=r"messages.total = 30\): .*answered|messages.total = 30"):
        for _ in range(100):
            run(at, rounds=1)
    assert sum(bool(answer.tensors) for message, answer in at.asked if message.head["kind"] != "hello") == 30


# ---- noise of the node's own


def test_questions_that_differ_a_little_do_not_average_noise_away():
    policy = Policy(noise=7.0, bound=3.0, epsilon=8.0)
    at = nodes(policy)
    run(at, rounds=0)
    site, request = at.sites[FIRST], of(at, "evaluate")
    # A run with an evaluation in each round, of models that are nearly the same, is refused before its first round.
    with pytest.raises(fedax.NodeError, match=r"budget.epsilon = 8.0\) .*than are left: run.evaluate_every"):
        run(at, rounds=4000, evaluate_every=1)
    assert not site._answered.known("nothing", "of that run") and site._answered.total == 1
    # And if it were agreed on, it would end where the budget does.
    site.policy = dataclasses.replace(policy, epsilon=1e9)
    asked, at.spy = at.spy, broken_at("evaluate", at)
    with pytest.raises(Broken):
        run(at, rounds=4000, evaluate_every=1)
    site.policy, at.spy, answers = policy, asked, []
    digest = at.asked[-1][0].head["agreement"]
    for k in range(4000):
        head = {"agreement": digest, "round": 1 + k}
        answer = site.answer(changed(request, head, model=lambda leaf, k=k: leaf + leaf.dtype.type(1e-7 * k)))
        if not answer.tensors:
            assert re.search(r"budget.epsilon = 8.0\) .*with noise", answer.head["error"])
            break
        answers.append(safetensors.numpy.load(answer.tensors))
    figures = len(answers[0])
    other = {json.dumps([leaf.tolist() for leaf in each.values()]) for each in answers}
    assert len(other) == len(answers) > 10  # other noise
    # By numerics of our own: δ(ε) of a Gaussian mechanism with μ = √k/z (Balle and Wang 2018).
    first = 2  # evaluations before these
    mu = np.sqrt((first + len(answers)) * figures) / 7.0
    assert delta_of(8.0, mu) <= 1e-5 < delta_of(8.0, np.sqrt((1 + first + len(answers)) * figures) / 7.0)
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
    at, clients = nodes(), [3, 0, 4]
    # What would leave clipped, but without noise: client by client.
    clipped = np.zeros(4)
    for i in clients:
        at.asked.clear()
        run(at, weights=np.eye(5)[i])
        own = next(upload(answer) for message, answer in at.asked if message.head["kind"] == "exchange")
        clipped += P[i] * own * min(1, 0.02 / np.linalg.norm(own))
    at.asked.clear()
    at.sites[FIRST].policy = policy
    run(at)
    site, request = at.sites[FIRST], of(at, "exchange")
    drawn = []
    for k in range(400):
        (site.folder / "secret").write_bytes(bytes([k % 256, k // 256] * 16))
        site._answered._known.clear()
        site._answered.loss = site._answered.tail = 0.0
        drawn.append((upload(site.answer(request)) - clipped) / (5.0 * 0.02 * P[clients].max()))
    z = np.array(drawn)
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > here.SURE
    assert max(abs(z.mean(0)).max(), abs(np.corrcoef(z.T) - np.eye(4)).max()) < 7 / np.sqrt(400)
    # The budget, over runs and a restart: the sums of some rounds, and the figures with them.
    at = nodes(policy)
    with pytest.raises(fedax.NodeError, match=r"^clients '3', '0', '4': .*budget.epsilon = 5.0\)"):
        for _ in range(20):
            run(at)
            at.sites[FIRST] = restarted(at.sites[FIRST])
    losses = [json.loads(line)["loss"] for line in (at.sites[FIRST].folder / answered.FILE).read_text().splitlines()]
    assert {*losses} == {1 / 25, 1 / 2500} and 4.5 < policy.spent(sum(losses)) <= 5.0
    assert policy.spent(sum(losses) + 1 / 25) > 5.0


def test_a_run_at_nodes_with_noise_is_still_a_run():
    at = nodes(Policy(columns=["train_loss"], noise=50.0, bound=3.0, clip=1.0, update_noise=5.0))
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
        ({"runs": {"methods": 5}}, "runs.methods = 5: .*list"),
        ({"figures": {"bound": 1.0}}, "figures.noise = None: .*go together"),
        ({"figures": {"unit": "row"}}, "figures.unit = 'row': give clients or rows"),
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
            read_table(tmp_path / "policy.toml")
    with pytest.raises(fedax.ConfigError, match="No such file"):
        read_table(tmp_path / "none.toml")


def test_a_refusal_says_what_breaks_the_rule():
    policy = Policy(columns=["train_loss", "test_loss"], batch=4)
    for rule, broken, text in [
        (Rule.COLUMNS, policy.refused(["a", "train_loss", "b"]), r"columns = \[test_loss, train_loss\]\) .*\(a, b\)$"),
        (Rule.BATCH, np.int64(3) < np.int64(4), r"\(work.batch = 4\) is against local steps of fewer examples$"),
        (Rule.SILENCED, True, "^a sum hides nobody"),
    ]:
        with pytest.raises(Refusal, match=text):
            policy.refuse(rule, broken)
    policy.refuse(Rule.COLUMNS, [])
    policy.refuse(Rule.BATCH, np.int64(4) < np.int64(4))
