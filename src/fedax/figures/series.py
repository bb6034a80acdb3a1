"""A curve to be drawn: one method over its seeds."""

from dataclasses import dataclass

import numpy as np

from fedax.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Series:
    """One method over its seeds.

    Args:
        label: its name in the legend; drawn as it is, no mathematics. A curve alone needs none, ``""``.
        x: [n] where it was measured: rounds, or what they cost in the mean over the seeds.
        values: [seeds, n] what was measured.
        gone: why it left the others, such as ``"diverged"``; it does not scale the picture then. Empty: it did not.
        heard: [n] the share of the weight of real clients that was heard; a ring is drawn where not all were. ``None``:
            all were.

    Raises:
        ConfigError: shapes that do not fit.

    Example:
        >>> Series("fedavg", [0, 10, 20], [[2.3, 0.9, 0.7], [2.3, 1.1, 0.6]]).values.shape
        (2, 3)
    """

    label: str
    x: np.ndarray
    values: np.ndarray
    gone: str = ""
    heard: np.ndarray | None = None

    def __post_init__(self) -> None:
        x, values = np.asarray(self.x, float), np.asarray(self.values, float)
        if x.ndim != 1:
            raise ConfigError("series.x", x.shape, f"give one number for each evaluation of {self.label}")
        if values.ndim != 2 or not len(values) or values.shape[1] != len(x):
            hint = f"give [seeds, {len(x)}] numbers for {self.label}; of one seed, [values]"
            raise ConfigError("series.values", values.shape, hint)
        if self.heard is not None:
            heard = np.asarray(self.heard, float)
            if heard.shape != x.shape:
                raise ConfigError("series.heard", heard.shape, f"give one share for each evaluation of {self.label}")
            object.__setattr__(self, "heard", heard)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "values", values)
