"""The secret of private runs, from which their noise and their cohorts are drawn; whoever has it can undo both.

A run without a folder has a secret of its own, in the memory of its process alone. A folder of checkpoints, or of runs,
has a file ``noise.key``, which its owner alone can read, of 128 random bits for the noise and 128 for the cohorts. The
secret of each run that is kept there is derived from the former, from the run's settings, its seed and its place among
the runs. So a run that was killed goes on bit-identical, two runs of one folder have no noise in common, and what is
published of one tells nothing of the file. Cohorts are drawn from the latter and the seed: runs with one seed have the
same clients.
"""

import dataclasses
import functools
import hashlib
import pathlib
import secrets
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedax.contract.types import Array
from fedax.engine import processes
from fedax.engine.fingerprint import settings_of
from fedax.errors import CheckpointError
from fedax.files import open_to_others, write_private
from fedax.wire.privacy import DP, Private

if TYPE_CHECKING:
    from fedax.engine.loop import Hyper

FILE = "noise.key"
_BYTES = 16  # of a secret
_WORDS = 4  # of 32 bits


def drawn(dp: DP) -> tuple[np.ndarray, np.ndarray]:
    """The secrets of the noise and of the cohorts of a run without a folder; both depend on the run's seed besides.

    All runs of this process have the same secret of cohorts, so that runs with one seed have the same clients.
    """
    if dp.noise_seed is not None:
        return _words(dp.noise_seed.to_bytes(_BYTES, "little")), np.zeros(0, np.uint32)
    own = _words(secrets.token_bytes(_BYTES)), _words(_of_this_process())
    noise, cohorts = processes.from_first(own)
    return noise, cohorts


def blank(dp: DP) -> tuple[np.ndarray, np.ndarray]:
    """Zeros in the form of :func:`drawn`."""
    return np.zeros(_WORDS, np.uint32), np.zeros(0 if dp.noise_seed is not None else _WORDS, np.uint32)


def is_drawn(dp: DP | None) -> bool:
    """Whether noise and cohorts of a run with these settings are drawn from a secret."""
    return dp is not None and dp.noise_seed is None


def of(hyper: "Hyper") -> np.ndarray:
    """The secret of the noise of a private run, [4] uint32; empty, [0], for another run."""
    return np.asarray(hyper.method.secret) if isinstance(hyper.method, Private) else np.zeros(0, np.uint32)


def with_noise(hyper: "Hyper", noise: Array) -> "Hyper":
    """A private run with another secret of its noise; any other run as it is."""
    method = hyper.method
    return hyper._replace(method=dataclasses.replace(method, secret=noise)) if isinstance(method, Private) else hyper


def anew(hyper: "Hyper") -> "Hyper":
    """The same run with a new secret, so with other noise."""
    dp = hyper.wire.privacy
    return hyper if dp is None else _with_secret(hyper, *drawn(dp))


def of_folder(hyper: "Hyper", seed: int, folder: pathlib.Path, place: int) -> tuple["Hyper", dict[str, str]]:
    """A private run with the secret that a folder keeps for it, and what says so among its settings.

    Args:
        hyper, seed: of the run.
        folder: the folder of its checkpoints, or of several runs; ``noise.key`` is created where it is missing.
        place: the number of the run among those with its seed.

    Raises:
        CheckpointError: as :func:`root`.
    """
    noise, cohorts = root(folder)
    derived = _derived(noise, f"{place} {seed} {sorted(settings_of(hyper).items())}")
    entry = {"privacy.secret": f"that of {FILE} {_derived(noise + cohorts, 'name').hex()}"}
    return _with_secret(hyper, _words(derived), _words(cohorts)), entry


def root(folder: pathlib.Path, made: tuple[bytes, bytes] | None = None) -> tuple[bytes, bytes]:
    """The secrets of noise and of cohorts in a folder's file; the first of several processes reads or creates it.

    Args:
        folder: the folder.
        made: the content of a file that is created; default: random bits.

    Raises:
        CheckpointError: it is damaged, or others than its owner can read it.
    """
    words = np.zeros(2 * _WORDS, np.uint32)
    if jax.process_index() == 0:
        words = _words(_read_or_create(folder / FILE, made))
    content = np.asarray(processes.from_first(words)).tobytes()
    return content[:_BYTES], content[_BYTES:]


def derive(folder: pathlib.Path, place: pathlib.Path, name: str) -> None:
    """Give a folder inside of another one its own file; its secret of noise follows from the outer one and a name."""
    noise, cohorts = root(folder)
    place.mkdir(parents=True, exist_ok=True)
    root(place, (_derived(noise, name), cohorts))


def _with_secret(hyper: "Hyper", noise: np.ndarray, cohorts: np.ndarray) -> "Hyper":
    assert isinstance(hyper.method, Private)
    return hyper._replace(method=dataclasses.replace(hyper.method, secret=noise, cohorts=cohorts))


@functools.cache
def _of_this_process() -> bytes:
    return secrets.token_bytes(_BYTES)


def _derived(key: bytes, name: str) -> bytes:
    return hashlib.sha256(key + name.encode()).digest()[:_BYTES]


def _words(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint32).copy()


def _read_or_create(path: pathlib.Path, made: tuple[bytes, bytes] | None) -> bytes:
    if not path.exists() and not path.is_symlink():
        lines = made or (secrets.token_bytes(_BYTES), secrets.token_bytes(_BYTES))
        write_private(path, "".join(f"{each.hex()}\n" for each in lines).encode())
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path}: not a regular file; restore it, or give another folder")
    if mode := open_to_others(path):
        raise CheckpointError(f"{path}: others can read it (mode {mode}), and undo the noise: chmod 600 {path}")
    try:
        content = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        content = b""
    if len(content) != 2 * _BYTES:
        raise CheckpointError(f"{path}: damaged, it should be two lines of {2 * _BYTES} digits; restore it")
    return content
