"""What is chosen before JAX starts: devices, the compilation cache; and that nothing heavy is imported early."""

import os
import subprocess
import sys

import pytest

import fedax

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def python(code, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") and k != "XLA_FLAGS"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, timeout=120, check=True
    )
    return out.stdout.split()


def test_the_command_line_imports_nothing_heavy():
    heavy = {"jax", "numpy", "pydantic", "matplotlib"}
    assert not heavy & set(python("import sys, fedax, fedax.cli; print(*sys.modules)"))


def test_what_runs_experiments_imports_slow_libraries_where_they_are_used():
    slow = {"scipy", "matplotlib", "pandas", "sklearn"}
    assert not slow & set(python("import sys, fedax.experiments; print(*sys.modules)"))


def test_every_name_is_there():
    assert {"simulate", "sweep", "create", "data", "theory"} <= set(fedax.__all__) <= set(dir(fedax))
    for name in fedax.__all__:
        assert getattr(fedax, name) is not None
    with pytest.raises(AttributeError, match="simulat"):
        fedax.simulat  # noqa: B018


@pytest.mark.parametrize(
    ("first", "environment", "devices"),
    [
        ("import fedax, jax", {}, CORES),
        ("import jax, fedax", {}, CORES),
        ("import fedax, jax", {"JAX_NUM_CPU_DEVICES": "3"}, 3),
        ("import jax, fedax", {"XLA_FLAGS": "--xla_force_host_platform_device_count=5"}, 5),
        ("import jax; jax.config.update('jax_num_cpu_devices', 2); import fedax", {}, 2),
        ("import jax; jax.devices(); import fedax", {}, 1),
    ],
)
def test_every_core_is_a_device_unless_somebody_chose(first, environment, devices):
    assert python(f"{first}; print(jax.device_count())", **environment) == [str(devices)]


RUN = """
from fedax._start import keep_compiled
keep_compiled()
import jax
print(jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, y: (y @ y).sort() + i, x))(jax.numpy.ones((5, 5)))
"""


def test_compiled_programs_are_kept_where_the_user_keeps_such_things(tmp_path):
    fast = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    (folder,) = python(RUN, XDG_CACHE_HOME=str(tmp_path), **fast)
    assert folder.startswith(str(tmp_path / "fedax")) and os.listdir(folder)
    (other,) = python(RUN, XDG_CACHE_HOME=str(tmp_path), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"), **fast)
    assert other == str(tmp_path / "own")


def test_a_cache_that_cannot_be_made_is_left_out(tmp_path):
    (tmp_path / "file").touch()
    assert python(RUN, XDG_CACHE_HOME=str(tmp_path / "file")) == ["None"]
