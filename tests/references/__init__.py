"""Independent NumPy transcriptions of the published methods: client by client, loop by loop, in float64."""

from typing import Any

import numpy as np

from .fedavg_family import Reference


def close(a: Any, b: Any, tol: float = 1e-12) -> None:
    """Two arrays, or the iterates of two references, are equal to within ``tol``."""
    a, b = (v.iterates if isinstance(v, Reference) else v for v in (a, b))
    np.testing.assert_allclose(a, b, rtol=0, atol=tol)
