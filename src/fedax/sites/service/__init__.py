"""Real sites: the link, the nodes, and the messages between them. Needs ``pip install 'fedax[deploy]'``."""

import importlib.util

from fedax._start import reach_directly
from fedax.errors import ConfigError

reach_directly()

LONGEST = 8 << 20  # bytes of the head of a message


def require(*packages: str, extra: str = "deploy") -> None:
    """Check that the packages of a deployment are there, or others of an extra of fedax.

    Raises:
        ConfigError: one of them is not installed.
    """
    for name in packages or ("starlette", "uvicorn", "httpx", "cryptography"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(name, None, f"a deployment needs this package: pip install 'fedax[{extra}]'")
