"""Servers that do not wait: where they end on quadratics, and how fast they are.

    python benchmarks/asynchronous.py objective     # the table of docs/asynchronous.md, minutes
    python benchmarks/asynchronous.py speed          # rounds a second beside synchronous ones, in turn

``objective``: 20 clients with F_i(x) = ½‖x − c_i‖², of which the slow ones have other centres; FedAvg with one full
gradient a client, float64, small steps. Distances of the mean model of the second half of a run from the optimum of F.
"""

import dataclasses
import sys
import time

import jax
import numpy as np

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


def objective() -> None:
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    clock = fedax.Clock(step=np.sort(rng.lognormal(0, 1.2, size=N)))
    centres = rng.normal(size=(N, D)) + np.linspace(-3, 3, N)[:, None]
    data = fedax.FederatedData({"H": np.tile(np.eye(D), (N, 1, 1)), "e": centres}, [1] * N)
    some = {"H": np.eye(D)[None], "e": centres[:1]}
    task = fedax.tasks.quadratic(D).with_metrics(**{f"x{k}": component(k) for k in range(D)})
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


def speed() -> None:
    for width, shorter in ((10, 1), (100, 8)):
        beside_synchronous(width, shorter)


def beside_synchronous(width: int, shorter: int) -> None:
    """Rounds of K = ``width`` answers; the times of M = 10 K beside those of synchronous ones, in turn."""
    rng = np.random.default_rng(0)
    clients, features = 100 * width, 200
    examples = {"x": rng.normal(size=(clients * 30, features)).astype(np.float32)}
    examples["y"] = rng.integers(0, 10, clients * 30)
    data = fedax.FederatedData(examples, [30] * clients)
    clock = fedax.Clock(step=rng.lognormal(0, 1, clients))
    cases = {
        "softmax": (fedax.tasks.softmax_regression(features, 10), 3000 // shorter),
        "mlp": (fedax.tasks.mlp(features, 10, hidden=(128,)), 600 // shorter),
    }
    runs = {
        "synchronous": {"participation": fedax.Uniform(width)},
        "with a clock": {"participation": fedax.Uniform(width), "clock": clock},
        "any client, M = 10 K": {"pace": fedax.Async(10 * width, width), "clock": clock},
        "idle ones, M = 10 K": {"pace": fedax.Async(10 * width, width, start="idle"), "clock": clock},
    }
    for case, (task, rounds) in cases.items():
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(6):
            for name, options in runs.items():
                began = time.perf_counter(), time.process_time()
                fedax.simulate(
                    fedax.create("fedavg", lr=0.01), task, data, rounds=rounds, work=fedax.Steps(5), batch_size=10,
                    evaluate_every=rounds, **options,
                )  # fmt: skip
                taken[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
        median = {name: np.median(each[1:], axis=0) for name, each in taken.items()}  # the first compiles
        for name, (seconds, work) in median.items():
            wall, cpu = median[name] / median["synchronous"]
            print(
                f"K = {width}, {case}, {name}: {rounds / seconds:.0f} rounds a second, {wall:.2f} × the synchronous "
                f"time, {cpu:.2f} × its {1000 * work / cpu / rounds:.3f} ms of the processor's",
                flush=True,
            )


if __name__ == "__main__":
    {"objective": objective, "speed": speed}[sys.argv[1]]()
