"""Names for what annotations cannot say more exactly."""

from typing import Any, TypeAlias

Tree: TypeAlias = Any
"""A pytree: any nesting of tuples, lists, dictionaries and modules whose leaves are arrays and numbers."""

Array: TypeAlias = Any
"""A JAX array, a value that JAX traces, a NumPy array, or a number that takes the place of one."""
