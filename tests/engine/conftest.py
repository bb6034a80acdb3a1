"""What the tests of the engine share with those of the core, and a count of what is compiled."""

import jax
import pytest

from tests.core.conftest import unchecked_types  # noqa: F401


@pytest.fixture
def compilations():
    """``compilations()``: how many programs were compiled since the last look; ``("f")``: of the function f."""
    seen = []

    def listen(event, seconds, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(details["fun_name"])

    def count(name=None):
        number = len(seen) if name is None else seen.count(f"jit({name})")
        seen.clear()
        return number

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)
