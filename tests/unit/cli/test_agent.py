"""Where do ``agent`` and ``recover`` look for the journals of one run?"""

from __future__ import annotations

import json

from otel_mlperf.cli.agent import _folders


def test_journals_on_disk_are_found(tmp_path):
    """Where shared memory had no room they lie in the run folder, and are read there."""
    run = tmp_path / "digits-0123"
    run.mkdir()
    facts = {"id": "0123", "name": "digits", "started_ns": 1}
    (run / "run.json").write_text(json.dumps(facts))
    before = _folders(str(run))
    (run / "journals").mkdir()
    (run / "journals" / "0-1-1.journal").touch()

    assert before == []
    assert _folders(str(run)) == [run / "journals"]
