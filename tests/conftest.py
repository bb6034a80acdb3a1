"""Settings of all tests: no silent broadcasting between ranks; tests of big data sets only if these are there."""

import atexit
import gc
import importlib.metadata
import os
import pathlib
import shutil
import tempfile

# Compile time is test time, and the tests' programs are small: let XLA optimise less, and give LLVM one module a
# program instead of one a kernel, which takes a third of the time. Before JAX starts; processes of tests inherit it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
    # Newer ones do not have it, and end the process at a flag that they do not know.
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)

# The tests' processes keep all cores busy: the threads of NumPy and SciPy would only wait for work, on a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Where Python may not keep its bytecode, each process that a test starts compiles JAX's sources, for seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Files of tests lie in memory where it has room, for on a disk tests wait for it, and are gone with the run: one with
# --basetemp keeps them. Processes that tests start share programs there, so as not to compile the same ones again.
if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has the folder of its run
    memory = "/dev/shm"
    room = "TMPDIR" not in os.environ and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    # pytest has asked for the folder before
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="fedax-tests-", dir=memory if room else None)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(os.environ["TMPDIR"], "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
    atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)

import jax
import pytest
from jaxtyping import config

# Here writing programs takes longer than compiling the few that another test has too.
jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)  # for the tests of meshes; small runs take one
jax.config.update("jax_traceback_in_locations_limit", 0)  # source locations of operations are not needed


# Tracing and collecting tests make so many objects that the garbage collector took a twentieth of the time.
gc.set_threshold(500_000, 10, 10)
gc.disable()


def pytest_collection_finish() -> None:
    """What is there stays: the garbage collector need not look at it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def data_folder() -> pathlib.Path:
    """The folder of the big data sets; tests that need it skip where FEDAX_DATA does not name one."""
    folder = os.environ.get("FEDAX_DATA")
    if not folder:
        pytest.skip("FEDAX_DATA is not set: the big data sets are not here")
    return pathlib.Path(folder)


@pytest.fixture
def unchecked_types():
    """Outside of tests nothing checks the annotations: what fedax itself says to values of a wrong type."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture
def compilations():
    """``compilations()``: how many programs were compiled since the last look; ``("f")``: of the function f."""
    seen = []

    def listen(event, seconds, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(details["fun_name"])

    def count(name=None):
        number = len(seen) if name is None else seen.count(f"jit({name})")
        seen.clear()
        return number

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)
