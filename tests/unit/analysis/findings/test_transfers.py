"""Steps that wait for copies to the device are found."""

from __future__ import annotations

import pytest
from run_folders import MS, RunFolderBuilder

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run

_FIGURES = (
    *("first_ns", "last_ns", "count", "busy_ns", "idle_ns", "gap_ns", "gaps", "host_wait_ns"),
    *("device_wait_ns", "unknown_wait_ns", "compute_ns", "communication_ns"),
    *("compute_communication_ns", "compute_copy_ns", "communication_copy_ns"),
    *("exposed_communication_ns", "launches", "early"),
    *("delay_p50_ns", "delay_p95_ns", "delay_max_ns"),
)
KEY = {"rank": 0, "restart": 0, "digest": "aa"}


def steps(tmp_path, transfer_ms=0.0):
    run = RunFolderBuilder(tmp_path)
    for n in range(20):
        parts = {"forward": 20 * MS, "transfer": int(transfer_ms * MS)}
        run.step(n, n * 30 * MS, {name: ns for name, ns in parts.items() if ns})
    run.process(600 * MS)
    return run


def profiled(run, exposed_ms, *copies):
    """A window of 100 ms, and its copies: direction, milliseconds, whether from pageable memory."""
    row = dict.fromkeys(_FIGURES, 0) | {"device": 0, "stream": None, "window_ns": 100 * MS}
    spent = sum(ms for _, ms, _ in copies)
    run.row("streams", **KEY, **row, copy_ns=spent * MS, exposed_copy_ns=exposed_ms * MS)
    for direction, ms, pageable in copies:
        fields = {"device": 0, "direction": direction, "name": direction, "pageable": pageable}
        times = {"count": 1, "total_ns": ms * MS, "sized_ns": 0, "bytes": None}
        run.row("copies", **KEY, **fields, **times)
    return run


def found_in(run):
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found}.get("transfer")


def test_copies_that_nothing_runs_beside(tmp_path):
    """Their share of the window, and that memory is not pinned."""
    one = found_in(profiled(steps(tmp_path), 30, ("H2D", 30, True), ("D2H", 10, True)))

    assert one.evidence["share"] == pytest.approx(0.3 * 30 / 40)
    assert one.summary.endswith(
        "do not overlap with computation: most of the copied memory is not pinned"
    )
    assert "pin_memory=True" in one.action
    assert one.gain.high == pytest.approx(0.225)


@pytest.mark.parametrize(
    ("exposed_ms", "copies"),
    [(3, [("H2D", 40, False)]), (30, [("D2H", 30, True)]), (0, [])],
)
def test_copies_that_hold_up_nobody(tmp_path, exposed_ms, copies):
    """Beside the work, or in the other direction."""
    assert found_in(profiled(steps(tmp_path), exposed_ms, *copies)) is None


def test_sections_of_transfers(tmp_path):
    """Of a run that was not profiled."""
    one = found_in(steps(tmp_path / "long", transfer_ms=10))

    assert one.where.section == "transfer"
    assert one.gain.high == pytest.approx(1 / 3)
    assert found_in(steps(tmp_path / "short", transfer_ms=1)) is None
