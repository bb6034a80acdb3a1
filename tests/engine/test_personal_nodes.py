"""Personal models of clients at nodes: their figures are those of a simulation, and what is a client's own stays."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import safetensors.numpy
from safetensors.numpy import load_file

import fedax
from fedax.data import split as deal
from fedax.errors import ConfigError, NodeError
from fedax.experiments.predictions import model_of_client
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import heads_of
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.train import train

from . import here
from .here import Here
from .test_personal import TASK, TRAIN

WHERE = [[0], [1, 2], [3, 4]]
OPTIONS = {"rounds": 4, "work": fedax.Steps(3), "batch_size": 2, "evaluate_every": 2}
TWO = OPTIONS | {"participation": fedax.Uniform(2)}
SPLIT = {"train": 0.6, "val": 0.0, "test": 0.4, "stratify": False, "seed": 3}
METHOD = fedax.create("fedavg", lr=0.1)
MLP = fedax.tasks.mlp(3, 2, hidden=(4,))
SAME_RATE = fedax.Piecewise(0.2, {4: 0.2})  # a schedule, so that tests with other later rates have the same programs
METHODS = {  # in the order in which their tests share programs, of which 128 are kept
    "ifca": (fedax.create("ifca", lr=0.2), TASK),
    "two exchanges": (fedax.PersonalPart(fedax.create("mime", lr=0.1), "1.*", lr=0.1), MLP),
    "together": (fedax.PersonalPart(fedax.create("fedavg", lr=0.1), "1.*", order="together"), MLP),
    "first": (fedax.PersonalPart(fedax.create("scaffold", lr=0.1), "1.*", lr=0.1), MLP),
    "ditto": (fedax.create("ditto", lr=0.2, personal_lr=SAME_RATE, lam=0.3), TASK),
    "mr-mtl": (fedax.create("mr-mtl", lr=0.2, lam=0.3), TASK),
}


def numbered(data, task):
    """The clients by their numbers, as nodes here call them; with classes for a network."""
    clients = [data.client(i) for i in range(data.num_clients)]
    if task is MLP:
        clients = [{**each, "y": (each["y"] > 0).astype(np.int32)} for each in clients]
    return fedax.FederatedData.from_clients({str(i): each for i, each in enumerate(clients)})


def at_nodes(method, task, spy=None, split=None, tests=None, known=None, **options):
    data = numbered(TRAIN, task)
    transport = Here(here.sites(data, WHERE, tests=tests, known=known), spy, forgets=True)
    fleet = Fleet(transport, timeout=5.0)
    fleet = fleet if split is None else fleet.dealt(split)
    return train(method, task, fleet, here.told(method, task, **options), **options), transport


@functools.cache
def split_run(name):
    """A run of a method at nodes that hold rows out by themselves, and the transport with them."""
    return at_nodes(*METHODS[name], split=SPLIT, **TWO)


@functools.cache
def simulated(name):
    """The same as a simulation."""
    method, task = METHODS[name]
    data, test = split_here(task)
    return fedax.simulate(method, task, data, test=test, **TWO)


def equal(run, other, columns):
    for name in columns:
        np.testing.assert_allclose(run.history[name], other.history[name], 1e-5, 1e-6, err_msg=name)


def own_columns(run):
    return [name for name in run.history if name.endswith("_personal")]


def split_here(task):
    """What the nodes have, in one place: the clients' weights stay those of all their rows."""
    parts = deal(numbered(TRAIN, task), **SPLIT)
    return parts.train.with_weights(TRAIN.weights), parts.test


def test_an_initial_model_that_nodes_cannot_know_is_refused():
    x = {"w": np.ones(3, np.float32)}
    with pytest.raises(ConfigError, match=r"params.*task\.start"):
        at_nodes(*METHODS["mr-mtl"], **OPTIONS | {"params": x})
    with pytest.raises(ConfigError, match=r"params.*STEM.*task\.start"):
        at_nodes(fedax.create("stem", prev="local"), TASK, **OPTIONS | {"params": x})
    # Of the model, clients of this method keep nothing at the beginning.
    run, _ = at_nodes(*METHODS["ifca"], split=SPLIT, **TWO | {"params": x})
    assert run.status == "finished"


@pytest.mark.parametrize("name", METHODS)
def test_figures_are_those_of_the_simulation(name):
    (run, _), other = split_run(name), simulated(name)
    own = own_columns(other)
    assert {"train_loss_personal", "test_loss_personal", "test_accuracy_personal"} <= {*own}
    assert len({*other.history["newcomers"]}) > 1
    equal(run, other, [*own, "turn_age", "newcomers", "train_loss", "test_loss"])
    with pytest.raises(ConfigError, match=r"run\.personal.*stay at their nodes"):
        run.personal(0)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("first", {"secure": fedax.SecureSum(clip=10.0)}),
        ("ditto", {"compress": fedax.TopK(0.5)}),
        ("mr-mtl", {"privacy": fedax.DP(clip=0.5, noise=0.5, delta=1e-3, noise_seed=7)}),
    ],
    ids=["secure", "compressed", "private"],
)
def test_with_what_a_run_puts_around_a_method(name, more):
    pytest.importorskip("cryptography")
    method, task = METHODS[name]
    options, equally = OPTIONS | more, np.full(5, 0.2)
    fleet = Fleet(Here(here.sites(numbered(TRAIN, task), WHERE, known=here.rosters(3)), forgets=True), timeout=5.0)
    fleet.census = fleet.census._replace(weights=equally)
    run = train(method, task, fleet.dealt(SPLIT), here.told(method, task, **options), **options)
    data, test = split_here(task)
    other = fedax.simulate(method, task, data.with_weights(equally), test=test, **options)
    equal(run, other, [*own_columns(other), "turn_age", "newcomers"])


def test_programs_about_own_models_are_the_same_whatever_is_around_a_method(compilations):
    method, task = METHODS["ditto"]
    at_nodes(method, task, split=SPLIT, **TWO)
    compilations()
    at_nodes(method, task, split=SPLIT, **OPTIONS | {"compress": fedax.TopK(0.5)})
    assert compilations("_evaluated") == 0


def test_the_fine_tuned_model_is_made_at_the_nodes():
    method = fedax.FineTuned(fedax.create("scaffold", lr=0.1), lr=0.1, steps=5)
    run, transport = at_nodes(method, TASK, split=SPLIT, **TWO)
    data, test = split_here(TASK)
    other = fedax.simulate(method, TASK, data, test=test, **TWO)
    assert own_columns(run) == own_columns(other) and "turn_age" not in run.history
    equal(run, other, [*own_columns(other), "train_loss", "test_loss"])
    models = [path for site in transport.sites.values() for path in site.folder.glob("models/*/*/*")]
    assert len(models) == 5


@pytest.mark.parametrize("name", ["ditto", "first"])
def test_a_node_keeps_the_models_of_its_clients(name):
    (_, transport), run = split_run(name), simulated(name)
    models = {path.name: path for site in transport.sites.values() for path in site.folder.glob("models/*/*/*")}
    assert {*models} == {f"{i}.safetensors" for i in range(5)}
    for i in range(5):
        model = fedax.load_model(models[f"{i}.safetensors"])
        for one, other in zip(jax.tree.leaves(model.params), jax.tree.leaves(run.personal(i)), strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    assert not [*next(iter(transport.sites.values())).folder.glob("memory/*/*")]


@pytest.mark.parametrize(("later", "kept"), [(10.0, {4, 8}), (0.2, {8})], ids=["a round before", "the last round"])
def test_a_node_keeps_the_models_of_the_best_round_and_the_last(later, kept, tmp_path):
    method = fedax.create("ditto", lr=0.2, personal_lr=fedax.Piecewise(0.2, {4: later}), lam=0.3)
    options = TWO | {"rounds": 8}
    run, transport = at_nodes(method, TASK, split=SPLIT, checkpoint=tmp_path, best="train_loss", **options)
    assert run.best.round == min(kept) and run.history["train_loss_personal"].argmin() == run.best.round / 2
    data, _ = split_here(TASK)
    for index in kept:
        there = fedax.simulate(method, TASK, data, **options | {"rounds": index})
        for i in range(5):
            (path,) = [*own_models(transport, f"round-{index}/{i}.safetensors")]
            np.testing.assert_allclose(fedax.load_model(path).params["w"], there.personal(i)["w"], 1e-5, 1e-6)
    assert {path.parent.name for path in own_models(transport, "*/*")} == {f"round-{index}" for index in kept}
    folder = next(iter(transport.sites.values())).folder
    if len(kept) == 1:
        assert model_of_client(folder, "0").parent.name == "round-8"
    else:
        with pytest.raises(ConfigError, match=r"several models.*round-4/0.safetensors.*round-8/0.safetensors"):
            model_of_client(folder, "0")


def own_models(transport, name):
    return [path for site in transport.sites.values() for path in site.folder.glob(f"models/*/{name}")]


class Spy:
    """Keeps the arrays of all answers."""

    def __init__(self):
        self.answers = []

    def __call__(self, number, message, answer):
        kinds = {head["kind"] for head in heads_of(message)}
        self.answers.append((kinds, safetensors.numpy.load(answer.tensors) if answer.tensors else {}))
        return answer


@pytest.mark.parametrize("name", ["first", "together"])
def test_no_number_of_a_clients_own_part_leaves(name):
    method, task = METHODS[name]
    spy = Spy()
    data, _ = split_here(task)
    _, transport = at_nodes(method, task, spy, split=SPLIT, **TWO)
    own = set()  # the numbers of all own parts in all rounds
    for rounds in range(1, 5):
        after = fedax.simulate(method, task, data, **TWO | {"rounds": rounds})
        own |= {float(x) for i in range(5) for leaf in jax.tree.leaves(after.personal(i)[1]) for x in np.ravel(leaf)}
    kept = [load_file(path) for site in transport.sites.values() for path in site.folder.glob("models/*/*/*")]
    there = {float(x) for each in kept for name, leaf in each.items() if name.startswith("1.") for x in np.ravel(leaf)}
    assert len(there) >= 50 and len(there & own) > 0.5 * len(there)  # what is looked for is what nodes have
    left = [leaf for _, arrays in spy.answers for leaf in arrays.values()]
    numbers = {float(x) for leaf in left if leaf.dtype == np.float32 for x in np.ravel(leaf)} - {0.0}
    assert len(numbers) > 100 and not numbers & (own | there)
    sizes = {int(leaf.size) for kinds, arrays in spy.answers if "exchange" in kinds for leaf in arrays.values()}
    assert sizes <= {1, 4, 12}  # the figures, the leaves of the body


def test_of_held_out_rows_at_a_node_with_several_clients_nobody_knows_whose_they_are():
    test = numbered(TRAIN, TASK).client(2)
    run, _ = at_nodes(METHODS["ditto"][0], TASK, tests=[test, test, None], **OPTIONS)
    known = fedax.FederatedData.from_clients({"0": test})
    other = fedax.simulate(METHODS["ditto"][0], TASK, numbered(TRAIN, TASK), test=known, **OPTIONS)
    equal(run, other, own_columns(other))
    assert "test_auc_personal" in other.history


def test_a_part_of_which_nobody_knows_whose_it_is_has_no_figure():
    test = numbered(TRAIN, TASK).client(2)
    run, _ = at_nodes(METHODS["ditto"][0], TASK, tests=[None, test, None], **OPTIONS)
    assert np.isnan(run.history["test_loss_personal"]).all()
    assert np.isfinite(run.history["test_loss"]).all() and np.isfinite(run.history["train_loss_personal"]).all()


def test_at_a_server_that_does_not_wait():
    transport = here.Timed(here.sites(numbered(TRAIN, TASK), WHERE), lambda number, message: 1.0 + number % 3)
    method, options = METHODS["mr-mtl"][0], OPTIONS | {"pace": fedax.Async(2, 1, start="idle"), "rounds": 6}
    run = train(method, TASK, Fleet(transport).dealt(SPLIT), here.told(method, TASK, **options), **options)
    assert np.isfinite(run.history["train_loss_personal"]).all()
    assert run.history["newcomers"][0] == 5 > run.history["newcomers"][-1]
    assert run.history["turn_age"][-1] > 0


@pytest.mark.parametrize(
    ("policy", "hint"),
    [
        ({"noise": 2.0, "bound": 1.0, "epsilon": 1e6}, "figures.noise.*train_loss_personal"),
        ({"columns": ["train_loss"]}, "figures.columns.*train_loss_personal"),
        ({"examples": 100}, "sums.examples"),
    ],
)
def test_owners_rules_hold_for_them(policy, hint):
    method, task = METHODS["together"]
    sites = here.sites(numbered(TRAIN, task), WHERE, policy=Policy(**policy))
    with pytest.raises(NodeError, match=hint):
        train(method, task, Fleet(Here(sites)), here.told(method, task, **OPTIONS), **OPTIONS)


@pytest.mark.parametrize("name", ["ditto", "first"])
def test_a_run_that_was_stopped_goes_on_with_the_same_figures(name, tmp_path):
    method, task = METHODS[name]
    whole, _ = split_run(name)
    sites = here.sites(numbered(TRAIN, task), WHERE)

    def go(spy=None):
        fleet = Fleet(Here(sites, spy, forgets=True), timeout=5.0).dealt(SPLIT)
        return train(method, task, fleet, here.told(method, task, **TWO), checkpoint=tmp_path, **TWO)

    def stops(number, message, answer):
        if any(head["kind"] == "exchange" and head["round"] == 3 for head in heads_of(message)):
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        go(stops)
    on = go()
    for column in ("train_loss_personal", "test_loss_personal", "turn_age", "newcomers"):
        assert on.history[column].tolist()[-1:] == whole.history[column].tolist()[-1:]


ONE = {"rounds": 1, "work": fedax.Steps(1)}


@pytest.mark.parametrize("of_nodes", [True, False], ids=["drawn", "sent"])
def test_the_runs_of_one_frozen_part_share_programs(compilations, of_nodes):
    task = dataclasses.replace(fedax.tasks.softmax_regression(3, 2))
    params = None if of_nodes else jax.tree.map(lambda leaf: leaf + 1, task.init(jax.random.key(0)))
    own, part = fedax.tasks.partial(task, "b"), fedax.tasks.partial(task, "b", params)
    sites = here.sites(numbered(TRAIN, MLP), [[*range(5)]], Made(METHOD, own, ONE))
    go = lambda **more: train(METHOD, part, Fleet(Here(sites)), {"told": "it"}, **ONE | more)  # noqa: E731
    go()
    assert compilations() > 0
    go(seed=1)
    assert compilations() == 0
    frozen = jax.tree.map(lambda leaf: leaf + 2, part.frozen)
    other = own.with_frozen(frozen)
    assert other is own.with_frozen(jax.tree.map(np.array, frozen)) is not own.with_frozen(part.frozen)
    np.testing.assert_array_equal(other.frozen["w"], frozen["w"])
    assert own.with_frozen({"w": -0.0 * own.frozen["w"]}) is not own.with_frozen({"w": 0.0 * own.frozen["w"]})
