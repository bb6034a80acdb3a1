"""The documentation site: built from a copy of the repository as git has it, and every link followed."""

import html
import json
import re

import pytest

pytest.importorskip("zensical", reason="the site needs: pip install -e '.[docs]'")

import fedax
from docs.website import build, experiments, formulas, links, notebooks, pages, reference


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder of versions with the built site, and its broken links. The tutorials are executed here."""
    out = tmp_path_factory.mktemp("site")
    for version in ("0.0.9", "0.0.10"):
        (out / version).mkdir()
        (out / version / "index.html").write_text("")
    return out, build.build(out, "0.1.0")


def test_every_link_anchor_and_picture_leads_somewhere_and_every_page_is_reached_and_leads_on(built):
    assert built[1] == []


def test_every_public_name_is_in_the_reference(built):
    result = links.Page("")
    for path in (built[0] / "0.1.0" / "api").glob("*.html"):
        result.ids |= links.Page(path.read_text(encoding="utf-8")).ids
    modules = [(f"fedax.{name}", getattr(fedax, name)) for name in reference.MODULES if hasattr(fedax, name)]
    for place, module in [("fedax", fedax), *modules]:
        names = {name for name in module.__all__ if f"fedax.{name}" not in result.ids}
        names = {name for name in names if not isinstance(getattr(module, name), type(fedax))}
        assert {name for name in names if f"{place}.{name}" not in result.ids} == set()


def test_search_finds_pages_and_names(built):
    items = json.loads((built[0] / "0.1.0" / "search.json").read_text(encoding="utf-8"))["items"]
    titles = {item["title"]: item["location"] for item in items}
    assert titles["fedax.data.dirichlet"] == "api/data.html#fedax.data.dirichlet"
    assert titles["SCAFFOLD"] == "methods/scaffold.html"
    assert not any("\\(" in item["text"] for item in items)


def test_versions_are_listed_and_the_newest_is_first(built):
    listed = json.loads((built[0] / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in listed] == ["0.1.0", "0.0.10", "0.0.9"]
    assert listed[0]["aliases"] == ["latest"]
    assert "url=0.1.0/index.html" in (built[0] / "index.html").read_text(encoding="utf-8")


def test_formulas_tutorials_and_roles_are_drawn(built):
    site = built[0] / "0.1.0"
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert "<math" in texts["methods/fednova.html"]
    assert "reference-fednova.svg" in texts["methods/fednova.html"]
    assert all(
        " output" in texts[f"tutorials/{name}.html"] for name in ("compare", "method", "tune", "figure", "deploy")
    )
    assert "compare-1.png" in texts["tutorials/compare.html"]
    for name, text in texts.items():
        prose = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r":(func|meth|class|attr|mod):|\\\(|\$\$", prose), name


@pytest.mark.parametrize("source", sorted(source for source in pages.sources() if source.endswith(".md")))
def test_pages_have_the_same_parts_as_on_github(source, built):
    """Lists, tables, code and headings: Python-Markdown, which the site has, reads some of them otherwise."""
    from markdown_it import MarkdownIt

    kinds = {"li": "list_item_open", "table": "table_open", "pre": "fence", "h2": "heading_open"}
    text = (pages.ROOT / source).read_text(encoding="utf-8")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    wanted = {tag: sum(token.type == kind for token in tokens) for tag, kind in kinds.items()}
    wanted["h2"] = sum(token.type == "heading_open" and token.tag == "h2" for token in tokens)
    page = (built[0] / "0.1.0" / pages.sources()[source]).with_suffix(".html").read_text(encoding="utf-8")
    article = page[page.index("<article") : page.index("</article>")]
    results = {tag: len(re.findall(rf"<{tag}[ >]", article)) for tag in kinds}
    assert results == wanted


def test_a_page_without_a_line_of_navigation_is_refused():
    settings = build.tomllib.loads((build.HERE / "zensical.toml").read_text(encoding="utf-8"))
    known = set(build._paths(settings["project"]["nav"]))
    build.check_navigation(known)
    with pytest.raises(build.BuildError, match=r"no line for forgotten\.md"):
        build.check_navigation(known | {"forgotten.md"})
    with pytest.raises(build.BuildError, match=r"a line without a page faq\.md"):
        build.check_navigation(known - {"faq.md"})


def test_faults_of_a_site_are_found(tmp_path):
    def page(name, body):
        (tmp_path / name).write_text(f"<article><h2 id=here>x</h2>{body}</article>", encoding="utf-8")

    page("index.html", '<a href="a.html">a</a><a href="a.html#gone">b</a><img src="no.png">')
    page("a.html", '<a href="index.html#here">on</a><script src="https://elsewhere/x.js"></script>')
    page("dead.html", '<a class="headerlink" href="#here">x</a>')
    (tmp_path / "search.json").write_text('{"items": [{"location": "a.html#lost"}]}', encoding="utf-8")
    assert links.faults(tmp_path) == [
        "a.html: loads https://elsewhere/x.js from elsewhere",
        "dead.html: no link to another page in its text",
        "index.html: a.html#gone has no such anchor",
        "index.html: no.png leads nowhere",
        "dead.html: no way leads there",
        "search: a.html#lost leads nowhere",
    ]


def test_a_formula_that_cannot_be_read_is_refused():
    assert "<mfrac>" in formulas.draw(r'<span class="arithmatex">\(\frac{1}{2} &lt; 1\)</span>')
    with pytest.raises(ValueError, match="wrong"):
        formulas.draw(r'<div class="arithmatex">\[\wrong\]</div>')
    with pytest.raises(ValueError, match="no formula"):
        formulas.draw("<p>$$ x</p>")


def test_links_of_pages_lead_to_pages_and_code_stays():
    sources = {"README.md": "index.md", "docs/a.md": "a.md", "docs/b/c.md": "b/c.md"}
    text = (
        "[x](../a.md#y) `[x](../a.md)` [z](https://z) ![p](../figures/p.svg) [s](../../src/s.py) [r](../../README.md)"
    )
    assert pages.page(text, "docs/b/c.md", sources) == (
        "[x](../a.md#y) `[x](../a.md)` [z](https://z) ![p](../figures/p.svg) s [r](../index.md)"
    )
    with pytest.raises(ValueError, match="no page of the site"):
        pages.page("[l](../LICENSE)", "docs/a.md", sources)


def test_a_cell_that_fails_fails_the_build(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    lesson = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(lesson, tmp_path / "lesson.ipynb")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        notebooks.execute(str(tmp_path / "lesson.ipynb"))


def test_the_hospitals_tutorial_says_what_is_missing_where_and_predicts(data_folder, built):
    text = html.unescape((built[0] / "0.1.0" / "tutorials" / "hospitals.html").read_text(encoding="utf-8"))
    assert "'chol'" in text and "switzerland (100 %)" in text and "3 predictions: predicted.csv" in text
    assert "trestbps: 1 is far outside of training" in text


def test_a_tutorial_that_needs_data_is_shown_without_outputs_where_there_are_none(monkeypatch):
    monkeypatch.delenv("FEDAX_DATA", raising=False)
    text = notebooks.markdown(notebooks.execute("docs/tutorials/hospitals.ipynb"), pages.ROOT / "hospitals.md")
    assert "FEDAX_DATA" in text.split("##")[0] and "fedax compare heart" in text and ".output" not in text


def test_every_recipe_is_on_a_page():
    from fedax.experiments import recipes

    text = "".join(experiments.pages().values())
    assert [name for name in recipes() if f"## `{name}`" not in text] == []
    assert all(place in text for place in recipes().values())
