"""``otel-mlperf reference metrics`` prints the vocabulary."""

from __future__ import annotations

import json

import pytest

from otel_mlperf import names
from otel_mlperf.cli.commands import call
from otel_mlperf.report.metric_pages import render_markdown


@pytest.fixture
def printed(capsys):
    def print_(*arguments):
        call(["reference", "metrics", *arguments])
        return capsys.readouterr().out

    return print_


def test_people_get_a_list(printed):
    """Every metric is in it, without colours where nobody sees them."""
    shown = printed()

    assert all(metric.name in shown for metric in names.METRICS)
    assert "\x1b" not in shown


def test_programs_get_json(printed):
    """One object for each metric."""
    rows = json.loads(printed("--json"))["metrics"]

    assert {row["name"] for row in rows} == {metric.name for metric in names.METRICS}


def test_the_docs_get_their_page(printed):
    """What is printed is the page, byte by byte."""
    assert printed("--markdown") == render_markdown()
