"""The command with several processes and devices, closed pipes and resource limits, as processes. See README.md."""

import argparse
import functools
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

Path = pathlib.Path

CONFIG = """
name = "trial"
data = {name = "quadratics", clients = 4, dimension = 2}
work = {kind = "steps", steps = 2}
participation = {kind = "uniform", size = 2}
methods = [{name = "fedavg", lr = 0.1}, {name = "scaffold", lr = 0.1}]
run = {rounds = 40_000, seeds = 2, evaluate_every = 40}
"""
SHORT = CONFIG.replace("40_000", "40")
STUDY = 'name = "mine"\nparts = [{name = "a", recipe = "long.toml"}]\n'
GRID = ["--grid", "methods.*.lr=0.05,0.1"]


def started(*arguments: str, **more: Any) -> "subprocess.Popen[str]":
    line = [sys.executable, "-m", "fedax", *arguments]
    return subprocess.Popen(line, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Its exit code, and what it said on stderr."""
    _, output = process.communicate()
    return process.returncode, output or ""


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def begun(folder: Path, process: "subprocess.Popen[str]") -> bool:
    """Wait for the first row."""
    while process.poll() is None:
        if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size:
            return True
        time.sleep(0.05)
    return False


def one_line(output: str) -> bool:
    return output.count("\n") == 1 and "Traceback" not in output and "please report" not in output


def check(what: str, good: bool, *details: object) -> bool:
    print(f"{'good' if good else 'BAD '}  {what}", *details if not good else (), flush=True)
    return good


# ---- two processes on one folder


def pairs() -> list[bool]:
    """The second is refused in one line, and the first ends as if it had been alone; readers disturb nobody."""
    results = []
    alone = started("run", "long.toml", "--out", "alone")
    results.append(check("a run alone", ended(alone)[0] == 0))
    for first, second in (
        (["run", "long.toml", "--out", "x"], ["run", "long.toml", "--out", "x"]),
        (["run", "long.toml", "--out", "x"], ["run", "long.toml", "--out", "x", "--resume"]),
        (["sweep", "long.toml", *GRID, "--out", "x"], ["sweep", "long.toml", *GRID, "--out", "x"]),
        (["study", "study.toml", "--out", "x"], ["study", "study.toml", "--out", "x"]),
    ):
        shutil.rmtree("x", ignore_errors=True)
        one = started(*first)
        if first[0] == "study":
            while not Path("x/.lock").exists():
                time.sleep(0.05)
        else:
            begun(Path("x"), one)
        code, output = ended(started(*second))
        good = code == 2 and one_line(output) and "another process is writing" in output
        results.append(
            check(f"{first[0]}, and {' '.join(second[:1] + second[4:])} beside it is refused", good, code, output)
        )
        if first[:2] == second[:2] and first == second and first[0] == "run":
            readers: list[list[str]] = [["report", "x"], ["report", "x", "--format", "csv"], ["diagnose", "x"]]
            readers.append(["predict", "x/models/fedavg-seed0.safetensors", "absent.npy", "--out", "p.csv"])
            for reader in readers:
                code, output = ended(started(*reader))
                good = (code == 0 or one_line(output)) and "Traceback" not in output
                results.append(check(f"fedax {' '.join(reader[:1])} beside it: exit code {code}", good, output))
        code, output = ended(one)
        results.append(check(f"the first {first[0]} ends as it should", code == 0, code, output))
        if first[0] == "run":
            results.append(check("with the rows of a run alone", rows(Path("x")) == rows(Path("alone"))))
    both = [started("run", "short.toml") for _ in range(2)]
    codes = [ended(each)[0] for each in both]
    results.append(
        check("two that name their folders themselves", codes == [0, 0] and len(os.listdir("runs")) == 2, codes)
    )
    return results


# ---- another number of devices


def figure(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["label"], row["seed"], row["round"], row["train_loss"]


def devices() -> list[bool]:
    """Killed with two devices, and gone on with one and with three: the figures differ by the order of sums at most."""
    results = []
    process = started("run", "long.toml", "--out", "whole", env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"})
    results.append(check("a run with two devices", ended(process)[0] == 0))
    expected = rows(Path("whole"))
    for number in ("1", "3"):
        folder = Path(f"with-{number}")
        arguments = ["run", "long.toml", "--out", str(folder), "--checkpoint-rounds", "100"]
        process = started(*arguments, env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"})
        begun(folder, process)
        process.kill()
        process.communicate()
        code, output = ended(started(*arguments, "--resume", env=os.environ | {"JAX_NUM_CPU_DEVICES": number}))
        same = code == 0 and len(rows(folder)) == len(expected)
        gap = 0.0
        if same:
            pairs_of = zip(sorted(map(figure, rows(folder))), sorted(map(figure, expected)), strict=True)
            gap = max(abs(a[-1] - b[-1]) / max(abs(b[-1]), 1e-3) for a, b in pairs_of)
        what = f"killed with two devices, gone on with {number}: losses within {gap:.1g}"
        results.append(check(what, same and gap < 1e-3, code, output))
    return results


# ---- pipes, descriptors, folders that are removed


def pipes() -> list[bool]:
    """``fedax … | head -1``."""
    results = []
    lines = [
        ["run", "short.toml", "--out", "piped"],
        ["list"],
        ["report", "piped", "--format", "csv"],
        ["cite", "fednova"],
    ]
    lines += [["--help"], ["check", "fedavg"], ["diagnose", "piped"], ["sweep", "short.toml", *GRID, "--out", "swept"]]
    for line in lines:
        process = started(*line)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        output = process.stderr.read()
        results.append(check(f"fedax {' '.join(line[:2])} | head -1", (process.wait(), output) == (0, ""), output))
    return results


def descriptors() -> list[bool]:
    """Few file descriptors, and many files of clients."""
    results = []
    Path("many").mkdir()
    for k in range(200):
        Path(f"many/{k}.csv").write_text("age,ill\n" + "40,no\n60,yes\n" * 5, encoding="utf-8")
    table = CONFIG.replace('"quadratics", clients = 4, dimension = 2', '"csv", files = "many/*.csv", label = "ill"')
    Path("many.toml").write_text(table.replace("40_000", "4"), encoding="utf-8")
    for most in (32, 16, 8, 6):
        limits = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (most, most))
        for line in (
            ["run", "many.toml", "--out", f"few-{most}"],
            ["sweep", "short.toml", *GRID, "--out", f"s-{most}"],
        ):
            code, output = ended(started(*line, preexec_fn=limits))
            results.append(
                check(f"ulimit -n {most}, fedax {line[0]}: exit code {code}", code == 0 or one_line(output), output)
            )
    return results


def removed() -> list[bool]:
    """The run folder, that of its checkpoints, and that of its models, while a run is at work."""
    results = []
    for what in ("", "checkpoints", "models"):
        shutil.rmtree("gone", ignore_errors=True)
        process = started("run", "long.toml", "--out", "gone", "--checkpoint-rounds", "400")
        begun(Path("gone"), process)
        shutil.rmtree(Path("gone") / what, ignore_errors=True)
        code, output = ended(process)
        good = (code, output) == (0, "") or (code == 2 and one_line(output))
        results.append(check(f"gone/{what} is removed while it is written: exit code {code}", good, output))
    return results


TRIALS = {"pairs": pairs, "devices": devices, "pipes": pipes, "descriptors": descriptors, "removed": removed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=[*TRIALS, []])
    given = parser.parse_args()
    bad = 0
    for name in given.what or TRIALS:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            for file, text in (("long.toml", CONFIG), ("short.toml", SHORT), ("study.toml", STUDY)):
                Path(file).write_text(text, encoding="utf-8")
            print(f"\n{name}", flush=True)
            result = TRIALS[name]()
            bad += result.count(False)
            print(f"{len(result)} trials, {result.count(False)} bad", flush=True)
            os.chdir("/")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
