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


def test_the_page_is_current():
    text = trial.PAGE.read_text(encoding="utf-8")
    result = trial.json.loads(trial.MEASURED.read_text(encoding="utf-8"))
    assert trial.written(text, result) == text, "run python benchmarks/advice.py --page"
