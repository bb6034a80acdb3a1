"""How much an answer counts that comes late: weights of staleness."""

import abc

import numpy as np

from fedax.contract.settings import Settings
from fedax.contract.types import Number, Unknown
from fedax.numbers import check_number
from fedax.registry import Registry


class Staleness(Settings):
    """w(s): the weight of an answer by its staleness s, the server's steps since its client began.

    Example:
        >>> class Halved(Staleness):
        ...     def weight(self, staleness):
        ...         return 0.5**staleness
        >>> Halved().weight(np.arange(3)).tolist()
        [1.0, 0.5, 0.25]
    """

    @abc.abstractmethod
    def weight(self, staleness: np.ndarray) -> np.ndarray:
        """w of each staleness, ≥ 0, same shape; ``staleness``: whole numbers ≥ 0."""


class PolynomialStaleness(Staleness):
    """w(s) = (1 + s)^−a.

    Args:
        exponent: a ≥ 0. FedAsync and FedBuff have .5.

    Raises:
        ConfigError: something else.

    Source: Xie, Koyejo and Gupta 2019, section 5.2; Nguyen et al. 2022.

    Example:
        >>> PolynomialStaleness(0.5).weight(np.array([0, 3])).tolist()
        [1.0, 0.5]
    """

    exponent: Number = 0.5

    def __check_init__(self) -> None:
        check_number("exponent", self.exponent, 0, fixed=True)

    def weight(self, staleness: np.ndarray) -> np.ndarray:
        return (1.0 + np.asarray(staleness, float)) ** -float(self.exponent)


class HingeStaleness(Staleness):
    """w(s) = 1 for s ≤ b, else 1/(a (s − b) + 1).

    Args:
        slope: a > 0.
        after: b ≥ 0, the largest staleness that counts in full.

    Raises:
        ConfigError: something else.

    Source: Xie, Koyejo and Gupta 2019, section 5.2.

    Example:
        >>> HingeStaleness(slope=1.0, after=2).weight(np.array([0, 2, 5])).tolist()
        [1.0, 1.0, 0.25]
    """

    slope: Number = 10.0
    after: Number = 4

    def __check_init__(self) -> None:
        check_number("slope", self.slope, 0, open_low=True, fixed=True)
        check_number("after", self.after, 0, fixed=True)

    def weight(self, staleness: np.ndarray) -> np.ndarray:
        beyond = np.maximum(np.asarray(staleness, float) - float(self.after), 0)
        return 1 / (float(self.slope) * beyond + 1)


STALENESS = Registry("staleness")
STALENESS.add("polynomial", PolynomialStaleness)
STALENESS.add("hinge", HingeStaleness)


def staleness(given: Unknown) -> Staleness | None:
    """A :class:`Staleness` as it is; ``None`` for none; or from a table, as a configuration has it.

    Args:
        given: ``{"name": "polynomial", "exponent": 0.5}``; the names are ``polynomial`` and ``hinge``, the other keys
            their arguments.

    Raises:
        ConfigError: an unknown name or key, a value out of range, or something else.

    Example:
        >>> staleness({"name": "hinge", "after": 6})
        HingeStaleness(after=6)
    """
    if given is None or isinstance(given, Staleness):
        return given
    hint = "give a fedax Staleness, such as fedax.PolynomialStaleness(0.5), or {name = 'polynomial', …}"
    return STALENESS.read(given, "staleness", hint)
