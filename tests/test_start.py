"""What is chosen before JAX starts: devices, the compilation cache; and that nothing heavy is imported early."""

import os
import subprocess
import sys

import pytest

import fedax
from fedax import _start

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def python(code, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") and k != "XLA_FLAGS"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, timeout=120, check=True
    )
    return out.stdout.split()


def test_the_command_line_imports_nothing_heavy():
    heavy = {"jax", "numpy", "pydantic", "matplotlib", "starlette", "uvicorn", "httpx"}
    assert not heavy & set(python("import sys, fedax, fedax.cli, fedax.sites; print(*sys.modules)"))
    trackers = {"tensorboardX", "mlflow", "wandb"}
    assert not trackers & set(python("import sys, fedax.tracking; print(*sys.modules)"))


def test_what_runs_experiments_imports_slow_libraries_where_they_are_used():
    slow = {"scipy", "matplotlib", "pandas", "sklearn"}
    used = "import fedax.experiments, fedax; fedax.simulate, fedax.compare"
    assert not slow & set(python(f"import sys; {used}; print(*sys.modules)"))


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
    (folder,) = python(RUN, XDG_CACHE_HOME=str(tmp_path))
    assert folder.startswith(str(tmp_path / "fedax")) and os.listdir(folder)
    (other,) = python(RUN, XDG_CACHE_HOME=str(tmp_path), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert other == str(tmp_path / "own")


TRAINED = """
from fedax._start import keep_compiled
keep_compiled()
import fedax, jax
counts = {"cache_misses": 0, "cache_hits": 0}
def count(event, **_):
    name = event.rpartition("/")[2]
    counts[name] = counts.get(name, 0) + 1
jax.monitoring.register_event_listener(count)
data = fedax.data.quadratics(clients=2, dimension=2)
fedax.simulate(fedax.create("fedavg", lr=0.1), fedax.tasks.quadratic(2), data, rounds=1)
print(counts["cache_misses"], counts["cache_hits"])
"""


def test_the_second_process_of_a_run_compiles_nothing_also_after_one_was_killed_while_it_kept_a_program(tmp_path):
    trained = lambda: list(map(int, python(TRAINED, XDG_CACHE_HOME=str(tmp_path))))  # noqa: E731
    missed, hit = trained()
    assert missed > 1 and hit == 0
    (folder,) = (tmp_path / "fedax").iterdir()
    torn = max(folder.glob("*-cache"), key=lambda each: each.stat().st_size)
    torn.write_bytes(torn.read_bytes()[:100])
    (folder / torn.name.replace("-cache", "-atime")).unlink()
    assert trained() == [1, missed - 1]
    assert trained() == [0, missed]
    damaged = max(folder.glob("*-cache"), key=lambda each: each.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert trained()[1] == missed - 1  # compiled again, with a warning


def test_of_many_kept_programs_those_not_used_for_longest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(_start, "_MOST_PROGRAMS", 2)
    for at, name in enumerate("abc"):
        for kind in ("cache", "atime"):
            (tmp_path / f"{name}-{kind}").write_bytes(b"8")
            os.utime(tmp_path / f"{name}-{kind}", (at, at))
    _start._tidy(tmp_path)
    assert {each.name for each in tmp_path.glob("*-*")} == {"b-cache", "b-atime", "c-cache", "c-atime"}


def test_two_processes_share_what_they_compile_at_once(tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") and k != "XLA_FLAGS"}
    environment = kept | {"XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", TRAINED], env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [(each.communicate(timeout=120)[1], each.returncode) for each in both] == [(b"", 0)] * 2


def test_a_cache_that_cannot_be_made_is_left_out(tmp_path):
    (tmp_path / "file").touch()
    assert python(RUN, XDG_CACHE_HOME=str(tmp_path / "file")) == ["None"]


WITHOUT = """
import importlib, os, pkgutil, signal, sys

import asyncio, multiprocessing, subprocess, jax, pandas, sklearn  # the standard library and others know their system
for name in ("flwr.serverapp", "flwr.clientapp", "uvicorn", "distributed"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass

for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp"):
    sys.modules[name] = None
gone = {os: "fork forkpty register_at_fork sched_getaffinity sched_setaffinity sysconf geteuid getuid "
            "killpg getpgid statvfs mkfifo uname nice getloadavg chown",
        signal: "SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGXFSZ SIGXCPU SIGPIPE SIGALRM alarm pthread_kill"}
for module, names in gone.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

import fedax

skipped = {"fedax.__main__", "fedax.experiments.cluster.__main__"}  # which run
for found in pkgutil.walk_packages(fedax.__path__, "fedax."):
    if found.name not in skipped:
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name.startswith("fedax"):
                raise
from fedax.cli import exits
from fedax.numbers import check_room

exits.listen()
check_room(1, clients=1)
data = fedax.data.quadratics(clients=2, dimension=2)
run = fedax.simulate(fedax.create("fedavg", lr=0.1), fedax.tasks.quadratic(2), data, rounds=1)
print(len(run.history["round"]))
"""


def test_what_other_systems_do_not_have_is_not_needed():
    """Neither to import any module nor to simulate: the names that Windows lacks are gone. It was not tried there."""
    assert python(WITHOUT)[-1] == "2"
