"""Memory and time for many rounds, many points of a sweep, and many run folders. See README.md."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

PARTS = 10  # of what is done, each with its time and memory
ROUNDS = """
name = "endurance"
data = {{name = "quadratics", clients = 4, dimension = 2}}
work = {{kind = "steps", steps = 1}}
methods = [{{name = "fedavg", lr = 0.01}}]
run = {{rounds = {rounds}, seeds = 1, evaluate_every = {every}}}
"""
SWEEP = """
name = "endurance"
data = {{name = "quadratics", clients = 2, dimension = 1}}
work = {{kind = "steps", steps = 1}}
methods = [{{name = "fedavg", lr = 0.01}}]
run = {{rounds = 2, seeds = 1}}
[sweep.grid]
"methods.*.lr" = {{low = 0.001, high = 0.1, points = {points}}}
"""


def memory(process: int | str = "self") -> float:
    """What a process has in memory now, in MB."""
    text = pathlib.Path(f"/proc/{process}/statm").read_text(encoding="utf-8")
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def command(arguments: list[str], rows: pathlib.Path | None = None, most: int = 0) -> list[dict[str, float]]:
    """Run the command; time and memory each time that a tenth of the lines is written, and the peak of memory."""
    line = [sys.executable, "-m", "fedax", *arguments]
    began, peak = time.monotonic(), 0.0
    parts: list[dict[str, float]] = []
    counted = place = done = 0
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                now = memory(process.pid)
            except (OSError, IndexError):  # it has ended meanwhile
                break
            peak = max(peak, now)
            if rows is not None and rows.exists():
                with rows.open("rb") as file:
                    file.seek(place)
                    new = file.read()
                place, counted = place + len(new), counted + new.count(b"\n")
                if most and counted * PARTS // most > done:
                    done = counted * PARTS // most
                    parts.append({"lines": counted, "seconds": time.monotonic() - began, "MB": now})
            time.sleep(0.02)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return [*parts, {"lines": counted, "seconds": time.monotonic() - began, "MB": peak}]


def show(title: str, parts: list[dict[str, float]]) -> None:
    print(f"\n{title}", flush=True)
    before = 0.0
    for each in parts[:-1]:
        took, before = each["seconds"] - before, each["seconds"]
        print(f"  {each['lines']:8} lines, {took:8.1f} s more, {each['MB']:7.0f} MB", flush=True)
    print(f"  in all {parts[-1]['seconds']:.1f} s, at most {parts[-1]['MB']:.0f} MB", flush=True)


def rounds(scratch: pathlib.Path, number: int, every: int) -> None:
    config = scratch / "rounds.toml"
    config.write_text(ROUNDS.format(rounds=number, every=every), encoding="utf-8")
    folder = scratch / f"rounds-{every}"
    result = command(["run", str(config), "--out", str(folder)], folder / "metrics.jsonl", number // every)
    show(f"fedax run, {number} rounds, evaluated every {every}", result)
    size = (folder / "metrics.jsonl").stat().st_size / 1e6
    result = command(["report", str(folder)])
    page = (folder / "report.html").stat().st_size / 1e6
    show(f"fedax report of it: metrics.jsonl {size:.1f} MB, report.html {page:.1f} MB", result)


def points(scratch: pathlib.Path, number: int) -> None:
    config = scratch / "sweep.toml"
    config.write_text(SWEEP.format(points=number), encoding="utf-8")
    folder = scratch / "sweep"
    result = command(["sweep", str(config), "--out", str(folder)], folder / "metrics.jsonl", 3 * number)
    show(f"fedax sweep, {number} points", result)
    show("fedax report of it", command(["report", str(folder)]))
    page = (folder / "report.html").stat().st_size / 1e6
    print(f"  report.html {page:.1f} MB", flush=True)


def folders(scratch: pathlib.Path, number: int) -> None:
    config = scratch / "one.toml"
    config.write_text(ROUNDS.format(rounds=10, every=1), encoding="utf-8")
    command(["run", str(config), "--out", str(scratch / "one")])
    for count in (number // 10, number):
        for k in range(count):
            if not (scratch / f"many-{k}").exists():
                shutil.copytree(scratch / "one", scratch / f"many-{k}")
        for form in ("html", "csv"):
            out = scratch / f"all.{form}"
            names = [str(scratch / f"many-{k}") for k in range(count)]
            show(f"fedax report --format {form} of {count} run folders",
                 command(["report", *names, "--format", form, "--out", str(out)]))  # fmt: skip
            print(f"  {out.name} {out.stat().st_size / 1e6:.1f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["rounds", "points", "folders"])
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--every", type=int, nargs="+", default=[10, 1], help="rounds between evaluations")
    parser.add_argument("--points", type=int, default=10_000, help="a sweep tries at most 10,000")
    parser.add_argument("--folders", type=int, default=2_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        scratch = pathlib.Path(place)
        if not given.what or "rounds" in given.what:
            for every in given.every:
                rounds(scratch, given.rounds, every)
        if not given.what or "points" in given.what:
            points(scratch, given.points)
        if not given.what or "folders" in given.what:
            folders(scratch, given.folders)


if __name__ == "__main__":
    main()
