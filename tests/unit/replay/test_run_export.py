"""A range of steps is parsed, and each format writes what it reports."""

from __future__ import annotations

import io

import pytest
from run_folders import RunFolderBuilder
from timeline_run import timeline_run

from otel_mlperf.analysis.steps.step_selection import select
from otel_mlperf.errors import NothingToExport, UsageError
from otel_mlperf.replay.run_export import CHROME, OTLP_JSON, PERFETTO, parse_steps
from otel_mlperf.store.run_folders import read_run


@pytest.mark.parametrize(
    ("text", "steps"), [("7", (7, 7)), ("7-9", (7, 9)), (" 7-7 ", (7, 7)), ("0", (0, 0))]
)
def test_steps_are_one_or_a_range(text, steps):
    """Both ends are meant."""
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", "x", "9-7", "-1", "1-", "1,2"])
def test_what_is_no_range_is_refused(text):
    """With how one is written."""
    with pytest.raises(UsageError, match="expected a number such as 7, or a range such as 7-9"):
        parse_steps(text)


@pytest.mark.parametrize("form", [PERFETTO, CHROME, OTLP_JSON])
def test_a_format_writes_what_it_says(tmp_path, form):
    """Its words count what is in the file."""
    file = io.BytesIO()

    told = form.write(select(read_run(timeline_run(tmp_path))), file)

    assert file.getvalue()
    assert told.split()[0].isdigit()


@pytest.mark.parametrize("form", [PERFETTO, CHROME, OTLP_JSON])
def test_a_run_without_anything_is_no_file(tmp_path, form):
    """It says where to look instead."""
    run = RunFolderBuilder(tmp_path)

    with pytest.raises(NothingToExport, match="see otel-mlperf summary 3f2a"):
        form.write(select(read_run(run.write())), io.BytesIO())
