"""BibTeX: every method has its paper, and every paper is whole."""

import pathlib
import re
import tomllib
import unicodedata

import pytest
from typer.testing import CliRunner

import fedax
from fedax.citations import SOURCES, entries, keys
from fedax.cli import app

ROOT = pathlib.Path(__file__).parents[1]
FIELD = re.compile(r"^  (\w+) = \{(.*?)\},$", re.M | re.S)


def words(text):
    """Text without braces and accents, BibTeX's and others, for comparison."""
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    text = re.sub(r'\{?\\["\'v]\{?(\w)\}?\}?', r"\1", text)
    return " ".join(re.sub(r"[^a-z0-9 ]", "", re.sub(r"[-\s]+", " ", text.lower())).split())


def test_every_method_has_its_paper_and_every_paper_its_method():
    assert SOURCES.keys() == fedax.available().keys()
    assert {key for result in SOURCES.values() for key in result} == entries().keys()


@pytest.mark.parametrize("key", entries())
def test_an_entry_is_whole(key):
    text = entries()[key]
    kind, opened = re.match(r"@(\w+)\{([\w]+),\n", text).groups()
    fields = dict(FIELD.findall(text))
    assert opened == key and text.endswith("\n}") and text.isascii()
    assert text.count("{") == text.count("}") and len(fields) == text.count(" = ")
    assert {"title", "author", "year", {"inproceedings": "booktitle", "article": "journal"}[kind]} <= fields.keys()
    authors = re.split(r"\s+and\s+", fields["author"])
    assert all(author.count(",") == 1 for author in authors)  # Last, First
    assert key.startswith(words(authors[0].partition(",")[0])) and re.search(r"\d{4}", key)[0] == fields["year"]


@pytest.mark.parametrize("key", entries())
def test_an_entry_agrees_with_the_list_of_references(key):
    fields = dict(FIELD.findall(entries()[key]))
    listed = words((ROOT / "docs" / "references.md").read_text())
    assert words(fields["title"]) in listed
    assert words(fields["author"].partition(",")[0]) in listed


def test_an_alias_and_a_method_cite_the_same_papers_once():
    assert fedax.cite("FedCM") == fedax.cite("fedavg_m") and keys("fedavgm") == ("hsu2019measuring",)
    both = fedax.cite("fednova", "fednova-vr", "fedprox")
    assert re.findall(r"@\w+\{(\w+)", both) == ["wang2020tackling", "li2020federated"]


def test_fedax_itself_is_cited_with_its_version():
    assert fedax.cite() == fedax.cite("fedax") == fedax.cite("Fedax", "fedax")
    assert f"Version {fedax.__version__}" in fedax.cite()
    cff = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", cff, re.M)[1] == fedax.__version__
    title = re.search(r'^title: "(.*)"$', cff, re.M)[1]
    assert words(title) in words(fedax.cite())
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert re.search(r"^license: (.*)$", cff, re.M)[1] == licence


def test_a_method_of_ones_own_has_no_paper_here():
    @fedax.register("own-method")
    class Own(type(fedax.create("fedexp"))):
        pass

    with pytest.raises(fedax.ConfigError, match="method = 'own-method': fedax knows no paper"):
        fedax.cite("own-method")
    with pytest.raises(fedax.ConfigError, match="did you mean 'fednova'"):
        fedax.cite("fednva")


def test_the_command_prints_what_a_file_takes():
    result = CliRunner().invoke(app, ["cite", "scaffold", "fedcm"])
    assert result.exit_code == 0 and result.stdout == fedax.cite("scaffold", "fedcm")
    assert CliRunner().invoke(app, ["cite"]).stdout == fedax.cite()
    wrong = CliRunner().invoke(app, ["cite", "fednva"])
    assert wrong.exit_code == 2 and wrong.stderr.startswith("error: method = 'fednva': did you mean")
