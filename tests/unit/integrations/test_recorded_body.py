"""Recording a piece of program leaves nothing behind in its process."""

from __future__ import annotations

from open_files import open_files

import otel_mlperf as om
from otel_mlperf.integrations.recorded_body import record_body


def test_nothing_of_a_journal_stays():
    """Neither its file nor its memory: a test file may record thousands of bodies."""
    before = open_files()
    for _ in range(3):
        with record_body("body"), om.step():
            pass

    stayed = open_files() - before
    assert [name for name in stayed if "journal" in name] == []
