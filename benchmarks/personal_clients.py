"""Whom does a method with a model for each client help, and whom does it hurt? Client by client, for the study.

    python benchmarks/personal_clients.py studies/personal    # read the runs of `fedax study personal`
    python benchmarks/personal_clients.py                     # only write the page anew

Reads from the run folders of the study ``personal`` what its results do not have: the loss of each client's model at
each of its test rows. A client is worse off than with FedAvg's model fine-tuned only
where the 95 % interval of the paired difference over its own rows says so; 2.5 % of clients without any difference
would be so by chance. Writes docs/study/personal.json, and the tables of docs/study/personal.md between its marks: that
of the clients, that of the methods which take more gradients than the others, at equal gradients, and that of FLamby's
hospitals.
"""

import argparse
import json
import math
import pathlib
import re
from typing import Any

import numpy as np

import fedax
from fedax.columns import deciding
from fedax.contract.personal import has_personal
from fedax.experiments import build
from fedax.experiments.alone import Measured, measure
from fedax.experiments.chance import gap_of
from fedax.experiments.config.sections import seeds_of
from fedax.experiments.helped import kept
from fedax.experiments.statistics import paired
from fedax.experiments.study import Study, StudyPart, column_of, read_study, record_of, results_of
from fedax.files import slug

HERE = pathlib.Path(__file__).parents[1] / "docs/study"
PAGE, MEASURED = HERE / "personal.md", HERE / "personal.json"
BASE = "fine-tuned"
_MARK = re.compile(
    r"(<!-- (clients|gradients|hospitals): python benchmarks/personal_clients.py -->\n).*?(<!-- end -->\n)", re.S
)

FEW = 10  # clients whose accuracy is kept one by one


def at_clients(study: Study, part: StudyPart, label: str, seed: int, folder: pathlib.Path) -> Measured | None:
    """How each client's model does at its test rows, after the last round; ``None`` if the run is not in the folder."""
    point, _ = study.choice(part, label)
    if point is None:
        return None
    job = study.run(part, label, seed, point)
    run, experiment = folder / "jobs" / job.key / "run", build(job.config)
    if has_personal(experiment.methods[label]):
        return kept(run, label, seed)
    model = run / "models" / f"{slug(label)}-seed{seed}.safetensors"
    if not model.is_file():
        return None
    train, _, test = experiment.split(seed)
    return measure(experiment.task, fedax.load_model(model).params, None, train, test=test)


def by_client(methods: dict[str, Measured]) -> dict[str, Any]:
    """Method -> figures over the clients of one seed, and the shares of them that are better and worse off."""
    found = {}
    for label, each in methods.items():
        losses, sizes, of_clients = each.rows["test_loss"], each.sizes["test"], each.figures["test_loss"]
        figures = {
            "mean": of_clients.mean(),
            "spread": of_clients.std(ddof=1),
            "worst": np.sort(of_clients)[::-1][: math.ceil(len(sizes) / 10)].mean(),
        }
        for other in (BASE, "local only"):
            difference = paired([methods[other].rows["test_loss"]], [losses], [sizes])
            known = ~np.isnan(difference.low)
            figures[f"worse than {other}"] = float((difference.low[known] > 0).mean())
            figures[f"better than {other}"] = float((difference.high[known] < 0).mean())
        found[label] = {name: float(f"{value:.5g}") for name, value in figures.items()} | {"clients": len(sizes)}
        if len(sizes) <= FEW:
            found[label]["accuracy"] = each.figures["test_accuracy"].round(4).tolist()
    return found


def add(study: Study, folder: pathlib.Path, known: dict[str, Any]) -> None:
    """Add what the folder has, part by part and seed by seed."""
    for name, part in study.parts.items():
        if name == "heart-each":
            continue
        for seed in seeds_of("run.seeds", part.config["run"]["seeds"]):
            found = {label: at_clients(study, part, label, seed, folder) for label in part.labels}
            if None not in found.values():
                known.setdefault(name, {})[str(seed)] = by_client(found)
                print(name, seed, flush=True)
    MEASURED.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


# ---- the page


def clients_table(study: Study, known: dict[str, Any]) -> list[str]:
    """A table for each part: the clients' losses, and who is better and worse off."""
    lines = []
    for name, seeds in known.items():
        some = [*seeds.values()]
        lines += [
            f"**{study.parts[name].section.shows[0]}**, {some[0][BASE]['clients']} clients, {len(some)} seeds:",
            "",
            "| method | mean over clients | spread | worst tenth | worse off than fine-tuned | better off | "
            "worse off than alone | better off |",
            f"|{'---|' * 8}",
        ]
        for label in sorted(some[0], key=lambda label: np.mean([each[label]["mean"] for each in some])):
            of = {figure: [each[label][figure] for each in some] for figure in some[0][label]}
            cells = [f"{np.mean(of['mean']):.4g} ± {np.std(of['mean'], ddof=1):.2g}"]
            cells += [f"{np.mean(of[figure]):.4g}" for figure in ("spread", "worst")]
            for other in (BASE, "local only"):
                ways = (f"worse than {other}", f"better than {other}")
                cells += ["–" if label == other else f"{100 * np.mean(of[way]):.1f} %" for way in ways]
            lines.append(f"| {label} | {' | '.join(cells)} |")
        lines.append("")
    return lines[:-1]


def hospitals_table(known: dict[str, Any]) -> list[str]:
    """The accuracy at each hospital, with FLamby's data and settings."""
    lines = ["| fedax | Cleveland | Hungarian | Switzerland | Long Beach | mean |", f"|{'---|' * 6}"]
    some = [*known.get("flamby", {}).values()]
    for label in some[0] if some else ():
        values = np.mean([seed[label]["accuracy"] for seed in some], axis=0)
        lines.append(f"| {label} | {' | '.join(f'{value:.3f}' for value in (*values, values.mean()))} |")
    return lines


def gradients_table(study: Study) -> list[str]:
    """Methods that take more gradients, at those of the others: by how much they are better than fine-tuned then."""
    rows = ["| problem | method | gradients | better than fine-tuned by | 95 % interval |", f"|{'---|' * 5}"]
    for name, part in study.parts.items():
        record = record_of(study, part, HERE / "personal")
        if record is None or name == "heart-each":
            continue
        column = column_of(part, record)
        runs = {(run.label, run.seed): run.history for run in record.runs}
        for label in part.labels:
            seeds = [seed for each, seed in runs if each == label and (BASE, seed) in runs]
            if len(seeds) < 2:
                continue
            budget = runs[BASE, seeds[0]]["gradients"][-1]
            times = runs[label, seeds[0]]["gradients"][-1] / budget
            if times < 1.01:
                continue
            pairs = []
            for seed in seeds:
                history, base = runs[label, seed], runs[BASE, seed]
                within = np.flatnonzero(np.asarray(history["gradients"]) <= base["gradients"][-1])
                pairs.append((history[deciding(column, history)][within[-1]], base[deciding(column, base)][-1]))
            one, other = np.array(pairs).T
            gap = gap_of(one, other)
            low, high = gap.interval()
            cells = [part.section.shows[0], label, f"{times:.2g} ×", f"{gap.mean:.4g}", f"{low:.4g} to {high:.4g}"]
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def write_page(study: Study, known: dict[str, Any]) -> None:
    """The tables between the marks."""
    tables = {"clients": clients_table(study, known), "gradients": gradients_table(study)}
    tables["hospitals"] = hospitals_table(known)

    def block(match: re.Match[str]) -> str:
        return match[1] + "\n".join(tables[match[2]]) + "\n" + match[3]

    PAGE.write_text(_MARK.sub(block, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?", help="of the study; default: only write the page anew")
    folder = parser.parse_args().folder
    study = read_study("personal")
    study.results = results_of(HERE / "personal")
    known = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    if folder is not None:
        add(study, folder, known)
    write_page(study, known)


if __name__ == "__main__":
    main()
