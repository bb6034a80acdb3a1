"""Methods as users write them pass fedax.check, and of thirty errors that were planted in them it finds each."""

import inspect

import pytest

import fedax

from .. import long
from . import papers

SOFTMAX = fedax.tasks.softmax_regression(features=3, classes=3)
PLANTED = {
    papers.FedSAM: [
        ("y + self.rho", "y - self.rho", "sign or size of a perturbation"),
        ("self.rho * g / jnp.sqrt(g.dot(g))", "self.rho * g", "sign or size of a perturbation"),
        ("- x, memory", "- x + self.lr * oracle.grad(x), memory", "direction|as far"),
    ],
    papers.MoFedSAM: [
        ("(1 - self.beta) * delta", "(self.beta - 1) * delta", "sign of a momentum"),
        ("(-self.lr * oracle.steps)", "(self.lr * oracle.steps)", "sign of a momentum"),
        ("(-self.lr * oracle.steps)", "-self.lr", "between rounds"),
    ],
    papers.FedLESAM: [
        ("d = before - x", "d = x - before", "between rounds"),
        ("oracle) - x, x", "oracle) - x, before", "added up from round to round"),
        ("oracle.grad(y + d, k)", "oracle.grad(y, k)", "has no effect"),
    ],
    papers.FedSpeed: [
        ("(y - x) / self.lam)", "(x - y) / self.lam)", "pull"),
        ("g - kept +", "g + kept +", "between rounds"),
        ("y - x - self.lam * kept, kept", "y - x + self.lam * kept, kept", "direction|as far|the other way"),
    ],
    papers.FedDC: [
        ("c_i - c)", "c - c_i)", "between rounds"),
        ("(y - x + h)", "(y - x - h)", "between rounds"),
        ("dx + h, fedax", "dx - h, fedax", "as far|the other way|direction"),
    ],
    papers.FedLin: [
        ("- own + g", "+ own - g", "correction"),
        ("self.lr / oracle.steps", "self.lr / 3", "as far"),
        ("return fedax.local", "g = -1 * g; return fedax.local", "direction|the other way"),
    ],
    papers.FedCMAdam: [
        ("(1 - self.alpha) * delta", "(self.alpha - 1) * delta", "between rounds"),
        ("(1 - self.b1) * g", "self.b1 * g", "direction|as far"),
        ("(x - y) / (self.lr * oracle.steps)", "(y - x) / (self.lr * oracle.steps)", "between rounds"),
    ],
    papers.FedBN: [
        ("own=False) + kept", "own=False) - kept", "direction"),
        ("self.only(y, own=True)", "kept", "has no effect"),
        ("self.only(y - x, own=False)", "self.only(x - y, own=False)", "the other way"),
    ],
    papers.QFedAvg: [
        ("f**self.q * d,", "d,", "direction|as far"),
        ("f ** (self.q - 1)", "f ** (self.q + 1)", "as far"),
        ("+ f**self.q / self.lr", "+ f**self.q", "as far"),
    ],
    papers.Ditto: [
        ("self.lam * (v - x)", "self.lam * (x - v)", "pull"),
        ("(v - x)", "(v - y)", "as far"),
        ("new - v)), new", "new - v)), y", "between rounds|added up"),
    ],
}
FAULTS = [(kind, *fault) for kind, faults in PLANTED.items() for fault in faults]


def changed(kind, old, new):
    """The class with one place of its source changed."""
    source = inspect.getsource(kind)
    assert source.count(old) == 1, source
    made = dict(vars(papers))
    exec(source.replace(old, new), made)
    return made[kind.__name__]


def checked(kind, only=None):
    reference = papers.REFERENCES[kind]
    return fedax.check(kind(), only=only, reference=reference, task=None if reference else SOFTMAX)


@pytest.mark.parametrize("kind", papers.REFERENCES, ids=lambda kind: kind.__name__)
def test_a_user_s_method_is_its_paper_s(kind):
    report = checked(kind, ["reference"] if papers.REFERENCES[kind] else ["descent", "resume"])
    assert report.passed and report.checks[0].status == "holds", report


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0].__name__} {fault[2]}")
def test_a_planted_error_is_found_and_its_kind_said(fault):
    kind, old, new, says = fault
    report = fedax.check(changed(kind, old, new)(), only=["reference"], reference=papers.REFERENCES[kind])
    assert report.failed == ["reference"], report
    assert any(part in report["reference"].found for part in says.split("|")), report


def test_a_method_of_other_outputs_is_told_of_tasks():
    assert "task=" in fedax.check(papers.Moon(), only=["descent"])["descent"].found


@long
@pytest.mark.parametrize("kind", papers.REFERENCES, ids=lambda kind: kind.__name__)
def test_a_user_s_method_holds_everything(kind):
    report = checked(kind)
    assert report.passed, report
