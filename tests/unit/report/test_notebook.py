"""A notebook shows a run as its page does, and the table also if no script runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from report_run import report_run
from run_folders import MS, RunFolderBuilder

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.page.page_contents import read_course
from otel_mlperf.analysis.run.stored_run import read_run as read_stored_run
from otel_mlperf.report.notebook import render_cell, render_html, render_run
from otel_mlperf.report.page.chart_data import course_data
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


class Frames(HTMLParser):
    """The tags of a piece of HTML, and its frames with what they may do."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.frames = set(), []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "iframe":
            self.frames.append(dict(attrs))


def course_of(run):
    """What the charts of a run that is being built draw."""
    path = run.write()
    store = Store(path)
    return read_course(store, judge_run(read_run(path), store=store))


def test_a_cell_has_the_charts_of_the_page_below_its_table(tmp_path):
    """In a frame that cannot reach the notebook; the table needs neither it nor a script."""
    course = course_of(report_run(tmp_path))

    html = render_cell(course)

    found = Frames(html)
    (frame,) = found.frames
    assert html.startswith(render_html(course.summary))
    assert "script" not in found.tags
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    drawn = re.search(r'id="data">(.*?)</script>', frame["srcdoc"], re.DOTALL)[1]
    assert json.loads(drawn) == course_data(course)
    assert "default-src &#39;none&#39;" in frame["srcdoc"]


def test_a_cell_of_a_run_that_has_no_charts(tmp_path):
    """Its table alone."""
    run = RunFolderBuilder(tmp_path)
    run.process(500 * MS)
    course = course_of(run)

    assert render_cell(course) == render_html(course.summary)


def test_a_stored_run_shows_itself(tmp_path):
    """In a notebook, as its command does."""
    path = report_run(tmp_path).write()

    assert read_stored_run(str(path))._repr_html_() == render_run(path)
    assert "<iframe" in render_run(path)


def test_the_size_of_a_cell_does_not_follow_that_of_its_run(tmp_path):
    """Three times the steps weigh little more: a notebook keeps what it shows."""
    small = len(render_cell(course_of(report_run(tmp_path / "a", steps=500))))
    large = len(render_cell(course_of(report_run(tmp_path / "b", steps=1500))))

    assert large < 1.2 * small
