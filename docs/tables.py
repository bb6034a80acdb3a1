"""What of the docs is made from the methods themselves. ``python docs/tables.py`` writes it anew.

In methods.md that is the table of methods, in README.md and llms.txt their number. In each page of methods/ it is the
table at the top, the defaults and ranges of the parameters, and the figures of the reference experiment, which
benchmarks/reference.py has measured.
:func:`figure` draws that experiment; the site has the drawing where a page has the mark ``FIGURE``.
"""

import functools
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optax

import fedax
from fedax.algorithms import METHODS
from fedax.contract.compression import Compressor
from fedax.contract.hyper import rules
from fedax.contract.staleness import Staleness
from fedax.engine.footprint import Amount, Footprint, footprints

PAGE = pathlib.Path(__file__).parent / "methods.md"
PAGES = PAGE.parent / "methods"
RESULTS = PAGES / "reference.json"
COUNTED = {  # pages that say how many methods there are: what stands before the number
    PAGE.parents[1] / "README.md": "| methods | **",
    PAGE.parents[1] / "llms.txt": "fedax simulates and compares\n> ",
}
REFERENCE = PAGES / "reference-experiment.md"
FIGURE = "<!-- figure of the reference experiment -->\n"
_BEGIN, _END = "<!-- {}: python docs/tables.py -->\n", "<!-- end of the {} -->\n"
_STEPS = 3  # of the rounds that are traced

_HEAD = (
    "name",
    "↓",
    "↑",
    "memory",
    "gradients a local step",
    "cohorts",
    "local steps",
    "solver",
    "objective",
    "at its optimum",
)
_EXACT = {
    "always": "yes",
    "all clients": "with all clients",
    "equal steps": "with equal steps; else at that of Σ p_i τ_i F_i",
}
_LIMIT = {
    "F": "but for drift",
    "steps": "no: near that of Σ p_i‖a_i‖₁ F_i",
    "": "no",
}


def written() -> dict[pathlib.Path, str]:
    """Every file that has generated parts, as it should be."""
    found = {PAGE: _put(PAGE.read_text(encoding="utf-8"), "table of methods", table())}
    for path, before in COUNTED.items():
        head, after = path.read_text(encoding="utf-8").split(before)
        found[path] = head + before + re.sub(r"^\d+", str(len(list(METHODS))), after)
    found[REFERENCE] = _put(REFERENCE.read_text(encoding="utf-8"), "results", results())
    for name in METHODS:
        text = _put((PAGES / f"{name}.md").read_text(encoding="utf-8"), "facts", facts(name))
        text = _between(text, "parameters", functools.partial(_parameters, name))
        found[PAGES / f"{name}.md"] = _put(text, "results", results(name))
    return found


def table() -> str:
    """One row a method, and one for each of its choices that changes more than its name."""
    rows = [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}"]
    for name in METHODS:
        aliases = "".join(f" = `{alias}`" for alias in METHODS.get(name).aliases)
        rows.append(_row(f"[`{name}`](methods/{name}.md){aliases}", _short(_cells(name))))
        rows += [_row(f"&emsp;`{choice}`", _short(cells)) for choice, cells in _choices(name)]
    return "\n".join(rows) + "\n"


def _short(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Without the source, which is on the method's page, and with the surrogate by its name."""
    return tuple(cell.replace(_LIMIT["steps"], "surrogate") for cell in cells[:-1])


_FACTS = (
    "models sent to each client in a round",
    "models sent by each client",
    "models that a client keeps",
    "gradients in a local step",
    "cohorts",
    "local steps",
    "local solver",
    "objective",
    "ends at the optimum of F",
    "source",
)


def facts(name: str) -> str:
    """What the methods' table says of one method, a line a fact; its choices side by side."""
    columns = [("", _cells(name)), *_choices(name)]
    names = ", ".join(f"`{each}`" for each in (name, *METHODS.get(name).aliases))
    head = ["name", names, *(f"`{choice}`" for choice, _ in columns[1:])]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [_line(fact, [cells[k] for _, cells in columns], columns) for k, fact in enumerate(_FACTS)]
    lines.append(_line("BibTeX", [f"`fedax cite {name}`"], columns))
    return "\n".join(lines) + "\n"


def _line(fact: str, cells: list[str], columns: list[Any]) -> str:
    """A row of the facts; what all choices have in common stands in the first column alone."""
    cells = cells if len(set(cells)) > 1 else [cells[0]] + [""] * (len(columns) - 1)
    return f"| {fact} | {' | '.join(cells)} |"


def _choices(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A method's choices that change its row."""
    usual = _cells(name)
    for field, rule in rules(fedax.create(name)).items():
        for value in rule.choices:
            cells = _cells(name, **{field: value}) if field in METHODS.get(name).arguments else usual
            if cells != usual:
                yield f"{field}={value!r}".replace("'", '"'), cells


def _parameters(name: str, text: str) -> str:
    """The table of parameters with the defaults and ranges as they are. Its other cells are written by hand."""
    lines = text.splitlines()
    allowed = _allowed(fedax.create(name))
    for number, line in enumerate(lines[2:], 2):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        argument = cells[1].strip("`")
        if argument not in METHODS.get(name).arguments:
            raise SystemExit(f"{name}.md: the method has no argument {argument}")
        default = METHODS.get(name).arguments[argument]
        if default is not None or cells[2] != "–":  # written by hand where None stands for a value that depends
            cells[2] = _default(default)
        cells[3] = allowed.get(argument, cells[3])
        if cells[2] == "–":
            cells[3] = cells[3].removesuffix(" or off")
        lines[number] = f"| {' | '.join(cells)} |"
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is None or value is False:
        return "off"
    if isinstance(value, Compressor | Staleness):
        return f"`{value!r}`"
    return "on" if value is True else f"`{json.dumps(value)}`"


def _allowed(module: Any) -> dict[str, str]:
    """What the hyper-parameters of a method and of its parts may be."""
    found: dict[str, str] = {}
    for part in (*vars(module).values(), module):
        if hasattr(part, "__dataclass_fields__"):
            found |= {name: _shown(rule) for name, rule in rules(part).items()}
    return found


def _shown(rule: Any) -> str:
    if rule.choices:
        values = [json.dumps(each) for each in rule.choices]
        return ", ".join(f"`{value}`" for value in values) + (" or off" if rule.off else "")
    words = rule.allowed if rule.allowed[0] in "([" else rule.allowed.replace("a whole number of at least ", "whole ≥ ")
    return words + (" or off" if rule.off else "")


@functools.cache
def measured() -> dict[str, Any]:
    """The reference experiment: method -> what benchmarks/reference.py says of it."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def rival(name: str) -> str:
    """The FedAvg that does the same work as a method in the reference experiment."""
    return "fedavg, equal steps" if measured()[name]["work"] == "equal" else "fedavg"


def results(name: str | None = None) -> str:
    """A row of the reference experiment for the method and for its FedAvg; for all methods by default."""
    found = measured()
    names = list(found) if name is None else dict.fromkeys((name, rival(name)))
    head = ("method", "rates", "test loss", "test accuracy", "training loss", "rounds to FedAvg's test loss")
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for each in names:
        one, other = found[each], found[rival(each)]
        goal = np.mean([curve[-1] for curve in other["test_loss"]])
        rates = ", ".join(f"{key} = {value:g}" for key, value in one["rates"].items())
        accuracy = f"{_mean([100 * value for value in one['test_accuracy']], 1)} %"
        rounds = "–" if each.startswith("fedavg") and each == rival(each) else _reached(one, goal)
        losses = [_mean([curve[-1] for curve in one[key]], 3) for key in ("test_loss", "train_loss")]
        label = f"[`{each}`]({each}.md)" if name is None and each in METHODS else f"`{each}`"
        label = "`fedavg` with equal steps" if each not in METHODS else label
        rows.append(f"| {label} | {rates} | {losses[0]} | {accuracy} | {losses[1]} | {rounds} |")
    return "\n".join(rows) + "\n"


def _mean(values: list[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def _reached(one: dict[str, Any], goal: float) -> str:
    """The first evaluated round whose mean test loss over the seeds is at most ``goal``."""
    means = np.mean(one["test_loss"], axis=0)
    first = next((r for r, value in zip(one["rounds"], means, strict=True) if value <= goal), None)
    return "not in 100" if first is None else str(first)


def figure(name: str) -> Any:
    """The drawing of a method's reference experiment beside FedAvg."""
    from fedax.figures import Series, curves

    found = measured()
    series = {name: name} | {rival(name): "fedavg"}
    return curves([Series(label, found[each]["rounds"], found[each]["test_loss"]) for each, label in series.items()])


def _put(text: str, part: str, new: str) -> str:
    return _between(text, part, lambda old: new)


def _between(text: str, part: str, change: Callable[[str], str]) -> str:
    """The text, with what is between the marks of a part changed, if it has that part."""
    begin, end = _BEGIN.format(part), _END.format(part if part != "table of methods" else "table")
    match = re.search(re.escape(begin) + "(.*?)" + re.escape(end), text, re.DOTALL)
    return text if match is None else text[: match.start(1)] + change(match.group(1)) + text[match.end(1) :]


def _row(name: str, cells: tuple[str, ...]) -> str:
    return f"| {' | '.join((name, *cells))} |"


@functools.cache
def _cells(name: str, **hyper: Any) -> tuple[str, ...]:
    method = fedax.create(name, **hyper)
    found, traits = footprints(method), method.traits()
    return (
        _both(found.cohort.down, found.one.down),
        _both(found.cohort.up, found.one.up) + (", compressed" if found.cohort.messages else ""),
        _amount(found.memory),
        _gradients(found.cohort, found.one, found.warmup),
        traits.cohorts,
        traits.steps,
        _solver(name, found, hyper),
        "F + ψ" if "regularizer" in METHODS.get(name).arguments else "F",
        _EXACT.get(traits.exact, _LIMIT[traits.limit]),
        traits.source,
    )


def _solver(name: str, found: Any, hyper: dict[str, Any]) -> str:
    """Which local solvers a method takes."""
    if "solver" not in METHODS.get(name).arguments:
        return "its own" if found.cohort.asked.loops else "–"
    try:
        fedax.create(name, solver=fedax.Optax(optax.adam(0.1)), **hyper)
    except fedax.ConfigError:
        return "linear"
    return "any"


def _both(cohort: Amount, one: Amount) -> str:
    return _amount(cohort) + (f"; one client {_amount(one)}" if any(one) else "")


def _amount(amount: Amount) -> str:
    numbers = {0: "", 1: " + a number", 2: " + two numbers"}[amount.numbers]
    return f"{amount.models}{numbers}" if any(amount) else "–"


def _gradients(cohort: Footprint, one: Footprint, warmup: Footprint) -> str:
    asked = cohort.asked
    text = str(asked.step_batches + asked.batches // _STEPS)
    if any(one.asked):
        text += f"; one client {one.asked.step_batches}"
    elif not asked.loops:
        text += ", no local steps"
    text += {0: "", 1: ", a pass", 2: ", two passes"}[asked.passes]
    return text + (", a warm-up" if any(warmup.asked) else "")


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
