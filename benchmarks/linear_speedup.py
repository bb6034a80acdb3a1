"""Linear speed-up of FedAvg, Nesterov FedAvg and FedMaSS, from the results of the study speedup.

    fedax study speedup --out studies/speedup
    python benchmarks/linear_speedup.py studies/speedup    # read the iterations to the target
    python benchmarks/linear_speedup.py                    # write the tables and the figure anew from what was read

The first call writes docs/study/speedup.json. Both write docs/study/speedup.md between its marks, and
docs/study/figures/speedup.svg.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.experiments.runs import Record
from fedax.experiments.statistics import interval
from fedax.experiments.study import Study, read_study, record_of, results_of
from fedax.figures import Drawing, colour, marker

DOCS = Path(__file__).parents[1] / "docs"
PAGE, READ, FIGURE = DOCS / "study/speedup.md", DOCS / "study/speedup.json", DOCS / "study/figures/speedup.svg"
_MARK = re.compile(r"(<!-- ([a-z]+): python benchmarks/linear_speedup.py -->\n).*?(<!-- end -->\n)", re.DOTALL)


class Case(NamedTuple):
    """An objective and its target F ≤ f* + ε, both numbers as printed in Qu et al. 2020, appendix I."""

    title: str
    f_star: float
    epsilon: float
    l2: float = 0.0


N = 49749  # examples of w8a
CASES = {
    "strongly-convex": Case("logistic, λ = 1/n", 0.126433176216545, 0.005, 1 / N),
    "convex": Case("logistic, λ = 0", 0.11379089057514849, 0.02),
    "regression": Case("linear regression", 0.0, 0.02),
}
PERIOD = 4  # E of the recipes, which have 16 devices
PANELS = {  # part -> the axis, active devices or E
    "full": {f"n{n}": n for n in (1, 2, 4, 8, 16, 32)},
    "half": {f"half-n{n}": n // 2 for n in (4, 8, 16, 32, 64, 128)},
    "period": {"n16" if steps == PERIOD else f"e{steps}": steps for steps in (1, 2, 4, 8, 16, 32)},
}
HEADS = {"full": "active devices, all", "half": "active devices, half of all", "period": "local steps E"}


class Curve(NamedTuple):
    """One line of the figures.

    Attributes:
        case, panel, method: what it shows.
        at: [K] active devices, or local steps a round.
        iterations: [K, seeds] local steps until the target is reached; ∞ where it was not.
        rates: [K] the step sizes that were chosen: η₀, of FedMaSS η₁.
    """

    case: str
    panel: str
    method: str
    at: np.ndarray
    iterations: np.ndarray
    rates: list[float]

    def means(self) -> np.ndarray:
        """[K] geometric means over the seeds; ∞ where a seed did not reach the target."""
        return np.exp(np.log(self.iterations).mean(axis=1))

    def slope(self) -> tuple[float, float, float]:
        """Of log iterations against log devices or E, by least squares in each seed: the mean, and a 95 % interval.

        Where a seed did not reach the target it has no point.
        """
        slopes = np.array([_slope(self.at, each) for each in self.iterations.T])
        low, high = interval(slopes) if len(slopes) > 1 and np.isfinite(slopes).all() else (math.nan, math.nan)
        return float(slopes.mean()), low, high


def _slope(at: np.ndarray, iterations: np.ndarray) -> float:
    good = np.isfinite(iterations)
    return float(np.polyfit(np.log(at[good]), np.log(iterations[good]), 1)[0]) if good.sum() > 1 else math.nan


def reached(record: Record, method: str, target: float) -> list[float]:
    """Local steps until F ≤ target, by seed, to the first evaluation that is there."""
    steps, iterations = record.config["work"]["steps"], []
    for run in record.runs:
        if run.label == method:
            there = np.flatnonzero(run.history["train_loss"] <= target)
            iterations.append(float(run.history["round"][there[0]] * steps) if len(there) else math.inf)
    return iterations


def curves(study: Study, folder: Path) -> Iterator[Curve]:
    """Those of which all parts have been run with all seeds."""
    for case, about in CASES.items():
        for panel, parts in PANELS.items():
            there = [study.parts[name] for name in (f"{case}-{part}" for part in parts) if name in study.parts]
            records = [record for part in there if (record := record_of(study, part, folder)) is not None]
            if len(records) < len(parts):
                continue
            for method in records[0].labels if panel == "full" else ["FedAvg"]:
                iterations = [reached(record, method, about.f_star + about.epsilon) for record in records]
                rows = [next(row for row in r.config["methods"] if row["label"] == method) for r in records]
                rates = [row["lr"]["cap"] if isinstance(row["lr"], dict) else row["lr"] for row in rows]
                if len({len(each) for each in iterations}) == 1:
                    yield Curve(case, panel, method, np.array([*parts.values()]), np.array(iterations), rates)


def table(measured: Sequence[Curve]) -> list[str]:
    """Markdown: iterations, the step size chosen in brackets, and slopes; a table for each panel."""
    lines = []
    for panel, head in HEADS.items():
        rows = [curve for curve in measured if curve.panel == panel]
        if rows:
            lines += [f"| objective | method | {head}: " + " | ".join(map(str, rows[0].at.tolist())) + " | slope |"]
            lines += ["|" + "---|" * (len(rows[0].at) + 3)]
            for c in rows:
                cells = " | ".join(f"{k:,.0f} ({rate:g})" for k, rate in zip(c.means(), c.rates, strict=True))
                slope, low, high = c.slope()
                between = "" if math.isnan(low) else f" ({low:.2f} to {high:.2f})"
                lines.append(f"| {CASES[c.case].title} | {c.method} | {cells} | {slope:.2f}{between} |")
            lines.append("")
    text = "\n".join(lines).replace("| inf ", "| never ")
    return re.sub(r"(?<=[ (])-(?=\d)", "−", text).split("\n")[:-1]


def draw(measured: Sequence[Curve]) -> Drawing:
    """A row for each objective, a column for each panel."""
    from fedax.figures.drawing import legend, style

    cases = [case for case in CASES if any(c.case == case for c in measured)]
    methods = list(dict.fromkeys(c.method for c in measured))
    handles: dict[str, Any] = {}
    with style():
        drawing = Drawing(figsize=(6.8, 2.0 * len(cases) + 0.4), layout="constrained")
        grid = drawing.subplots(len(cases), len(PANELS), squeeze=False)
        for axes, (case, panel) in zip(grid.ravel(), ((c, p) for c in cases for p in PANELS), strict=True):
            lines = [c for c in measured if c.case == case and c.panel == panel]
            for c in lines:
                k = methods.index(c.method)
                for each in c.iterations.T:
                    axes.plot(c.at, each, marker(k), color=colour(k), markersize=2, alpha=0.4)
                handles[c.method] = axes.plot(c.at, c.means(), "-", color=colour(k), linewidth=1)[0]
                if panel == "period":
                    rounds = axes.plot(c.at, c.means() / c.at, "--", color=colour(k), linewidth=1)[0]
                    handles[f"{c.method}, rounds"] = rounds
            if lines and panel != "period":
                linear = lines[0].means()[0] * lines[0].at[0] / lines[0].at
                handles["linear"] = axes.plot(lines[0].at, linear, ":", color="#8591a0", linewidth=1)[0]
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(lambda value, _: "")
            axes.set_xticks([*PANELS[panel].values()], map(str, PANELS[panel].values()))
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(CASES[case].title)
            axes.set_xlabel(HEADS[panel][0].upper() + HEADS[panel][1:])
        for row in grid:
            row[0].set_ylabel("Iterations to the target")
        legend(drawing, list(handles.values()), list(handles))
    return drawing


def kept() -> list[Curve]:
    """What was read from the study's results."""
    rows = json.loads(READ.read_text(encoding="utf-8"))["curves"] if READ.exists() else []
    return [
        Curve(
            row["case"],
            row["panel"],
            row["method"],
            np.array(row["at"]),
            np.array([[math.inf if k is None else k for k in each] for each in row["iterations"]]),
            row["rates"],
        )
        for row in rows
    ]


def keep(measured: Sequence[Curve], study: Study) -> None:
    """Write what was read, with the versions and devices that made it."""
    made = {json.dumps({"versions": each["versions"], "device": each["device"]}) for each in study.results.values()}
    rows = [
        {
            "case": c.case,
            "panel": c.panel,
            "method": c.method,
            "at": c.at.tolist(),
            "iterations": [[k if math.isfinite(k) else None for k in each] for each in c.iterations.tolist()],
            "rates": c.rates,
        }
        for c in measured
    ]
    hours = sum(each["seconds"] for each in study.results.values()) / 3600
    content = {"made": [json.loads(each) for each in sorted(made)], "hours": round(hours, 2), "curves": rows}
    READ.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def written(text: str, measured: Sequence[Curve]) -> str:
    """The page with its generated parts."""
    parts = {
        "table": "\n".join(table(measured)) + "\n",
        "figure": "![iterations to the target against devices and local steps](figures/speedup.svg)\n",
    }
    return _MARK.sub(lambda match: match[1] + parts[match[2]] + match[3], text)


def exactly(l2: float) -> float:
    """F at a point near the optimum that L-BFGS finds in float64: an upper bound of f* on these data."""
    from scipy.optimize import minimize
    from scipy.special import expit

    train = fedax.data.load("w8a").train
    x, y = np.asarray(train["x"], float), np.asarray(train["y"], float)

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = y * (x @ w)
        grad = -x.T @ (y * expit(-z)) / N + l2 * w
        return float(np.mean(np.logaddexp(0, -z)) + l2 / 2 * w @ w), grad

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 50}
    return float(minimize(value, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options=options).fun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of the study; default: only write the page anew")
    parser.add_argument("--study", default="speedup", help="its name or file")
    parser.add_argument("--exact", action="store_true", help="also solve for f* of the logistic objectives")
    options = parser.parse_args()
    if options.exact:
        for case in ("strongly-convex", "convex"):
            print(f"{case}: f* as printed {CASES[case].f_star}, by L-BFGS {exactly(CASES[case].l2):.15f}")
    if options.folder is not None:
        study = read_study(options.study)
        study.results = results_of(options.folder)
        measured = [*curves(study, options.folder)]
        if not measured:
            raise SystemExit(f"{options.folder} has no panel with all its parts; run: fedax study {options.study}")
        keep(measured, study)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept()), encoding="utf-8")
    if kept():
        sys.path.append(str(DOCS))
        from study import svg

        FIGURE.write_text(svg(draw(kept())), encoding="utf-8")


if __name__ == "__main__":
    main()
