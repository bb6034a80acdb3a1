"""Learning rates that suit a comparison: of each method the best of three on the validation part, in a moment.

Tables of a user's own have no rate that is known to be safe: at one rate for all, a method may end worse than it began
with one seed of ten, and another may only crawl. So each method is run at a tenth of its rate, at it, and at ten times
it, with all seeds, and keeps the rate with the lowest mean validation loss of those at which every seed came to a good
end. The baselines choose among the same rates. A sweep (:mod:`fedax.experiments.tuning`) tries more, and keeps all.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import fedax
from fedax.columns import deciding
from fedax.engine.history import FAILED
from fedax.errors import ConfigError
from fedax.experiments import own
from fedax.experiments.clients import report_shows
from fedax.experiments.config import codec
from fedax.experiments.config.experiment import Experiment, count_parameters
from fedax.experiments.config.sections import check
from fedax.experiments.defaults import OWN_TABLES
from fedax.experiments.runner import same_shapes
from fedax.progress import show_progress

FACTORS = (0.1, 1.0, 10.0)  # of the rate as configured
COLUMN = "val_loss"
_QUICK = 2**22  # examples × parameters up to which it is done unasked: some seconds for ten seeds of three methods


def quick(experiment: Experiment) -> bool:
    """Whether a comparison chooses rates without being asked: on small tables of the user's own."""
    config = experiment.config
    asked = config["data"]["name"] in OWN_TABLES and experiment.val is not None and "privacy" not in config
    numbers = int(experiment.data.sizes.sum()) * count_parameters(experiment.task)
    return asked and experiment.fleet is None and numbers <= _QUICK


def chosen(experiment: Experiment, code: own.Code | None = None) -> Experiment:
    """The experiment with the best of three rates for each method, or values of its schedule, and for baselines.

    Args:
        experiment: from :func:`fedax.experiments.build`.
        code: the user's own code that its methods are made of.

    Raises:
        ConfigError: there is no validation part; runs are private; no method has a rate.

    Example:
        >>> from fedax.experiments import build
        >>> given = build({
        ...     "data": {"name": "digits", "clients": 3, "partition": "iid", "split": {"val": 0.2}},
        ...     "run": {"rounds": 3, "batch_size": 32, "seeds": 1},
        ...     "methods": [{"name": "fedavg", "lr": 0.01}],
        ... })
        >>> chosen(given).config["methods"][0]["lr"]
        0.1
    """
    config = experiment.config
    if experiment.val is None:
        hint = "there is no validation part to choose by: [data.split] with val = 0.15, or --no-tune"
        raise ConfigError("tune", True, hint)
    if "privacy" in config:
        raise ConfigError("tune", True, "each run at another rate spends privacy, too; choose by public data")
    rows, methods, tuned = [], dict(experiment.methods), {}
    for row in config["methods"]:
        lr = row.get("lr")
        value = lr.get("value") if isinstance(lr, dict) else lr
        if isinstance(value, int | float) and not isinstance(value, bool):
            rates = [float(f"{factor * value:.4g}") for factor in FACTORS]
            tried = [row | {"lr": lr | {"value": rate} if isinstance(lr, dict) else rate} for rate in rates]
            at_rates = check(config | {"methods": [each | {"label": f"at {k}"} for k, each in enumerate(tried)]})
            code = code or own.configured(False)
            candidates = [codec.method_of(section, row["label"], code)[0] for section in at_rates.methods]
            best = _best(experiment, candidates)
            methods[row["label"]] = candidates[best]
            row = tried[best]
            tuned[row["label"]] = {"tried": rates, "lr": rates[best]}
        rows.append(row)
    if not tuned:
        raise ConfigError("tune", True, "no method has an lr; fedax sweep tries other settings")
    run = dict(config["run"])
    first = next(iter(tuned.values()))
    if run.get("baselines") is True:
        run["baselines"] = {"lr": first["tried"]}
    return dataclasses.replace(experiment, config={**config, "run": run, "methods": rows}, methods=methods, tuned=tuned)


def _best(experiment: Experiment, candidates: Sequence[fedax.Algorithm]) -> int:
    """The number of the candidate with the fewest failed seeds, and among these the lowest mean validation loss."""
    seeds = experiment.config["run"]["seeds"]
    together = not experiment.config["run"]["split_seeds"] or same_shapes(experiment)
    runs: list[list[fedax.Run]] = [[] for _ in candidates]
    for group in [seeds] if together else [[seed] for seed in seeds]:
        for of_candidate, found in zip(runs, _swept(experiment, candidates, group), strict=True):
            of_candidate.extend(found)

    def rank(k: int) -> tuple[int, float]:
        failed = sum(run.status in FAILED for run in runs[k])
        mean = sum(float(run.history[deciding(COLUMN, run.history)][-1]) for run in runs[k]) / len(runs[k])
        return failed, mean if math.isfinite(mean) else math.inf

    configured = FACTORS.index(1.0)
    return min(range(len(candidates)), key=lambda k: (*rank(k), k != configured))


def _swept(
    experiment: Experiment, candidates: Sequence[fedax.Algorithm], seeds: Sequence[int]
) -> list[list[fedax.Run]]:
    """The runs of each candidate with these seeds."""
    parts = {seed: dict(zip(("data", "val", "test"), experiment.split(seed), strict=True)) for seed in seeds}
    by_seed: dict[str, Any] = {"by_seed": parts} if experiment.config["run"]["split_seeds"] and len(seeds) > 1 else {}
    options = {"work": experiment.work, "participation": experiment.participation, **parts[seeds[0]]}
    with report_shows(), show_progress(False):  # what diverges is not taken
        grid = [{"number": k} for k in range(len(candidates))]
        return fedax.sweep(
            lambda number: candidates[number], grid, experiment.task, seeds=seeds, **by_seed,
            **options | experiment.options,
        ).runs  # fmt: skip
