"""Notes on columns, from summaries alone: odd columns get one, and true measurements do not."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from fedax import data
from fedax.errors import DataError

N = 300


def plain(n=N, seed=0):
    """Nothing is odd about these columns, but that the second and third have whole numbers."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "pressure": rng.normal(130, 18, n),
            "age": np.rint(rng.normal(60, 12, n)),
            "platelets": np.rint(rng.normal(250_000, 60_000, n) / 1000) * 1000,
            "ward": rng.choice(["A", "B", "C"], n),
            "ill": rng.choice(["no", "yes"], n, p=[0.7, 0.3]),
        }
    )


def noted(table, label="ill", sites=3, **options):
    frames = {f"site-{k}": part for k, part in enumerate(np.array_split(np.arange(len(table)), sites))}
    federated = data.from_frames({name: table.iloc[rows] for name, rows in frames.items()}, label=label, **options)
    return {note.column: (note.looks, note.why) for note in federated.overview.notes}


def test_plain_columns_have_no_note():
    assert noted(plain()) == {}


ROWS = np.arange(N)
ODD = {
    "consecutive": (lambda t, rng: rng.permutation(N) + 1000, "identifier"),
    "five digits": (lambda t, rng: rng.choice(90_000, N, replace=False) + 10_000, "identifier"),
    "nine digits": (lambda t, rng: rng.choice(10**9, N, replace=False), "identifier"),
    "a few twice": (lambda t, rng: np.where(ROWS == 50, 1051, ROWS + 1000), "identifier"),
    "with gaps": (lambda t, rng: np.where(rng.random(N) < 0.1, np.nan, ROWS), "identifier"),
    "real number": (lambda t, rng: rng.normal(size=N), None),
    "large sums": (lambda t, rng: np.rint(rng.lognormal(7, 0.7, N)), None),
    "day": (lambda t, rng: [f"2024-{1 + k % 12:02d}-{1 + k % 28:02d}" for k in ROWS], "date"),
    "day as number": (lambda t, rng: 20240000 + 100 * (1 + ROWS % 12) + 1 + ROWS % 5, "date"),
    "born": (lambda t, rng: rng.integers(1930, 1990, N), "date"),
    "German day": (lambda t, rng: [f"{1 + k % 3}.{1 + k % 12}.2024" for k in ROWS], "date"),
    "result": (lambda t, rng: np.where(t["ill"] == "yes", "bad", "good"), "copy"),
    "code": (lambda t, rng: np.where(t["ill"] == "yes", 7, 3), "copy"),
    "score": (lambda t, rng: (t["ill"] == "yes") * 2.0 + rng.random(N), "copy"),
    "helps": (lambda t, rng: (t["ill"] == "yes") * 2.0 + rng.normal(size=N), None),
    "scanner": (lambda t, rng: np.where(ROWS == 77, 2, 1), "constant"),
    "maker": (lambda t, rng: np.where(ROWS == 77, "X", "Y"), "constant"),
    "hardly": (lambda t, rng: 1e7 + rng.normal(size=N) * 1e-3, "constant"),
    "rare": (lambda t, rng: np.where(ROWS % 40 == 7, "X", "Y"), None),
    "place": (lambda t, rng: np.array(["north", "east", "south"])[ROWS // 100], "site"),
    "number of place": (lambda t, rng: ROWS // 100, "site"),
    "marker": (lambda t, rng: np.where((ROWS < 100) & (ROWS % 5 > 0), np.nan, rng.normal(size=N)), "missing"),
    "some gaps": (lambda t, rng: np.where(ROWS % 5 > 2, np.nan, rng.normal(size=N)), None),
}


@pytest.mark.parametrize("name", ODD)
def test_what_a_column_looks_like(name):
    make, looks = ODD[name]
    table = plain()
    table[name] = make(table, np.random.default_rng(1))
    notes = noted(table)
    assert {column: each[0] for column, each in notes.items()} == ({} if looks is None else {name: looks})


@pytest.mark.parametrize("second", [True, False])
def test_a_category_with_one_value_is_dropped_as_the_transform_drops_it(second):
    table = plain().assign(country="CH")
    first = {"a": data.summarize(table[:150], least=1), "b": data.summarize(table[150:], least=1)}
    agreed = data.plan(first, label="ill")
    answers = {"a": data.summarize(table[:150], agreed, least=1), "b": data.summarize(table[150:], agreed, least=1)}
    seen = data.overview(agreed, first, answers if second else {})
    kinds = {column.name: column.kind for column in seen.columns}
    if second:
        assert kinds["country"] == "dropped" and seen.notes == ()
        assert seen.dropped == data.fit(agreed, answers).dropped == {"country": "all values are the same"}
    else:
        assert kinds["country"] == "category"


def test_a_class_with_hardly_any_row_is_noted():
    table = plain()
    table.loc[[7], "ill"] = "odd"
    table.loc[[8, 200], "ill"] = "odder"
    looks, why = noted(table)["ill"]
    assert looks == "rare" and "'odd', 'odder'" in why
    table.loc[[9, 201], "ill"] = ["odd", "odder"]
    assert "'odd'" in noted(table)["ill"][1] and "'odder'" not in noted(table)["ill"][1]


def sites(make, n=80):
    """Notes of two sites a and b; ``make(site, rng, x)`` gives the columns beside x and a label that depends on it."""
    frames = {}
    for k, site in enumerate("ab"):
        rng = np.random.default_rng(k)
        x = rng.normal(size=n)
        y = np.where(x + rng.normal(size=n) > 0, "yes", "no")
        frames[site] = pd.DataFrame({"x": x, **make(site, rng, y), "y": y})
    return {note.column: (note.looks, note.why) for note in data.from_frames(frames, label="y").overview.notes}


def some(rng, values, code, share=0.1):
    return np.where(rng.random(len(values)) < share, code, values)


WITH_CODES = {
    "-999": lambda site, rng: some(rng, np.rint(rng.normal(120, 15, 80)), -999),
    "9999": lambda site, rng: some(rng, np.rint(rng.normal(120, 15, 80)), 9999),
    "99": lambda site, rng: some(rng, rng.integers(0, 6, 80), 99),
    "-9": lambda site, rng: some(rng, rng.integers(1, 6, 80), -9),
    "0": lambda site, rng: some(rng, np.rint(rng.normal(240, 40, 80)), 0),
    "0 at b": lambda site, rng: np.rint(rng.normal(240, 40, 80)) if site == "a" else np.zeros(80),
}


@pytest.mark.parametrize("name", WITH_CODES)
def test_numbers_that_may_stand_for_a_missing_value(name):
    notes = sites(lambda site, rng, y: {"bp": WITH_CODES[name](site, rng)})
    assert notes["bp"][0] == "code" and notes["bp"][1].startswith(f"{name.split()[0]} at ")
    if name == "0 at b":
        assert "0 at b (80 of 80)" in notes["bp"][1]


@pytest.mark.parametrize("make", [
    lambda rng: some(rng, rng.integers(0, 9, 80), 9),  # a scale
    lambda rng: some(rng, np.rint(rng.exponential(300, 80)), 0, 0.4),  # what many have none of
    lambda rng: rng.choice([0, 1, 2], 80),
    lambda rng: np.where(np.arange(80) < 3, -999, rng.normal(120, 15, 80)),  # too few to be no chance
    lambda rng: np.rint(rng.normal(90, 10, 80)).clip(60, 99),
])  # fmt: skip
def test_ordinary_numbers_stand_for_themselves(make):
    assert sites(lambda site, rng, y: {"bp": make(rng)}) == {}


@pytest.mark.parametrize("factor", [0.01, 10, 1000, 1 / 2.54, 1 / 38.67])
def test_other_units_at_a_site(factor):
    height = lambda site, rng, y: {"height": rng.normal(168, 9, 80) * (factor if site == "b" else 1)}  # noqa: E731
    looks, why = sites(height)["height"]
    assert looks == "units" and " at a" in why and " at b" in why and f"{max(factor, 1 / factor):.3g} times" in why


@pytest.mark.parametrize("make", [
    lambda site, rng: rng.normal(168 if site == "a" else 66, 9, 80),  # the spread does not say so
    lambda site, rng: rng.normal(168 if site == "a" else 84, 9 if site == "a" else 4.5, 80),  # children
    lambda site, rng: rng.random(80) < (0.5 if site == "a" else 0.05),
    lambda site, rng: rng.poisson(50 if site == "a" else 5, 80),
])  # fmt: skip
def test_other_people_are_no_other_units(make):
    assert "units" not in {looks for looks, _ in sites(lambda site, rng, y: {"height": make(site, rng)}).values()}


def test_units_of_a_column_that_is_constant_at_a_site():
    assert sites(lambda site, rng, y: {"h": rng.normal(168, 9, 80) if site == "b" else np.full(80, 1.5)}) == {}


def test_units_and_codes_over_sites_need_no_row():
    """The first summaries alone; they hold no number but from the list."""
    a = pd.DataFrame({"bp": [-999.0] * 6 + [100.0 + k for k in range(40)], "h": [150.0 + k for k in range(46)]})
    b = a.assign(h=a["h"] / 100, bp=[5678.0] * 6 + [100.0 + k for k in range(40)])
    first = {"a": data.summarize(a, least=1), "b": data.summarize(b, least=1)}
    assert first["a"].facts["bp"].codes == {"-999": 6} and first["b"].facts["bp"].codes == {}
    notes = data.overview(data.plan(first), first).notes
    assert [(note.column, note.looks) for note in notes] == [("bp", "code"), ("h", "units")]
    assert data.Summary.from_json(first["a"].to_json()) == first["a"]
    assert "codes" not in json.dumps(first["b"].to_json())  # as older versions write it


def test_a_summary_may_not_name_other_numbers():
    with pytest.raises(DataError, match="codes"):
        data.Summary.from_json(
            {"fedax": "summary", "version": 2, "rows": 9, "facts": {"a": {"numbers": 9, "codes": {"36.6": 9}}}}
        )


def test_filled_only_where_the_label_is_positive():
    days = lambda site, rng, y: {"days": np.where(y == "yes", rng.integers(1, 30, 80), np.nan)}  # noqa: E731
    looks, why = sites(days)["days"]
    assert (looks, why) == ("gaps", "that alone gets 160 of 160 labels right")
    half = lambda site, rng, y: {"days": np.where((y == "yes") & (rng.random(80) < 0.6), 5.5, np.nan)}  # noqa: E731
    assert sites(half)["days"][0] == "gaps"


@pytest.mark.parametrize("make", [
    lambda site, rng, y: np.where(rng.random(80) < 0.3, np.nan, rng.normal(size=80)),
    lambda site, rng, y: np.where(rng.random(80) < np.where(y == "yes", 0.2, 0.5), np.nan, rng.normal(size=80)),
    lambda site, rng, y: np.where((site == "a") | (rng.random(80) < 0.4), rng.normal(size=80), np.nan),
])  # fmt: skip
def test_gaps_that_depend_on_the_label_a_little_or_on_the_site(make):
    assert "gaps" not in {looks for looks, _ in sites(lambda *each: {"days": make(*each)}).values()}


def test_gaps_of_a_site_with_one_class_tell_no_more_than_the_site():
    rng = np.random.default_rng(0)
    tables = {
        name: pd.DataFrame({"x": rng.normal(size=60), "z": np.nan if name == "b" else rng.normal(size=60), "y": y})
        for name, y in {"a": rng.permutation([0, 1] * 30), "b": np.ones(60, int)}.items()
    }
    assert {each.looks for each in overview(tables, label="y").notes} == {"missing"}


def test_a_copy_is_found_over_clients_that_are_too_small_alone():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=200), "y": rng.integers(0, 10, 200)})
    table["name"] = "class" + table["y"].astype(str)
    small = {f"c{k}": table.iloc[10 * k : 10 * k + 10] for k in range(20)}
    assert [(note.column, note.looks) for note in overview(small, label="y").notes] == [("name", "copy")]


def test_rows_that_stand_several_times():
    table = plain(300).assign(crp=lambda t: np.random.default_rng(3).exponential(9, len(t)))
    twice = {"a": table.iloc[:160], "b": table.iloc[140:]}
    (note,) = overview(twice, label="ill").notes
    assert (
        str(note) == "some rows stand several times: 20 of 320 rows repeat another one, 20 of them at several clients"
    )
    few = pd.DataFrame({"a": ROWS % 3, "b": ROWS % 5, "ill": np.random.default_rng(0).integers(0, 2, N)})
    assert noted(few) == {}  # so few columns repeat by themselves


def small(seed, x, z):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"x": x(rng), "z": z(rng), "y": rng.integers(0, 2, 80)})


@pytest.mark.parametrize(
    ("x", "z", "copy"),
    [
        (lambda rng: rng.normal(size=80), lambda rng: rng.normal(size=80), True),
        (lambda rng: rng.normal(size=80), lambda rng: rng.normal(size=80), False),
        (lambda rng: rng.integers(0, 2, 80), lambda rng: rng.integers(0, 2, 80), False),
        (lambda rng: rng.integers(20, 90, 80), lambda rng: np.zeros(80), False),
    ],
)
def test_a_copy_of_a_file_of_two_measurements_is_noted(x, z, copy):
    clients = {name: small(0 if copy and name == "b" else k, x, z) for k, name in enumerate("abc")}
    notes = [str(note) for note in overview(clients, label="y").notes if note.looks == "rows"]
    said = "some rows stand several times: 80 of 240 rows repeat another one, 80 of them at several clients"
    assert notes == ([said] if copy else [])


def test_one_client_only():
    table = plain().assign(site=np.where(ROWS % 3 > 1, "A", "B"), site_code=ROWS)
    (note,) = [each for each in overview({"all": table}, label="ill").notes if not each.column]
    assert note.looks == "alone" and note.why.endswith(": 'site'?")
    assert not noted(plain(), sites=2)


@pytest.mark.parametrize(("other", "noted_"), [("north", True), ("NORTH ", True), ("Nörth", True), ("south", False)])
def test_categories_that_are_one(other, noted_):
    ward = lambda site, rng, y: {"ward": rng.choice(["North", "x"] if site == "a" else [other, "x"], 80)}  # noqa: E731
    assert {looks for looks, _ in sites(ward).values()} == ({"spelling"} if noted_ else set())


@pytest.mark.parametrize(
    ("at_b", "noted_"),
    [
        (["ja", "nein"], ("spelling", "'no', 'yes' at 'a'; 'ja', 'nein' at 'b'")),
        (["1", "0"], ("spelling", "'no', 'yes' at 'a'; '0', '1' at 'b'")),
        (["x", "z"], ("site", "no two clients have a value in common: 'no', 'yes' at 'a'; 'x', 'z' at 'b'")),
        (["no", "z"], None),
        (["yes"] * 19 + ["no"], None),
    ],
)  # fmt: skip
def test_a_category_that_is_coded_differently_at_each_client(at_b, noted_):
    smokes = lambda site, rng, y: {"s": rng.choice(["no", "yes"] if site == "a" else at_b, 80)}  # noqa: E731
    assert sites(smokes) == ({} if noted_ is None else {"s": noted_})


def test_categories_of_few_rows_tell_no_site():
    streets = lambda site, rng, y: {"street": [f"{site} {'ABCDEFGHIJ'[k % 10]}" for k in range(80)]}  # noqa: E731
    assert sites(streets)["street"][0] == "site"
    table = plain(24).assign(street=lambda t: ["ABCDEFGH"[k // 3] for k in range(24)])
    assert "street" not in noted(table, sites=4)  # three rows each


def test_a_category_that_was_read_in_another_encoding():
    ward = lambda site, rng, y: {"ward": rng.choice(["KÃ¶ln", "Bonn"], 80)}  # noqa: E731
    assert sites(ward)["ward"] == ("spelling", "'KÃ¶ln' may be 'Köln' in another encoding")


def test_classes_by_client():
    table = plain()
    seen = overview({"a": table.iloc[:100], "b": table.iloc[100:]}, label="ill")
    counts = [(table["ill"].iloc[rows] == "yes").sum() for rows in (slice(0, N), slice(0, 100), slice(100, N))]
    assert seen.classes["yes"] == tuple(counts) and sum(each[0] for each in seen.classes.values()) == N
    assert f"yes in {counts[0]} rows (a {counts[1]}, b {counts[2]})" in seen.about()[1]
    assert data.Overview.from_json(json.loads(json.dumps(seen.to_json()))) == seen


def test_a_copy_of_a_number_in_other_units():
    table = plain().assign(celsius=lambda t: t["pressure"] / 3, fahrenheit=lambda t: 1.8 * t["celsius"] + 32)
    table["near"] = table["celsius"] + np.random.default_rng(9).normal(size=N)
    notes = noted(table.drop(columns="pressure"), label="fahrenheit")
    assert notes == {"celsius": ("copy", "their correlation is 1.0000")}


def test_correlations_are_those_of_the_pooled_rows():
    """Perfect within each site, but not over them."""
    table = plain().assign(x=ROWS % 7 + 0.5)
    table["y"] = np.where(ROWS < 150, table["x"], -table["x"]) + 0.1
    assert noted(table, label="y", sites=2) == {}


def test_a_note_names_sites_and_shares():
    make, _ = ODD["marker"]
    table = plain().assign(marker=make(None, np.random.default_rng(0)))
    assert noted(table)["marker"] == ("missing", "site-0 (80 %)")


REAL = {  # columns that are flagged: of the corner pixels of the digits, 99 % and more are white
    "breast_cancer": 0,
    "wine": 0,
    "iris": 0,
    "diabetes": 0,
    "digits": 7,
}


@pytest.mark.parametrize("name", REAL)
def test_false_alarms_on_real_tables(name):
    table = getattr(datasets, f"load_{name}")(as_frame=True).frame
    mixed = table.sample(frac=1, random_state=0)
    unlike = table.sort_values(table.columns[0], kind="stable")
    for each, sites in ((mixed, 3), (unlike, 3), (mixed, 30 if name != "diabetes" else 9)):
        notes = noted(each, label="target", sites=sites)
        assert len(notes) == REAL[name] and {looks for looks, _ in notes.values()} <= {"constant"}


def test_ages_in_years_and_raw_blood_values_are_no_identifiers():
    table = datasets.load_diabetes(as_frame=True, scaled=False).frame
    assert noted(table, label="target", sites=20) == {}


def overview(tables, **options):
    return data.from_frames(tables, **options).overview


def test_the_table_says_how_sites_differ():
    north = pd.DataFrame({"age": [40.0, 60, np.nan, 50], "ward": ["A", "A", "B", None], "id": list("wxyz")})
    south = pd.DataFrame({"age": [80.0, 71], "ward": ["B", "B"], "id": ["u", "v"]})
    seen = overview({"north": north.assign(ill=[0, 1, 0, 0]), "south": south.assign(ill=[1, 1])}, label="ill")
    assert seen.table() == (
        ["column", "as", "missing", "mean or commonest", "north", "south"],
        [
            ["ill", "label", "0 %", "0", "0", "1"],
            ["age", "number", "17 %", "60.2", "50 (25 % missing)", "75.5"],
            ["ward", "category", "17 %", "B", "A (25 % missing)", "B"],
            ["id", "dropped", "0 %", "–", "–", "–"],
        ],
    )
    assert data.Overview.from_json(json.loads(json.dumps(seen.to_json()))) == seen


def test_many_sites_and_columns_are_shortened_to_those_to_look_at():
    rng = np.random.default_rng(0)
    tables = {}
    for k in range(30):
        values = {f"c{j}": rng.normal(size=25) + 9 * (k == 17) for j in range(70)}
        values["c65"] = np.where(np.arange(25) % 5 > 0, np.nan, values["c65"])
        tables[f"site-{k}"] = pd.DataFrame(values | {"y": rng.integers(0, 2, 25)})
    seen = overview(tables, label="y")
    assert len(seen.sites) == 12 and "site-17" in seen.sites and len(seen.columns) == 60
    assert [each.name for each in seen.columns[:2]] == ["y", "c65"]
    assert seen.shortened() == [
        "Shown are the 12 of 30 clients that are most unlike the whole.",
        "Shown are 60 of 71 columns, those with a note first.",
    ]
    assert seen.rows[0] == 750 and set(seen.rows[1:]) == {25}


def test_many_notes_of_a_sort_are_one_line():
    table = plain()
    for k in range(13):
        table[f"c{k}"] = (k == ROWS).astype(int)
    seen = overview({"a": table.iloc[:150], "b": table.iloc[150:]}, label="ill")
    (line,) = seen.lines()
    assert line.startswith("13 columns are nearly constant: 'c0', 'c1',") and "drop=['c0'] leaves the first out" in line


def test_it_goes_with_the_data(tmp_path):
    table = plain().assign(patient=ROWS)
    federated = data.from_frames({"a": table.iloc[:150], "b": table.iloc[150:]}, label="ill")
    for part in data.split(federated, train=0.8, val=0.1, test=0.1):
        assert part is None or part.overview is federated.overview
    federated.save(tmp_path / "saved")
    assert data.FederatedData.open(tmp_path / "saved").overview == federated.overview
    again = data.from_frames({"a": table}, transform=federated.transform)
    assert again.overview is None


def test_dropped_columns_have_no_note():
    assert noted(plain().assign(patient=ROWS), drop=["patient"]) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [1]}, "rows and columns have to be of all sites"),
        ({"of": 0}, "more sites or columns than there are"),
        ({"notes": [{"column": "a", "looks": "odd", "why": ""}]}, "notes.0.looks"),
        ({"more": 1}, "more"),
    ],
)
def test_an_overview_that_was_changed_is_refused(change, message):
    table = plain().assign(patient=ROWS)
    seen = overview({"a": table}, label="ill").to_json()
    with pytest.raises(DataError, match=message):
        data.Overview.from_json(seen | change)


def test_a_column_alone_is_judged_without_chance():
    """Of values that occur once each, the label of each would be right."""
    table = pd.DataFrame({"word": [f"w{k % 25}" for k in range(60)], "ill": np.arange(60) % 2})
    request = data.plan([data.summarize(table, least=1)], label="ill")
    (alone,) = data.summarize(table, request, least=1).alone.values()
    assert (alone.rows, alone.most) == (60, 30) and alone.right == 30
