"""Three hospitals with their own tables, under the strict policy, with secure and private sums: model, AUC, cost.

The breast cancer data of scikit-learn, a third of the rows at each of three nodes. The commands are those that the
sites and the coordinator type: link, nodes with ``--policy`` and ``--roster``, tables, run. Each run over the nodes is
compared with the simulation of the same configuration, with the same secret of the noise.

    python benchmarks/hospitals.py [--rounds 20] [--noise 0 5 10 20]
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import safetensors.numpy
import tomli_w
from sklearn.datasets import load_breast_cancer

from fedax.experiments import read
from fedax.sites.service.processes import free_port

NAMES = ("north", "south", "west")
# A strict policy lets no figure of fewer than 50 held-out rows leave; three tenths of a hospital are 57.
SETTINGS = ["run.batch_size=16", "run.secure={}", "run.evaluate_every=5", "data.split={test=0.3}"]


class Typed:
    """Commands in a folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.kept = folder, []

    def run(self, *words: object) -> None:
        """One that ends."""
        done = subprocess.run(self._command(words), cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def start(self, name: str, ready: str, *words: object) -> None:
        """One that runs until the end; returns when it has said that it is ready."""
        with (self.folder / f"{name}.txt").open("wb") as output:
            self.kept.append(subprocess.Popen(self._command(words), cwd=self.folder, stdout=output, stderr=output))
        end = time.monotonic() + 120
        while ready not in (printed := (self.folder / f"{name}.txt").read_text()):
            assert time.monotonic() < end and self.kept[-1].poll() is None, printed
            time.sleep(0.1)

    def end(self) -> None:
        """End those that run."""
        for each in self.kept:
            each.terminate()
        for each in self.kept:
            each.wait(60)

    @staticmethod
    def _command(words: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "fedax", *map(str, words)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 5.0, 10.0, 20.0])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, typed = pathlib.Path(place), Typed(pathlib.Path(place))
        address = f"127.0.0.1:{free_port()}"
        _tables(folder)
        try:
            _open(typed, folder, address)
            typed.run("deploy", "tables", "--link", address, "--label", "benign", "--nodes", 3)
            print("| noise | ε | AUC, nodes | AUC, simulation | parameters apart by | seconds a round | kB up |")
            print("|---|---|---|---|---|---|---|")
            for noise in given.noise:
                print(_row(typed, folder, address, noise, given.rounds), flush=True)
        finally:
            typed.end()


def _tables(folder: pathlib.Path) -> None:
    result = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    result["benign"] = np.where(result.pop("target") == 1, "yes", "no")
    (folder / "tables").mkdir()
    for name, rows in zip(NAMES, np.array_split(np.arange(len(result)), 3), strict=True):
        result.iloc[rows].to_csv(folder / "tables" / f"{name}.csv", index=False)


def _open(typed: Typed, folder: pathlib.Path, address: str) -> None:
    """The link and the nodes."""
    typed.run("deploy", "policy", "policy.toml")
    port = address.rpartition(":")[2]
    typed.start("link", "is ready", "deploy", "link", "--host", "127.0.0.1", "--port", port)
    from fedax.sites.service.certificates import make_node_key

    (folder / "nodes").mkdir()
    for name in NAMES:
        make_node_key(folder / name)
        for there in ("nodes", "link/nodes"):
            shutil.copy(folder / f"{name}.pub", folder / there)
    for name in NAMES:
        settings = {"link": address, "ca": "link/ca.pem", "data": f"tables/{name}.csv", "key": name}
        settings |= {"policy": "policy.toml", "roster": "nodes"}
        (folder / f"{name}.toml").write_text(tomli_w.dumps(settings))
        typed.start(name, "this is node", "deploy", "node", f"{name}.toml")


def _row(typed: Typed, folder: pathlib.Path, address: str, noise: float, rounds: int) -> str:
    settings = [*SETTINGS, f"run.rounds={rounds}", "run.seeds=1", "data.weights=uniform", "participation={kind='full'}"]
    settings += [f"privacy={{clip=1.0, noise={noise}, delta=1e-3}}"] if noise else ["run.secure.clip=1.0"]
    words = [word for setting in settings for word in ("--set", setting)]
    out, plain = folder / f"nodes-{noise}", folder / f"simulated-{noise}"
    began = time.monotonic()
    config = "link/tables/experiment.toml"
    typed.run("deploy", "run", config, "--link", address, "--nodes", 3, "--out", out, *words)
    seconds = (time.monotonic() - began) / rounds
    if noise:  # the same noise
        plain.mkdir()
        shutil.copy(out / "noise.key", plain / "noise.key")
    csv = ["data.name=csv", f"data.files={folder}/tables/*.csv", "data.label=benign"]
    typed.run("run", out / "config.toml", "--out", plain, *(word for each in csv for word in ("--set", each)))
    models = [safetensors.numpy.load_file(next((each / "models").glob("*.safetensors"))) for each in (out, plain)]
    apart = max(float(abs(models[0][name] - models[1][name]).max()) for name in models[0])
    runs = [read(each).runs[0].history for each in (out, plain)]
    auc = [f"{each['test_auc'][-1]:.4f}" for each in runs]
    spent = f"{runs[0]['epsilon'][-1]:.2f}" if noise else "∞"
    up = runs[0]["wire_up"][-1] / 1e3
    return f"| {noise:g} | {spent} | {auc[0]} | {auc[1]} | {apart:.1e} | {seconds:.2f} | {up:.0f} |"


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
