"""Servers that do not wait: where they end on quadratics, how fast they are, and momentum that adds up late updates.

    python benchmarks/asynchronous.py objective     # a table of docs/results/theory.md, minutes
    python benchmarks/asynchronous.py work          # the table of random work there, minutes
    python benchmarks/asynchronous.py speed          # what a step takes beside a synchronous round, in turn
    python benchmarks/asynchronous.py toy            # the last tables of docs/study/time.md, ten minutes

``objective``: 20 clients with F_i(x) = ½‖x − c_i‖², of which the slow ones have other centres; FedAvg with one full
gradient a client, float64, small steps. Distances of the mean model of the second half of a run from the optimum of F.

``toy``: the toy of google-deepmind/asyncdiloco (Liu et al. 2024), from its description, with fewer features and units.
"""

import dataclasses
import sys
import time
import warnings

import jax
import numpy as np
import optax

import fedax

N, D, LR, ROUNDS = 20, 4, 0.002, 40_000
PACES = {
    "any client, 8 under way, steps of 4": fedax.Async(8, 4),
    "the same, late ones for less": fedax.Async(8, 4, fedax.PolynomialStaleness(0.5)),
    "the same, by a hinge": fedax.Async(8, 4, fedax.HingeStaleness(1.0, 1)),
    "10 of those not under way": fedax.Async(10, 4, start="idle"),
    "10 of those not under way, late ones for less": fedax.Async(10, 4, fedax.PolynomialStaleness(0.5), start="idle"),
    "all under way": fedax.Async(20, 4, start="idle"),
    "all under way, late ones for less": fedax.Async(20, 4, fedax.PolynomialStaleness(0.5), start="idle"),
    "all under way, each answer a step": fedax.Async(20, 1, start="idle"),
    "all under way, a grace of a second": fedax.Async(20, 1, grace=1.0, start="idle"),
    "all under way, none later than 30": fedax.Async(20, 1, start="idle", max_staleness=30),
}


def component(k):
    return lambda x, batch: x[k] + 0 * batch["e"][:, 0]


def quadratics() -> tuple[fedax.Clock, np.ndarray, fedax.FederatedData, dict[str, np.ndarray], fedax.Task]:
    """The clock, the clients' optima, their data, an example, and a task whose metrics are the model's components."""
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    clock = fedax.Clock(step=np.sort(rng.lognormal(0, 1.2, size=N)))
    centres = rng.normal(size=(N, D)) + np.linspace(-3, 3, N)[:, None]
    data = fedax.FederatedData({"H": np.tile(np.eye(D), (N, 1, 1)), "e": centres}, [1] * N)
    some = {"H": np.eye(D)[None], "e": centres[:1]}
    task = fedax.tasks.quadratic(D).with_metrics(**{f"x{k}": component(k) for k in range(D)})
    return clock, centres, data, some, task


def objective() -> None:
    clock, centres, data, some, task = quadratics()
    method, star = fedax.create("fedavg", lr=LR), centres.mean(axis=0)

    def end(pace: fedax.Async) -> np.ndarray:
        run = fedax.simulate(
            method, task, data, rounds=ROUNDS, work=fedax.Steps(1), clock=clock, pace=pace, params=star, test=some,
            evaluate_every=20,
        )  # fmt: skip
        half = len(run.history["round"]) // 2
        return np.array([run.history[f"test_x{k}"][half:].mean() for k in range(D)])

    print("| who starts | χ² | found | predicted | from the predicted point | with corrected weights |")
    print("|---|---|---|---|---|---|")
    for name, pace in PACES.items():
        found = fedax.arrivals(method, task, data, pace=pace, clock=clock, rounds=ROUNDS, work=fedax.Steps(1))
        predicted, x = found.q @ centres, end(pace)
        try:
            back = f"{np.linalg.norm(end(dataclasses.replace(pace, weights='corrected')) - star):.4f}"
        except fedax.ConfigError:
            back = "some are never heard"
        figures = [np.linalg.norm(each) for each in (x - star, predicted - star, x - predicted)]
        print(f"| {name} | {found.chi_square:.3f} | {figures[0]:.3f} | {figures[1]:.3f} | {figures[2]:.4f} | {back} |")


def work() -> None:
    """Random work: an answer with more steps comes later, so its staleness and its length go together."""
    clock, centres, data, some, task = quadratics()
    method, star = fedax.create("fedavg", lr=LR / 5), centres.mean(axis=0)
    print("| who starts | found | predicted | from the predicted point |")
    print("|---|---|---|---|")
    for name, pace in PACES.items():
        if pace.staleness is None:
            continue
        given = {"work": fedax.RandomSteps(5, 4, 1, 9), "clock": clock, "pace": pace}
        run = fedax.simulate(
            method, task, data, rounds=ROUNDS // 5, params=star, test=some, evaluate_every=20, **given
        )  # fmt: skip
        half = len(run.history["round"]) // 2
        x = np.array([run.history[f"test_x{k}"][half:].mean() for k in range(D)])
        predicted = fedax.theory.diagnose(method, task, data, **given).weights @ centres
        figures = [np.linalg.norm(each) for each in (x - star, predicted - star, x - predicted)]
        print(f"| {name} | {figures[0]:.3f} | {figures[1]:.3f} | {figures[2]:.3f} |")


def speed() -> None:
    for width, shorter in ((10, 1), (100, 4)):
        beside_synchronous(width, shorter)


def beside_synchronous(width: int, shorter: int) -> None:
    """What a step of K = ``width`` answers takes, with M = 10 K, beside a synchronous round, in turn.

    A step is the difference of two runs, of R and of 3 R steps: what a run takes once, as the first M clients, is in
    neither. Beside it stands how much longer than a synchronous run it takes in all for that.
    """
    rng = np.random.default_rng(0)
    clients, features = 100 * width, 200
    examples = {"x": rng.normal(size=(clients * 30, features)).astype(np.float32)}
    examples["y"] = rng.integers(0, 10, clients * 30)
    data = fedax.FederatedData(examples, [30] * clients)
    clock = fedax.Clock(step=rng.lognormal(0, 1, clients))
    cases = {
        "softmax": (fedax.tasks.softmax_regression(features, 10), 2400 // shorter),
        "mlp": (fedax.tasks.mlp(features, 10, hidden=(128,)), 800 // shorter),
    }
    runs = {
        "synchronous": {"participation": fedax.Uniform(width)},
        "with a clock": {"participation": fedax.Uniform(width), "clock": clock},
        "any client, M = 10 K": {"pace": fedax.Async(10 * width, width), "clock": clock},
        "idle ones, M = 10 K": {"pace": fedax.Async(10 * width, width, start="idle"), "clock": clock},
    }
    for case, (task, rounds) in cases.items():
        steps, once = (np.zeros((len(runs), 7, 2)) for _ in range(2))  # seconds, and those of the processor
        for turn in range(7):
            for which, options in enumerate(runs.values()):
                taken = []
                for count in (rounds, 3 * rounds):
                    began = time.perf_counter(), time.process_time()
                    fedax.simulate(
                        fedax.create("fedavg", lr=0.01), task, data, rounds=count, work=fedax.Steps(5), batch_size=10,
                        evaluate_every=count, **options,
                    )  # fmt: skip
                    taken.append(np.subtract((time.perf_counter(), time.process_time()), began))
                steps[which, turn] = (taken[1] - taken[0]) / (2 * rounds)
                once[which, turn] = taken[0] - steps[which, turn] * rounds
        ratios, once = (steps / steps[0])[:, 1:], once[:, 1:, 0]  # the first turn compiles
        for which, name in enumerate(runs):
            (low, wall, high), cpu = np.quantile(ratios[which, :, 0], [0.25, 0.5, 0.75]), np.median(ratios[which, :, 1])
            print(
                f"K = {width}, {case}, {name}: {1000 * np.median(steps[which, 1:, 0]):.3f} ms a step, {wall:.2f} "
                f"({low:.2f} to {high:.2f}) × a synchronous round, {cpu:.2f} × its processor time; once "
                f"{1000 * np.median(once[which] - once[0]):.0f} ms more",
                flush=True,
            )


FEATURES, CLASSES, CLUSTERS, WORKERS, LOCAL = 128, 4, 8, 4, 20
SECONDS = [0.58, 0.75, 1.51, 3.33]  # of a local step of each worker
AWAITED, NOT_AWAITED = None, fedax.Async(WORKERS, grace=0.5, start="idle")
OUTER = {  # momentum, ``every``, the pace
    "waits, no momentum": (0.0, 1, AWAITED),
    "waits, Nesterov": (0.9, 1, AWAITED),
    "does not wait, no momentum": (0.0, 1, NOT_AWAITED),
    "does not wait, Nesterov": (0.9, 1, NOT_AWAITED),
    "does not wait, Nesterov on the mean of four": (0.9, 1, fedax.Async(WORKERS, WORKERS, grace=0.5, start="idle")),
    "does not wait, delayed Nesterov": (0.9, WORKERS, NOT_AWAITED),
}
GRID = {"lr": [2e-3, 6e-3, 2e-2], "server_lr": [0.07, 0.22, 0.7]}  # it grows while the best is at an edge
GROWTH = 10**0.5
PRINTED = {"waits, Nesterov": 0.7, "does not wait, Nesterov": 0.07 / WORKERS**0.5}  # it divides updates by the root
PRINTED_INNER = 2e-4
ANSWERS = 400  # of all workers together, 8,000 local steps


def mixture(points: int, seed: int) -> dict[str, np.ndarray]:
    """Gaussians of width 0.5 around 32 directions; each class has eight of them."""
    directions = np.random.default_rng(0).normal(size=(CLASSES * CLUSTERS, FEATURES))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(directions), points)
    x = directions[which] + 0.5 * rng.normal(size=(points, FEATURES))
    return {"x": x.astype(np.float32), "y": which // CLUSTERS}


def toy() -> None:
    data = fedax.FederatedData(mixture(32_768, 1), [32_768 // WORKERS] * WORKERS)
    val, test = mixture(8192, 2), mixture(8192, 3)
    task, clock = fedax.tasks.mlp(FEATURES, CLASSES, hidden=(128,)), fedax.Clock(step=SECONDS)

    def runs(name: str, grid: dict[str, list[float]], seeds: list[int], often: int = 1) -> fedax.Sweep:
        beta, every, pace = OUTER[name]
        rounds = ANSWERS // WORKERS if pace is None or pace.buffer == WORKERS else ANSWERS

        def make(lr: float, server_lr: float) -> fedax.Algorithm:
            adam = fedax.Optax(optax.adamw, learning_rate=lr, weight_decay=1e-3)
            return fedax.create("delayed-nesterov", solver=adam, server_lr=server_lr, server_momentum=beta, every=every)

        options = {} if pace is None else {"pace": pace}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fedax.DivergedWarning)
            return fedax.sweep(
                make, grid, task, data, rounds=rounds, work=fedax.Steps(LOCAL), batch_size=32, clock=clock, seeds=seeds,
                val=val, test=test, evaluate_every=rounds // often, **options,
            )  # fmt: skip

    def row(name: str, lr: float, server_lr: float) -> str:
        (five,) = runs(name, {"lr": [lr], "server_lr": [server_lr]}, [*range(5)], often=10).runs
        history = [run.history for run in five]
        seconds = ANSWERS * LOCAL / sum(1 / second for second in SECONDS)  # in which those that do not wait are done
        early = [h["test_loss"][np.searchsorted(h["time"], 1.05 * seconds) - 1] for h in history]
        ends = [np.array([h[name][-1] for h in history]) for name in ("test_loss", "test_accuracy")]
        losses = [f"{np.mean(each):.3f} ± {np.std(each, ddof=1):.3f}" for each in (ends[0], early)]
        return f"| {name} | {lr:g}, {server_lr:g} | {losses[0]} | {100 * ends[1].mean():.1f} % | {losses[1]} |"

    def best(name: str) -> dict[str, float]:
        grid, table = GRID, []
        while grid:
            table += runs(name, grid, [1000, 1001]).table("val_loss")
            table.sort(key=lambda row: (row["failed"] > 0, row["mean"]))
            grid = {}
            for axis in GRID:
                values, chosen = sorted({row[axis] for row in table}), table[0][axis]
                if chosen in (values[0], values[-1]):
                    beyond = chosen * GROWTH if chosen == values[-1] else chosen / GROWTH
                    others = {other: sorted({row[other] for row in table}) for other in GRID}
                    grid = others | {axis: [float(f"{beyond:.2g}")]}
                    break
        return {axis: table[0][axis] for axis in GRID}

    head = "| the server | inner and outer lr | loss after 8,000 steps | accuracy | loss after 1,990 s |"
    head += "\n|---|---|---|---|---|"
    print(head)
    for name in OUTER:
        print(row(name, **best(name)), flush=True)
    print(f"\n{head}")
    for name, server_lr in PRINTED.items():
        print(row(name, PRINTED_INNER, server_lr), flush=True)


if __name__ == "__main__":
    {"objective": objective, "work": work, "speed": speed, "toy": toy}[sys.argv[1]]()
