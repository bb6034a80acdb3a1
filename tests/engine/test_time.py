"""Simulated time: the column against a literal computation, round by round, and the same wherever a run takes place."""

import jax
import numpy as np
import pytest

import fedax
from fedax.engine import loop
from fedax.engine.history import Costs
from fedax.engine.make import make_job
from fedax.engine.places import device
from fedax.engine.timing import RoundTimes

from .. import FORMS, long, mostly_long
from .problem import COHORTS, DATA, SIZES, TASK, TAUS, TRACE, UNEQUAL, federation

STEP = np.array([0.5, 0.125, 2.0, 1.0, 0.25])
UP = np.array([8.0, 64.0, 16.0, 4.0, 32.0])
DOWN = np.array([128.0, 32.0, 64.0, 256.0, 16.0])
LATENCY = np.array([3.0, 1.0, 0.5, 2.0, 0.25])
CLOCK = fedax.Clock(step=STEP, up=UP, down=DOWN, latency=LATENCY, server=0.75)
MODEL = 16  # bytes of a model: three weights and a bias


def times(method, clock=CLOCK, **options):
    options = {"rounds": 4, "batch_size": 2, "evaluate_every": 1, "work": UNEQUAL} | options
    run = fedax.simulate(method, options.pop("task", TASK), options.pop("data", DATA), clock=clock, **options)
    return run.history["time"]


def literal(rounds, server=0.75, start=0.0):
    """Rounds are lists of exchanges, which are lists of (client, gradients, bytes down, bytes up)."""
    found = [start]
    for exchanges in rounds:
        time = found[-1]
        for clients in exchanges:
            time += max((LATENCY[i] + g * STEP[i] + d / DOWN[i] + u / UP[i] for i, g, d, u in clients), default=0.0)
        found.append(time + server)
    return found


def test_a_round_lasts_as_long_as_its_slowest_client():
    found = times(fedax.create("fedavg", lr=0.05), participation=TRACE)
    want = literal([[[(i, TAUS[i], MODEL, MODEL) for i in cohort]] for cohort in COHORTS])
    np.testing.assert_allclose(found, want, rtol=1e-14)


def test_exchanges_follow_one_another_and_the_warmup_counts():
    """FedLin: gradients of all data come first, then local steps; SCAFFOLD's warm-up asks all clients."""
    passes = -(-SIZES // 2)
    full = fedax.create("mimelite", lr=0.05)
    forms = make_job(full, TASK, DATA, rounds=1, work=UNEQUAL, batch_size=2).forms[1]
    assert len(forms) == 1
    want = literal([[[(i, TAUS[i] + passes[i], forms[0].down, forms[0].up) for i in cohort]] for cohort in COHORTS])
    np.testing.assert_allclose(times(full, participation=TRACE), want, rtol=1e-14)


def drawn(job, rounds):
    """Of each round the clients, drawn as the round draws them, and the place of the one that works alone."""

    def draw(index):
        key = loop.stage_key(job.key, index, "exchanges")
        clients, _ = loop.draw(job.hyper, job.fed, key, index, job.plan)
        return clients, loop.draw_one(clients, key)

    every = jax.tree.map(np.asarray, jax.jit(lambda: jax.lax.map(draw, np.arange(rounds, dtype=np.int32)))())
    return [jax.tree.map(lambda leaf, index=index: leaf[index], every) for index in range(rounds)]


def test_one_client_may_work_alone_while_a_condition_decides_about_gradients():
    """BVR-L-SGD: full gradients in every third round, else differences of two; then one client's local steps."""
    method = fedax.create("bvr-l-sgd", lr=0.01, period=3)
    options = {"rounds": 7, "work": UNEQUAL, "batch_size": 2, "participation": fedax.Uniform(3), "seed": 4}
    job = make_job(method, TASK, DATA, **options)
    (first, second), passes = job.forms[1], -(-SIZES // 2)
    assert second.one and not first.one and first.asked is None
    rounds = []
    for index, (clients, at) in enumerate(drawn(job, 7)):
        ids = clients.ids.tolist()
        asked = passes if index % 3 == 0 else 2 * TAUS
        one = ids[at]
        per_step = second.asked.step_batches
        rounds.append([
            [(i, asked[i], first.down, first.up) for i in ids],
            [(one, second.asked.batches + per_step * TAUS[one], second.down, second.up)],
        ])  # fmt: skip
    assert per_step >= 1
    np.testing.assert_allclose(times(method, **options), literal(rounds), rtol=1e-14)


RANDOM = fedax.RandomSteps(4, 2, 1, 9)
DRAWS = [
    (fedax.Full(), fedax.RandomEpochs(1, 3)),
    (fedax.Proportional(3), RANDOM),
    (fedax.Poisson(0.4), RANDOM),
    (fedax.Cyclic(2), fedax.GeometricSteps(3.0)),
    (fedax.Dropout(fedax.Uniform(3), 0.5), UNEQUAL),
]
ALIKE = [
    (fedax.Full(), UNEQUAL),
    (fedax.Uniform(2), fedax.Steps(3)),
    (fedax.UniformNormalized(3), fedax.Epochs(1.5)),
    (fedax.Systematic(2), RANDOM),
]


@pytest.mark.parametrize(
    ("participation", "work"), DRAWS + [pytest.param(*each, marks=long) for each in ALIKE], ids=repr
)
def test_cohorts_and_steps_are_those_of_the_rounds(participation, work):
    options = {"rounds": 70, "work": work, "batch_size": 2, "participation": participation, "seed": 2, "clock": CLOCK}
    job = make_job(fedax.create("fedavg", lr=0.01), TASK, DATA, **options)
    rounds = []
    for clients, _ in drawn(job, 70):
        there = clients.present
        rounds.append(
            [[(i, tau, MODEL, MODEL) for i, tau in zip(clients.ids[there], clients.steps[there], strict=True)]]
        )
    of_rounds, found = RoundTimes(job), [0.0]
    for index in range(0, 70, 7):
        found.append(of_rounds.after(found[-1], index, index + 7))
    np.testing.assert_allclose(found, literal(rounds)[::7], rtol=1e-13)


@pytest.mark.parametrize("name", mostly_long(fedax.available(), *FORMS, "bvr-l-sgd", "marina", "mb-storm", "scaffnew"))
def test_of_one_client_time_is_the_sum_of_the_costs(name):
    """One client waits for nobody: all that it computes and sends is on the way of the clock.

    Of the programs of the rounds only the counters are compiled.
    """
    clock = fedax.Clock(step=1.0, up=1 / 1024, down=1 / 2**20)
    options = {"rounds": 3, "batch_size": 2, "work": fedax.Steps(2), "clock": clock}
    job = make_job(fedax.create(name), TASK, federation([5], [1.0]), **options)
    given, costs, found = (job.hyper, job.fed, job.key), Costs(job.forms), RoundTimes(job)
    state = jax.eval_shape(lambda: device.prepare(*given, job.x, job.plan)[0])
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    counters = jax.jit(lambda state, index: device.one_round(*given, state, index, job.plan)[1])
    time = found.warmup()
    if job.forms[0]:
        costs.add(jax.jit(lambda: device.prepare(*given, job.x, job.plan)[1])(), 1, warmup=True)
    for index in range(3):
        assert time == int(costs.gradients) + 1024.0 * int(costs.bytes_up) + 2.0**20 * int(costs.bytes_down)
        costs.add(counters(state, index), 1, warmup=False)
        time = found.after(time, index, index + 1)
    assert time == int(costs.gradients) + 1024.0 * int(costs.bytes_up) + 2.0**20 * int(costs.bytes_down) > 0


def test_bytes_are_those_of_the_messages():
    data = federation([5], [1.0])
    clock = fedax.Clock(up=1.0, down=1 / 1024)
    for compress in (
        fedax.ErrorFeedback(fedax.TopK(0.5)),
        {"up": fedax.ErrorFeedback(fedax.QSGD(4)), "down": fedax.Cast("bfloat16")},
    ):
        options = {"data": data, "compress": compress, "work": fedax.Steps(2), "rounds": 3}
        run = fedax.simulate(fedax.create("scaffold", lr=0.01), TASK, clock=clock, evaluate_every=1, **options)
        want = run.history["bytes_up"] + 1024.0 * run.history["bytes_down"]
        assert run.history["time"].tolist() == want.tolist() and want[-1] > 0


def test_anew_means_in_each_round_and_once_means_once():
    anew = fedax.Clock(step=fedax.Exponential(1.0, anew=True))
    once = fedax.Clock(step=fedax.Exponential(1.0))
    method = fedax.create("fedavg", lr=0.01)
    lengths = np.diff(times(method, anew, work=fedax.Steps(1), rounds=6))
    assert len({*lengths.round(6)}) == 6
    lengths = np.diff(times(method, once, work=fedax.Steps(1), rounds=6))
    assert len({*lengths.round(6)}) == 1
    bound = anew.bind(make_job(method, TASK, DATA, rounds=1).census, seed=0)
    want = [max(bound.durations(r, np.arange(5), 1, 0, 0)) for r in range(6)]
    np.testing.assert_allclose(np.diff(times(method, anew, work=fedax.Steps(1), rounds=6)), want, rtol=1e-12)


def test_who_is_off_when_a_round_begins_starts_when_it_is_on_again():
    """Client 0 takes 1 s a round and is on in [0, 1.5) of every 10 s; client 1 takes 2 s and is always on."""
    data = federation([2, 2], [0.5, 0.5])
    clock = fedax.Clock(step=[1.0, 2.0], server=0.5, available=[{"on": [[0, 1.5]], "repeat": 10}, True])
    found = times(fedax.create("fedavg", lr=0.01), clock, data=data, work=fedax.Steps(1), rounds=3)
    assert found.tolist() == [0.0, 2.5, 11.5, 21.5]  # it waits from 2.5 to 10, and from 11.5 to 20
    # Of two exchanges the second does not wait: who has begun comes to the end.
    method = fedax.create("bvr-l-sgd", lr=0.01, pick="average")
    found = times(method, clock, data=data, work=fedax.Steps(1), rounds=2, batch_size=None)
    assert (
        found[1]
        == 2.0
        + 2.0 * make_job(method, TASK, data, rounds=1, work=fedax.Steps(1)).forms[1][1].asked.gradients(1, 2, None)
        + 0.5
    )


def test_a_client_that_is_off_for_good_is_named():
    clock = fedax.Clock(step=1.0, available={"3": [[0, 2]]})
    with pytest.raises(fedax.ConfigError, match="client 3 is off for good after 3 s"):
        times(fedax.create("fedavg", lr=0.01), clock, work=fedax.Steps(3))


def test_a_round_without_clients_takes_the_servers_time():
    dropout = fedax.Dropout(fedax.Trace([[0], [1], [2]]), available=[[True] * 5, [False] * 5, [True] * 5])
    found = times(fedax.create("fedavg", lr=0.05), participation=dropout, rounds=3)
    first, last = (LATENCY[i] + TAUS[i] * STEP[i] + MODEL / DOWN[i] + MODEL / UP[i] for i in (0, 2))
    np.testing.assert_allclose(np.diff(found), [first + 0.75, 0.75, last + 0.75])


OPTIONS = {"participation": fedax.Uniform(3), "rounds": 9, "work": RANDOM}


@pytest.mark.parametrize(
    "place",
    [fedax.Place(client_memory="host"), fedax.Place(stream=True), fedax.Place(chunk_size=2)],
    ids=["memory on the host", "examples on the host", "chunks"],
)
def test_the_place_does_not_change_time(place):
    found = [
        RoundTimes(make_job(fedax.create("scaffold"), TASK, DATA, clock=CLOCK, place=where, **OPTIONS))
        for where in (place, fedax.Place())
    ]
    one, other = ([each.after(0.0, 0, stop) for stop in range(10)] for each in found)
    assert one == other and np.diff(one).min() > 0


def test_lanes_of_a_sweep_have_the_times_of_their_runs():
    def make(lr, share):
        return {"algorithm": fedax.create("scaffold", lr=lr), "compress": fedax.ErrorFeedback(fedax.TopK(share))}

    clock = fedax.Clock(step=fedax.Lognormal(1.0, 1.0, anew=True), up=UP)
    grid = {"lr": [0.01, 0.05], "share": [0.25, 0.5]}
    options = OPTIONS | {"batch_size": 2, "evaluate_every": 2, "clock": clock}
    found = fedax.sweep(make, grid, TASK, DATA, seeds=[0, 3], **options)
    assert found.programs < 8
    for point, runs in zip(found.points, found.runs, strict=True):
        for seed, run in zip(found.seeds, runs, strict=True):
            made = make(**point)
            alone = fedax.simulate(made.pop("algorithm"), TASK, DATA, seed=seed, **options | made)
            assert run.history["time"].tolist() == alone.history["time"].tolist()
    ends = {run.history["time"][-1] for runs in found.runs for run in runs}
    assert len(ends) == 4  # of seeds and shares


DEADLINE = fedax.Deadline(8.0)


def managed(seconds=8.0, gradients=1, sent=1):
    """The steps that each client manages, by plain arithmetic."""
    left = seconds - LATENCY - sent * MODEL / DOWN - sent * MODEL / UP
    return np.floor(left / (gradients * STEP)).astype(int).clip(min=0)


def test_a_deadline_by_the_clock_is_what_is_left_after_transfers():
    """Client 3 needs 2 s of latency and 4 s for its upload, which leaves time for a step of 1 s; nobody is late."""
    steps = managed()
    assert steps.tolist() == [5, 50, 3, 1, 25]
    one = fedax.simulate(
        fedax.create("fedavg", lr=0.01), TASK, DATA, rounds=4, work=DEADLINE, clock=CLOCK, batch_size=2
    )
    two = fedax.simulate(
        fedax.create("fedavg", lr=0.01), TASK, DATA, rounds=4, work=fedax.Steps(steps), clock=CLOCK, batch_size=2
    )
    for name in two.history.keys() - {"seconds"}:
        assert one.history[name].tolist() == two.history[name].tolist()
    assert (np.diff(one.history["time"]) <= 8.75).all() and not one.history["left_out"].any() and not one.left_out


def test_clients_that_manage_no_step_are_left_out_counted_and_named(tmp_path):
    steps = managed(5.0)
    late = np.flatnonzero(steps == 0)
    assert late.tolist() == [0, 3]
    method, options = (
        fedax.create("scaffold", lr=0.01),
        {"work": fedax.Deadline(5.0), "participation": fedax.Uniform(3)},
    )
    options |= {"rounds": 12, "batch_size": 2, "evaluate_every": 3, "seed": 1}
    # SCAFFOLD sends two models each way.
    steps = managed(5.0, sent=2)
    late = steps == 0
    run = fedax.simulate(method, TASK, DATA, clock=CLOCK, **options)
    job = make_job(method, TASK, DATA, **options | {"work": fedax.Steps(1)})
    counts, rounds, kept = np.zeros(5, int), [0.0], []
    for clients, _ in drawn(job, 12):
        ids = clients.ids
        counts[ids] += late[ids]
        there = [i for i in ids if not late[i]]
        kept.append(there)
        lasting = literal([[[(i, steps[i], 2 * MODEL, 2 * MODEL) for i in there]]], server=0.0)[1]
        rounds.append(rounds[-1] + (max(lasting, 5.0) if late[ids].any() else lasting) + 0.75)
    np.testing.assert_allclose(run.history["time"], rounds[::3], rtol=1e-13)
    assert (
        run.history["left_out"][-1] == counts.sum() > 0
        and run.history["bad_clients"][-1] == np.flatnonzero(late).tolist()
    )
    assert run.left_out == {int(i): int(n) for i, n in enumerate(counts) if n}
    assert run.history["skipped"][-1] == sum(not there for there in kept)
    assert run.history["clients"][-1] == sum(map(len, kept))

    def kill(row):
        if row["round"] == 6:
            raise Killed

    with pytest.raises(Killed):
        fedax.simulate(
            method, TASK, DATA, clock=CLOCK, callback=kill, checkpoint=fedax.Checkpoints(tmp_path, rounds=1), **options
        )
    again = fedax.simulate(method, TASK, DATA, clock=CLOCK, checkpoint=fedax.Checkpoints(tmp_path, rounds=1), **options)
    for name in run.history.keys() - {"seconds"}:
        assert run.history[name].tolist() == again.history[name].tolist(), name
    with pytest.raises(fedax.CheckpointError, match=r"work\.time was 5\.0, is 6\.0"):
        fedax.simulate(method, TASK, DATA, clock=CLOCK, checkpoint=tmp_path, **options | {"work": fedax.Deadline(6.0)})


def test_a_run_goes_on_in_which_nobody_missed_its_deadline(tmp_path):
    assert (managed(50.0) > 0).all()
    options = {"batch_size": 2, "work": fedax.Deadline(50.0), "clock": CLOCK}
    whole = fedax.simulate(fedax.create("fedavg", lr=0.01), TASK, DATA, rounds=4, **options)
    fedax.simulate(fedax.create("fedavg", lr=0.01), TASK, DATA, rounds=2, checkpoint=tmp_path, **options)
    again = fedax.simulate(fedax.create("fedavg", lr=0.01), TASK, DATA, rounds=4, checkpoint=tmp_path, **options)
    for name in whole.history.keys() - {"seconds"}:
        assert whole.history[name].tolist() == again.history[name].tolist(), name

    def stop(point, seed, row):
        if row["round"] == 2:
            raise Killed

    def swept(callback=None):
        kept = fedax.Checkpoints(tmp_path / "sweep", rounds=1)
        more = options | {"rounds": 4, "callback": callback, "checkpoint": kept}
        return fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.01, 0.02]}, TASK, DATA, **more)

    with pytest.raises(Killed):
        swept(stop)
    assert swept().runs[0][0].history["time"].tolist() == whole.history["time"].tolist()


def test_a_deadline_is_judged_by_the_draw_of_the_round(tmp_path):
    """Speeds and latencies are other ones in each round; who manages no step is late in it alone."""
    clock = fedax.Clock(
        step=fedax.Lognormal(1.0, 0.7, anew=True), up=UP, latency=fedax.UniformBetween(0.1, 2.5, anew=True), server=0.75
    )
    options = {"rounds": 9, "batch_size": 2, "evaluate_every": 1, "seed": 3}
    options |= {"work": fedax.Deadline(3.0), "participation": fedax.Uniform(3)}
    method = fedax.create("fedavg", lr=0.01)
    run = fedax.simulate(method, TASK, DATA, clock=clock, **options)
    job = make_job(method, TASK, DATA, **options | {"work": fedax.Steps(1)})
    bound = clock.bind(job.census, 3)
    counts, expected, steps = np.zeros(5, int), [0.0], [0]
    for index, (clients, _) in enumerate(drawn(job, 9)):
        ids = clients.ids
        fixed, step = bound.durations(index, ids, 0, MODEL, MODEL), bound.of("step", index, ids)
        taken = np.floor((3.0 - fixed) / step).astype(int).clip(min=0)
        lasting = np.where(taken > 0, fixed + taken * step, 0).max()
        counts[ids] += taken == 0
        expected.append(expected[-1] + (max(lasting, 3.0) if (taken == 0).any() else lasting) + 0.75)
        steps.append(steps[-1] + taken.sum())
    np.testing.assert_allclose(run.history["time"], expected, rtol=1e-13)
    assert run.history["local_steps"].tolist() == steps
    assert 0 < counts.sum() == run.history["left_out"][-1] and 0 < sum(counts > 0) < sum(counts) < 27
    assert run.left_out == {int(i): int(n) for i, n in enumerate(counts) if n}
    kept = fedax.Checkpoints(tmp_path, rounds=1)

    def kill(row):
        if row["round"] == 5:
            raise Killed

    with pytest.raises(Killed):
        fedax.simulate(method, TASK, DATA, clock=clock, callback=kill, checkpoint=kept, **options)
    with pytest.raises(fedax.CheckpointError, match=r"work\.rounds was 9, is 12"):
        fedax.simulate(method, TASK, DATA, clock=clock, checkpoint=kept, **options | {"rounds": 12})
    again = fedax.simulate(method, TASK, DATA, clock=clock, checkpoint=kept, **options)
    np.testing.assert_array_equal(again.params["w"], run.params["w"])
    assert again.left_out == run.left_out and again.history["time"].tolist() == run.history["time"].tolist()
    hint = "without rounds there is no draw of a round"
    with pytest.raises(fedax.ConfigError, match=hint):
        fedax.simulate(method, TASK, DATA, clock=clock, pace=fedax.Async(2), rounds=2, work=fedax.Deadline(3.0))


@pytest.mark.parametrize("anew", mostly_long([False, True], True))
def test_each_seed_of_a_sweep_has_its_own_speeds_and_deadlines(anew):
    clock = fedax.Clock(step=fedax.Lognormal(1.0, 1.0, anew=anew))
    options = {"rounds": 3, "batch_size": 2, "work": fedax.Deadline(2.0), "clock": clock}
    found = fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.01, 0.02]}, TASK, DATA, seeds=2, **options)
    for point, runs in zip(found.points, found.runs, strict=True):
        for seed, run in enumerate(runs):
            alone = fedax.simulate(fedax.create("fedavg", **point), TASK, DATA, seed=seed, **options)
            for name in ("time", "local_steps"):
                assert run.history[name].tolist() == alone.history[name].tolist()
    assert found.runs[0][0].history["local_steps"][-1] != found.runs[0][1].history["local_steps"][-1]


@pytest.mark.parametrize(
    ("work", "clock", "method", "words"),
    [
        (DEADLINE, None, "fedavg", "give local steps a second"),
        (DEADLINE, fedax.Clock(), "fedavg", "a local step takes no time by the clock"),
        (DEADLINE, fedax.Clock(step=fedax.Lognormal(99.0, 0.1, anew=True)), "fedavg", "no client would finish a step"),
        (DEADLINE, fedax.Clock(step=1.0, available={"0": [[0, 9]]}), "fedavg", "a clock with periods does not tell"),
        (DEADLINE, fedax.Clock(step=9.0), "fedavg", "no client would finish a step"),
        (DEADLINE, fedax.Clock(step=1e-12), "fedavg", "takes at most"),
        (DEADLINE, CLOCK, "bvr-l-sgd", "not all clients do the same"),
    ],
)
def test_a_clock_that_does_not_tell_the_steps_is_refused(work, clock, method, words):
    with pytest.raises(fedax.ConfigError, match=words):
        fedax.simulate(fedax.create(method), TASK, DATA, rounds=2, batch_size=2, work=work, clock=clock)


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_run_that_goes_on_has_the_same_times(at, tmp_path):
    def kill(row):
        if row["round"] == at:
            raise Killed

    method = fedax.create("scaffold", lr=0.05)
    clock = fedax.Clock(
        step=fedax.Lognormal(0.1, 1.0, anew=True), up=UP, available={"2": {"on": [[0, 3]], "repeat": 7}}
    )
    options = OPTIONS | {"checkpoint": fedax.Checkpoints(tmp_path, rounds=2)}
    with pytest.raises(Killed):
        times(method, clock, callback=kill, **options)
    assert times(method, clock, **options).tolist() == times(method, clock, **OPTIONS).tolist()


def test_a_checkpoint_of_another_clock_is_refused(tmp_path):
    method = fedax.create("fedavg", lr=0.05)
    times(method, checkpoint=tmp_path)
    for other, words in (
        (fedax.Clock(step=STEP, up=UP, down=DOWN, latency=LATENCY, server=1.0), "clock.server was 0.75, is 1.0"),
        (fedax.Clock(step=2 * STEP, up=UP, down=DOWN, latency=LATENCY, server=0.75), "clock.step was "),
        (None, "clock was Clock, is None"),
    ):
        with pytest.raises(fedax.CheckpointError, match=words):
            fedax.simulate(method, TASK, DATA, rounds=4, batch_size=2, work=UNEQUAL, clock=other, checkpoint=tmp_path)


def test_without_a_clock_there_is_no_time():
    run = fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=2)
    assert "time" not in run.history
    with pytest.raises(fedax.ConfigError, match=r"give clock=fedax\.Clock"):
        run.plot("time")
    with pytest.raises(fedax.ConfigError, match=r"give fedax\.Clock"):
        fedax.simulate(fedax.create("fedavg"), TASK, DATA, rounds=2, clock=1.0)


def test_a_clock_changes_nothing_else():
    method = fedax.create("scaffold", lr=0.05)
    options = OPTIONS | {"batch_size": 2}
    one = fedax.simulate(method, TASK, DATA, **options)
    other = fedax.simulate(method, TASK, DATA, clock=CLOCK, **options)
    assert {*other.history} - {*one.history} == {"time"}
    for name in {*one.history} - {"seconds"}:
        assert one.history[name].tolist() == other.history[name].tolist()
    assert all(map(np.array_equal, jax.tree.leaves(one.params), jax.tree.leaves(other.params)))
    label = other.plot("time").axes[0].get_xlabel()
    assert label.startswith("Clock time")


def test_time_of_a_private_run_is_not_public():
    data = DATA.with_weights(np.full(5, 0.2))
    dp = fedax.DP(clip=1.0, noise=4.0, delta=1e-3)
    run = fedax.simulate(fedax.create("fedavg", lr=0.1), TASK, data, rounds=4, privacy=dp, clock=CLOCK)
    assert "time" in run.history and "time" not in run.public().history


class Adaptive(fedax.Algorithm):
    """A method whose clients ask for more where the model is large: no clock can know that beforehand."""

    def traits(self):
        return fedax.Traits("Adaptive", "nobody")

    def init(self, x):
        return x

    def init_client(self, x):
        return ()

    def client(self, download, memory, oracle):
        large = download.dot(download) > 1.0
        return oracle.cond(large, oracle.full_grad, lambda x: oracle.grad(x), download), memory

    def server(self, server, mean, round):
        return server - 0.1 * mean


def test_a_method_that_decides_by_values_is_refused():
    options = {"rounds": 2, "batch_size": 2, "work": fedax.Steps(1)}
    fedax.simulate(Adaptive(), TASK, DATA, **options)
    with pytest.raises(fedax.ConfigError, match="Adaptive asks for a gradient depends"):
        fedax.simulate(Adaptive(), TASK, DATA, clock=CLOCK, **options)


def test_a_clock_compiles_a_draw_and_no_round(compilations):
    run = lambda **more: fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, **OPTIONS, batch_size=2, **more)  # noqa: E731
    run()
    compilations()
    run(clock=CLOCK)
    found = compilations()
    run(clock=fedax.Clock(step=2.0), seed=3)
    assert found <= 2 and compilations() == 0


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedavg", {"privacy": fedax.DP(clip=1.0, noise=1.0, delta=1e-3)}, r"work\.time = 0.5: client 0 misses it, "),
        ("part", {}, r"work\.time = 0.5: how many gradients a client needs is decided .*PersonalPart"),
    ],
)
def test_a_deadline_that_a_run_cannot_have_is_refused_for_its_own_reason(method, options, message):
    data = fedax.FederatedData({"x": np.ones((4, 3), np.float32), "y": np.array([0, 1, 0, 1])}, [2, 2])
    task, one = fedax.tasks.softmax_regression(3, 2), fedax.create("fedavg", lr=0.1)
    method = fedax.PersonalPart(one, "b") if method == "part" else one
    given = {"work": fedax.Deadline(0.5), "clock": fedax.Clock(step=[1.0, 0.1])} | options
    with pytest.raises(fedax.ConfigError, match=message):
        fedax.simulate(method, task, data, rounds=2, **given)
