"""The plots of a run folder, for papers and slides: each as PNG, SVG and PDF, in the style of :mod:`fedax.figures`."""

from collections.abc import Iterator

from fedax.experiments import charts, summary, sweeps
from fedax.experiments.runs import Record, slug
from fedax.figures.axes import chart
from fedax.figures.drawing import draw, encode, style
from fedax.figures.series import Chart
from fedax.files import write_atomic

FORMATS = ("png", "svg", "pdf")
_AGAINST = {"rounds", "bytes", "seconds", "time"}  # time: of runs with a clock


def write_plots(record: Record, only: str = "") -> None:
    """Write the pictures of :func:`pictures` into plots/, in each format; ``only``: those of one column."""
    for name, picture in pictures(record):
        if only and name.partition("-")[0] != only:
            continue
        figure = draw(picture)
        for form in FORMATS:
            write_atomic(record.folder / "plots" / f"{name}.{form}", encode(figure, form))
            with style():
                figure.set_layout_engine(None)  # its layout stays, but with an engine all would be drawn twice


def pictures(record: Record) -> Iterator[tuple[str, Chart]]:
    """``<metric>`` against rounds; of the deciding one ``<metric>-bytes`` and so on; ``clients``; ``sweep-<what>``."""
    methods, (problem,) = summary.methods([record]), summary.problems([record])
    for column in summary.metrics(methods):
        for x in summary.axes_of(methods).keys() & (_AGAINST if column == problem.judge else {"rounds"}):
            name = column if x == "rounds" else f"{column}-{x}"
            yield name, chart(charts.series(methods, column, x), x, column)
    yield "clients", charts.of_clients(record.about["clients"])["sizes"]
    if "sweep" in record.config:
        for picture in sweeps.charts(record):
            yield f"sweep-{slug(picture.title)}", picture
