"""Federated optimization in JAX: every method as published, one compiled program, honest about what it optimizes.

What the package offers is in ``__init__.pyi``; each name is imported when it is first used, so that the command line
answers at once.
"""

import lazy_loader

from fedax._start import cores_as_devices

cores_as_devices()  # before JAX starts

__version__ = "0.10.0.dev0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
