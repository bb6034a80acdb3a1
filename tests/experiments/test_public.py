"""What is published of a private run: nothing that its ε does not cover, to the byte.

Two federations send the same uploads under the same secret and differ in all else that they can: in losses, in how many
examples a client has and how many steps it takes, in who came. So their models are the same, and so has to be every
byte of what is public.
"""

import html
import io
import json
import re

import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import fedax
from fedax import tracking
from fedax.cli import app
from fedax.engine import secret
from fedax.errors import ConfigError
from fedax.experiments import build, execute, new_folder, runner
from fedax.experiments.runs import write_json

from ..test_tracking import events, needs

pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")

N, D, DELTA = 8, 3, 1e-3
ODD = 2  # the client that differs
_RNG = np.random.default_rng(0)
CENTRES = _RNG.normal(size=(N, D)).astype(np.float32)
DP = {"clip": 1.0, "noise": 2.0, "delta": DELTA}
TOLD = ("train_loss", "clients", "local_steps", "gradients", "bytes_down", "bytes_up", "seconds")  # of who came
MARK = 31337.25  # a loss that would be seen

# Examples of w = 0 have no gradient: whoever has them sends zero, after any number of steps.
TASK = fedax.Task(
    init=lambda key: jnp.ones(D),
    loss=lambda x, batch, key: batch["w"] * 0.5 * jnp.sum((x[None] - batch["e"]) ** 2, axis=1) + batch["offset"],
    metrics={"near_error": lambda x, batch: jnp.sum(jnp.abs(x[None] - batch["e"]), axis=1)},
)


def examples(centres, sizes, weights, offsets):
    each = [
        {"e": centre[None].repeat(n, 0), "w": np.full(n, w, np.float32), "offset": np.full(n, offset, np.float32)}
        for centre, n, w, offset in zip(centres, sizes, weights, offsets, strict=True)
    ]
    return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


HELD = examples(CENTRES[:4] + 1, [1] * 4, [1.0] * 4, [0.0] * 4)


def federation(sizes, weights, offset):
    offsets = np.where(np.arange(N) == ODD, offset, 0.0)
    return fedax.FederatedData(examples(CENTRES, sizes, weights, offsets), sizes, np.full(N, 1 / N))


def sizes(odd):
    """One client more has many examples in both federations, for the largest number of steps is known to all."""
    return np.where(np.arange(N) == ODD, odd, np.where(np.arange(N) == 0, 40, 3))


SILENT = np.where(np.isin(np.arange(N), [0, ODD]), 0.0, 1.0)
NOBODY = np.zeros(N)
# name -> the two federations with what their cohorts are drawn from, and the columns that tell them apart.
NEIGHBOURS = {
    "losses": (((federation(sizes(40), np.ones(N), 0.0), b"c"), (federation(sizes(40), np.ones(N), MARK), b"c")),
               {"train_loss"}),
    "examples": (((federation(sizes(2), SILENT, 0.0), b"c"), (federation(sizes(40), SILENT, MARK), b"c")),
                 {"train_loss", "local_steps", "gradients"}),
    "who came": (((federation(sizes(40), NOBODY, 0.0), b"c"), (federation(sizes(40), NOBODY, MARK), b"d")),
                 {"train_loss", "clients", "local_steps", "gradients", "bytes_up", "bytes_down"}),
}  # fmt: skip
MEASURED = TASK.with_metrics(density=fedax.metrics.Density(0.1))
GIVEN = {"rounds": 6, "batch_size": 1, "participation": fedax.Poisson(0.5), "privacy": fedax.DP(**DP), "test": HELD}
GIVEN["place"] = fedax.Place(chunk_size=1)  # else it follows the clients' sizes, and so does the order of the sum


@pytest.fixture(params=NEIGHBOURS)
def neighbours(request):
    return NEIGHBOURS[request.param]


def keyed(folder, cohorts=b"c"):
    """A folder with a secret that is known."""
    folder.mkdir(parents=True)
    secret.root(folder, made=(b"n" * 16, cohorts * 16))
    return folder


def only_public(text):
    """That no column is named, and no number shown, that tells of clients."""
    text = text.decode("latin1") if isinstance(text, bytes) else text
    for name in TOLD:
        assert not re.search(rf"\b{name}\b", text), name
    assert "31337" not in text and "left_out" not in text


# ---- a run


def simulated(folder, data, cohorts, **more):
    return fedax.simulate(
        fedax.create("fedavg", lr=0.1), MEASURED, data, checkpoint=keyed(folder, cohorts), **GIVEN | more
    )


def contents(run, folder):
    """All that shows or keeps a run."""
    run.save(folder / "public.safetensors")
    drawn = [fedax.figures.encode(run.plot(*each), "svg") for each in ((), ("epsilon",), ("rounds", "epsilon"))]
    history = {name: values.tobytes() for name, values in run.history.items()}
    own = {name: value for name, value in vars(run).items() if name not in ("history", "_origin", "params")}
    kept = (folder / "public.safetensors").read_bytes()
    return [repr(run), run._repr_html_(), run.to_pandas().to_csv(), kept, *drawn, history, repr(own)]


def test_what_is_public_of_a_run_tells_nothing_else(tmp_path, neighbours):
    result, differ = neighbours
    one, other = (simulated(tmp_path / str(k), *each) for k, each in enumerate(result))
    for name in {*one.history} - {"seconds"}:  # what the test is about: the runs do differ, and where
        assert np.array_equal(one.history[name], other.history[name]) != (name in differ), name
    np.testing.assert_array_equal(one.params, other.params)
    first, second = (contents(run.public(), tmp_path / str(k)) for k, run in enumerate((one, other)))
    assert first == second
    public = other.public()
    assert {*public.history} == {"round", "density", "epsilon", "test_loss", "test_near_error"}
    assert public.state is public.memory is public.left_out is None and public.status == other.status
    for text in first[:-2]:
        only_public(text)
    assert contents(public.public(), tmp_path / "1") == second  # once more changes nothing


def test_a_public_run_without_held_out_examples_shows_what_it_spent(tmp_path):
    run = simulated(tmp_path / "a", *NEIGHBOURS["losses"][0][1], test=None).public()
    assert repr(run) == f"Run(finished at round 6, epsilon={run.history['epsilon'][-1]:.6g})"
    assert run.plot().axes[0].get_ylabel() == "Privacy spent ε" and "Privacy spent" in run._repr_html_()
    with pytest.raises(ConfigError, match=r"^x = 'bytes': .*'rounds' or 'epsilon'"):
        run.plot("bytes")
    with pytest.raises(ConfigError, match=r"^column = 'train_loss': "):
        run.plot(column="train_loss")


def test_the_best_model_stays_for_a_public_column_chose_it(tmp_path):
    kept = fedax.Checkpoints(keyed(tmp_path / "a"), best="test_loss")
    data = NEIGHBOURS["losses"][0][0][0]
    run = fedax.simulate(fedax.create("fedavg", lr=0.1), TASK, data, checkpoint=kept, **GIVEN)
    assert run.public().best == run.best


@pytest.mark.parametrize("privacy", [None, {"noise": 0.0}, {"noise_seed": 1}])
def test_only_private_runs_have_a_public_form(privacy):
    data = NEIGHBOURS["losses"][0][0][0]
    given = GIVEN | {"privacy": None if privacy is None else fedax.DP(**DP | privacy), "rounds": 1}
    run = fedax.simulate(fedax.create("fedavg", lr=0.1), TASK, data, **given)
    with pytest.raises(ConfigError, match=r"^privacy = .*noise above 0.*noise_seed"):
        run.public()


def hospitals():
    rng = np.random.default_rng(0)
    tables = {}
    for name in ("north", "south", "east"):
        ward = rng.choice(["Zwarding", "Yellowing"], 30)
        tables[name] = pandas.DataFrame({"age": rng.normal(4321, 10, 30), "ward": ward,
                                         "ill": rng.choice(["Xcured", "Wdied"], 30)})  # fmt: skip
    data = fedax.data.from_frames(tables, label="ill")
    return data.with_weights(np.full(3, 1 / 3))


def test_what_was_counted_in_tables_stays_out(tmp_path):
    data = hospitals()
    task = fedax.tasks.softmax_regression(data.examples["x"].shape[1], classes=2)
    run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=2, privacy=fedax.DP(**DP))
    for each, there in ((run, True), (run.public(), False)):
        each.save(tmp_path / "model.safetensors")
        content = (tmp_path / "model.safetensors").read_bytes()
        for word in (b"Zwarding", b"Yellowing", b"Xcured", b"Wdied", b"ward"):
            assert (word in content) == there
    model = fedax.load_model(tmp_path / "model.safetensors")
    assert model.transform is None and model.labels is None
    assert {*model.predict(data.examples["x"]).tolist()} <= {0, 1}


# ---- a folder


class RecordingTracker:
    """A tracker that records its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, label, seed, params):
        self.calls.append(("begin", label, seed, params))
        recorder = self

        class Writer:
            def row(self, row):
                recorder.calls.append(("row", label, seed, row))

            def end(self, status):
                recorder.calls.append(("end", label, seed, status))

        return Writer()


METHODS = {
    "plain": fedax.create("fedavgm", lr=0.1, server_momentum=0.0),
    "heavy": fedax.create("fedavgm", lr=0.05, server_momentum=0.5),
}


def compared(folder, data, cohorts, methods=METHODS, track=None, **more):
    """A folder of runs with a secret that is known."""
    given = GIVEN | {"out": keyed(folder, cohorts), "seeds": 2, "track": track} | more
    return fedax.compare(methods, TASK, data, **given)


def published(folder, *arguments):
    result = CliRunner().invoke(app, ["report", str(folder), "--public", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(folder):
    return pandas.read_csv(io.StringIO(published(folder, "--format", "csv")))


FORMS = ("html", "csv", "latex", "markdown")


def public_files(folder, printed=False):
    """Each form as a file; ``printed``: those that can be are printed, too."""
    results = {}
    for form in FORMS:
        out = folder.parent / f"public.{form}"
        published(folder, "--format", form, "--out", out)
        results[form] = out.read_bytes()
        if printed and form != "html":
            assert published(folder, "--format", form).rstrip() == out.read_text(encoding="utf-8").rstrip()
    return results


def test_what_is_public_of_a_folder_tells_nothing_else(tmp_path, neighbours, monkeypatch):
    monkeypatch.setattr(runner.secrets, "token_hex", lambda size: "5" * 2 * size)  # the folder's own random name
    result, differ = neighbours
    recorders = RecordingTracker(), RecordingTracker()
    folders = [tmp_path / str(k) / "run" for k in range(2)]
    made = [compared(folder, *each, track=t) for folder, each, t in zip(folders, result, recorders, strict=True)]
    one, other = (each.records[0].runs[0].history for each in made)
    assert all(np.array_equal(one[name], other[name]) != (name in differ) for name in {*one} - {"seconds"})
    first, second = public_files(folders[0], printed=True), public_files(folders[1])
    assert first == second
    for text in first.values():
        only_public(text)
    # And trackers.
    assert recorders[0].calls == recorders[1].calls and len(recorders[0].calls) > 20
    only_public(repr(recorders[0].calls))
    rows = [each[3] for each in recorders[0].calls if each[0] == "row"]
    assert all({*row} == {"round", "epsilon", "test_loss", "test_near_error"} for row in rows)


def test_a_public_page(tmp_path):
    result = compared(tmp_path / "run", *NEIGHBOURS["examples"][0][1])
    (line,) = published(tmp_path / "run").splitlines()
    assert line == str(tmp_path / "run" / "public.html")
    page = (tmp_path / "run" / "public.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=(?!.data:)|<script|url\(", re.sub(r"<style>.*?</style>", "", page, flags=re.S))
    assert page.count("<img ") == 3  # two measures, and ε
    text = " ".join(html.unescape(re.sub(r"<(style|title).*?</\1>|<[^>]+>", " ", page, flags=re.S)).split())
    ends = {label: [run for run in result.records[0].runs if run.label == label] for label in METHODS}
    spent = f"{ends['plain'][0].history['epsilon'][-1]:.4g}"
    losses = [run.history["test_loss"][-1] for run in ends["plain"]]
    assert re.search(rf"plain \(lr 0.1.*?\) 2 6 {spent} 0.001 ", text)
    row = rows_of(tmp_path / "run").iloc[0]
    assert (row["test_loss"], row["test_loss_std"]) == pytest.approx((np.mean(losses), np.std(losses, ddof=1)))
    assert (row["seeds"], row["round"], row["status"]) == (2, 6, ends["plain"][0].status)
    for words in (
        "server_momentum 0.5",
        "whether any one client took part, with all of its data",
        "Neighbouring relation: add or remove a client",
        "Accountant: PLD",
        "at δ = 0.004",
    ):
        assert words in text, words


@pytest.mark.filterwarnings("ignore:privacy. the server works with local steps")
def test_runs_of_one_folder_spend_together_what_their_ledger_says(tmp_path):
    """Methods with one seed have the same cohorts: more than the sum of their ε is spent, where cohorts are drawn."""
    data = NEIGHBOURS["losses"][0][0][0]
    for name, methods, participation in (
        ("one", {"a": METHODS["plain"]}, fedax.Poisson(0.5)),
        ("two", METHODS, fedax.Poisson(0.5)),
        ("unlike", {"a": fedax.create("mime", lr=0.1), "b": fedax.create("scaffold-m", lr=0.1)}, fedax.Uniform(2)),
    ):
        made = compared(tmp_path / name, data, b"c", methods, participation=participation, rounds=3)
        row = rows_of(tmp_path / name).iloc[0]
        runs, drawn = made.records[0].runs, participation.sampling(N)
        places = {} if drawn.rate is None else {"places": participation.places(N)}
        exchanges = {"one": 1, "two": 2, "unlike": 3}[name]
        warmup = 1 if name == "unlike" else 0
        together = fedax.privacy.Ledger(
            2.0, N, rate=drawn.rate, cohort=drawn.cohort, exchanges=exchanges, warmup=warmup, **places
        )
        expected = 2 * together.epsilon(3, len(methods) * DELTA)
        assert row["epsilon_together"] == pytest.approx(expected, rel=1e-9)
        assert row["delta_together"] == pytest.approx(len(runs) * DELTA)
        total = sum(run.history["epsilon"][-1] for run in runs)
        assert name != "one" or row["epsilon_together"] == pytest.approx(total)


CONFIG = {
    "name": "small",
    "data": {"name": "quadratics", "clients": 4, "dimension": 2, "weights": "uniform"},
    "task": {"name": "quadratic"},
    "work": {"kind": "steps", "steps": 2},
    "run": {"rounds": 2, "seeds": 1},
    "methods": [{"name": "fedavg", "lr": 0.01}],
}


def refused(folder, *arguments):
    before = sorted(folder.rglob("*"))
    result = CliRunner().invoke(app, ["report", str(folder), "--public", *map(str, arguments)])
    assert result.exit_code == 2 and sorted(folder.rglob("*")) == before, result.output
    return " ".join(result.stderr.split())


def test_what_has_no_public_form(tmp_path):
    for name, privacy, words in (
        ("plain", {}, "are not private"),
        ("clipped", {"privacy": DP | {"noise": 0.0}}, "are not private"),
        ("repeated", {"privacy": DP | {"noise_seed": 3}}, "are not private: its noise was made of noise_seed"),
    ):
        folder = new_folder(tmp_path / name, "small")
        execute(build(CONFIG | privacy), folder, drawn=False)
        assert words in refused(folder)
    folder = new_folder(tmp_path / "private", "small")
    execute(build(CONFIG | {"privacy": DP}), folder, drawn=False)
    assert "target" in refused(folder, "--target", "0.1")
    assert "one folder" in refused(folder, folder)
    published(folder, "--out", tmp_path / "page.html")
    about = json.loads((folder / "about.json").read_text())
    for path in (["public"], ["privacy", "fedavg", "drawn"]):
        old = json.loads(json.dumps(about))
        at = old
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]
        write_json(folder / "about.json", old)
        assert "run it again" in refused(folder)


def test_a_sweep_has_no_public_form(tmp_path):
    from fedax.experiments import plan, tune

    config = {
        "name": "swept",
        "data": {"name": "digits", "clients": 4, "partition": "iid", "weights": "uniform"},
        "run": {"rounds": 1, "seeds": 1, "batch_size": 32, "judge": "test_loss"},
        "privacy": DP,
        "methods": [{"name": "fedavg", "lr": 0.1}],
        "sweep": {"grid": {"methods.*.lr": [0.1, 0.2]}, "criterion": "test_loss"},
    }
    folder = new_folder(tmp_path / "swept", "swept")
    tune(plan(config), folder)
    assert "best.toml" in refused(folder)


# ---- trackers


@needs("tensorboardX")
def test_a_log_of_simulate_gets_public_columns_only(tmp_path, neighbours):
    result, _ = neighbours
    scalars = []
    for k, each in enumerate(result):
        for how in ("log", "its function"):
            place = tmp_path / f"{how} {k}"
            with tracking.TensorBoard(place / "board")("mine", seed=0) as log:
                simulated(place / "run", *each, callback=log if how == "log" else log.row)
            (path,) = (place / "board" / "mine-seed0").iterdir()
            scalars.append(list(events(path)))
            only_public(path.read_bytes())
    assert all(each == scalars[0] for each in scalars)
    assert {tag for _, tag, _ in scalars[0]} == {"density", "epsilon", "test_loss", "test_near_error"}


def test_parameters_of_a_private_run_name_no_client(tmp_path):
    """Neither names of the federation's clients, nor settings of single clients."""
    recorder, data = RecordingTracker(), NEIGHBOURS["losses"][0][0][0]
    work = fedax.Steps([3] * N)
    compared(tmp_path / "run", data, b"c", track=recorder, work=work, seeds=1, rounds=1)
    (params, _) = [each[3] for each in recorder.calls if each[0] == "begin"]
    assert params["privacy.noise"] == 2.0 and params["method.lr"] == 0.1 and params["run.rounds"] == 1
    assert not any(name.startswith("data.") and name != "data.name" for name in params)
    assert "work.steps" not in params and params["work.kind"] == "steps"


def test_other_runs_are_tracked_whole(tmp_path):
    recorder, data = RecordingTracker(), NEIGHBOURS["losses"][0][0][0]
    for name, privacy in (("none", None), ("seeded", fedax.DP(**DP, noise_seed=1))):
        recorder.calls.clear()
        compared(tmp_path / name, data, b"c", track=recorder, privacy=privacy, seeds=1, rounds=1)
        assert {"train_loss", "clients"} <= {*recorder.calls[-2][3]} and recorder.calls[0][3]["data.clients"] == N
