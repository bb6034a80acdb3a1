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
    judged_by,
    methods,
    metrics,
    order,
    problems,
    spread,
    table_order,
)
from fedax.experiments.summary.settings import axis, facts, in_words, over, rates, short, telling, thousands, varied
from fedax.experiments.summary.words import (
    GONE,
    NOT_PRIVATE,
    WORDS,
    alone_is_better,
    conclusion,
    deltas,
    described,
    judged,
    legend,
    listed,
    recommendation,
    spending,
    verdict,
    weaknesses,
    with_spread,
)
from fedax.experiments.summary.worth import over_clients
