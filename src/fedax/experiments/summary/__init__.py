"""The comparison of methods from the rows of their runs, and its sentences."""

from fedax.experiments.summary.compared import (
    LEVEL,
    Method,
    ProblemResults,
    axes,
    axes_of,
    costs_of,
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
from fedax.experiments.summary.settings import axis, facts, in_words, over, short, telling, thousands, varied
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
    weaknesses,
    with_spread,
)

__all__ = [
    "GONE", "LEVEL", "NOT_PRIVATE", "WORDS", "Method", "ProblemResults", "axes", "axes_of", "axis", "costs_of",
    "curve_order", "deltas", "described", "facts", "holm", "in_words", "judged", "legend", "methods", "metrics",
    "order", "over", "problems", "short", "spending", "spread", "table_order", "telling", "thousands", "varied",
    "verdict", "weaknesses", "wide", "with_spread",
]  # fmt: skip
