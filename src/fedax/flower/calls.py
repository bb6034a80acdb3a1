"""Calls to Flower's HTTP APIs: authentication by the link's secret, retries and error messages."""

import os
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.protobuf.client import (
    ProtobufCall,
    ProtobufClient,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
)

from fedax.errors import ConfigError, NodeError
from fedax.files import check_private
from fedax.flower.certificates import Trust, split

Client = TypeVar("Client", bound=ProtobufClient)

RESUME = "start the run again with --resume"


class Secret:
    """Adds the link's secret to requests."""

    def __init__(self, secret: str):
        self.header = f"Bearer {secret}"

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Flower's hook around one request."""
        context.request.headers["authorization"] = self.header
        return call_next(context)


class Retries:
    """Retries a call for a limited time, then raises a NodeError. It replaces Flower's retries, which end the process.

    Args:
        address: of the link, for errors.
        seconds: how long a link that cannot be reached is tried.
    """

    def __init__(self, address: str, seconds: float):
        self.address, self.seconds = address, seconds

    def invoke(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The call's result.

        Raises:
            NodeError: the link cannot be reached, or refuses.
        """
        until, pause = time.monotonic() + self.seconds, 0.1
        while True:
            try:
                return call(*args, **kwargs)
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
                    raise  # HttpGrid reports it
                if error.response.status_code not in (502, 503, 504):
                    raise NodeError(refusal(self.address, error)) from error
                reason = str(error)
            if time.monotonic() >= until:
                raise NodeError(
                    f"the link at {self.address} cannot be reached ({reason}{by_proxy(self.address)}); {RESUME}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


def secret_of(folder: Path) -> str:
    """The secret of a link, from its folder.

    Raises:
        ConfigError: the folder is not that of a link, or others than its owner can read the secret.
    """
    for name in ("ca.pem", "secret"):
        if not (folder / name).is_file():
            raise ConfigError("folder", str(folder), f"it has no {name}; give the folder of `fedax deploy link`")
    check_private(folder / "secret", "secret")
    return (folder / "secret").read_text().strip()


def by_proxy(address: str) -> str:
    """That requests to a link take a proxy, with the variable that says so and the way out; empty: they do not."""
    host = split(address)[0]
    proxies = urllib.request.getproxies_environment()
    scheme = next((scheme for scheme in ("https", "all") if proxies.get(scheme)), None)
    if scheme is None or urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
        return ""
    names = [name for name in os.environ if name.lower() == f"{scheme}_proxy"]
    return f", by the proxy that the variable {min(names, key=str.isupper)} names; no_proxy={host} leaves it out"


def refusal(address: str, error: httpx.HTTPStatusError) -> str:
    """The error message for a link's refusal, with the way out."""
    status = error.response.status_code
    if status == httpx.codes.FORBIDDEN:
        return f"the link at {address} refuses the secret; take the file `secret` from the link's folder"
    if status == httpx.codes.UNAUTHORIZED:
        return f"the link at {address} has ended this run: it was restarted, or someone stopped the run; {RESUME}"
    error_body = FlowerError.from_json(error.response.text)
    text = error.response.text[:300] if error_body is None else error_body.message
    return f"the link at {address} refused a request (HTTP {status}): {text}"


def over_tls(
    kind: type[Client],
    address: str,
    ca: Path,
    interceptors: Sequence[ProtobufClientInterceptor],
    retries: Retries | None = None,
) -> Client:
    """One of Flower's clients of a link; each new connection trusts the certificates that ``ca`` holds at that time."""
    trust: Any = Trust(ca)
    return kind(f"https://{address}", interceptors=interceptors, verify=trust, retry_invoker=retries)  # type: ignore[arg-type]


def control(address: str, ca: Path | None, secret: str, seconds: float = 15.0) -> ControlHttpClient:
    """A client of the link's Control API; without ``ca``, of a link on this machine that has no TLS."""
    retries = Retries(address, seconds)
    if ca is None:
        return ControlHttpClient(f"http://{address}", retry_invoker=retries)  # type: ignore[arg-type]
    return over_tls(ControlHttpClient, address, ca, [Secret(secret)], retries)


def poll_often() -> None:
    """Make Flower poll often for parts of a message that have not arrived; its own first pause is a second."""
    defaults = pull_objects.__kwdefaults__
    assert defaults is not None
    defaults.update(initial_backoff=0.02, backoff_cap=0.5, max_tries_per_object=None)
