"""From tables to sites: a configuration of a simulation over nodes, whose clients deal their own rows."""

import functools
import pathlib
import tomllib
from typing import Any

import jax
import numpy as np
import pandas
import pytest

import fedax
from fedax.columns import COSTS, EXCLUSIONS, TIME, TRAFFIC
from fedax.data import FederatedData, from_csv, split
from fedax.errors import ConfigError, NodeError
from fedax.experiments import build, classes, clients, execute, new_folder, summary
from fedax.experiments.config.experiment import Experiment, problem_of
from fedax.experiments.defaults import usual_task
from fedax.experiments.runs import Record
from fedax.federation.census import Census
from fedax.sites.protocol import paced
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.site import Site
from tests.engine.here import Here, Timed

SIZES = {"north": 61, "south": 50, "south-2": 70, "Süd 1": 70, "south.b": 50}
NODES = (("south", "Süd 1"), ("north",), ("south.b", "south-2"))  # two of one shape, with the same programs
CONFIG = """
data = {name = "csv", label = "readmitted", split = {val = 0.15, test = 0.2, seed = 3, stratify = "rare"}}
work = {kind = "random-epochs", low = 1, high = 2}
run = {rounds = 4, batch_size = 8, baselines = true, seeds = 2, patience = 3, judge = "test_loss"}
methods = [{name = "scaffold", lr = 0.05}, {name = "scaffold", lr = 0.02, label = "slow"}]
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A CSV file of each client, with missing cells, and a folder of each node in ``nodes``."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    for k, (name, n) in enumerate(SIZES.items()):
        x = rng.normal(size=(n, 3)) + 0.3 * k
        table = pandas.DataFrame(x, columns=["age", "dose", "weight"])
        least = 0.6 if k else 3.6  # rare at north
        table["readmitted"] = np.where(x.sum(1) + rng.normal(size=n) > least, "yes", "no")
        table.loc[rng.random(n) < 0.2, "dose"] = np.nan
        table["ward"] = rng.choice(["icu", "surgery"], n)
        (folder / "csv").mkdir(exist_ok=True)
        table.to_csv(folder / "csv" / f"{name}.csv", index=False)
    whole = from_csv(str(folder / "csv"), label="readmitted")
    whole.transform.save(folder / "transform.json")
    for k, names in enumerate(NODES):
        files = [folder / "csv" / f"{name}.csv" for name in names]
        from_csv(list(map(str, files)), transform=str(folder / "transform.json")).save(folder / "nodes" / str(k))
    return folder


def config_of(tables: pathlib.Path, **run: Any) -> dict[str, Any]:
    config = tomllib.loads(CONFIG)
    config["data"]["files"] = str(tables / "csv")
    config["run"] |= run
    return config


def sites(tables: pathlib.Path, folder: pathlib.Path, limits: dict[int, Policy] | None = None, **held: Any) -> Here:
    """A site for each of the nodes' folders."""
    results = {}
    for k in range(len(NODES)):
        data = FederatedData.open(tables / "nodes" / str(k))
        made = functools.partial(problem_of)
        more = held if k == 0 else {}
        results[7 + k] = Site(data, made, folder / str(k), data.names, policy=(limits or {}).get(k), **more)
    return Here(results)


def at_nodes(config: dict[str, Any], here: Here) -> Experiment:
    """The configuration of a run folder over nodes, as ``fedax deploy run`` takes it."""
    deploy = pytest.importorskip("fedax.sites.service.deploy")
    return build(deploy.with_nodes_data(config, None), Fleet(here, timeout=30.0))


def ran(experiment: Experiment, folder: pathlib.Path) -> Record:
    record = execute(experiment, new_folder(folder, "sites"), drawn=False)
    assert record is not None
    return record


@pytest.fixture(scope="module")
def simulated(tables: pathlib.Path) -> Record:
    return ran(build(config_of(tables)), tables / "simulated")


@pytest.fixture(scope="module")
def deployed(tables: pathlib.Path, simulated: Record) -> tuple[Record, Here]:
    written = tomllib.loads((simulated.folder / "config.toml").read_text())
    here = sites(tables, tables / "sites")
    return ran(at_nodes(written, here), tables / "deployed"), here


def same_runs(record: Record, other: Record) -> None:
    mine, others = (sorted(each.runs, key=lambda run: (run.label, run.seed)) for each in (record, other))
    assert [(run.label, run.seed) for run in mine] == [(run.label, run.seed) for run in others]
    for one, same in zip(mine, others, strict=True):
        assert one.history.keys() - same.history.keys() == {"heard", TIME, *TRAFFIC, *EXCLUSIONS}
        for name in same.history.keys() - {"seconds"}:
            if name in COSTS:
                assert one.history[name].tolist() == same.history[name].tolist(), name
            else:
                np.testing.assert_allclose(one.history[name], same.history[name], 1e-4, 1e-5, err_msg=name)


def test_the_written_configuration_is_its_simulation(simulated: Record, deployed: tuple[Record, Here]) -> None:
    same_runs(deployed[0], simulated)
    assert {"val_loss", "test_loss", "test_auc"} <= deployed[0].runs[0].history.keys()
    (one,), (other,) = (summary.problems([record]) for record in (deployed[0], simulated))
    assert one.judge == other.judge == "test_loss"
    assert [one.mark(m) for m in one.methods] == [other.mark(m) for m in other.methods]


def test_tables_of_clients_and_clients_alone(simulated: Record, deployed: tuple[Record, Here]) -> None:
    record = deployed[0]
    names = sorted(path.name for path in (simulated.folder / "clients").glob("*.csv"))
    assert names == sorted(path.name for path in (record.folder / "clients").glob("*.csv")) and len(names) == 4
    for label in ("scaffold", "slow", "local only"):
        mine, others = clients.tables(record, label), clients.tables(simulated, label)
        assert len(mine) == len(others) == 2
        for one, other in zip(mine, others, strict=True):
            assert one.names == other.names and one.sizes.tolist() == other.sizes.tolist()
            assert one.values.keys() == other.values.keys()
            for name in other.values:
                np.testing.assert_allclose(one.values[name], other.values[name], 1e-4, 1e-5, err_msg=name)
    assert clients.tables(simulated, "pooled") and not clients.tables(record, "pooled")
    assert clients.left_out(record.folder) == [
        "There is no baseline pooled: it is a model on the rows of all clients in one place."
    ]
    assert not clients.damaged(record)


def test_decisions_by_class_from_counts_of_nodes(
    tables: pathlib.Path, simulated: Record, deployed: tuple[Record, Here], tmp_path: pathlib.Path
) -> None:
    record, _ = deployed
    for label in ("scaffold", "slow"):
        for seed in (0, 1):
            one, other = (classes.read(each.folder, label, seed) for each in (record, simulated))
            assert one is not None and other is not None
            assert one.threshold == pytest.approx(other.threshold, abs=0.002)  # scores next to an end of a bin
            assert one.chosen.tolist() == other.chosen.tolist() and one.chosen.all()
            assert np.abs(one.confusion - other.confusion).sum() <= 2
            assert one.calibration_error == pytest.approx(other.calibration_error, abs=0.01)
            model = fedax.load_model(record.folder / "models" / f"{label}-seed{seed}.safetensors")
            assert model.threshold == one.threshold
    assert clients.positive_text(record, ["test_auc"]) == clients.positive_text(simulated, ["test_auc"]) != ""
    config = config_of(tables, seeds=1, rounds=1, baselines=False)
    config["methods"], folder = config["methods"][:1], new_folder(tmp_path / "run", "sites")
    experiment = at_nodes(config, sites(tables, tmp_path))
    model = experiment.task.init(jax.random.key(0))
    classes.write(experiment, folder, "scaffold", 0, classes.decided(experiment, model, None, None, {}))
    assert classes.read(folder, "scaffold", 0) is None
    (sentence,) = clients.left_out(folder)
    assert sentence.startswith("Threshold, confusion and calibration are absent: ") and "test_auc" in sentence


def test_sites_hold_out_the_rows_of_the_simulation(
    tables: pathlib.Path, simulated: Record, deployed: tuple[Record, Here]
) -> None:
    experiment = build(config_of(tables))
    here = {"train": experiment.data, "val": experiment.val, "test": experiment.test}
    assert experiment.data.names == ("Süd 1", "north", "south", "south-2", "south.b")
    for site in deployed[1].sites.values():
        derived, *_ = site._runs.values()  # of the first seed
        for part, own in {"train": derived.train, **derived.held}.items():
            for i in range(own.num_clients):
                whole = here[part].client(here[part].names.index(own.name(i)))
                assert all(np.array_equal(leaf, whole[name]) for name, leaf in own.client(i).items())
    assert {name for site in deployed[1].sites.values() for name in site.names} == {*SIZES}
    north = experiment.data.names.index("north")
    rarest = np.bincount(experiment.data.client(north)["y"]).min()
    assert 0 < rarest < 0.1 * experiment.data.sizes[north] and simulated.config["data"]["split"]["stratify"] == "rare"


def test_each_seed_its_split_and_a_run_that_goes_on(tables: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = config_of(tables, split_seeds=True, baselines=False, seeds=[1, 4], rounds=2)
    config["methods"] = config["methods"][:1]
    plain = ran(build(config), tmp_path / "simulated")
    here, stops = sites(tables, tmp_path), []

    def stop(number: int, message: Message, answer: Message) -> Message:
        stops.append(message.head["kind"])
        if stops.count("exchange") == 5:  # in the second round of the first seed
            raise KeyboardInterrupt
        return answer

    here.spy = stop
    with pytest.raises(KeyboardInterrupt):
        ran(at_nodes(plain.config, here), tmp_path / "deployed")
    for site in here.sites.values():
        site.close()
    again = sites(tables, tmp_path)  # of other processes
    record = execute(at_nodes(plain.config, again), tmp_path / "deployed", drawn=False)
    assert record is not None
    same_runs(record, plain)
    one, other = (run.history["test_loss"][-1] for run in plain.runs)
    assert one != other
    mine, others = clients.tables(record, "scaffold"), clients.tables(plain, "scaffold")
    assert [table.sizes.tolist() for table in mine] == [table.sizes.tolist() for table in others]


def test_an_agreement_that_is_damaged(tables: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The run under way needs it no more; the one that continues sends it again."""
    config = config_of(tables, baselines=False, seeds=1, rounds=2)
    config["methods"] = config["methods"][:1]
    here, asked = sites(tables, tmp_path), []

    def spy(number: int, message: Message, answer: Message) -> Message:
        asked.append(message.head["kind"])
        for path in here.sites[number].folder.glob("agreements/*.json"):
            path.write_bytes(path.read_bytes()[:-9])
        if asked.count("exchange") == 5:  # in the second round
            raise KeyboardInterrupt
        return answer

    here.spy = spy
    with pytest.raises(KeyboardInterrupt):
        ran(at_nodes(config, here), tmp_path / "deployed")
    for site in here.sites.values():
        site.close()
    again = sites(tables, tmp_path)
    record = execute(at_nodes(config, again), tmp_path / "deployed", drawn=False)
    assert record is not None and record.runs[0].history["round"][-1] == 2
    for site in again.sites.values():
        (path,) = site.folder.glob("agreements/*.json")
        assert site.store.agreement(path.stem)


def test_what_an_owner_keeps_from_the_tables_of_clients(tables: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = config_of(tables, seeds=1, rounds=1)
    config["methods"] = config["methods"][:1]
    del config["run"]["patience"], config["run"]["judge"]
    own = {0: Policy(columns=["train_loss", "val_loss", "val_accuracy", "val_auc", "val_f1"])}
    experiment = at_nodes(config, sites(tables, tmp_path, own))
    with pytest.raises(NodeError, match=r"figures.columns = .* against these measures .*test_loss"):
        ran(experiment, tmp_path / "refused")
    own[0] = Policy(single=False)  # of single clients nothing
    record = ran(at_nodes(config, sites(tables, tmp_path / "single", own)), tmp_path / "run")
    (table,) = clients.tables(record, "scaffold")
    assert sorted(table.names) == ["north", "south-2", "south.b"]
    (absent,) = (each for each in clients.left_out(record.folder) if "'south', 'Süd 1'" in each)
    assert "sums.single = False" in absent


@pytest.mark.parametrize(
    ("limits", "held", "text"),
    [
        ({1: Policy(split=False)}, {}, r"clients 'north': .*runs.split = False.* splits its rows"),
        ({}, {"test": True}, r"clients 'south', 'Süd 1': .*held-out examples.* data.split to 0"),
        ({}, {"val": True}, r"clients 'south', 'Süd 1': .*held-out examples.* data.split to 0"),
    ],
)
def test_sites_that_do_not_deal(
    tables: pathlib.Path, tmp_path: pathlib.Path, limits: Any, held: Any, text: str
) -> None:
    own = {part: FederatedData.open(tables / "nodes" / "0").client(0) for part in held}
    here = sites(tables, tmp_path, limits, **own)
    with pytest.raises(NodeError, match=text):
        ran(at_nodes(config_of(tables), here), tmp_path / "refused")
    assert not here.sites[7 if held else 8]._answered.total
    config = config_of(tables, baselines=False)
    del config["run"]["patience"], config["run"]["judge"]
    config["data"]["split"] = {}
    assert at_nodes(config, here).data.sizes.tolist() == [70, 61, 50, 70, 50]


def test_a_site_keeps_the_test_examples_that_it_has(tables: pathlib.Path, tmp_path: pathlib.Path) -> None:
    own = FederatedData.open(tables / "nodes" / "0").client(0)
    config = config_of(tables, baselines=False, seeds=1, rounds=1)
    config["data"]["split"] = {"val": 0.2}
    experiment = at_nodes(config, sites(tables, tmp_path, test=own))
    assert experiment.data.held == {"val": 14 + 12 + 10 + 14 + 10, "test": len(own["y"])}
    record = ran(experiment, tmp_path / "run")
    assert {"val_loss", "test_loss"} <= record.runs[0].history.keys() and not list(
        (record.folder / "clients").iterdir()
    )


@pytest.mark.parametrize(
    ("x", "y", "task"),
    [
        ((7,), (np.int32, ()), "softmax_regression"),
        ((7,), (np.float32, ()), "linear_regression"),
        ((5, 5, 1), (np.int32, ()), "cnn"),
        ((5,), (np.int32, (5,)), "char_lstm"),
    ],
)
def test_the_usual_task_of_a_census(x: Any, y: Any, task: str) -> None:
    data = FederatedData({"x": np.zeros((4, *x), np.float32), "y": np.zeros((4, *y[1]), y[0])}, [4])
    assert usual_task("csv", Census.of(data)) == task
    assert usual_task("nodes", Census.of(data)) is None
    assert usual_task("nodes", Census.of(data)._replace(transform=object())) == task


@pytest.mark.parametrize("stratify", [False, True, "rare"])
def test_clients_are_dealt_alone_as_among_all(stratify: bool | str) -> None:
    rng = np.random.default_rng(0)
    sizes = [9, 4, 1, 20]
    whole = FederatedData(
        {"x": np.arange(34.0)[:, None], "y": rng.integers(0, 3, 34)}, sizes, names=["a", "b", "c", "d"]
    )
    some = FederatedData.from_clients({whole.name(i): whole.client(i) for i in (3, 1)})
    for mine, others in zip(
        split(some, stratify=stratify, seed=5, places=[3, 1]), split(whole, stratify=stratify, seed=5), strict=True
    ):
        for i, name in enumerate(mine.names):
            assert mine.client(i)["x"].tolist() == others.client(others.names.index(name))["x"].tolist()
    for places in ([0], [0, -1]):
        with pytest.raises(ConfigError, match="places"):
            split(some, places=places)


def test_a_server_that_does_not_wait_and_the_simulation_of_its_arrivals(tables, tmp_path, monkeypatch):
    """Over the lanes of an experiment, with a split that clients have dealt and names with a space."""
    config = config_of(tables) | {"pace": {"concurrency": 4, "buffer": 2, "start": "idle"}}
    config["run"] = {"rounds": 6, "batch_size": 8, "seeds": [0, 1]}
    config["methods"] = [{"name": "ca2fl", "lr": 0.1}]
    at = Timed(sites(tables, tmp_path / "sites").sites, lambda number, message: {7: 1.0, 8: 0.1, 9: 0.13}[number])
    monkeypatch.setattr(paced, "_now", lambda: at.now)
    real = ran(at_nodes(config, at), tmp_path / "real")
    _, run = real.runs
    given = config | {"clock": {"trace": str(real.folder / "arrivals" / "ca2fl-seed1.csv")}}
    (same,) = ran(build(given | {"run": config["run"] | {"seeds": [1]}}), tmp_path / "replayed").runs
    assert run.history["staleness_max"][-1] >= 1
    for name in same.history.keys() - {"seconds", "local_steps", "gradients"}:
        np.testing.assert_allclose(run.history[name], same.history[name], 1e-5, 1e-5, err_msg=name)
    (real.folder / "arrivals" / "link.csv").symlink_to(tables / "transform.json")
    with pytest.raises(ConfigError, match="this is a link"):
        execute(at_nodes(config, at), real.folder, drawn=False)
