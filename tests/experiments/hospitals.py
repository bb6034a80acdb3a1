"""Forty hospitals' CSV files: ages, wards, dates, missing values, and few who come back."""

import pathlib

import numpy as np
import pandas

WARDS = np.array(["cardiology", "surgery", "oncology", "general"])


def write(
    folder: pathlib.Path, hospitals: int = 40, low: int = 150, high: int = 400, seed: int = 0
) -> pandas.DataFrame:
    """Write a file a hospital, and return all rows; 7 % of the patients are readmitted."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    slope, tables = 0.8 * rng.normal(size=4), {}
    for k in range(hospitals):
        n = int(rng.integers(low, high))
        z = rng.normal(size=(n, 4)) + 0.5 * rng.normal(size=4)  # hospitals differ in whom they treat
        ward, sex = rng.choice(4, n, p=rng.dirichlet(np.full(4, 2.0))), rng.choice(["f", "m"], n)
        day = pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 700, n), unit="D")
        risk = z @ slope + 0.9 * (ward == 2) - 0.6 * (ward == 1) + 0.3 * (sex == "m") + 0.5 * rng.normal(size=n)
        table = pandas.DataFrame(
            {
                "patient": [f"P{k:02d}-{i:05d}" for i in range(n)],
                "age": np.round(62 + 14 * z[:, 0]),
                "pressure": np.round(130 + 18 * z[:, 1], 1),
                "glucose": np.round(np.exp(1.7 + 0.25 * z[:, 2]), 2),
                "visits": np.round(np.abs(2 + 2 * z[:, 3])).astype(int),
                "ward": WARDS[ward],
                "sex": sex,
                "admitted": day.strftime("%Y-%m-%d"),
                "risk": risk + 0.3 * rng.normal(),
            }
        )
        for column, share in (("pressure", 0.12), ("glucose", 0.2), ("ward", 0.05)):
            table.loc[rng.random(n) < share, column] = np.nan
        tables[f"hospital-{k:02d}"] = table
    cut = np.quantile(np.concatenate([table["risk"] for table in tables.values()]), 0.93)
    for name, table in tables.items():
        table["readmitted"] = np.where(table.pop("risk") > cut, "yes", "no")
        table.to_csv(folder / f"{name}.csv", index=False)
    return pandas.concat(tables, names=["hospital"]).reset_index(level=0).reset_index(drop=True)
