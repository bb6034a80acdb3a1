"""Every method in every place gives the results of earlier versions of the engine, whose loops were different.

The numbers were written by commit e76a8a7; those of the cohorts that later changed on purpose, by b42655b.
"""

import zlib

import jax
import numpy as np
import pytest

from fedax.engine.places import blocks

from .. import FORMS, long, mostly_long
from . import places

FILES = (places.NUMBERS / "b42655b.npz", places.NUMBERS / "e76a8a7.npz")
KNOWN = {name.split(" / ")[0] for path in FILES for name in places.load_numbers(path)}
METHODS = sorted(KNOWN)
# The command in places.py compares all methods, in all places and with all cohorts, and takes ten minutes. Here each
# method runs in two places, as its own reference checks it on the device, and one of each form of exchange in two
# processes. All but one form for each place are long: one client alone, memory, a warm-up, a listening exchange.


def some_places(method: str) -> tuple[str, str]:
    """One place with client memory off the device, and one with the examples off it or on several."""
    drawn = zlib.crc32(method.encode())
    return ("host", "file")[drawn % 2], ("streamed", "2 devices")[drawn // 2 % 2]


def one_case(method: str, place: str) -> str:
    """With one of the cohorts that the method takes; over all methods and places, all of them."""
    taken = [each for each in places.COHORTS if places.expected(places.case(method, place, each), FILES) is not None]
    return places.case(method, place, taken[zlib.crc32(f"{method} {place}".encode()) % len(taken)])


def check(name: str, numbers: np.ndarray | None) -> None:
    assert numbers is not None, f"{name}: refused"
    np.testing.assert_allclose(numbers, places.expected(name, FILES), 1e-5, 1e-6, err_msg=name)


SOME = [("ce-lsgd", "streamed"), ("scaffold", "host"), ("scaffold-m-vr", "2 devices"), ("vrl-sgd", "file")]
PAIRS = sorted({*SOME, *((method, place) for method in METHODS for place in some_places(method))})


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs 2 devices")
@pytest.mark.parametrize(("method", "place"), mostly_long(PAIRS, *SOME, several=True))
def test_every_method_off_the_device(method, place, monkeypatch):
    if place in ("file", "streamed"):
        monkeypatch.setattr(blocks, "MOST_BYTES", 1)  # cohorts in blocks of one chunk, evaluation client by client
    name = one_case(method, place)
    check(name, places.outcome(name))


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs 2 devices")
@pytest.mark.parametrize(
    ("method", "place"),  # steps that differ, and that are equal
    mostly_long(
        [(method, f"{where} on 2 devices") for method in ("scaffold", "vrl-sgd") for where in ("host", "streamed")],
        ("scaffold", "streamed on 2 devices"),
        ("vrl-sgd", "host on 2 devices"),
        several=True,
    ),
)
def test_several_devices_off_the_device(method, place):
    name = one_case(method, place)
    check(name, places.outcome(name))


@long  # test_processes.py has three of these forms
def test_in_two_processes():
    cases = [one_case(method, "2 processes") for method in FORMS]
    results = places.outcomes(cases)
    for name in cases:
        check(name, results.get(name))
