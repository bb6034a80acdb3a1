"""The default suite: what the root conftest.py says of it is there."""

import importlib.util
import itertools
import pathlib

ROOT = pathlib.Path(__file__).parents[1]


def test_what_is_marked_is_there():
    """An entry whose test was renamed would lose its smoke test, or put slow tests into the default suite."""
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    for place in itertools.chain(conftest.SMOKE, *conftest.MARKED.values()):
        file, _, name = place.partition("::")
        assert (ROOT / file).exists(), place
        assert not name or f"def {name.partition('[')[0]}" in (ROOT / file).read_text(), place
    for marker, places in conftest.MARKED.items():
        assert any(each.startswith(places) for each in conftest.SMOKE), marker
