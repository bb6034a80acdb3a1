"""How few units a combination of sums can be of."""

import numpy as np


def fewest(vectors: np.ndarray) -> int:
    """A lower bound of the fewest nonzero entries of a nonzero vector in the span of ``vectors`` [m, n]."""
    vectors = np.asarray(vectors, float)
    return int(min(np.count_nonzero(each) for each in vectors)) if len(vectors) == 1 else 1
