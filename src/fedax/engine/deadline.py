"""Deadlines by the clock: how many local steps each client manages in a round, and who manages none."""

import numpy as np

from fedax.engine.plan import ExchangeForm
from fedax.errors import ConfigError
from fedax.federation.clock import BoundClock
from fedax.numbers import MOST


def steps_within(
    time: float, clock: BoundClock, forms: list[ExchangeForm], sizes: np.ndarray, batch_size: int | None
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

    Raises:
        ConfigError: the clock or the method does not tell.
    """
    way_out = ""
    if clock.anew or clock.periods is not None:
        way_out = "the clock draws anew in each round, or has periods; give a clock that is the same in all rounds"
    elif any(form.one or form.asked is None for form in forms):
        way_out = "in a round of this method not all clients do the same; give local steps a second, speed"
    if way_out:
        raise ConfigError("work.time", time, way_out)
    ids, fixed, each = np.arange(len(sizes)), np.zeros(len(sizes)), np.zeros(len(sizes))
    for form in forms:
        assert form.asked is not None
        always = form.asked.gradients(0, sizes, batch_size)
        fixed = fixed + clock.durations(0, ids, always, form.down, form.up)
        each = each + (form.asked.gradients(1, sizes, batch_size) - always)
    each = each * clock.of("step", np.zeros((), int), ids)
    if not each.min() > 0:
        raise ConfigError("work.time", time, "a local step takes no time by the clock; give the clock its step")
    steps = np.maximum(np.floor((time - fixed) / each * (1 + 1e-12)), 0)
    if steps.max() > MOST:
        raise ConfigError("work.time", time, f"a client would take {steps.max():.3g} steps, and takes at most {MOST}")
    if steps.max() < 1:
        raise ConfigError("work.time", time, "no client would finish a step; give more time")
    found: np.ndarray = steps.astype(np.int64)
    return found
