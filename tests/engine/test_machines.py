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


def on(environment, folder, rounds):
    known = {name: value for name, value in os.environ.items() if name not in MACHINES["no AVX"]}
    known["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    command = [sys.executable, "-W", "ignore", "-m", "tests.machines", str(folder), str(rounds)]
    done = subprocess.run(command, cwd=ROOT, env=known | environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        pytest.skip("only Linux on x86-64 can take itself for another processor")
    folder = tmp_path_factory.mktemp("here")
    return on({}, folder, 4)


@pytest.mark.parametrize("name", MACHINES)
def test_drawn_data_are_the_same_bits_and_a_run_goes_on(here, name, tmp_path):
    begun = on(MACHINES[name], tmp_path, 2)
    assert begun["same"] == here["same"]
    if begun["other"] == here["other"]:
        pytest.skip("this processor is one of the older ones: there is nothing to compare")
    again = on({}, tmp_path, 4)  # goes on here
    for column, values in here["history"].items():
        np.testing.assert_allclose(again["history"][column], values, rtol=1e-4, err_msg=column)
    assert again["history"]["train_loss"][:3] == begun["history"]["train_loss"]  # it went on, and did not begin anew
