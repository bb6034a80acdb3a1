"""One small folder of each kind that fedax writes, as the version that runs this writes it.

``python -m tests.experiments.folders.write`` makes the folder of this version; those of earlier ones stay as they are,
and ``tests/experiments/test_folders.py`` reads them all. ``expected.json`` beside them has the values written.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np

import fedax
from fedax.experiments import build, execute, plan, read_toml, tune
from fedax.experiments.diagnosis import diagnose_run
from fedax.experiments.runs import new_folder
from fedax.experiments.study import carry_out, outcome, read_study, results_of

HERE = pathlib.Path(__file__).parent

CONFIG = {
    "name": "small",
    "data": {"name": "quadratics", "clients": 4, "dimension": 2},
    "work": {"kind": "steps", "steps": 2},
    "participation": {"kind": "uniform", "size": 3, "dropout": 0.1},
    "run": {
        "rounds": 2,
        "seeds": [3],
        "evaluate_every": 1,
        "guard": {"largest": 100.0},
        "compress": {"up": {"name": "error-feedback", "of": {"name": "qsgd", "levels": 4}}},
        "faults": {"clients": [1], "times": -1.0},
    },
    "methods": [
        {"name": "fedavg", "lr": {"value": 0.1, "at": {"1": 0.5}}},
        {"name": "scaffold", "lr": 0.1, "label": "a <b> & c"},
    ],
}
SWEEP = {
    "name": "sweep",
    "data": {"name": "quadratics", "clients": 3, "dimension": 2},
    "run": {"rounds": 2, "seeds": 2, "evaluate_every": 1},
    "methods": [{"name": "fedavg"}, {"name": "fedprox"}],
    "sweep": {"grid": {"methods.*.lr": [0.05, 0.1], "methods.fedprox.prox": [0.1, 1.0]}},
}
RECIPE = """
name = "small"
data = {name = "quadratics", clients = 3, dimension = 2}
run = {rounds = 2, seeds = [3, 4], evaluate_every = 1}
methods = [{name = "fedavg"}, {name = "fedavg-m", beta = 0.5}]

[sweep.grid]
"methods.*.lr" = [0.05, 0.1]
"""
STUDY = """
name = "mine"

[[parts]]
name = "one"
recipe = "small.toml"
text = "Momentum is better."
claims = [["fedavg-m", "fedavg"]]
tune = {rounds = 2, extend = 0, again = 0}
"""
TABLE = "age,sex,ill\n30,f,no\n41,m,yes\n52,f,yes\n,m,no\n35,f,no\n60,m,yes\n"


def checkpointed(folder, rounds=2):
    """The run of which there is a checkpoint; with more rounds it goes on."""
    return fedax.simulate(
        fedax.create("scaffold", lr=0.1),
        fedax.tasks.quadratic(2),
        fedax.data.quadratics(clients=3, dimension=2),
        rounds=rounds,
        seed=5,
        evaluate_every=1,
        checkpoint=folder,
    )


def figures(history):
    """All columns but the time it took."""
    return {name: np.asarray(values).tolist() for name, values in history.items() if name != "seconds"}


def write(folder):
    """Write everything, and what is expected of it."""
    folder.mkdir()
    results = {"version": fedax.__version__}
    results["run"], results["diagnosis"] = _run(folder)
    results["comparison"] = _comparison(folder)
    results["sweep"], results["tuned"] = _sweep(folder)
    results["study"] = _study(folder)
    results["model"] = _model(folder)
    run = checkpointed(folder / "checkpoint")
    results["checkpoint"] = {"history": figures(run.history), "end": figures(checkpointed(None, 4).history)}
    (folder / "expected.json").write_text(json.dumps(results, indent=1) + "\n")


def _rows(record):
    return [
        {
            "label": run.label,
            "seed": run.seed,
            "status": run.status,
            "point": run.point,
            "history": figures(run.history),
        }
        for run in record.runs
    ]


def _run(folder):
    seen = []
    experiment = build(CONFIG)
    record = execute(experiment, new_folder(folder / "run", "run"), lambda *row: seen.append(row), drawn=False)
    diagnosed = diagnose_run(experiment, record)
    rows = [{"label": label, "seed": seed, **row} for label, seed, row in seen if isinstance(row, dict)]
    for row in rows:
        row.pop("seconds", None)
    return {"rows": rows, "config": experiment.config}, [each["advice"] for each in diagnosed]


def _comparison(folder):
    data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
    methods = {"plain": fedax.create("fedavg", lr=0.1), "own server": fedax.create("fedavg-m", lr=0.1, beta=0.5)}
    options = {"work": fedax.RandomEpochs(1, 2), "participation": fedax.Dropout(fedax.Uniform(3), 0.1)}
    options |= {"guard": fedax.Guard(), "compress": fedax.QSGD(4), "faults": fedax.Faults([1], times=-1.0)}
    comparison = fedax.compare(
        methods, task, data, rounds=2, seeds=2, evaluate_every=1, out=folder / "comparison", **options
    )
    shutil.rmtree(folder / "comparison" / "plots")  # these are drawn anew
    for name in ("report.html", ".lock"):
        (folder / "comparison" / name).unlink()
    return {"rows": _rows(comparison.records[0]), "verdict": comparison.verdict, "config": comparison.records[0].config}


def _sweep(folder):
    record, content = tune(plan(SWEEP), new_folder(folder / "sweep", "sweep"), drawn=False)
    best = {label: record.trials(label)[0] for label in record.labels}
    points = {label: {"point": trial.point, "scores": trial.scores.tolist()} for label, trial in best.items()}
    (tuned,) = content["best"]
    run = execute(build(read_toml(folder / "sweep" / tuned)), new_folder(folder / "tuned", "tuned"), drawn=False)
    return {"rows": _rows(record), "best": points}, {"rows": _rows(run)}


def _study(folder):
    place = folder / "study"
    place.mkdir()
    (place / "small.toml").write_text(RECIPE)
    (place / "study.toml").write_text(STUDY)
    study = read_study(place / "study.toml")
    assert carry_out(study, place / "done", jobs=1)
    for left in ("log.txt", ".lock", "run/.lock"):
        for path in (place / "done").rglob(left):
            path.unlink()
    (line,) = outcome(study, place / "done")
    return {"results": results_of(place / "done"), "outcome": line}


def _model(folder):
    with tempfile.TemporaryDirectory() as place:
        for site in ("north", "south"):
            pathlib.Path(place, f"{site}.csv").write_text(TABLE)
        data = fedax.data.from_csv(f"{place}/*.csv", label="ill")
        task = fedax.tasks.softmax_regression(data.examples["x"].shape[1], 2)
        run = fedax.simulate(fedax.create("fedavg", lr=0.5), task, data, rounds=2)
        run.save(folder / "model.safetensors")
    (folder / "new.csv").write_text(TABLE)
    leaves = {name: np.asarray(leaf).tolist() for name, leaf in run.params.items()}
    x = np.asarray(data.examples["x"][:6])
    predicted = fedax.load_model(folder / "model.safetensors")
    chances = np.exp(logits := np.asarray(task.outputs(run.params, {"x": x})))
    chances /= chances.sum(axis=1, keepdims=True)
    labels = [predicted.labels[k] for k in logits.argmax(axis=1)]
    return {"params": leaves, "chances": chances.tolist(), "labels": labels}


if __name__ == "__main__":
    if "dev" in fedax.__version__:  # files of a version that is under way may still change their form
        shutil.rmtree(HERE / fedax.__version__, ignore_errors=True)
    write(HERE / fedax.__version__)
    print(sum(path.stat().st_size for path in (HERE / fedax.__version__).rglob("*") if path.is_file()), file=sys.stderr)
