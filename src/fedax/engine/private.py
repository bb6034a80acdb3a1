"""Differential privacy of a run: refuses what has no guarantee, computes the budget spent, adds the layer of noise.

The noise itself is in :mod:`fedax.wire.privacy`, the accounting in :mod:`fedax.privacy`.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedax.columns import PERSONAL, TRAIN, deciding
from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import ArrayForm, decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Tree, Unknown
from fedax.data.federated import FederatedData
from fedax.engine import secret
from fedax.engine.patience import Patience
from fedax.engine.plan import ExchangeForm, RunPlan
from fedax.errors import ConfigError
from fedax.federation.census import Census
from fedax.federation.participation import Participation, Sampling
from fedax.wire.privacy import DP, Private
from fedax.wire.wire import Wire

if TYPE_CHECKING:
    from fedax.privacy import Ledger

_EQUAL = 1e-6  # relative, of weights


def is_kept(dp: DP | None) -> bool:
    """Whether a run has a privacy guarantee: it has noise, and that is drawn from a secret."""
    return dp is not None and secret.is_drawn(dp) and float(dp.noise) > 0


def public(names: Collection[str], parts: Mapping[str, Unknown], held: Mapping[str, int]) -> tuple[str, ...]:
    """The public columns of a private run: its ε covers all that is in them.

    Args:
        names: the columns to choose from.
        parts: "val" and "test" -> held-out examples; those of no client, which count as public, or those of clients.
        held: part -> how many held-out examples are at the nodes of real clients.
    """
    open_ = {part for part, given in parts.items() if not isinstance(given, FederatedData) and not held.get(part)}
    shown = {"round", "epsilon", "density"}
    return tuple(name for name in names if name in shown or name.partition("_")[0] in open_)


def of_public(row: Mapping[str, Unknown], columns: Collection[str] | None) -> dict[str, Unknown]:
    """The public part of a row, or of a history; everything, if the run is not private.

    Args:
        row: column -> value.
        columns: those of :func:`public`; ``None``: the run is not private.

    Example:
        >>> of_public({"round": 2, "train_loss": 0.5, "epsilon": 1.5}, ("round", "epsilon"))
        {'round': 2, 'epsilon': 1.5}
    """
    return {name: value for name, value in row.items() if columns is None or name in columns}


def judged(names: Collection[str], known: Collection[str] | None) -> str | None:
    """The column that shows whether a run ended worse than it began; ``None``: no public column does.

    Args:
        names: the columns of the run.
        known: the public columns of a private run, else ``None``.
    """
    if known is None:
        shown = ["objective", *TRAIN, "val_loss", "test_loss"]
        kept = "turn_age" in names  # clients keep something of their own models, which the shared one does not show
        found = next((name for name in [f"{TRAIN[0]}{PERSONAL}"] * kept + shown if name in names), None)
        return deciding(found, names) if kept and found is not None else found
    return next((name for name in ("val_loss", "test_loss") if name in known and name in names), None)


def limited_losses(figures: dict[str, Unknown], model: Tree) -> dict[str, Unknown]:
    """The figures of a private run, with a training loss that is finite if and only if the model is.

    A run whose loss is not finite counts as diverged, and ends. For a private run this must depend on the model alone:
    a loss on clients' data, which no noise hides, would tell of them.
    """
    finite = all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(model))
    most = float(np.finfo(np.float32).max)
    losses = {name: figures[name] for name in (*TRAIN, "objective") if name in figures}
    limited = {name: float(np.nan_to_num(value, nan=most, posinf=most, neginf=-most)) for name, value in losses.items()}
    return figures | (limited if finite else dict.fromkeys(losses, math.nan))


def check(
    wire: Wire,
    method: Algorithm,
    participation: Participation,
    census: Census,
    until: Callable[..., bool] | None,
    parts: Mapping[str, Unknown] | None = None,
) -> None:
    """Refuse settings for which no guarantee is known; ``parts``: held-out examples, as of :func:`public`.

    Raises:
        ConfigError: it says what to do instead.
    """
    if (dp := wire.privacy) is None:
        return
    n, p = census.num_clients, census.weights
    if wire.guard is not None:
        hint = "with privacy uploads that are not finite count as zero; weights that then grow would tell of them"
        raise ConfigError("guard", wire.guard, f"leave it out: {hint}")
    if wire.aggregate is not None:
        hint = "how far one client moves a robust average is not bounded by the clip; leave it out"
        raise ConfigError("aggregate", wire.aggregate, hint)
    if until is not None and not (isinstance(until, Patience) and until.column.startswith(("val_", "test_"))):
        hint = "when a run ends must not depend on its clients' data; stop by a val_ or test_ column with Patience"
        raise ConfigError("until", until, hint)
    if isinstance(until, Patience) and is_kept(dp) and not public([until.column], parts or {}, census.held):
        hint = "when a run ends would tell of them; give held-out examples that belong to no client, or leave it out"
        raise ConfigError("until", until, f"{until.column} is measured on clients, and {hint}")
    if float(np.ptp(p)) > _EQUAL / n:
        hint = 'each client has to count the same: data.with_weights(np.full(N, 1 / N)), or weights = "uniform"'
        raise ConfigError("data.weights", f"from {p.min():.3g} to {p.max():.3g}", hint)
    sampling = participation.sampling(n)
    if sampling is None:
        hint = "no guarantee is known for it; draw clients by Poisson, Uniform or Cyclic, or take all: Full"
        raise ConfigError("participation", participation, hint)
    if dp.bands > 1 and (sampling.rate or sampling.cohort or sampling.apart < dp.bands):
        hint = f"correlated noise needs each client in at most one of {dp.bands} rounds: fedax.Cyclic({dp.bands})"
        raise ConfigError("privacy.bands", dp.bands, hint)
    for exchange in (*_exchanges(method, "warmup"), *_exchanges(method, "exchanges")):
        if exchange.who == "one":
            hint = f"{type(method).__name__} hears one client of a cohort alone; take a method that hears sums only"
            raise ConfigError("privacy", dp, hint)
    if (adaptive := dp.adaptive) is not None and adaptive.noise is not None and not 2 * adaptive.noise > dp.noise:
        raise ConfigError("privacy.adaptive.noise", adaptive.noise, f"give more than half of noise = {dp.noise}")
    if adaptive is not None and adaptive.noise is None and not n * sampling.chance / 10 > dp.noise:
        hint = f"cohorts of {n * sampling.chance:g} clients are too small for the default; give one above {dp.noise}"
        raise ConfigError("privacy.adaptive.noise", None, hint)
    from fedax.privacy.accounting import weakness

    if weak := weakness(dp.delta, n):
        warnings.warn(f"privacy.{weak}", UserWarning, stacklevel=1)  # which is shown once, however many runs there are


def numbers_of(dp: DP, forms: tuple[list[ExchangeForm], list[ExchangeForm]]) -> int:
    """How many numbers the largest release has."""
    uploads = [jax.eval_shape(decoded, form.upload) for stage in forms for form in stage]
    sizes: list[int] = [sum(leaf.size for leaf in jax.tree.leaves(upload)) for upload in uploads]
    return max(sizes) + (dp.adaptive is not None)


def ledger(dp: DP, method: Algorithm, participation: Participation, num_clients: int, numbers: int) -> "Ledger":
    """The ledger of a run; ``numbers``: in a release."""
    from fedax.privacy import Ledger

    drawn: Sampling | None = participation.sampling(num_clients)
    assert drawn is not None
    releases = {
        stage: sum(each.server is not None for each in _exchanges(method, stage)) for stage in ("exchanges", "warmup")
    }
    places = None if drawn.rate is None else participation.places(num_clients)
    return Ledger(
        float(dp.noise), num_clients, rate=drawn.rate, cohort=drawn.cohort, apart=drawn.apart, places=places,
        numbers=numbers, **releases,
    )  # fmt: skip


def within(dp: DP, spending: "Ledger", rounds: int, stops: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The rounds that the budget allows, at most ``rounds``, and those after which to evaluate.

    Raises:
        ConfigError: it does not allow a single round.
    """
    if dp.epsilon is None or rounds == 0:
        return rounds, stops
    within = spending.epsilon(rounds, dp.delta) <= dp.epsilon  # the search would go on far beyond
    most = rounds if within else min(rounds, spending.rounds(dp.epsilon, dp.delta))
    if most == 0:
        spent = spending.epsilon(1, dp.delta)
        hint = f"one round spends {spent:.4g}; more noise, or smaller cohorts (fedax privacy finds the noise)"
        raise ConfigError("privacy.epsilon", dp.epsilon, hint)
    return most, (*(stop for stop in stops if stop < most), most)


def outlook(dp: DP, spending: "Ledger", rounds: int) -> dict[str, Unknown]:
    """The privacy of a run, computed before it begins, in plain values.

    Args:
        dp: the run's settings.
        spending: its ledger.
        rounds: the rounds that are asked for.

    Returns:
        ``relation`` and ``accountant``, as of :class:`fedax.privacy.Ledger`; ``exchanges`` of a round, ``warmup`` and
        ``numbers`` of a release; ``drawn``, how clients are: its ``rate``, ``places``, ``cohort`` and ``apart``;
        ``rounds`` that the budget allows of those asked for; ``epsilon``, what these spend; ``one``, what they would
        spend with one exchange a round and no warm-up.
    """
    most, _ = within(dp, spending, rounds, ())
    one = dataclasses.replace(spending, exchanges=1, warmup=0)
    facts = {name: getattr(spending, name) for name in ("relation", "accountant", "exchanges", "warmup", "numbers")}
    facts["drawn"] = {name: getattr(spending, name) for name in ("rate", "places", "cohort", "apart")}
    spent = {name: ledger_.epsilon(most, dp.delta) for name, ledger_ in (("epsilon", spending), ("one", one))}
    return facts | {"rounds": most} | spent


def noise_layer(method: Algorithm, dp: DP, forms: tuple[list[ExchangeForm], list[ExchangeForm]]) -> Private:
    """The method with a layer that adds noise; :func:`known` puts in the numbers of a run.

    Args:
        forms: the forms of the method's own exchanges.
    """
    uploads = tuple(ArrayForm.of(jax.eval_shape(decoded, form.upload)) for form in forms[1]) if dp.bands > 1 else ()
    return Private(method, dp, 1.0, 1.0, 1.0, *secret.blank(dp), np.ones(dp.bands), uploads)


def known(private: Private, census: Census, participation: Participation, plan: RunPlan, rounds: int) -> Private:
    """The layer of noise with the numbers of a run, and with a secret of its own."""
    dp = private.privacy
    drawn = participation.sampling(census.num_clients)
    assert drawn is not None
    noise, cohorts = secret.drawn(dp)
    coefficients = private.coefficients
    if dp.bands > 1:
        from fedax.privacy.factorization import banded

        coefficients = banded(dp.bands, max(rounds, dp.bands))
    return dataclasses.replace(
        private,
        clients=float(census.num_clients),
        chance=float(drawn.chance),
        steps=float(plan.max_steps),
        secret=noise,
        cohorts=cohorts,
        coefficients=coefficients,
    )


def _exchanges(method: Algorithm, stage: str) -> tuple[Unknown, ...]:
    return tuple(getattr(resolve(method, 0), stage)())
