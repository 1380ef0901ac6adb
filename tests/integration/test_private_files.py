"""Nobody else may read what a run has recorded, whatever the umask says."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from runs import Running, run_program
from servers.running import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOWHERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_MLPERF_DRAIN_TIMEOUT_S": "0"}
"""So that requests wait on disk."""
ONE_WINDOW = {
    "OTEL_MLPERF_PROFILE": "wait=2,warmup=1,active=2",
    "OTEL_MLPERF_DRAIN_TIMEOUT_S": "10",
}


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """What in a folder others may do anything with, and the mode of each."""
    modes = {path: path.stat().st_mode for path in [folder, *folder.rglob("*")]}
    return {
        str(path.relative_to(folder)): stat.filemode(mode)
        for path, mode in modes.items()
        if mode & 0o077
    }


@pytest.mark.fault("S20")
def test_a_run_folder_is_its_owners_alone(tmp_path) -> None:
    """Tables, logs, requests, accounts, all of mode 0600 in folders of 0700."""
    ended = run_program(tmp_path / "runs", **NOWHERE).settled()

    assert {"agent", "tables", "accounting"} <= {path.name for path in ended.folder.iterdir()}
    assert open_to_others(ended.folder) == {}


@pytest.mark.slow
@pytest.mark.fault("S20")
def test_what_an_agent_in_a_thread_has_written_is_its_owners_alone(tmp_path) -> None:
    """The program's umask is not its own to change: each file is made so."""
    with Running(tmp_path / "runs", "--pause", "0.01", OTEL_MLPERF_AGENT="thread") as program:
        wait_until(lambda: [*(tmp_path / "runs").glob("*/accounting/*.json")], what="a flush")
        ended = program.end()

    assert ended.code == 0
    assert open_to_others(ended.folder) == {}


@pytest.mark.slow
@pytest.mark.fault("S20")
def test_profiler_windows_are_their_owners_alone(tmp_path) -> None:
    """Traces, what they became, and the log of their conversion."""
    ended = run_program(tmp_path / "runs", program="windows.py", **NOWHERE | ONE_WINDOW).settled()

    assert list(ended.folder.glob("profiles/*.pt.trace.json"))
    assert open_to_others(ended.folder) == {}
