"""A real browser draws every chart of the page about a run, and runs only our own scripts."""

from __future__ import annotations

import os

import pytest
from chromium import READY_MS, BrowserMissingError, chromium
from report_run import ENDING, HOSTILE, report_run
from servers.build import REQUIRE

from otel_mlperf.cli.report import report
from otel_mlperf.report.notebook import render_run

# How many pixels of a chart are not its background: its lines, bands and axes.
MARKS = """() => Object.fromEntries([...otelMlperf.plots].map(([id, { plot, canvas }]) => {
    const ctx = plot ? plot.ctx : canvas.getContext("2d");
    const { left, top, width, height } = plot ? plot.bbox : { left: 0, top: 0, ...canvas };
    const { data } = ctx.getImageData(left, top, width || canvas.width, height || canvas.height);
    let painted = 0;
    for (let at = 3; at < data.length; at += 4) painted += data[at] > 200;
    return [id, painted];
}))"""
SCALES = """[...otelMlperf.plots.values()].filter(({ plot }) => plot).map(
    ({ plot }) => [plot.scales.x.min, plot.scales.x.max]
)"""
INK = "getComputedStyle(document.body).backgroundColor"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser():
    """Chromium, driven by playwright."""
    try:
        with chromium() as found:
            yield found
    except BrowserMissingError as reason:
        if os.environ.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, but {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """The page about the second of two runs with hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        str(report_run(folder, run_id=run_id, wait=wait).write())
        for run_id, wait in (("aaaa9c0d17e84b55", 8), ("bbbb9c0d17e84b55", 20))
    ]
    report(runs, out=str(folder / "page.html"))
    return folder / "page.html"


@pytest.fixture
def show(browser, page_file):
    """Opens the page; what its console and its errors say is in ``page.said``."""
    contexts = []

    def open_page(width=1280, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(READY_MS)
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: (page.said.append(dialog.message), dialog.dismiss()))
        page.goto(page_file.as_uri())
        # Its policy forbids the evaluations by which a browser would be asked again and again.
        page.locator("html[data-charts]").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def show_cell(browser, page_file):
    """Opens a page that has what a notebook shows of the run, with scripts or without."""
    contexts = []
    (run,) = page_file.parent.glob("*bbbb")
    notebook = page_file.with_name("notebook.html")
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{render_run(run)}")

    def open_cell(**how):
        context = browser.new_context(viewport={"width": 900, "height": 900}, offline=True, **how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(READY_MS)
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.goto(notebook.as_uri())
        return page

    yield open_cell
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_cell_of_a_notebook_has_its_charts(show_cell, scheme):
    """By day and by night, in a frame that fits; nothing is said."""
    page = show_cell(color_scheme=scheme)
    page.frame_locator("iframe").locator("html[data-charts]").wait_for()
    (frame,) = page.frames[1:]

    marks = frame.evaluate(MARKS)
    assert set(marks) == {"steps", "sections", "memory", "gpu-busy", "gpu-memory", "value-0"}
    assert min(marks.values()) > 100, marks
    assert frame.evaluate(TOO_WIDE) <= 0
    assert page.said == []


def test_a_cell_without_scripts_has_its_table(show_cell):
    """As on GitHub, or in a notebook that is not trusted."""
    page = show_cell(java_script_enabled=False)

    assert page.get_by_text("data wait", exact=True).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn(show, width, scheme):
    """On a desk and on a phone, by day and by night; nothing is said, and nothing is too wide."""
    page = show(width, scheme)

    marks = page.evaluate(MARKS)
    assert set(marks) == {
        "steps", "sections", "rank-map", "memory", "gpu-busy", "gpu-memory", "value-0"
    }  # fmt: skip
    assert min(marks.values()) > 100, marks
    assert page.evaluate(TOO_WIDE) <= 0
    assert page.said == []


def test_night_is_dark(show):
    """As the system asks for it, also while the page is shown."""
    page = show()
    by_day = page.evaluate(INK)

    page.emulate_media(color_scheme="dark")

    assert page.evaluate(INK) != by_day
    assert min(page.evaluate(MARKS).values()) > 100


def test_names_do_nothing(show):
    """They are read as text, in tables and under the cursor."""
    page = show()

    assert page.get_by_text(HOSTILE, exact=True).count() >= 2
    page.locator('[data-chart="sections"] .u-over').hover(position={"x": 300, "y": 60})
    tip = page.locator('[data-chart="sections"] .tip')
    tip.wait_for()
    assert HOSTILE in tip.inner_text()
    assert ENDING in tip.inner_text()
    assert page.evaluate("document.images.length") == 0
    assert page.said == []


def test_the_tip_says_the_step_under_the_cursor(show):
    """With its number and what happened then."""
    page = show()

    page.locator('[data-chart="steps"] .u-over').hover(position={"x": 2, "y": 60})

    tip = page.locator('[data-chart="steps"] .tip')
    tip.wait_for()
    assert "step 0" in tip.inner_text()
    assert "epoch 0" in tip.inner_text()


def test_to_drag_zooms_all_charts(show):
    """And a double click shows everything again."""
    page = show()
    before = page.evaluate(SCALES)
    chart = page.locator('[data-chart="steps"] .u-over')
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 50, steps=4)
    page.mouse.up()
    page.locator("#reset").wait_for()

    zoomed = page.evaluate(SCALES)
    assert all(one == pytest.approx(zoomed[0]) for one in zoomed)
    assert zoomed[0][1] - zoomed[0][0] < 0.5 * (before[0][1] - before[0][0])
    page.locator('[data-chart="memory"] .u-over').dblclick()
    page.locator("#reset").wait_for(state="hidden")
    assert page.evaluate(SCALES) == before


def test_a_chart_is_saved_as_a_picture(show):
    """Of lines and of the map of ranks; named for it."""
    page = show()

    for chart in ("steps", "rank-map"):
        with page.expect_download() as saved:
            page.locator(f'[data-chart="{chart}"] .save').click()
        assert saved.value.suggested_filename == f"{chart}.png"
        assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    assert page.said == []


def test_the_map_says_the_rank_under_the_cursor(show):
    """With the mean of its steps there."""
    page = show()
    page.locator('[data-chart="rank-map"] canvas').hover(position={"x": 3, "y": 3})

    tip = page.locator('[data-chart="rank-map"] .tip')
    tip.wait_for()
    assert "rank 0" in tip.inner_text()
    assert "step 0: " in tip.inner_text()


def test_paper_is_light(show):
    """A page that is printed by night has its charts, and is as before afterwards."""
    page = show(scheme="dark")
    by_night = page.evaluate(INK)

    assert page.pdf(format="A4").startswith(b"%PDF")

    assert page.evaluate(INK) == by_night
    assert min(page.evaluate(MARKS).values()) > 100
    assert page.said == []


def test_marks_are_on_the_charts(show):
    """Under the cursor by their name, and in the legend beside what else happened."""
    page = show()
    chart = page.locator('[data-chart="steps"]')
    marks = "moment => moment[0] === 'mark' && moment[1] === 'lr halved'"
    at = page.evaluate(f"""() => {{
        const {{ moments }} = JSON.parse(document.getElementById("data").textContent);
        const {{ plot }} = window.otelMlperf.plots.get("steps");
        return plot.valToPos(moments.find({marks})[2], "x");
    }}""")

    chart.locator(".u-over").hover(position={"x": at + 1, "y": 60})

    tip = chart.locator(".tip")
    tip.wait_for()
    assert "lr halved" in tip.inner_text()
    assert "mark" in chart.locator(".legend").inner_text().split()
    assert page.said == []
