"""Curves of a measure against what training costs."""

from collections.abc import Sequence

import numpy as np

from fedax.figures.axes import chart
from fedax.figures.drawing import Drawing, draw
from fedax.figures.series import Series


@np.errstate(all="ignore")  # means of numbers near the largest float overflow
def curves(
    series: Sequence[Series], *, x: str = "rounds", column: str = "test_loss", target: float | None = None
) -> Drawing:
    """The curves of several methods: lines are means over the seeds, bands go from the lowest to the highest seed.

    Args:
        series: the methods, in the order of the legend. At most 72 differ in colour or mark.
        x: what they are drawn against: ``"rounds"``, ``"bytes"``, ``"uploads"``, ``"seconds"``, ``"time"``,
            ``"gradients"``, ``"local_steps"``, or ``"epsilon"``.
        column: what was measured, which gives the label, the unit and the scale.
        target: a value of the column, drawn as a line across.

    Returns:
        A Matplotlib figure, 3.3 inches wide: one column of a paper. :func:`fedax.figures.write` writes it.

    Raises:
        ConfigError: no series, or no such axis.

    Example:
        >>> figure = curves([Series("fedavg", [0, 10], [[2.3, 0.9]]), Series("fednova", [0, 10], [[2.3, 0.7]])])
        >>> figure.axes[0].get_ylabel(), [text.get_text() for text in figure.legends[0].get_texts()]
        ('Test loss', ['fedavg', 'fednova'])
    """
    return draw(chart(series, x, column, target))
