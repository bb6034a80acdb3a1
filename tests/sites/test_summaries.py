"""A coordinator that is not trusted, and what it learns of a node's table: through the node's own door."""

import dataclasses
import json
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax.data import Plan, fit, plan, summarize
from fedax.data.summaries import LEAST, Planned
from fedax.data.transform import Column, Label, Transform
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.refusals import Rule
from fedax.sites.protocol.tables import MOST, TRANSFORMS
from fedax.sites.service.deploy import answering


def node(folder, rows, policy=None, **options):
    """The answers of a node to heads of messages, as its worker gives them."""
    rows.to_csv(folder / "site.csv", index=False)
    place, state = folder / "site.csv", folder / "state" / "site"
    answer = answering(str(place), str(state), ["site"], {"read": {}, **options}, policy=policy)
    return lambda **head: answer(Message(head)).head


def second(ask, columns, label="ill", **more):
    """What is told of the columns in the second exchange, or the error."""
    given = Plan(columns, label, **more).to_json()
    told = ask(kind="summarize", plan=given)
    return told if "error" in told else {part: told["summary"][part] for part in ("counts", "alone", "reach")}


def ends(name):
    """Of a bin; of a narrow one its middle."""
    low, _, high = name.partition(" to ")
    return float(low), float(high or low)


def table(n=150, seed=0):
    rng = np.random.default_rng(seed)
    age = np.append(rng.uniform(0, 2.8, n - 1), 1000.0)
    ill = np.where(np.arange(n) % 3, "no", "yes")
    return pandas.DataFrame({"age": age, "dose": rng.uniform(0, 2.8, n), "ill": ill})


def test_plans_with_other_means_and_deviations_get_one_answer_without_the_extremes(tmp_path):
    rows = table()
    ask = node(tmp_path, rows)
    plans = [(mean, std) for mean in (-1e100, -3.0, 0.0, 2.7, 999.0, 1e100) for std in (0.0, 1e-300, 1e-3, 1.0, 1e100)]
    told = [second(ask, {"age": Planned("number", *each, missing=True)}) for each in plans]
    assert all(each == told[0] for each in told) and told[0]["reach"]
    _, high = told[0]["reach"]["age"]
    assert (
        high < 500 and max(end for each in told[0]["counts"]["age"]["bins"] for end in ends(each)) < 500
    )  # 1000.0 is alone
    assert len([*(tmp_path / "state" / "left").iterdir()]) == 1


def test_one_summary_does_not_give_the_values(tmp_path):
    """With bins of its own choice a coordinator had each of 150 values within 0.011."""
    rows = table()
    told = second(node(tmp_path, rows), {"dose": Planned("number", 1.4, 1.4 / 1.01, missing=True)})
    bins = told["counts"]["dose"]["bins"]
    if isinstance(bins, dict):
        guess = np.concatenate([np.linspace(*ends(each), 2 * n + 1)[1::2] for each, n in bins.items()])
    else:  # as they were, of the coordinator's choice
        guess = np.repeat((np.arange(len(bins)) + 0.5) * 2.8 / len(bins), bins)
    off = np.abs(np.sort(guess) - np.sort(rows["dose"]))
    assert len(guess) == 150 and len(bins) <= 30 and (off < 0.012).mean() < 0.6


def test_no_count_of_few_rows_or_of_all_but_few_is_told(tmp_path):
    n = 100
    for gaps in range(LEAST):
        place = tmp_path / str(gaps)
        place.mkdir()
        few, codes = np.arange(n) < gaps, np.arange(n)
        rows = pandas.DataFrame({
            "age": np.where(few, np.nan, 50.0 + codes % 7), "ward": np.where(few, "rare", "A"),
            "word": np.where(few, "old", (codes % 9).astype(str)), "code": np.where(few, -999, codes % 30),
            "gap": np.where(few, None, np.where(codes % 2, "u", "v")), "ill": np.where(codes % 2, "no", "yes"),
        })  # fmt: skip
        ask = node(place, rows)
        first = ask(kind="summarize", label="ill")["summary"]["facts"]
        told = second(ask, {name: Planned("category", missing=True) for name in ("ward", "gap")}
                      | {name: Planned("number", missing=True) for name in ("age", "word", "code")})  # fmt: skip
        assert [first[name]["missing"] for name in ("age", "word", "gap")] == [0, 0, 0]
        assert first["word"]["numbers"] == n and first["word"]["words"] == 0 and "codes" not in first["code"]
        assert told["counts"]["ward"]["by_text"] == {"A": n} and told["counts"]["ward"]["rest"] == 0
        assert sum(told["counts"]["gap"]["by_text"].values()) == n
        assert sum(told["counts"]["age"]["bins"].values()) == sum(told["counts"]["word"]["bins"].values()) == n
        assert {each["rows"] for each in told["alone"].values()} == {n}


def test_a_rare_class_and_a_small_table_are_told_to_nobody(tmp_path):
    rows = pandas.DataFrame({"age": range(40), "ill": ["no"] * 37 + ["kuru"] * 3})
    ask = node(tmp_path, rows)
    told = second(ask, {"age": Planned("number")})
    assert told["counts"]["ill"]["by_text"] == {"no": 40} and "kuru" not in json.dumps(told)
    (tmp_path / "small").mkdir()
    small = node(tmp_path / "small", rows[:4])
    assert small(kind="summarize", label="ill") == {"error": f"{Rule.FEW_ROWS.text} (least = {LEAST})"}
    (tmp_path / "strict").mkdir()
    strict = node(tmp_path / "strict", rows, policy={"tables": {"rows": 50}})
    assert strict(kind="summarize", label="ill") == {"error": f"{Rule.FEW_ROWS.text} (least = 50)"}


def test_only_a_few_tables_with_a_row_more_are_told_of_and_a_restart_does_not_forget(tmp_path):
    """The difference of two sums is the row that was added: that is not held, and so there are four at most."""
    told = []
    for more in [*range(MOST + 2), 0]:
        ask = node(tmp_path, table()[: 100 + more])
        told.append(ask(kind="summarize", label="ill"))
    text = f"{Rule.LEFT.text} (first summaries = {MOST})"
    assert [each.get("error") for each in told] == [None] * MOST + [text] * 2 + [None]
    assert "left/" in text and told[0] == told[-1]
    for path in (tmp_path / "state" / "left").iterdir():
        path.unlink()
    assert "summary" in node(tmp_path, table()[:105])(kind="summarize", label="ill")
    next((tmp_path / "state" / "left").iterdir()).write_text("{")
    assert ask(kind="summarize", label="ill") == {"error": Rule.LEFT_UNREADABLE.text}


def test_second_summaries_of_a_column_are_counted_whatever_else_is_asked(tmp_path):
    rows = table().assign(other=np.arange(150) % 5, more=np.arange(150) % 7)
    ask, told = node(tmp_path, rows), []
    for kind in ("number", "category"):
        for missing in (False, True):
            for label in ("ill", "other", "more"):
                columns = {"dose": Planned("number"), "age": Planned("number")}
                columns["ill" if label != "ill" else "more"] = Planned(kind, missing=missing)
                told.append("error" in second(ask, columns, label))
    left = [json.loads(path.read_text()) for path in (tmp_path / "state" / "left").glob("second-*")]
    for name in ("dose", "age", "ill", "more", "other"):
        parts = {json.dumps([each[part].get(name) for part in ("counts", "alone", "reach")]) for each in left}
        assert len(parts - {"[null, null, null]"}) <= MOST
    assert any(told)


def test_transforms_do_not_search_for_the_largest_value(tmp_path):
    """Whether (value − mean) / scale is beyond float32 is a comparison with a number of the coordinator's choice."""
    ask, answers = node(tmp_path, table()), []
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2  # of the largest value, as far as is known
        made = Transform((Column("age", "number", 0.0, middle / 3.4028234e38),), Label("ill", ("no", "yes")))
        answers.append(ask(kind="prepare", transform=made.to_json()))
        if answers[-1].get("error", "").startswith(Rule.TRANSFORMS.text):
            continue
        low, high = (middle, high) if answers[-1].get("error") == Rule.NUMBER.text else (low, middle)
    assert sum("error" not in each or each["error"] == Rule.NUMBER.text for each in answers) == TRANSFORMS
    assert answers[-1] == {"error": f"{Rule.TRANSFORMS.text} (transforms = {TRANSFORMS})"} and high - low > 10


EVIL = [
    lambda p: p["columns"]["age"].update(mean=math.nan),
    lambda p: p["columns"]["age"].update(mean=1e300),
    lambda p: p["columns"]["age"].update(std=-1.0),
    lambda p: p["columns"]["age"].update(texts="whole"),
    lambda p: p.update(texts="whole"),
    lambda p: p["columns"].update({"": {"kind": "category"}}),
    lambda p: p["columns"].update({f"c{k}": {"kind": "number"} for k in range(100_000)}),
    lambda p: p.update(label=["ill"]),
    lambda p: p.update(label=None),
    lambda p: p.update(max_categories=-1),
    lambda p: p.update(more=1),
    lambda p: p.clear(),
]


@pytest.mark.parametrize("change", EVIL)
def test_an_evil_plan_gets_a_fixed_text(change, tmp_path):
    given = Plan({"age": Planned("number")}, "ill").to_json()
    change(given)
    error = node(tmp_path, table())(kind="summarize", plan=given)["error"]
    assert error.partition(" (")[0] in {Rule.FORM.text, Rule.NO_COLUMN.text, Rule.NO_LABEL.text}
    assert not [*(tmp_path / "state" / "left").iterdir()]


def test_a_million_categories_are_those_there_are(tmp_path):
    told = second(node(tmp_path, table()), {"age": Planned("number")}, max_categories=10**6)
    assert told["counts"]["ill"]["by_text"] == {"no": 100, "yes": 50}


def test_no_cell_is_in_an_answer(tmp_path, capsys):
    """Labels and cells that cannot be used, of every kind, and questions that meet them."""
    rng = random.Random(0)
    texts = {str(rule.text) for rule in Rule}
    for trial in range(25):
        place = tmp_path / str(trial)
        place.mkdir()
        secret = [f"SECRET{rng.randrange(10**9)}" for _ in range(60)]
        odd = [*secret[:3], "4e77", "-4e77", "nan", "", "77777.5", "0", "1e999", "31.1.2024", "x" * 300]
        usual = {"label": ["no", "yes"] * 30, "age": range(60), "cost": np.arange(60) + 0.5, "id": secret}
        rows = pandas.DataFrame(usual).astype(str)
        rows = rows.map(lambda cell: rng.choice(odd) if rng.random() < 0.2 else cell)  # noqa: B023
        ask = node(place, rows, drop_missing_labels=bool(trial % 2))
        heads = [{"kind": "summarize", "label": name} for name in (*rows, "no such", 7, None)]
        kinds = ["number", "category", "date", "text"]
        for _ in range(12):
            label, *names = rng.sample([*rows], 3)
            task = rng.choice(["classification", "regression"])
            target = rng.choice(["log", None]) if task == "regression" else None
            columns = {name: Planned(rng.choice(kinds), missing=True) for name in names}
            heads.append({"kind": "summarize", "plan": Plan(columns, label, task, target=target).to_json()})
            classes = rng.choice([None, ("no", "yes"), ("a", "b")])
            made = Transform(tuple(Column(name, "number", scale=rng.choice([1.0, 1e-200])) for name in names),
                             Label(label, classes, target=None if classes else target))  # fmt: skip
            heads += [{"kind": "prepare", "transform": made.to_json()}, {"kind": "commit", "digest": "0" * 64}]
        heads += [{"kind": kind} for kind in ("hello", "check", "prepare", "commit", "summarize", "exchange")]
        for head in heads:
            answer = json.dumps(ask(**head))
            assert "SECRET" not in answer and "4e+77" not in answer and "77777" not in answer and "xxx" not in answer
            if (error := json.loads(answer).get("error")) is not None:
                assert error.removeprefix("site: ").partition(" (")[0] in texts
                assert error.partition(" = ")[2] in {"", f"{MOST})", "'no such')", *(f"'{name}')" for name in rows)}
        assert "Traceback" not in (err := capsys.readouterr().err), err


# ---- any table, any plan: an oracle of its own


def told_bins(values, least):
    """Exact, by fractions: intervals of a grid are cut in two as long as nobody is left in a group of few."""
    if len(values) < least:
        return {}
    mean = float(np.mean(values))
    std = math.sqrt(np.square(np.array(values) - mean).sum() / len(values))
    if std <= 1e-12 * abs(mean):
        return {(mean, mean): len(values)}
    width = Fraction(2) ** (math.floor(math.log2(std)) - 7)
    start = math.floor(Fraction(mean) / width) - 1024
    cells = sorted(min(max(math.floor(Fraction(v) / width), start), start + 2047) for v in values)
    groups, done = [(cells, start, start + 2048)], Counter()
    while groups:
        members, a, b = groups.pop()
        half = (a + b) // 2
        left, right = [c for c in members if c < half], [c for c in members if c >= half]
        if b - a == 1 or (0 < len(left) < least and 0 < len(right) < least):
            done[tuple(float(width * end) for end in ((a, b) if b - a > 1 else (Fraction(a + b, 2),) * 2))] += len(
                members
            )
        elif len(left) < least:
            groups.append(([half] * len(left) + right, half, b))
        elif len(right) < least:
            groups.append((left + [half - 1] * len(right), a, half))
        else:
            groups += [(left, a, half), (right, half, b)]
    return dict(done)


def enough(times, of, least):
    return times == 0 or times == of or (times >= least and of - times >= least)


NUMBERS = st.floats(-1e6, 1e6).filter(lambda v: v == 0 or abs(v) > 1e-100)  # a variance of smaller ones would be 0
CELLS = st.one_of(st.none(), st.integers(-3, 3), NUMBERS, st.sampled_from(["A", "B", "C", "x9", "old"]), st.just(-999))
HUGE = st.one_of(st.floats(-1e100, 1e100), st.just(0.0))
PLANNED = st.builds(Planned, st.sampled_from(["number", "category", "date"]), HUGE, HUGE.map(abs), st.booleans(),
                    st.sampled_from(["numeric", "written", "truth"]))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS, st.sampled_from(["no", "yes", "kuru"])), min_size=5, max_size=60), PLANNED,
       PLANNED, st.sampled_from(["classification", "regression"]), st.integers(2, 9))  # fmt: skip
def test_the_second_summary_is_of_counts_of_several_rows(cells, one, two, task, least):
    rows = pandas.DataFrame(cells, columns=["a", "b", "y"]).astype({"a": object, "b": object})
    n = len(rows)
    if n < least:
        return
    label = "y" if task == "classification" else "b"
    columns = {name: each for name, each in {"a": one, "b": two}.items() if name != label}
    summary = summarize(rows, Plan(columns, label, task), least)
    again = {name: dataclasses.replace(each, mean=0.0, std=1.0) for name, each in columns.items()}
    assert dataclasses.replace(summarize(rows, Plan(again, label, task), least), plan=summary.plan) == summary
    for name, counts in summary.counts.items():
        told = [*counts.by_text.values(), *counts.bins.values(), *([counts.rest] if counts.rest else [])]
        assert all(enough(times, n, least) for times in told) and enough(sum(told), n, least)
        if columns.get(name, Planned("category")).kind == "number":
            numbers = [float(v) for v in rows[name] if isinstance(v, int | float) and v == v]
            wanted = told_bins(numbers, max(least, math.ceil(len(numbers) / 50)))
            if wanted and n - len(numbers) < least:
                wanted[max(wanted, key=wanted.get)] += n - len(numbers)
            assert sorted(counts.bins.values()) == sorted(wanted.values())
            assert {ends(each) for each in counts.bins} == set(wanted)
        elif columns.get(name, Planned("category")).kind == "category":
            for text, times in counts.by_text.items():
                true = sum(1 for v in rows[name] if v is not None and v == v and str(v) == text)
                assert true <= times or columns.get(name, one).texts != "written"
    for name, (low, high) in summary.reach.items():
        numbers = np.array([float(v) for v in rows[name] if isinstance(v, int | float) and v == v])
        if columns[name].kind == "number":
            step = numbers.std() / 2
            assert (numbers < low - 1e-6 * step).sum() < least and (numbers > high + 1e-6 * step).sum() < least
            if low < numbers.mean() - step / 2:  # a step less would leave a group that is large enough
                assert (numbers < low + step * (1 + 1e-6)).sum() >= least
    for alone in summary.alone.values():
        for times in (alone.rows, alone.most, alone.right):
            assert enough(times, n, least) and enough(times, alone.rows, least)


def test_sites_that_withhold_get_the_transform_of_all_rows_nearly(tmp_path):
    """What withholding costs: medians by bins of five rows and more, and at most four rows of a kind at each site."""
    rng = np.random.default_rng(3)
    sites = [pandas.DataFrame({"x": np.where(rng.random(n) < 0.1, np.nan, np.exp(rng.normal(size=n))),
                               "w": rng.choice(list("ABCD"), n, p=[0.6, 0.3, 0.08, 0.02]),
                               "y": rng.choice(["no", "yes"], n)}) for n in (90, 250, 1000)]  # fmt: skip
    made = []
    for least in (1, LEAST):
        request = plan([summarize(each, least=least) for each in sites], label="y")
        made.append(fit(request, [summarize(each, request, least) for each in sites]))
    (x, w), (held_x, held_w) = (each.columns for each in made)
    assert (held_x.mean, held_x.scale) == pytest.approx((x.mean, x.scale), rel=0.01)
    assert abs(held_x.fill - x.fill) < x.scale / 30 and held_w.categories == w.categories == tuple("ABCD")
