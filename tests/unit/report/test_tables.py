"""The tables of runs, checks and notebooks are readable."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest
from run_folders import MS, RunFolderBuilder, S, digits

from otel_mlperf.analysis.summary.run_list import overview
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.findings.finding import Check, worst_first
from otel_mlperf.report.finding_lines import render_checks
from otel_mlperf.report.notebook import render_html
from otel_mlperf.report.run_table import render_runs
from otel_mlperf.store.run_folders import list_runs, read_run


def test_runs_are_one_line_each(tmp_path):
    """Newest first, with outcome, training steps and time; a damaged one hides no other."""
    first = digits(tmp_path)
    first.step(0, 0, {"forward": MS}, phase="validate")
    first.write()
    other = RunFolderBuilder(
        tmp_path, "a-very-long-name-of-a-run", "77aa", started_ns=(1_760_000_000 + 60) * S
    )
    other.process(S, "failed")
    (other.write() / "tables" / "steps").mkdir()
    (other.path / "tables" / "steps" / "x-000001.parquet").write_bytes(b"")
    first = time.strftime("%d %b %H:%M", time.localtime(1_760_000_000))
    second = time.strftime("%d %b %H:%M", time.localtime(1_760_000_060))

    shown = [overview(run) for run in list_runs(tmp_path)]

    assert render_runs(shown, str(tmp_path), more=3) == (
        "id    name                    started       outcome     ranks    steps  duration\n"
        f"77aa  a-very-long-name-of-a…  {second}  unreadable      0        0       0 s\n"
        f"3f2a  digits                  {first}  finished        1       40    3.05 s\n"
        "3 older runs not shown: --all\n"
    )


def test_tags_have_a_column_and_bad_folders_a_line(tmp_path):
    """Both within the width of a terminal."""
    run = RunFolderBuilder(tmp_path, tags=["ablation", "big " * 20])
    run.process(S)
    run.write()

    table = render_runs([overview(one) for one in list_runs(tmp_path)], "x", 0, ["bad-77aa"])

    head, line, bad = table.splitlines()
    assert head.endswith("duration  tags")
    assert "1.00 s  ablation big" in line
    assert max(map(len, (head, line))) <= 80
    assert bad == "bad-77aa: the file run.json of this run cannot be read"


def test_no_runs_are_said_to_be_none():
    """With the folder that was looked in."""
    assert render_runs([], "otel-runs") == "no runs in otel-runs\n"


def test_checks_are_one_line_each_and_failures_come_first():
    """Level, what, what was found, what to do."""
    checks = [
        Check("ok", "python", "3.12.1 on linux"),
        Check("FAIL", "tcp", "localhost:4318: Connection refused", "start the server"),
        Check("warn", "clock", "not synchronised", "start chronyd"),
    ]

    assert render_checks(worst_first(checks)) == (
        "FAIL  tcp             localhost:4318: Connection refused → start the server\n"
        "warn  clock           not synchronised → start chronyd\n"
        "ok    python          3.12.1 on linux\n"
    )


def test_a_check_that_has_no_room_goes_on_below_itself():
    """What was found is broken at words, what to type is not."""
    checks = [Check("warn", "clock", "not synchronised for nine days now", "start chronyd -x " * 3)]

    assert render_checks(checks, width=60) == (
        "warn  clock           not synchronised for nine days now\n"
        "                      → start chronyd -x start chronyd -x start chronyd -x\n"
    )
    assert render_checks(checks, width=60 - 8).splitlines()[:2] == [
        "warn  clock           not synchronised for nine days",
        "                      now",
    ]


def test_a_check_of_a_long_name_keeps_its_distance():
    """Such as a finding, or a destination of somebody else: its name is not cut."""
    checks = [Check("warn", "host_memory_near_limit", "2 %"), Check("ok", "python", "3.12.1")]

    assert render_checks(checks) == (
        "warn  host_memory_near_limit  2 %\nok    python                  3.12.1\n"
    )


class Words(HTMLParser):
    """Texts and tags of a piece of HTML."""

    def __init__(self, source):
        super().__init__()
        self.words, self.tags, self.open = [], set(), []
        self.feed(source)
        self.close()

    def handle_data(self, data):
        self.words.append(data)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_notebook_shows_the_same_facts(tmp_path):
    """Heading, figures, rows and closing lines, in tags that match."""
    found = Words(render_html(summarize(read_run(digits(tmp_path).write()))))

    assert found.open == []
    assert found.tags == {"div", "b", "table", "tr", "th", "td", "span"}
    assert found.words[:2] == [
        "digits · 3f2a · finished · 1 rank, 1 node · 3.05 s",
        "40 steps · mean 51.0 ms  p50 49.0  p95 50.9 · 1,250 samples/s",
    ]
    assert found.words[6:10] == ["data wait", "18.0", "17.9", "35 %"]
    assert "slowest   step 23: 128 ms · data wait 95.0 ms" in found.words


@pytest.mark.fault("S17")
@pytest.mark.parametrize("with_steps", [True, False])
def test_a_notebook_escapes_every_word_of_the_program(tmp_path, with_steps):
    """Names and messages are text, never markup."""
    run = RunFolderBuilder(tmp_path)
    evil = "<script>alert(1)</script>"
    if with_steps:
        run.step(0, 0, {evil: 10 * MS})
    run.section(None, evil, 5 * MS, path=evil)
    run.process(S, "failed", error_type=evil, error_message=evil, result=f'{{"{evil}": 1}}')

    assert "script" not in Words(render_html(summarize(read_run(run.write())))).tags
