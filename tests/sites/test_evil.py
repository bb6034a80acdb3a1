"""``fedax deploy run`` with configurations that are made to learn of nodes under ``fedax deploy policy``, unedited."""

from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn", reason="needs pip install 'fedax[deploy]'")

from tests.experiments import run_cli

from .federation import PLACES, Federation, rows_of, wait_for

CONFIG = """
data = {name = "digits", clients = 4, partition = "iid"}
work = {kind = "steps", steps = 5}
run = {rounds = 2, batch_size = 16, seeds = 1, metrics = [], secure = {clip = 1.0, threshold = 3}}
methods = [{name = "fedavg", lr = 0.5}]
"""
PLAIN = "without secure sums"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("evil"), CONFIG)
    policy = made.folder / "policy.toml"
    assert run_cli("deploy", "policy", str(policy)).exit_code == 0
    try:
        made.start_link()
        for name in PLACES:
            made.start_node(name, policy=policy.name)
        wait_for(lambda: all("this is node" in made.output(name) for name in PLACES))
        yield made
    finally:
        ends = made.end()
    assert not any(ends.values()), {name: made.output(name)[-500:] for name in ends if ends[name]}


def test_the_honest_run(federation: Federation) -> None:
    out = federation.folder / "honest"
    result = run_cli("deploy", *federation.arguments(out))
    assert result.exit_code == 0, result.output
    assert rows_of(out)[-1]["round"] == 2


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ([PLAIN], "secure.nodes"),
        (["run.secure={clip=1.0}", "run.faults={clients=[1, 2, 3], sends=0.0}"], "run.faults"),
        (["run.rounds=100000"], "runs.rounds"),
        (["run.batch_size=1"], "work.batch"),
        (["run.grad_norm=true"], "figures.columns"),
        (["work.steps=1"], "work.steps"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_runs_that_the_nodes_refuse(federation: Federation, settings: list[str], text: str) -> None:
    """The command ends with the rule, and no update has left: of no node the record names another exchange."""
    config = federation.folder / "evil.toml"
    config.write_text(CONFIG.replace(", secure = {clip = 1.0, threshold = 3}", "") if settings == [PLAIN] else CONFIG)
    records = [federation.folder / f"{name}.state" / "site" / "answered.jsonl" for name in PLACES]
    before = [path.read_text().count("exchange") if path.exists() else 0 for path in records]
    more = [part for each in settings if each != PLAIN for part in ("--set", each)]
    command, _, *given = federation.arguments(federation.folder / f"evil-{text}", *more)
    result = run_cli("deploy", command, str(config), *given)
    assert result.exit_code and text in result.output, result.output
    assert [path.read_text().count("exchange") if path.exists() else 0 for path in records] == before
    assert any(text in line.get("error", "") for line in federation.log("n0")), federation.log("n0")[-3:]
    assert str(federation.folder / "n0.data") not in result.output
