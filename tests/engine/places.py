"""Every registered method in every place where clients can be: what comes out, as numbers to compare.

``python -m tests.engine.places out.npz`` writes them; ``python -m tests.engine.places --against out.npz`` runs all
again and says what differs. ``numbers.npz`` beside this file was written so by earlier versions of the engine.
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import fedax
import tests.conftest  # noqa: F401  (JAX's settings, before it starts)
from fedax.engine import processes
from tests.engine.problem import DATA, TASK, UNEQUAL, federation, flat

NUMBERS = pathlib.Path(__file__).with_name("numbers.npz")
PLACES = ("device", "host", "file", "streamed", "2 devices", "2 processes")
COHORTS = ("full", "uniform", "guard", "dropout")
TEST = federation([11], [1.0], seed=5).examples


def _place(name: str) -> dict[str, Any]:
    if name == "2 devices":
        return {"mesh": Mesh(np.array(jax.devices()[:2]), ("clients",))}
    return {
        "device": {"client_memory": "device"},
        "host": {"client_memory": "host"},
        "file": {"client_memory": tempfile.gettempdir()},
        "streamed": {"stream": True},
        "2 processes": {},
    }[name]


def _cohort(name: str) -> dict[str, Any]:
    return {
        "full": {},
        "uniform": {"participation": fedax.Uniform(3)},
        "guard": {"participation": fedax.Uniform(4), "guard": True, "faults": fedax.Faults([3], sends=np.nan)},
        "dropout": {"participation": fedax.Dropout(fedax.Uniform(4), 0.3)},
    }[name]


def outcome(method: str, place: str, cohort: str) -> np.ndarray | None:
    """Model, client memory and history of a run, one after another; ``None`` where the method refuses the cohort."""
    for work in (UNEQUAL, fedax.Steps(3)):  # unequal steps where it takes them
        try:
            run = fedax.simulate(
                fedax.create(method, lr=0.05), TASK, DATA, rounds=4, work=work, batch_size=2, test=TEST, seed=1,
                grad_norm=True, evaluate_every=2, chunk_size=2, **_place(place), **_cohort(cohort),
            )  # fmt: skip
        except fedax.ConfigError:
            continue
        hidden = ("seconds", "bad_clients")
        columns = [column for name, column in sorted(run.history.items()) if name not in hidden]
        rows = run.memory
        if not isinstance(rows, tuple | list | dict | fedax.Vector) and hasattr(rows, "kept"):
            rows = rows[np.arange(DATA.num_clients)]
        mine = processes.own(DATA)
        kept = [np.zeros_like(np.asarray(leaf)) for leaf in jax.tree.leaves(rows)]
        for zeros, leaf in zip(kept, jax.tree.leaves(rows), strict=True):
            zeros[mine] = np.asarray(leaf)[mine]
        kept = [np.asarray(processes.total(leaf)).ravel() for leaf in kept]
        return np.concatenate([flat(run.params), *kept, *columns]).astype(np.float32)
    return None


def outcomes(methods: list[str], places: list[str], cohorts: list[str]) -> dict[str, np.ndarray]:
    """``"method / place / cohort"`` -> :func:`outcome`, in this process or, of two processes, in both."""
    found = {}
    for method in methods:
        for place in places:
            for cohort in cohorts:
                numbers = outcome(method, place, cohort)
                if numbers is not None:
                    found[f"{method} / {place} / {cohort}"] = numbers
        print(method, places, len(found), file=sys.stderr, flush=True)
    return found


def together(methods: list[str], cohorts: list[str]) -> dict[str, np.ndarray]:
    """The same of two processes, which are started for it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.npz")
        command = [sys.executable, "-m", "tests.engine.places", out, "--methods", *methods, "--cohorts", *cohorts]
        command += ["--places", "2 processes", "--port", str(port), "--process"]
        both = [subprocess.Popen([*command, str(k)]) for k in range(2)]
        codes = [each.wait() for each in both]
        if any(codes):
            raise RuntimeError("a process failed")
        with np.load(out) as file:
            return dict(file)


def written(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a file has: of a place other than the device only what differs from the device in any bit."""
    device = lambda name: found.get(" / ".join([name.split(" / ")[0], "device", name.split(" / ")[2]]))  # noqa: E731
    return {
        name: numbers
        for name, numbers in found.items()
        if name.split(" / ")[1] == "device" or device(name) is None or device(name).tobytes() != numbers.tobytes()
    }


def expected(file: Any, method: str, place: str, cohort: str) -> np.ndarray | None:
    """What :func:`written` has of a case."""
    for each in (place, "device"):
        if f"{method} / {each} / {cohort}" in file:
            return np.asarray(file[f"{method} / {each} / {cohort}"])
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?")
    parser.add_argument("--against")
    parser.add_argument("--methods", nargs="*", default=sorted(fedax.available()))
    parser.add_argument("--places", nargs="*", default=list(PLACES))
    parser.add_argument("--cohorts", nargs="*", default=list(COHORTS))
    parser.add_argument("--port")
    parser.add_argument("--process", type=int)
    asked = parser.parse_args()
    if asked.process is not None:
        jax.config.update("jax_num_cpu_devices", 1)
        processes.connect(f"localhost:{asked.port}", 2, asked.process)
        found = outcomes(asked.methods, asked.places, asked.cohorts)
    else:
        found = outcomes(asked.methods, [each for each in asked.places if each != "2 processes"], asked.cohorts)
        if "2 processes" in asked.places:
            found |= together(asked.methods, asked.cohorts)
    if asked.out and asked.process in (None, 0):
        np.savez_compressed(asked.out, **(found if asked.process == 0 else written(found)))
    if asked.against:
        compare(found, asked.against)


def compare(found: dict[str, np.ndarray], path: str) -> None:
    """Say how many cases are equal bit for bit, how many to 1e-6, and which are neither."""
    exact = close = 0
    with np.load(path) as file:
        known = dict(file)
    for name, numbers in found.items():
        was = expected(known, *name.split(" / "))
        if was is not None and was.tobytes() == numbers.tobytes():
            exact += 1
        elif was is not None and was.shape == numbers.shape and np.allclose(numbers, was, rtol=1e-6, atol=1e-6):
            close += 1
        else:
            far = np.inf if was is None or was.shape != numbers.shape else np.nanmax(np.abs(numbers - was))
            print(f"{name}: {'not there before' if was is None else f'apart by {far:.3g}'}")
    print(f"{len(found)} cases: {exact} equal bit for bit, {close} to 1e-6")


if __name__ == "__main__":
    main()
