"""Tables of results: values against SciPy and loops by hand, texts against readers of Markdown and LaTeX."""

import csv
import io
import itertools
import json
import math
import re
import shutil
import subprocess

import numpy as np
import pandas
import pytest
from markdown_it import MarkdownIt
from scipy import stats
from typer.testing import CliRunner

import fedax
from fedax import figures
from fedax.cli import app
from fedax.errors import ConfigError
from fedax.experiments import charts, clients, summary, tables
from fedax.experiments.report import render
from fedax.experiments.statistics import Target, interval, reached, target_of
from fedax.experiments.typeset import md, tex
from tests.experiments.test_report import NAN, fake

NASTY = ["plain", "100 % $x_1$ #3 {a}", "[x] *s* | <b>&`t`", "λ₁ ≤ ∞ → ‖∇F‖² ± 10⁻³ \\cmd ~^", "café"]
LOSSES = {
    "good": [[2.0, 0.9, 0.30], [2.0, 0.7, 0.32], [2.0, 0.4, 0.35], [2.0, 0.8, 0.28]],
    "near": [[2.0, 0.6, 0.31], [2.0, 0.9, 0.31], [2.0, 0.5, 0.37], [2.0, 0.7, 0.27]],
    "far": [[2.0, 1.2, 0.52], [2.0, 1.1, 0.53], [2.0, 1.4, 0.57], [2.0, 1.0, 0.51]],
    "wild": [[2.0, 9.0, NAN], [2.0, 0.3, NAN], [2.0, 8.0, NAN], [2.0, 7.0, NAN]],
}
SEEDS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return fake(tmp_path_factory.mktemp("tables") / "run", LOSSES, seeds=SEEDS)


@pytest.fixture(scope="module")
def columns(record):
    return tables.table([record], target=0.5).set_index("method")


def last(label):
    return np.array([values[-1] for values in LOSSES[label]])


def test_means_and_intervals_are_those_of_scipy(record, columns):
    for label in ("good", "near", "far"):
        row, test = columns.loc[label], stats.ttest_1samp(last(label), 0.0)
        assert row["train_loss"] == pytest.approx(last(label).mean())
        assert row["train_loss_std"] == pytest.approx(last(label).std(ddof=1))
        assert [row["train_loss_low"], row["train_loss_high"]] == pytest.approx([*test.confidence_interval(0.95)])
        narrow = tables.table([record], confidence=0.8).set_index("method").loc[label]
        assert [narrow["train_loss_low"], narrow["train_loss_high"]] == pytest.approx([*test.confidence_interval(0.8)])
    assert columns["seeds"].tolist() == [4] * 4 and columns["judged_by"].unique() == ["train_loss"]
    assert columns.loc["wild", ["train_loss", "train_loss_std", "difference", "p"]].isna().all()


def test_an_interval_covers_the_mean_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    ends = np.array([interval(values, 0.9) for values in draws])
    assert 0.885 < np.mean((ends[:, 0] < 3.0) & (ends[:, 1] > 3.0)) < 0.915


def test_differences_to_the_best_are_paired_and_corrected(columns):
    assert columns.index[columns["difference"] == 0].tolist() == ["good"]
    pairs = {("good", "near"): 0.0, ("good", "far"): 0.0, ("near", "far"): 0.0}
    for one, other in pairs:
        pairs[one, other] = stats.ttest_rel(last(one), last(other)).pvalue
    for label in ("near", "far"):
        row, test = columns.loc[label], stats.ttest_rel(last(label), last("good"))
        assert row["difference"] == pytest.approx((last(label) - last("good")).mean())
        ends = [row["difference_low"], row["difference_high"]]
        assert ends == pytest.approx([*test.confidence_interval(1 - 0.05 / 3)])  # Bonferroni: three pairs
        assert row["p"] == pytest.approx(min(1.0, 3 * pairs["good", label]))
        assert (row["p"] < 0.05) == (not ends[0] <= 0 <= ends[1])
    assert columns.loc["good", ["difference_low", "difference_high", "p"]].isna().all()
    assert columns["mark"].tolist() == ["≈", "≈", "", ""]  # a tie is called one


@pytest.mark.parametrize(("column", "value"), [("train_loss", 0.5), ("test_accuracy", 0.5), ("train_loss", 1e-9)])
def test_the_cost_of_a_target_is_that_of_a_loop_by_hand(record, column, value):
    table = tables.table([record], target={column: value}).set_index("method")
    for label, seeds in LOSSES.items():
        at = []  # the evaluation at which each seed first has it
        for values in seeds:
            for k, loss in enumerate(values):
                figure = loss if column == "train_loss" else 1 - min(loss, 1.0) if loss == loss else NAN
                if figure <= value if column == "train_loss" else figure >= value:
                    at.append(k)
                    break
        row = table.loc[label]
        assert row["reached"] == len(at) and row["target"] == value and row["target_column"] == column
        each = {"rounds": 5, "local_steps": 100, "gradients": 100, "bytes": 3e6, "seconds": 0.5}
        for axis, step in each.items():
            costs = step * np.array(at)
            mean, std = (costs.mean() if at else NAN, costs.std(ddof=1) if len(at) > 1 else NAN)
            np.testing.assert_allclose([row[f"{axis}_to_target"], row[f"{axis}_to_target_std"]], [mean, std])


def test_a_target_is_reached_at_its_value_and_once_for_all(record):
    (problem,) = summary.problems([record])
    m = problem.methods[0]
    assert reached(m, Target("train_loss", 0.35, "lower")).seeds == [0, 1, 2, 3]
    assert reached(m, Target("train_loss", 0.3499, "lower")).seeds == [0, 1, 3]
    assert reached(m, Target("train_loss", 2.0, "lower")).costs["rounds"].tolist() == [0, 0, 0, 0]
    assert target_of(problem, 0.5) == Target("train_loss", 0.5, "lower")


def test_one_seed_is_not_compared_and_nothing_stands_out(tmp_path):
    record = fake(tmp_path / "one", {"a": [[2.0, 0.1, 0.1]], "b": [[2.0, 1.0, 0.9]]}, seeds=(7,))
    table = tables.table([record])
    assert table["difference"].tolist() == pytest.approx([0.0, 0.8])
    assert table[["p", "difference_low", "train_loss_std", "train_loss_low"]].isna().all(axis=None)
    assert table["mark"].tolist() == ["", ""]
    for text in (tables.to_latex([record]), tables.to_markdown([record])):
        assert "interval" not in text and "textbf" not in text and "**" not in text and "pm$" not in text
        assert "one seed" in text and "does not tell this from chance" in text


def test_a_method_that_is_better_beyond_the_test_stands_out(tmp_path):
    losses = {
        "a": [[2.0, 1.0, 0.101 + 0.001 * k] for k in range(3)],
        "b": [[2.0, 1.0, 0.5 + 0.001 * k] for k in range(3)],
    }
    text = tables.to_latex([fake(tmp_path / "run", losses, seeds=(0, 1, 2))])
    assert text.count(r"\textbf") == 1 and r"a & \textbf{0.1020 $\pm$ 0.0010 $\star$}" in text


def test_problems_stand_apart(record, tmp_path):
    other = fake(tmp_path / "other", LOSSES, seeds=SEEDS, run={"batch_size": 8})
    table = tables.table([record, other])
    assert table["problem"].tolist() == [1] * 4 + [2] * 4 and table["method"].iloc[4] == "good · other"
    text = tables.to_latex([record, other], target=0.5)
    assert re.findall(r"\\label\{(.*)\}", text) == ["tab:final1", "tab:target1", "tab:final2", "tab:target2"]
    assert "run.batch\\_size 8" in text


def test_rows_have_all_values_of_all_folders_once(record, tmp_path):
    rows = fedax.read(record.folder)
    assert list(rows) == ["method", "seed", "round", "column", "value"]
    assert len(rows) == sum(len(run.history["round"]) * (len(run.history) - 1) for run in record.runs)
    for run in record.runs:
        of_run = rows[(rows["method"] == run.label) & (rows["seed"] == run.seed)]
        for column, values in run.history.items():
            if column != "round":
                found = of_run[of_run["column"] == column]
                np.testing.assert_array_equal(found["value"], values)
                assert found["round"].tolist() == run.history["round"].tolist()
    other = fake(tmp_path / "other", {"good": LOSSES["good"]}, seeds=SEEDS)
    both = fedax.read(record.folder, other.folder)
    assert both.groupby("run").size().to_dict() == {
        str(record.folder): len(rows), str(other.folder): len(fedax.read(other.folder)),
    }  # fmt: skip
    pandas.testing.assert_frame_equal(both, tables.rows([record, other]))


def test_rows_of_a_sweep_have_its_settings():
    data, task = fedax.data.quadratics(4, 2), fedax.tasks.quadratic(2)
    found = fedax.sweep(
        lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.1, 0.2]}, task, data, rounds=2, seeds=[3, 5]
    )
    rows = found.rows()
    assert list(rows) == ["lr", "seed", "round", "column", "value"]
    one = rows.query("lr == 0.2 and seed == 5 and column == 'train_loss'")
    np.testing.assert_array_equal(one["value"], found.runs[1][1].history["train_loss"])


def test_csv_is_the_table(record, columns):
    again = pandas.read_csv(io.StringIO(tables.to_csv([record], target=0.5))).set_index("method")
    pandas.testing.assert_frame_equal(again.fillna({"mark": ""}), columns, check_dtype=False)


FORMULAS = ["=cmd()", "+a", "-a", "@a", "\t=a", "\r=a", "'=a", "-1=", "=1"]


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    record = fake(tmp_path / "run", {label: [[2.0, 1.0, 0.5]] for label in (*FORMULAS, "-1", "'a'")})
    head, *rows = csv.reader(io.StringIO(tables.to_csv([record]), newline=""))
    assert {row[head.index("method")] for row in rows} == {*(f"'{label}" for label in FORMULAS), "-1", "'a'"}
    names = [*FORMULAS, "-1", "'a'", "a,b", "a\nb", "''=a"]
    table = clients.ClientTable(names, np.ones(len(names), int), {"loss": np.ones(len(names))})
    clients.write_table(tmp_path / "c" / "a.csv", table)
    assert clients.read_table(tmp_path / "c" / "a.csv").names == names
    with (tmp_path / "c" / "a.csv").open(newline="") as file:
        assert not [row[0] for row in csv.reader(file) if row[0][0] in "=+@\t\r"]


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    losses = {label: [[2.0, 1.0, 0.1 * (1 + k) + 0.01 * s] for s in SEEDS] for k, label in enumerate(NASTY)}
    return fake(tmp_path_factory.mktemp("nasty") / "run", losses, seeds=SEEDS)


def cells_of(tokens):
    rows, row = [], []
    for token, after in itertools.pairwise(tokens):
        if token.type in ("th_open", "td_open"):
            row.append("".join(each.content for each in after.children))
        if token.type == "tr_close":
            rows.append(row)
            row = []
    return rows


def test_markdown_reads_back_as_it_was_meant(nasty):
    parsed = MarkdownIt("commonmark").enable("table").parse(tables.to_markdown([nasty], target=0.35))
    rows = cells_of(parsed)
    assert [row[0] for row in rows] == ["Method", *NASTY, "Method", *NASTY]
    head, first, second = rows[:3]
    assert head == [
        "Method",
        "Train loss",
        "95 % interval",
        "Difference to plain",
        "p",
        "Test accuracy (%)",
        "Traffic (MB)",
    ]
    assert first == ["plain", "0.115 ± 0.013 ★", "[0.094, 0.136]", "–", "–", "88.5 ± 1.3", "6.000"]
    assert second[3:5] == ["+0.100 [0.100, 0.100]", "< 0.001"]
    assert rows[6][1:4] == ["Seeds that reached it", "Rounds", "Local steps"]
    assert rows[7][1:3] == ["4 of 4", "10 ± 0"] and rows[11][1:3] == ["0 of 4", "–"]
    texts = [token.content for token in parsed if token.type == "inline"]
    assert "Cost until train loss is at most 0.35" in texts
    assert any("the seeds that reached it" in each for each in texts)


def test_latex_has_as_many_cells_in_each_row(nasty):
    text = tables.to_latex([nasty], target=0.35)
    assert text.isprintable() is False and text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for block in re.findall(r"\\begin\{tabular\}\{(lr+)\}(.*?)\\end\{tabular\}\n", text, re.S):
        rows = [line for line in block[1].split("\n") if line.strip().endswith(r"\\")]
        assert len(rows) == len(NASTY) + 1
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(block[0]) - 1}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here: apt-get install texlive-latex-recommended")
def test_latex_compiles(nasty, tmp_path):
    body = tables.to_latex([nasty], target=0.35)
    page = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{body}\\end{{document}}\n"
    (tmp_path / "page.tex").write_text(page)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size > 10_000


def test_characters_that_pdflatex_does_not_know_are_said():
    assert tex("αΑβΩο") == r"$\alpha$A$\beta\Omega$o" and tex("a\nb\x07c") == "a b c"
    assert md("a\nb") == "a b" and md("&amp; <i>") == "&amp;amp; &lt;i&gt;"


def test_a_label_beyond_pdflatex_has_a_warning(tmp_path):
    text = tables.to_latex([fake(tmp_path / "run", {"方法": [[2.0, 1.0, 0.5]]})])
    assert "方法 &" in text and "LuaLaTeX" in text
    assert "LuaLaTeX" not in tables.to_latex([fake(tmp_path / "b", {"café": [[2.0, 1.0, 0.5]]})])


@pytest.mark.parametrize(
    ("values", "shown", "unit"),
    [
        ([[0.91, 0.93]], ["92.0 ± 1.4"], "%"),
        ([[0.5], []], ["50.00", "–"], "%"),
        ([[0.5, NAN]], ["–"], "%"),
    ],
)
def test_shares_are_shown_in_percent(values, shown, unit):
    figures = tables._NumberFormat("test_accuracy", [np.array(each) for each in values])
    assert [figures.mean(k) for k in range(len(values))] == shown and figures.unit == unit


@pytest.mark.parametrize(
    ("column", "values", "shown", "unit"),
    [
        ("train_loss", [[0.34311, 0.34711], [1.5, 1.6]], ["0.345 ± 0.003", "1.550 ± 0.071"], ""),
        ("grad_norm_sq", [[3.0e-9, 5.0e-9], [0.25, 0.35]], ["(4.00 ± 1.41) × 10⁻⁹", "0.300 ± 0.071"], ""),
        ("bytes_up", [[2.5e6], [1.0e5]], ["2.500", "0.100"], "MB"),
        ("gradients", [[12000.0, 13000.0]], ["12.50 ± 0.71"], "10³"),
        ("gradients", [[640.0]], ["640"], ""),
        ("round", [[20.0, 25.0]], ["22.5 ± 3.5"], ""),
        ("seconds", [[7200.0]], ["2.000"], "h"),
        ("train_loss", [[0.0, 0.0]], ["0.00 ± 0.00"], ""),
        ("test_r2", [[-0.52, -0.48]], ["−0.500 ± 0.028"], ""),
    ],
)
def test_numbers_have_the_decimals_that_their_spread_is_worth(column, values, shown, unit):
    figures = tables._NumberFormat(column, [np.array(each) for each in values])
    assert [figures.mean(k) for k in range(len(values))] == shown and figures.unit == unit


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": {"test_acuracy": 0.9}}, "target = 'test_acuracy': did you mean"),
        ({"target": {"a": 1, "b": 2}}, "give one column with its value"),
        ({"target": math.nan}, "target = nan"),
        ({"target": "0.9"}, "target = '0.9'"),
        ({"confidence": 1.0}, "confidence = 1.0: give a number in (0, 1)"),
    ],
)
def test_bad_arguments_are_refused(record, given, message):
    for call in (tables.table, tables.to_latex):
        with pytest.raises(ConfigError) as caught:
            call([record], **given)
        assert message in str(caught.value)


def test_a_target_needs_a_way_that_is_better(tmp_path):
    record = fake(tmp_path / "run", {"a": [[2.0, 1.0, 0.5]]}, columns=lambda label, loss: {"test_score": loss})
    with pytest.raises(ConfigError, match=r"test_score.*which way is better"):
        tables.table([record], target={"test_score": 1.0})


def folded(page, title):
    """The cells of a folded table of the report."""
    table = re.search(rf"<summary>{title}</summary>(.*?)</details>", page, re.S)[1]
    rows = [re.findall(r"<th.*?</th>|<td.*?</td>", row, re.S) for row in re.findall(r"<tr.*?</tr>", table, re.S)]
    return [[" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in row] for row in rows]


def test_the_report_has_intervals_and_what_a_target_costs(record, columns):
    page = render([record]).replace("\u00a0", " ")
    head, good, near, *_ = folded(page, "Intervals and paired differences")
    assert head == ["Method", "Train loss", "95 % interval", "Difference to good", "p"]
    assert good[3:] == ["–", "–"] and near[1].endswith("≈")
    ends = [float(end) for end in near[2].strip("[]").split(", ")]
    assert ends == pytest.approx(columns.loc["near", ["train_loss_low", "train_loss_high"]], abs=1e-3)
    page = render([record], target={"test_accuracy": 0.69})
    assert folded(page.replace("\u00a0", " "), "Cost until test accuracy is at least 69 %")[1][1] == "2 of 4"


def test_a_report_of_one_method_has_no_more_tables(tmp_path):
    assert "Cost until" not in render([fake(tmp_path / "run", {"a": [[2.0, 1.0, 0.5]]})])


def test_the_command_prints_and_writes_tables(record, tmp_path):
    run = lambda *given: CliRunner().invoke(app, ["report", str(record.folder), *given])  # noqa: E731
    assert run("--format", "csv").stdout == tables.to_csv([record])
    shown = run("--format", "latex", "--target", "test_accuracy=0.5")
    assert shown.exit_code == 0 and shown.stdout == tables.to_latex([record], target={"test_accuracy": 0.5})
    out = tmp_path / "t.md"
    written = run("--format", "markdown", "--target", "0.5", "--out", str(out))
    assert written.stdout.strip() == str(out) and out.read_text() == tables.to_markdown([record], target=0.5)
    for given, message in {
        ("--target", "absent=0.5"): "target = 'absent'",
        ("--target", "much", "--format", "csv"): "give a number, or COLUMN=NUMBER",
        ("--format", "csv", "--out", str(tmp_path / "absent" / "x")): "cannot be written",
    }.items():
        result = run(*given)
        assert result.exit_code == 2 and message in result.stderr


AWAY = {"steady": [[2.0, 0.6, 0.5], [2.0, 0.7, 0.5]], "lucky": [[2.0, 0.31, 0.2], [2.0, 0.8, 0.4]]}


def partly_heard(folder, least=None, heard=None, **run):
    """A run over real clients, of whom some were away where the loss is .31, .8 or .4."""
    heard = {0.31: 0.75, 0.8: 0.5, 0.4: 0.75} if heard is None else heard
    settings = run if least is None else {"min_heard": least, **run}
    return fake(folder, AWAY, columns=lambda label, loss: {"heard": heard.get(loss, 1.0)}, run=settings)


@pytest.mark.parametrize(("least", "at"), [(None, [10]), (0.8, [10]), (0.75, [5, 10]), (0.5, [5, 10])])
def test_a_target_is_reached_where_enough_was_heard(least, at, tmp_path):
    record = partly_heard(tmp_path / "run", least)
    row = tables.table([record], target={"train_loss": 0.45}).set_index("method").loc["lucky"]
    assert row["reached"] == len(at) and row["rounds_to_target"] == np.mean(at)
    notes = tables.costs_to(summary.problems([record])[0], Target("train_loss", 0.45, "lower")).notes
    few = f"less than {100 * (least or 1):g} % of the weight"
    assert any(few in note for note in notes) == (least != 0.5)


def test_the_verdict_and_the_tables_say_who_was_away(tmp_path):
    record = partly_heard(tmp_path / "run")
    (problem,) = summary.problems([record])
    (sentence,) = [text for text in summary.verdict(problem) if "heard" in text]
    assert sentence.startswith(
        "In 3 of 6 evaluations of lucky only 50.00 % to 75.00 % of the weight was heard; they count"
    )
    assert "no target and no best model" in sentence and "the last model is kept" in sentence
    assert sentence.endswith("at the end are those of 75.00 % of the weight, with 1 of 2 seeds.")
    assert sentence in tables.to_markdown([record]).replace("\\", "")
    conclusion = {row["label"]: row["heard"] for row in summary.conclusion(problem)["methods"]}
    assert conclusion["lucky"] == {
        "evaluations": 6, "not_all": 3, "too_few": 3, "least": 0.5, "most_of_those": 0.75, "at_the_end": 0.75,
        "seeds_at_the_end": 1,
    }  # fmt: skip
    assert conclusion["steady"]["not_all"] == 0
    assert tables.table([record]).set_index("method")["heard"].to_dict() == {"steady": 1.0, "lucky": 0.75}


def test_of_evaluations_that_count_the_verdict_says_what_was_heard_and_no_more(tmp_path):
    (problem,) = summary.problems([partly_heard(tmp_path / "run", 0.5)])
    (sentence,) = [text for text in summary.verdict(problem) if "heard" in text]
    assert "no target" not in sentence and "the last model is kept" not in sentence
    (problem,) = summary.problems([partly_heard(tmp_path / "some", 0.6)])
    (sentence,) = [text for text in summary.verdict(problem) if "heard" in text]
    assert "; 1 of them counts for no target" in sentence


def test_a_simulation_says_nothing_of_who_was_heard(record):
    (problem,) = summary.problems([record])
    assert not any("heard" in text for text in summary.verdict(problem))
    assert "heard" not in tables.table([record]) and "heard" not in summary.conclusion(problem)["methods"][0]


def test_the_curves_have_a_ring_where_some_were_away(record, tmp_path):
    page, plain = render([partly_heard(tmp_path / "run")]), render([record])
    curves, *others = [json.loads(text) for text in re.findall(r'json">({.*?)</script>', page)]
    assert [each.get("heard") for each in curves["series"]] == [None, [1.0, 0.5, 0.75]]
    assert not any("heard" in each for other in others for each in other["series"])
    assert "○: not all" in page and "○: not all" not in plain and '"heard"' not in plain.split("<script>")[0]
    (problem,) = summary.problems([partly_heard(tmp_path / "again")])
    figure = charts.series(problem.methods, "train_loss")
    rings = [
        line for line in figures.curves(figure, column="train_loss").axes[0].lines if line.get_linestyle() == "None"
    ]
    assert [line.get_xdata().tolist() for line in rings] == [[5.0, 10.0]]


def test_what_ended_worse_is_read_as_the_run_judged_it(tmp_path):
    worse = {"a": [[1.0, 0.8, 3.0]]}
    for heard, status in ((1.0, "worse"), (0.5, "finished")):
        column = lambda label, loss, heard=heard: {"heard": heard if loss == 3.0 else 1.0}  # noqa: E731
        record = fake(tmp_path / f"{status}", worse, seeds=(0,), columns=column)
        assert [run.status for run in record.runs] == [status]
