"""The report in a browser: what a reader sees who points, zooms, hides a method, chooses another axis, or prints."""

import json
import re
import shutil
import threading

import numpy as np
import pytest

from fedax.engine.history import Row
from fedax.experiments.report import render
from fedax.experiments.runs import append_metrics

from ..sites.test_status import of_a_run
from .test_report import NAN, fake

pytestmark = pytest.mark.long

LOSSES = {
    "plain": [[2.0, 0.5, 0.30], [2.0, 0.5, 0.10]],
    "quick": [[2.0, 0.03, 0.02], [2.0, 0.03, 0.02]],
    "wild": [[2.0, 9e5, NAN], [2.0, 5e5, 4e5]],
}


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page is looked at by playwright: pip install it")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    path.write_text(render([fake(folder / "run", LOSSES)]), encoding="utf-8")
    return path


@pytest.fixture
def page(browser, report):
    """The report as it opens; no test may leave an error of its script behind."""
    errors = []
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    opened.on("pageerror", lambda error: errors.append(error))
    opened.on("request", lambda request: errors.append(request.url) if not request.url.startswith("file:") else None)
    opened.goto(report.as_uri())
    yield opened
    opened.close()
    assert errors == []


def scale(page, name, chart=0):
    """The ends of an axis of the curves, to four digits."""
    side = page.evaluate(f"blocks[0].charts[{chart}].u.scales.{name}")
    return [float(f"{side[end]:.4g}") for end in ("min", "max")]


def place(page, x, y, chart=0):
    """Where a point of a chart is on the screen, in pixels."""
    script = f"(() => {{ const u = blocks[0].charts[{chart}].u, box = u.over.getBoundingClientRect();"
    return page.evaluate(f"{script} return [box.left + u.valToPos({x}, 'x'), box.top + u.valToPos({y}, 'y')]; }})()")


def told(page):
    """What the box beside the pointer says, in lines."""
    return [" ".join(line.split()) for line in page.locator(".tip > *").all_inner_texts()]


def colours(page, chart=0):
    """How many pixels of a picture have the colour of each method."""
    script = """chart => { const {u} = blocks[0].charts[chart], {width, height} = u.ctx.canvas;
        const data = u.ctx.getImageData(0, 0, width, height).data, found = {};
        const names = ["--c0", "--c1", "--c2"].map(css).map(c => [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16)));
        names.forEach((rgb, k) => { found[k] = 0; for (let i = 0; i < data.length; i += 4)
          if (rgb.every((v, j) => Math.abs(v - data[i + j]) < 3) && data[i + 3] > 250) found[k] += 1; });
        return found; }"""
    return [page.evaluate(script, chart)[str(k)] for k in range(3)]


def test_pointing_tells_the_values_of_all_methods_there(page):
    first = page.locator(".charts").first
    first.scroll_into_view_if_needed()
    name = first.locator("figcaption b").first.inner_text()
    assert name == "Train loss"
    page.mouse.move(*place(page, 5, 0.52))
    assert told(page) == [
        "Rounds: 5",
        "wild 700000 (500000 to 900000)",
        "plain 0.5 (0.5 to 0.5)",
        "quick 0.03 (0.03 to 0.03)",
    ]
    assert page.locator(".tip .near").inner_text().startswith("plain")
    page.mouse.move(*place(page, 9.8, 0.021))
    assert told(page)[0] == "Rounds: 10" and page.locator(".tip .near").inner_text().startswith("quick")
    page.mouse.move(3, 3)
    assert told(page) == []


def test_a_method_that_diverged_does_not_scale_the_picture(page):
    low, high = scale(page, "y")
    assert 0 < low < 0.02 and 2 < high < 3  # logarithmic, from the quick one's 0.02 to 2


def test_dragging_zooms_and_a_double_click_shows_all(page):
    whole = scale(page, "x")
    page.locator(".charts .plot").first.scroll_into_view_if_needed()
    (left, top), (right, low) = place(page, 4, 1.0), place(page, 8, 0.1)
    page.mouse.move(left, top)
    page.mouse.down()
    page.mouse.move(right, low, steps=5)
    page.mouse.up()
    np.testing.assert_allclose(scale(page, "x"), [4, 8], atol=0.02)
    np.testing.assert_allclose(scale(page, "y"), [0.1, 1], rtol=0.01)
    assert scale(page, "x", chart=1) == whole  # the other picture stays
    page.mouse.dblclick(right - 50, top + 30)
    assert scale(page, "x") == whole
    page.mouse.move(left, top)
    page.mouse.down()
    page.mouse.move(right, top + 3, steps=5)  # a flat one is of the x-axis alone
    page.mouse.up()
    np.testing.assert_allclose(scale(page, "x"), [4, 8], atol=0.02)
    assert scale(page, "y")[0] <= 0.02


def test_a_method_that_is_hidden_is_in_no_picture(page):
    button = page.locator(".legend button", has_text="quick")
    before = [colours(page, chart) for chart in (0, 1)]
    assert all(seen > 100 for each in before for seen in each[:2])
    button.click()
    page.mouse.move(3, 3)
    page.wait_for_timeout(100)
    assert button.get_attribute("aria-pressed") == "false"
    assert [colours(page, chart)[1] for chart in (0, 1)] == [0, 0] and colours(page)[0] > 100
    assert scale(page, "y")[0] > 0.05  # only plain scales it, down to its lowest seed, 0.1
    page.locator(".charts .plot").first.scroll_into_view_if_needed()
    page.mouse.move(*place(page, 5, 0.5))
    assert [line.split()[0] for line in told(page)[1:]] == ["wild", "plain"]
    button.click()
    page.mouse.move(3, 3)
    page.wait_for_timeout(100)
    assert colours(page)[1] > 100


def test_another_axis_and_another_scale(page):
    page.get_by_role("button", name="Bytes", exact=True).click()
    assert page.locator("[data-axis=bytes]").get_attribute("aria-pressed") == "true"
    assert scale(page, "x")[1] == pytest.approx(6e6, rel=0.03)
    page.locator(".charts .plot").first.scroll_into_view_if_needed()
    page.mouse.move(*place(page, 3e6, 0.5))
    assert told(page)[0] == "Traffic, down and up: 3 MB"
    button = page.locator("button.scale").first
    assert button.inner_text() == "log scale"
    button.click()
    assert button.inner_text() == "linear scale" and scale(page, "y")[0] < 0


def test_by_keyboard(page):
    figure = page.locator("figure.chart[aria-label^='Train loss']")
    assert "at the end plain 0.2, quick 0.02" in figure.get_attribute("aria-label")
    figure.focus()
    figure.press("ArrowRight")
    assert told(page)[0] == "Rounds: 0" and page.get_by_role("status").count() == 1
    figure.press("ArrowRight")
    assert told(page)[0] == "Rounds: 5" and page.locator(".tip .near").inner_text().startswith("plain")
    figure.press("ArrowUp")
    assert page.locator(".tip .near").inner_text().startswith("quick")
    whole = scale(page, "x")
    figure.press("+")
    np.testing.assert_allclose(np.mean(scale(page, "x")), 5, rtol=0.05)
    assert np.ptp(scale(page, "x")) < 0.6 * np.ptp(whole)
    figure.press("0")
    assert scale(page, "x") == whole
    page.get_by_role("button", name="Rounds", exact=True).focus()
    assert told(page) == []


def test_bars_tell_of_the_client_above_which_one_points(page):
    figure = page.locator("figure.chart", has_text="Examples of each client")
    figure.scroll_into_view_if_needed()
    box = figure.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 5)  # the second of five
    data = [json.loads(text) for text in re.findall(r'json">(.*?)</script>', page.content())]
    texts = [data["series"][-1]["texts"][1] for data in data if data["charts"][0]["name"] == "Examples of each client"]
    assert [page.locator(".tip").inner_text()] == texts


def test_without_a_script_there_are_tables(browser, report):
    page = browser.new_page(java_script_enabled=False)
    page.goto(report.as_uri())
    assert page.locator("figure.chart[aria-label^='Train loss'] td:visible").all_inner_texts()[:4] == [
        "plain", "2", "0.5", "0.2",
    ]  # fmt: skip
    assert page.locator(".plot:visible, button.live:visible").count() == 0
    page.close()


@pytest.mark.parametrize("width", [1200, 400])
def test_in_the_dark_and_narrow_and_on_paper(browser, report, width):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("css('--paper')") == "#161b22" and min(colours(page)[:2]) > 100
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("css('--paper')") == "#ffffff" and min(colours(page)[:2]) > 100
    assert page.locator(".plot canvas:visible").count() >= 3 and page.locator("button.live:visible").count() == 0
    page.close()


def test_the_page_of_a_running_link_keeps_its_curves_until_there_are_new_values(browser, tmp_path):
    from fedax.sites.service.page import server

    record, status = fake(tmp_path / "run", {"a": [[2.0, 1.0, 0.5]]}, seeds=(0,)), of_a_run(tmp_path)
    status["run"]["run"]["folder"] = str(record.folder)
    with server(lambda: status, 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        page = browser.new_page()
        try:
            with page.expect_response("**/now"):
                page.goto(f"http://127.0.0.1:{running.server_port}")
                page.evaluate("blocks[0].charts[0].u.root.id = 'first'")
            page.wait_for_timeout(100)
            assert page.locator("#first canvas").count() == 1 and page.locator("canvas").count() == 2
            row = {
                "round": 15,
                "train_loss": 0.25,
                "test_accuracy": 0.9,
                "clients": 1,
                "local_steps": 9,
                "gradients": 9,
            }
            row |= {"seconds": 2.0, "bytes_down": 9, "bytes_up": 9}
            append_metrics(record.folder, "a", "fedprox", 0, Row(row))
            page.locator("#first").wait_for(state="detached")
            assert page.evaluate("blocks.map(block => block.data.series[0].x.rounds)") == [[0, 5, 10, 15]]
            assert page.locator("canvas").count() == 2
        finally:
            page.close()
            running.shutdown()
            thread.join()


def test_many_methods_can_be_shown_and_hidden_together(browser, tmp_path):
    record = fake(tmp_path / "run", {f"m{k}": [[2.0, 1 + k / 20, k / 20]] for k in range(12)}, seeds=(0,))
    path = tmp_path / "report.html"
    path.write_text(render([record]), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(path.as_uri())
    page.locator(".charts .plot").first.scroll_into_view_if_needed()
    page.mouse.move(*place(page, 5, 1.5))
    assert len(told(page)) == 11 and told(page)[-1] == "and 3 more"
    page.get_by_role("button", name="none", exact=True).click()
    assert page.locator(".legend [aria-pressed=true]").count() == 0
    page.get_by_role("button", name="all", exact=True).click()
    assert page.locator(".legend [aria-pressed=true]").count() == 12
    page.close()
