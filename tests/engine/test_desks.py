"""Tables at nodes: both exchanges, which values leave, and failures of nodes in between."""

import dataclasses
import json
import tempfile

import numpy as np
import pandas
import pytest

import fedax
from fedax.data import Plan, Summary, Transform, fit, from_csv, plan, summarize
from fedax.data.summaries import Planned
from fedax.data.transform import Column, Label
from fedax.errors import DataError, NodeError
from fedax.sites.protocol import tables
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Failure, Message
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.tables import Desk, agree, decide, reviews

from .here import Here

ROWS = {
    "hospital-7": "patient,age,ward,ill\nAnna A.,40,A,no\nBert B.,61,A,yes\nCarl C.,,B,no\nDora D.,52,B,no\n"
    "Emil E.,33,A,no\nFritz F.,70,A,yes\n",
    "hospital-10": "patient,age,ward,ill\nGerd G.,80,B,no\nHans H.,30,rare,no\n",  # one class, and a rare word
}


def five(text):
    """A table with each row five times, so that nothing of it is withheld; no two patients have one name."""
    head, *lines = text.splitlines()
    name = "{}".format if not head.startswith("patient") else lambda line, k: line.replace(",", f"{k},", 1)
    return "\n".join([head, *(name(line, k) for k in range(5) for line in lines)]) + "\n"


def folder_of(tmp_path, rows=ROWS):
    (tmp_path / "tables").mkdir()
    for name, text in rows.items():
        (tmp_path / "tables" / f"{name}.csv").write_text(five(text))
    return tmp_path / "tables"


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path)


def made(config):
    return Made(fedax.create("fedavg", lr=0.1), fedax.tasks.softmax_regression(4, 2), {"rounds": 1})


def digest_of(desk):
    """Of the transform that it says it has."""
    return desk.answer(Message({"kind": "hello"})).head["table"]["transform"]


class Desks:
    """Desks of the tables in a folder; ``again`` starts one again, as after its process has ended."""

    def __init__(self, folder, state, drop=(), **options):
        self.folder, self.state, self.drop, self.options, self.said = folder, state, drop, options, []
        self.desks, self.sites, self.heard = {}, {}, []
        for k, path in enumerate(sorted(folder.glob("*.csv"))):
            self.again(100 + k, path)
        self.here = Here({}, self.spy)
        self.here.sites = self.desks

    def again(self, number, path=None):
        desk = self.desks.get(number)  # of an earlier process
        if desk is not None and desk._site is not None:
            desk._site.close()
        path = self.folder / f"{desk.name}.csv" if path is None else path
        state = self.state / path.stem
        make = lambda data: Site(data, made, state / "site", [path.stem])  # noqa: E731
        rows = pandas.read_csv(path).drop(columns=list(self.drop))
        self.desks[number] = Desk(rows, path.stem, state, make, say=self.said.append, **self.options)

    def spy(self, number, message, answer):
        self.heard.append((number, message, answer))
        return answer

    def agree(self, label="ill", timeout=1.0, spy=None, **options):
        """The transform, and the documents that were kept."""
        kept, self.here.spy = {}, spy or self.spy
        planned = lambda first: plan(first, label, **options)  # noqa: E731
        keep = lambda what, client, document: kept.update({(what, client): document})  # noqa: E731
        return agree(
            self.here, label, planned, keep, timeout=timeout, nodes=len(self.desks), say=self.said.append
        ), kept

    def digests(self):
        return {desk.name: digest_of(desk) for desk in self.desks.values()}


def test_all_have_what_the_way_by_files_and_one_process_give(folder, tmp_path):
    desks = Desks(folder, tmp_path)
    result, kept = desks.agree()
    frames = {name: pandas.read_csv(folder / f"{name}.csv") for name in ROWS}
    first = {name: summarize(frame) for name, frame in frames.items()}
    column_plan = plan(first, "ill")
    second = {name: summarize(frame, column_plan) for name, frame in frames.items()}
    wanted = {("plan", None): column_plan, ("transform", None): fit(column_plan, second)}
    wanted |= {("first", name): each for name, each in first.items()}
    wanted |= {("second", name): each for name, each in second.items()}
    assert kept == wanted and result == wanted["transform", None]
    together = from_csv(folder, label="ill")
    assert result == together.transform and {*desks.digests().values()} == {result.digest}
    census = Fleet(Here(desks.desks), nodes=2).census
    assert census.names == together.names == ("hospital-7", "hospital-10") and census.transform == result
    for desk in desks.desks.values():
        served, k = desk._site.data.examples, together.names.index(desk.name)
        for name, array in together.client(k).items():
            assert np.array_equal(served[name], array) and served[name].dtype == array.dtype
        left = [Summary.load(path) for path in (desk.folder / "left").glob("[!t]*")]
        wanted = [first[desk.name].digest, dataclasses.replace(second[desk.name], plan=None).digest]
        assert sorted(each.digest for each in left) == sorted(wanted)
        assert any(result.digest in line and desk.name in line for line in desks.said)


NOTES = {
    "a": "note,age,cost\na cough at night,40,12.5\nno pain at all,61,800\nworse since then,33,9000.5\n",
    "b": "note,age,cost\npain and a cough,80,55.5\n,30,1.5\nno pain today,31,7\n",
}


def test_text_and_logarithms_are_those_of_one_process_and_no_word_or_number_leaves(tmp_path):
    options = {"task": "regression", "columns": {"note": "text"}, "target": "log"}
    folder = folder_of(tmp_path, NOTES)
    desks, together = Desks(folder, tmp_path), from_csv(folder, label="cost", **options)
    result, kept = desks.agree("cost", **options)
    assert result == together.transform and result.label.target == "log"
    for desk in desks.desks.values():
        served = desk._site.data.examples
        for name, array in together.client(together.names.index(desk.name)).items():
            assert np.array_equal(served[name], array)
    assert not any(word in json.dumps(document.to_json()) for document in kept.values() for word in ("cough", "9000.5"))
    (tmp_path / "bad").mkdir()
    bad = NOTES | {"b": NOTES["b"].replace("55.5", "-777")}
    desks = Desks(folder_of(tmp_path / "bad", bad), tmp_path / "bad")
    with pytest.raises(NodeError, match=r"'b': a number .*has no logarithm") as caught:
        desks.agree("cost", **options)
    assert "777" not in str(caught.value) and any("-777" in line for line in desks.said)


def test_a_node_without_a_transform_is_there_and_refuses_runs(folder, tmp_path):
    desks = Desks(folder, tmp_path)
    about = desks.desks[100].answer(Message({"kind": "hello"})).head
    assert about["table"] == {"name": "hospital-10", "rows": 10, "transform": None}
    with pytest.raises(NodeError, match=r"hospital-10: .*not transformed yet"):
        Fleet(Here(desks.desks))
    assert "not transformed yet" in desks.desks[100].answer(Message({"kind": "exchange"})).head["error"]


def test_after_a_restart_the_transform_is_there_and_another_label_replaces_it(folder, tmp_path):
    desks = Desks(folder, tmp_path)
    old, _ = desks.agree()
    desks.again(101)
    assert desks.digests()["hospital-7"] == old.digest
    new, _ = desks.agree(label="ward")
    assert new.label.name == "ward" and {*desks.digests().values()} == {new.digest} != {old.digest}
    assert Fleet(Here(desks.desks), nodes=2).census.transform == new
    (folder / "hospital-7.csv").write_text(five("age,ill\n40,no\n50,yes\n"))
    desks.again(101)
    assert any("does not fit the table" in line for line in desks.said)
    answer = desks.desks[101].answer(Message({"kind": "agreement"}))
    assert "does not fit its table: fedax deploy" in answer.head["error"]


def test_nothing_of_a_dropped_column_leaves(folder, tmp_path):
    desks = Desks(folder, tmp_path, drop=["patient"])
    desks.agree()
    messages = json.dumps([[message.head, answer.head] for _, message, answer in desks.heard])
    assert "ward" in messages and "patient" not in messages and "Anna" not in messages
    text = desks.desks[101].answer(
        Message({"kind": "summarize", "plan": Plan({"patient": Planned("category")}, "ill").to_json()})
    )
    assert text.head == {"error": "its table has no such column (column = 'patient')"}


HOSTILE = {
    "texts of names": (Plan({"patient": Planned("category")}, label="ill"), "identify rows, and leave"),
    "names as the label": (Plan({"age": Planned("number")}, label="patient"), "identify rows, and leave"),
    "no label": (Plan({"ward": Planned("category")}), "there is no label"),
    "no such column": (Plan({"w": Planned("category")}, label="ill"), "no such column"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_plan_that_asks_for_more_is_refused(name, folder, tmp_path):
    request, message = HOSTILE[name]
    desks = Desks(folder, tmp_path)
    answer = desks.desks[101].answer(Message({"kind": "summarize", "plan": request.to_json()}))
    assert [*answer.head] == ["error"] and message in answer.head["error"] and "Anna" not in answer.head["error"]
    assert not [*(tmp_path / "hospital-7" / "left").iterdir()]


def test_no_error_says_what_is_in_the_table(folder, tmp_path):
    desks = Desks(folder, tmp_path)
    age = Column("age", "number")
    for label in (Label("patient", ("a", "b")), Label("patient"), Label("ward", ("A", "C")), None, Label("w")):
        made = Transform((age,), label)
        answer = desks.desks[101].answer(Message({"kind": "prepare", "transform": made.to_json()}))
        assert [*answer.head] == ["error"] and not any(word in str(answer.head) for word in ("Anna", "'B'"))
    broken = [{"kind": "prepare"}, {"kind": "summarize"}, {"kind": "summarize", "plan": 7}, {"kind": "commit"}]
    broken += [{"kind": "prepare", "transform": {"fedax": "transform", "columns": "../x"}}, {"kind": ["x"]}]
    for head in broken:
        assert [*desks.desks[101].answer(Message(head)).head] == ["error"], head
    assert desks.digests()["hospital-7"] is None
    assert {path.name for path in (tmp_path / "hospital-7").iterdir()} <= {"left", "site"}


WRONG = {
    "no label column": ("age,ward\n1,A\n2,B\n", r"client 'bad': its table has no such column \(column = 'ill'\)"),
    "a column less": ("age,ill\n1,no\n2,yes\n", "bad: it has no column 'ward', which hospital-7 has"),
    "a gap in the label": ("age,ward,ill\n1,A,no\n2,B,\n", "client 'bad': a row has no label; .*drop_missing_labels"),
    "the same name": ("name", "client 'hospital-7' is at two nodes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_table_that_does_not_go_with_the_others_is_named_and_changes_nothing(name, folder, tmp_path):
    text, message = WRONG[name]
    desks = Desks(folder, tmp_path, drop=["patient"])
    old, _ = desks.agree()
    if text == "name":
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "hospital-7.csv").write_text(five(ROWS["hospital-7"]))
        desks.desks[102] = Desks(tmp_path / "other", tmp_path / "other", drop=["patient"]).desks[100]
    else:
        (folder / "bad.csv").write_text(five(text))
        desks.drop = []
        desks.again(102, folder / "bad.csv")
    with pytest.raises((NodeError, DataError), match=message):
        desks.agree()
    assert [digest_of(desks.desks[number]) for number in (100, 101)] == [old.digest] * 2


def test_one_class_everywhere_is_an_error_and_rows_without_a_label_may_be_left_out(tmp_path):
    rows = {"a": "age,ill\n1,no\n2,no\n3,\n", "b": "age,ill\n3,no\n4,no\n"}
    desks = Desks(folder_of(tmp_path, rows), tmp_path, drop_missing_labels=True)
    with pytest.raises(DataError, match="one class only, 'no'"):
        desks.agree()
    (desks.folder / "b.csv").write_text(five("age,ill\n3,yes\n4,no\n"))
    desks.again(101)
    _, kept = desks.agree()
    assert kept["first", "a"].rows == 10 and desks.desks[100]._site.data.num_examples == 10
    assert kept["transform", None] == from_csv(desks.folder, label="ill", drop_missing_labels=True).transform


def test_a_folder_of_arrays_and_another_version_are_named(folder, tmp_path):
    desks = Desks(folder, tmp_path)
    arrays = fedax.FederatedData.from_clients({"arrays": {"x": np.zeros((2, 1)), "y": np.zeros(2, int)}})
    desks.desks[102] = Site(arrays, made, tempfile.mkdtemp(), ["arrays"])
    with pytest.raises(NodeError, match=r"client 'arrays': .*arrays.*--data TABLE"):
        desks.agree()
    del desks.desks[102]

    def older(number, message, answer):
        if "versions" in answer.head:
            answer.head["versions"]["fedax"] = "0.0.1"
        return answer

    with pytest.raises(NodeError, match=rf"fedax 0\.0\.1, .*{fedax.__version__}"):
        desks.agree(spy=older)


@pytest.mark.parametrize("kind", ["hello", "summarize", "prepare", "commit"])
def test_a_node_that_is_started_again_in_between_loses_nothing(kind, folder, tmp_path):
    desks, gone = Desks(folder, tmp_path), []

    def falls(number, message, answer):
        if message.head["kind"] == kind and number == 101 and not gone:
            gone.append(number)
            desks.again(101)
            return Failure("the node was restarted while it was asked", True)
        return answer

    result, _ = desks.agree(timeout=20.0, spy=falls)
    assert gone and {*desks.digests().values()} == {result.digest} == {from_csv(folder, label="ill").transform.digest}


@pytest.mark.parametrize("kind", ["summarize", "prepare", "commit"])
def test_a_node_that_stays_away_is_named_and_the_next_time_all_is_whole(kind, folder, tmp_path):
    desks = Desks(folder, tmp_path)
    old, _ = desks.agree()

    def away(number, message, answer):
        return Failure("the node is gone", True) if message.head["kind"] == kind and number == 101 else answer

    with pytest.raises(NodeError, match=r"client 'hospital-7': no answer in 0\.2 s") as caught:
        desks.agree(label="ward", timeout=0.2, spy=away)
    assert ("others have the new transform already" in str(caught.value)) == (kind == "commit")
    assert desks.digests()["hospital-10"] == old.digest or kind == "commit"
    new, _ = desks.agree(label="ward")
    assert {*desks.digests().values()} == {new.digest}


def test_one_that_cannot_take_the_transform_keeps_all_at_the_old_one(folder, tmp_path):
    desks = Desks(folder, tmp_path)
    old, _ = desks.agree()

    def cannot(number, message, answer):
        wrong = message.head["kind"] == "prepare" and number == 100
        return Message({"error": "no space left"}) if wrong else answer

    with pytest.raises(NodeError, match="client 'hospital-10': no space left"):
        desks.agree(label="ward", spy=cannot)
    assert {*desks.digests().values()} == {old.digest}
    with pytest.raises(NodeError, match="was not sent to it before"):
        desks.here.spy = None
        raise NodeError(desks.desks[100].answer(Message({"kind": "commit", "digest": "0" * 64})).head["error"])


@pytest.mark.parametrize("summary", [None, 7, [], {}, "{}"])
def test_an_answer_that_is_no_summary(summary, folder, tmp_path):
    def spoiled(number, message, answer):
        return Message({"summary": summary}) if message.head["kind"] == "summarize" and number == 101 else answer

    with pytest.raises(NodeError, match="client 'hospital-7': its answer is no summary"):
        Desks(folder, tmp_path).agree(spy=spoiled)


def test_too_few_nodes_are_said(folder, tmp_path):
    with pytest.raises(NodeError, match=r"2 nodes .*\(hospital-7, hospital-10\), and 3"):
        agree(Desks(folder, tmp_path).here, "ill", plan, print, nodes=3, timeout=0.0)


# ---- owners who look


def test_what_is_to_leave_waits_for_its_owner(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_LONGEST", 0.01)
    monkeypatch.setattr(tables, "_PAUSE", 0.01)
    desks, requests = Desks(folder, tmp_path, review=True), []

    def owners(number, message, answer):
        if "waits" in answer.head:
            assert [*answer.head] == ["waits"]
            state = tmp_path / desks.desks[number].name
            waiting = [path for path, decision in reviews(state).items() if decision is None]
            requests.extend(Summary.load(path) for path in waiting)  # readable before it leaves
            assert not {path.name for path in waiting} & {path.name for path in (state / "left").iterdir()}
            if len(requests) % 3 == 0:  # not at once
                assert decide(state, True) == waiting and not decide(state, True)
        return answer

    result, _ = desks.agree(timeout=0.05, spy=owners)  # people may take longer than nodes
    assert result.digest == from_csv(folder, label="ill").transform.digest and len(requests) > 4
    assert any("waiting for hospital-7: its owner looks" in line for line in desks.said)
    assert any("Type yes, or no and why" in line for line in desks.said)
    desks.again(101)
    again, _ = desks.agree()  # what an owner has agreed to once may leave again
    assert again == result


def test_a_no_and_its_reason_reach_the_coordinator_until_it_becomes_a_yes(folder, tmp_path):
    desks = Desks(folder, tmp_path, review=True)
    ask = {"kind": "summarize", "label": "ill", "server": "\x1b[2Jevil"}
    answer = desks.desks[101].answer
    assert answer(Message(ask)).head == {"waits": "its owner"}
    assert not any("\x1b" in line for line in desks.said)
    state = tmp_path / "hospital-7"
    assert len(decide(state, False, "leave ward out")) == 1
    desks.again(101)
    assert desks.desks[101].answer(Message(ask)).head["error"].endswith("(why = 'leave ward out')")
    with pytest.raises(NodeError, match=r"'hospital-7': its owner .*the summary"):
        decide(tmp_path / "hospital-10", True)
        desks.agree()
    assert len(decide(state, True)) == 1 and "summary" in desks.desks[101].answer(Message(ask)).head


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"yes": "no", "why": ""}', '{"yes": 1, "why": ""}', '{"yes": true}', "\xff"]
)
def test_only_a_yes_is_a_yes(text, folder, tmp_path):
    """An answer that is damaged, or written by hand in another way, lets nothing leave."""
    desks = Desks(folder, tmp_path, review=True)
    request = Message({"kind": "summarize", "label": "ill"})
    assert desks.desks[101].answer(request).head == {"waits": "its owner"}
    (file,) = reviews(tmp_path / "hospital-7")
    file.with_suffix(".answer").write_text(text)
    assert "remove it, and say it again" in desks.desks[101].answer(request).head["error"]
    with pytest.raises(DataError, match="remove it, and say it again"):
        reviews(tmp_path / "hospital-7")


def test_an_owner_may_let_leave_what_the_rule_refuses(folder, tmp_path):
    (folder / "hospital-7.csv").write_text((folder / "hospital-7.csv").read_text() + "Anna A.,40,A,no\n" * 5)
    desks = Desks(folder, tmp_path, review=True)
    ask = Message({"kind": "summarize", "plan": Plan({"patient": Planned("category")}, label="ill").to_json()})
    assert desks.desks[101].answer(ask).head == {"waits": "its owner"}
    assert any("column 'patient': 31 of 35 texts differ" in line for line in desks.said)
    other = Message({"kind": "summarize", "plan": Plan({"ward": Planned("category")}, label="ill").to_json()})
    assert desks.desks[101].answer(other).head == {"waits": "its owner"}
    assert len(reviews(tmp_path / "hospital-7")) == 1  # nobody waits for the first any more
    assert desks.desks[101].answer(ask).head == {"waits": "its owner"}
    decide(tmp_path / "hospital-7", True)
    counts = desks.desks[101].answer(ask).head["summary"]["counts"]["patient"]
    assert counts["by_text"] == {"Anna A.": 5} and counts["rest"] == 30


def test_a_number_beyond_float32_is_named_to_the_owner_alone(tmp_path):
    folder = folder_of(tmp_path, {**ROWS, "hospital-10": "patient,age,ward,ill\nGerd G.,4e77,B,no\nHans H.,30,A,no\n"})
    desks = Desks(folder, tmp_path)
    with pytest.raises(NodeError, match=r"'hospital-10': .*beyond float32"):
        desks.agree()
    assert any(
        line.startswith("hospital-10: column 'age'") and "row 0 (from 0) is 4e+77" in line for line in desks.said
    )
    (told,) = [
        answer.head["error"] for _, _, answer in desks.heard if "error" in answer.head and "beyond" in str(answer)
    ]
    assert "4e+77" not in told and "row" not in told
    narrow = Transform((Column("age", "number", scale=1e-300),), Label("ill", ("no", "yes")))
    answer = desks.desks[101].answer(Message({"kind": "prepare", "transform": narrow.to_json()}))
    assert "beyond float32" in answer.head["error"] and "40" not in answer.head["error"]
    assert any("hospital-7: column 'age' has 25 numbers beyond float32" in line for line in desks.said)
