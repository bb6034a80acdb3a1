"""What draws, rounds and client memory cost from 10⁵ clients to 10⁸, and the laws that fit. See README.md."""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

Piece = dict[str, Any]

DRAWS: list[Piece] = [
    {"draw": kind, "clients": clients, "cohort": 10**4}
    for clients in (10**6, 10**7, 10**8)
    for kind in ("Uniform", "Cyclic", "Proportional", "Systematic", "Poisson")
]
ROUNDS: list[Piece] = [
    {"method": method, "clients": clients, "cohort": cohort, "parameters": parameters, "memory": memory}
    for clients, cohort, parameters in (
        (10**6, 100, 10**3),
        (10**6, 10**4, 10**3),
        (10**7, 10**4, 10**4),
        (10**6, 10**4, 10**4),
        (10**7, 100, 10**3),
    )
    for method, memory in (("fedavg", "auto"), ("scaffold", "file"), ("scaffold", "host"))
    if memory != "host" or clients * parameters < 10**11  # numbers; more cannot be had of the system
]
ROUNDS += [
    {"method": "scaffold", "clients": clients, "cohort": cohort, "parameters": parameters, "memory": "device"}
    for clients, cohort, parameters in (
        (10**4, 100, 10**3),
        (10**4, 10**4, 10**3),
        (10**4, 10**4, 10**4),
        (10**4, 100, 10**4),
        (10**5, 10**4, 10**3),
        (10**5, 100, 10**3),
    )
]
LARGEST: list[Piece] = [  # these are predicted by what was fitted to the others
    {"method": "fedavg", "clients": 10**8, "cohort": 10**4, "parameters": 10**3, "memory": "auto"},
    {"method": "scaffold", "clients": 10**8, "cohort": 10**4, "parameters": 10**3, "memory": "file"},
]


def draw(piece: Piece, repeats: int) -> Piece:
    import jax
    import jax.numpy as jnp

    import fedax

    clients, cohort = piece["clients"], piece["cohort"]
    given = {"Cyclic": clients // cohort, "Poisson": cohort / clients}.get(piece["draw"], cohort)
    p = np.full(clients, 1 / clients)
    begun = time.process_time()
    participation = getattr(fedax, piece["draw"])(given).bind(p)
    bound = time.process_time() - begun
    weights = jnp.asarray(p, jnp.float32)
    step = jax.jit(lambda participation, key, p, index: participation.draw(key, p, index))
    seconds = []
    for index in range(repeats + 1):  # the first one compiles
        begun = time.process_time()
        jax.block_until_ready(step(participation, jax.random.key(index), weights, index))
        seconds.append(time.process_time() - begun)
    return {"bind": bound, "seconds": seconds[1:]}


def rounds(piece: Piece, repeats: int) -> Piece:
    import types

    import jax.numpy as jnp

    import fedax
    from fedax.engine import drive
    from fedax.engine.memory import ClientMemory

    setattr(drive, "time", types.SimpleNamespace(perf_counter=time.process_time))  # noqa: B010  "seconds" are the CPU's
    clients, cohort, parameters = piece["clients"], piece["cohort"], piece["parameters"]
    number = 5 if cohort > 100 else 50
    task = fedax.Task(  # whose evaluation takes little, so that all examples can be evaluated
        init=lambda key: {"w": jnp.zeros(parameters)},
        loss=lambda params, batch, key: 0.5 * (params["w"][0] - batch["x"]) ** 2,
    )
    x = np.random.default_rng(0).random(clients, dtype=np.float32)
    data, seconds, rows = fedax.FederatedData({"x": x}, np.ones(clients, np.int32)), [], 0
    for seed in range(repeats):
        run = fedax.simulate(
            fedax.create(piece["method"], lr=0.1),
            task,
            data,
            rounds=number,
            work=fedax.Steps(1),
            batch_size=1,
            participation=fedax.Uniform(cohort),
            evaluate_every=number,
            seed=seed,
            place=fedax.Place(client_memory=piece["memory"]),
        )
        seconds.append(run.history["seconds"][-1] / number)
        rows = len(run.memory.kept()[0]) if isinstance(run.memory, ClientMemory) else 0
        del run
    return {"seconds": seconds, "rows": rows, "rounds": number}


def measured(path: pathlib.Path) -> list[Piece]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def fit(rows: list[Piece]) -> tuple[dict[str, float], float]:
    """CPU seconds a round = Σ coefficient · term, none below 0, by least relative squares; the largest error."""
    from scipy.optimize import nnls

    terms = np.array([law_terms(row) for row in rows])
    seconds = np.array([np.median(row["seconds"]) for row in rows])
    found, _ = nnls(terms / seconds[:, None], np.ones(len(rows)))
    return dict(zip(TERMS, found.tolist(), strict=True)), float(np.max(np.abs(terms @ found / seconds - 1)))


TERMS = ("1", "S", "S·d", "N")


def law_terms(row: Piece) -> list[float]:
    return [1, row["cohort"], row["cohort"] * row["parameters"], row["clients"]]


def kind(row: Piece) -> str:
    return row["method"] + ("" if row["method"] == "fedavg" else f", {row['memory']}")


def show(all_: list[Piece]) -> None:
    print("| participation | clients | CPU s once | CPU ms a draw, median | lowest to highest | GiB more |")
    print("|---|---|---|---|---|---|")
    for row in all_:
        if "draw" in row:
            ms = np.array(row["seconds"]) * 1e3
            print(
                f"| {row['draw']} | {row['clients']:,} | {row['bind']:.2f} | {np.median(ms):.2f} "
                f"| {ms.min():.2f} to {ms.max():.2f} | {(row['peak'] - row['base']) / 2**30:.2f} |"
            )
    print("\n| method | clients | cohort | parameters | CPU ms a round, median | lowest to highest | peak GiB | rows |")
    print("|---|---|---|---|---|---|---|---|")
    some = [row for row in all_ if "method" in row]
    for row in some:
        ms = np.array(row["seconds"]) * 1e3
        print(
            f"| {kind(row)} | {row['clients']:,} | {row['cohort']:,} | {row['parameters']:,} | {np.median(ms):.1f} "
            f"| {ms.min():.1f} to {ms.max():.1f} | {row['peak'] / 2**30:.2f} | {row['rows']:,} |"
        )
    print("\n| law of | " + " | ".join(f"CPU s for each {term}" for term in TERMS) + " | largest relative error |")
    print("|---|---|---|---|---|---|")
    laws = {}
    for name in dict.fromkeys(map(kind, some)):
        known = [row for row in some if kind(row) == name and row["clients"] < 10**8]
        if len(known) > len(TERMS):
            laws[name], worst = fit(known)
            print(f"| {name} | " + " | ".join(f"{value:.2e}" for value in laws[name].values()) + f" | {worst:.2f} |")
    for row in some:
        if row["clients"] == 10**8 and kind(row) in laws:
            expected = sum(value * term for value, term in zip(laws[kind(row)].values(), law_terms(row), strict=True))
            print(
                f"\n{kind(row)}, 10⁸ clients: {np.median(row['seconds']):.3f} CPU s measured, {expected:.3f} by the law"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("scale.jsonl"), help="results, a line each")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--largest", action="store_true", help="measure with 10⁸ clients, too")
    parser.add_argument("--show", action="store_true", help="only print the tables of what is there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        piece = json.loads(options.one)
        import fedax  # noqa: F401  what it takes belongs to the base

        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        result = (draw if "draw" in piece else rounds)(piece, options.repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(piece | result | {"base": base, "peak": peak}))
        return
    known = [{key: row[key] for key in row.keys() & {*DRAWS[0], *ROUNDS[0]}} for row in measured(options.out)]
    for piece in [] if options.show else [*ROUNDS, *(LARGEST if options.largest else []), *DRAWS]:
        if piece in known:
            continue
        command = [sys.executable, __file__, "--one", json.dumps(piece), "--repeats", str(options.repeats)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with open(options.out, "a") as file:
            file.write(out.splitlines()[-1] + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(piece, flush=True)
    show(measured(options.out))


if __name__ == "__main__":
    main()
