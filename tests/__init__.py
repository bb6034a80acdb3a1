"""Tests. The longest ones run only on request: ``FEDAX_LONG=1 pytest``."""

import os

import pytest

LONG = bool(os.environ.get("FEDAX_LONG"))
long = pytest.mark.skipif(not LONG, reason="one of many that are much alike: FEDAX_LONG=1 runs it")
# Two float32 programs of the same computation differ in their last bits: compilers and machines add in other orders and
# have functions of their own. So many units in the last place, of the numbers that are added, are rounding.
LAST_BITS = 50 * 2.0**-23
# Methods that have each form of exchange: one, several, a warm-up, a listening one, one client alone, memory or none.
FORMS = (
    "fedavg", "scaffold", "scaffold-m-vr", "mime", "ce-lsgd", "vrl-sgd", "fedpd", "fednova-vr", "fedda-mvr",
    "local-amsgrad",
)  # fmt: skip


def always(cases, *names, several=False):
    """Similar cases as parameters of a test: the named ones always run, the others only with ``FEDAX_LONG=1``.

    The others are marked, so they are counted as skipped. ``several``: each case is a tuple of several parameters.
    """
    cases = list(cases)
    assert all(name in cases for name in names), names
    return [case if case in names else pytest.param(*(case if several else [case]), marks=long) for case in cases]


def some(methods):
    """The methods that are in :data:`FORMS`; all of them with ``FEDAX_LONG=1``."""
    return [method for method in methods if LONG or method in FORMS]
