"""Asynchronous rounds among all else that a run has; `test_asynchronous_methods` has their numbers."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import fedax
from fedax.engine import asynchronous
from fedax.engine import timetable as engine_timetable
from fedax.engine.loop import draw_steps, stage_key
from fedax.engine.make import make_job
from fedax.errors import ConfigError

from .. import in_full, long, mostly_long

N, D, LR, ROUNDS = 6, 3, 0.05, 25
RNG = np.random.default_rng(0)
_ROOTS = RNG.normal(size=(N, D, D))
H = (np.einsum("nij,nkj->nik", _ROOTS, _ROOTS) / D + 0.3 * np.eye(D)).astype(np.float32)
E = RNG.normal(size=(N, D)).astype(np.float32)
P = np.array([0.3, 0.1, 0.2, 0.15, 0.05, 0.2])
DATA = fedax.FederatedData({"H": H, "e": E}, [1] * N, P)
START = np.linspace(-1, 1, D)
EXAMPLE = {"H": H[:1], "e": E[:1]}
STEPS = np.array([2, 1, 3, 2, 4, 1])
CLOCK = fedax.Clock(step=fedax.Lognormal(1.0, 0.8, anew=True), latency=[0.1, 0.5, 0.2, 0.1, 0.9, 0.3], server=0.05)


def component(k):
    return lambda x, batch: x[k] + 0 * batch["e"][:, 0]


QUADRATIC = fedax.tasks.quadratic(D)
TASK = dataclasses.replace(QUADRATIC, metrics={f"x{k}": component(k) for k in range(D)})


def run(method, pace, **options):
    given = {"rounds": ROUNDS, "work": fedax.Steps(STEPS), "clock": CLOCK, "params": START, "test": EXAMPLE, "seed": 4}
    return fedax.simulate(method, TASK, DATA, pace=pace, **given | {"evaluate_every": 1} | options)


def models(run):
    return np.stack([run.history[f"test_x{k}"] for k in range(D)], axis=1)[1:]


def timetable(method, pace, **options):
    given = {"rounds": ROUNDS, "work": fedax.Steps(STEPS), "clock": CLOCK, "params": START, "seed": 4} | options
    job = make_job(method, TASK, DATA, pace=pace, **given)
    found = job.pacing.timetable(job.clock, job.hyper.work, job.key, job.census, job.plan, job.forms[1][0], 4, ROUNDS)
    found.until(ROUNDS)
    return found, job


PACES = {
    "a buffer": fedax.Async(5, 3),
    "idle": fedax.Async(4, 2, start="idle"),
    "all under way": fedax.Async(6, 4, start="idle"),
    "thrown away": fedax.Async(6, 1, start="idle", max_staleness=5),
    "one at a time": fedax.Async(6, 1, start="idle"),
}


def test_without_a_weight_of_staleness_fedbuff_is_fedavg():
    pace = PACES["a buffer"]
    equal = run(fedax.create("fedbuff", lr=LR, staleness=None), pace)
    np.testing.assert_array_equal(models(equal), models(run(fedax.create("fedavg", lr=LR), pace)))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ca2fl", "fedbuff", "fedasync", "area", "ace", "fadas"])
def test_equal_speeds_and_a_buffer_for_all_are_the_synchronous_method(name):
    method = fedax.create(name, lr=LR)
    options = {"rounds": 6, "work": fedax.Steps(2), "params": START, "batch_size": None, "evaluate_every": 2}
    waits = fedax.simulate(method, TASK, DATA, test=EXAMPLE, **options)
    pace = fedax.Async(N, N, start="idle")
    given = options | {"clock": fedax.Clock(step=1.0), "pace": pace, "test": EXAMPLE}
    does_not = fedax.simulate(method, TASK, DATA, **given)
    np.testing.assert_allclose(models(does_not), models(waits), rtol=1e-5, atol=1e-6)
    assert does_not.history["staleness_max"][-1] == 0
    for cost in ("clients", "local_steps", "gradients", "bytes_up", "bytes_down"):
        assert does_not.history[cost].tolist() == waits.history[cost].tolist(), cost


def test_each_piece_of_work_has_minibatches_of_its_own():
    """Also of one client that starts twice from one version."""
    examples = {"x": np.arange(40, dtype=np.float32)[:, None], "y": np.zeros(40, np.float32)}
    data = fedax.FederatedData(examples, [40])

    def loss(w, batch, key):
        return batch["x"] @ w  # the gradient is the mean of the batch

    task = fedax.Task(lambda key: jnp.zeros(1), loss, {"w": lambda w, batch: w[0] + 0 * batch["y"]})
    pace = fedax.Async(1, 1, start="idle")
    options = {"rounds": 12, "work": fedax.Steps(1), "batch_size": 1, "clock": fedax.Clock(step=1.0)}
    got = fedax.simulate(
        fedax.create("fedavg", lr=1.0), task, data, pace=pace, test=examples, evaluate_every=1, **options
    )
    moves = np.diff(got.history["test_w"])
    assert len({*moves.round(3).tolist()}) > 8


@pytest.mark.parametrize("stop", [1, 7, 12])
@pytest.mark.parametrize("name", ["fedbuff", "scaffold"])
def test_a_run_goes_on_bit_for_bit(name, stop, tmp_path):
    method, pace = fedax.create(name, lr=LR), PACES["all under way"]
    whole = run(method, pace, rounds=12, evaluate_every=4)
    kept = fedax.Checkpoints(tmp_path, rounds=1)
    run(method, pace, rounds=stop, evaluate_every=4, checkpoint=kept)
    again = run(method, pace, rounds=12, evaluate_every=4, checkpoint=kept)
    jax.tree.map(np.testing.assert_array_equal, (again.params, again.memory), (whole.params, whole.memory))
    ends = {name: column[-1] for name, column in whole.history.items() if name != "seconds"}
    assert {name: column[-1] for name, column in again.history.items() if name != "seconds"} == ends
    with pytest.raises(fedax.CheckpointError, match=r"pace.buffer was 4, is 3"):
        run(method, dataclasses.replace(pace, buffer=3), rounds=12, checkpoint=kept)


FOUR = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 devices: jax_num_cpu_devices was set to fewer")


def on(devices, chunk_size=None):
    return {"place": fedax.Place(chunk_size, Mesh(np.array(jax.devices()[:devices]), ("clients",)))}


@FOUR
@pytest.mark.parametrize(
    ("name", "which", "options", "devices", "chunk_size"),
    [
        pytest.param("scaffold", "idle", {}, 2, None, marks=long),
        ("scaffold", "idle", {"work": fedax.Steps(3)}, 4, 1),
        pytest.param(
            "fedbuff", "a buffer", {"guard": True, "faults": fedax.Faults([2], sends=np.nan)}, 4, 1, marks=long
        ),
        ("fedbuff", "a buffer", {"work": fedax.Steps(3), "aggregate": fedax.CoordinateMedian()}, 2, None),
        pytest.param("fedbuff", "thrown away", {}, 4, 1, marks=long),
    ],
)
def test_on_a_mesh_each_device_keeps_what_its_clients_sent(name, which, options, devices, chunk_size):
    method = fedax.create(name, lr=LR)
    one, other = (run(method, PACES[which], **options, **on(number, chunk_size)) for number in (1, devices))
    np.testing.assert_allclose(models(other), models(one), rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), other.memory, one.memory)
    for column in one.history.keys() & {"staleness", "left_out", "skipped", "local_steps"}:
        np.testing.assert_array_equal(other.history[column], one.history[column], column)


@FOUR
@in_full
def test_a_run_goes_on_bit_for_bit_on_as_many_devices_and_up_to_rounding_on_others(tmp_path, full):
    """The waiting uploads are in one box in the file, with the device of each."""
    method, pace = fedax.create("fedbuff", lr=LR), PACES["all under way"]
    options = {"work": fedax.RandomSteps(3.0, 2.0, 1, 9), "guard": True}
    whole = run(method, pace, **options, **on(2))
    for stop, devices in (*([(4, 2)] if full else []), (9, 2), (13, 4), (16, 1), (20, 2), (ROUNDS, 2)):
        kept = fedax.Checkpoints(tmp_path, rounds=1)
        again = run(method, pace, rounds=stop, **options, **on(devices), checkpoint=kept)
        exact = np.testing.assert_array_equal if stop <= 9 else np.testing.assert_allclose
        limits = {} if stop <= 9 else {"rtol": 1e-5, "atol": 1e-6}
        exact(models(again), models(whole)[:stop], **limits)


def test_corrected_weights_are_those_of_so_many_steps(tmp_path):
    """Of more steps than the run was to have they would be others."""
    pace = dataclasses.replace(PACES["all under way"], weights="corrected")
    kept = fedax.Checkpoints(tmp_path, rounds=5)
    run(fedax.create("fedbuff", lr=LR), pace, rounds=10, evaluate_every=10, checkpoint=kept)
    run(fedax.create("fedbuff", lr=LR), pace, rounds=12, evaluate_every=12, checkpoint=kept)  # fewer than 300
    with pytest.raises(fedax.CheckpointError, match=r"pace.weights .* 300 steps, is .* 400"):
        run(fedax.create("fedbuff", lr=LR), pace, rounds=400, evaluate_every=400, checkpoint=kept)


def test_guard_faults_and_compression():
    pace = PACES["a buffer"]
    faults = fedax.Faults([2], sends=np.nan)
    got = run(fedax.create("fedavg", lr=LR), pace, guard=True, faults=faults)
    assert np.isfinite(got.params).all() and set(got.left_out) == {2} and got.history["left_out"][-1] == got.left_out[2]
    table, _ = timetable(fedax.create("fedavg", lr=LR), pace)
    heard = [table.schedule.clients[n] for step in table.schedule.steps[:ROUNDS] for n in step]
    assert got.left_out[2] == heard.count(2)
    alone = [step for step in table.schedule.steps[:ROUNDS] if {table.schedule.clients[n] for n in step} == {2}]
    assert got.history["skipped"][-1] == len(alone)
    feedback = fedax.ErrorFeedback(fedax.TopK(1.0))
    exact = run(fedax.create("fedavg", lr=LR), PACES["idle"])
    sent = run(fedax.create("fedavg", lr=LR), PACES["idle"], compress=feedback)
    np.testing.assert_allclose(models(sent), models(exact), rtol=1e-5, atol=1e-6)


def test_corrected_weights_let_all_count_alike():
    """Over the whole run Σ ω of each client's answers is p_i times the number of steps."""
    method, rounds = fedax.create("fedbuff", lr=LR), 400
    pace = dataclasses.replace(PACES["all under way"], weights="corrected")
    job = make_job(method, TASK, DATA, pace=pace, rounds=rounds, work=fedax.Steps(STEPS), clock=CLOCK)
    table = job.pacing.timetable(job.clock, job.hyper.work, job.key, job.census, job.plan, job.forms[1][0], 0, rounds)
    groups = list(table.groups(0, rounds))
    every, counted = table.stacked(groups, len(groups) + 3, np.dtype(float)), np.zeros(N + 1)
    np.add.at(counted, every.heard, every.weights)
    assert counted[N] == 0  # at empty places
    counted = counted[:N]
    np.testing.assert_allclose(counted / rounds, P, atol=1e-12)


def test_the_schedule_goes_on_while_the_device_works(monkeypatch):
    """Of two runs side by side, whose groups differ in number: no more is found than was asked for."""
    monkeypatch.setattr(engine_timetable, "_MOST", 4)
    paces = [PACES["all under way"], dataclasses.replace(PACES["all under way"], grace=0.3)]
    jobs = [make_job(fedax.create("fedbuff", lr=LR), TASK, DATA, pace=p, rounds=ROUNDS, clock=CLOCK) for p in paces]
    tables = [
        job.pacing.timetable(job.clock, job.hyper.work, job.key, job.census, job.plan, job.forms[1][0], 0, ROUNDS)
        for job in jobs
    ]
    whole = [list(table.groups(0, ROUNDS)) for table in copy.deepcopy(tables)]
    found, versions = [[] for _ in tables], []
    for groups, number in engine_timetable.together(tables, 0, ROUNDS, np.dtype(float)):
        versions.append(max(table.schedule.version for table in tables))
        for rows, group in zip(found, groups, strict=True):
            rows += group.number[:number].tolist()
    each = [[row.number for row in rows] for rows in whole]
    assert [rows[: len(numbers)] for rows, numbers in zip(found, each, strict=True)] == each
    assert len(each[0]) != len(each[1]) and versions[0] <= 4 < ROUNDS == versions[-1]
    assert [number for _, number in engine_timetable.together(tables, 0, 0, np.dtype(float))] == [0]


@pytest.mark.parametrize("work", [fedax.RandomSteps(3.0, 2.0, 1, 9), fedax.GeometricSteps(3.0)])
def test_local_steps_are_drawn_by_the_group_and_the_client(work, monkeypatch):
    """Many at a time where there are few clients, else one by one."""
    for together in (6, 120):
        monkeypatch.setattr(engine_timetable, "_DRAWN", together)
        table, job = timetable(fedax.create("fedavg", lr=LR), PACES["idle"], work=work)
        begun = [
            (group.number, client, steps)
            for group in table.groups(0, ROUNDS)
            for client, steps in zip(group.ids, group.steps, strict=True)
            if client < N
        ]
        for number, client, steps in begun:
            own = stage_key(job.key, number, "exchanges")
            assert steps == draw_steps(work, own, jnp.array([client]), None, None)[0], (number, client)
        assert len({steps for *_, steps in begun}) > 3


def test_what_a_client_without_weight_sends_does_not_matter():
    broken = {"H": H.copy(), "e": E.copy()}
    broken["H"][3] *= 1e6  # its model is not finite after some steps
    weights = np.where(np.arange(N) == 3, 0.0, 1.0)
    data = fedax.FederatedData(broken, [1] * N).with_weights(weights / weights.sum())
    options = {"rounds": 20, "work": fedax.Steps(40), "clock": CLOCK, "pace": PACES["a buffer"]}
    got = fedax.simulate(fedax.create("fedavg", lr=LR), QUADRATIC, data, **options)
    assert fedax.arrivals(fedax.create("fedavg"), QUADRATIC, data, **options).counts[3]
    assert np.isfinite(got.params).all()


@pytest.mark.parametrize("recorded", [False, True])
def test_a_schedule_that_ends_too_soon_is_refused_before_the_work(recorded, monkeypatch, tmp_path):
    one = fedax.FederatedData({"H": H[:1], "e": E[:1]}, [1])
    rows = "number,client,version,begun,seconds\n0,0,0,0,4\n1,0,1,4,4\n2,0,2,8,4\n"
    (tmp_path / "arrivals.csv").write_text(rows)
    ends = fedax.Clock.from_csv(tmp_path / "arrivals.csv")
    clock = ends if recorded else fedax.Clock(step=4.0, available={"0": [[10.0, 20.0]]})
    ran, advance = [], asynchronous._advance
    monkeypatch.setattr(asynchronous, "_advance", lambda *given: ran.append(int(given[5])) or advance(*given))
    options = {"work": fedax.Steps(2), "pace": fedax.Async(1), "clock": clock}
    run_ = functools.partial(fedax.simulate, fedax.create("fedavg", lr=LR), QUADRATIC, one, **options)
    run_(rounds=1, evaluate_every=1)
    assert sum(ran)
    ran.clear()
    with pytest.raises(ConfigError, match=r"recorded answers are over|off for good"):
        run_(rounds=9, evaluate_every=9)
    assert not ran


def test_availability_decides_when_work_begins():
    """A client that is on from 10 to 20 s only, each 100 s; and one that is off for good."""
    one = fedax.FederatedData({"H": H[:1], "e": E[:1]}, [1])
    options = {"rounds": 3, "work": fedax.Steps(2), "pace": fedax.Async(1), "evaluate_every": 1}
    on = {"0": {"on": [[10.0, 20.0]], "repeat": 100.0}}
    clock = fedax.Clock(step=4.0, available=on)
    got = fedax.simulate(fedax.create("fedavg", lr=LR), QUADRATIC, one, clock=clock, **options)
    assert got.history["time"].tolist() == [0.0, 18.0, 26.0, 118.0]  # the second begins at 18
    clock = fedax.Clock(step=4.0, available={"0": [[10.0, 20.0]]})
    with pytest.raises(ConfigError, match=r"available = 'no period .*: client 0 is off"):
        fedax.simulate(fedax.create("fedavg", lr=LR), QUADRATIC, one, clock=clock, **options)


def test_arrivals_by_client_are_those_of_the_rounds_that_were_run():
    pace = PACES["all under way"]
    whole = run(fedax.create("fedavg", lr=LR), pace)
    stopped = run(fedax.create("fedavg", lr=LR), pace, until=lambda row: row["round"] == 7)
    first = fedax.arrivals(fedax.create("fedavg", lr=LR), TASK, DATA, pace=pace, clock=CLOCK, rounds=7,
                           work=fedax.Steps(STEPS), seed=4)  # fmt: skip
    assert stopped.arrivals.tolist() == first.counts.tolist() and stopped.arrivals.sum() == 7 * pace.buffer
    assert (whole.arrivals >= stopped.arrivals).all() and whole.arrivals.sum() == ROUNDS * pace.buffer
    assert run(fedax.create("fedavg", lr=LR), pace, rounds=0).arrivals.tolist() == [0] * N
    assert run(fedax.create("fedavg", lr=LR), None, rounds=1).arrivals is None


@pytest.mark.parametrize(
    "which", mostly_long(["a buffer", "idle", "thrown away", "one at a time"], "idle", "one at a time")
)
def test_seeds_and_points_of_a_sweep_are_lanes(which, tmp_path):
    """Of a client that starts twice from one version seeds have groups at other steps."""
    name = {"idle": "scaffold", "one at a time": "ringleader"}.get(which, "fedbuff")
    options = {"rounds": ROUNDS, "work": fedax.Steps(STEPS), "clock": CLOCK, "params": START, "test": EXAMPLE}
    options |= {"pace": PACES[which], "evaluate_every": 5}

    def make(lr):
        return fedax.create(name, lr=lr)

    found = fedax.sweep(make, {"lr": [0.02, LR]}, TASK, DATA, seeds=[3, 4], **options)
    assert found.programs == 1
    for i, lr in enumerate((0.02, LR)):
        for k, seed in enumerate((3, 4)):
            alone, lane = fedax.simulate(make(lr), TASK, DATA, seed=seed, **options), found.runs[i][k]
            for column in alone.history.keys() - {"seconds"}:
                np.testing.assert_allclose(lane.history[column], alone.history[column], rtol=1e-5, atol=1e-6)
            counts = fedax.arrivals(make(lr), TASK, DATA, seed=seed, **options).counts
            assert lane.arrivals.tolist() == alone.arrivals.tolist() == counts.tolist()
            assert counts.sum() == ROUNDS * PACES[which].buffer and len({*counts}) > 1
    kept = fedax.Checkpoints(tmp_path, rounds=1)

    def killed(point, seed, row):
        if row["round"] == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedax.sweep(make, {"lr": [0.02, LR]}, TASK, DATA, seeds=[3, 4], checkpoint=kept, callback=killed, **options)
    again = fedax.sweep(make, {"lr": [0.02, LR]}, TASK, DATA, seeds=[3, 4], checkpoint=kept, **options)
    np.testing.assert_array_equal(again.runs[1][1].params, found.runs[1][1].params)
    np.testing.assert_array_equal(again.runs[1][1].arrivals, found.runs[1][1].arrivals)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavg", {"clock": None}, r"clock = None: .*clock=fedax.Clock"),
        (
            "fedavg",
            {"participation": fedax.Uniform(2)},
            r"participation = .*as the pace says",
        ),
        (
            "fedavg",
            {"pace": fedax.Async(7, start="idle")},
            r"concurrency = 7: at most all 6 clients",
        ),
        ("fedavg", {"pace": fedax.Async(9, 7)}, r"pace.buffer = 7: there are 6 clients"),
        ("fedavg", {"pace": 3}, r"pace = 3: give fedax.Async"),
        ("mime", {}, r"pace = .*Mime has several exchanges a round"),
        ("led", {}, r"participation = 'clients that answer"),
        ("scaffold-m", {}, r"pace = .*begins with all clients"),
        ("scaffold", {}, r"pace.start = 'uniform': .*Scaffold keeps"),
        ("scaffold", {"pace": fedax.Async(4, start="idle", max_staleness=3)}, r"pace.max_staleness = 3: a client of"),
        ("fedavg", {"work": fedax.Deadline(1.0)}, r"work.time = .*"),
        ("fedavg", {"privacy": fedax.DP(1.0, 1.0, 1e-3)}, r"privacy = .*with pace=… who is heard follows"),
        ("fedavg", {"secure": fedax.SecureSum()}, r"secure = .*it sums a cohort"),
        (
            "fedavg",
            {"place": fedax.Place(client_memory="host", stream=True)},
            r"pace = .*are simulated, in one process",
        ),
        ("ringleader", {}, r"pace.buffer = 2: .*Ringleader .*give 1"),
    ],
)
def test_what_cannot_be_is_refused(name, options, message):
    given = {"pace": fedax.Async(4, 2)} | options
    with pytest.raises(ConfigError, match=message):
        run(fedax.create(name), given.pop("pace"), **given)
