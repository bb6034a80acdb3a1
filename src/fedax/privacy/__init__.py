"""Privacy accounting: what a run spends of its budget, the least noise for a budget, noise correlated over rounds.

These are computations on settings alone. :mod:`fedax.wire.privacy` clips uploads and adds the noise.
"""

from fedax.privacy.accounting import Ledger, noise_for
from fedax.privacy.factorization import banded, noise_of, prefix_error

__all__ = ["Ledger", "banded", "noise_for", "noise_of", "prefix_error"]
