"""Other processors: what is drawn has the same bits there, and a run that was begun on one goes on on the other."""

import json
import os
import pathlib
import platform
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
ISA = "--xla_cpu_max_isa="
MACHINES = {  # environments in which NumPy, OpenBLAS, the C library and XLA act as on older processors
    "AVX2": {
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
        "XLA_FLAGS": f"{ISA}AVX2",
    },
    "no AVX": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
        "XLA_FLAGS": f"{ISA}SSE4_2",
    },
}


def on(environment, rounds, *folders):
    known = {name: value for name, value in os.environ.items() if name not in MACHINES["no AVX"]}
    known["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    command = [sys.executable, "-W", "ignore", "-m", "tests.machines", str(rounds), *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, env=known | environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """By machine: the folder of a run of two rounds, and what its process said."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        pytest.skip("only Linux on x86-64 can take itself for another processor")
    folders = {name: tmp_path_factory.mktemp("there") for name in MACHINES}
    return {name: (folder, on(MACHINES[name], 2, folder)) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def here(begun, tmp_path_factory):
    """What a process says that takes itself for what it is: it runs all rounds, then goes on with the others' runs."""
    return on({}, 4, tmp_path_factory.mktemp("here"), *(folder for folder, _ in begun.values()))


@pytest.mark.parametrize("name", MACHINES)
def test_drawn_data_are_the_same_bits_and_a_run_goes_on(here, begun, name):
    _, there = begun[name]
    assert there["same"] == here["same"]
    if there["other"] == here["other"]:
        pytest.skip("this processor is one of the older ones: there is nothing to compare")
    whole, *rest = here["histories"]
    again, (first,) = rest[list(MACHINES).index(name)], there["histories"]
    for column, values in whole.items():
        np.testing.assert_allclose(again[column], values, rtol=1e-4, err_msg=column)
    assert again["train_loss"][:3] == first["train_loss"]  # it went on, and did not begin anew
