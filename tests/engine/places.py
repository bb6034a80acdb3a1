"""Results of every registered method in every place where clients can be, as numbers to compare.

``python -m tests.engine.places --write out.npz`` writes them; ``--against out.npz`` runs all cases again and prints the
differences. The folder ``numbers`` has the results of earlier versions of the engine, in files named by commit.
"""

import argparse
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import fedax
import tests.conftest  # noqa: F401  (JAX's settings, before its first computation)
from fedax.columns import EXCLUSIONS, TIME, TRAFFIC
from fedax.engine import processes
from fedax.sites.service.processes import free_port
from tests.engine import here
from tests.engine.problem import DATA, MEASURED, UNEQUAL, federation, flat

NUMBERS = pathlib.Path(__file__).with_name("numbers")
PLACES = ("device", "host", "file", "streamed", "2 devices", "2 processes", "nodes")
COHORTS = ("full", "uniform", "guard", "dropout")
TEST = federation([11], [1.0], seed=5).examples
NODES = [[3, 0], [4], [2, 1]]  # the clients of each; the first and the last have arrays of the same shapes
TESTS = [{name: leaf[:4] for name, leaf in TEST.items()}, None, {name: leaf[4:] for name, leaf in TEST.items()}]


def case(method: str, place: str, cohort: str) -> str:
    """The name of a case."""
    return f"{method} / {place} / {cohort}"


def _place(name: str) -> fedax.Place:
    where = name.removesuffix(" on 2 devices")
    mesh = None if name == where != "2 devices" else Mesh(np.array(jax.devices()[:2]), ("clients",))
    if where == "streamed":
        return fedax.Place(chunk_size=2, mesh=mesh, stream=True)
    memory = {"device": "device", "host": "host", "file": tempfile.gettempdir()}.get(where, "auto")
    return fedax.Place(chunk_size=2, mesh=mesh, client_memory=memory)


def _cohort(name: str) -> dict[str, Any]:
    return {
        "full": {},
        "uniform": {"participation": fedax.Uniform(3)},
        "guard": {"participation": fedax.Uniform(4), "guard": True, "faults": fedax.Faults([3], sends=np.nan)},
        "dropout": {"participation": fedax.Dropout(fedax.Uniform(4), 0.3)},
    }[name]


def outcome(name: str, spy: Any = None) -> np.ndarray | None:
    """Model, client memory and history of a run, concatenated; ``None`` if the method refuses the cohort.

    ``spy``: as of :class:`tests.engine.here.Here`.
    """
    method, place, cohort = name.split(" / ")
    made = fedax.create(method, lr=0.05)
    options = {"rounds": 4, "batch_size": 2, "seed": 1, "evaluate_every": 2} | _cohort(cohort)
    for work in (UNEQUAL, fedax.Steps(3)):  # unequal steps where it takes them
        try:
            if place == "nodes":
                run, there = here.run_at_sites(made, MEASURED, DATA, NODES, spy, TESTS, work=work, **options)
                rows = here.memory_of(run, there)
            else:
                options |= {"place": _place(place), "test": TEST}
                run = fedax.simulate(made, MEASURED, DATA, work=work, **options)
                rows = run.memory[np.arange(DATA.num_clients)] if hasattr(run.memory, "kept") else run.memory
        except fedax.ConfigError:
            continue
        apart = {"seconds", TIME, "bad_clients", "heard", *TRAFFIC}
        if place == "nodes" and cohort in ("full", "uniform"):  # where uploads of simulated clients do not get lost
            apart |= {*EXCLUSIONS}
        columns = [column for name, column in sorted(run.history.items()) if name not in apart]
        mine, kept = processes.own(DATA), []
        for leaf in map(np.asarray, jax.tree.leaves(rows)):
            own = np.zeros_like(leaf)
            own[mine] = leaf[mine]
            kept.append(np.asarray(processes.total(own)).ravel())
        return np.concatenate([flat(run.params), *kept, *columns]).astype(np.float32)
    return None


def outcomes(cases: Iterable[str]) -> dict[str, np.ndarray]:
    """:func:`outcome` of the cases that are not refused; cases of two processes run in two new processes."""
    cases = list(cases)
    apart = [name for name in cases if " / 2 processes / " in name and processes.count() == 1]
    results = {name: outcome(name) for name in cases if name not in apart}
    if apart:
        results |= _in_two_processes(apart)
    return {name: numbers for name, numbers in results.items() if numbers is not None}


def _in_two_processes(cases: list[str]) -> dict[str, np.ndarray]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.npz")
        command = [sys.executable, "-m", "tests.engine.places", "--write", out, "--port", str(port), "--cases", *cases]
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
        options: Any = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        both = [subprocess.Popen([*command, "--process", str(k)], **options) for k in range(2)]
        outputs = [process.communicate(timeout=600)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], "\n".join(text[-3000:] for text in outputs)
        with np.load(out) as file:
            return dict(file)


@functools.cache
def load_numbers(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The results in a file, by case."""
    with np.load(path) as file:
        return dict(file)


def expected(name: str, files: Iterable[pathlib.Path]) -> np.ndarray | None:
    """A case's result in the first file that has it; a place that was not written had the same bits as the device."""
    method, _, cohort = name.split(" / ")
    for path in files:
        for each in (name, case(method, "device", cohort)):
            if each in load_numbers(path):
                return load_numbers(path)[each]
    return None


def _save(path: str, result: dict[str, np.ndarray]) -> None:
    device = lambda name: result.get(case(name.split(" / ")[0], "device", name.split(" / ")[2]))  # noqa: E731
    new = {
        name: numbers
        for name, numbers in result.items()
        if (there := device(name)) is numbers or there is None or there.tobytes() != numbers.tobytes()
    }
    np.savez_compressed(path, **new)


def _compare(result: dict[str, np.ndarray], path: pathlib.Path) -> None:
    exact = close = 0
    for name, numbers in result.items():
        was = expected(name, [path])
        if was is not None and was.tobytes() == numbers.tobytes():
            exact += 1
        elif was is not None and was.shape == numbers.shape and np.allclose(numbers, was, rtol=1e-6, atol=1e-6):
            close += 1
        else:
            far = np.inf if was is None or was.shape != numbers.shape else np.nanmax(np.abs(numbers - was))
            print(f"{name}: {'not there before' if was is None else f'apart by {far:.3g}'}")
    print(f"{len(result)} cases: {exact} equal bit for bit, {close} to 1e-6")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write")
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--methods", nargs="*", default=sorted(fedax.available()))
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--port")
    parser.add_argument("--process", type=int)
    arguments = parser.parse_args()
    if arguments.process is not None:
        processes.connect(f"localhost:{arguments.port}", 2, arguments.process)
    all_cases = [case(method, place, cohort) for method in arguments.methods for place in PLACES for cohort in COHORTS]
    results = outcomes(arguments.cases or all_cases)
    if arguments.write and not arguments.process:
        _save(arguments.write, results)
    if arguments.against:
        _compare(results, arguments.against)


if __name__ == "__main__":
    main()
