"""Each random number that a guarantee counts on is drawn: as large as is accounted, and another one each time.

An attacker sees all that leaves: of two runs whose settings differ in their noise alone the difference is the noise.
Nothing here asks fedax how large that should be.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

import fedax
from fedax.engine.make import make_job
from fedax.privacy import banded
from fedax.sites.protocol import answered
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.remote import agreed
from fedax.sites.protocol.site import Site
from fedax.wire.privacy import DP, salted

from ..engine import here

pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")

pytestmark = pytest.mark.filterwarnings("ignore:1 of 1 arrays of parameters never get a gradient")  # noise alone moves

N, CLIP, NOISE, NUMBERS, ROUNDS = 6, 0.5, 0.8, 1500, 4
TASK = fedax.tasks.quadratic(1)
SURE = 1e-12  # less likely is not chance: what nodes draw is another in each run of the tests


def federation(clients):
    return fedax.data.quadratics(H=np.ones((clients, 1, 1)), e=np.zeros((clients, 1)))


class Heard(fedax.Algorithm):
    """A warm-up and two exchanges of two arrays, of which one is a change; its model is all that the server hears."""

    def init(self, x):
        return x

    def download(self, server):
        return ()

    def client(self, download, memory, oracle):
        own = jnp.full(NUMBERS, 1e-3)  # shorter than any clip
        return {"a": own, "b": fedax.Change(-own.reshape(3, -1))}, memory

    def warmup(self):
        def server(server, mean, round):
            return server.map(lambda heard: heard.at[0, 0].set(rows(mean)))

        return (fedax.Exchange(self.client, server),)

    def exchanges(self):
        def server(number):
            return lambda server, mean, round: server.map(
                lambda heard: heard.at[1 + round.index, number].set(rows(mean))
            )

        return tuple(fedax.Exchange(self.client, server(number)) for number in range(2))


def rows(mean):
    return jnp.stack([mean["a"], mean["b"].reshape(-1)])


def room(rounds):
    """A task whose model has room for what :class:`Heard` hears, and whose figures are 0."""
    zeros = lambda x, batch: jnp.zeros(len(batch["e"]))  # noqa: E731
    shape = (1 + rounds, 2, 2, NUMBERS)
    return fedax.Task(
        init=lambda key: jnp.zeros(shape), loss=lambda x, batch, key: zeros(x, batch), metrics={"accuracy": zeros}
    )


def noises(participation, expected, seeds=(3, 4), rounds=ROUNDS, dp=None, **options):
    """Noise of the warm-up [seeds, 2, d] and of the rounds [seeds, rounds, exchanges, 2, d], in units of the clip.

    Estimates count 1/expected in a mean, in the warm-up and of changes 1/N.
    """

    def point(noise):
        return {"algorithm": Heard(), "privacy": DP(CLIP, noise, 1e-3, noise_seed=0, **dp or {})}

    sweep = fedax.sweep(
        point, {"noise": [0.0, NOISE]}, room(rounds), federation(N), seeds=seeds, rounds=rounds,
        participation=participation, evaluate_every=rounds, **options,
    )  # fmt: skip
    assert sweep.programs == 1
    exact, noised = (np.array([np.asarray(run.params, float) for run in runs]) for runs in sweep.runs)
    drawn = (noised - exact) / CLIP
    return drawn[:, 0, 0] * N, drawn[:, 1:] * np.array([[expected], [N]])


def independent(drawn):
    """That rows of standard normal numbers are such: each is distributed so, and no two have to do with one another."""
    for part, factor in ((drawn.ravel(), 1.5), *((row, 2) for row in drawn)):
        assert scipy.stats.kstest(part, "norm").pvalue > SURE
        for wrong in (1 / factor, factor):  # the test would see it
            assert scipy.stats.kstest(part * wrong, "norm").pvalue < SURE
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(correlations).max() < 7 / drawn.shape[1] ** 0.5
    sizes = np.corrcoef(np.abs(drawn)) - np.eye(len(drawn))  # of one radius, turned
    assert np.abs(sizes).max() < 7 / drawn.shape[1] ** 0.5


@pytest.mark.parametrize(
    ("dp", "options"),
    [
        ({}, {}),
        ({"by_leaf": True}, {}),
        ({"adaptive": fedax.AdaptiveClip(noise=0.45)}, {}),
        ({}, {"secure": fedax.SecureSum()}),
        ({}, {"compress": fedax.ErrorFeedback(fedax.TopK(0.5))}),
        ({}, {"place": fedax.Place(chunk_size=1)}),
    ],
    ids=["plain", "by leaf", "adaptive clip", "secure sums", "compressed", "one by one"],
)
def test_noise_of_each_sum(dp, options):
    """Of the warm-up, of each exchange, array, round and lane: as large as is said, and with nothing in common."""
    warmup, heard = noises(fedax.Poisson(0.5), 3, dp=dp, **options)
    of_sum = NOISE
    if "adaptive" in dp:  # z⁻² = z_Δ⁻² + (2σ)⁻²
        of_sum = (NOISE**-2 - (2 * 0.45) ** -2) ** -0.5
        # In what follows a clip is another one, and so is the noise; here in all rounds and lanes the first is known.
        heard = heard[:, :1]
    independent(np.concatenate([warmup.reshape(-1, NUMBERS), heard.reshape(-1, NUMBERS)]) / of_sum)


def test_correlated_noise_hides_a_client_that_comes_again():
    """The best attack on one that is in rounds 0 and 3, on the covariance that the noise has: μ² = aᵀ Σ⁻¹ a = 2/z²."""
    bands = 3
    warmup, heard = noises(fedax.Cyclic(bands), N / bands, seeds=(3,), rounds=6, dp={"bands": bands})
    c = banded(bands, 6)
    matrix = sum(np.diag(np.full(6 - j, c[j]), -j) for j in range(bands))
    drawn = [warmup[0] / NOISE]
    for number in range(2):
        each = heard[0, :, number].reshape(6, -1)
        covariance = each @ each.T / each.shape[1]
        for first in range(bands):
            there = np.isin(np.arange(6), [first, first + 3])
            mu = there @ np.linalg.solve(covariance, there) * NOISE**2
            assert mu < 2 * 1.15 and (first or mu > 2 * 0.85), (number, first, mu)
        drawn += [*np.swapaxes((matrix @ each / NOISE).reshape(6, 2, NUMBERS), 0, 1)]
    independent(np.concatenate(drawn))


def test_each_word_of_a_secret_counts():
    secrets = np.uint32([[1, 2, 3, 4], *(np.eye(4, dtype=np.uint32) + np.uint32([1, 2, 3, 4]))])
    keys = [jax.random.key_data(salted(jax.random.key(0), each)).tolist() for each in secrets]
    assert len({*map(tuple, keys)}) == 5


# ---- the count of an adaptive clip

MANY, LONG_RUN = 100, 2000


class Norms(fedax.Algorithm):
    """Of half of the clients nothing comes, of the others more than any clip, so that a sum tells the clip."""

    def init(self, x):
        return x, jnp.zeros((LONG_RUN, 2, 2))

    def model(self, server):
        return server[0]

    def download(self, server):
        return server[0]

    def client(self, download, memory, oracle):
        return jnp.stack([0.0, -1e3 * oracle.full_grad(download * 0).tree[0]]), memory

    def exchanges(self):
        def server(number):
            return lambda server, mean, round: (server[0], server[1].at[round.index, number].set(mean))

        return tuple(fedax.Exchange(self.client, server(number)) for number in range(2))


def test_noise_of_the_count_of_an_adaptive_clip():
    """What the clip's way does not owe to the count itself, which is always half of the clients."""
    data = fedax.data.quadratics(H=np.ones((MANY, 1, 1)), e=np.arange(MANY)[:, None] % 2 * 1.0)
    privacy = DP(CLIP, 1e-4, 1e-3, adaptive=fedax.AdaptiveClip(rate=1.0), noise_seed=0)
    run = fedax.simulate(Norms(), TASK, data, rounds=LONG_RUN, privacy=privacy, evaluate_every=LONG_RUN)
    heard = np.asarray(run.state[1], float)
    clips = 2 * heard[:, :, 1]
    np.testing.assert_allclose(clips[0], CLIP, 1e-4)
    of_count = -np.diff(np.log(clips), axis=0) * MANY / (MANY / 20)  # σ is a twentieth of the cohort
    of_sum = heard[:-1, :, 0] * MANY / (1e-4 * clips[:-1])
    drawn = np.concatenate([of_count.T, of_sum.T])
    independent(drawn)
    for one in drawn[:2]:  # nor has it to do with what came before
        for other in drawn:
            assert abs(np.corrcoef(one[1:], other[:-1])[0, 1]) < 5 / LONG_RUN**0.5


# ---- who comes

CROWD, DAYS = 60, 800


class Attendance(fedax.Algorithm):
    """Each client sends an array of its own, so that the sums show who came."""

    def init(self, x):
        return x, jnp.zeros((DAYS, CROWD))

    def model(self, server):
        return server[0]

    def download(self, server):
        return server[0]

    def client(self, download, memory, oracle):
        own = jnp.round(-oracle.full_grad(download * 0).tree[0])
        return jnp.where(jnp.arange(CROWD) == own, 1.0, 0.0), memory

    def server(self, server, mean, round):
        return server[0], server[1].at[round.index].set(mean)


def attendance(participation, expected, **dp):
    data = fedax.data.quadratics(H=np.ones((CROWD, 1, 1)), e=np.arange(CROWD)[:, None] * 1.0)
    run = fedax.simulate(
        Attendance(), TASK, data, rounds=DAYS, participation=participation, evaluate_every=DAYS, seed=5,
        privacy=DP(2.0, 1e-3, 1e-3, **dp),
    )  # fmt: skip
    came = np.asarray(run.state[1]) * expected
    assert np.minimum(abs(came), abs(came - 1)).max() < 0.1
    return came > 0.5


@pytest.mark.parametrize("participation", [fedax.Poisson(0.3), fedax.Uniform(18)], ids=["poisson", "uniform"])
def test_who_comes_is_drawn_from_a_secret(participation, monkeypatch):
    """Each client as often as is accounted, whoever else came and whenever it came before; not from the seed alone."""
    rate, cohorts = 0.3, []
    for secret in (b"1" * 16, b"2" * 16):
        monkeypatch.setattr(fedax.engine.secret, "_of_this_process", lambda secret=secret: secret)
        cohorts.append(attendance(participation, rate * CROWD))
    public = attendance(participation, rate * CROWD, noise_seed=0)
    spread = (rate * (1 - rate)) ** 0.5
    for came in cohorts:
        assert abs(came.mean(0) - rate).max() < 5 * spread / DAYS**0.5
        sizes = came.sum(1)
        if isinstance(participation, fedax.Uniform):
            assert (sizes == rate * CROWD).all()
        else:
            assert abs(sizes.var() / (CROWD * spread**2) - 1) < 5 * (2 / DAYS) ** 0.5
        for each, most in ((came, 0.9), (came.T, 5.5 / DAYS**0.5)):  # rounds, and clients
            assert (np.corrcoef(each) - np.eye(len(each))).max() < most
    for one, other in ((cohorts[0], cohorts[1]), (cohorts[0], public), (cohorts[1], public)):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / (DAYS * CROWD) ** 0.5


def test_who_is_left_out_of_a_full_cohort_is_drawn(monkeypatch):
    """Where more clients are drawn than there are places, which happens too seldom to be seen."""
    monkeypatch.setattr(fedax.Poisson, "places", lambda self, num_clients: 4)
    draw = jax.jit(jax.vmap(lambda key: fedax.Poisson(0.9).draw(key, jnp.full(12, 1 / 12), 0).ids))
    ids = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)))
    assert scipy.stats.chisquare(np.bincount(ids.ravel(), minlength=13)[:12]).pvalue > 1e-4


# ---- at nodes

WHERE = [[3, 0, 4], [1, 2, 5]]
WEIGHTS = np.array([0.1, 0.2, 0.15, 0.05, 0.2, 0.3])


def nodes(rounds, **policy):
    """Two nodes with a policy, and the questions that a run asks of them: (node, question, answer)."""
    examples = federation(N).examples
    data = fedax.FederatedData(examples, np.ones(N, int), WEIGHTS)
    held = {"H": np.ones((4, 1, 1)), "e": np.zeros((4, 1))}
    at, asked = here.Here(here.sites(data, WHERE, tests=[held, held])), []
    for site in at.sites.values():
        site.policy = Policy(**policy)
    at.spy = lambda number, message, answer: asked.append((number, message, answer)) or answer
    here.trained(Heard(), room(rounds), data, at, rounds=rounds, work=fedax.Steps(1))
    return at, [each for each in asked if each[1].head["kind"] in ("exchange", "evaluate")]


def arrays(message):
    assert "error" not in message.head and "repeated" not in message.head, message.head
    return safetensors.numpy.load(message.tensors)


def only(found, name):
    (value,) = (each for key, each in found.items() if name in key)
    return value.astype(float)


def test_noise_of_a_node_on_its_updates():
    """As large as its largest client makes it; another one at each node, in each exchange, array and round."""
    _, asked = nodes(3, clip=CLIP, update_noise=NOISE, noise=NOISE, bound=2.0, epsilon=1e9)
    drawn = []
    for number, question, answer in asked:
        if question.head["kind"] != "exchange":
            continue
        total, weights = arrays(answer), WEIGHTS[WHERE[number - 7]]
        for array, own in (("['a']", 1e-3), ("['b']", -1e-3)):
            drawn.append((only(total, array).ravel() - own * weights.sum()) / (NOISE * CLIP * weights.max()))
    assert len(drawn) == 2 * (1 + 3 * 2) * 2
    independent(np.array(drawn))


def figures(answer):
    return np.array([value.item() for _, value in sorted(arrays(answer).items())])


def test_noise_of_a_node_on_its_figures(monkeypatch):
    """Here all of them are 0: so what comes is noise, another one of each figure and question."""
    monkeypatch.setattr(answered.os, "fsync", lambda file: None)  # a thousand answers
    at, asked = nodes(0, noise=NOISE, bound=2.0, epsilon=1e9)
    number, question, answer = next(each for each in asked if each[1].head["kind"] == "evaluate")
    assert ["accuracy" in name for name in sorted(arrays(answer))] == [True, False, False]  # of the test; then losses
    fleet, options = Fleet(at), {"rounds": 999, "work": fedax.Steps(1), "evaluate_every": 1}
    fleet.census = fleet.census._replace(weights=WEIGHTS)
    job = make_job(Heard(), room(0), fleet.census, **options)
    agreement = agreed(fleet, here.told(Heard(), job.plan.task, **options), 0, lambda: job)
    each = []
    for k in range(1000):
        head = question.head | {"agreement": agreement.digest, "round": k}
        each.append(figures(at.sites[number].answer(Message(head, question.tensors))))
    most = WEIGHTS[WHERE[number - 7]].max()
    drawn = np.array(each).T / (NOISE * np.array([[1.0], [2.0], [2.0 * most]]))
    independent(drawn)
    for one, other in itertools.product(drawn, drawn):  # nor has it to do with the question before
        assert abs(np.corrcoef(one[1:], other[:-1])[0, 1]) < 7 / 1000**0.5


def apart(ones, others):
    """That no figure has the noise of the other one; that two of three are as near by chance is one of 10¹¹."""
    return (ones != others).all() and np.sort(np.abs(ones - others))[1] > 1e-6


def test_noise_of_a_node_is_from_its_own_secret(tmp_path):
    """Else who has the same data knows it."""
    at, asked = nodes(0, noise=NOISE, bound=2.0, epsilon=1e9)
    number, question, answer = next(each for each in asked if each[1].head["kind"] == "evaluate")
    site = at.sites[number]
    twin = Site(site.data, site._make, tmp_path, site.names, site.held["test"], site.policy)
    agreement, *_ = site.store.agreement(question.head["agreement"])
    assert "error" not in twin.answer(Message({"kind": "agreement", "text": agreement.text})).head
    assert figures(site.answer(question)).tolist() == figures(answer).tolist()
    assert apart(figures(twin.answer(question)), figures(answer))


@pytest.mark.parametrize("what", ["an example", "a held-out example"])
def test_noise_of_a_node_is_another_when_its_data_are(what):
    """Else the difference of two answers to one question would be the change itself; and both answers are paid for.

    The run that began with the other data ends; in the next one all noise is drawn anew.
    """
    policy = {"noise": NOISE, "bound": 2.0, "clip": CLIP, "update_noise": NOISE, "epsilon": 1e9}
    at, asked = nodes(1, **policy)
    number, question, answer = next(each for each in asked if each[1].head["kind"] == "evaluate")
    update = next(message for of, message, _ in asked if of == number and message.head["kind"] == "exchange")
    site = at.sites[number]
    before, spent = figures(site.answer(question)), site._answered.loss
    assert before.tolist() == figures(answer).tolist() and site._answered.loss == spent
    agreement, *_ = site.store.agreement(question.head["agreement"])
    site.close()
    examples, held = (
        {name: leaf + 0 for name, leaf in each.items()} for each in (site.data.examples, site.held["test"])
    )
    (examples if what == "an example" else held)["e"][0] = 7.0
    changed = Site(
        fedax.FederatedData(examples, site.data.sizes), site._make, site.folder, site.names, held, site.policy
    )
    for message in (question, update, Message({"kind": "agreement", "text": agreement.text})):
        assert "others than when the run began" in changed.answer(message).head["error"]
    new = dataclasses.replace(agreement, run=agreement.run ^ 1)
    assert "error" not in changed.answer(Message({"kind": "agreement", "text": new.text})).head
    after = figures(changed.answer(Message(question.head | {"agreement": new.digest}, question.tensors)))
    assert apart(after, before) and changed._answered.loss == pytest.approx(spent + 3 / NOISE**2)
