"""The status of a link as metrics, in the text format of Prometheus."""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

FORMAT = "text/plain; version=0.0.4"

Table = Mapping[str, Any]


def prometheus_text(status: Table) -> str:
    """The metrics of a status, from :func:`fedax.sites.service.status.joined`.

    Example:
        >>> there = {"there": True, "problem": None, "certificates": {"ca.pem": 2e9}}
        >>> print(prometheus_text({"time": 1e9, "link": there, "run": None, "nodes": []}), end="")
        # HELP fedax_link_up Whether the link answers.
        # TYPE fedax_link_up gauge
        fedax_link_up 1
        # HELP fedax_certificate_end_seconds When a certificate ends, as Unix time.
        # TYPE fedax_certificate_end_seconds gauge
        fedax_certificate_end_seconds{file="ca.pem"} 2000000000
    """
    lines: list[str] = []
    last = ""
    for name, kind, what, labels, value in _samples(status):
        if name != last:
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
            last = name
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{f'{{{inside}}}' if inside else ''} {int(value) if value == int(value) else repr(value)}")
    return "\n".join(lines) + "\n"


def _samples(status: Table) -> Iterator[tuple[str, str, str, dict[str, Any], float]]:
    """Name, type, help text, labels and value of each sample; samples of one name are consecutive."""
    yield "fedax_link_up", "gauge", "Whether the link answers.", {}, status["link"]["there"]
    for file, end in status["link"]["certificates"].items():
        yield (
            "fedax_certificate_end_seconds", "gauge", "When a certificate ends, as Unix time.", {"file": file}, end
        )  # fmt: skip
    names = [{"node": each["name"] or each["number"]} for each in status["nodes"]]
    nodes = [*zip(names, status["nodes"], strict=True)]
    for name, node in nodes:
        yield "fedax_node_up", "gauge", "Whether a node is at the link.", name, node["status"] == "online"
    for name, node in nodes:
        if node["since"]:
            since = datetime.datetime.fromisoformat(node["since"]).timestamp()
            yield "fedax_node_since_seconds", "gauge", "When a node came or went, as Unix time.", name, since
    for name, node in nodes:
        if node["answered"] is not None:
            yield (
                "fedax_node_answered_seconds", "gauge", "When a node last answered, as Unix time.",
                name, node["answered"],
            )  # fmt: skip
    for name, node in nodes:
        waited = node["waited_for"]
        seconds = status["time"] - waited["since"] if waited else 0.0
        yield "fedax_node_waited_for_seconds", "gauge", "For how long the run waits for a node.", name, seconds
    if (run := status["run"]) is None:
        return
    yield "fedax_run_up", "gauge", "Whether a run is under way.", {"state": run["state"]}, run["state"] == "running"
    runs = [({"method": each["method"], "seed": each["seed"]}, each) for each in run["runs"]]
    for name, each in runs:
        yield "fedax_run_round", "gauge", "The rounds that are over.", name, each["round"]
    for name, each in runs:
        yield "fedax_run_rounds", "gauge", "The rounds that there will be.", name, each["of"]
    for name, each in runs:
        if each["train_loss"] is not None:
            yield "fedax_run_train_loss", "gauge", "The training loss, last.", name, each["train_loss"]
    for way in ("sent", "received"):
        yield f"fedax_run_{way}_bytes_total", "counter", f"Bytes of messages that the run has {way}.", {}, run[way]


def _escaped(text: object) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
