"""Tests over real processes. Those that take longest run only where they are asked for: ``FEDAX_LONG=1 pytest``."""

import os

import pytest

LONG = pytest.mark.skipif(not os.environ.get("FEDAX_LONG"), reason="takes real processes a minute: set FEDAX_LONG=1")
