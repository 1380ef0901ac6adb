"""With ``provider="install"``, what other libraries record arrives in the journal.

The API takes a provider of each kind once in a process, so each test has a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

PROGRAM = """
import sys
from opentelemetry import metrics, trace
import otel_mlperf as om
early = metrics.get_meter("library").create_counter("early")
asked = metrics.get_meter("library").create_observable_gauge(
    "asked", [lambda _: [metrics.Observation(7)]])
{before}
with om.start("x", provider="install", agent="none", console=False, dir=sys.argv[1]) as run:
    with trace.get_tracer("library").start_as_current_span("query"): pass
    early.add(1)
    metrics.get_meter("late").create_histogram("late").record(1)
om.start("y", provider="install", agent="none", console=False, dir=sys.argv[1]).stop()
import os
from otel_mlperf.journal.journal_reader import JournalReader
reader = JournalReader(run._recorder.journal.path, run._recorder.journal.buffer)
for entry in reader.new_entries().values():
    if entry[0] == "section": print("section", entry[1])
    elif entry[0] == "cell": print(entry[1], entry[2])
os.unlink(run._recorder.journal.path); os.rmdir(os.path.dirname(run._recorder.journal.path))
"""
OWN = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.metrics import MeterProvider
trace.set_tracer_provider(TracerProvider())
metrics.set_meter_provider(MeterProvider())
"""


@pytest.mark.fault("F59")
@pytest.mark.parametrize(("before", "is_ours"), [("", True), (OWN, False)], ids=["none", "own"])
def test_install(tmp_path, before, is_ours):
    """It is installed where the application has none; one that it has is left alone, and said.

    Instruments that were made before the run begins record, too.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    theirs = {"section query", "counter early", "histogram late", "gauge asked"}
    assert theirs & {*done.stdout.splitlines()} == (theirs if is_ours else set())
    assert done.stderr.count("provider, which is kept") == (0 if is_ours else 2)
    assert "Overriding" not in done.stderr
