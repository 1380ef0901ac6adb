"""What is read and delivered by hand, beside agents that do it themselves."""

from __future__ import annotations

import pytest

from otel_mlperf.agent.process import OnlyOne
from otel_mlperf.agent.recover import deliver_rest
from otel_mlperf.agent.requests import Requests
from otel_mlperf.errors import RunServed
from otel_mlperf.store.runs import RunFile, RunFolder


@pytest.fixture
def run(run_folder):
    """A run whose journals found no room in shared memory, with a request that waits."""
    (run_folder / "journals").mkdir()
    Requests(run_folder / "agent" / "node" / "requests", 1 << 20).add(1, "traces", 5, b"waits")
    return RunFolder(run_folder, RunFile(id="not-in-shared-memory", name="digits", started_ns=0))


def files(run):
    """What an agent works with."""
    return {path: path.read_bytes() for path in run.path.glob("agent/**/*") if path.is_file()}


def test_files_of_an_agent_that_is_at_work_are_left_alone(run):
    """While it serves the run, nothing of its is sent, written or removed, and it is said."""
    before = files(run)
    with OnlyOne(run.path / "journals") as is_mine:
        assert is_mine
        with pytest.raises(RunServed, match="its agent still runs on this node"):
            deliver_rest(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})

    assert files(run) == before
