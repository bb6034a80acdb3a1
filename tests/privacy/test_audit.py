"""What an attacker tells apart stays below the ε that is accounted, and does not where noise is missing."""

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("audit", Path(__file__).parents[2] / "benchmarks" / "audit.py")
assert SPEC is not None and SPEC.loader is not None
audit = importlib.util.module_from_spec(SPEC)
sys.modules["audit"] = audit  # where a dataclass looks for its module
SPEC.loader.exec_module(audit)


def test_an_audit_stays_below_epsilon_and_finds_missing_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes with the canary and without it, of each noise; wrong by chance, for the noise is secret, in one of 10⁶."""
    setting = audit.SETTINGS["full"]
    monkeypatch.setattr(audit, "CONFIDENCE", 1 - 1e-4)
    whole, half, tenth = audit.audit(setting, 1000, [1.0, 0.5, 0.1])
    accounted = setting.epsilon()
    assert accounted / 3 < whole < accounted < half
    assert tenth > 4 * accounted
