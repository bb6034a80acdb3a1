"""PyTorch modules as tasks: read from a module or a file, run by JAX, and given back."""

from fedax.tasks.pytorch import operators
from fedax.tasks.pytorch.task import (
    constants,
    describe,
    from_description,
    from_export,
    from_torch,
    is_of,
    to_torch_state_dict,
)
