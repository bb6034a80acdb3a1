"""Clients' own models in a run folder, and predictions with them."""

import numpy as np
import pytest

import fedax
from fedax.errors import ConfigError
from fedax.experiments import build, execute
from fedax.experiments.predictions import model_of_client
from tests.experiments import run_cli

CONFIG = {
    "data": {"name": "digits", "clients": 3},
    "run": {"rounds": 2, "batch_size": 32, "evaluate_every": 2},
    "methods": [{"name": "ditto", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    execute(build(CONFIG), place, drawn=False)
    return place


def test_a_client_predicts_with_its_own_model(folder, tmp_path):
    experiment = build(CONFIG)
    options = experiment.options | {"work": experiment.work, "participation": experiment.participation}
    run = fedax.simulate(experiment.methods["ditto"], experiment.task, experiment.data, test=experiment.test, **options)
    x = np.asarray(experiment.test["x"][:20])
    np.save(tmp_path / "new.npy", x)
    shared = fedax.load_model(folder / "models" / "ditto-seed0.safetensors")
    for client in range(3):
        out = tmp_path / f"{client}.csv"
        result = run_cli("predict", str(folder), str(tmp_path / "new.npy"), "--client", str(client), "--out", str(out))
        assert result.exit_code == 0, result.output
        found = np.genfromtxt(out, delimiter=",", skip_header=1)[:, 1:]
        logits = np.asarray(experiment.task.outputs(run.personal(client), {"x": x}), float)
        want = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(found, want, 1e-5, 1e-6)
        assert np.abs(found - shared.predict_proba(x)).max() > 1e-3


def test_what_cannot_be_found_is_said(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"client = .7.*0, 1, 2"):
        model_of_client(folder, "7")
    with pytest.raises(ConfigError, match=r"model = .*run folder"):
        model_of_client(folder / "models" / "ditto-seed0.safetensors", "0")
    config = CONFIG | {"methods": [{"name": "fedavg", "lr": 0.1}]}
    (tmp_path / "plain").mkdir()
    execute(build(config), tmp_path / "plain", drawn=False)
    with pytest.raises(ConfigError, match=r"client = '0'.*100 clients"):
        model_of_client(tmp_path / "plain", "0")


def test_of_several_methods_each_is_a_file(tmp_path):
    config = CONFIG | {"methods": [{"name": "ditto", "lr": 0.1}, {"name": "mr-mtl", "lr": 0.1}]}
    execute(build(config), tmp_path, drawn=False)
    files = sorted((tmp_path / "models").glob("*/1.safetensors"))
    with pytest.raises(ConfigError, match="several") as error:
        model_of_client(tmp_path, "1")
    assert len(files) == 2 and all(str(file) in str(error.value) for file in files)


def test_of_many_clients_a_folder_has_no_own_models(tmp_path, monkeypatch):
    monkeypatch.setattr("fedax.engine.history.MOST_SAVED", 2)
    execute(build(CONFIG), tmp_path, drawn=False)
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "ditto-seed0.safetensors",
        "fedavg-seed0.safetensors",
    ]
