"""A run resumed from a checkpoint equals the run that never stopped, bit for bit; bad checkpoints are refused."""

import json
import os
import random
import shutil
import time
import types

import jax
import numpy as np
import pytest
import safetensors.numpy

import fedax
from fedax.engine import checkpoint, evaluate
from fedax.engine.make import make_job
from fedax.errors import CheckpointError, ConfigError, DamagedWarning

from .. import in_full, mostly_long
from .problem import DATA, MEASURED, TASK, UNEQUAL, federation

TEST = federation([11], [1.0], seed=5)
CASES = {
    "fedavg": {"work": fedax.RandomEpochs(1, 4), "participation": fedax.Uniform(3)},
    "scaffold": {"work": UNEQUAL, "participation": fedax.Uniform(2)},
    "scaffold-m-vr": {"participation": fedax.Uniform(3), "place": fedax.Place(client_memory="host")},  # warm-up
    "mime": {"participation": fedax.Uniform(3), "place": fedax.Place(stream=True)},  # two exchanges
    "fedadam": {},  # moments at the server
}


class Killed(Exception):
    pass


def run(name, folder=None, rounds=8, at=None, **options):
    def callback(row):
        if row["round"] == at:
            raise Killed

    options = {"work": fedax.Steps(2), "batch_size": 2, "evaluate_every": 2} | CASES[name] | options
    kept = None if folder is None else fedax.Checkpoints(folder, 3, None, best=options.pop("best", None))
    method = fedax.create(name, lr=options.pop("lr", 0.05))
    task = options.pop("task", TASK)
    return fedax.simulate(
        method, task, DATA, rounds=rounds, test=TEST.examples, checkpoint=kept, callback=callback, **options
    )


def identical(one, other):
    assert one.status == other.status
    for column in set(one.history) - {"seconds"}:
        assert one.history[column].tolist() == other.history[column].tolist(), column
    ids = np.arange(DATA.num_clients)
    rows = [each.memory[ids] if hasattr(each.memory, "kept") else each.memory for each in (one, other)]
    for a, b in ((one.params, other.params), (one.state, other.state), rows):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("name", mostly_long(CASES, "scaffold", "scaffold-m-vr", "mime"))
def test_a_run_goes_on_as_if_it_had_never_stopped(name, tmp_path, compilations):
    whole = run(name)
    with pytest.raises(Killed):
        run(name, tmp_path, at=8)
    assert [path.name[:15] for path in sorted(tmp_path.iterdir())] == ["round-000000003", "round-000000006"]
    compilations()
    identical(whole, run(name, tmp_path))
    assert compilations("some_rounds") == 0  # what it finds is placed as it was
    identical(whole, run(name, tmp_path))  # which finds the end, and has nothing to do


def test_a_run_may_be_prolonged_and_looked_at_more_often(tmp_path):
    whole = run("scaffold", evaluate_every=[4, 5, 6])
    assert run("scaffold", tmp_path, rounds=4, evaluate_every=4).history["round"].tolist() == [0, 4]
    identical(whole, run("scaffold", tmp_path, evaluate_every=[5, 6]))
    with pytest.raises(CheckpointError, match="round 8 already, and is to have 4"):
        run("scaffold", tmp_path, rounds=4)


def test_a_run_may_be_shortened_to_a_round_without_evaluation(tmp_path):
    with pytest.raises(Killed):
        run("fedavg", tmp_path, evaluate_every=8, at=8)
    identical(run("fedavg", rounds=6, evaluate_every=8), run("fedavg", tmp_path, rounds=6, evaluate_every=8))


def test_other_columns_are_refused_before_work_begins(tmp_path):
    run("fedavg", tmp_path, rounds=4)
    with pytest.raises(CheckpointError, match=r"columns grad_norm_sq: ask for .*test"):
        run("fedavg", tmp_path, task=MEASURED)


def test_memory_may_be_elsewhere_than_before(tmp_path):
    """With several rows at a time, of clients in the order in which they came."""
    with pytest.raises(Killed):
        run("scaffold", tmp_path, at=8, place=fedax.Place(client_memory="host"))
    one, other = run("scaffold"), run("scaffold", tmp_path, place=fedax.Place(client_memory="device"))
    for column in set(one.history) - {"seconds"}:
        np.testing.assert_allclose(other.history[column], one.history[column], 1e-5, err_msg=column)
    for a, b in zip(jax.tree.leaves(one.memory), jax.tree.leaves(other.memory), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_rows_are_read_some_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_ROWS", 1)
    whole = run("scaffold", place=fedax.Place(client_memory="host"))
    run("scaffold", tmp_path, rounds=4, place=fedax.Place(client_memory="host"))
    identical(whole, run("scaffold", tmp_path, place=fedax.Place(client_memory="host")))


def test_callbacks_and_until_get_the_rows_again(tmp_path):
    """Early stopping counts on."""
    run("fedavg", tmp_path, rounds=4)
    seen = []
    again = fedax.simulate(
        fedax.create("fedavg", lr=0.05),
        TASK,
        DATA,
        rounds=8,
        batch_size=2,
        evaluate_every=2,
        test=TEST.examples,
        callback=seen.append,
        until=lambda row: len(seen) == 4,
        checkpoint=str(tmp_path),
        **CASES["fedavg"],
    )
    assert [row["round"] for row in seen] == again.history["round"].tolist() == [0, 2, 4, 6]
    assert again.status == "stopped"
    assert run("fedavg", tmp_path).history["round"].tolist() == [0, 2, 4, 6]  # it stays so


def test_a_run_ends_at_what_was_its_last_round_where_it_would_have_ended(tmp_path):
    """There nobody asked \"until\", as the run was over."""
    until = {"at two": lambda row: row["round"] == 2, "patience": fedax.Patience("train_loss", 1, least=1e9)}
    for name, ends in until.items():
        options = {"batch_size": 2, "evaluate_every": 2, "until": ends, **CASES["fedavg"]}
        folder = tmp_path / name
        statuses = [
            fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=r, checkpoint=folder, **options)
            for r in (2, 8)
        ]
        rounds = [run.history["round"].tolist() for run in statuses]
        assert [run.status for run in statuses] == ["finished", "stopped"] and rounds == [[0, 2], [0, 2]], name


def test_a_run_between_two_evaluations_does_not_end_at_the_last_one(tmp_path):
    """Else its model would be of a later round than its last row."""
    options = {"batch_size": 2, "rounds": 12, "evaluate_every": 4, "work": fedax.Steps(2)}

    def kill(row):
        if row["round"] == 8:
            raise KeyboardInterrupt

    checkpoint, method = fedax.Checkpoints(tmp_path, rounds=1), fedax.create("fedavg", lr=0.05)
    with pytest.raises(KeyboardInterrupt):
        fedax.simulate(method, TASK, DATA, callback=kill, checkpoint=checkpoint, **options)
    ends = lambda row: row["round"] >= 4  # noqa: E731
    again = fedax.simulate(method, TASK, DATA, until=ends, checkpoint=checkpoint, **options)
    plain = fedax.simulate(method, TASK, DATA, **options | {"rounds": 8})
    assert again.status == "stopped" and again.history["round"].tolist() == [0, 4, 8]
    np.testing.assert_array_equal(again.params["w"], plain.params["w"])


def test_other_settings_are_refused_by_name(tmp_path):
    run("scaffold", tmp_path)
    for options, differs in (
        ({"lr": 0.1}, "method.lr was 0.05, is 0.1"),
        ({"seed": 3}, "seed was 0, is 3"),
        ({"work": fedax.Steps(2)}, "work.steps was [2, 5, 1, 3, 4], is 2"),
        ({"participation": fedax.Full()}, "participation was Uniform, is Full; participation.size was 2, is None"),
        ({"batch_size": 3}, "batch_size was 2, is 3"),
    ):
        with pytest.raises(CheckpointError) as error:
            run("scaffold", tmp_path, **options)
        assert differs in str(error.value)
    with pytest.raises(CheckpointError, match="method was Scaffold, is FedAvg"):
        run("fedavg", tmp_path, **CASES["scaffold"])
    with pytest.raises(CheckpointError, match="sizes and weights was"):
        data = DATA.with_weights(np.full(5, 0.2))
        fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, data, rounds=8, checkpoint=tmp_path)


def test_a_file_may_vanish_while_another_process_writes(tmp_path):
    """Its temporary file gets its name at any moment; here one that is listed, and is not there."""
    (tmp_path / ".writing-gone").symlink_to(tmp_path / "nowhere")
    run("fedavg", tmp_path)
    assert len(list(tmp_path.glob("round-*"))) == 2


def flips(content):
    """A file with one bit flipped: in the length, the digest, the text, other parts of the header, each tensor."""
    head = 8 + int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8:head])
    places = [0, 7, 8, head - 1, content.index(b"sha256") + 1, content.index(b'"sha256": "') + 11]
    places += [content.index(word) for word in (b"shape", b"data_offsets", b"dtype")]
    places += [content.index(word) for word in (b"train_loss", b"seconds") if word in content]
    places += [head + form["data_offsets"][0] for name, form in tensors.items() if name != "__metadata__"]
    for place in (*places, len(content) - 1):
        for bit in (0, 6):
            yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


@pytest.fixture(scope="module")
def prolonged(tmp_path_factory):
    """A folder of a run of six rounds, and the same run with eight."""
    folder = tmp_path_factory.mktemp("prolonged")
    run("scaffold", folder, rounds=6)
    return folder, run("scaffold")


def test_damaged_files_are_passed_over_and_named(prolonged, tmp_path):
    folder, whole = prolonged
    shutil.copytree(folder, tmp_path / "run")
    newest = max((tmp_path / "run").iterdir())
    good = newest.read_bytes()
    newest.write_bytes(good[:-5] + bytes([good[-5] ^ 64]) + good[-4:])
    with pytest.warns(DamagedWarning, match=rf"^1 of 2 .*{newest.name}: damaged.*round 3, to"):
        identical(whole, run("scaffold", tmp_path / "run"))
    # What was damaged has made room.
    assert sorted(path.name[:15] for path in (tmp_path / "run").iterdir()) == ["round-000000006", "round-000000008"]
    assert all(checkpoint.damage(path) is None for path in (tmp_path / "run").iterdir())


def test_no_damage_passes(prolonged, tmp_path):
    """Of one file, so that it has to be refused; before anything is compiled."""
    good = max(prolonged[0].iterdir()).read_bytes()
    path = tmp_path / "round-000000006.0-of-1.safetensors"
    other = good.replace(b'"memory.0"', b'"memory.9"')
    for broken in (*flips(good), good[:-4], good[:50], b"", b"\xff" * 100, good + b"\0", other):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match=rf"{path.name}: damaged.*no other .*remove"):
            run("scaffold", tmp_path)


def test_a_renamed_checkpoint_is_not_believed(prolonged, tmp_path):
    """One of another round or process; the best model of another run."""
    folder, whole = prolonged
    shutil.copytree(folder, tmp_path / "run")
    newest = max((tmp_path / "run").iterdir())
    newest.rename(newest.with_name("round-000000007.0-of-1.safetensors"))
    with pytest.warns(DamagedWarning, match=rf"renamed \(it is {newest.name}\).*round 3, to"):
        identical(whole, run("scaffold", tmp_path / "run"))
    for name in ("round-000000005.0-of-1.safetensors", "round-000000006.0-of-1.safetensors"):
        place = tmp_path / f"alone-{name}"
        place.mkdir()
        shutil.copy(newest, place / name)
        if name == newest.name:
            identical(whole, run("scaffold", place))
            continue
        with pytest.raises(CheckpointError, match=rf"{name}: .*renamed \(it is .*no other one"):
            run("scaffold", place)
    assert checkpoint.damage(newest, "round-000000006.1-of-2.safetensors") == f"moved or renamed (it is {newest.name})"


def test_files_of_an_older_version_are_refused(prolonged, tmp_path):
    path = tmp_path / "round-000000006.0-of-1.safetensors"
    good = max(prolonged[0].iterdir()).read_bytes()
    path.write_bytes(good.replace(b"sha256", b"sha---").replace(b"fedax checkpoint 3", b"fedax checkpoint 1"))
    with pytest.raises(CheckpointError, match=f"{path.name}: of an older version of fedax"):
        run("scaffold", tmp_path)


def test_what_is_left_of_later_rounds_goes(prolonged, tmp_path):
    """A part of a checkpoint of two processes must not replace the checkpoints that this run writes."""
    shutil.copytree(prolonged[0], tmp_path / "run")
    (tmp_path / "run" / "round-000000099.0-of-2.safetensors").write_bytes(b"")
    (tmp_path / "run" / "mine.safetensors").write_bytes(b"")
    run("scaffold", tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir())[0] == "mine.safetensors"
    assert len(list((tmp_path / "run").iterdir())) == 3
    checkpoint.discard(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.safetensors"]


def test_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch):
    """Leaves the earlier ones, and nothing else."""

    def full(handle):
        raise OSError(28, "No space left on device")

    run("scaffold", tmp_path, rounds=3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left") as refused:
        run("scaffold", tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert f"{tmp_path / max(before)} is there, and whole" in str(refused.value)
    (tmp_path / "new").mkdir()
    with pytest.raises(CheckpointError, match="there is no other one"):
        run("scaffold", tmp_path / "new")
    assert not [*(tmp_path / "new").iterdir()]


def test_they_come_by_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint, "time", types.SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    made = []

    class Watched(checkpoint.Checkpointer):
        """A round takes half a minute, which is longer than a call may take."""

        def stop(self, index, to):
            now[0] += 30.0
            return super().stop(index, index + 1)

        def save(self, saved):
            made.append(saved.done)
            super().save(saved)

    monkeypatch.setattr("fedax.engine.simulate.Checkpointer", Watched)
    kept = fedax.Checkpoints(tmp_path, minutes=2, keep=1)
    fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=18, evaluate_every=18, checkpoint=kept)
    assert made == [4, 8, 12, 16, 18]
    assert [path.name for path in tmp_path.iterdir()] == ["round-000000018.0-of-1.safetensors"]


def test_types_that_numpy_knows_by_name_only(tmp_path):
    tensors = {"a": np.arange(6).reshape(2, 3).astype(jax.numpy.bfloat16), "b": np.array(True), "c": np.zeros((0, 2))}
    checkpoint.write_tensors(tmp_path / "x", tensors, json.dumps({"é": 1}))
    with checkpoint._opened(tmp_path / "x") as file:
        assert json.loads(file.metadata()["fedax"]) == {"é": 1}
        for name, leaf in tensors.items():
            result = checkpoint._read(tmp_path / "x", file, name, leaf.shape, leaf.dtype)
            assert result.dtype == leaf.dtype and result.tolist() == leaf.tolist()
        with pytest.raises(CheckpointError, match="should be"):
            checkpoint._read(tmp_path / "x", file, "a", (3, 2), tensors["a"].dtype)


@pytest.mark.parametrize(
    "settings",
    [
        {"folder": 3},
        {"rounds": 0},
        {"minutes": 0},
        {"minutes": -1.0},
        {"keep": 0},
        {"rounds": 1.5},
        {"best": 3},
        {"higher": 1},
    ],
)
def test_bad_settings(settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=f"checkpoint.{name}"):
        fedax.Checkpoints(**{"folder": "x"} | settings)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"checkpoint\.folder"):
        run("fedavg", tmp_path / "file" / "below")


def best(folder, at=None, rounds=12, every=5, **options):
    """A run that is noisy, so that its best model is in the middle; ``at``: the round at which it is killed."""

    def callback(row):
        if row["round"] == at:
            raise Killed

    kept = fedax.Checkpoints(folder, rounds=every, minutes=None, **{"keep": 1, "best": "test_loss"} | options)
    return fedax.simulate(
        fedax.create("fedavg", lr=0.25),
        TASK,
        DATA,
        rounds=rounds,
        work=fedax.Steps(3),
        batch_size=1,
        participation=fedax.Uniform(2),
        test=TEST.examples,
        evaluate_every=1,
        checkpoint=kept,
        callback=callback,
    )


@pytest.fixture(scope="module")
def kept_best(tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    return best(folder), (folder / "best.safetensors").read_bytes()


def test_the_best_model_is_kept(kept_best, tmp_path):
    run, _ = kept_best
    losses = run.history["test_loss"]
    at = int(np.argmin(losses))
    assert 0 < at < 12 and run.best.round == at and run.best.value == losses[at]
    then = best(tmp_path, rounds=at)  # ends there
    assert np.array_equal(run.best.params["w"], then.params["w"]) and run.best.params["b"] == then.params["b"]
    assert not np.array_equal(run.best.params["w"], run.params["w"])
    tensors = safetensors.numpy.load_file(tmp_path / "best.safetensors")
    assert tensors.keys() == {"w", "b"} and np.array_equal(tensors["w"], run.best.params["w"])
    assert fedax.simulate(fedax.create("fedavg", lr=0.1), TASK, DATA, rounds=0).best is None


def test_higher_may_be_better(tmp_path):
    run = best(tmp_path, best="test_error", higher=True)
    assert run.best.round == int(np.argmax(run.history["test_error"]))
    assert (
        not fedax.Checkpoints("x", best="test_error").upwards and fedax.Checkpoints("x", best="test_accuracy").upwards
    )
    with pytest.raises(ConfigError, match=r"checkpoint\.higher = None: .*density"):
        fedax.simulate(
            fedax.create("fedavg", lr=0.05), TASK.with_metrics(density=fedax.metrics.Density(0.1)), DATA, rounds=1,
            checkpoint=fedax.Checkpoints(tmp_path / "new", best="density"),
        )  # fmt: skip
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("every", [1, 5, 100])  # 100: killed before there is any checkpoint
def test_the_best_model_of_a_run_that_was_killed(every, kept_best, tmp_path):
    """Killed after its best round, which is one after the newest checkpoint, and before it."""
    run, content = kept_best
    for at in (run.best.round + 1, run.best.round - 1):
        with pytest.raises(Killed):
            best(tmp_path, at=at, every=every)
    again = best(tmp_path, every=every)
    identical(run, again)
    assert again.best.round == run.best.round and again.best.value == run.best.value
    assert (tmp_path / "best.safetensors").read_bytes() == content
    identical(run, best(tmp_path, every=every))  # which finds all, and has nothing to do
    assert best(tmp_path, every=every).best.params["w"].tolist() == run.best.params["w"].tolist()
    assert len(list(tmp_path.iterdir())) == 2  # the newest, and the best


def test_the_best_since_it_was_asked(tmp_path):
    with pytest.raises(Killed):
        best(tmp_path, at=8, best=None)
    assert best(tmp_path).best.round >= 6


def test_columns_of_the_best(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint\.best = 'test_los': .*'test_loss'.*: test_error, "):
        best(tmp_path, best="test_los")
    with pytest.raises(ConfigError, match=r"There are: train_loss$"):
        kept = fedax.Checkpoints(tmp_path, best="test_loss")
        fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=1, checkpoint=kept)
    assert not list(tmp_path.iterdir())
    l1 = fedax.create("fedavg", lr=0.05, regularizer=fedax.L1(0.1))
    measured = MEASURED.with_metrics(density=fedax.metrics.Density(0.1))
    for method, task in ((l1, measured), (fedax.create("fedavg", lr=0.05), TASK)):
        options = {"rounds": 0, "test": TEST.examples}
        job = make_job(method, task, DATA, **options)
        costs = ["round", "clients", "local_steps", "gradients", "bytes_down", "bytes_up", "seconds"]
        assert {*evaluate.columns(job)} == {*fedax.simulate(method, task, DATA, **options).history} - {*costs}


def test_a_best_model_that_is_not_this_jobs(tmp_path):
    best(tmp_path)
    for path in tmp_path.glob("round-*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"best\.safetensors: of another run"):
        run("fedavg", tmp_path, best="test_loss")
    good = (tmp_path / "best.safetensors").read_bytes()
    for broken in (*flips(good), b"\xff" * 100):
        (tmp_path / "best.safetensors").write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"best\.safetensors: damaged.*remove it"):
            best(tmp_path)


def test_a_best_model_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(Killed):
        best(tmp_path, at=0)
    before = (tmp_path / "best.safetensors").read_bytes()

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match=r"best\.safetensors: .*No space left"):
        best(tmp_path)
    assert (tmp_path / "best.safetensors").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@in_full
def test_one_bit_flipped_anywhere_is_noticed(tmp_path, full):
    """The only checkpoint: there is none before it to go on from."""
    options = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 2}
    run = lambda folder: fedax.simulate(  # noqa: E731
        fedax.create("scaffold", lr=0.05), TASK, DATA, checkpoint=fedax.Checkpoints(folder, keep=1), **options
    )
    run(tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for place in random.Random(0).sample(range(8 * len(content)), 200 if full else 50):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=path.name):
            run(tmp_path)
    path.write_bytes(content)
    run(tmp_path)
