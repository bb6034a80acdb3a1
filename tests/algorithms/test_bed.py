"""The shortcuts of the test bed find what a run finds."""

from typing import Any

import jax
import numpy as np
import pytest

import fedax

from .bed import COHORTS, DATA, LINEAR, LR, QUADRATIC, REGRESSION, X0, limit, path, simulated_path
from .cases import Unbiased

ROWS = {"task": LINEAR, "data": REGRESSION, "x0": None, "batch_size": 2, "seed": 3, "work": fedax.Steps(4)}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # the method, its hyper-parameters, the run's options
    "one exchange, a schedule": ("fedavg", {"server_lr": fedax.Piecewise(0.9, {2: 0.5})}, {}),
    "a warm-up, memory": ("scaffold-m", {"beta": 0.3, "warmup_batches": 2}, ROWS),
    "one client alone": ("ce-lsgd", {"beta": 0.3, "pick": "random"}, {"participation": fedax.Trace(COHORTS)}),
    "two exchanges": ("mime", {}, ROWS | {"participation": fedax.Uniform(3)}),
    "random steps, a mean model": (
        "feddyn",
        {"alpha": 1.0, "deliver": "mean"},
        {"work": fedax.RandomSteps(6, 4, low=1, high=12)},
    ),
    "own messages": ("diana", {"compress": Unbiased(0.5)}, {}),
    # What takes a whole job, as a run's.
    "a guard, dropouts": (
        "scaffold",
        {},
        {"guard": True, "participation": fedax.Dropout(fedax.Uniform(4), 0.3), "faults": fedax.Faults([2], np.nan)},
    ),
    "memory on the host": (
        "scaffold",
        {},
        {"place": fedax.Place(client_memory="host"), "participation": fedax.Trace(COHORTS)},
    ),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_path_is_what_a_run_goes(kind):
    """To the last bit: they are the same programs."""
    name, hyper, options = RUNS[kind]
    method = fedax.create(name, lr=LR, **hyper)
    iterates = path(method, **options)
    np.testing.assert_array_equal(iterates, simulated_path(method, **options))
    assert len(iterates) == 6 and np.abs(iterates[-1] - iterates[0]).max() > 0.01


@pytest.mark.parametrize("kind", ["a warm-up, memory", "random steps, a mean model"])
def test_a_limit_is_where_a_run_ends(kind):
    name, hyper, options = RUNS[kind]
    method, options = fedax.create(name, lr=LR, **hyper), {"task": QUADRATIC, "data": DATA, "x0": X0} | options
    params = options.pop("x0")
    reached = limit(method, 20, params=params, **options)
    run = fedax.simulate(method, rounds=20, params=params, **options)
    assert reached.dtype == np.float64
    np.testing.assert_array_equal(reached, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)]))
