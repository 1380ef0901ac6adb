"""The windows of a run sum to what their rows contain."""

from __future__ import annotations

import json

import pytest
from run_folders import START, RunFolderBuilder

from otel_mlperf.analysis.profiles.kernel_rows import BY
from otel_mlperf.analysis.profiles.kernel_totals import read_kernels
from otel_mlperf.errors import NoSuchWindow
from otel_mlperf.store.run_folders import read_run

MS = 1_000_000


class Windows:
    """A run with windows of several ranks."""

    def __init__(self, folder):
        self.run = RunFolderBuilder(folder, world_size=2)
        self.run.process(1000 * MS)

    def window(self, digest, rank=0, length=100 * MS, **fields):
        """A window; what follows belongs to it."""
        self.key = {"rank": rank, "restart": 0, "digest": digest}
        row = {
            "number": 0,
            "trace": f"{digest}.pt.trace.json",
            "start_ns": START,
            "end_ns": START + length,
            "is_unix_time": True,
            "steps": json.dumps(["train step 5"]),
            "categories": json.dumps({"kernel": [3, 7], "cpu_op": [2, 9]}),
            "orphans": "{}",
            "damage": "[]",
        }
        self.run.row("windows", **self.key, **row | fields)

    def total(self, name, what="kernel", **fields):
        """Totals of one name."""
        row = {
            "what": what,
            "category": "kernel" if what == "kernel" else "cpu_op",
            "name": name,
            "device": None,
            "stream": None,
            "kind": "compute" if what == "kernel" else "",
            "section": "",
            "section_ns": 0,
            "count": 1,
            "total_ns": 0,
            "self_ns": 0,
            "device_ns": 0,
            "min_ns": 0,
            "max_ns": 0,
            "p50_ns": 0,
            "p95_ns": 0,
        }
        self.run.row("totals", **self.key, **row | fields)

    def device(self, busy, stream=None, window=100 * MS, **fields):
        """A device, or one stream of it."""
        row = dict.fromkeys(
            (
                *("first_ns", "last_ns", "count", "gap_ns", "gaps", "host_wait_ns"),
                *("device_wait_ns", "unknown_wait_ns", "compute_ns", "communication_ns"),
                *("copy_ns", "compute_communication_ns", "compute_copy_ns"),
                *("communication_copy_ns", "exposed_communication_ns", "exposed_copy_ns"),
                *("launches", "early", "delay_p50_ns", "delay_p95_ns", "delay_max_ns"),
            ),
            0,
        )
        own = {"device": 0, "stream": stream, "window_ns": window, "busy_ns": busy}
        self.run.row("streams", **self.key, **row | own | {"idle_ns": window - busy} | fields)

    def found(self, by=None, rank=None):
        """What is found in the folder, written now."""
        if not self.run.path.exists():
            self.run.write()
        run = read_run(self.run.path)
        return read_kernels(run, run.facts.name, by, rank)


@pytest.fixture
def windows(tmp_path):
    """A run folder to be filled."""
    return Windows(tmp_path)


def test_windows_add_up_and_their_quantiles_are_not_made_up(windows):
    """Counts and times are sums, extremes extremes; p50 and p95 are of a single window only."""
    windows.window("aa")
    windows.device(40 * MS, delay_p50_ns=5, delay_p95_ns=8, delay_max_ns=9)
    windows.total("gemm", count=2, total_ns=30, min_ns=10, max_ns=20, p50_ns=10, p95_ns=20)
    windows.total("relu", count=1, total_ns=7, min_ns=7, max_ns=7, p50_ns=7, p95_ns=7)
    windows.window("bb", rank=1)
    windows.device(20 * MS, delay_p50_ns=6, delay_p95_ns=7, delay_max_ns=70)
    windows.total("gemm", count=1, total_ns=60, min_ns=60, max_ns=60, p50_ns=60, p95_ns=60)
    found = windows.found()

    assert found.total.busy_ns == 60 * MS
    assert found.total.window_ns == 200 * MS
    assert (found.total.delay_p50_ns, found.total.delay_max_ns) == (None, 70)
    assert [(one.rank, one.busy_ns, one.delay_p50_ns) for one in found.devices] == [
        (0, 40 * MS, 5),
        (1, 20 * MS, 6),
    ]
    gemm, relu = found.rows
    assert (gemm.name, gemm.calls, gemm.total_ns, gemm.mean_ns) == ("gemm", 3, 90, 30.0)
    assert (gemm.min_ns, gemm.max_ns, gemm.p50_ns) == (10, 60, None)
    assert gemm.share == 90 / (60 * MS)
    assert relu.p50_ns == 7


def test_only_the_windows_of_a_rank_count_if_it_is_given(windows):
    """The store leaves out the rows of others."""
    windows.window("aa")
    windows.total("gemm", total_ns=30)
    windows.window("bb", rank=1)
    windows.total("relu", total_ns=60)

    assert [row.name for row in windows.found("kernel", rank=1).rows] == ["relu"]


def test_a_name_has_the_section_that_took_most_of_it_in_all_windows(windows):
    """Not that of the window that was read last."""
    windows.window("aa")
    windows.device(1)
    windows.total("gemm", total_ns=50, section="forward", section_ns=50)
    windows.window("bb")
    windows.device(1)
    windows.total("gemm", total_ns=40, section="backward", section_ns=40)

    assert windows.found().rows[0].section == "forward"


def test_without_devices_operators_are_shown_by_self_time(windows):
    """Shares are of the self time of all operators."""
    windows.window("aa")
    windows.total("aten::mm", "operator", total_ns=50, self_ns=30)
    windows.total("aten::linear", "operator", total_ns=60, self_ns=10)
    found = windows.found()

    assert (found.by, found.total) == ("operator", None)
    assert [(row.name, row.measured_ns, row.share) for row in found.rows] == [
        ("aten::mm", 30, 0.75),
        ("aten::linear", 10, 0.25),
    ]


def test_with_devices_operators_are_shown_by_what_they_launched(windows):
    """Device time, of the time that devices were busy."""
    windows.window("aa")
    windows.device(100)
    windows.total("aten::linear", "operator", total_ns=900, self_ns=900, device_ns=0)
    windows.total("aten::mm", "operator", total_ns=50, self_ns=30, device_ns=80)
    found = windows.found("operator")

    assert [(row.name, row.measured_ns) for row in found.rows] == [
        ("aten::mm", 80),
        ("aten::linear", 0),
    ]
    assert found.rows[0].share == 0.8


def test_streams_are_shown_by_how_busy_they_were(windows):
    """Of several ranks each has its own."""
    for rank, digest in enumerate(("aa", "bb")):
        windows.window(digest, rank=rank)
        windows.device(60 * MS)
        windows.device((20 + rank) * MS, stream=7)
        name = "device 0 stream 7"
        windows.total(name, "stream", device=0, stream=7, count=3, total_ns=9, category="device")
    found = windows.found("stream")

    assert [(row.name, row.measured_ns, row.share) for row in found.rows] == [
        ("rank 1 device 0 stream 7", 21 * MS, 0.21),
        ("rank 0 device 0 stream 7", 20 * MS, 0.2),
    ]


def test_steps_of_one_name_are_not_added(windows):
    """Step 5 of two ranks, or of two traces of one rank, is not one step."""
    for digest, rank in (("aa", 0), ("bb", 1), ("cc", 1)):
        windows.window(digest, rank=rank)
        windows.total("train step 5", "step", category="host", total_ns=10 + rank)
    windows.total("train step 6", "step", category="host", total_ns=1)

    assert [(row.name, row.calls) for row in windows.found("step").rows] == [
        ("train step 5 · rank 1 · bb.pt.trace.json", 1),
        ("train step 5 · rank 1 · cc.pt.trace.json", 1),
        ("train step 5 · rank 0", 1),
        ("train step 6", 1),
    ]
    assert len(windows.found("step", rank=0).rows) == 1


def test_sections_are_of_the_device_where_there_is_one(windows):
    """What the host did in them is shown only where no device was at work."""
    windows.window("aa")
    windows.total("forward", "section", category="host", total_ns=70)
    windows.total("forward", "section", category="device", total_ns=40)
    assert windows.found("section").rows[0].total_ns == 70

    windows.run.path.rename(windows.run.path.with_name("before"))
    windows.device(80)
    assert [row.total_ns for row in windows.found("section").rows] == [40]


def test_copies_gaps_and_memory_are_told(windows):
    """Bandwidth is over the sized copies, gaps are the longest, peaks the highest."""
    windows.window("aa")
    windows.device(1)
    for count, size in ((2, 4000), (1, None)):
        windows.run.row(
            "copies", **windows.key, device=count, direction="H2D", name="Memcpy HtoD",
            pageable=True, count=count, total_ns=3000, sized_ns=2000 if size else 0, bytes=size,
        )  # fmt: skip
    for length in (10, 30, 20):
        windows.run.row(
            "gaps", **windows.key, device=0, start_ns=START + length, duration_ns=length,
            cause="host_wait", operator="aten::stack", thread="1", next="gemm",
        )  # fmt: skip
    for at, peak in enumerate((100, 700, 300)):
        windows.run.row(
            "allocator", **windows.key, device_type=1, device=0, time_ns=START + at,
            allocated_bytes=peak - 1, peak_bytes=peak, reserved_bytes=1000, change_bytes=0,
        )  # fmt: skip
    found = windows.found()

    (copies,) = found.copies
    assert (copies.calls, copies.total_ns, copies.bytes) == (3, 6000, 4000)
    assert copies.bytes_per_s == 4000 / 2e-6
    assert [gap.duration_ns for gap in found.gaps] == [30, 20, 10]
    (memory,) = found.memory
    assert (memory.allocated_bytes, memory.reserved_bytes) == (700, 1000)


def test_what_ran_when_most_memory_was_given_out(windows):
    """The section and the operator that had begun last on that rank and were not over."""
    windows.window("aa")
    for at, peak in ((10, 100), (50, 700), (90, 700)):
        windows.run.row(
            "allocator", **windows.key, device_type=1, device=0, time_ns=START + at,
            allocated_bytes=peak, peak_bytes=peak, reserved_bytes=1000, change_bytes=0,
        )  # fmt: skip
    for name, begin, end in (("train.step", 0, 99), ("forward", 1, 45), ("backward", 46, 80)):
        windows.run.span(None, name, begin, end - begin)
    for name, begin, end in (("aten::linear", 47, 60), ("aten::mm", 48, 52), ("aten::t", 53, 54)):
        windows.run.span(None, name, begin, end - begin, kind="event", category="operator")
    windows.run.span(None, "aten::other", 49, 9, kind="event", category="operator", rank=3)
    (memory,) = windows.found().memory

    assert (memory.allocated_bytes, memory.section, memory.operator) == (
        700,
        "backward",
        "aten::mm",
    )


def test_a_run_without_windows_says_how_to_get_one(windows):
    """The error names the run and the way out."""
    with pytest.raises(NoSuchWindow, match=r"in run 3f2a: the run has none; record a window with"):
        windows.found()


def test_a_rank_without_windows_is_told_which_ranks_have_some(windows):
    """As other commands do of ranks that are not there."""
    for rank in (0, 3):
        windows.window(f"{rank}a", rank=rank)
    with pytest.raises(
        NoSuchWindow,
        match="of rank 5 in run 3f2a: this rank has none; windows exist for ranks 0, 3",
    ):
        windows.found(rank=5)


def test_every_way_to_group_is_answered(windows):
    """Also where nothing was counted by it."""
    windows.window("aa")
    windows.device(1)

    assert {by: windows.found(by).rows for by in BY} == {by: [] for by in BY}
