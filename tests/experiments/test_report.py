"""The report: it agrees with the runs, and is a single file without references to others."""

import json
import re

import numpy as np
import pytest
from matplotlib.image import imread

from fedax.engine.history import Row
from fedax.errors import ConfigError
from fedax.experiments import charts, clients, summary, toml
from fedax.experiments.chance import gap_of
from fedax.experiments.charts import series
from fedax.experiments.plots import write_plots
from fedax.experiments.report import pictures, render
from fedax.experiments.runs import MethodRun, Record, append_metrics, new_folder, read, write_json
from fedax.experiments.summary import Method, problems, short
from fedax.figures import curves
from fedax.files import write_atomic

ROUNDS = 10


def fake(folder, losses, clients=5, classes=("0", "1", "2"), seeds=(0, 1), columns=None, **changes) -> Record:
    """A run folder.

    ``losses``: label -> one list of training losses a seed, an evaluation every five rounds; ``columns``: others, from
    the label and the loss; ``changes``: settings of sections, and ``regularizers``, label -> ψ.
    """
    folder = new_folder(folder, "fake")
    generator = np.random.default_rng(0)
    counts = generator.integers(1, 30, (clients, len(classes)))
    sizes = counts.sum(1)
    config = {
        "name": "a <fake> run",
        "data": {"name": "digits", "clients": clients, "partition": "iid", "seed": 0, "weights": "sizes"},
        "task": {"name": "softmax_regression", "l2": 0.0},
        "work": {"kind": "random-epochs", "low": 1, "high": 2},
        "participation": {"kind": "full"},
        "run": {"rounds": ROUNDS, "batch_size": 4, "seeds": list(seeds)},
        "methods": [{"name": "fedprox", "label": label, "lr": 0.1, "prox": 0.25} for label in losses],
    }
    for method in config["methods"]:
        method |= changes.get("regularizers", {}).get(method["label"], {})
    for section in config.keys() & changes.keys():
        config[section] |= changes[section]
    write_atomic(folder / "config.toml", toml.dumps(config))
    steps = {"draws": 50, "low": sizes // 4, "mean": sizes / 3, "high": sizes // 2}
    about = {"sizes": sizes, "uniform": False, "classes": classes, "counts": counts, "steps": steps}
    write_json(
        folder / "about.json",
        {"versions": {"fedax": "0"}, "device": "1 × cpu", "started": "now", "parameters": 650, "clients": about},
    )
    for label, each in losses.items():
        for seed, values in zip(seeds, each, strict=False):
            for k, loss in enumerate(values):
                costs = {"clients": 5 * k, "local_steps": 100 * k, "gradients": 100 * k, "seconds": 0.5 * k}
                costs |= {"bytes_down": 10**6 * k, "bytes_up": 2 * 10**6 * k}
                row = {"round": 5 * k, "train_loss": loss, "test_accuracy": 1 - min(loss, 1.0), **costs}
                row |= columns(label, loss) if columns else {}
                append_metrics(folder, label, "fedprox", seed, Row(row, None if np.isfinite(loss) else "diverged"))
    return read(folder)


NAN = float("nan")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    losses = {
        "plain": [[2.0, 0.5, 0.30], [2.0, 0.5, 0.10]],
        "better & <b>bold</b>": [[2.0, 0.4, 0.10], [2.0, 0.3, 0.08]],
        "wild": [[2.0, 9.0, NAN], [2.0, 5.0, 4.0]],
    }
    return fake(tmp_path_factory.mktemp("report") / "run", losses)


@pytest.fixture(scope="module")
def page(record):
    return render([record]).replace("\u00a0", " ")


def data_of(page):
    """What the script has of the pictures, of those with a legend of their own each."""
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)]


def curves_of(page):
    return [data for data in data_of(page) if "rounds" in data["axes"]]


def texts_of(data):
    """What is said of the points of a picture."""
    return [text for series in data["series"] for text in series["texts"]]


def rows_of(page):
    table = re.search(r"<tbody>(.*?)</tbody>", page, re.S)[1]
    text = lambda cell: " ".join(re.sub(r"<[^>]*>", " ", cell).split())  # noqa: E731
    cells = r"<th.*?</th>|<td.*?</td>"
    return [[text(cell) for cell in re.findall(cells, row)] for row in re.findall(r"<tr.*?</tr>", table)]


def test_the_page_refers_to_nothing_outside(page):
    assert not re.search(r"https?:|//\w|src=|@import|url\(", page)
    linked = set(re.findall(r'href="(.*?)"', page.split("<script>")[0]))
    assert {"#results", "#curves"} <= linked
    assert all(re.search(rf'id="?{name.removeprefix("#")}[" >]', page) for name in linked)


def test_the_table_has_means_spreads_and_what_diverged(page):
    plain, better, wild = rows_of(page)
    assert plain[0] == "plain lr 0.1 · prox 0.25"
    assert plain[2] == "80.00 % ± 14.14" and plain[1] == "0.2 ± 0.14"
    assert plain[3:] == ["200", "200", "2.00 + 4.00 MB", "1.00 s"]
    assert better[2] == "91.00 % ± 1.41"
    assert "diverged by round 10 (1 of 2 seeds)" in wild[0] and wild[1:3] == ["–", "–"]


def test_seeds_that_diverge_at_different_rounds_are_told_so():
    ends = {0: 80, 1: 100}
    runs = [MethodRun("a", "fedavg", seed, "diverged", {"round": np.array([0, ends[seed]])}) for seed in ends]
    assert Method("a", {}, runs).status_text == "diverged by round 80 to 100 (2 of 2 seeds)"
    assert Method("a", {}, runs[:1]).status_text == "diverged by round 80"


def test_texts_of_the_user_are_escaped(page):
    assert "<b>bold" not in page and "a &lt;fake&gt; run" in page and "&lt;b&gt;bold" in page


def test_the_verdict_says_who_is_best_and_when_that_is_noise(page, tmp_path):
    first = re.search(r"<p>(better &amp; &lt;b&gt;bold&lt;/b&gt; ended best.*?)</p>", page)[1]
    assert "not distinguished from plain" in first and "0.09 ± 0.014" in first
    assert "<p>Next is plain, 0.2 ± 0.14: behind by 0.1" in page
    assert "95 % interval" in page and "less better" not in page and "ties" not in page
    assert "wild: diverged by round 10 (1 of 2 seeds)." in page
    assert page.count('class="tied"') == 2 and 'class="best"' not in page
    assert "standard deviation over 2 seeds" in page


def runs_of(*ends):
    """Losses of one seed each, that end so."""
    return [[2.0, 1.0, end] for end in ends]


def test_seeds_are_paired(tmp_path):
    """The methods' means are closer than their spreads, and yet one is better with every seed."""
    losses = {"a": runs_of(0.3, 0.5, 0.7), "b": runs_of(0.31, 0.512, 0.711), "c": runs_of(0.4, 0.7, 0.7)}
    record = fake(tmp_path / "run", losses, seeds=(0, 1, 2))
    (problem,) = problems([record])
    gaps = {label: np.array([row[-1] for row in losses[label]]) for label in "abc"}
    single = {(x, y): gap_of(gaps[x], gaps[y]).p for x, y in (("a", "b"), ("a", "c"), ("b", "c"))}
    t = 0.011 / (0.001 / 3**0.5)  # the gaps are 0.010, 0.012 and 0.011
    assert single["a", "b"] == pytest.approx(1 - t / (2 + t * t) ** 0.5)  # Student's t with two degrees of freedom
    assert problem.p["b"] == pytest.approx(3 * single["a", "b"])  # three pairs
    assert [problem.mark(m) for m in problem.methods] == ["≈", "", "≈"]
    (two,) = problems([fake(tmp_path / "two", {k: losses[k] for k in "ab"}, seeds=(0, 1, 2))])
    assert [two.mark(m) for m in two.methods] == ["★", ""] and "p = 0.0027" in render(two.records)
    assert summary.verdict(two)[0].startswith("a is best") and "Take a." in summary.verdict(two)
    assert render(two.records).count('class="best"') == 1


def test_equal_methods_and_single_seeds_have_no_star(tmp_path):
    (same,) = problems([fake(tmp_path / "same", {"a": runs_of(0.3, 0.5), "b": runs_of(0.3 + 1e-8, 0.5 + 1e-8)})])
    assert [same.mark(m) for m in same.methods] == ["≈", "≈"]
    one = fake(tmp_path / "one", {"a": runs_of(0.3), "b": runs_of(0.9)}, seeds=(0,))
    assert problems([one])[0].p == {} and "one seed does not tell this from chance." in render([one])
    assert 'class="best"' not in render([one]) and 'class="tied"' not in render([one])


L1 = {"regularizer": {"name": "l1", "weight": 0.5}}


@pytest.mark.parametrize(
    ("changes", "columns", "judge"),
    [
        ({}, {}, "train_loss"),
        ({}, {"test_loss": 1.0, "grad_norm_sq": 1.0}, "test_loss"),
        ({"data": {"name": "quadratics"}}, {"grad_norm_sq": 1.0}, "grad_norm_sq"),
        ({"data": {"name": "quadratics"}}, {}, "train_loss"),
        ({"regularizers": {"a": L1, "b": L1}}, {"objective": 1.0, "test_loss": 1.0}, "objective"),
        ({"regularizers": {"a": L1}}, {"test_loss": 1.0}, "test_loss"),
        ({"regularizers": {"a": L1}}, {}, None),
        ({"run": {"judge": "test_accuracy"}}, {"test_loss": 1.0}, "test_accuracy"),
    ],
)
def test_the_column_that_decides(tmp_path, changes, columns, judge):
    losses = {"a": runs_of(0.3, 0.31), "b": runs_of(0.5, 0.51)}
    record = fake(tmp_path / "run", losses, columns=lambda label, loss: columns, **changes)
    (problem,) = problems([record])
    assert (problem.judge, problem.best is None) == (judge, judge is None)
    head = re.findall(r'<th scope="col">(.*?)</th>', render([record]))
    assert judge is None or head[1].lower().startswith(judge.split("_")[0][:4].replace("grad", "squa"))
    assert ("minimise different objectives" in render([record])) == (judge is None)


def test_the_mean_of_the_last_evaluations_stands_beside_the_last(tmp_path):
    values = [3.0, 2.0, 1.0, 0.9, 0.5, 0.4, 0.6]
    record = fake(tmp_path / "run", {"a": [values, values]}, run={"rounds": 30})
    (row,) = rows_of(render([record]))
    assert row[1:3] == ["0.6 ± 0", "0.5 ± 0"] and "mean of its last 3 evaluations" in render([record])


def test_a_run_that_ends_worse_than_it_began_is_no_candidate(tmp_path):
    losses = {"a": runs_of(0.3, 0.4), "b": runs_of(4e28, 5e28), "c": runs_of(0.5, 0.5)}
    record = fake(tmp_path / "run", losses, run={"judge": "test_accuracy"}, columns=lambda label, loss: {
        "test_accuracy": {"a": 0.5, "b": 0.9, "c": 0.4}[label]})  # fmt: skip
    assert [run.status for run in record.runs] == ["finished"] * 2 + ["worse"] * 2 + ["finished"] * 2
    (problem,) = problems([record])
    page = render([record])
    assert problem.best.label == "a" and "b: ended worse than it began (2 of 2 seeds)." in page
    assert curves_of(page)[0]["series"][1]["gone"] == "ended worse"
    assert rows_of(page)[1][2] == "4.500e+28 ± 7.1e+27"
    write_plots(record)


def test_runs_of_different_problems_are_not_compared(tmp_path):
    good, bad = {"a": runs_of(0.1, 0.11), "b": runs_of(0.2, 0.21)}, {"a": runs_of(0.8, 0.81), "b": runs_of(0.9, 0.91)}
    records = [
        fake(tmp_path / "one", good),
        fake(tmp_path / "two", bad),
        fake(tmp_path / "more", good, run={"batch_size": 8}),
        fake(tmp_path / "dealt", good, clients=4, data={"partition": "shards", "clients": 4}),
    ]
    result = problems(records)
    assert [[record.folder.name for record in problem.records] for problem in result] == [
        ["one", "two"], ["more"], ["dealt"],
    ]  # fmt: skip
    assert result[1].differs["run.batch_size"] == "8" and result[2].differs["data.partition"] == "'shards'"
    assert [problem.star.label for problem in result] == ["a · one", "a · more", "a · dealt"]
    page = render(records)
    assert "These runs are of 3 different problems" in page and page.count('class="best"') == 3
    assert all(f'id="curves-{k}"' in page for k in range(3))


def test_methods_are_compared_on_the_seeds_that_all_have(tmp_path):
    records = [
        fake(tmp_path / "three", {"a": runs_of(0.1, 0.2, 0.9)}, seeds=(0, 1, 2)),
        fake(tmp_path / "two", {"a": runs_of(0.22, 0.11)}, seeds=(1, 0)),
    ]
    (problem,) = problems(records)
    assert problem.seeds == [0, 1] and problem.left_out == {"a · three": [2]}
    np.testing.assert_array_equal([m.final("train_loss") for m in problem.methods], [[0.1, 0.2], [0.11, 0.22]])
    page = render(records)
    assert "over 2 seeds of training" in page and "(seeds 0 and 1), not 2 of a · three" in page
    apart = [records[0], fake(tmp_path / "other", {"a": runs_of(0.3)}, seeds=(7,))]
    assert problems(apart)[0].best is None and "no seed in common" in render(apart)


def test_curves_are_means_and_bands_and_stop_where_a_seed_diverged(page):
    (data,) = curves_of(page)
    plain, _, wild = data["series"]
    (chart,) = (chart for chart in data["charts"] if chart["name"] == "Train loss")
    assert chart["values"][0] == [[2.0, 0.5, 0.2], [2.0, 0.5, 0.1], [2.0, 0.5, 0.3]]
    assert plain["x"]["bytes"] == [0, 3e6, 6e6] and plain["x"]["local_steps"] == [0, 100, 200]
    assert wild["x"]["rounds"] == [0, 5] and wild["gone"].startswith("diverged") and plain["gone"] is None
    assert set(plain["x"]) == set(data["axes"]) == {"rounds", "bytes", "seconds", "gradients", "local_steps"}


def test_curves_are_a_table_without_a_script(page):
    figures = re.findall(r"<figcaption><b>(.*?)</b>.*?<details class=\"values\" open>.*?<table>(.*?)</table>", page)
    rows = {name: re.findall(r"<tr>(.*?)</tr>", table) for name, table in figures}
    cells = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows["Test accuracy"]]
    assert cells[:2] == [["Rounds", "0", "5", "10"], ["plain", "0 %", "50 %", "80 %"]]
    assert cells[3] == ["wild (diverged with 1 of 2 seeds)", "0 %", "0 %", ""]
    assert [row.count("examples") for row in rows["Examples of each client"][1:]] == [1] * 5


def test_curves_on_one_another_are_told(tmp_path):
    same = runs_of(0.3, 0.4)
    page = render([fake(tmp_path / "run", {"a": same, "b": runs_of(0.5, 0.6), "c <i>": same})])
    assert page.count("Lying on one another: a and c &lt;i&gt;.") == 2


def test_more_methods_than_colours_are_told_apart_and_small(tmp_path):
    rounds = np.arange(0, 105, 5)
    wave = lambda k, seed: list(2 * np.exp(-rounds / (100 + 9 * k)) + 0.1 + 1e-3 * seed * np.cos(rounds * k))  # noqa: E731
    losses = {f"method {k}": [wave(k, seed) for seed in range(5)] for k in range(40)}
    record = fake(tmp_path / "run", losses, seeds=range(5), clients=100, run={"rounds": 100}, columns=lambda _, loss: {
        "test_loss": 1.1 * loss, "grad_norm_sq": loss**2})  # fmt: skip
    page = render([record])
    legend = re.findall(r'data-k="\d+"><svg class="key (c\d) (\w+)"', page)
    assert len(legend) == 40 and len({*legend}) == 32
    assert len(page.encode()) < 500_000  # 2 MB are allowed; with five times as many evaluations it has half of that
    few = render([fake(tmp_path / "few", dict(list(losses.items())[:3]), clients=16, run={"rounds": 100})])
    assert len(few.encode()) < 120_000  # 400 kB are allowed; uPlot has 51


def test_long_runs_are_thinned_and_say_so(tmp_path):
    values = list(1 / np.arange(1, 1002))
    page = render([fake(tmp_path / "run", {"a": [values]}, seeds=(0,), run={"rounds": 5000})])
    (series,) = curves_of(page)[0]["series"]
    assert "Of 3 evaluations one is drawn." in page
    assert (
        series["x"]["rounds"][:2] == [0, 15] and series["x"]["rounds"][-1] == 5000 and len(series["x"]["rounds"]) == 335
    )


def test_clients_keep_their_names_and_are_drawn_largest_first(record, tmp_path):
    names = ["north", "south & <east>", "a rather long name of a client", "😀", "$x_1$"]
    given = json.loads((record.folder / "about.json").read_text())
    record = fake(tmp_path / "run", {"a": runs_of(0.3, 0.4)})
    write_json(record.folder / "about.json", given | {"clients": given["clients"] | {"names": names}})
    page = render([read(record.folder)])
    sizes = given["clients"]["sizes"]
    largest = sorted(range(5), key=lambda i: -sizes[i])
    _, bars, steps = data_of(page)
    spots = texts_of(bars)
    assert [text.split(":")[0] for text in spots] == [names[i] for i in largest]
    assert [int(re.search(r": (\d+) examples", text)[1]) for text in spots] == [sizes[i] for i in largest]
    heights = [top for (top,) in bars["charts"][0]["values"]]
    counts = [given["clients"]["counts"][i] for i in largest]
    assert heights == np.cumsum(counts, 1).T.tolist() and heights[-1] == [sizes[i] for i in largest]
    mean = given["clients"]["steps"]["mean"][largest[0]]
    assert texts_of(steps)[0].startswith(f"{names[largest[0]]}: {mean:.1f} steps a round")
    shares = re.findall(r'<td class="h(\d+)"></td>', page)
    assert len(shares) == 5 * 3 and "10" in shares
    assert "south &amp; &lt;east&gt;" in page and "a rather long n…" in page


def test_many_clients_share_places(tmp_path):
    record = fake(tmp_path / "run", {"a": runs_of(0.3, 0.4)}, clients=1000)
    page = render([record])
    spots = texts_of(data_of(page)[1])
    assert "9 clients of like size share a place" in page and len(spots) == 120
    assert spots[0].startswith("9 clients, client ") and len(page) < 400_000


def test_costs_to_a_target_and_differences_stand_beside(tmp_path):
    losses = {"a": runs_of(0.3, 0.32, 0.31), "b": runs_of(0.52, 0.5, 0.51), "c": [[2.0, 0.2, 0.1]] * 3}
    record = fake(tmp_path / "run", losses, seeds=(0, 1, 2))
    page = render([record])
    assert "<summary>Intervals and paired differences</summary>" in page
    tables = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", table) for table in re.findall(r"<tbody>(.*?)</tbody>", page)]
    _, differences, costs, *_ = tables
    assert "Cost until train loss is at most 0.31" in page  # where the middle one ended, 0.31
    assert differences[3] == "+0.2100 [0.1658, 0.2542]"  # for three pairs together
    assert costs[:3] == ["a", "2 of 3", "10 ± 0"] and costs[-6] == "3 of 3"
    request = render([record], target={"test_accuracy": 0.75}).replace("\u00a0", " ")
    assert "Cost until test accuracy is at least 75 %" in request
    with pytest.raises(ConfigError, match="did you mean 'test_accuracy'"):
        render([record], target={"accuracy": 0.75})


def test_the_whole_configuration_is_there(page):
    assert "kind = &quot;random-epochs&quot;" in page and "prox = 0.25" in page and "batch_size = 4" in page


def test_several_runs_together_name_their_folders(record, tmp_path):
    other = fake(tmp_path / "other", {"plain": [[2.0, 1.0, 0.9]]}, clients=3)
    page = render([record, other])
    labels = [series["label"] for problem in curves_of(page) for series in problem["series"]]
    assert labels == [*(f"{label} · run" for label in ("plain", "better & <b>bold</b>", "wild")), "plain · other"]
    assert page.count("<b>Examples of each client</b>") == 2 and len(data_of(page)) == 2 * 3


def test_an_unfinished_run_has_a_report(tmp_path):
    page = render([fake(tmp_path / "half", {"plain": [[2.0, 1.0]]})])
    assert "stopped at round 5" in rows_of(page)[0][0] and rows_of(page)[0][1] == "–"


def test_a_run_that_diverges_at_once_has_a_report_and_plots(tmp_path):
    record = fake(tmp_path / "bad", {"plain": [[NAN]], "other": [[2.0, NAN]]})
    assert [each.gone for each in series(summary.methods([record]), "train_loss")] == ["diverged", "diverged"]
    assert "diverged by round 0" in render([record])
    write_plots(record)


def test_data_without_classes(tmp_path):
    record = fake(tmp_path / "regression", {"plain": [[2.0, 1.0, 0.5]]})
    record.about["clients"] |= {"classes": None, "counts": None}
    page = render([record])
    assert "<b>Examples of each client</b>" in page and "<b>Classes of each client</b>" not in page
    write_plots(record)


def test_plots_show_the_means_over_seeds_between_the_lowest_and_the_highest(record):
    figure = curves(series(summary.methods([record]), "train_loss"), column="train_loss")
    (axes,) = figure.axes
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    drawn = dict(zip(names, (line.get_xydata().tolist() for line in axes.lines), strict=False))
    assert drawn["plain"] == [[0, 2.0], [5, 0.5], [10, pytest.approx(0.2)]]
    assert drawn["wild (diverged with 1 of 2 seeds)"] == [[0, 2.0], [5, 7.0]]  # as far as all seeds came
    band = axes.collections[0].get_paths()[0].vertices
    assert {(10, 0.1), (10, 0.3)} <= {(x, round(y, 9)) for x, y in band.tolist()}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Rounds", "Train loss")


def test_plots_are_pictures_with_something_in_them(record):
    write_plots(record)
    for name in ("train_loss", "test_accuracy", "train_loss-bytes", "train_loss-seconds", "clients"):
        picture = imread(record.folder / "plots" / f"{name}.png")
        colours = np.unique((255 * picture).astype(np.uint8).reshape(-1, 4).view(np.uint32))
        assert picture.shape[1] == 990 and picture.shape[0] >= 600 and len(colours) > 20


def test_only_losses_are_drawn_on_a_logarithmic_scale(tmp_path):
    result = summary.methods([fake(tmp_path / "wide", {"plain": [[0.99, 0.5, 0.05]]})])  # the accuracy: 0.01 to 0.95
    for column, scale in {"test_accuracy": "linear", "train_loss": "log"}.items():
        assert curves(series(result, column), column=column).axes[0].get_yscale() == scale


def test_settings_in_words():
    assert short({"name": "l1", "weight": 0.1}) == "l1 (weight 0.1)"
    assert short({"value": 0.5, "at": {"50": 0.1}}) == "value 0.5, at {'50': 0.1}"
    assert short(0.5) == "0.5" and len(short("x" * 99)) == 40


def test_a_method_whose_loss_is_infinite_at_all_clients_has_a_row_without_dots():
    made = [clients.Spread(name, ["x", "y"], np.array([3, 4]), np.array(values), 1.5, 0.7, 2.0, [("y", 2.0)])
            for name, values in {"gone": [np.inf, np.inf], "here": [1.0, 2.0]}.items()]  # fmt: skip
    picture = charts.spread("test_loss", made, ["gone", "here"])
    assert picture.y.words == ("here", "gone") and [s.kind for s in picture.series] == ["whisker", "box", "dots"]
    assert [s.x.tolist() for s in picture.series] == [[1.0, 2.0], [1.25, 1.5, 1.75], [1.0, 2.0]]
    assert picture.series[2].texts[0] == "here\nx (3 examples): 1"
    assert [data["series"][2]["k"] for data in data_of(pictures.row([picture]))] == [1]
