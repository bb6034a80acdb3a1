"""Whom a run helps: its models against training alone and against its shared model fine-tuned, client by client."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

import fedax
from fedax.errors import ConfigError, DataError
from fedax.experiments import build, classes, clients, execute, helped, new_folder, read
from fedax.experiments.report.page import render
from fedax.experiments.statistics import paired
from tests.experiments import run_cli

NAMES = ["north", "east", "south"]
SLOPES = {"north": [1.0, 0.0], "east": [0.0, 1.0], "south": [-1.0, 0.5]}
TASK = fedax.tasks.linear_regression(2, bias=False)
KINDS = ("own", "local only", "fine-tuned")


def part(sizes, seed, names=NAMES, noise=0.3):
    rng, found = np.random.default_rng(seed), {}
    for name, n in zip(names, sizes, strict=True):
        x = rng.normal(size=(n, 2)).astype(np.float32)
        found[name] = {"x": x, "y": (x @ SLOPES[name] + noise * rng.normal(size=n)).astype(np.float32)}
    return fedax.FederatedData.from_clients(found)


DATA, VAL = part([20, 9, 14], 0), part([6, 5, 7], 1)
TEST = part([90, 80, 120], 2, names=["south", "north", "east"])  # in another order


def run(method="fedavg", **options):
    return fedax.simulate(fedax.create(method, lr=0.1), TASK, DATA, rounds=8, work=fedax.Steps(3), **options)


def baselines(of, **options):
    return fedax.baselines(of, DATA, val=VAL, test=TEST, **options)


def loss(w, batch):
    return (batch["x"] @ w - batch["y"]) ** 2


def descended(batch, w, lr, steps):
    for _ in range(steps):
        w = w - 2 * lr * batch["x"].T @ (batch["x"] @ w - batch["y"]) / len(batch["y"])
    return w


def by_name(data):
    return {data.name(i): data.client(i) for i in range(data.num_clients)}


def test_intervals_are_those_of_the_paired_t_test():
    rng = np.random.default_rng(3)
    sizes = np.array([5, 1, 40, 3])
    one, other = rng.normal(size=(2, sizes.sum()))
    other[-3:] = one[-3:] + 0.5  # the same difference at all rows: no chance is seen
    found = paired([one], [other], [sizes], 0.9)
    for i, rows in enumerate(np.split(np.arange(len(one)), np.cumsum(sizes)[:-1])):
        assert found.mean[i] == pytest.approx((other - one)[rows].mean())
        if i in (0, 2):
            due = stats.ttest_rel(other[rows], one[rows]).confidence_interval(0.9)
            assert (found.low[i], found.high[i]) == pytest.approx((due.low, due.high))
    assert np.isnan(found.low[[1, 3]]).all() and np.isnan(found.high[[1, 3]]).all()
    sizes, zeros = np.array([6, 5, 2, 1]), np.zeros(14)
    found = paired([zeros], [np.repeat([0.5, 0.5, np.inf, np.inf], sizes)], [sizes])  # six alike: 2 / 2⁶ < .05
    np.testing.assert_array_equal(found.low, [0.5, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(found.high, found.low)
    assert np.isnan(paired([zeros], [np.repeat([0.5, 0, 0, 0], sizes)], [sizes], 0.97).low[0])
    both = np.repeat([np.inf, 1.0, 2.0, 3.0], sizes)
    assert paired([both], [both], [sizes]).low[0] == 0  # both diverged there
    sizes, one, other = np.array([5, 1, 40, 3]), *rng.normal(size=(2, 49))
    same = paired([one], [one * (1 + 1e-9)], [sizes])
    assert (same.mean == 0).all() and (same.low[[0, 2, 3]] == 0).all()


def test_rows_of_several_seeds_count_as_those_of_one():
    rng = np.random.default_rng(4)
    one, other = rng.normal(size=(2, 3, 10))
    found = paired(list(one), list(other), [np.array([10])] * 3)
    gap = (other - one).ravel()
    half = stats.t.ppf(0.975, 9) * gap.std(ddof=1) / np.sqrt(10)
    assert (found.mean[0], found.high[0]) == pytest.approx((gap.mean(), gap.mean() + half))
    nothing, sizes = one[2][:0], [np.array([10])] * 2
    twice = paired([*one[:2], nothing], [*other[:2], nothing], [*sizes, np.array([0])])  # the third has not this client
    assert twice.high[0] == pytest.approx(paired([*one[:2]], [*other[:2]], sizes).high[0])


def test_clients_whose_own_models_diverged_are_worse_off_and_the_run_ended_worse():
    with pytest.warns(fedax.DivergedWarning, match="train_loss_personal"):
        method = fedax.create("ditto", lr=0.1, personal_lr=1e9)
        diverged = fedax.simulate(method, TASK, DATA, test=TEST, rounds=8, work=fedax.Steps(3))
    assert diverged.status == "worse" and np.isfinite(diverged.history["train_loss"]).all()
    found = baselines(diverged)
    assert sorted(found.worse("local only")) == sorted(NAMES)
    heads, rows = found.summary()
    assert rows[0][heads.index("Test")] == "not finite"


def test_personal_models_are_of_the_clients_of_these_names():
    of = run("ditto", test=TEST)
    there = np.array([2, 0, 1])
    other = fedax.FederatedData.from_clients({DATA.name(i): DATA.client(i) for i in there})
    found = fedax.baselines(of, other, val=VAL, test=TEST)
    due = baselines(of)
    for name, values in due.figures("own").items():
        np.testing.assert_allclose(found.figures("own")[name], values[there], rtol=1e-6)
    with pytest.raises(ConfigError, match="client = 'client 0'"):
        fedax.baselines(of, fedax.FederatedData(DATA.examples, DATA.sizes), val=VAL, test=TEST)


def test_a_part_of_a_model_is_what_the_baselines_train():
    """The bias is trained neither by the run nor by them; and training alone begins where the run began."""
    whole = fedax.tasks.linear_regression(2)
    begun = {"w": np.full(2, 3.0, np.float32), "b": np.float32(0.7)}
    task, alone = fedax.tasks.partial(whole, "w", begun), []
    for trained, params in ((task, None), (whole, begun)):
        method = fedax.create("fedavg", lr=0.1)
        of = fedax.simulate(method, trained, DATA, params=params, rounds=8, work=fedax.Steps(3))
        alone.append(baselines(of, lr=0.1).figures("local only")["test_loss"])
    due = []
    for name, rows in by_name(DATA).items():
        held, of_w = by_name(TEST)[name], rows | {"y": rows["y"] - 0.7}
        w = descended(of_w, begun["w"].astype(float), 0.1, 24)
        due.append(np.mean(loss(w, held | {"y": held["y"] - 0.7})))
    np.testing.assert_allclose(alone[0], due, rtol=1e-4)
    assert np.abs(alone[1] - due).min() > 1e-3


def test_passes_take_at_most_the_gradients_of_the_run():
    data = fedax.FederatedData({"x": np.zeros((100, 1))}, [5] * 20)
    assert clients.passes_of(200, data, 20) == 10 and clients.passes_of(219, data, 20) == 10  # 20 steps a pass, not 5
    assert clients.passes_of(200, data, None) == 10 and clients.passes_of(3, data, None) == 1


def test_both_baselines_are_gradient_descent_with_rate_and_passes_chosen_on_validation():
    found, of = baselines(run(), lr=(0.03, 0.3)), run()
    (seed,) = found.seeds
    assert seed.most == 24  # 8 rounds of 3 steps, of one minibatch each
    starts = {"local only": np.zeros(2), "fine-tuned": np.asarray(of.params["w"], float)}
    for kind, start in starts.items():
        ends = {(0.0, 0): dict.fromkeys(NAMES, start)}
        for lr in (0.03, 0.3):
            for passes in (24, 12, 6, 3, 1):
                ends[lr, passes] = {name: descended(b, start, lr, passes) for name, b in by_name(DATA).items()}
        on_val = {k: np.concatenate([loss(w[n], b) for n, b in by_name(VAL).items()]).mean() for k, w in ends.items()}
        best = min(on_val, key=on_val.get)
        assert seed.chosen[kind] == best
        on_test = [loss(ends[best][name], by_name(TEST)[name]).mean() for name in NAMES]
        np.testing.assert_allclose(found.figures(kind)["test_loss"], on_test, rtol=1e-4)
        on_train = [loss(ends[best][name], batch).mean() for name, batch in by_name(DATA).items()]
        np.testing.assert_allclose(found.figures(kind)["train_loss"], on_train, rtol=1e-4)
    own = [loss(np.asarray(of.params["w"]), by_name(TEST)[name]).mean() for name in NAMES]
    np.testing.assert_allclose(found.figures("own")["test_loss"], own, rtol=1e-5)
    gap = [loss(np.asarray(of.params["w"]), b) - loss(w, b) for w, b in zip(
        [ends[best][n] for n in NAMES], [by_name(TEST)[n] for n in NAMES], strict=True)]  # fmt: skip
    due = [stats.ttest_1samp(each, 0).confidence_interval() for each in gap]
    np.testing.assert_allclose(found.against("fine-tuned").low, [each.low for each in due], rtol=1e-3)
    assert found.worse("fine-tuned") == [
        NAMES[i] for i in sorted(range(3), key=lambda i: -gap[i].mean()) if due[i].low > 0
    ]
    assert len(found.worse("fine-tuned")) == (found.side("fine-tuned") == -1).sum() > 0


def test_of_a_method_with_personal_models_these_are_compared():
    of = run("ditto")
    found = baselines(of)
    due = [loss(np.asarray(of.personal(name)["w"]), by_name(TEST)[name]).mean() for name in NAMES]
    np.testing.assert_allclose(found.figures("own")["test_loss"], due, rtol=1e-5)
    assert found.personal and found.seeds[0].most == 48  # it asks for two gradients a step
    heads, rows = found.summary()
    values = found.figures("own")["test_loss"]
    sizes = [80, 120, 90]
    assert rows[0][3:] == [
        f"{each:.4g}" for each in (values.mean(), np.average(values, weights=sizes), values.std(ddof=1), values.max())
    ]
    table = found.table()
    assert table["name"].tolist() == NAMES and table["n"].tolist() == sizes and len(heads) == 7


def test_a_figure_that_says_itself_which_way_is_better_is_believed():
    def near(w, batch):
        return (loss(w["w"], batch) < 0.25).astype(float)

    with pytest.raises(ConfigError, match=r"near.*neither it nor its name"):
        baselines(with_figure(near), figure="near")
    near.better = "higher"
    found = baselines(with_figure(near), figure="near")
    gap = found.figures("own")["test_near"] - found.figures("local only")["test_near"]
    some = np.flatnonzero(found.side("local only"))
    assert found.sign == -1 and len(some) and (np.sign(gap[some]) == found.side("local only")[some]).all()
    assert found.worse("local only") == [NAMES[i] for i in np.argsort(gap) if found.side("local only")[i] == -1]


def with_figure(near):
    return fedax.simulate(fedax.create("fedavg", lr=0.1), TASK.with_metrics(near=near), DATA, rounds=8)


def test_a_private_run_says_what_is_not_covered_and_a_public_one_is_refused():
    dp = fedax.DP(clip=1.0, noise=1.0, delta=1e-3)
    data = DATA.with_weights(np.full(3, 1 / 3))
    of = fedax.simulate(fedax.create("fedavg", lr=0.1), TASK, data, rounds=2, privacy=dp)
    assert helped.NOT_COVERED in baselines(of).sentences() and helped.NOT_COVERED not in baselines(run()).sentences()
    with pytest.raises(ConfigError, match=r"run.*not public"):
        baselines(of.public())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"val": VAL.examples}, "val.*by client"),
        ({"lr": -1.0}, "lr = -1"),
        ({"figure": "accuracy"}, "figure = 'accuracy'"),
    ],
)
def test_bad_input(options, match):
    with pytest.raises(ConfigError, match=match):
        fedax.baselines(run(), DATA, **{"val": VAL, "test": TEST} | options)


# ---- run folders


def sites(folder, rules, n=70):
    rng = np.random.default_rng(6)
    folder.mkdir()
    for k, rule in enumerate(rules):
        x = rng.normal(size=(n, 2))
        lines = "".join(f"{a:.4f},{b:.4f},{'yes' if a * rule[0] + b * rule[1] > 0 else 'no'}\n" for a, b in x)
        (folder / f"site{k}.csv").write_text(f"a,b,y\n{lines}")
    return {"name": "csv", "files": f"{folder}/*.csv", "label": "y", "split": {"val": 0.2, "test": 0.3}}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two clients whose labels follow opposite rules."""
    place = tmp_path_factory.mktemp("x")
    config = {
        "data": sites(place / "sites", [(1, 0), (-1, 0.2)]),
        "run": {"rounds": 10, "batch_size": 20, "seeds": 2, "split_seeds": True},
        "methods": [{"name": "fedavg", "lr": 0.3}, {"name": "ditto", "lr": 0.3, "lam": 0.01}],
    }
    experiment = build(config)
    return experiment, execute(experiment, new_folder(place / "run", "run"))


def test_a_run_folder_has_the_table_the_verdict_and_the_picture(done):
    experiment, record = done
    result = run_cli("fine-tune", str(record.folder), "--method", "fedavg", "--lr", "0.1,1")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "Against training alone: 2 of 2 clients are worse off (" in said and "0.05 would be" in said
    found = helped.fine_tune(experiment, record, "fedavg", [0.1, 1.0])
    table, due = clients.read_table(helped.table_path(record.folder, "fedavg")), found.client_table()
    assert table.names == due.names == ["site0", "site1"] and list(table.values) == list(due.values)
    for name, values in due.values.items():
        np.testing.assert_allclose(table.values[name], values, rtol=1e-7, err_msg=name)
    np.testing.assert_allclose(  # the same model and rows as the tables of the run itself
        due.values["loss"],
        np.mean([each.values["loss"] for each in clients.tables(record, "fedavg")], 0),
        rtol=1e-5,
    )
    page = (record.folder / "report.html").read_text()
    assert "Does fedavg help each client?" in page and "Test loss of each client: fedavg, shared model against" in page
    assert "site1\\nlocal only" in page and "worse off" in page


def test_personal_models_are_kept_as_figures(done, tmp_path):
    experiment, record = done
    found = helped.fine_tune(experiment, read(record.folder), "ditto")
    assert found.personal and found.rates == (0.03, 0.3, 3.0)
    for k, seed in enumerate((0, 1)):
        sizes = found.seeds[k].measured["own"].sizes["test"]
        last = record.of("ditto")[seed].history["test_loss_personal"][-1]
        figures = found.seeds[k].measured["own"].figures["test_loss"]
        assert np.average(figures, weights=sizes) == pytest.approx(last, rel=1e-5)
        table = clients.tables(record, "ditto")[k]
        np.testing.assert_allclose(table.values["loss_personal"], figures, rtol=1e-6)
    test = experiment.split(1)[2]
    turned = fedax.FederatedData.from_clients({test.name(i): test.client(i) for i in (1, 0)})
    params, place = fedax.load_model(record.folder / "models/ditto-seed1.safetensors").params, tmp_path / "x"
    own = helped.kept(record.folder, "ditto", 1)
    (place / "clients").mkdir(parents=True)
    clients.add_table(experiment, place, "ditto", 1, params, turned, None, own, ["site0", "site1"])
    again = clients.read_table(clients.table_path(place, "ditto", 1))
    for name, values in table.values.items():  # by name, in any order of the test part
        np.testing.assert_allclose(again.values[name][::-1], values, rtol=1e-5, err_msg=name)
    assert {each["label"] for each, _ in helped.found_in(record)} >= {"ditto"}
    page = render([read(record.folder)])
    assert "Does ditto help each client?" in page and "ditto, own model against ditto, shared model" in page


def test_decisions_are_of_the_models_that_clients_get(done):
    _, record = done
    for label, column in (("fedavg", "test_accuracy"), ("ditto", "test_accuracy_personal")):
        for seed in (0, 1):
            found = classes.read(record.folder, label, seed)
            scores, labels = found.bins[0].sum(), found.confusion.sum()
            assert scores == labels
            if label == "ditto":  # clients' labels follow opposite rules: no shared model decides as well
                assert np.trace(found.confusion) / labels > 0.8 > record.of(label)[seed].history["test_accuracy"][-1]
            assert abs(np.trace(found.confusion) / labels - record.of(label)[seed].history[column][-1]) < 0.15


def test_figures_are_joined_by_name_where_each_seed_leaves_out_another_client(tmp_path):
    rules = [(1, 0), (-1, 0.2), (0.3, 1), (1, 1)]
    config = {
        "data": sites(tmp_path / "sites", rules, 40) | {"split": {"val": 0.2, "test": 0.3, "clients": "each"}},
        "run": {"rounds": 2, "batch_size": 20},
        "methods": [{"name": "ditto", "lr": 0.3}, {"name": "fedavg", "lr": 0.3}],
    }
    experiment = build(config)
    record = execute(experiment, new_folder(tmp_path / "run", "run"))
    for label in ("ditto", "fedavg"):
        table = helped.fine_tune(experiment, record, label, [0.3]).client_table()
        assert sorted(table.names) == [f"site{k}" for k in range(4)]
        of_runs = clients.tables(record, label)
        for name, value in zip(table.names, table.values["loss"], strict=True):
            column = "loss_personal" if label == "ditto" else "loss"
            ends = [each.values[column][each.names.index(name)] for each in of_runs if name in each.names]
            assert len(ends) == 3 and value == pytest.approx(np.mean(ends), rel=1e-5)


def test_what_is_damaged_or_missing_is_said(done, tmp_path):
    experiment, record = done
    helped.fine_tune(experiment, record, "fedavg")
    path = helped.table_path(record.folder, "fedavg")
    whole = path.read_text()
    path.write_text(whole.replace("site0", "site9"))
    with pytest.raises(DataError, match=r"fedavg\.csv: edited"):
        helped.found_in(record)
    assert "fedavg.csv: edited" in render([record])
    path.write_text(whole)
    kept = record.folder / "examples" / "ditto-seed0-personal.safetensors"
    content = kept.read_bytes()
    kept.unlink()
    with pytest.raises(ConfigError, match=r"own models of ditto.*run it again"):
        helped.fine_tune(experiment, record, "ditto")
    kept.write_bytes(content)
    with pytest.raises(ConfigError, match=r"data\.split\.val"):
        helped.fine_tune(dataclasses.replace(experiment, val=None), record, "fedavg")
    assert "method = 'scaffold'" in run_cli("fine-tune", str(record.folder), "--method", "scaffold").stderr


def test_nothing_of_single_clients_is_in_what_is_published(tmp_path):
    config = {
        "data": sites(tmp_path / "sites", [(1, 0), (-1, 0.2)]) | {"weights": "uniform"},
        "run": {"rounds": 2, "batch_size": 20, "seeds": 1},
        "privacy": {"clip": 1.0, "noise": 1.0, "delta": 1e-3},
        "methods": [{"name": "fedavg", "lr": 0.3}],
    }
    record = execute(build(config), new_folder(tmp_path / "run", "run"))
    result = run_cli("fine-tune", str(record.folder))
    assert "not covered by ε" in " ".join(result.stdout.split()) and result.exit_code in (0, 1)
    assert helped.NOT_COVERED in json.loads((record.folder / "fine-tuned.json").read_text())["methods"][0]["sentences"]
    run_cli("report", str(record.folder), "--public")
    page = (record.folder / "public.html").read_text()
    assert "site0" not in page and "fine-tuned" not in page
