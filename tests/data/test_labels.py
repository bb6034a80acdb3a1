"""A label that is coded in two ways is an error that names both; clients with some of the classes are ordinary."""

import numpy as np
import pandas as pd
import pytest

from fedax import data
from fedax.errors import DataError


def tables(*labels):
    """One client for each list of labels, with 20 rows of each."""
    rng = np.random.default_rng(0)
    made = {}
    for name, each in zip("abcdefghij", labels, strict=False):
        y = np.repeat(np.array([str(label) for label in each], object), 20)
        made[name] = pd.DataFrame({"x": rng.normal(size=len(y)), "y": y})
    return made


TWICE = {
    "case": ([["yes", "no"], ["Yes", "No"]], ["'no', 'yes' at 'a'", "'No', 'Yes' at 'b'"]),
    "spaces": ([["type 1", "type 2"], ["type  1", "type 2"]], ["'type 1'", "'type  1'"]),
    "accents": ([["groß", "klein"], ["gross", "klein"]], ["'groß'", "'gross'"]),
    "encoding": ([["KÃ¶ln", "Bonn"], ["Köln", "Bonn"]], ["'KÃ¶ln'", "'Köln'"]),
    "one file": ([["yes", "no", "Yes"], ["yes", "no"]], ["'Yes', 'yes' at 'a'"]),
    "one client differs": ([["no", "yes"], ["no", "yes"], ["no", "YES"]], ["'no', 'yes' at 'a'", "'YES', 'no' at 'c'"]),
    "codes": ([["yes", "no"], ["1", "0"]], ["'no', 'yes' at 'a'", "'0', '1' at 'b'"]),
    "codes, one class": ([["yes", "no"], ["1"]], ["'no', 'yes' at 'a'", "'1' at 'b'"]),
    "one class each": ([["yes"], ["no"], ["1"], ["0"]], ["'yes' at 'a'", "'1' at 'c'"]),
    "words": ([["ja", "nein"], ["yes", "no"]], ["'ja', 'nein' at 'a'", "'no', 'yes' at 'b'"]),
    "letters": ([["m", "f"], ["m", "w"]], ["'f', 'm' at 'a'", "'m', 'w' at 'b'"]),
    "short": ([["neg", "pos"], ["negative", "positive"]], ["'neg', 'pos' at 'a'"]),
    "truth values": ([["True", "False"], ["yes", "no"]], ["'False', 'True' at 'a'"]),
    "both in one": ([["yes", "no", "1", "0"]], ["'0', '1', 'no', 'yes' at 'a'"]),
    "grades": ([["1", "2", "3"], ["mild", "severe"]], ["'1', '2', '3' at 'a'", "'mild', 'severe' at 'b'"]),
}


@pytest.mark.parametrize("name", TWICE)
def test_two_codings_are_named(name):
    labels, said = TWICE[name]
    with pytest.raises(DataError, match="check_labels") as error:
        data.from_frames(tables(*labels), label="y", task="classification")
    assert all(each in str(error.value) for each in said)
    seen = data.from_frames(tables(*labels), label="y", task="classification", check_labels=False).overview
    assert ("y", "coding") in [(note.column, note.looks) for note in seen.notes]


ONCE = {
    "the same": [["yes", "no"], ["yes", "no"]],
    "one class each": [["yes"], ["no"]],
    "truth values": [["True", "False"], ["1", "0"]],
    "digits by class": [[k] for k in range(10)],
    "digits in twos": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    "digits overlapping": [[0, 1], [1, 2]],
    "three classes": [[-1, 1], [0, 1]],
    "sentiments": [["positive", "negative"], ["neutral"]],
    "signs": [["+", "-", "0"], ["+", "-"]],
    "findings": [["benign", "malignant"], ["normal"]],
    "stages": [["1", "2"], ["3a", "3b"]],
    "alphabet": [["A", "a", "B"], ["a", "b"], ["A", "B"]],
    "one more": [["yes", "no", "unknown"], ["yes", "no"]],
    "kana": [["か", "き"], ["が", "ぎ"]],
}


@pytest.mark.parametrize("name", ONCE)
def test_clients_with_some_of_the_classes_are_no_error(name):
    data.from_frames(tables(*ONCE[name]), label="y", task="classification")


@pytest.mark.parametrize(("name", "noted"), [("digits in twos", True), ("one class each", True), ("the same", False),
                                             ("digits overlapping", False)])  # fmt: skip
def test_classes_that_no_two_clients_share_are_noted(name, noted):
    seen = data.from_frames(tables(*ONCE[name]), label="y").overview
    assert ("unshared" in [note.looks for note in seen.notes]) == noted


def test_every_reader_takes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, table in tables(["yes", "no"], ["Yes", "No"]).items():
        table.to_csv(f"{name}.csv", index=False)
        table.to_parquet(f"{name}.parquet")
    for reader, files in ((data.from_csv, "*.csv"), (data.from_parquet, "*.parquet")):
        with pytest.raises(DataError, match="'No', 'Yes' at 'b'"):
            reader(files, label="y")
        assert reader(files, label="y", check_labels=False).transform.classes == ("No", "Yes", "no", "yes")


def test_sites_are_told_by_the_counts_that_they_send():
    sites = tables(["yes", "no"], ["1", "0"])
    request = data.plan([data.summarize(table, least=1) for table in sites.values()], label="y")
    second = {name: data.summarize(table, request, least=1) for name, table in sites.items()}
    with pytest.raises(DataError, match="no-check-labels"):
        data.fit(request, second)
    assert data.fit(request, second, check_labels=False).classes == ("0", "1", "no", "yes")
