"""The commands ``fedax deploy``: the link, the nodes of sites, and runs over them."""

import argparse
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typer import Argument, Option

from fedax._start import share_gpu
from fedax.cli import status, tables
from fedax.cli.console import echo, say
from fedax.cli.running import AllowCode, Best, Out, Resume, Set, carry_out, check_best, finish, read_config
from fedax.errors import ConfigError

Config = Annotated[str, Argument(help="Configuration: a TOML file, or a recipe.")]
Timeout = Annotated[float, Option(min=1.0, metavar="SECONDS", help="How long to wait for the answer of a node.")]


def deploy_local(
    config: Config,
    nodes: Annotated[int, Option(min=1, help="How many nodes the clients are dealt to.")] = 3,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    checkpoint_best: Best = None,
    timeout: Timeout = 600.0,
    ray: Annotated[bool, Option("--ray", hidden=True)] = False,
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
    from fedax.experiments import build
    from fedax.sites.service import local

    if ray:
        raise ConfigError("ray", True, "Flower simulates clients on Ray, and is started by its own command: flwr run")
    share_gpu()  # with the nodes
    given, code = read_config(config, settings, allow_code)
    experiment = local.prepared(build(given, allow_code=code), nodes)
    check_best(experiment, checkpoint_best)
    start = lambda ready, folder: local.local_deployment(ready, folder, nodes, timeout, say)  # noqa: E731
    finish(carry_out(experiment, out, resume, "deploy local", start, best=checkpoint_best))


def deploy_link(
    folder: Annotated[Path, Option(help="For certificates and keys.")] = Path("link"),
    host: Annotated[
        list[str] | None,
        Option(help="A name or address by which nodes reach it; may be repeated.", show_default="its own name"),
    ] = None,
    port: Annotated[int, Option(min=1, max=65535, help="The port that nodes reach.")] = 9443,
    bind: Annotated[str | None, Option(help="The address of this machine to listen at.", show_default="all")] = None,
    connections: Annotated[int, Option(min=1, help="How many connections there may be at a time.")] = 512,
    connections_each: Annotated[int, Option(min=1, help="The same, from one address.")] = 128,
    log_level: Annotated[
        str, Option(envvar="FEDAX_LOG_LEVEL", metavar="error|warning|info", help="What is written to the logs.")
    ] = "warning",
    log_size: Annotated[
        float, Option(envvar="FEDAX_LOG_SIZE", min=0.01, metavar="MB", help="At this size a log is begun anew.")
    ] = 10.0,
    log_keep: Annotated[int, Option(envvar="FEDAX_LOG_KEEP", min=1, help="How many older logs are kept.")] = 5,
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

    if log_level not in ("error", "warning", "info"):
        raise ConfigError("log_level", log_level, "give error, warning or info")
    os.environ.update(FEDAX_LOG_LEVEL=log_level, FEDAX_LOG_SIZE=str(log_size), FEDAX_LOG_KEEP=str(log_keep))
    hosts, limits = host or [socket.gethostname(), socket.getfqdn()], {"total": connections, "each": connections_each}
    links.run(folder, hosts, port, bind=bind, limits=limits, say=echo)


def deploy_link_renew(
    folder: Annotated[Path, Option(help="The link's folder.")] = Path("link"),
    ca: Annotated[bool, Option("--ca", help="Make a new authority, which sites trust beside the old one.")] = False,
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
    context: typer.Context,
    file: Annotated[Path | None, Argument(help="All its settings, such as node.toml.")] = None,
    data: Annotated[Path | None, Option(help="Its table, or a folder of its clients' arrays.")] = None,
    key: Annotated[Path | None, Option(help="Its private key; made where it is missing, with KEY.pub.")] = None,
    link: Annotated[str | None, Option(metavar="HOST:PORT", help="The link.")] = None,
    socket: Annotated[Path | None, Option(help="In place of a link: a Unix socket, for Flower's ClientApp.")] = None,
    ca: Annotated[Path | None, Option(help="ca.pem of the link's folder.", show_default="ca.pem")] = None,
    policy: Annotated[Path | None, Option(help="All rules of its owner: fedax deploy policy writes one.")] = None,
) -> None:
    """Run the node of a site, with one client or several, until Ctrl-C.

    Data never leave it. What leaves is in the log of its folder, message by message.
    A table waits for the coordinator's fedax deploy tables. An option counts more
    than the file, whose paths are relative to it; docs/deploy.md has all its keys.

    \b
    Examples:
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7 --policy policy.toml
      fedax deploy node node.toml
      fedax deploy node --socket node7.sock --data wards --key node7
    """
    from fedax.sites.service import deploy as deployment

    typed = {name: str(value) for name, value in context.params.items() if name != "file" and value is not None}
    rules: dict[str, Any] = {}
    for name, value in (context.obj or {}).items():
        old = next(option for option, (place, _) in _MOVED.items() if place == name)
        where = "the policy" if "." in name else "node.toml"
        echo(f"{old}: write {name} = {json.dumps(value)} in {where}; the option goes in the next release", err=True)
        (rules if "." in name else typed)[name] = value
    deployment.node(deployment.NodeSettings.read(file, typed, rules), say=echo)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


# Options of the node that go -> the keys of node.toml, or rules of the policy; how argparse reads them.
_MOVED: dict[str, tuple[str, dict[str, Any]]] = {
    "--clients": ("clients", {"type": _listed}),
    "--drop": ("drop", {"action": "append"}),
    "--decimal": ("decimal", {}),
    "--encoding": ("encoding", {}),
    "--drop-missing-labels": ("drop_missing_labels", {"action": "store_true"}),
    "--review": ("review", {"action": "store_true"}),
    "--test": ("test", {}),
    "--val": ("val", {}),
    "--roster": ("roster", {}),
    "--columns": ("figures.columns", {"type": _listed}),
    "--max-rounds": ("runs.rounds", {"type": int}),
    "--noise": ("figures.noise", {"type": float}),
    "--bound": ("figures.bound", {"type": float}),
    "--epsilon": ("budget.epsilon", {"type": float}),
    "--split": ("runs.split", {"action": argparse.BooleanOptionalAction}),
    "--allow-code": ("runs.code", {"action": "append"}),
    "--state": ("state", {}),
    "--wait": ("wait", {"type": float}),
    "--log-level": ("log_level", {}),
    "--log-size": ("log_size", {"type": float}),
    "--log-keep": ("log_keep", {"type": int}),
}


def _split_off(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of a node by options that go, and all other arguments."""
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS, exit_on_error=False
    )
    for option, (name, how) in _MOVED.items():
        parser.add_argument(option, dest=name, **how)
    try:
        found, others = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise typer.BadParameter(str(error)) from None
    return vars(found), others


def deploy_policy(out: Annotated[Path, Argument(help="The file to write.")] = Path("policy.toml")) -> None:
    """Write a strict policy for a node, with an explanation of each rule, to be edited by the node's owner.

    \b
    Examples:
      fedax deploy policy
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7 --policy policy.toml
    """
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
    config: Config,
    link: tables.Link,
    folder: tables.Folder = Path("link"),
    nodes: tables.Nodes = None,
    test: Annotated[Path | None, Option(help="Held-out examples at the server.")] = None,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    checkpoint_best: Best = None,
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

    given, code = read_config(config, settings, allow_code)
    given = deployment.with_nodes_data(given, test, code)
    with deployment.fleet_at(link, folder, timeout, nodes, say) as fleet:
        experiment = build(given, fleet, code)
        for metric, clients in experiment.withheld.items():
            why = f"the owner of {clients} does not let it leave (figures.columns, figures.noise)"
            say(f"{metric} is not measured: {why}")
        check_best(experiment, checkpoint_best)
        record = carry_out(experiment, out, resume, f"deploy run --link {shlex.quote(link)}", best=checkpoint_best)
    finish(record)


def deploy_flower(
    folder: Annotated[Path, Argument(help="The app's folder; has to be new or empty.")],
    config: Config,
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


class DeployGroup(typer.core.TyperGroup):
    """The group of commands; ``node status`` and ``link renew`` are two of them, with names of two words."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that arguments name, and its own arguments."""
        if (name := " ".join(args[:2])) in ("node status", "link renew"):
            return name, self.get_command(ctx, name), args[2:]
        if args[0] == "node":
            ctx.obj, args[1:] = _split_off(args[1:])
        return super().resolve_command(ctx, args)


group = typer.Typer(
    cls=DeployGroup,
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
