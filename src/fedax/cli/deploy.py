"""The commands ``fedax deploy``: the link, the nodes of sites, and runs over them."""

import os
import pathlib
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from fedax._start import share_gpu
from fedax.cli import status, tables
from fedax.cli.console import echo
from fedax.cli.running import AllowCode, Out, Resume, Set, carry_out, finish, read_config

if TYPE_CHECKING:
    pass

Timeout = Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="How long to wait for the answer of a node.")]
Link = Annotated[str, typer.Option(metavar="HOST:PORT", help="The link.", show_default=False)]
LogLevel = Annotated[
    str, typer.Option(envvar="FEDAX_LOG_LEVEL", metavar="error|warning|info", help="What is written to the logs.")
]
LogSize = Annotated[
    float, typer.Option(envvar="FEDAX_LOG_SIZE", min=0.01, metavar="MB", help="At this size a log is begun anew.")
]
LogKeep = Annotated[int, typer.Option(envvar="FEDAX_LOG_KEEP", min=1, help="How many older logs are kept.")]


def _set_logs(level: str, size: float, keep: int) -> None:
    """Tell the processes that are started from here how to keep logs."""
    from fedax.errors import ConfigError

    if level not in ("error", "warning", "info"):
        raise ConfigError("log_level", level, "give error, warning or info")
    os.environ.update(FEDAX_LOG_LEVEL=level, FEDAX_LOG_SIZE=str(size), FEDAX_LOG_KEEP=str(keep))


def deploy_local(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes the clients are dealt to.")] = 3,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    timeout: Timeout = 600.0,
    ray: Annotated[bool, typer.Option("--ray", help="Gone: Flower starts its simulation by flwr run.")] = False,
) -> None:
    """Try a deployment on this machine: the link and the nodes are processes here.

    The data set of the configuration is dealt to the nodes. TLS and keys are made
    for them. The run folder and the report are those of fedax run.

    \b
    Examples:
      fedax deploy local experiment.toml --nodes 3
      fedax deploy local experiment.toml --set run.rounds=5
      fedax deploy local experiment.toml --resume

    Exit codes: as fedax run. With 2, a node or the link could not go on; --resume does.
    """
    from fedax.errors import ConfigError
    from fedax.experiments import build
    from fedax.sites.service import local

    if ray:
        raise ConfigError("ray", True, "Flower simulates clients on Ray, and is started by its own command: flwr run")
    share_gpu()  # with the nodes
    tables, code = read_config(config, settings, allow_code)
    experiment = local.measured(build(tables, allow_code=code))
    local.check_local(experiment, nodes)
    say = lambda line: echo(line, err=True)  # noqa: E731
    start = lambda ready, folder: local.local_deployment(ready, folder, nodes, timeout, say)  # noqa: E731
    finish(carry_out(experiment, out, resume, "deploy local", start))


def deploy_link(
    folder: Annotated[pathlib.Path, typer.Option(help="For certificates and keys.")] = pathlib.Path("link"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address by which nodes reach this machine; may be repeated.", show_default="its own name"
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that nodes reach.")] = 9443,
    bind: Annotated[
        str | None, typer.Option(help="The address of this machine to listen at.", show_default="all")
    ] = None,
    connections: Annotated[int, typer.Option(min=1, help="How many connections there may be at a time.")] = 512,
    connections_each: Annotated[int, typer.Option(min=1, help="The same, from one address.")] = 128,
    log_level: LogLevel = "warning",
    log_size: LogSize = 10.0,
    log_keep: LogKeep = 5,
) -> None:
    """Run the link, where nodes and runs meet, until Ctrl-C.

    Makes what is missing in the folder: certificates, and a key of runs. Each
    node's public key belongs into its folder nodes/, and ca.pem to each node.

    \b
    Examples:
      fedax deploy link --host fed.example.org
      fedax deploy link --folder link --host 192.168.1.7 --port 9443
    """
    import socket

    from fedax.sites.service import require

    require()
    from fedax.sites.service import link as links

    _set_logs(log_level, log_size, log_keep)
    hosts, limits = host or [socket.gethostname(), socket.getfqdn()], {"total": connections, "each": connections_each}
    links.run(folder, hosts, port, bind=bind, limits=limits, say=echo)


def deploy_link_renew(
    folder: Annotated[pathlib.Path, typer.Option(help="The link's folder.")] = pathlib.Path("link"),
    ca: Annotated[
        bool, typer.Option("--ca", help="Make a new authority, which sites trust beside the old one.")
    ] = False,
) -> None:
    """Give a link another certificate, while it runs.

    With --ca, the file ca.pem has a new authority and the old one. Give it to every
    site; when all have it, the same command without --ca takes the new authority.

    \b
    Examples:
      fedax deploy link renew --folder link
      fedax deploy link renew --folder link --ca
    """
    from fedax.sites.service import require

    require()
    from fedax.sites.service import certificates

    until = f"{certificates.renew(folder, ca):%Y-%m-%d}"
    if ca:
        echo(f"{folder / 'ca.pem'} has a new authority, valid until {until}, and the old one: give it to every site")
        echo(f"when all have it: fedax deploy link renew --folder {shlex.quote(str(folder))}")
    else:
        echo(f"the link's certificate is new, and valid until {until}; new connections have it at once")


def deploy_node(
    data: Annotated[
        pathlib.Path,
        typer.Option(
            help="Its table, .csv, .xlsx or .parquet; or its clients' arrays, as FederatedData.save writes them."
        ),
    ],
    key: Annotated[pathlib.Path, typer.Option(help="Its private key; made where it is missing, with KEY.pub.")],
    link: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The link.", show_default=False)] = None,
    socket: Annotated[
        pathlib.Path | None,
        typer.Option(help="In place of a link: a Unix socket, for Flower's ClientApp.", show_default=False),
    ] = None,
    ca: Annotated[pathlib.Path, typer.Option(help="The link's certificate, ca.pem of its folder.")] = pathlib.Path(
        "ca.pem"
    ),
    clients: Annotated[
        str | None,
        typer.Option(
            help="Its clients' names, separated by commas.",
            show_default="the table's, those of the data, or the key's name",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Of a table: not used, and nothing of it leaves; may be repeated.",
            show_default=False,
        ),
    ] = None,
    decimal: Annotated[str | None, typer.Option(help="The decimal point of a .csv file.", show_default="found")] = None,
    encoding: Annotated[str | None, typer.Option(help="Its encoding.", show_default="found")] = None,
    drop_missing_labels: Annotated[
        bool, typer.Option("--drop-missing-labels", help="Leave rows of a table without a label out.")
    ] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Of a table: its owner sees each summary before it leaves.")
    ] = False,
    test: Annotated[
        pathlib.Path | None, typer.Option(help="Held-out examples of this site.", show_default=False)
    ] = None,
    val: Annotated[
        pathlib.Path | None, typer.Option(help="The same, to choose by and not to report.", show_default=False)
    ] = None,
    policy: Annotated[
        pathlib.Path | None,
        typer.Option(help="A file with all rules of its owner: fedax deploy policy writes one.", show_default=False),
    ] = None,
    roster: Annotated[
        pathlib.Path | None,
        typer.Option(help="For secure sums: a folder with KEY.pub of each node of the federation.", show_default=False),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="The measures that may leave, separated by commas.", show_default="all")
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option(min=1, help="In how many rounds of all runs it takes part.", show_default="no limit")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(help="Noise on figures that leave, in units of what one client can move.", show_default="none"),
    ] = None,
    bound: Annotated[
        float | None, typer.Option(help="With --noise: the largest loss; others are clipped.", show_default=False)
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="With --noise: what all figures may spend.", show_default="8, at δ = 1e-5")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Whether a run may hold out some of its rows, [data.split].")
    ] = True,
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="A method's or task's code that may run here; may be repeated.", show_default=False
        ),
    ] = None,
    state: Annotated[
        pathlib.Path | None, typer.Option(help="Folder for memory and logs.", show_default="KEY.state")
    ] = None,
    wait: Annotated[
        float | None, typer.Option(help="Seconds to wait for a link that is gone.", show_default="for ever")
    ] = None,
    log_level: LogLevel = "warning",
    log_size: LogSize = 10.0,
    log_keep: LogKeep = 5,
) -> None:
    """Run the node of a site, with one client or several, until Ctrl-C.

    Data never leave it. What leaves is in the log of its folder, message by message.
    A table waits for the coordinator's fedax deploy tables.

    \b
    Examples:
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7 --drop patient --review
      fedax deploy node --link fed.example.org:9443 --data wards --key node7 --clients icu,surgery
      fedax deploy node --socket node7.sock --data wards --key node7
    """
    from fedax.sites.service import deploy as deployment

    _set_logs(log_level, log_size, log_keep)
    listed = lambda text: None if text is None else [each.strip() for each in text.split(",")]  # noqa: E731
    table = {"drop": drop, "decimal": decimal, "encoding": encoding, "review": review}
    rules: dict[str, dict[str, Any]] = {
        "runs": {"rounds": max_rounds, "split": None if split else False},
        "figures": {"columns": listed(columns), "noise": noise, "bound": bound},
        "budget": {"epsilon": epsilon},
    }
    deployment.node(
        link, ca, key, data, state=state, names=listed(clients),
        table=table | {"drop_missing_labels": drop_missing_labels}, test=test, val=val,
        policy=_policy(policy, rules), roster=roster, code=allow_code or [], wait=wait, socket=socket, say=echo,
    )  # fmt: skip


def _policy(path: pathlib.Path | None, rules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The tables of an owner's rules, from a file or from options."""
    from fedax.errors import ConfigError
    from fedax.sites.protocol.policy import Policy, read_table

    given = {}
    for section, values in rules.items():
        if known := {name: value for name, value in values.items() if value is not None}:
            given[section] = known
    if path is None:
        return given
    if given:
        (section, values), *_ = given.items()
        name = next(iter(values))
        raise ConfigError(
            f"{section}.{name}", values[name], f"with --policy all rules are in the file: give it in {path}"
        )
    table = read_table(path)
    Policy.of(table)
    return table


def deploy_policy(
    out: Annotated[pathlib.Path, typer.Argument(help="The file to write.")] = pathlib.Path("policy.toml"),
) -> None:
    """Write a strict policy for a node, with an explanation of each rule, to be edited by the node's owner.

    \b
    Examples:
      fedax deploy policy
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7 --policy policy.toml
    """
    from fedax.errors import ConfigError
    from fedax.files import check_ending
    from fedax.sites.protocol.policy import STRICT

    check_ending(out, ".toml")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(STRICT)
    except FileExistsError:
        raise ConfigError("out", str(out), "this file is there already; give another name") from None
    echo(f"{out}: edit it, then fedax deploy node … --policy {shlex.quote(str(out))}")


def deploy_run(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    link: Link,
    folder: Annotated[pathlib.Path, typer.Option(help="The link's folder, for its keys.")] = pathlib.Path("link"),
    nodes: Annotated[
        int | None, typer.Option(min=1, help="How many nodes to wait for.", show_default="those that are there")
    ] = None,
    test: Annotated[
        pathlib.Path | None, typer.Option(help="Held-out examples at the server.", show_default=False)
    ] = None,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    timeout: Timeout = 600.0,
) -> None:
    """Run an experiment on the clients at the nodes of a link.

    The data are at the nodes; the configuration's own are for simulation, and left
    aside. A node that does not answer in time is left out of the round, where the
    method allows that.

    \b
    Examples:
      fedax deploy run experiment.toml --link fed.example.org:9443 --nodes 3
      fedax deploy run experiment.toml --link fed.example.org:9443 --resume

    Exit codes: as fedax run. With 2, a node or the link could not go on; --resume does.
    """
    from fedax.experiments import build
    from fedax.sites.service import deploy as deployment

    tables, code = read_config(config, settings, allow_code)
    tables = deployment.with_nodes_data(tables, test, code)
    say = lambda line: echo(line, err=True)  # noqa: E731
    with deployment.fleet_at(link, folder, timeout, nodes, say) as fleet:
        experiment = build(tables, fleet, code)
        for metric, clients in experiment.withheld.items():
            why = f"the owner of {clients} does not let it leave (figures.columns, figures.noise)"
            say(f"{metric} is not measured: {why}")
        record = carry_out(experiment, out, resume, f"deploy run --link {shlex.quote(link)}")
    finish(record)


def deploy_flower(
    folder: Annotated[pathlib.Path, typer.Argument(help="The app's folder; has to be new or empty.")],
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    settings: Set = None,
) -> None:
    """Write an experiment as an app for a Flower federation of yours, which flwr run starts.

    Its server is the run, and its clients hand their messages to the nodes that
    fedax deploy node --socket starts.

    \b
    Examples:
      fedax deploy flower app experiment.toml
      flwr run app my-federation
    """
    from fedax.sites.service import flower

    flower.write(folder, read_config(config, settings, False)[0])
    echo(f"{folder}: flwr run {shlex.quote(str(folder))}")


class Group(typer.core.TyperGroup):
    """The group of commands; ``node status`` and ``link renew`` are two of them, with names of two words."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that arguments name, and its own arguments."""
        if (name := " ".join(args[:2])) in ("node status", "link renew"):
            return name, self.get_command(ctx, name), args[2:]
        return super().resolve_command(ctx, args)


group = typer.Typer(
    cls=Group,
    help="Train on real clients: a link, a node at each site, and the run.",
    epilog="Begin with: fedax deploy local experiment.toml --nodes 3",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
COMMANDS: dict[str, Callable[..., None]] = {
    **status.COMMANDS,
    "local": deploy_local,
    "link": deploy_link,
    "link renew": deploy_link_renew,
    "node": deploy_node,
    "policy": deploy_policy,
    "run": deploy_run,
    "flower": deploy_flower,
    **tables.COMMANDS,
}
