"""Methods of outputs, as the page of methods and a user write them, are their papers': local steps beside NumPy's."""

import doctest
import functools
import pathlib
import re
from typing import Any

import jax
import numpy as np
import pytest

import fedax

from . import papers

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "methods.md"
CLASSES, FEATURES, LR, ROUNDS = 3, 2, 0.2, 2
RNG = np.random.default_rng(3)
CLIENTS = [{"x": RNG.normal(size=(n, FEATURES)), "y": np.arange(n) % CLASSES} for n in (4, 6)]
START = {"w": RNG.normal(size=(FEATURES, CLASSES)), "b": RNG.normal(size=(1, CLASSES))}
BETA, MU, TEMPERATURE = 0.7, 0.9, 0.5


def of_page(name):
    """A method as the page writes it."""
    (source,) = [
        each.source
        for each in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8"))
        if each.source.startswith(f"class {name}(")
    ]
    made = {"fedax": fedax, "jax": jax, "Any": Any, "__name__": "mine"}
    exec(source, made)
    return made[name]


def answers(model, x):
    w, b = model[: FEATURES * CLASSES].reshape(FEATURES, CLASSES), model[FEATURES * CLASSES :]
    return x @ w + b


def log_softmax(z):
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def of_label(z, y):
    return -log_softmax(z)[np.arange(len(y)), y]


def distillation(y, client, x, last):
    """Lee et al. 2022, eq. 4 to 6: cross-entropy, and β KL(q̃_global ‖ q̃_local) over the classes that are no label."""
    local, teacher, total = answers(y, client["x"]), answers(x, client["x"]), 0.0
    for row, good, label in zip(local, teacher, client["y"], strict=True):
        p, q = (np.exp(log_softmax(np.delete(z, label))) for z in (good, row))
        total += BETA * np.sum(p * np.log(p / q))
    return of_label(local, client["y"]).mean() + total / len(local)


def contrast(y, client, x, last):
    """Li et al. 2021, eq. 3 and 4: cross-entropy, and μ times −log of the global model's share of the similarities."""
    z, good, bad = (answers(model, client["x"]) for model in (y, x, last))

    def similar(other):
        cosine = (z * other).sum(axis=1) / np.linalg.norm(z, axis=1) / np.linalg.norm(other, axis=1)
        return np.exp(cosine / TEMPERATURE)

    return of_label(z, client["y"]).mean() - MU * np.log(similar(good) / (similar(good) + similar(bad))).mean()


def gradient(loss, y, *more):
    """Central differences, which know nothing of the code."""
    steps = 1e-5 * np.eye(y.size)
    return np.array([(loss(y + step, *more) - loss(y - step, *more)) / 2e-5 for step in steps])


@pytest.mark.parametrize("written", [of_page, functools.partial(getattr, papers)], ids=["page", "papers"])
@pytest.mark.parametrize(
    ("name", "settings", "loss"),
    [
        ("FedNTD", {"beta": BETA}, distillation),
        ("Moon", {"mu": MU, "temperature": TEMPERATURE}, contrast),
    ],
)
def test_methods_of_outputs_are_their_papers(written, name, settings, loss):
    task = fedax.tasks.classification(
        lambda key: {name: jax.numpy.asarray(leaf, float) for name, leaf in START.items()},
        lambda params, x, key: x @ params["w"] + params["b"],
        classes=CLASSES,
    )
    with jax.enable_x64(True):
        data = fedax.FederatedData.from_clients(CLIENTS)
        options = {"rounds": ROUNDS, "work": fedax.Steps(2), "params": START}
        run = fedax.simulate(written(name)(lr=LR, **settings), task, data, **options)
    x = np.concatenate([START["w"].ravel(), START["b"].ravel()])
    last = [x, x]
    for _ in range(ROUNDS):
        models = []
        for client, kept in zip(CLIENTS, last, strict=True):
            y = x
            for _ in range(2):
                y = y - LR * gradient(loss, y, client, x, kept)
            models.append(y)
        x, last = data.weights @ np.stack(models), models
    found = np.concatenate([np.ravel(run.params["w"]), np.ravel(run.params["b"])])
    np.testing.assert_allclose(found, x, atol=1e-8)


def test_an_oracle_names_what_the_page_has():
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| `oracle.` |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    of_page = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}

    class Wrong(papers.FedSAM):
        def client(self, x, memory, oracle):
            assert all(hasattr(oracle, name) for name in of_page)
            return oracle.gradient(x), memory

    with pytest.raises(fedax.errors.CodeError) as caught:
        fedax.simulate(Wrong(), fedax.tasks.quadratic(2), fedax.data.quadratics(2, 2), rounds=1)
    assert "did you mean 'grad'" in str(caught.value)
    assert {*re.findall(r"\w+", str(caught.value).partition("There are: ")[2].partition(";")[0])} == of_page
