"""Names for types that annotations cannot express."""

from typing import Any, TypeAlias

import jax
import numpy as np

Tree: TypeAlias = Any
"""A pytree: any nesting of tuples, lists, dictionaries and modules whose leaves are arrays and numbers."""

Array: TypeAlias = jax.Array | np.ndarray
"""An array of JAX or NumPy, or a value of one that JAX traces."""

Number: TypeAlias = Any
"""A number, an array of shape (), a value of one that JAX traces; of a hyper-parameter, a schedule too."""

Unknown: TypeAlias = Any
"""What a user gives, before it was checked; or what only its own library can describe."""
