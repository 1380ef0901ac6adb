"""Findings fit into the lines of a summary, and into a notebook."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from run_folders import digits

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding import Finding, FindingList, Gain, Where
from otel_mlperf.report.finding_lines import finding_lines, finding_text, render_findings
from otel_mlperf.report.notebook import render_html
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.terminal_lines import columns, text

WAIT = Finding(
    id="data_loading",
    severity="warning",
    summary="training waits for data 62% of the time",
    action="Use more DataLoader workers, a larger prefetch_factor, pin_memory or faster storage.",
    gain=Gain(low=0.38, high=0.62),
)


def shown(findings, width=80, ranks=1):
    lines = finding_lines(findings, "3f2a", width, ranks=ranks)
    return text(lines, color=False, unicode=True)


def of_run(*findings, missing=()):
    return FindingList(id="3f2a", short_id="3f2a", findings=[*findings], missing=[*missing])


def test_what_is_the_case_what_is_won_and_what_to_do():
    """The advice is never cut."""
    assert shown([WAIT]) == (
        "findings  training waits for data 62 % of the time · could save 38–62 % of the\n"
        "          step time\n"
        "          Use more DataLoader workers, a larger prefetch_factor, pin_memory or\n"
        "          faster storage.\n"
    )


def test_a_gain_of_one_number_is_written_once():
    """And one that is not known not at all."""
    assert finding_text(replace(WAIT, gain=Gain(low=0.4, high=0.4))).endswith(
        "· could save 40 % of the step time"
    )
    assert finding_text(replace(WAIT, gain=None)) == "training waits for data 62 % of the time"


def test_a_gain_that_may_be_nothing():
    """Only how large it can be is worth a number."""
    text = finding_text(replace(WAIT, gain=Gain(low=0.0, high=0.11)))

    assert text.endswith("· could save up to 11 % of the step time")


def test_what_is_won_is_never_cut():
    """Where one line is too short for it, it takes another."""
    said = "rank 1 likely delays the other ranks: its forward takes 1.8 × theirs"

    assert shown([replace(WAIT, summary=said, action="Do.", gain=Gain(low=0.0, high=0.37))]) == (
        f"findings  {said} ·\n          could save up to 37 % of the step time\n          Do.\n"
    )


def test_the_rank_is_said_where_there_are_several():
    """Unless the words say it: else the same line would stand there once for each rank."""
    full = replace(WAIT, summary="memory is full", gain=None, where=Where(rank=3))
    slow = replace(full, summary="rank 3 is slow")

    assert finding_text(full, ranks=4) == "rank 3: memory is full"
    assert finding_text(slow, ranks=4) == "rank 3 is slow"
    assert finding_text(full, ranks=1) == "memory is full"
    assert shown([full, slow], ranks=4).splitlines()[0] == "findings  rank 3: memory is full"


def test_the_first_three_and_where_the_others_are():
    """A run with much that is wrong keeps its table on the screen."""
    told = [replace(WAIT, summary=f"number {n}", action="Do.", gain=None) for n in range(5)]

    assert shown(told) == (
        "findings  number 0\n          Do.\n          number 1\n          Do.\n"
        "          number 2\n          Do.\n          2 more findings: otel-mlperf findings 3f2a\n"
    )


@pytest.mark.parametrize("said", ["x" * 2000, "many words " * 200, "两" * 2000])
def test_a_long_one_stays_on_its_lines(said):
    """Whatever a finding of somebody else says, its advice included."""
    lines = shown([replace(WAIT, summary=said, action=said)]).splitlines()

    assert all(columns(line) <= 80 for line in lines)
    assert len(lines) <= 20


def test_a_summary_and_a_notebook_show_them(tmp_path):
    """Below the table of the steps."""
    summary = judge_run(read_run(digits(tmp_path).write()))

    assert "\nfindings  training waits for data 35 % of the time" in render_summary(summary)
    assert "training waits for data 35 % of the time" in render_html(summary)


def test_all_findings_have_their_numbers_and_a_command():
    """Id and evidence in one line, below what to do."""
    shown = Finding(
        id="straggler",
        severity="warning",
        summary="rank 1 holds up",
        action="Do.",
        evidence={"share": 0.25, "over_ns": 7.79e9, "before_bytes": 3 * 2**30},
        command="otel-mlperf show 3f2a --step 7",
    )

    assert render_findings(of_run(shown)) == (
        "warning   rank 1 holds up\n"
        "          Do.\n"
        "          straggler · evidence over 7.79 s: before 3.00 GiB, share 25 %\n"
        "          → details: otel-mlperf show 3f2a --step 7\n"
    )


def test_a_healthy_run_says_so_in_one_line():
    """Nothing is said of what was not found."""
    assert render_findings(of_run()) == "run 3f2a: nothing found\n"


def test_what_could_not_be_looked_at_is_said():
    """A run whose tables lack what was recorded is not called healthy."""
    left = "unread data: run otel-mlperf doctor 3f2a --recover"

    assert render_findings(of_run(missing=[left])) == (
        f"run 3f2a: nothing found in what is stored\n          {left}\n"
    )
    assert render_findings(of_run(WAIT, missing=[left])).splitlines()[-1].strip() == left
