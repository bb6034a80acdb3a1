"""The Flower app of fedax's runs: two modules that import fedax's own code, and nothing else."""

import functools
import hashlib
import io
import warnings
import zipfile
from collections.abc import Mapping

from flwr.cli.build import build_fab_from_files

_LARGEST = 200 * 2**20  # bytes of an app, unpacked

_PROJECT = """\
[project]
name = "fedax-app"
version = "1.0.0"
description = "fedax over Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedax"

[tool.flwr.app.components]
serverapp = "fedax_app.server:app"
clientapp = "fedax_app.client:app"

[tool.flwr.app.config]
job = ""
"""

_SIDE = """\
import fedax.flower.{side}_app

app = fedax.flower.{side}_app.app
"""


def files() -> dict[str, bytes]:
    """The app's files by their paths, as ``flwr run`` takes them from a folder. The setting ``job`` is a text."""
    return {
        "pyproject.toml": _PROJECT.encode(),
        "fedax_app/__init__.py": b"",
        "fedax_app/client.py": _SIDE.format(side="client").encode(),
        "fedax_app/server.py": _SIDE.format(side="server").encode(),
    }


@functools.cache
def build() -> bytes:
    """The app as Flower's bundle (FAB)."""
    return bundle(files())


def bundle(contents: Mapping[str, bytes]) -> bytes:
    """Files by their paths as one of Flower's bundles (FAB)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Flower uses
        return build_fab_from_files(dict(contents))[0]


def app_hash(content: bytes) -> str:
    """A hash that identifies an app: of its files' paths and contents, however they are compressed.

    Args:
        content: a bundle (FAB).

    Raises:
        ValueError: it is no zip file, or one of more than 200 MiB.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            members = bundle.infolist()
            if sum(member.file_size for member in members) > _LARGEST:
                raise ValueError("the app is larger than 200 MiB")
            parts = sorted((m.filename, hashlib.sha256(bundle.read(m)).hexdigest()) for m in members)
    except zipfile.BadZipFile as error:
        raise ValueError(f"the app is no zip file: {error}") from error
    return hashlib.sha256("".join(f"{path}\0{digest}\n" for path, digest in parts).encode()).hexdigest()


@functools.cache
def own_hash() -> str:
    """:func:`app_hash` of the app that this fedax builds."""
    return app_hash(build())
