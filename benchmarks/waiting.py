"""When does not waiting for slow clients win? From the results of the study time.

    fedax study time --out studies/time
    python benchmarks/waiting.py studies/time     # read the times to the targets, and where runs end
    python benchmarks/waiting.py                  # write the tables and the figure anew from what was read

The first call writes docs/study/time.json. Both write docs/study/time.md between its marks, and
docs/study/figures/time.svg. That page has the protocol.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.experiments import build
from fedax.experiments.statistics import interval
from fedax.experiments.study import Study, StudyPart, read_study, record_of, results_of
from fedax.figures import Drawing, colour, marker

Table = dict[str, Any]

DOCS = Path(__file__).parents[1] / "docs"
PAGE, READ, FIGURE = DOCS / "study/time.md", DOCS / "study/time.json", DOCS / "study/figures/time.svg"
_MARK = re.compile(r"(<!-- ([a-z]+): python benchmarks/waiting.py -->\n).*?(<!-- end -->\n)", re.DOTALL)

COLUMN = "test_loss"
BUDGET = {"even": 220.0, "wide": 1420.0, "tenth": 2000.0}  # simulated seconds of 20 rounds that wait for everybody
CLOCKS = {"even": "nearly equal", "wide": "lognormal", "tenth": "a tenth ten times slower"}
TARGETS = {"near": 0.90, "far": 0.99}  # of the way from the start to where waiting ends
FAMILIES = {
    "waits": ["FedAvg", "SCAFFOLD"],
    "deadline": ["FedAvg, deadline", "FedNova, deadline", "SCAFFOLD, deadline"],
    "does not wait": ["FedBuff", "FedBuff, all under way", "FedBuff, corrected", "CA2FL", "ACE"],
}
RIVALS = {"a synchronous one": ["waits", "deadline"], "waiting": ["waits"], "a deadline": ["deadline"]}
FURTHER = ["FedAvg, 5 of 20", "AREA", "FADAS", "FedAsync", "Ringmaster", "Delayed Nesterov"]  # on one clock only
_ENDED = ("finished", "worse")


class Cell(NamedTuple):
    """One method on one problem with one clock.

    Attributes:
        problem, clock, method: what it is.
        score: the validation loss of the chosen settings on the first split of the tuning, which all methods have.
        times: target -> [seeds] simulated seconds until it is reached; ∞ where it was not.
        ends: [seeds] the test loss when the time is over; ∞ where the run diverged.
        train: [seeds] the same of the objective.
        settings: what was chosen.
        edges: the settings that were chosen at an end of all that was tried.
    """

    problem: str
    clock: str
    method: str
    score: float
    times: Mapping[str, np.ndarray]
    ends: np.ndarray
    train: np.ndarray
    settings: Table
    edges: Sequence[str]


# ---- what is read


def read_cells(study: Study, folder: Path) -> list[Cell]:
    """All methods that have all their seeds."""
    runs: dict[tuple[str, str], dict[str, tuple[StudyPart, list[Any]]]] = {}
    for part in study.parts.values():
        problem, clock, kind = part.name.split("-", 2)
        record = record_of(study, part, folder)
        for label in part.labels if record is not None else ():
            of_label = sorted((run for run in record.runs if run.label == label), key=lambda run: run.seed)
            name = f"{label}, {kind.replace('-', ' ')}" if kind.startswith("buffer") else label
            if len(of_label) == part.config["run"]["seeds"]:
                runs.setdefault((problem, clock), {})[name] = part, of_label
    cells = []
    for (problem, clock), methods in runs.items():
        ends = {name: np.array([_end(run, COLUMN, clock) for run in of]) for name, (_, of) in methods.items()}
        if not {*FAMILIES["waits"]} <= {*ends}:
            continue
        standard = min((ends[name] for name in FAMILIES["waits"]), key=lambda values: values.mean())
        for name, (part, of) in methods.items():
            label = name.split(", buffer")[0]
            times = {
                target: np.array([_until(run, share, end, clock) for run, end in zip(of, standard, strict=True)])
                for target, share in TARGETS.items()
            }
            train = np.array([_end(run, "train_loss", clock) for run in of])
            best, *_ = tried = study.tried(part, label)
            score = math.inf if best["seeds"][0] is None else best["seeds"][0]
            edges = [name for name in best["point"] if _at_end(name, tried)]
            cells.append(Cell(problem, clock, name, score, times, ends[name], train, best["point"], edges))
    return cells


def _at_end(name: str, tried: Sequence[Table]) -> bool:
    """Whether the first point has the smallest or largest value of a setting."""
    values = [row["point"][name] for row in tried]
    return values[0] in (min(values), max(values))


def _end(run: Any, column: str, clock: str) -> float:
    """The column at the last evaluation within the time."""
    if run.status not in _ENDED:
        return math.inf
    return float(run.history[column][run.history["time"] <= BUDGET[clock] * (1 + 1e-6)][-1])


def _until(run: Any, share: float, standard: float, clock: str) -> float:
    """Simulated seconds to the first evaluation that is so much of the way to where the standard ends; ∞: never."""
    values, times = run.history[COLUMN], run.history["time"]
    target = values[0] - share * (values[0] - standard)
    there = np.flatnonzero((values <= target) & (times <= BUDGET[clock] * (1 + 1e-6)))
    return float(times[there[0]]) if len(there) else math.inf


def schedules(study: Study) -> list[Table]:
    """χ² of the objective and the mean staleness of FedBuff's three paces, for each clock, with equal shares."""
    rows = []
    for clock in CLOCKS:
        for kind in ("uniform", "idle", "corrected"):
            config = study.parts[f"skewed-{clock}-{kind}"].config | {}
            config = {name: section for name, section in config.items() if name != "sweep"}
            config["methods"] = config["methods"][:1]
            made = build(config)
            found = fedax.arrivals(
                made.methods[config["methods"][0]["label"]], made.task, made.data, work=made.work,
                rounds=config["run"]["rounds"], batch_size=config["run"]["batch_size"], clock=made.options["clock"],
                pace=made.options["pace"],
            )  # fmt: skip
            rows.append({"clock": clock, "kind": kind, "chi2": float(f"{found.chi_square:.4g}")})
    return rows


# ---- what came out


def ratio(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """How many times as long the first takes: the geometric mean over the seeds, and its 95 % interval.

    Not-a-number where a seed of either did not reach the target.

    Example:
        >>> [round(each, 3) for each in ratio(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0]))]
        [0.5, 0.5, 0.5]
    """
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return math.nan, math.nan, math.nan
    logs = np.log(one) - np.log(other)
    low, high = interval(logs)
    return math.exp(logs.mean()), math.exp(low), math.exp(high)


def places(cells: Sequence[Cell]) -> dict[tuple[str, str], dict[str, Cell]]:
    """(problem, clock) -> method -> cell, where all methods of the three families have been run."""
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        found.setdefault((cell.problem, cell.clock), {})[cell.method] = cell
    needed = {name for names in FAMILIES.values() for name in names}
    there = {place: methods for place, methods in found.items() if needed <= {*methods}}
    return dict(sorted(there.items(), key=lambda item: [*CLOCKS].index(item[0][1])))


def chosen(methods: Mapping[str, Cell], *families: str) -> Cell:
    """Of some families, the method with the lowest validation loss: no test data are seen."""
    return min((methods[name] for family in families for name in FAMILIES[family]), key=lambda cell: cell.score)


def verdict(low: float, high: float) -> str:
    """Whether something below 1, or 0, is told: by the 95 % interval of this one comparison."""
    return "not waiting" if high < 0 else "waiting" if low > 0 else "tie"


class Outcome(NamedTuple):
    """Not waiting against the synchronous method, each chosen by validation, on one problem with one clock."""

    waits: Cell
    free: Cell
    times: dict[str, tuple[float, float, float]]
    end: tuple[float, float, float]  # of the test loss: how much higher without waiting, and the interval


def outcomes(cells: Sequence[Cell], rival: str = "a synchronous one") -> list[Outcome]:
    """All problems and clocks, against the best of the rival's families."""
    rows = []
    for methods in places(cells).values():
        waits, free = chosen(methods, *RIVALS[rival]), chosen(methods, "does not wait")
        times = {target: ratio(free.times[target], waits.times[target]) for target in TARGETS}
        gaps = free.ends - waits.ends
        end = (float(gaps.mean()), *interval(gaps)) if np.isfinite(gaps).all() else (math.nan,) * 3
        rows.append(Outcome(waits, free, times, end))
    return rows


def _reached(cell: Cell, target: str) -> str:
    return f"{np.isfinite(cell.times[target]).sum()} of {len(cell.ends)}"


def _ratio_text(row: Outcome, target: str) -> str:
    mean, low, high = row.times[target]
    if math.isnan(mean):
        return f"reached by {_reached(row.free, target)}, the other by {_reached(row.waits, target)}"
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def main_table(cells: Sequence[Cell]) -> list[str]:
    """A line for each problem and clock."""
    head = ["clock", "problem", "synchronous", "not waiting", "time to 90 %", "time to 99 %", "test loss at the end"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in outcomes(cells):
        mean, low, high = row.end
        end = "–" if math.isnan(mean) else f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
        texts = [CLOCKS[row.free.clock], f"`{row.free.problem}`", row.waits.method, row.free.method]
        texts += [_ratio_text(row, target) for target in TARGETS]
        lines.append(f"| {' | '.join([*texts, end])} |")
    return lines


def summary(cells: Sequence[Cell]) -> list[str]:
    """How often which is faster, and which ends lower: a line for each clock, rival and measure."""
    lines = ["| clock | not waiting against | measure | not waiting | tie | the other | open | time, geometric mean |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for clock in CLOCKS:
        for rival in RIVALS:
            here = [row for row in outcomes(cells, rival) if row.free.clock == clock]
            for target, share in TARGETS.items():
                known = [row.times[target] for row in here if not math.isnan(row.times[target][0])]
                told = [verdict(math.log(low), math.log(high)) for _, low, high in known]
                text = _mean_ratio([mean for mean, _, _ in known])
                lines.append(_counts(clock, rival, f"time to {100 * share:.0f} %", told, len(here), text))
            ends = [verdict(*row.end[1:]) for row in here if not math.isnan(row.end[0])]
            lines.append(_counts(clock, rival, "test loss at the end", ends, len(here), "–"))
    return lines


def _counts(clock: str, rival: str, measure: str, told: Sequence[str], of: int, text: str) -> str:
    counts = [told.count(name) for name in ("not waiting", "tie", "waiting")]
    cells = [CLOCKS[clock], rival, measure, *map(str, [*counts, of - len(told)]), text]
    return f"| {' | '.join(cells)} |"


def _mean_ratio(ratios: Sequence[float]) -> str:
    if len(ratios) < 2:
        return "–"
    logs = np.log(ratios)
    low, high = interval(logs)
    return f"{math.exp(logs.mean()):.2f} ({math.exp(low):.2f} to {math.exp(high):.2f})"


def methods_table(cells: Sequence[Cell]) -> list[str]:
    """A line for each method: time against FedAvg that waits, how often targets are reached, how far off it ends."""
    there = places(cells)
    names = [name for family in FAMILIES.values() for name in family] + FURTHER
    head = [f"{title}: {text}" for title in CLOCKS.values() for text in ("time", "at 99 %", "end")]
    lines = [f"| method | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name in names:
        texts = []
        for clock in CLOCKS:
            here = [methods for (_, at), methods in there.items() if at == clock and name in methods]
            if not here:
                texts += ["–"] * 3
                continue
            of = [methods[name] for methods in here]
            ratios = [ratio(methods[name].times["near"], methods["FedAvg"].times["near"])[0] for methods in here]
            good = [each for each in ratios if not math.isnan(each)]
            mean = f"{math.exp(np.log(good).mean()):.2f}" if good else "–"
            missing = f" ({len(good)} of {len(here)})" if len(good) < len(here) else ""
            far = np.concatenate([np.isfinite(cell.times["far"]) for cell in of])
            excess = [_excess(methods, name) for methods in here]
            texts += [f"{mean}{missing}", f"{100 * far.mean():.0f} %", f"{100 * np.mean(excess):.1f} %"]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return lines


def rates_table(cells: Sequence[Cell]) -> list[str]:
    """A line for each method: geometric means of the chosen rates over the problems, and how many are at an end."""
    head = [f"{title}: {text}" for title in CLOCKS.values() for text in ("client", "server")] + ["at an end"]
    lines = [f"| method | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name in [name for family in FAMILIES.values() for name in family] + FURTHER:
        of = [cell for cell in cells if cell.method == name]
        texts = []
        for clock in CLOCKS:
            for rates in (("lr",), ("server_lr", "mixing")):
                chosen = [
                    cell.settings[rate] for cell in of if cell.clock == clock for rate in rates if rate in cell.settings
                ]
                texts.append(f"{math.exp(np.log(chosen).mean()):.2g}" if chosen else "–")
        texts.append(f"{sum(bool(cell.edges) for cell in of)} of {len(of)}")
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return lines


def _excess(methods: Mapping[str, Cell], name: str) -> float:
    """Mean test loss at the end above the best method's, in units of what the start has above it; at most 1."""
    best = min(float(cell.ends.mean()) for cell in methods.values())
    return float(min((methods[name].ends.mean() - best) / (math.log(10) - best), 1.0))


def objective_table(cells: Sequence[Cell], about: Sequence[Table]) -> list[str]:
    """FedBuff by who starts and how answers count: χ², and the objective at the end."""
    there = places(cells)
    kinds = {"uniform": "FedBuff", "idle": "FedBuff, all under way", "corrected": "FedBuff, corrected"}
    problems = list(dict.fromkeys(problem for problem, _ in there))
    lines = [f"| clock | FedBuff | χ² | {' | '.join(f'`{problem}`' for problem in problems)} |"]
    lines.append("|---" * (len(problems) + 3) + "|")
    for row in about:
        name = kinds[row["kind"]]
        texts = [
            f"{methods[name].train.mean():.3f}" if (methods := there.get((problem, row["clock"]))) else "–"
            for problem in problems
        ]
        title = {"uniform": "any client starts", "idle": "all under way", "corrected": "the same, corrected"}
        lines.append(f"| {CLOCKS[row['clock']]} | {title[row['kind']]} | {row['chi2']:.3f} | {' | '.join(texts)} |")
    return lines


def buffer_table(cells: Sequence[Cell]) -> list[str]:
    """FedBuff with corrected weights and other buffers."""
    lines = [
        "| problem | answers a step | seconds to 90 % | seconds to 99 % | test loss at the end |",
        "|---|---|---|---|---|",
    ]
    for problem in ("skewed", "own"):
        for name, size in ((", buffer 1", 1), ("", 5), (", buffer 20", 20)):
            label = f"FedBuff, corrected{name}"
            for cell in cells:
                if (cell.problem, cell.clock, cell.method) == (problem, "wide", label):
                    near, far = (
                        f"{cell.times[target].mean():.0f}" if np.isfinite(cell.times[target]).all()
                        else f"{_reached(cell, target)} seeds" for target in TARGETS
                    )  # fmt: skip
                    end = f"{cell.ends.mean():.3f} ± {cell.ends.std(ddof=1):.3f}"
                    lines.append(f"| `{problem}` | {size} | {near} | {far} | {end} |")
    return lines


def draw(cells: Sequence[Cell]) -> Drawing:
    """How many times as long not waiting takes to the near target, a panel for each clock."""
    from fedax.figures.drawing import legend, style

    handles: dict[str, Any] = {}
    with style():
        drawing = Drawing(figsize=(6.8, 2.6), layout="constrained")
        grid = drawing.subplots(1, len(CLOCKS), sharex=True, sharey=True)
        problems = list(dict.fromkeys(problem for problem, _ in places(cells)))[::-1]
        for axes, (clock, title) in zip(grid, CLOCKS.items(), strict=True):
            axes.axvline(1, color="#8591a0", linewidth=1)
            for k, rival in enumerate(("waiting", "a deadline")):
                for row in outcomes(cells, rival):
                    mean, low, high = row.times["near"]
                    if row.free.clock == clock and not math.isnan(mean):
                        y = problems.index(row.free.problem) + 0.15 - 0.3 * k
                        axes.plot([low, high], [y, y], "-", color=colour(k), linewidth=1)
                        (point,) = axes.plot(mean, y, marker(k), color=colour(k), markersize=4)
                        handles[f"against {rival}"] = point
            axes.set_xscale("log")
            axes.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
            axes.xaxis.set_minor_formatter(lambda value, _: "")
            axes.set_yticks(range(len(problems)), problems)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(title)
        grid[1].set_xlabel("Time without waiting / time of the other, to 90 % of the way")
        legend(drawing, list(handles.values()), list(handles))
    return drawing


def keep(cells: Sequence[Cell], study: Study) -> None:
    """Write what was read, with the versions and devices that made it."""

    def numbers(values: np.ndarray) -> list[float | None]:
        return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]

    made = {json.dumps({"versions": each["versions"], "device": each["device"]}) for each in study.results.values()}
    rows = [
        {
            **cell._asdict(),
            "times": {target: numbers(values) for target, values in cell.times.items()},
            "ends": numbers(cell.ends),
            "train": numbers(cell.train),
        }
        for cell in cells
    ]
    hours = sum(each["seconds"] for each in study.results.values()) / 3600
    content = {"made": [json.loads(each) for each in sorted(made)], "hours": round(hours, 2)}
    content |= {"schedules": schedules(study), "cells": rows}
    READ.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def kept() -> tuple[list[Cell], list[Table]]:
    """What was read from the study's results: cells, and the schedules' χ²."""
    content = json.loads(READ.read_text(encoding="utf-8")) if READ.exists() else {"cells": [], "schedules": []}

    def numbers(values: Sequence[float | None]) -> np.ndarray:
        return np.array([math.inf if value is None else value for value in values])

    cells = [
        Cell(**row)._replace(
            times={target: numbers(values) for target, values in row["times"].items()},
            ends=numbers(row["ends"]),
            train=numbers(row["train"]),
        )
        for row in content["cells"]
    ]
    return cells, content["schedules"]


def written(text: str, cells: Sequence[Cell], about: Sequence[Table]) -> str:
    """The page with its generated parts."""
    parts = {
        "clocks": summary(cells),
        "outcomes": main_table(cells),
        "methods": methods_table(cells),
        "rates": rates_table(cells),
        "objective": objective_table(cells, about),
        "buffers": buffer_table(cells),
        "figure": ["![time without waiting over the time of the other, to 90 % of the way](figures/time.svg)"],
    }
    page = _MARK.sub(lambda match: match[1] + "\n".join(parts[match[2]]) + "\n" + match[3], text)
    return re.sub(r"(?<=[ (])-(?=\d)", "−", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of the study; default: only write the page anew")
    folder = parser.parse_args().folder
    if folder is not None:
        study = read_study("time")
        study.results = results_of(folder)
        keep(read_cells(study, folder), study)
    cells, about = kept()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), cells, about), encoding="utf-8")
    if cells:
        sys.path.append(str(DOCS))
        from study import svg

        FIGURE.write_text(svg(draw(cells)), encoding="utf-8")


if __name__ == "__main__":
    main()
