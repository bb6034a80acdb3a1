"""Seconds a round of FedAvg: fedax, PyTorch, FedJAX, pfl-research and Flower. See README.md."""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, cases
from protocol import process

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Package -> whose interpreter has it.
PACKAGES = {
    "fedax": "fedax",
    "jax": "fedax",
    "torch": "torch",
    "fedjax": "fedjax",
    "pfl": "pfl",
    "blazefl": "blazefl",
    "flwr": "flower",
}


def version(python: str | None, package: str) -> str | None:
    """The version of a package in another environment, ``None`` where it is not there."""
    if python is None:
        return None
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return None if run.returncode else run.stdout.strip()


def has_gpu(python: str) -> bool:
    """Whether the PyTorch of an environment finds a GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def contenders(case: Case, options: argparse.Namespace) -> dict[str, list[str]]:
    """Name -> interpreter, script and arguments."""
    results = {}
    counts = [1] if options.gpu else sorted({1, CORES})
    threads_of = lambda number: f", {number} thread{'s' * (number > 1)}"  # noqa: E731
    if options.versions["fedax"]:
        results["fedax"] = [options.python_fedax, "with_fedax.py"]
    if options.versions["torch"]:
        torch = [options.python_torch, "with_torch.py"]
        for threads in counts:
            for way in ("loop", "vmap", *(("compile", "graph", "vmap-graph") if options.gpu else ())):
                results[f"torch {way}{threads_of(threads)}"] = [*torch, way, f"--threads={threads}"]
    if options.versions["fedjax"]:
        for backend in ("jit", "pmap"):
            results[f"FedJAX, {backend}"] = [options.python_fedjax, "with_fedjax.py", backend]
    if options.versions["pfl"]:
        for threads in counts:
            name = f"pfl-research{threads_of(threads)}"
            results[name] = [options.python_pfl, "with_pfl.py", f"--threads={threads}"]
    if options.versions["blazefl"]:
        threads = min(CORES, 8)
        results[f"BlazeFL{threads_of(threads)}"] = [options.python_blazefl, "with_blazefl.py", f"--threads={threads}"]
    if options.versions["flwr"]:
        results["Flower"] = [options.python_flower, "with_flower.py"]
    if options.versions["torch"] and case.model == "mlp":
        results["matrix products alone"] = [*torch, "products", f"--threads={counts[-1]}"]
    return results


def measure(name: str, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The contenders of a case take turns, each a process that waits while the others run."""
    with contextlib.ExitStack() as stack:
        calls, rounds, records = {}, {}, {}
        for contender, (python, script, *arguments) in contenders(case, options).items():
            calls[contender] = stack.enter_context(process(python, script, *arguments, name))
        for contender, call in calls.items():
            rounds[contender] = call("warm_up", seconds=options.seconds)
            records[contender] = []
        for _ in range(options.repeats):
            for contender, call in calls.items():
                records[contender].append(call("train", rounds=rounds[contender]))
    results = {}
    for contender, record in records.items():
        seconds = [row["seconds"] for row in record]
        results[contender] = {
            "median": statistics.median(seconds),
            "low": min(seconds),
            "high": max(seconds),
            "rounds": rounds[contender],
            "repeats": record,
        }
    return results


def table(case: Case, results: dict[str, Any]) -> str:
    loops = [result["median"] for name, result in results.items() if name.startswith("torch loop")]
    lines = [case.title, f"{'':24}{'seconds a round':>16}{'lowest to highest':>22}{'steps':>8}{'speed-up':>10}"]
    for name, result in results.items():
        spread = f"{result['low']:.3g} to {result['high']:.3g}"
        steps = statistics.mean(row["steps"] for row in result["repeats"])
        speed_up = f"{min(loops) / result['median']:.2f}" if loops else ""
        lines.append(f"{name:24}{result['median']:16.3g}{spread:>22}{steps:8.0f}{speed_up:>10}")
    return "\n".join(lines) + "\n"


def check(name: str, case: Case, options: argparse.Namespace) -> bool:
    """Whether all contenders do the same.

    One round of full-batch gradients, with unequal steps and unequal weights, has to give all the same model; five
    rounds of the case itself, with minibatches of each contender's own, nearly the same fall of the objective.
    """

    def tried(command: list[str]) -> tuple[np.ndarray, float]:
        python, script, *arguments = command
        with process(python, script, *arguments, name, "--small") as call:
            call("train", rounds=1)
            model = np.concatenate(call("parameters"))
        with process(python, script, *arguments, name) as call:
            before, after = call("losses", rounds=5)
        return model, before - after

    commands = {key: command for key, command in contenders(case, options).items() if key != "matrix products alone"}
    with ThreadPoolExecutor(max(1, CORES // 2)) as pool:
        results = dict(zip(commands, pool.map(tried, commands.values()), strict=True))
    models, falls = ({key: result[k] for key, result in results.items()} for k in (0, 1))
    start = np.concatenate([array.ravel() for array in case.initial()])
    first = next(iter(models))
    moved = np.abs(models[first] - start).max()
    print(f"{name}: one round moves the model by up to {moved:.2g}, five lower the objective by {falls[first]:.4g}")
    same = moved > 1e-3
    for contender in models:
        apart, fall = np.abs(models[contender] - models[first]).max(), falls[contender]
        print(f"    {contender:24} apart by at most {apart:.1g}; lowers the objective by {fall:.4g}", flush=True)
        same &= apart < 1e-4 and abs(fall / falls[first] - 1) < 0.2
    return bool(same)


def machine() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": CORES,
        "load": os.getloadavg()[0],
        "system": platform.platform(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in dict.fromkeys(PACKAGES.values()):
        here = name in ("fedax", "torch")
        meant = "this one" if here else "none, it is left out"
        default = sys.executable if here else None
        parser.add_argument(f"--python-{name}", default=default, help=f"interpreter with {name} (default: {meant})")
    parser.add_argument("--cases", nargs="+", choices=list(cases()), default=list(cases()))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="about how long one measurement takes")
    parser.add_argument("--check", action="store_true", help="compare the models of all contenders, measure nothing")
    parser.add_argument("--json", type=Path, default=Path("rounds_per_second.json"), help="where the figures go")
    options = parser.parse_args()
    interpreters = {package: getattr(options, f"python_{owner}") for package, owner in PACKAGES.items()}
    options.versions = {package: version(python, package) for package, python in interpreters.items()}
    options.gpu = bool(options.versions["torch"]) and has_gpu(options.python_torch)
    for package, python in interpreters.items():
        if python and options.versions[package] is None:
            print(f"{package} is left out: {python} does not have it", file=sys.stderr)

    chosen = {name: case for name, case in cases().items() if name in options.cases}
    if options.check:
        results = [check(name, case, options) for name, case in chosen.items()]
        sys.exit(0 if all(results) else "the contenders do not agree")
    figures = {"machine": machine(), "versions": options.versions, "cases": {}}
    print(json.dumps({"machine": figures["machine"], "versions": options.versions}), "\n")
    for name, case in chosen.items():
        results = measure(name, case, options)
        figures["cases"][name] = {"title": case.title, "contenders": results}
        print(table(case, results), flush=True)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
