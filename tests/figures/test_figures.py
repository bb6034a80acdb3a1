"""Figures: the same bytes for the same thing, colours that all can tell apart, labels as they were written."""

import itertools
import re
import warnings
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from fedax.errors import ConfigError
from fedax.figures import COLOURS, DASHES, Series, along, colour, curves, dash, encode, marker, write
from fedax.figures.drawing import draw
from fedax.figures.series import Chart, Scale

LABELS = ["plain", "100 % $x_1$ & <b>", "_hidden", "η \\cmd {a}"]


def falling(label, rate=0.3, gone=""):
    x = np.arange(0, 30, 3)
    return Series(label, x, np.exp(-rate * x)[None] * np.array([[0.9], [1.1]]), gone)


@pytest.fixture(scope="module")
def figure():
    return curves([falling(label, 0.1 + 0.02 * k) for k, label in enumerate(LABELS)], target=0.2)


def test_the_same_figure_has_the_same_bytes_without_a_date(figure):
    again = curves([falling(label, 0.1 + 0.02 * k) for k, label in enumerate(LABELS)], target=0.2)
    for form, no in {"png": b"\x00tIME", "svg": b"dc:date", "pdf": b"Date"}.items():
        with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": None, "lines.linewidth": 9}):  # a user's own
            first = encode(figure, form)
        assert first == encode(again, form) and no not in first


def test_a_figure_is_as_wide_as_a_column(figure, tmp_path):
    for form in ("png", "svg", "pdf"):
        write(figure, tmp_path / f"a.{form}")
    assert imread(tmp_path / "a.png").shape[1] == 990  # 300 dots an inch
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.get("width") == "237.6pt"  # 3.3 inches of 72 points
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", (tmp_path / "a.pdf").read_bytes())
    assert float(box[1]) == pytest.approx(237.6)
    assert b"/Subtype /Type3" not in (tmp_path / "a.pdf").read_bytes()  # which many venues refuse


def test_labels_are_drawn_as_they_are_and_hide_nothing(figure):
    assert [text.get_text() for text in figure.legends[0].get_texts()] == LABELS
    assert not any(text.get_parse_math() for text in figure.legends[0].get_texts())
    figure.draw_without_rendering()
    box, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert box.y1 < axes.y0 and box.x0 > 0 and box.x1 < figure.bbox.x1
    long = curves([falling("a label " * 20), falling("x" * 99)])
    long.draw_without_rendering()
    assert long.legends[0].get_window_extent().x1 < long.bbox.x1


def test_a_character_that_the_font_does_not_have_is_a_box_without_a_warning():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph")
        encode(curves([falling("方法 😀")]), "svg")


def test_a_curve_alone_needs_no_legend():
    assert curves([falling("")]).legends == []


# Machado, Oliveira & Fernandes 2009, table 1, severity 1.0: what is seen without one of the three kinds of cones.
CONES = {
    "all": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no medium": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(name):
    values = np.array([int(name[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("cones", CONES)
def test_colours_are_told_apart_by_the_colour_blind(cones):
    seen = [lab(np.array(CONES[cones]) @ linear(name)) for name in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 27


def test_colours_are_seen_on_white():
    luminance = [float(np.dot([0.2126, 0.7152, 0.0722], linear(name))) for name in COLOURS]
    assert min(1.05 / (y + 0.05) for y in luminance) > 3


def test_more_methods_than_colours_differ_in_mark_and_dash():
    assert len({(colour(k), marker(k)) for k in range(72)}) == 72
    assert len({(colour(k), dash(k)) for k in range(32)}) == 32
    assert all(dash(k) != dash(k + 1) and marker(k) != marker(k + 1) for k in range(39))
    figure = curves([falling(str(k)) for k in range(40)])
    drawn = {(line.get_color(), line.get_marker(), str(line.get_linestyle())) for line in figure.axes[0].lines}
    assert len(drawn) == 40 and len(DASHES) == 4


def test_curves_that_are_the_same_are_all_seen():
    lines = curves([falling(str(k)) for k in range(4)]).axes[0].lines
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True) and len({*widths}) == 4


def test_lines_are_means_and_bands_go_from_the_lowest_to_the_highest():
    figure = curves([Series("a", [0, 5], [[4.0, 1.0], [2.0, 2.0], [0.0, 6.0]])], x="gradients", column="train_loss")
    (axes,) = figure.axes
    assert axes.lines[0].get_xydata().tolist() == [[0, 2.0], [5, 3.0]]
    assert {(0, 0.0), (0, 4.0), (5, 1.0), (5, 6.0)} <= {*map(tuple, axes.collections[0].get_paths()[0].vertices)}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Gradients, all clients", "Train loss")


def test_what_diverged_does_not_scale_the_picture_and_the_target_does():
    calm, wild = Series("calm", [0, 9], [[1.0, 0.5]]), Series("wild", [0, 9], [[1.0, 1e30]], "diverged")
    axes = curves([calm, wild], target=0.2).axes[0]
    low, high = axes.get_ylim()
    assert 0 < low < 0.2 and 1 < high < 2
    assert axes.lines[-1].get_ydata() == [0.2, 0.2] and len(axes.lines) == 4  # two curves, a cross, the target
    only = curves([Series("wild", [0], [[np.nan]], "diverged")])
    encode(only, "png")


def test_what_is_far_off_is_drawn_as_soon_as_the_others():
    encode(
        curves([Series("calm", [0, 9], [[1.0, 0.5]]), Series("far", [0, 1, 9], [[1.0, 1e250, 1e30]], "gone")]), "svg"
    )


def test_marks_lie_along_the_axis_and_not_on_one_another():
    lines = curves([Series(str(k), np.arange(71), [np.ones(71)]) for k in range(5)]).axes[0].lines
    places = [line.get_markevery() for line in lines]
    assert places[0] == [0, 10, 20, 30, 40, 50, 60] and len({at for each in places for at in each}) == 35


@pytest.mark.parametrize(
    ("x", "column", "values", "text"),
    [
        ("bytes", "test_accuracy", [0.5, 0.75], ("2 MB", "70 %")),
        ("rounds", "test_loss", [0.5, 0.75], ("2 M", "0.7")),
        ("seconds", "test_f1", [0.5, 0.75], ("2", "0.7")),
    ],
)
def test_axes_have_units(x, column, values, text):
    figure = curves([Series("a", [0, 4e6 if x != "seconds" else 4], [values])], x=x, column=column)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert text[0] in [label.get_text() for label in axes.get_xticklabels()]
    assert text[1] in [label.get_text().rstrip("0") for label in axes.get_yticklabels()]


def test_few_rounds_have_no_halves():
    figure = curves([Series("a", [0, 1, 2], [[3.0, 2.0, 1.0]])])
    figure.draw_without_rendering()
    assert {label.get_text() for label in figure.axes[0].get_xticklabels()} <= {"−1", "0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: curves([]), "series = []"),
        (lambda: curves([falling("a")], x="byte"), "did you mean 'bytes'"),
        (lambda: Series("a", [0, 1], [[1.0]]), "series.values = (1, 1): give [seeds, 2]"),
        (lambda: Series("a", [[0, 1]], [[1.0, 2.0]]), "series.x = (1, 2)"),
        (lambda: Series("a", [0, 1], [1.0, 2.0]), "of one seed, [values]"),
        (lambda: encode(curves([falling("a")]), "gif"), "format = 'gif'"),
        (lambda: write(curves([falling("a")]), "a.jpeg"), "path = 'a.jpeg'"),
        (lambda: along({}, "time"), "x = 'time'"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ConfigError) as caught:
        call()
    assert message in str(caught.value)


def test_a_notebook_shows_a_figure(figure):
    picture, size = figure._repr_png_()
    assert picture.startswith(b"\x89PNG") and size["width"] == 495


def test_long_labels_of_the_axis_stay_in_the_picture():
    figure = curves([Series("fedavg", [0, 10], [[2.3, 0.9]])], column="grad_norm_sq")
    figure.draw_without_rendering()  # lays it out
    box = figure.axes[0].yaxis.label.get_window_extent()
    assert box.y0 >= 0 and box.y1 <= figure.bbox.y1


def test_bars_stand_before_one_another_from_zero_and_words_name_them():
    bars = [Series(f"class {k}", [0, 1], [top], kind="bars") for k, top in enumerate([[2, 0], [5, 3]])]
    (axes,) = draw(Chart("sizes", Scale("Clients", words=("a", "$b$")), Scale("Examples", whole=True), bars)).axes
    low, high = ([(bar.get_y(), bar.get_height()) for bar in each] for each in axes.containers)
    assert low == [(0, 2), (0, 0)] and high == [(0, 5), (0, 3)] and axes.get_ylim()[0] == 0
    assert axes.containers[0][0].get_zorder() > axes.containers[1][0].get_zorder()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "$b$"]


def test_cells_and_dots_are_dark_where_they_are_good_and_failures_are_crosses():
    shade, texts = [1.0, 0.0, np.nan], ["★ 0.1\nlr 1", "2\nlr 2", "×\nlr 3"]
    words, at = Scale("lr", words=("1", "2")), ([0, 1, 1], [[0, 0, 1]])
    cells = Series("", *at, kind="cells", shade=np.array(shade), texts=texts)
    axes, bar = draw(Chart("fedavg", words, words, [cells], ramp=("Test loss", "2 or worse", "0.1"))).axes
    assert axes.images[0].get_array().filled(-1).tolist() == [[1, 0], [-1, -1]]
    assert [text.get_text() for text in axes.texts] == ["★ 0.1", "2", "×"] and axes.get_title() == "fedavg"
    assert (bar.get_ylabel(), [text.get_text() for text in bar.get_yticklabels()]) == (
        "Test loss",
        ["2 or worse", "0.1"],
    )
    dots = Series("", *at, kind="dots", shade=np.array(shade))
    axes, _ = draw(Chart("fedavg", Scale("lr"), Scale("beta"), [dots], ramp=("Test loss", "2", "0.1"))).axes
    assert axes.collections[0].get_array().tolist() == [1, 0]
    crosses, star = axes.lines
    assert (crosses.get_marker(), crosses.get_xydata().tolist()) == ("x", [[1, 1]])
    assert (star.get_marker(), star.get_xydata().tolist()) == ("*", [[0, 0]])


def test_numbers_on_the_axes_of_a_map_may_be_logarithmic():
    dots = Series("", [0.01, 1], [[1, 100]], kind="dots", shade=np.ones(2))
    axes, _ = draw(Chart("m", Scale("lr", log=True), Scale("k", log=True), [dots], ramp=("a", "b", "c"))).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log") and axes.get_ylim()[0] > 0
