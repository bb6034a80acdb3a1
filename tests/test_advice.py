"""What the advice names has what the advice says of it; the page of its trial is current."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import fedax
from fedax.algorithms import BaseMomentum, BaseSGD, Momentum, SlowMo
from fedax.theory import advice

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("advice_trial", ROOT / "benchmarks" / "advice.py")
assert SPEC is not None and SPEC.loader is not None
trial = importlib.util.module_from_spec(SPEC)
sys.modules["advice_trial"] = trial
SPEC.loader.exec_module(trial)

CHOOSING = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")

# Settings that sentences name, and what they promise: momentum or none, where it is, and how much of the old is kept.
PROMISED = {
    ("fedavg-m", "beta", 0.2): lambda method: 1 - method.beta == 0.8,
    ("fedavg-m", "beta", 0.5): lambda method: 1 - method.beta == 0.5,
    ("server-momentum", "server_momentum", 0.5): lambda method: isinstance(method.optimizer, Momentum),
    ("server-momentum", "server_momentum", 0.9): lambda method: method.optimizer.server_momentum == 0.9,
    ("mime", "base", "momentum"): lambda method: method.base.momentum == 0.9 and not method.lite,
}


@pytest.mark.parametrize("name, field, value", PROMISED)
def test_settings_that_advice_names_have_what_it_says(name, field, value):
    method = fedax.create(name, **{field: value})
    method.validate()
    assert PROMISED[name, field, value](method)
    shown = f'{field}="{value}"' if isinstance(value, str) else f"{value:g}"
    assert f"`{name}`" in CHOOSING and shown in CHOOSING


def test_the_verdict_names_settings_that_are_promised():
    named = re.findall(r"([a-z-]+) with (\w+) = ([\d.]+) or ([\d.]+)", advice._TRIED)
    results = {(name, field, float(value)) for name, field, *values in named for value in values}
    assert len(results) == 4 and results < set(PROMISED)


def test_defaults_are_what_the_pages_say_of_them():
    """Mime and MimeLite have no momentum; the methods that are called momentum have some."""
    assert isinstance(fedax.create("mime").base, BaseSGD) and isinstance(fedax.create("mimelite").base, BaseSGD)
    assert isinstance(fedax.create("mime", base="momentum").base, BaseMomentum)
    assert fedax.create("server-momentum").optimizer.server_momentum == 0.9
    assert isinstance(fedax.create("slowmo").optimizer, SlowMo)
    assert all(fedax.create(name).beta == 0.1 for name in ("fedavg-m", "scaffold-m", "fedavg-m-vr", "scaffold-m-vr"))
    adam = fedax.create("fedadam").optimizer
    assert (adam.beta1, adam.beta2) == (0.9, 0.99) and fedax.create("feddyn").alpha == 0.1
    assert "Mime's default base is SGD" in CHOOSING


def test_all_methods_of_the_tree_are_registered():
    tree = CHOOSING[CHOOSING.index("## The tree") : CHOOSING.index("## The reasons")]
    linked = re.findall(r"\[`([a-z0-9-]+)`\]\(methods/([a-z0-9-]+)\.md\)", tree)
    assert len(linked) > 10
    for name, page in linked:
        fedax.create(name)
        assert name == page and (ROOT / f"docs/methods/{page}.md").exists()


def problem(**losses):
    rng = np.random.default_rng(0)
    test = {label: (loss + 1e-4 * rng.normal(size=5)).tolist() for label, loss in losses.items()}
    return {"test": test, "start": 2.5, "validation": losses, "settings": {}, "edges": []}


def test_regret_is_what_is_lost_of_what_training_gains():
    one_problem = problem(FedAvg=0.7, SCAFFOLD=0.5, FedDyn=0.9)
    assert trial.regret(one_problem, "SCAFFOLD") == 0
    assert trial.regret(one_problem, "FedAvg") == trial.regret(one_problem, "FedNova") == pytest.approx(0.1, rel=1e-2)
    ways = trial.strategies({})
    assert ways["a random method, tuned"](one_problem) == pytest.approx(0.1, rel=1e-2)  # the mean of 0.1, 0 and 0.2
    for take, text, label in (("scaffold", "", "SCAFFOLD"), ("", "let lr decay", "FedAvg, decay"), ("", "", "FedAvg")):
        assert trial.advised(one_problem | {"advice": {"take": take, "verdict": text}}) == label


@pytest.mark.parametrize("kind", trial.KINDS)
def test_problems_are_as_the_page_says(kind):
    given = trial.dealt(f"digits: {kind}", [0])[0]
    data, whole = given["data"], given["data"].num_examples + given["val"].num_examples
    share = data.sizes / data.sizes.sum()
    labels = [data.client(i)["y"] for i in range(data.num_clients)]
    if kind == "one-large-client":
        assert data.num_clients == 10 and share[0] == pytest.approx(0.6, abs=0.01)
    elif kind == "noisy-labels":
        right = fedax.data.load("digits").train["y"]
        parts, told = trial.KINDS[kind].deal(right, 0)
        wrong = [float(np.mean(told[part] != right[part])) for part in parts]
        assert min(wrong[:3]) > 0.35 and max(wrong[:3]) < 0.55 and not any(wrong[3:])
    elif kind == "rare-class":
        assert [int((y == 9).any()) for y in labels] == [1] + [0] * 9
        assert np.mean(np.concatenate(labels) == 9) == pytest.approx(0.02, abs=0.005)
    elif kind == "few-unequal":
        assert data.num_clients == 4
    else:
        assert data.num_clients == whole // 10 == 144 and set(data.sizes) == {8}


@pytest.mark.parametrize("name", [name for name in trial.NEW if name.startswith("digits")])
def test_new_problems_are_as_the_page_says(name):
    given = trial.dealt(name, [0])[0]
    data, all_rows = given["data"], fedax.data.load("digits").train
    parts, told = trial.NEW[name].deal(all_rows["y"], 0)
    assert data.num_clients == len(parts) == (12 if "feature" in name else 10)
    sizes = [given[part].num_examples for part in ("data", "val", "test")]  # the test is of clients' own examples
    assert np.divide(sizes, len(all_rows["y"])) == pytest.approx([0.6, 0.2, 0.2], abs=0.02)
    x = all_rows["x"] if trial.NEW[name].change is None else trial.NEW[name].change(all_rows["x"], parts)
    if "concept" in name:
        moved = [np.unique((told[part] - all_rows["y"][part]) % 10).tolist() for part in parts]
        assert moved == [[1]] * 3 + [[0]] * 7
    elif "ill" in name:
        assert (x[:, -1] / (all_rows["x"].reshape(len(x), -1)[:, -1] / 255 + 1e-9)).max() == pytest.approx(0.01)
    elif "feature" in name:
        before, after = (rows[parts[5]][0, ..., 0].astype(float) for rows in (all_rows["x"], x))
        assert np.abs(np.rot90(before) / 2 - after).max() <= 1  # turned once and dimmed to a half
    else:
        assert trial.NEW[name].batch_size == 1


def test_the_rule_has_the_least_regret_on_the_problems_that_it_is_made_on():
    def known(batch_size, **losses):
        return trial.Known("", problem(**losses), batch_size, 1.0, False, "SCAFFOLD")

    methods = dict.fromkeys(trial.TRIED, 1.0)
    problems = [known(2, **methods | {"FedAvg-M": 0.5}), known(4, **methods | {"FedAvg-M": 0.5})]
    problems += [known(32, **methods | {"FedDyn": 0.5}), known(64, **methods | {"FedDyn": 0.5})]
    made = trial.rules(problems)
    assert made["always FedDyn"] == pytest.approx([0.25, 0.25, 0, 0], abs=1e-3)
    assert not made["batches of at most 8: FedAvg-M, else FedDyn"].any()
    lost, picked = trial.left_out(made, range(4))
    assert lost == 0 and picked == {"batches of at most 4: FedAvg-M, else FedDyn": 4}  # the first of equal ones
    made = {"a": np.array([0.0, 0.3, 0.3]), "b": np.array([0.1, 0.1, 0.1])}
    assert trial.left_out(made, range(3)) == (pytest.approx(0.1), {"b": 3})
    assert trial.left_out(made, [0, 1, 1]) == (pytest.approx(0.7 / 3), {"a": 2, "b": 1})


def test_the_rule_is_what_the_stored_problems_choose():
    measured = trial.json.loads(trial.MEASURED.read_text(encoding="utf-8"))
    _, picked = trial.left_out(trial.rules(trial.known(measured)), range(42))
    assert picked == {f"batches of at most {advice.SMALL_BATCH}: FedAvg-M, else FedDyn": 42}
    for problem_of in trial.NEW.values():
        small = problem_of.batch_size is not None and problem_of.batch_size <= advice.SMALL_BATCH
        assert trial.ruled(problem_of) == (trial.LABELS[advice.MOMENTUM] if small else "FedDyn")


def test_the_predicted_cost_is_read_off_the_verdict():
    text = (
        "First of all, train longer: up to about 0.3 (9 % …) is left. Take scaffold in place of FedAvg: its data; that "
    )
    assert trial.predicted(text + "costs up to about 0.0229 (1.2 % of what training gains), which …") == 0.0229
    assert trial.predicted("Keep FedAvg: about 0.3 (9 % …).") is None


def test_the_page_is_current():
    text = trial.PAGE.read_text(encoding="utf-8")
    result = trial.json.loads(trial.MEASURED.read_text(encoding="utf-8"))
    assert trial.written(text, result) == text, "run python benchmarks/advice.py --page"
