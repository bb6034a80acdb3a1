"""What several tests of the core and of the engine need."""

import pytest
from jaxtyping import config


@pytest.fixture
def unchecked_types():
    """Outside of tests nothing checks the annotations: what fedax itself says to values of a wrong type."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)
