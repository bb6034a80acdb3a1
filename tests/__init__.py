"""Tests. ``pyproject.toml`` says what their markers mean."""

import pytest

# Two float32 programs of the same computation differ in their last bits: compilers and machines add in other orders and
# have functions of their own. So many units in the last place, of the numbers that are added, are rounding.
LAST_BITS = 50 * 2.0**-23
long = pytest.mark.long
# The parameter ``full`` of a test: False is the short form, True the long one.
in_full = pytest.mark.parametrize("full", [False, pytest.param(True, marks=long)], ids=["short", "in full"])
# Methods that have each form of exchange: one, several, a warm-up, a listening one, one client alone, memory or none.
FORMS = (
    "fedavg", "scaffold", "scaffold-m-vr", "mime", "ce-lsgd", "vrl-sgd", "fedpd", "fednova-vr", "fedda-mvr",
    "local-amsgrad",
)  # fmt: skip


def mostly_long(cases, *names, several=False):
    """Similar cases as parameters of a test: the named ones stand for all, and the others are marked as ``long``.

    ``several``: each case is a tuple of several parameters.
    """
    cases = list(cases)
    assert all(name in cases for name in names), names
    return [case if case in names else pytest.param(*(case if several else [case]), marks=long) for case in cases]
