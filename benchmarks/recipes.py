"""The curves of the papers' experiments, for the figures of the documentation. See README.md.

``python benchmarks/recipes.py fednova-figure-2-fixed lasso`` runs these recipes as they are. The curves of
the column that decides, thinned to at most 50 points, go to docs/recipes.json, beside those that are there.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np

from fedax.experiments import Record, build, execute, read_toml, recipes
from fedax.experiments.charts import series
from fedax.experiments.summary import problems

FILE = pathlib.Path(__file__).parents[1] / "docs" / "recipes.json"
POINTS = 50


def curves(record: Record) -> dict[str, object]:
    """The column that decides; of each method its label, rounds [n], values [seeds, n], and whether it ended badly."""
    (problem,) = problems([record])
    assert problem.judge, record.folder
    methods = []
    for s in series(problem.methods, problem.judge):
        kept = np.unique(np.linspace(0, len(s.x) - 1, POINTS).round().astype(int)) if len(s.x) else []
        values = [[float(f"{value:.4g}") for value in seed[kept]] for seed in s.values]
        methods.append({"label": s.label, "rounds": s.x[kept].astype(int).tolist(), "values": values, "gone": s.gone})
    return {"column": problem.judge, "methods": methods}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=list(recipes()), metavar="NAME")
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder) / name
            run.mkdir()
            record = execute(build(read_toml(name)), run, drawn=False)
            assert record is not None, name
            known[name] = curves(record)
        text = json.dumps(dict(sorted(known.items())), ensure_ascii=False, separators=(",", ":"))
        FILE.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
