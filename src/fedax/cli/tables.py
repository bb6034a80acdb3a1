"""The commands ``fedax deploy tables`` and ``fedax deploy review``: agree on one transform for the tables at nodes."""

import itertools
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fedax.cli.console import echo, say
from fedax.cli.data import CheckLabels, Columns, Drop, Label, MostCategories, Positive, Scale, Target, TaskKind
from fedax.cli.status import state_of
from fedax.errors import ConfigError

if TYPE_CHECKING:
    from fedax.data import Plan, Summary
    from fedax.data.transform import Document

Link = Annotated[str, Option(metavar="HOST:PORT", help="The link.")]
Folder = Annotated[Path, Option(help="The link's folder, for its keys.")]
Nodes = Annotated[int | None, Option(min=1, help="How many nodes to wait for.", show_default="those that are there")]
_DEFAULT = "tables"  # the default folder, inside of the link's


def tables(
    link: Link,
    label: Label,
    folder: Folder = Path("link"),
    nodes: Nodes = None,
    drop: Drop = None,
    column: Columns = None,
    task: TaskKind = None,
    scale: Scale = "standard",
    max_categories: MostCategories = 50,
    positive: Positive = None,
    target: Target = None,
    out: Annotated[
        Path | None, Option(help="Folder for what is agreed; has to be new or empty.", show_default="FOLDER/tables")
    ] = None,
    timeout: Annotated[
        float, Option(min=1.0, metavar="SECONDS", help="How long to wait for nodes, and for each answer.")
    ] = 600.0,
    check_labels: CheckLabels = True,
) -> None:
    """Agree with all nodes on how their tables become numbers; no row leaves a site.

    Asks each node for two small summaries, fits a transform and gives it to all of
    them. Shows which columns are used and as what. Can be repeated: with another
    label, or when a site is new.

    \b
    Examples:
      fedax deploy tables --link fed.example.org:9443 --label readmitted --nodes 3
      fedax deploy tables --link fed.example.org:9443 --label readmitted --drop patient --column zip=category

    Exit code 2: an error. The nodes have the transform that they had before, unless
    the error says otherwise.
    """
    from fedax.cli.data import kinds, show
    from fedax.data import overview, plan
    from fedax.sites.protocol.tables import agree
    from fedax.sites.service import deploy as deployment

    chosen = kinds(column)
    place = _fresh(folder / _DEFAULT if out is None else out, moved=out is None)
    files: dict[str, str] = {}
    sent: dict[str, dict[str, Any]] = {}

    def planned(first: "Mapping[str, Summary]") -> "Plan":
        options: Any = (chosen, task, scale, max_categories, drop or (), positive, target)
        return plan(first, label, *options)

    def keep(what: str, client: str | None, document: "Document") -> None:
        place.mkdir(exist_ok=True)
        document.save(place / (f"{what}.json" if client is None else f"{_file(client, files)}-{what}.json"))
        sent.setdefault(what, {})[client or ""] = document

    with deployment.transport_at(link, folder, say, "tables") as transport:
        transform = agree(transport, label, planned, keep, nodes=nodes, timeout=timeout, say=say,
                          check_labels=check_labels)  # fmt: skip
    columns = overview(sent["plan"][""], sent["first"], sent["second"])
    columns.save(place / "overview.json")
    show(columns)
    experiment = place / "experiment.toml"
    rows = sum(each.rows for each in sent["first"].values())
    _write_experiment(experiment, rows, (len(transform.features) + 1) * len(transform.classes or [0]))
    echo(f"All {len(files)} nodes have the transform {transform.digest}: {len(transform.features)} features.")
    echo(f"What was sent, and what came of it: {place}")
    count = f" --nodes {nodes}" if nodes is not None else ""
    usual = "" if folder == Path("link") else f" --folder {shlex.quote(str(folder))}"
    run = f"fedax deploy run {shlex.quote(str(experiment))} --link {shlex.quote(link)}{usual}{count}"
    echo(f"Next: {run}")


def review(
    key: Annotated[Path | None, Option(help="The node's private key, next to which its folder is.")] = None,
    state: Annotated[Path | None, Option(help="The node's folder.", show_default="KEY.state")] = None,
    yes: Annotated[bool | None, Option("--yes/--no", help="Whether they may leave.")] = None,
    why: Annotated[str, Option(help="With --no: what the coordinator is told.")] = "",
) -> None:
    """See which summaries wait for you at a node with review = true, and say whether they may leave.

    \b
    Examples:
      fedax deploy review --key node7
      fedax deploy review --key node7 --yes
      fedax deploy review --key node7 --no --why "leave the column ward out"
    """
    from fedax.sites.protocol.tables import decide, reviews
    from fedax.sites.service.deploy import decision_line

    state = state_of(key, state)
    if why and yes is not False:
        raise ConfigError("why", why, "this goes with --no")
    if yes is not None and not decide(state, yes, why):
        echo("Nothing waits.")
    for file, decision in reviews(state).items():
        echo(decision_line(file, decision))


COMMANDS: dict[str, Callable[..., None]] = {"tables": tables, "review": review}


def _fresh(target: Path, moved: bool) -> Path:
    """A folder that is new or empty; the content of the default folder is moved aside."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        if not moved:
            raise ConfigError("out", str(target), "it has to be new or empty; name another folder")
        others = (target.with_name(f"{target.name}-{number}") for number in itertools.count(1))
        os.replace(target, aside := next(path for path in others if not path.exists()))
        echo(f"What was agreed the last time is in {aside} now.", err=True)
    if not target.absolute().parent.is_dir():
        raise ConfigError("out", str(target), "there is no such folder; make it first")
    return target


def _file(client: str, files: dict[str, str]) -> str:
    """A unique part of a file name for a client, whatever the client's name is."""
    from fedax.files import slug

    if client not in files:
        base = slug(client)
        names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
        files[client] = next(name for name in names if name not in files.values())
    return files[client]


def _write_experiment(place: Path, rows: int, parameters: int) -> None:
    """Write the configuration of ``fedax compare csv`` for the nodes; it repeats the split where that does."""
    import tomli_w

    from fedax.experiments.defaults import are_small, comparison, usual_seeds

    config: dict[str, Any] = comparison("csv", ["fedavg", "fedprox", "fednova"])
    config |= {"name": _DEFAULT, "data": {**config["data"], "name": "nodes"}}
    if are_small(rows, parameters):
        config["run"] |= {"seeds": usual_seeds(repeated=True), "split_seeds": True}
    place.write_text(tomli_w.dumps(config), encoding="utf-8")
