"""The page shows what is known, escapes its input, and needs nothing else."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from report_run import ENDING, HOSTILE, report_run
from run_folders import MS, RunFolderBuilder, S, digits
from summaries import summary_of

from otel_mlperf.analysis.page.page_contents import read_page
from otel_mlperf.analysis.profiles.hot_spots import find_hot
from otel_mlperf.analysis.profiles.window_shapes import KernelRow, Kernels
from otel_mlperf.report.page import hot_part, tables
from otel_mlperf.report.page.hot_part import MOST_PARTS
from otel_mlperf.report.page.page_file import render_page
from otel_mlperf.run_files.hot_file import HotSpot
from otel_mlperf.store.run_folders import read_run


def page_of(*runs):
    """The file about folders that are being built."""
    return render_page(read_page([read_run(run.write()) for run in runs]))


def charts_of(html):
    """What its charts draw."""
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


class Elements(HTMLParser):
    """Every element of a page with what it refers to, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses, self.handlers, self.texts = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.texts.append(data.strip())


@pytest.fixture
def hostile(tmp_path):
    """A page whose run has names that would like to be elements."""
    return page_of(report_run(tmp_path))


def test_names_stay_text(hostile):
    """In tables, parameters and the numbers of charts."""
    found = Elements(hostile)

    assert found.tags.count("script") == 3
    assert "img" not in found.tags
    assert found.handlers == []
    assert {HOSTILE, ENDING} <= set(found.texts)
    assert {one["name"] for one in charts_of(hostile)["charts"]["sections"]["series"]} == {
        "data wait", HOSTILE, "backward", ENDING, "untracked"
    }  # fmt: skip


def test_the_page_needs_nothing_else(hostile):
    """It links to places in itself, and its policy lets the browser ask nobody."""
    found = Elements(hostile)

    assert [one for one in found.addresses if not one.startswith(("#", "data:,"))] == []
    assert "default-src &#39;none&#39;" in hostile
    assert "script-src &#39;sha256-" in hostile


def test_charts_draw_the_numbers_of_the_store(hostile, tmp_path):
    """To six figures."""
    page = read_page([read_run(tmp_path / "digits-3f2a")])
    charts = charts_of(hostile)["charts"]

    assert charts["steps"]["series"][0]["mean"] == pytest.approx(page.steps.mean_ns, rel=1e-5)
    assert charts["rank-map"]["mean"][0] == pytest.approx(page.ranks.mean_ns[0], rel=1e-5)
    assert charts["steps"]["series"][0]["high"] == pytest.approx(page.steps.max_ns, rel=1e-5)
    for chart in page.charts:
        for drawn, line in zip(charts[chart.id]["series"], chart.lines, strict=True):
            assert drawn["mean"] == pytest.approx(line.mean, rel=1e-5)


def test_every_chart_of_the_page_has_numbers(hostile):
    """And all numbers have a chart."""
    placed = re.findall(r'data-chart="([^"]+)"', hostile)

    assert sorted(placed) == sorted(charts_of(hostile)["charts"])
    assert {"steps", "sections", "rank-map", "memory", "gpu-busy", "gpu-memory", "value-0"} == set(
        placed
    )


def test_the_step_and_its_rows_are_those_of_the_summary(tmp_path):
    """As the terminal shows them."""
    texts = Elements(page_of(digits(tmp_path))).texts

    assert "The mean step time is 51.0 ms, of which 35 % is data wait." in texts
    assert {"18.0", "35 %", "data wait", "untracked"} <= set(texts)


def test_durations_have_a_histogram(tmp_path):
    """A bar as high as the drawing for the range that has most steps."""
    html = page_of(digits(tmp_path))

    drawn = re.search(r'<section id="durations">(.*?)</section>', html, re.DOTALL)[1]
    assert "<b>step</b>" in drawn
    assert "v-60.0h" in drawn
    assert "most frequent" in drawn


def test_two_runs_are_compared(tmp_path):
    """The page is about the last one."""
    html = page_of(
        report_run(tmp_path, run_id="aaaa9c0d17e84b55"),
        report_run(tmp_path, run_id="bbbb9c0d17e84b55", wait=20),
    )

    texts = Elements(html).texts
    assert {"digits aaaa → digits bbbb", "slower", "bbbb"} <= set(texts)
    assert "aaaa" not in texts


def test_a_run_without_steps_has_its_sections(tmp_path):
    """And says how it ended."""
    run = RunFolderBuilder(tmp_path)
    run.process(500 * MS, "failed", error_type="ValueError", error_message=HOSTILE)
    run.outside("load", 250 * MS)

    texts = Elements(page_of(run)).texts
    assert "load" in texts
    assert any(HOSTILE in text and "ValueError" in text for text in texts)


def test_names_of_kernels_fit_a_line(tmp_path):
    """Whole in what the browser shows of them on request."""
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    page = read_page([read_run(RunFolderBuilder(tmp_path).write())])
    row = KernelRow(
        name=name, category="kernel", kind="compute", section="forward", calls=3, total_ns=30 * MS,
        self_ns=30 * MS, device_ns=0, measured_ns=30 * MS, share=0.5, mean_ns=10 * MS, min_ns=MS,
        max_ns=20 * MS, p50_ns=None, p95_ns=None,
    )  # fmt: skip
    kernels = Kernels(
        source="", by="kernel", world_size=1, windows=[], is_complete=True, total=None, devices=[],
        rows=[row], groups={}, collectives=[], copies=[], gaps=[], memory=[],
    )  # fmt: skip

    html = render_page(replace(page, kernels=kernels))

    assert html.count(escape(name)) == 1
    assert "vectorized_elementwise" in "".join(Elements(html).texts)


def test_functions_and_lines_of_profiled_sections(hostile):
    """With the numbers of all ranks, as ``summary --functions`` shows them; paths by their end."""
    texts = Elements(hostile).texts

    assert {"2 profiled calls on 2 ranks, 80.0 ms in total including profiler overhead"} <= set(
        texts
    )
    assert {"48.0 ms", "60 %", "60.0 ms", "80", "4 calls skipped while another section was "
            "profiled"} <= set(texts)  # fmt: skip
    assert {"project/loaders/history.py:33", "6.00 kB", "75 %", "24"} <= set(texts)
    assert 'title="/srv/team/project/loaders/history.py:33"' in hostile


def test_memory_that_has_grown(hostile):
    """What all of it came to, and the largest of tensors, objects and lines."""
    texts = Elements(hostile).texts

    assert {"float32 [64] on cuda:0, with its graph", "+2.30 kB", "+40", "50"} <= set(texts)
    assert any(
        text.startswith("memory growth of rank 1 in 1.00 s, 9 steps: process") for text in texts
    )
    assert "/keep.py:7" in hostile


def test_windows_stay_beside_many_sections(tmp_path):
    """Of more profiled sections than a page shows it has the longest, and profiler windows."""
    run = RunFolderBuilder(tmp_path)
    for at in range(hot_part.MOST_SECTIONS + 3):
        run.profiled(f"part{at}", HotSpot(name="f", calls=1, own_ns=MS), duration_ns=S - at)
    found = find_hot(read_run(run.write())).sections
    windows = replace(found[0], section="", kind="window")

    shown = hot_part.sections([*found, windows])

    assert [one.section for one in shown] == [
        *(f"part{at}" for at in range(hot_part.MOST_SECTIONS)),
        "",
    ]
    assert hot_part.more([*found, windows]) == "3 more sections"


def test_a_page_has_the_largest_of_many_functions(tmp_path):
    """And says how many others there are, and what shows them."""
    run = RunFolderBuilder(tmp_path)
    many = [HotSpot(name=f"f{at}", calls=1, own_ns=(50 - at) * MS) for at in range(MOST_PARTS + 3)]
    run.profiled("forward", *many, duration_ns=S)

    html = page_of(run)

    assert f"f{MOST_PARTS - 1}" in Elements(html).texts
    assert f"f{MOST_PARTS}" not in Elements(html).texts
    assert "3 more rows" in html
    assert "otel-mlperf summary 3f2a --functions --top 1000" in html


def test_a_run_without_profiled_sections_has_no_such_part(tmp_path):
    """Nor a way to it."""
    html = page_of(digits(tmp_path))
    assert "Functions and lines" not in html
    assert "Memory growth" not in html


def test_a_run_of_which_nothing_is_known_is_a_page(tmp_path):
    """It has just begun."""
    run = RunFolderBuilder(tmp_path)

    texts = Elements(page_of(run)).texts
    assert "digits" in texts
    assert "Where the time goes" not in texts


def test_the_size_of_a_page_does_not_follow_that_of_its_run(tmp_path):
    """Six times the steps weigh little more: they share the points of a chart."""
    small = len(page_of(report_run(tmp_path / "a", steps=500)).encode())
    large = len(page_of(report_run(tmp_path / "b", steps=1500, ranks=4)).encode())

    assert large < 1.2 * small


def test_no_name_on_a_page_commands_a_terminal_or_turns_text(tmp_path):
    """Neither in tables nor in what charts draw; a backslash that somebody wrote stays."""
    run = report_run(tmp_path)
    run.mark("a\x1b[2J\u202egpj\x9b", 5 * S, 40, rank=0)
    run.mark("a\\u001b", 6 * S, 50, rank=0)

    html = page_of(run)

    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)
    text = json.dumps(charts_of(html))
    assert "a?[2J?gpj?" in text
    assert "a\\\\u001b" in text
    assert "\\u202e" not in text
    assert '"a\\u001b' not in text


def test_the_untracked_time_of_a_rank_is_drawn_once(tmp_path):
    """It is a part of the mean step; a sum that rounding makes smaller adds no further part."""
    run = RunFolderBuilder(tmp_path)
    for rank in range(2):
        run.process(10 * S, rank=rank)
        for number, sections in enumerate(({"data": 1}, {"forward": 1}, {})):
            run.step(number, number * S, sections, own=1, rank=rank)

    for line in tables.ranks(summary_of(run)):
        assert line.mean_ns > sum(spent for _, _, spent in line.parts)
        assert [name for name, _, _ in line.parts] == ["data", "forward", "untracked"]
