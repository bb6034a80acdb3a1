"""The operators of PyTorch that fedax has, as functions of JAX."""

from fedax.tasks.pytorch.operators import attention, images, maths, recurrent, shapes
from fedax.tasks.pytorch.operators.table import Image, Operator, available, find, plain

__all__ = ["Image", "Operator", "attention", "available", "find", "images", "maths", "plain", "recurrent", "shapes"]
