"""Deadlines by the clock: how many local steps each client manages in a round, and who manages none."""

import numpy as np

from fedax.engine.plan import ExchangeForm
from fedax.errors import ConfigError
from fedax.federation.clock import BoundClock
from fedax.numbers import MOST

_MOST_STEPS = 2**27  # that a table has, of all rounds and clients
_DRAWN = 2**20  # that are drawn at a time


def steps_within(
    time: float,
    clock: BoundClock,
    forms: list[ExchangeForm],
    sizes: np.ndarray,
    batch_size: int | None,
    rounds: int | None = None,
) -> np.ndarray:
    """[N] τ_i, the most local steps with which a client's part in a round takes at most so many seconds; 0: none.

    That is ⌊(time − latency_i − transfers_i)/step_i⌋ of a method with one exchange and one gradient a step. Of several
    exchanges the client is taken to wait for nobody.

    Args:
        time: seconds.
        clock: of the run.
        forms: of the exchanges of a round.
        sizes: n_i.
        batch_size: of the run.
        rounds: how many there are, of a clock that draws anew in each: [R, N] for each of them. ``None``: it does not.

    Raises:
        ConfigError: the clock or the method does not tell.
    """
    hint = ""
    if clock.periods is not None:
        hint = "when a round begins follows from the rounds before it, so that a clock with periods does not tell"
    elif clock.anew and rounds is None:
        hint = "the clock draws anew each time, and without rounds there is no draw of a round: draw once a client"
    elif any(form.one for form in forms):
        hint = "in a round of this method not all clients do the same; give local steps a second, speed"
    elif any(form.asked is None for form in forms):
        hint = "how many gradients a client needs is decided while it works; give local steps a second, speed"
        hint += ', or PersonalPart of order = "first" the steps of the clients\' own part'
    elif (total := (rounds or 1) * len(sizes)) > _MOST_STEPS:
        hint = f"the clock draws anew, which needs a table of {total} steps; draw once a client, or give fewer rounds"
    if hint:
        raise ConfigError("work.time", time, hint)
    if rounds is None:
        steps = _steps(time, clock, forms, sizes, batch_size, np.zeros((), int))
    else:
        together = max(1, _DRAWN // len(sizes))
        blocks = (np.arange(rounds)[at : at + together, None] for at in range(0, rounds, together))
        steps = np.concatenate([_steps(time, clock, forms, sizes, batch_size, block) for block in blocks])
    if steps.max() < 1:
        raise ConfigError("work.time", time, "no client would finish a step; give more time")
    return steps


def _steps(
    time: float,
    clock: BoundClock,
    forms: list[ExchangeForm],
    sizes: np.ndarray,
    batch_size: int | None,
    numbers: np.ndarray,
) -> np.ndarray:
    """τ_i of the rounds ``numbers``, [rounds, 1] or a number: [rounds, N] or [N]."""
    ids, fixed, each = np.arange(len(sizes)), np.zeros(len(sizes)), np.zeros(len(sizes))
    for form in forms:
        assert form.asked is not None
        always = form.asked.gradients(0, sizes, batch_size)
        fixed = fixed + clock.durations(numbers, ids, always, form.down, form.up)
        each = each + (form.asked.gradients(3, sizes, batch_size) - always) / 3  # three forward passes are a gradient
    each = each * clock.of("step", numbers, ids)
    if not each.min() > 0:
        raise ConfigError("work.time", time, "a local step takes no time by the clock; give the clock its step")
    steps = np.maximum(np.floor((time - fixed) / each * (1 + 1e-12)), 0)
    if any(form.asked is not None and form.asked.has_forwards for form in forms):
        spent = np.zeros(steps.shape)  # forward passes are rounded up to gradients
        for form in forms:
            assert form.asked is not None
            gradients = form.asked.gradients(steps, sizes, batch_size)
            spent = spent + clock.durations(numbers, ids, gradients, form.down, form.up)
        steps = np.maximum(steps - (spent > time * (1 + 1e-12)), 0)
    if steps.max() > MOST:
        raise ConfigError("work.time", time, f"a client would take {steps.max():.3g} steps, and takes at most {MOST}")
    return steps.astype(np.int64 if numbers.ndim == 0 else np.int32)
