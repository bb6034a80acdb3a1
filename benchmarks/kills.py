"""Runs that are killed at random moments and resumed, compared with uninterrupted runs. See README.md."""

import argparse
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

# One with client memory, one with two exchanges, one adaptive; each with two places for client memory or examples.
CASES = {
    "scaffold": ({"client_memory": "device"}, {"client_memory": "host"}),
    "mime": ({"stream": False}, {"stream": True}),
    "fedadam": ({"stream": False}, {"stream": True}),
    # Side by side: the seeds of one point, on a core each, and points with seeds, in batches.
    "sweep": ({"lr": [0.05], "seeds": 3}, {"lr": [0.05, 0.1, 0.02], "steps": [2, 3], "seeds": 2}),
}
# What a command runs that is killed at an event of its run folder: of six methods each run is killed several times.
METHODS = ("fedavg", "scaffold", "mime", "fedadam", "fedda-mvr", "scaffold-m-vr")
CONFIGS = {
    "clean": "",
    "nan, guard, dropout": """
run.guard = true
run.faults = {clients = [1], sends = nan}
participation.dropout = 0.2
""",
}
GRID = """
[sweep.grid]
"methods.*.lr" = [0.05, 0.1, 0.02]
"work.steps" = [2, 3]
"""
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod")
LONGEST = 120  # seconds that a process may take to end by SIGTERM, on a machine that is busy


def run(method: str, options: dict[str, Any], rounds: int, folder: str) -> str:
    """The checksum of all that a run gives, but its seconds. The first rows come with a line of output."""
    import jax

    import fedax

    def callback(row):
        if row["round"] == 0:
            print("at work", flush=True)
        time.sleep(
            0.05 if method != "sweep" else 0.01
        )  # so that a run takes seconds, and is killed while it writes as well as while it computes

    rng = np.random.default_rng(0)
    data = fedax.FederatedData({"x": rng.normal(size=(400, 30)), "y": rng.integers(0, 10, 400)}, np.full(20, 20))
    task = fedax.tasks.softmax_regression(30, 10)
    given: dict[str, Any] = {
        "rounds": rounds,
        "batch_size": 5,
        "participation": fedax.Uniform(6),
        "evaluate_every": 7,
        "checkpoint": fedax.Checkpoints(folder, rounds=2, minutes=None, best="train_loss"),
    }
    if method == "sweep":
        grid = {"lr": options["lr"], "steps": options.get("steps", [3])}
        make = lambda lr, steps: {"algorithm": fedax.create("scaffold", lr=lr), "work": fedax.Steps(steps)}  # noqa: E731
        watch = lambda point, seed, row: callback(row)  # noqa: E731
        result = fedax.sweep(make, grid, task, data, seeds=options["seeds"], callback=watch, **given)
        runs = [run for of in result.runs for run in of]
    else:
        work = fedax.Steps(3)
        runs = [
            fedax.simulate(
                fedax.create(method, lr=0.05),
                task,
                data,
                work=work,
                callback=callback,
                place=fedax.Place(**options),
                **given,
            )
        ]
    sums = hashlib.sha256()
    for run in runs:
        sums.update(json.dumps({k: v.tolist() for k, v in run.history.items() if k != "seconds"}).encode())
        rows = run.memory[np.arange(20)] if hasattr(run.memory, "kept") else run.memory
        for leaf in jax.tree.leaves((run.params, run.state, rows, run.best)):
            sums.update(np.ascontiguousarray(leaf).tobytes())
    return sums.hexdigest()


def started(method: str, which: int, rounds: int, folder: pathlib.Path) -> subprocess.Popen:
    command = [sys.executable, __file__, "--rounds", str(rounds), "--one", method, str(which), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def case(method: str, which: int, rounds: int, kills: int, scratch: pathlib.Path, luck: random.Random) -> int:
    """How many runs ended otherwise than one that was left alone, or did not end by SIGTERM."""
    alone = started(method, which, rounds, scratch / "alone")
    alone.stdout.readline()
    begun = time.monotonic()
    expected, _ = alone.communicate()
    whole = time.monotonic() - begun
    ended = {signal.SIGKILL: 0, signal.SIGTERM: 0}
    runs = bad = 0
    while sum(ended.values()) < kills and bad < kills:
        folder, runs = scratch / str(runs), runs + 1
        while True:
            process = started(method, which, rounds, folder)
            at_work = process.stdout.readline()
            # Up to somewhat after its end.
            limit = luck.uniform(0, 1.1) * whole if sum(ended.values()) < kills else None
            try:
                out, error = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                way = luck.choice(list(ended))
                process.send_signal(way)
                try:
                    out, error = process.communicate(timeout=LONGEST)
                except subprocess.TimeoutExpired:
                    process.kill()
                    out, error = process.communicate()
                if process.returncode == -way:
                    ended[way] += 1
                    continue
            # SIGTERM may have come when the run was over.
            if not at_work or process.returncode != 0 or out != expected:
                bad += 1
                print(error[-1000:], file=sys.stderr)
            break
    by = ", ".join(f"{number} by {way.name}" for way, number in ended.items())
    print(f"{method}, {CASES[method][which]}: {runs} runs ended {by}; {bad} otherwise than one left alone", flush=True)
    return bad


def dying(at: int, after: float, folder: str, arguments: list[str]) -> None:
    """The command, which kills itself at an event of a file in its folder, or so many seconds later; 0: it counts them.

    An audit hook sees an event before it happens: the last one does not, unless there is time.
    """
    count = 0

    def hook(event: str, given: tuple[object, ...]) -> None:
        nonlocal count
        if event in EVENTS and any(isinstance(each, str | os.PathLike) and folder in str(each) for each in given):
            count += 1
            if count == at and after:
                threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
            elif count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    from fedax.cli import app

    sys.addaudithook(hook)
    app(arguments, standalone_mode=False)
    print(f"events {count}", flush=True)


def outcome(folder: pathlib.Path) -> dict[str, object]:
    """All that a run folder has of its runs, but the seconds; and the names of its files."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in line.items() if name != "seconds"} for line in lines]
    models = {path.name: path.read_bytes() for path in sorted((folder / "models").iterdir())}
    summary, swept = json.loads((folder / "summary.json").read_text()), {}
    if (folder / "sweep.json").exists():
        swept = json.loads((folder / "sweep.json").read_text()) | {"seconds": 0}
    states = [(method["label"], method["status"], method["seeds"]) for method in summary["methods"]]
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {"rows": rows, "models": models, "states": states, "sweep": swept, "files": names}


def command(word: str, name: str, kills: int, scratch: pathlib.Path, luck: random.Random) -> int:
    """How many runs of the command ended otherwise than one that was left alone."""
    scratch.mkdir()
    methods = ", ".join(f'{{name = "{method}", lr = 0.05}}' for method in METHODS)
    config = scratch / "config.toml"
    config.write_text(f"""
name = "kills"
data = {{name = "quadratics", clients = 6, dimension = 3}}
work = {{kind = "steps", steps = 2}}
methods = [{methods}]
run.rounds = 8
run.evaluate_every = 3
run.seeds = 3
participation.kind = "uniform"
participation.size = 4
{CONFIGS[name]}{GRID if word == "sweep" else ""}""")
    kept = ["--checkpoint-rounds", "2"] + (["--checkpoint-best", "train_loss"] if word == "run" else [])

    def process(folder: pathlib.Path, at: int, after: float) -> subprocess.CompletedProcess[str]:
        arguments = [word, str(config), "--out", str(folder), *kept]
        line = [sys.executable, __file__, "--die", str(at), str(after), str(folder), *arguments]
        return subprocess.run(line, capture_output=True, text=True)

    alone = process(scratch / "alone", 0, 0.0)
    expected, events = outcome(scratch / "alone"), int(alone.stdout.rsplit(maxsplit=1)[-1])
    killed = runs = bad = 0
    while killed < kills:
        folder, runs = scratch / str(runs), runs + 1
        while True:
            # A few before the end of what is left, so that some runs end.
            at = luck.randrange(1, events // 2) if killed < kills else 0
            ended = process(folder, at, luck.choice((0.0, luck.uniform(0, 0.01))))
            if ended.returncode == -signal.SIGKILL:
                killed += 1
                continue
            result = outcome(folder) if ended.returncode == 0 else {}
            if differs := [name for name in expected if result.get(name) != expected[name]]:
                bad += 1
                print(f"{differs} differ; {ended.stderr[-1000:]}", file=sys.stderr, flush=True)
            break
    text = f"fedax {word}, {name}, {len(METHODS)} methods, {events} events a run: {runs} runs killed {killed} times"
    print(f"{text}; {bad} otherwise than one left alone", flush=True)
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--rounds", type=int, default=400, help="of each run")
    parser.add_argument("--methods", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "PLACE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--command", choices=["run", "sweep"], help="kill it at events of the files in its folder")
    if sys.argv[1:2] == ["--die"]:
        at, after, folder, *arguments = sys.argv[2:]
        return dying(int(at), float(after), folder, arguments)
    given = parser.parse_args()
    if given.one:
        method, which, folder = given.one
        print(run(method, CASES[method][int(which)], given.rounds, folder))
        return
    luck, bad = random.Random(given.seed), 0
    places = [(method, which) for method in given.methods for which in range(len(CASES[method]))]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{scratch}/compiled"
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        if given.command:
            each = -(-given.kills // len(CONFIGS))
            places = []
            for k, name in enumerate(CONFIGS):
                bad += command(given.command, name, each, pathlib.Path(scratch, f"command-{k}"), luck)
        for method, which in places:
            each = -(-given.kills // len(places))
            bad += case(method, which, given.rounds, each, pathlib.Path(scratch, f"{method}-{which}"), luck)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
