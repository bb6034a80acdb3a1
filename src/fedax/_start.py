"""Settings that have to be made before JAX starts; this module does not import JAX."""

import contextlib
import gc
import hashlib
import os
import pathlib
import platform
import sys

_MOST_PROGRAMS = 1000  # that are kept: JAX looks at each whenever it adds one
_MOST_BYTES = 2**30


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_as_devices() -> None:
    """Make a device of every core that this process may use, unless the number of devices is set already.

    XLA runs the operations of one CPU device one after another, and only large ones on several cores; the engine
    spreads cohorts over devices instead.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if "jax" not in sys.modules:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(usable_cores())
        return
    import jax

    if jax.config.values["jax_num_cpu_devices"] < 1:
        with contextlib.suppress(RuntimeError):  # JAX has started already, with the devices that it has
            jax.config.update("jax_num_cpu_devices", usable_cores())


def collect_rarely() -> None:
    """Run Python's garbage collector less often: importing and tracing make so many objects that it takes long.

    Of the processor time of a short ``fedax compare`` it took a sixth, and now a twentieth. For processes of fedax's
    own; what imports fedax keeps its settings.
    """
    gc.set_threshold(50_000, 10, 10)


def keep_compiled() -> None:
    """Keep compiled programs for later processes: in JAX_COMPILATION_CACHE_DIR, or else in the user's cache.

    The folder's name has the processor's features in it: machines that share a home do not run each other's programs.
    JAX's keys of the programs have its version in them.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or "jax" in sys.modules:
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        processor = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
        features = next(line for line in processor.splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    machine = hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]
    folder = pathlib.Path(home) / "fedax" / f"compiled-{machine}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    for name, value in (
        ("JAX_COMPILATION_CACHE_DIR", str(folder)),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
        ("JAX_COMPILATION_CACHE_MAX_SIZE", str(_MOST_BYTES)),
    ):
        os.environ.setdefault(name, value)
    _tidy(folder)


def _tidy(folder: pathlib.Path) -> None:
    """Remove kept programs that are not whole, which JAX never does, and those not used for longest, if there are many.

    JAX writes when a program was used last after the program. Where that is missing, a process was killed while it
    wrote, and JAX would not add any program again.
    """
    import filelock  # JAX's own lock of the folder

    try:
        with filelock.FileLock(folder / ".lockfile", timeout=0):
            used = {each.name.removesuffix("-atime"): each.stat().st_mtime for each in folder.glob("*-atime")}
            programs = [each.name.removesuffix("-cache") for each in folder.glob("*-cache")]
            whole = sorted((name for name in programs if name in used), key=lambda name: -used[name])
            for name in {*programs, *used} - {*whole[:_MOST_PROGRAMS]}:
                for kind in ("cache", "atime"):
                    (folder / f"{name}-{kind}").unlink(missing_ok=True)
    except (OSError, filelock.Timeout):  # another process is at it
        return


def reach_directly(*hosts: str) -> None:
    """Let no proxy of the environment stand before this machine, or before these addresses of its own.

    It is for this process and those that it starts, JAX's among them.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return
    known = os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).replace(" ", "").split(",")
    if "*" not in known:  # in small letters, which count for all libraries
        os.environ["no_proxy"] = ",".join(
            dict.fromkeys(filter(None, [*known, "127.0.0.1", "localhost", "::1", *hosts]))
        )


def share_gpu() -> None:
    """Let this process and its children allocate a GPU's memory as needed, if JAX has not started.

    By default JAX takes most of the memory at once, which leaves the second process too little.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
