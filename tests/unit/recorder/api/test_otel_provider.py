"""With ``provider="install"``, does what other libraries record land in the journal?

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
from opentelemetry import trace
import otel_mlperf as om
{before}
with om.start("x", provider="install", agent="none", console=False, dir=sys.argv[1]) as run:
    with trace.get_tracer("library").start_as_current_span("query"): pass
import os
from otel_mlperf.journal.journal_reader import JournalReader
reader = JournalReader(run._recorder.journal.path, run._recorder.journal.buffer)
print([entry[1] for entry in reader.new_entries().values() if entry[0] == "section"])
os.unlink(run._recorder.journal.path); os.rmdir(os.path.dirname(run._recorder.journal.path))
"""
OWN = """
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""


@pytest.mark.fault("F59")
@pytest.mark.parametrize(("before", "is_ours"), [("", True), (OWN, False)], ids=["none", "own"])
def test_install(tmp_path, before, is_ours):
    """It is installed where the application has none; one that it has is left alone, and said."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ("'query'" in done.stdout) is is_ours
    assert ("has a tracer provider already" in done.stderr) is not is_ours
