"""Tests. Those that take longest run only where they are asked for: ``FEDAX_LONG=1 pytest``."""

import os

import pytest

LONG = bool(os.environ.get("FEDAX_LONG"))
long = pytest.mark.skipif(not LONG, reason="one of many that are much alike: FEDAX_LONG=1 runs it")
# Methods that have each form of exchange: one, several, a warm-up, a listening one, one client alone, memory or none.
FORMS = (
    "fedavg", "scaffold", "scaffold-m-vr", "mime", "ce-lsgd", "vrl-sgd", "fedpd", "fednova-vr", "fedda-mvr",
    "local-amsgrad",
)  # fmt: skip


def always(cases, *names):
    """Cases that are much alike, as parameters of a test: these run always, the others where the longest are asked for.

    The others are marked, so they are counted as skipped.
    """
    cases = list(cases)
    assert all(name in cases for name in names), names
    return [case if case in names else pytest.param(case, marks=long) for case in cases]


def some(methods):
    """Of methods those of :data:`FORMS`; all where the longest tests are asked for."""
    return [method for method in methods if LONG or method in FORMS]
