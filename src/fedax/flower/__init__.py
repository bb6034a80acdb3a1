"""Real clients over Flower: the link, the nodes, and the transport between them. Needs ``pip install 'fedax[flower]'``.

Nothing outside this package imports ``flwr``, and this module does not either.
"""

import importlib.metadata
import os

from fedax._start import reach_directly
from fedax.errors import ConfigError

VERSION = "1.41.0"

# Before flwr is imported anywhere: it reports its use to its makers, and looks for updates, unless told not to.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
reach_directly()


def require() -> None:
    """Check that Flower is there, in the version that fedax works with.

    Raises:
        ConfigError: ``flwr`` is not installed, or has another version.
    """
    try:
        installed = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if installed != VERSION:
        raise ConfigError("flwr", installed, f"deployment works with flwr {VERSION}: pip install 'fedax[flower]'")
