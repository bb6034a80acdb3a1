"""Tracking: a tracker's calls for whole, stopped and resumed runs, and errors of the tracker."""

import json

import pytest

from fedax import tracking
from fedax.errors import TrackingWarning
from fedax.experiments import build, execute, new_folder, plan, runner, tune

TABLES = {
    "name": "small",
    "data": {"name": "quadratics", "clients": 4, "dimension": 2},
    "run": {"rounds": 4, "evaluate_every": 2, "seeds": 2},
    "work": {"kind": "steps", "steps": 2},
    "methods": [{"name": "fedavg", "lr": 0.1}, {"name": "scaffold", "lr": 0.1}],
}


class RecordingTracker:
    """A tracker that records its calls."""

    def __init__(self):
        self.params, self.rows, self.ends = {}, {}, {}

    def __call__(self, label, seed, params):
        recorder = self

        class Writer:
            def row(self, row):
                recorder.rows[label, seed].append(row)

            def end(self, status):
                recorder.ends.setdefault((label, seed), []).append(status)

        self.params[label, seed], self.rows[label, seed] = params, []
        return Writer()


@pytest.fixture(autouse=True, params=[False, True], ids=["one by one", "side by side"])
def together(request, monkeypatch):
    monkeypatch.setattr(runner, "worth_batching", lambda job, seeds: request.param)


def lines(folder):
    results = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        about = [row.pop(name) for name in ("label", "method", "seed", "status", "sha256", "of")]
        results.setdefault((about[0], about[2]), []).append(row)
    return results


def test_each_run_tells_its_parameters_its_rows_and_its_end(tmp_path):
    recorder, folder = RecordingTracker(), new_folder(tmp_path / "run", "small")
    record = execute(build(TABLES), folder, track=recorder)
    assert recorder.rows == lines(folder) and len(recorder.rows) == 4
    assert recorder.ends == {(run.label, run.seed): [run.status] for run in record.runs}
    params = recorder.params["scaffold", 1]
    assert params.items() >= {"method.name": "scaffold", "method.lr": 0.1, "data.clients": 4, "run.rounds": 4}.items()
    assert (params["label"], params["seed"], params["experiment"]) == ("scaffold", 1, "small")
    assert len({each["run.id"] for each in recorder.params.values()}) == 4
    again = RecordingTracker()
    execute(build(TABLES), folder, track=again)
    assert not again.params  # all runs are over, and were told of


def test_a_run_that_goes_on_is_told_of_whole(tmp_path):
    first, second, folder = RecordingTracker(), RecordingTracker(), new_folder(tmp_path / "run", "small")

    def stop(label, seed, row):
        if row is not None and (label, seed, row["round"]) == ("scaffold", 0, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(build(TABLES), folder, stop, track=first, rounds=1)
    assert first.ends["fedavg", 1] == ["finished"] and first.ends["scaffold", 0] == ["unfinished"]
    execute(build(TABLES), folder, track=second)
    assert {label for label, _ in second.rows} == {"scaffold"}
    assert {run: rows for run, rows in lines(folder).items() if run[0] == "scaffold"} == second.rows
    assert second.params["scaffold", 0] == first.params["scaffold", 0]


def test_a_sweep_leaves_the_section_aside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "_installed", lambda tracker, package: None)
    sweep = {"grid": {"methods": {"fedavg": {"lr": [0.1, 0.2]}}}}
    tables = TABLES | {"methods": TABLES["methods"][:1], "track": {"name": "wandb"}, "sweep": sweep}
    record, _ = tune(plan(tables), new_folder("swept", "small"))
    assert record.config["track"]["name"] == "wandb" and [path.name for path in tmp_path.iterdir()] == ["swept"]


@pytest.mark.parametrize("at", ["begin", "row", "end"])
def test_a_tracker_that_fails_is_warned_of_once_and_left(tmp_path, at):
    calls = []

    class Broken:
        def __init__(self, label, seed, params):
            self.fail("begin")

        def row(self, row):
            self.fail("row")

        def end(self, status):
            self.fail("end")

        def fail(self, where):
            calls.append(where)
            if where == at:
                raise OSError("no room\nleft")

    folder = new_folder(tmp_path / "run", "small")
    with pytest.warns(TrackingWarning, match=r"Broken failed \(OSError: no room\)") as caught:
        record = execute(build(TABLES), folder, track=Broken)
    assert len(caught) == 1 and calls.count(at) == 1
    assert [run.status for run in record.runs] == ["finished"] * 4
