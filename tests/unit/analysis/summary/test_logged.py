"""Values logged by the program are summed over labels, ranks and restarts."""

from __future__ import annotations

import json

from run_folders import START, RunFolderBuilder, S
from summaries import summary_of


def count(run, name, labels, *values, rank=0, restart=0):
    """Readings of what the program counts, a second apart."""
    for at, value in enumerate(values):
        run.row(
            "readings", rank=rank, restart=restart, name=f"ml.user.{name}",
            labels=json.dumps(labels), time_ns=START + at * S, value=float(value),
        )  # fmt: skip


def test_what_was_counted_is_the_sum_over_labels_ranks_and_restarts(tmp_path):
    """Each label set by itself, too; a gauge is no sum but the last value that was set."""
    run = RunFolderBuilder(tmp_path)
    about = (("seen", "", "counter"), ("depth", "1", "gauge"), ("wait", "s", "histogram"))
    for name, unit, kind in about:
        run.row("instruments", rank=0, restart=0, name=f"ml.user.{name}", unit=unit, kind=kind)
    count(run, "seen", {"lang": "de"}, 1, 5)
    count(run, "seen", {"lang": "de"}, 2, 20, rank=1)
    count(run, "seen", {"lang": "de"}, 100, restart=1)
    count(run, "seen", {"lang": "en"}, 1000)
    count(run, "depth", {}, 9, 8, 3)
    count(run, "depth", {}, 70, rank=1)
    count(run, "wait.count", {}, 2, 4)
    count(run, "wait.sum", {}, 0.5, 1.5)
    count(run, "old.count", {}, 7)

    summary = summary_of(run)

    assert summary.counted == {"old.count": 7, "seen": 1125, "wait.count": 4, "wait.sum": 1.5}
    assert [(one.name, one.kind, one.labels, one.value, one.count) for one in summary.series] == [
        ("depth", "gauge", {}, 3, None),
        ("old.count", "counter", {}, 7, None),
        ("seen", "counter", {"lang": "de"}, 125, None),
        ("seen", "counter", {"lang": "en"}, 1000, None),
        ("wait", "histogram", {}, 1.5, 4),
    ]
    assert [one.unit for one in summary.series] == ["1", "", "", "", "s"]


def test_instruments_of_opentelemetry_stand_by_their_own_names(tmp_path):
    """What goes up and down is each rank's last value; the package's own are not there."""
    run = RunFolderBuilder(tmp_path)
    about = (("requests", "updowncounter"), ("gen.wait", "histogram"), ("gen.tokens", "counter"))
    for name, kind in (*about, ("cpython.gc.collections", "counter")):
        run.row("instruments", rank=0, restart=0, name=name, unit="", kind=kind)
    for rank, values in enumerate(((5, 9, 2), (4,))):
        for at, value in enumerate(values):
            for name in ("requests", "gen.tokens", "gen.wait.sum", "cpython.gc.collections"):
                run.row(
                    "readings", rank=rank, restart=0, name=name, labels="{}",
                    time_ns=START + at * S, value=float(value),
                )  # fmt: skip

    summary = summary_of(run)

    found = {(one.name, one.kind): one.value for one in summary.series}
    assert found == {
        ("gen.tokens", "counter"): 13,
        ("gen.wait", "histogram"): 13,
        ("requests", "updowncounter"): 6,
    }
