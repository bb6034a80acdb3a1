"""What the tests of the engine share with those of the core."""

from tests.core.conftest import unchecked_types  # noqa: F401
