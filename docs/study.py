"""The study's tables and figures. ``python docs/study.py`` draws them anew from the results in docs/study.

Each paper has a page there, written by hand but for the blocks between marks that name a part of its study: the claim,
the verdict, a table of the methods, one of the claims' tests, and a figure; of provisional parts no tests and figure.
``fedax study NAME --out docs/study/NAME`` adds results; ``python docs/study.py --check`` looks for broken rules, in
docs/study or in the folders of other studies.
"""

import argparse
import functools
import io
import json
import math
import pathlib
import re
import sys
import textwrap

import matplotlib
import numpy as np

from fedax.columns import better, deciding, describe, show
from fedax.errors import ConfigError
from fedax.experiments import study as studies
from fedax.experiments.charts import series
from fedax.experiments.config.sections import seeds_of
from fedax.experiments.runs import Record
from fedax.experiments.study import Claim, Study, StudyPart
from fedax.experiments.summary import Method, ProblemResults, metrics, problems, short
from fedax.figures import Drawing, curves
from fedax.figures.drawing import style

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from docs import pooled, study_rules

HERE = pathlib.Path(__file__).parent / "study"
FIGURES = HERE / "figures"
_MARK = re.compile(r"(<!-- ([a-z]+)/([a-z0-9-]+): python docs/study.py -->\n).*?(<!-- end -->\n)", re.DOTALL)
_VERDICT = re.compile(r"(<!-- verdict of ([a-z]+)/([a-z0-9-]+) -->).*?(<!-- end -->)")
_CORE = "1 × cpu"  # the device of a study's job, where no other is named
_LEAST_P = 0.001  # smaller ones are not told apart


def load(name: str) -> Study:
    """A study with the results that are in docs/study."""
    study = studies.read_study(name)
    study.results = studies.results_of(HERE / name)
    return study


def written() -> dict[pathlib.Path, str]:
    """Every page with generated blocks, as it should be."""
    study = functools.cache(load)

    def block_of(match: re.Match[str]) -> str:
        begin, name, part, end = match.groups()
        return begin + block(study(name), name, part) + end

    def verdict_of(match: re.Match[str]) -> str:
        begin, name, part, end = match.groups()
        return begin + said(study(name), name, part) + end

    found = {}
    for path in [HERE.with_suffix(".md"), *sorted(HERE.glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        new = _VERDICT.sub(verdict_of, _MARK.sub(block_of, text))
        if new != text or _MARK.search(text) or _VERDICT.search(text):
            found[path] = new
    return found


def said(study: Study, name: str, part: str) -> str:
    """The least effect and the verdict on a part in a few words, for the table of all figures."""
    at = study.parts[part]
    record = studies.record_of(study, at, HERE / name)
    if record is None or len(record.runs) < _asked(at):
        return f"under way, {0 if record is None else len(record.runs)} of {_asked(at)} runs are over"
    found = studies.fair(at, studies.claims(at, record))
    if not found:
        return "nothing is claimed in pairs"
    if at.section.provisional:
        return "none: tuned on too few rounds"
    least = studies.decisive(found)
    scope = f" {at.section.scope}" if at.section.scope else ""
    effect = "" if least is None else f"{studies.effect(least, studies.column_of(at, record))}: "
    return f"{effect}{studies.verdict(found)}{scope}"


def _asked(part: StudyPart) -> int:
    """How many runs a part has, of all methods with all seeds."""
    return len(part.labels) * len(seeds_of("run.seeds", part.config["run"].get("seeds", 1)))


def block(study: Study, name: str, part: str) -> str:
    """What stands between the marks of one part."""
    at = study.parts[part]
    record = studies.record_of(study, at, HERE / name)
    if record is None:
        todo = f"Not yet run: `fedax study {name} --part {part} --out docs/study/{name}`."
        text = f"**Claim.** {at.section.text} **{todo.replace(':', ':**', 1)} {studies.design(at)}"
        return "\n".join(textwrap.wrap(text, 118, break_on_hyphens=False)) + "\n"
    (problem,) = problems([record])
    column = studies.column_of(at, record)
    found = studies.claims(at, record)
    over = len(record.runs) == _asked(at)
    lines = textwrap.wrap(f"**Claim.** {at.section.text}", 118)
    if not over:
        lines += textwrap.wrap(f"**Verdict:** {said(study, name, part)}.", 118)
    elif found:
        lines += ["", *textwrap.wrap(f"**{studies.conclusion(at, record).replace(':', ':**', 1)}", 118)]
    else:
        lines += textwrap.wrap("Nothing is claimed in pairs.", 118)
    lines += ["", *_methods(study, at, record, problem, column)]
    if at.section.holes:
        lines += ["", *textwrap.wrap(f"**Not tried**, by [the rule](../study.md#the-protocol): {_holes(at)}.", 118)]
    if at.section.provisional:  # nothing follows from it: no pairs, no figure
        return "\n".join(lines) + "\n"
    if found and over:
        lines += ["", *_tests(found, column, at), "", *textwrap.wrap(f"**Design.** {studies.design(at)}", 118)]
        if remark := pooled.remark(at, record):
            lines += ["", *textwrap.wrap(f"**Remark.** {remark}", 118)]
    lines += ["", f"![{at.section.shows[0]}: {describe(column).label}](figures/{name}-{part}.svg)"]
    return "\n".join(lines) + "\n"


def _holes(part: StudyPart) -> str:
    """The known holes, of methods with the same ones together."""
    same: dict[tuple[str, ...], list[str]] = {}
    for label, which in part.section.holes.items():
        same.setdefault(tuple(which), []).append(label)
    return "; ".join(f"{', '.join(which)} ({' / '.join(labels)})" for which, labels in same.items())


def _methods(study: Study, part: StudyPart, record: Record, problem: ProblemResults, column: str) -> list[str]:
    """A row for each method, the best first."""
    known = describe(column)
    every = metrics(problem.methods)
    others = [deciding(each, every) for each in ("test_accuracy", "test_loss", "train_loss")]
    shown = [column, *(each for each in others if each != column and each in every)]
    tuned = any(study.choices(part, label) or part.section.tuned_by for label in part.labels)
    early = "val_loss" in record.runs[0].history
    at_best = [f"{known.label} at the lowest validation loss"] if early else []
    head = ["method", *(describe(each).label for each in shown), *at_best, "seeds", "GB of traffic"]
    rows = [[*head, "chosen"] if tuned else head]
    methods = sorted(problem.methods, key=lambda m: _order(m, column, problem.tail))
    for m in methods:
        cells = [m.label, *(_late(m, each, problem.tail) for each in shown)]
        cells += [*([_at_best(m, column)] if early else []), str(len(m.runs))]
        traffic = (m.cost("bytes_down") + m.cost("bytes_up")) / 1e9
        cells.append(f"{traffic:.3g}")
        point = study.choice(part, m.label)[0] if tuned else None
        rows.append([*cells, _settings(point or {})] if tuned else cells)
    note = f"Means ± standard deviation over the seeds, of the last {problem.tail} evaluations. {known.label}"
    note += f" decides. {part.config['run']['rounds']:,} rounds."
    if record.about["device"] != _CORE:
        note += f" Devices: {record.about['device']}."
    return [*_table(rows), "", *textwrap.wrap(note, 118)]


def _order(m: Method, column: str, tail: int) -> tuple[bool, float]:
    values = m.tail(column, max(tail, 1))
    sign = 1 if better(column) == "lower" else -1
    return not values.size, sign * float(values.mean()) if values.size else math.inf


def _late(m: Method, column: str, tail: int) -> str:
    values = m.tail(column, max(tail, 1))
    if not values.size:
        return m.status_text
    return _spread(column, values)


def _at_best(m: Method, column: str) -> str:
    """What early stopping by the validation loss gives."""
    histories = [run.history for run in m.runs]
    rounds = [int(np.nanargmin(history[deciding("val_loss", history)])) for history in histories]
    ends = [history[deciding(column, history)][k] for history, k in zip(histories, rounds, strict=True)]
    return _spread(column, np.array(ends))


def _spread(column: str, values: np.ndarray) -> str:
    text = show(column, float(values.mean()))
    return text if len(values) < 2 else f"{text} ± {show(column, float(values.std(ddof=1)))}"


def _settings(point: dict[str, object]) -> str:
    return ", ".join(f"{name.removesuffix('.value')} {short(value)}" for name, value in point.items()) or "as printed"


def _tests(found: list[Claim], column: str, part: StudyPart) -> list[str]:
    counted = studies.fair(part, found)
    rows = [["claimed", "better by", "95 % interval", "p, corrected", "beyond chance"]]
    for claim in found:
        if math.isinf(claim.gap):
            by, between = f"{claim.worse if claim.gap > 0 else claim.better} failed", "–"
        else:
            by = "–" if math.isnan(claim.gap) else show(column, claim.gap)
            between = "–" if math.isnan(claim.low) else f"{show(column, claim.low)} to {show(column, claim.high)}"
        told = claim.result if claim in counted else "says nothing"
        rows.append([f"{claim.better} > {claim.worse}", by, between, _p(claim.corrected), told])
    return _table(rows)


def _p(p: float) -> str:
    return "–" if math.isnan(p) else f"< {_LEAST_P}" if p < _LEAST_P else f"{p:.3f}"


def _table(rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]


def figure(study: Study, name: str, part: str) -> Drawing | None:
    """The curves of the column that decides."""
    at = study.parts[part]
    record = studies.record_of(study, at, HERE / name)
    if record is None:
        return None
    (problem,) = problems([record])
    column = studies.column_of(at, record)
    return curves(series(problem.methods, column), column=column)


def svg(drawn: Drawing) -> str:
    """A figure in half the bytes: its letters are text, which can be searched, coordinates have tenths of a point, and
    marks that look alike say so once.

    Verdana is as wide as the font that Matplotlib brings, where that is missing.
    """
    buffer = io.StringIO()
    with style(), matplotlib.rc_context({"svg.fonttype": "none"}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    kept = r'(style="[^"]*"|>[^<]*<)'  # sizes, widths and opacities; and what is written
    short = [
        part if re.fullmatch(kept, part) else re.sub(r"\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", part)
        for part in re.split(kept, text)
    ]
    text = re.sub(r"\s*\n\s*", "\n", "".join(short))
    alike = r'(<g[^>]*)>\n(<use [^>]* (style="[^"]*")/>\n(?:<use [^>]* \3/>\n)+)</g>'
    return re.sub(alike, lambda of: f"{of[1]} {of[3]}>\n{of[2].replace(f' {of[3]}', '')}</g>", text)


def checked(folders: list[pathlib.Path]) -> tuple[list[str], list[str]]:
    """What breaks the rules in the folders of studies; and what does in parts that their files call provisional."""
    broken, known = [], []
    for at in folders:
        study = studies.read_study(at.resolve().name)
        broken += study_rules.faults(study, at)
        for part in study.parts.values():
            if part.section.provisional:
                known += study_rules.unsure(study, part)
    return broken, known


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check",
        nargs="*",
        type=pathlib.Path,
        metavar="FOLDER",
        help="look for choices that break the rules, in docs/study or in these folders of studies",
    )
    asked = parser.parse_args()
    shown = {match[2] for path in HERE.glob("*.md") for match in _MARK.finditer(path.read_text(encoding="utf-8"))}
    there = [name for name in sorted(shown) if (HERE / name).exists()]
    if asked.check is not None:
        folders = asked.check or [HERE / name for name in there]
        for at in folders:
            if not (at / "results").is_dir():
                parser.error(f"--check: {at} has no folder results; give the folder of a study that has begun")
        try:
            broken, known = checked(folders)
        except ConfigError as error:
            parser.error(f"--check: {error}")
        if known:
            print("Parts that were tuned on too few rounds, from which nothing follows:", *known, "", sep="\n")
        print("\n".join(broken) or f"No {'other ' if known else ''}choice breaks the rules.")
        raise SystemExit(bool(broken))
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        for name, part in re.findall(r"figures/([a-z]+)-([a-z0-9-]+)\.svg", text):
            drawn = figure(load(name), name, part)
            if drawn is not None:
                at = FIGURES / f"{name}-{part}.svg"
                at.write_text(svg(drawn), encoding="utf-8")
    hours = {name: sum(line["seconds"] for line in load(name).results.values()) / 3600 for name in there}
    print(json.dumps({name: round(value, 2) for name, value in hours.items()}), "hours of one core")


if __name__ == "__main__":
    main()
