"""The table of methods in methods.md, made from the methods themselves. ``python docs/tables.py`` writes it anew."""

import pathlib
from typing import Any

import fedax
from fedax.algorithms import METHODS
from fedax.contract.hyper import rules
from fedax.engine.footprint import Amount, Footprint, footprints

PAGE = pathlib.Path(__file__).parent / "methods.md"
BEGIN, END = "<!-- table of methods: python docs/tables.py -->\n", "<!-- end of the table -->\n"
_STEPS = 3  # of the rounds that are traced

_HEAD = (
    "name",
    "↓",
    "↑",
    "memory",
    "gradients a local step",
    "cohorts",
    "local steps",
    "objective",
    "at its optimum",
    "source",
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


def table() -> str:
    """One row a method, and one for each of its choices that changes more than its name."""
    rows = [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}"]
    for name in METHODS:
        usual = _cells(name, {})
        rows.append(_row(f"`{name}`" + "".join(f" = `{alias}`" for alias in METHODS.get(name).aliases), usual))
        for field, rule in rules(fedax.create(name)).items():
            for value in rule.choices:
                cells = _cells(name, {field: value}) if field in METHODS.get(name).arguments else usual
                if cells != usual:
                    rows.append(_row(f"&emsp;`{field}={value!r}`".replace("'", '"'), cells))
    return "\n".join(rows) + "\n"


def page() -> str:
    """methods.md with the table as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def _row(name: str, cells: tuple[str, ...]) -> str:
    return f"| {' | '.join((name, *cells))} |"


def _cells(name: str, hyper: dict[str, Any]) -> tuple[str, ...]:
    method = fedax.create(name, **hyper)
    found, traits = footprints(method), method.traits()
    return (
        _both(found.cohort.down, found.one.down),
        _both(found.cohort.up, found.one.up),
        _amount(found.memory),
        _gradients(found.cohort, found.one, found.warmup),
        traits.cohorts,
        traits.steps,
        "F + ψ" if "regularizer" in METHODS.get(name).arguments else "F",
        _EXACT.get(traits.exact, _LIMIT[traits.limit]),
        traits.source,
    )


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
    PAGE.write_text(page(), encoding="utf-8")
