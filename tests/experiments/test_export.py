"""An exported model answers as fedax does, in a process without fedax and JAX; its card has the facts of its run."""

import importlib.util
import json
import math
import subprocess
import sys
import warnings

import jax
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.data.transform import Column, Label, Transform
from fedax.engine.saved import Model
from fedax.errors import ConfigError
from fedax.experiments.exported import export
from tests.experiments import run_cli

FORMS = ["numpy", "sklearn", pytest.param("onnx", marks=pytest.mark.skipif(
    not (importlib.util.find_spec("skl2onnx") and importlib.util.find_spec("onnxruntime")), reason="needs fedax[onnx]"
))]  # fmt: skip
BLOCKED = {"numpy": ["jax", "fedax", "pandas", "sklearn", "scipy"], "sklearn": ["jax", "fedax", "pandas"],
           "onnx": ["jax", "fedax", "pandas", "sklearn"]}  # fmt: skip

TRANSFORM = Transform(
    (
        Column("age", "number", mean=50, scale=10, fill=48.0, missing=True, low=0, high=120),
        Column("seen", "date", mean=18000, scale=300),
        Column("ward", "category", fill="01", categories=("01", "B"), other=True, texts="written"),
        Column("grade", "category", categories=("1", "2.5"), missing=True),
        Column("smoker", "number", texts="truth", fill=0.0),
        Column("empty", "flag", missing=True),
    ),
    Label("ill", ("yes", "no")),  # not in the order of the alphabet
)
ROWS = [
    {"age": "61", "seen": "2020-02-29", "ward": "01", "grade": "1.0", "smoker": "True", "empty": "x"},
    {"age": " 1e1 ", "seen": "2020-02-29T13:45:00+02:00", "ward": "1", "grade": "2.50", "smoker": "0", "empty": ""},
    {"age": "", "seen": "", "ward": "", "grade": "", "smoker": "", "empty": ""},
    {"age": "old", "seen": "1 May", "ward": "Ä", "grade": "01", "smoker": "yes", "empty": ""},
    {"age": "-5", "seen": "1960-01-01", "ward": " B", "grade": "1e0", "smoker": "TRUE", "empty": "0"},
]  # fmt: skip


PROGRAM = """
import json, pathlib, sys, warnings
sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))
for line in sys.stdin:
    folder, x = json.loads(line)
    sys.path.insert(0, folder)
    import model; import numpy as np; warnings.simplefilter("ignore")
    answers = np.asarray(model.answers(model.encode(x)), float).tolist()
    print(json.dumps([answers, model.predict(x).tolist()]), flush=True)
    sys.path.remove(folder)
    for path in pathlib.Path(folder).glob("*.py"):
        sys.modules.pop(path.stem, None)
"""


@pytest.fixture(scope="module")
def answered():
    """What an exported model answers in a process that has not what it should not need; a process for each form."""
    processes = {}

    def answered(folder, form, rows):
        if form not in processes or processes[form].poll() is not None:
            command = [sys.executable, "-c", PROGRAM, json.dumps(BLOCKED[form])]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            processes[form] = subprocess.Popen(command, text=True, **pipes)
        process = processes[form]
        print(json.dumps([str(folder), rows]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        assert answer, process.communicate()[1]
        return json.loads(answer)

    yield answered
    for process in processes.values():
        process.communicate()


def model_of(task, transform=None, labels=None, shape=None, kind="float32"):
    """A model with parameters at random."""
    keys = iter(jax.random.split(jax.random.key(3), 20))
    params = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape), task.form())
    example = None if shape is None else {"x": (shape, kind)}
    return Model(task, params, labels, transform, example, {"fedax": "1", "jax": "1"})


WIDE = len(TRANSFORM.features)
LOOK = {"mean": tuple(range(WIDE)), "std": tuple(range(1, WIDE + 1))}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "task",
    [
        fedax.tasks.softmax_regression(WIDE, 2, **LOOK),
        fedax.tasks.logistic_regression(WIDE),
        fedax.tasks.mlp(WIDE, 2, hidden=(5, 4)),
        fedax.tasks.mlp(WIDE, 2, hidden=()),
    ],
    ids=["softmax", "logistic", "mlp", "linear-mlp"],
)
def test_two_classes_of_tables(answered, tmp_path, form, task):
    model = model_of(task, TRANSFORM, ("yes", "no"), (WIDE,))
    model.save(tmp_path / "m.safetensors")
    probabilities, classes = answered(export(tmp_path / "m.safetensors", form, tmp_path / "out"), form, ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(probabilities, model.predict_proba(pandas.DataFrame(ROWS)), atol=2e-6)
        assert classes == model.predict(pandas.DataFrame(ROWS)).tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hidden", [(), (6,)])
def test_three_classes_of_pictures(answered, tmp_path, form, hidden):
    task = fedax.tasks.mlp(2 * 2 * 3, 3, hidden=hidden, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    model = model_of(task, labels=("c", "a", "b"), shape=(2, 2, 3), kind="uint8")
    model.save(tmp_path / "m.safetensors")
    x = np.random.default_rng(0).integers(0, 256, (7, 2, 2, 3), dtype=np.uint8)
    probabilities, classes = answered(export(tmp_path / "m.safetensors", form, tmp_path / "out"), form, x.tolist())
    np.testing.assert_allclose(probabilities, model.predict_proba(x), atol=2e-6)
    assert classes == model.predict(x).tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "task",
    [
        fedax.tasks.linear_regression(3),
        fedax.tasks.linear_regression(3, bias=False),
        fedax.tasks.mlp_regression(3, hidden=(4,), y_mean=20.0, y_std=7.0),
    ],
    ids=["linear", "no-bias", "mlp"],
)
def test_numbers(answered, tmp_path, form, task):
    model = model_of(task, shape=(3,))
    model.save(tmp_path / "m.safetensors")
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    numbers, same = answered(export(tmp_path / "m.safetensors", form, tmp_path / "out"), form, x.tolist())
    np.testing.assert_allclose(numbers, model.predict(x), rtol=2e-6, atol=2e-6)
    assert numbers == same


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The program of an export, as a module; and its folder."""
    folder = tmp_path_factory.mktemp("exported")
    model_of(fedax.tasks.softmax_regression(WIDE, 2), TRANSFORM, ("yes", "no"), (WIDE,)).save(folder / "m.safetensors")
    made = export(folder / "m.safetensors", "numpy", folder / "out")
    sys.path.insert(0, str(made))
    spec = importlib.util.spec_from_file_location("exported_model", made / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(made))
    sys.modules.pop("cells")
    return module


CELL = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(-1e30, 1e30), st.just(math.nan),
    st.datetimes(), st.dates(), st.text(max_size=6),
    st.sampled_from(["01", "1", "1.0", ".5", "1e3", "1e-5", "-0", "TRUE", "NA", "inf", "2020-01-01"]),
    st.just("2020-01-01 10:00"),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(*[CELL] * len(TRANSFORM.columns)), min_size=1, max_size=4))
def test_cells_of_all_kinds_are_the_same_features(exported, rows):
    names = [column.name for column in TRANSFORM.columns]
    frame = pandas.DataFrame(rows, columns=names, dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        listed = exported.encode([dict(zip(names, row, strict=True)) for row in rows])
        np.testing.assert_allclose(listed, TRANSFORM.apply(frame), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(exported.encode(frame), listed)


@pytest.mark.parametrize(
    "column",
    [
        pandas.Series([1, 2, 3]),
        pandas.Series([1.0, np.nan, 2.5]),
        pandas.Series([1.0, np.inf, 2.5], dtype="float32"),
        pandas.Series([1, None, 3], dtype="Int64"),
        pandas.Series([True, False, True]),
        pandas.Series(["1", "2.50", "B"], dtype="category"),
        pandas.Series(["1", None, "B"], dtype="string"),
        pandas.to_datetime(pandas.Series(["2020-01-01", None, "2020-05-01 12:30"], dtype=str), format="mixed"),
        pandas.Series(
            pandas.to_datetime(["2020-01-01", "2021-01-01", "2020-05-01 23:30"], format="mixed")
        ).dt.tz_localize("CET"),
    ],
    ids=lambda column: str(column.dtype),
)
def test_columns_of_pandas_are_the_same_features(exported, column):
    frame = pandas.DataFrame({each.name: column for each in TRANSFORM.columns})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(exported.encode(frame), TRANSFORM.apply(frame), rtol=1e-6, atol=1e-6)


def test_cells_unlike_training_are_counted(exported):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        exported.encode(ROWS)
    texts = " ".join(str(each.message) for each in found)
    wanted = (
        "'age': 1 cells cannot be read as a number", "'age': 1 cells are far outside of training, as '-5'",
        "'seen': 1 cells cannot be read as a date", "'grade': 2 cells are categories", "'seen': 1 cells are missing",
    )  # fmt: skip
    assert all(words in texts for words in wanted)
    assert "ward" not in texts.replace("'ward': 1 cells are missing", "")  # it has a feature for others


def test_what_cannot_be_predicted_is_an_error(exported, tmp_path):
    with pytest.raises(ValueError, match=r"no columns \['ward'\]"):
        exported.encode([{name: cell for name, cell in row.items() if name != "ward"} for row in ROWS])
    with pytest.raises(ValueError, match="float32"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported.encode([ROWS[0] | {"age": "1e60"}])
    with pytest.raises(ValueError, match="no rows"):
        exported.encode([])
    with pytest.raises(ValueError, match=r"one row; .*\[row\]"):
        exported.predict_proba(ROWS[0])
    with pytest.raises(ValueError, match=r"row 1 \(from 0\) has no 'ward'"):
        exported.predict_proba([ROWS[0], {name: cell for name, cell in ROWS[1].items() if name != "ward"}])
    for content in ("", "\n\n"):
        (tmp_path / "new.csv").write_text(content)
        with pytest.raises(ValueError, match="file is empty"):
            exported.main(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text("age;seen;ward;grade;smoker;empty\n61;2020-02-29;01;1.0;True;x\n")
    with pytest.raises(ValueError, match="age;seen"):
        exported.main(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text("age;seen;ward;grade;smoker;empty\n61,5;2020-02-29;01;1.0;True;x\n")
    with pytest.raises(ValueError, match=r"2 cells.*commas between"):
        exported.main(tmp_path / "new.csv")
    names, row = "age,seen,ward,grade,smoker,empty", "61,2020-02-29,01,1.0,True,x"
    (tmp_path / "new.csv").write_text(f"{names},age \n{row},1\n")
    with pytest.raises(ValueError, match="two columns are called 'age'"):
        exported.main(tmp_path / "new.csv")
    with pytest.raises(ValueError, match="two columns are called 'age'"):
        exported.encode(pandas.DataFrame([[*ROWS[0].values(), "1"]], columns=[*ROWS[0], "age"]))
    (tmp_path / "new.csv").write_text(f'{names}\n{row[:-1]}"x\n{row}\n')
    with pytest.raises(ValueError, match="quote"):
        exported.main(tmp_path / "new.csv")


def test_a_row_of_empty_cells_is_a_row(exported, tmp_path, capsys):
    row = "61,2020-02-29,01,1.0,True,x"
    (tmp_path / "new.csv").write_text(f"age,seen,ward,grade,smoker,empty\n\n{row}\n,,,,,\n{row}\n\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported.main(tmp_path / "new.csv")
    first, second, third = capsys.readouterr().out.splitlines()[1:]
    assert first == third != second


def test_models_that_cannot_be_exported_are_refused_by_name(tmp_path):
    images = model_of(fedax.tasks.cnn((16, 16, 1), 2, filters=1), shape=(16, 16, 1))
    images.save(tmp_path / "cnn.safetensors")
    with pytest.raises(ConfigError, match=r"cnn.*softmax_regression"):
        export(tmp_path / "cnn.safetensors", "numpy", tmp_path / "out")
    good = model_of(fedax.tasks.linear_regression(3), shape=(3,))
    good.save(tmp_path / "m.safetensors")
    with pytest.raises(ConfigError, match=r"to = 'h5'.*numpy, sklearn, onnx"):
        export(tmp_path / "m.safetensors", "h5", tmp_path / "out")
    with pytest.raises(ConfigError, match="there already"):
        export(tmp_path / "m.safetensors", "numpy", tmp_path)
    with pytest.raises(ConfigError, match="no such folder"):
        export(tmp_path / "m.safetensors", "numpy", tmp_path / "no" / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cnn.safetensors", "m.safetensors"]


def test_onnx_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    model_of(fedax.tasks.linear_regression(3), shape=(3,)).save(tmp_path / "m.safetensors")
    with pytest.raises(ConfigError, match=r"fedax\[onnx\]"):
        export(tmp_path / "m.safetensors", "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_card_and_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("north", "south|east"):
        age = rng.integers(20, 90, 60)
        ill = np.where(age + 10 * rng.normal(size=60) > 55, "yes", "no")
        pandas.DataFrame({"id": range(60), "age": age, "ill": ill}).to_csv(f"{name}.csv", index=False)
    options = ["data.files=*.csv", "data.label=ill", "data.drop=['id']", "run.baselines=false"]
    sets = [word for option in options for word in ("--set", option)]
    assert (
        run_cli(
            "compare", "csv", *sets, "--methods", "fedavg", "--no-tune", "--rounds", "3", "--seeds", "3", "--out", "run"
        ).exit_code
        == 0
    )
    ended = run_cli("export", "run/models/fedavg-seed1.safetensors", "--to", "numpy")
    assert ended.exit_code == 0 and "fedavg-seed1-numpy" in ended.output
    text = (tmp_path / "fedavg-seed1-numpy" / "MODEL_CARD.md").read_text("utf-8")
    record = fedax.experiments.read("run")
    wanted = (
        "Predicts ill: one of the classes no, yes", "north 42, south\\|east 42", "Method: fedavg (lr 0.1)",
        "Not used: id", "Rounds: 3; finished", "no noise was added", "not validated on any other",
    )  # fmt: skip
    assert all(words in text for words in wanted)
    figures = [run.history["test_accuracy"][-1] for run in record.runs]
    low, high = fedax.experiments.statistics.interval(np.array(figures))
    shown = [f"{100 * value:.2f} %" for value in (figures[1], np.mean(figures), low, high)]
    assert "| Test accuracy | {} | {} | {} to {} |".format(*shown) in text
    assert run_cli("predict", "run/models/fedavg-seed1.safetensors", "north.csv", "--out", "p.csv").exit_code == 0
    program = [sys.executable, "fedavg-seed1-numpy/model.py", "north.csv"]
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    (tmp_path / "cut.csv").write_text("id,age,ill\n1,5\n")
    for words, said in {"cut.csv": "error: cut.csv: a row has 2 cells", "": "usage"}.items():
        ended = subprocess.run([*program[:2], *words.split()], capture_output=True, text=True)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1) and ended.stderr.startswith(said)
    (tmp_path / "q.csv").write_text(printed)
    ours, theirs = pandas.read_csv("p.csv"), pandas.read_csv("q.csv")
    assert (ours["prediction"] == theirs["prediction"]).all() and [*theirs] == ["prediction", "p no", "p yes"]
    np.testing.assert_allclose(theirs["p yes"], ours["p yes"], atol=1e-6)


def test_the_card_of_a_private_run_has_only_what_is_public(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = ["data.clients=5", "run.rounds=2", "data.weights=uniform", "privacy.noise=10.0", "privacy.clip=1.0",
            "privacy.delta=0.01", "participation.kind=poisson", "participation.rate=0.5"]  # fmt: skip
    words = [word for option in sets for word in ("--set", option)]
    ended = run_cli("compare", "digits", "--methods", "fedavg", "--seeds", "1", *words, "--out", "run")
    assert ended.exit_code == 1, ended.output  # so much noise for five clients
    ended = run_cli("export", "run/models/fedavg-seed0.safetensors", "--to", "numpy", "--out", "shipped")
    assert ended.exit_code == 0, ended.output
    text, record = (tmp_path / "shipped" / "MODEL_CARD.md").read_text("utf-8"), fedax.experiments.read("run")
    epsilon = record.runs[0].history["epsilon"][-1]
    assert f"ε = {epsilon:.4g} at δ = 0.01" in text and "Neighbouring relation" in text
    assert "Training examples of each client" not in text and "ended worse than it began" in text
    assert "test_accuracy" in record.about["public"] and "| Test accuracy |" in text


def test_the_card_of_a_model_without_a_run_folder(tmp_path):
    model_of(fedax.tasks.linear_regression(3), shape=(3,)).save(tmp_path / "m.safetensors")
    text = (export(tmp_path / "m.safetensors", "numpy", tmp_path / "out") / "MODEL_CARD.md").read_text("utf-8")
    assert "not known" in text and "Predicts a number" in text and "## Figures" not in text
