"""The page in headless Chromium: it draws, logs no error, asks no network, and answers pointer and keyboard.

Needs Playwright's package and a Chromium of the machine's; skipped without.
"""

import shutil

import pytest

from recoup._report.page import render
from tests.report.samples import HOSTILE, picture_of

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on PATH")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as player:
        found = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a picture; afterwards the page must have logged nothing and asked for nothing but itself."""
    opened = []

    def open_page(picture, **options):
        path = tmp_path / f"{len(opened)}.html"
        path.write_text(render(picture), encoding="utf-8")
        page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **options})
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append("dialog"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        opened.append((page, said, asked, path))
        return page

    yield open_page
    for page, said, asked, path in opened:
        assert said == []
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        page.close()


def plain(**options):
    return picture_of(["dot_general", "model.py:12 (block)", "f32[8,8]", "lib/layers.py:9 (norm)"], **options)


def test_hostile_names_are_text(show):
    page = show(picture_of())
    assert page.evaluate("window.hacked") is None
    assert page.locator("h1").inner_text() == HOSTILE[0]
    assert page.locator("main img, main b[onmouseover]").count() == 0
    for row in page.locator("tr.row").all():
        row.click()
    for button in page.locator(".segments button").all():
        button.click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 2


def test_every_section_is_there(show):
    page = show(plain())
    heads = page.locator("h2").all_inner_texts()
    assert [h.split(":")[0] for h in heads] == [
        "Memory over the program's order", "Memory against recomputation", "Decisions",
        "Compiled arena at its peak", "Kept for the backward pass", "Where the numbers come from",
    ]  # fmt: skip
    assert page.locator(".plot").count() == 2
    ink = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    assert all(page.locator(".plot canvas").nth(i).evaluate(ink) for i in range(2))


def test_pointing_and_tapping_show_who_is_alive(show):
    page = show(plain())
    before = page.locator(".alive h3").inner_text()
    box = page.locator(".plot").first.bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 80)
    page.wait_for_function("t => document.querySelector('.alive h3').textContent !== t", arg=before)
    hovered = page.locator(".alive h3").inner_text()
    page.mouse.move(5, 5)
    page.wait_for_function("t => document.querySelector('.alive h3').textContent === t", arg=before)
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 80)
    page.mouse.move(5, 5)
    page.wait_for_function("t => document.querySelector('.alive h3').textContent === t", arg=hovered)
    assert page.locator(".alive tbody tr").count() > 1


def test_the_panel_adds_up(show):
    picture = plain()
    page = show(picture)
    strip = picture.strips[1]
    at = strip.peak_position
    alive = page.evaluate(
        """at => { const s = window.memoryView.strips[1];
        return [s.peak, s.totals[at],
          s.buffers.filter(b => b.first <= at && b.last >= at).reduce((n, b) => n + b.size, s.fixed)] }""",
        at,
    )
    assert alive == [at, strip.totals()[at], strip.totals()[at]]


def test_the_keyboard_walks_the_order(show):
    page = show(plain())
    plot = page.locator(".plot").first
    plot.focus()
    for key, expected in (("Home", 1), ("ArrowRight", 2), ("End", 40), ("ArrowLeft", 39), ("PageUp", 37)):
        plot.press(key)
        page.wait_for_function(
            "n => +document.querySelector('.plot').getAttribute('aria-valuenow') === n", arg=expected
        )
    plot.press("p")
    page.wait_for_function("() => document.querySelector('.alive h3').textContent.includes('the peak')")
    assert "alive" in plot.get_attribute("aria-valuetext")


def test_stacks_by_reason_layer_and_line(show):
    page = show(plain())
    legend = page.locator("section").first.locator(".legend")
    assert "Kept" in legend.inner_text() and "Recomputed" in legend.inner_text()
    page.get_by_role("button", name="Source line").click()
    assert "model.py:12 (block)" in legend.inner_text() and "Kept" not in legend.inner_text()
    page.get_by_role("button", name="Layer", exact=True).click()
    assert "layers.py" in legend.inner_text()


def test_decisions_sort_filter_and_explain(show):
    page = show(plain())
    section = page.locator("section", has=page.get_by_role("heading", name="Decisions"))
    rows = section.locator("tr.row")
    assert rows.count() == 2
    section.get_by_role("button", name="Kept").click()
    assert rows.count() == 1 and "kept" in rows.first.inner_text()
    section.get_by_role("button", name="All").click()
    section.get_by_role("button", name="Bytes").click()
    assert "4.00 KiB" in rows.first.inner_text()
    section.get_by_role("button", name="Bytes").click()
    assert "99 B" in rows.first.inner_text()
    assert section.locator("th[aria-sort=ascending]").count() == 1
    section.get_by_role("searchbox").fill("recomputed")
    assert rows.count() == 1
    rows.first.press("Enter")
    assert "is computed again for" in section.locator("tr.more").inner_text()
    section.get_by_role("searchbox").fill("nothing is called so")
    assert rows.count() == 0 and "0 rows" in section.locator(".foot").inner_text()


def test_the_curve_is_walked_too(show):
    page = show(plain())
    curve = page.locator(".curve")
    curve.focus()
    assert "8.79 KiB for +10.0 % (chosen)" in curve.locator(".tip").inner_text()
    curve.press("ArrowRight")
    assert "+30.0 %" in curve.locator(".tip").inner_text()
    assert curve.get_attribute("aria-valuenow") == "3"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_no_width_and_no_scheme_breaks_it(show, scheme, width):
    page = show(plain(), color_scheme=scheme, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        ".map(c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))"
    )
    assert (ink < paper) == (scheme == "light") and abs(ink - paper) > 450


def test_ten_thousand_operations_open_in_two_seconds(show):
    picture, took = plain(operations=10_000), []
    while len(took) < 3 and min(took, default=9e9) > 2000:  # the machine may be busy with other tests
        page = show(picture)
        page.locator(".plot").first.hover(position={"x": 300, "y": 80})
        page.wait_for_function("() => document.querySelector('.alive tbody tr')")
        took.append(page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart"))
    assert min(took) < 2000


def test_parts_that_are_empty_are_left_out(show):
    from recoup._report.of_timeline import residuals_picture

    data = {"items": [], "total_bytes": 0, "argument_bytes": 0, "instrument": "jaxpr"}
    page = show(residuals_picture(data))
    assert page.locator("h2").all_inner_texts() == ["Where the numbers come from"]
