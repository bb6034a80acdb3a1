"""The methods are tried in float64, where what is the same in mathematics is the same to ten digits and more."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def float32(float64: None) -> Iterator[None]:
    """As users run them."""
    with jax.enable_x64(False):
        yield
