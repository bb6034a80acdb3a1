"""fedax data: the commands of sites and coordinator, in order, and their errors."""

import dataclasses
import glob
import itertools
import json
import pathlib
import shlex

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from fedax import data
from fedax.cli import app
from fedax.errors import DataError
from fedax.experiments import noted, read, write_report

TABLES = {  # each row five times, so that nothing of them is withheld
    "hospital-7": "age,zip,ward,ill\n" + "40,007,A,no\n60,008,A,yes\n,007,B,no\n" * 5,
    "hospital-8": "age,zip,ward,ill\n" + "80,009,B,no\n30,007,A,no\n70,008,C,yes\n" * 5,
}


@pytest.fixture
def sites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in TABLES.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def output_of(*arguments, code=0):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def agreed():
    for name in TABLES:
        output_of("summarize", f"{name}.csv")
    output_of("plan", *(f"{name}-first.json" for name in TABLES), "--label", "ill", "--column", "zip=category")
    for name in TABLES:
        output_of("summarize", f"{name}.csv", "--plan", "plan.json")


def test_the_way_by_files_gives_what_one_process_does(sites):
    agreed()
    transform = data.Transform
    output = output_of("fit", "plan.json", *(f"{name}-second.json" for name in TABLES))
    together = data.from_csv(sites, label="ill", columns={"zip": "category"})
    assert transform.load("transform.json") == together.transform and together.transform.digest in output
    for k, name in enumerate(TABLES):
        output = output_of("apply", "transform.json", f"{name}.csv")
        assert together.transform.digest in output and f"--data {name}" in output and "note:" not in output
        served = data.FederatedData.open(name)
        assert served.names == (name,) and np.array_equal(served.examples["x"], together.client(k)["x"])


def test_the_positive_class_by_files(sites):
    first, second = ([f"{name}-{which}.json" for name in TABLES] for which in ("first", "second"))
    agreed()
    output_of("fit", "plan.json", *second, "--out", "rarer.json")
    rarer = data.Transform.load("rarer.json").classes
    for said in rarer:
        output_of(
            "plan", *first, "--label", "ill", "--column", "zip=category", "--positive", said, "--out", f"{said}.json"
        )
        for name in TABLES:
            output_of("summarize", f"{name}.csv", "--plan", f"{said}.json", "--out", f"{said}-{name}.json")
        answers = [f"{said}-{name}.json" for name in TABLES]
        assert f"of class {said};" in output_of("fit", f"{said}.json", *answers, "--out", f"{said}-transform.json")
        assert data.Transform.load(f"{said}-transform.json").label.positive == said
    assert data.Transform.load(f"{rarer[0]}-transform.json").classes == rarer[::-1]
    together = data.from_csv(sites, label="ill", columns={"zip": "category"}, positive=rarer[0])
    assert together.transform == data.Transform.load(f"{rarer[0]}-transform.json")


def test_a_table_that_did_not_make_the_transform_is_looked_at(sites):
    agreed()
    output_of("fit", "plan.json", *(f"{name}-second.json" for name in TABLES))
    (sites / "hospital-9.csv").write_text("age,zip,ward,ill\n9999,009,B,no\nold,009,A,no\n40,777,A,yes\n")
    output = output_of("apply", "transform.json", "hospital-9.csv")
    assert "note: 3 of 3 rows have cells" in output and "9999" in output


def test_each_command_names_the_next(sites):
    output = output_of("summarize", "hospital-7.csv", "--label", "ill", "--out", "mine.json")
    assert "Wrote mine.json" in output and "at the coordinator: fedax data plan" in output and "--label ill" in output
    assert json.loads(pathlib.Path("mine.json").read_text())["rows"] == 15
    output = output_of("plan", "mine.json", "--label", "ill", "--drop", "age", "--out", "p.json")
    assert "fedax data summarize TABLE.csv --plan p.json" in output and data.Plan.load("p.json").dropped["age"]
    assert "fedax data fit p.json" in output_of("summarize", "hospital-7.csv", "--plan", "p.json")


def test_rows_without_a_label_are_left_out_where_asked_for(sites):
    (sites / "hospital-7.csv").write_text(TABLES["hospital-7"] + "50,007,A,\n")
    assert "label 'ill' is missing in 1 of its 16 rows" in output_of(
        "summarize", "hospital-7.csv", "--label", "ill", code=2
    )
    output_of("summarize", "hospital-7.csv", "--label", "ill", "--drop-missing-labels")
    assert data.Summary.load("hospital-7-first.json").rows == 15


ODD = """patient,result,gone,ill
""" + "".join(f"{k + 100},{'bad' if k % 3 else 'good'},{'' if k % 4 else k / 7},{k % 3 > 0}\n" for k in range(60))


def test_odd_columns_are_said_with_the_option_that_drops_them(sites):
    (sites / "north.csv").write_text(ODD)
    output = output_of("summarize", "north.csv", "--label", "ill")
    assert "all 60 different; --drop patient" in output
    assert "it alone gets 60 of 60 labels right" in output
    assert "a site: north (75 %); --drop gone" in output
    output = output_of("plan", "north-first.json", "--label", "ill", "--drop", "patient")
    assert "left out: 'patient': you said so" in output and "note: 'gone'" in output and "note: 'patient'" not in output
    output_of("summarize", "north.csv", "--plan", "plan.json")
    assert "note: 'result' looks like a copy" in output_of("fit", "plan.json", "north-second.json")


def test_a_run_says_it_too_and_its_report_needs_no_table(sites):
    name = "<script>alert(1)</script>"
    for k in range(2):
        (sites / f"part-{k}.csv").write_text(ODD.replace("patient", name).replace("bad,", "<b>bad</b>,"))
    arguments = ("compare", "csv", "--set", "data.files=part-*.csv", "--set", "data.label=ill", "--seeds", "1")
    arguments += ("--set", "run.rounds=2", "--methods", "fedavg", "--no-tune", "--set", "run.baselines=false")
    result = CliRunner().invoke(app, [*arguments, "--out", "run", "--set", "data.drop=['gone']"])
    assert result.exit_code == 0, result.output
    assert "'<script>alert(1)</script>' looks like" in result.output
    assert """--set 'data.drop=["gone", "<script>alert(1)</script>"]'""" in result.output
    assert """--set "data.drop=['gone', 'result']" leaves it out""" in result.output
    assert "'gone' is" not in result.output
    for path in sites.glob("*.csv"):
        path.unlink()
    record = read("run")
    write_report([record], sites / "again.html")
    text = (sites / "again.html").read_text(encoding="utf-8")
    assert text == (sites / "run" / "report.html").read_text(encoding="utf-8")
    assert '<section id="columns">' in text and name not in text and "<b>bad" not in text
    assert "&lt;b&gt;bad&lt;/b&gt;" in text and "gone: you said so" in text
    about = json.loads((sites / "run" / "about.json").read_text())
    about["columns"]["rows"] = [1]
    (sites / "run" / "about.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match=r"about.json.*columns"):
        read("run")


def refused(message, *arguments):
    before = {path: path.read_bytes() for path in pathlib.Path().rglob("*") if path.is_file()}
    output = output_of(*arguments, code=2)
    assert output.startswith("error: ") and message in output
    assert {path: path.read_bytes() for path in pathlib.Path().rglob("*") if path.is_file()} == before


def test_what_is_refused_leaves_no_file(sites):
    agreed()
    output_of("fit", "plan.json", *(f"{name}-second.json" for name in TABLES))
    first = [f"{name}-first.json" for name in TABLES]
    refused("out = 'hospital-7-first.json': this is there already", "summarize", "hospital-7.csv")
    refused("out = 'a/b.json': there is no such folder", "summarize", "hospital-7.csv", "--out", "a/b.json")
    refused("drop: there is no column 'agee'", "summarize", "hospital-7.csv", "--drop", "agee", "--out", "x")
    refused("the plan has it already", "summarize", "hospital-7.csv", "--plan", "plan.json", "--drop", "age")
    refused("name the label", "summarize", "hospital-7.csv", "--drop-missing-labels", "--out", "x")
    refused("out = 'plan.json': this is there already", "plan", *first, "--label", "ill")
    refused("there is no column 'il'. did you mean 'ill'", "plan", *first, "--label", "il", "--out", "x")
    refused("a summary of the other exchange", "plan", "hospital-7-second.json", "--label", "ill", "--out", "x")
    refused("give COLUMN=KIND", "plan", *first, "--label", "ill", "--column", "zip", "--out", "x")
    refused("columns.zip = 'words'", "plan", *first, "--label", "ill", "--column", "zip=words", "--out", "x")
    (sites / "copy").mkdir()
    (sites / "copy" / first[0]).write_bytes((sites / first[0]).read_bytes())
    twice = (first[0], f"copy/{first[0]}")
    refused("another file is of a site called 'hospital-7', too", "plan", *twice, "--label", "ill", "--out", "x")
    output_of("plan", *first, "--label", "ill", "--column", "zip=category", "--drop", "age", "--out", "other.json")
    refused("hospital-7: its summary answers another plan", "fit", "other.json", "hospital-7-second.json", "--out", "x")
    refused("it is no plan of fedax", "fit", first[0], "hospital-7-second.json", "--out", "x")
    (sites / "hospital-8.csv").write_text("age,ward,ill\n1,A,no\n")
    refused("there is no column 'zip'", "apply", "transform.json", "hospital-8.csv")
    (sites / "hospital-7").mkdir()
    refused("out = 'hospital-7': this is there already", "apply", "transform.json", "hospital-7.csv")


def test_the_commands_of_the_page(tmp_path, monkeypatch):
    """docs/data.md, literally; each site does what hospital-7 does."""
    monkeypatch.chdir(tmp_path)
    page = (pathlib.Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    (block,) = [each for each in page.split("```") if each.startswith("bash\nfedax data summarize")]
    for name, text in TABLES.items():
        (tmp_path / f"{name}.csv").write_text(text.replace("ill\n", "readmitted\n"))
    for line in block.splitlines()[1:]:
        command = shlex.split(line, comments=True)
        assert command[:2] == ["fedax", "data"]
        for name in TABLES if "hospital-7.csv" in command else ["hospital-7"]:
            typed = [each.replace("hospital-7", name) for each in command[2:]]
            results = [sorted(glob.glob(each)) if "*" in each else [each] for each in typed]
            output = output_of(*itertools.chain(*results))
            assert "Wrote " in output and "Next" in output
    assert data.FederatedData.open("hospital-7").num_examples == 15
    assert data.FederatedData.open("hospital-8").transform == data.Transform.load("transform.json")


def write_sites(folder, sites=3, n=200, more=0):
    """Days that only rows with the rarer label have, a code for missing values, rows that stand twice.

    ``more``: columns; two have as many features as the days.
    """
    rng = np.random.default_rng(5)
    for k in range(sites):
        table = pandas.DataFrame({"patient": [f"P{k}-{i}" for i in range(n)], "x": rng.normal(size=n).round(3)})
        table["bp"] = np.where(rng.random(n) < 0.1, 9999, rng.normal(120, 15, n).round(1))
        table["crp"] = rng.exponential(9, n).round(2)
        table["ill"] = np.where(table["x"] + rng.normal(size=n) > 1.9, "yes", "no")
        table["days"] = np.where(table["ill"] == "yes", rng.integers(1, 30, n), np.nan)
        table = table.assign(**{f"z{j}": rng.normal(size=n).round(2) for j in range(4 + more)})
        twice = table.iloc[:10].assign(patient=[f"Q{k}-{i}" for i in range(10)])
        pandas.concat([table, twice]).to_csv(folder / f"site-{k}.csv", index=False)


def test_check_says_what_would_be_used_and_writes_nothing(sites):
    write_sites(sites)
    before = sorted(sites.iterdir())
    lines = output_of("check", *sorted(sites.glob("site-*.csv")), "--label", "ill", "--drop", "z0").splitlines()
    assert lines[0] == "3 clients with 630 rows: site-0 210, site-1 210, site-2 210"
    assert lines[1].split() == ["class", "rows", "site-0", "site-1", "site-2"]
    counts = [[int(each) for each in line.split()[1:]] for line in lines[2:4]]
    assert sum(each[0] for each in counts) == 630 and all(each[0] == sum(each[1:]) for each in counts)
    notes = [line for line in lines if line.startswith("note: ")]
    assert [any(part in note for note in notes) for part in ("'days' tells the label", "9999 at site-0", "30 of 630")]
    assert notes[0].startswith("note: 'days' tells the label by where it is missing") and "--drop days" in notes[0]
    assert "left out: 'z0': you said so" in lines and lines[-1] == "positive class: 'yes'"
    assert sorted(sites.iterdir()) == before


def test_check_reads_what_its_options_say(sites):
    write_sites(sites, sites=1)
    pandas.read_csv("site-0.csv").assign(site=["n", "s"] * 105).to_parquet("all.parquet")
    assert "2 clients with 210 rows: n 105, s 105" in output_of(
        "check", "all.parquet", "--label", "ill", "--client", "site"
    )
    output = output_of("check", "all.parquet", "--label", "ill", "--column", "x=drop", "--positive", "no")
    assert "there is one client only" in output and ": 'site'?" in output and "left out: 'x'" in output
    assert "positive class: 'no'" in output
    assert "positive = 'maybe'" in output_of("check", "all.parquet", "--label", "ill", "--positive", "maybe", code=2)
    assert "decimal" in output_of("check", "all.parquet", "--label", "ill", "--decimal", ",", code=2)
    assert "no such file" in output_of("check", "nothing.txt", "--label", "ill", code=2)


def test_a_label_in_two_codings_over_sites(sites):
    for name, words in {"north": ("no", "yes"), "south": ("0", "1")}.items():
        lines = [f"{k / 7:.3f},{words[k % 2]}" for k in range(30)]
        (sites / f"{name}.csv").write_text("\n".join(["x,ill", *lines]) + "\n")
        output_of("summarize", f"{name}.csv")
    assert "'ill' is coded in two ways: 'no', 'yes' at 'north'" in output_of(
        "check", "north.csv", "south.csv", "--label", "ill"
    )
    output_of("plan", "north-first.json", "south-first.json", "--label", "ill")
    for name in ("north", "south"):
        output_of("summarize", f"{name}.csv", "--plan", "plan.json")
    answers = ("plan.json", "north-second.json", "south-second.json")
    error = output_of("fit", *answers, code=2)
    assert "'no', 'yes' at 'north'; '0', '1' at 'south'" in error and "--no-check-labels" in error
    assert not pathlib.Path("transform.json").exists()
    output = output_of("fit", *answers, "--no-check-labels")
    assert "0 15, 1 15, no 15, yes 15" in output and "note: 'ill' is coded in two ways" in output


def test_doubts_that_need_rows_are_for_the_owner(sites):
    write_sites(sites, sites=1)
    output = output_of("summarize", "site-0.csv", "--label", "ill")
    assert "'days' tells the label by where it is missing" in output and "some rows stand several times" in output
    assert "there is one client only" not in output
    text = pathlib.Path("site-0-first.json").read_text()
    assert '"codes": {"9999": ' in text
    output = output_of("plan", "site-0-first.json", "--label", "ill")
    assert "9999 at site-0" in output and "tells the label" not in output and "several times" not in output


def test_a_run_begins_with_it_in_a_dozen_lines_and_says_where_a_result_is_too_good(sites):
    write_sites(sites)
    arguments = ["compare", "csv", "--set", "data.files=site-*.csv", "--set", "data.label=ill", "--seeds", "1"]
    arguments += ["--set", "run.rounds=30", "--methods", "fedavg", "--out", "run"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    first = lines.index("3 clients with 630 rows: site-0 210, site-1 210, site-2 210")
    last = next(k for k, line in enumerate(lines) if line.startswith("fedavg, seed 0"))
    assert 5 <= last - first <= 12 and any("'days' tells the label" in line for line in lines[first:last])
    assert "Too good to be true? fedavg: Test " in " ".join(lines)
    text = (sites / "run" / "report.html").read_text(encoding="utf-8")
    assert "Too good to be true?" in text and "tells the label by where it is missing" in text
    assert "3 clients with 630 rows" in text and '<td data-name="site-2">' in text


def test_ordinary_results_are_not_too_good(sites):
    write_sites(sites, more=2)
    arguments = ["compare", "csv", "--set", "data.files=site-*.csv", "--set", "data.label=ill", "--seeds", "1"]
    arguments += ["--set", "run.rounds=5", "--methods", "fedavg", "--out", "run", "--set", "data.drop=['days']"]
    arguments += ["--no-tune", "--set", "run.baselines=false"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "Too good" not in result.output


def test_a_dozen_lines_say_how_many_notes_are_left(sites):
    overview = data.from_csv(sites, label="ill").overview
    looks = ("copy", "gaps", "code", "units", "identifier", "date", "constant")
    notes = tuple(data.Note(column, look, "so") for look in looks for column in ("age", "zip"))
    overview = dataclasses.replace(overview, notes=notes)
    config = {"data": {"name": "csv"}}
    lines, every = noted.brief(config, overview), noted.lines(config, overview)
    assert len(every) == 14 and len(lines) == 12 and lines[: len(overview.about())] == overview.about()
    assert lines[-1] == f"and {14 - (11 - len(overview.about()))} notes more, which the report shows"
    many = dataclasses.replace(overview, notes=tuple(data.Note(f"c{k}", "date", "so") for k in range(5)))
    assert noted.brief(config, many)[-1].startswith("note: 5 columns look like dates: 'c0', 'c1'")
