"""Tests over real processes. The longest ones run only on request: ``FEDAX_LONG=1 pytest``."""

import os

import pytest

LONG = pytest.mark.skipif(not os.environ.get("FEDAX_LONG"), reason="takes real processes a minute: set FEDAX_LONG=1")
