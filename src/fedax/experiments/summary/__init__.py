"""From the rows of single runs to what is shown: how methods compare, and the words for it."""

from fedax.experiments.summary.compared import (
    LEVEL,
    Method,
    Problem,
    axes,
    axes_of,
    curve_order,
    holm,
    methods,
    metrics,
    order,
    problems,
    spread,
    table_order,
    wide,
)
from fedax.experiments.summary.settings import axis, facts, over, short, telling, thousands
from fedax.experiments.summary.words import (
    GONE,
    NOT_PRIVATE,
    WORDS,
    deltas,
    described,
    judged,
    legend,
    spending,
    verdict,
    with_spread,
)

__all__ = [
    "GONE", "LEVEL", "NOT_PRIVATE", "WORDS", "Method", "Problem", "axes", "axes_of", "axis", "curve_order", "deltas",
    "described", "facts", "holm", "judged", "legend", "methods", "metrics", "order", "over", "problems", "short",
    "spending", "spread", "table_order", "telling", "thousands", "verdict", "wide", "with_spread",
]  # fmt: skip
