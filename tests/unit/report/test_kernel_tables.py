"""The tables of a window's kernels are readable."""

from __future__ import annotations

import pytest
from kineto_traces import allocation, event, kernel, launch, operator, real_traces, write_trace

from otel_mlperf.analysis.profiles.kernel_rows import BY
from otel_mlperf.analysis.profiles.kernel_totals import find_kernels
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import rows_of
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.quantities import size
from otel_mlperf.report.kernel_tables import render_kernels
from otel_mlperf.terminal_lines import columns

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def found_in(path, by=None):
    """What is found in a trace file."""
    trace = read_trace(path)
    links = link(trace)
    rows = rows_of(trace, count(trace, links), links.orphans)
    return find_kernels(rows, path.name, by, trace.world_size)


def step():
    """A forward pass of two kernels with a late second launch, a collective and a copy."""
    annotate = {"category": "user_annotation"}
    copy = {"category": "gpu_memcpy", "pid": 0, "tid": 7, "device": 0, "stream": 7}
    return [
        event("ProfilerStep#4", 0, 1000, **annotate),
        event("forward", 0, 600, **annotate),
        operator("aten::mm", 10, 40, external=1),
        launch(20, 5, 1, **{"External id": 1}),
        kernel("volta_sgemm_128x64_nn", 30, 200, 1),
        operator("aten::stack", 240, 150, external=2),
        launch(400, 5, 2),
        kernel("void at::native::relu_kernel<float>(float*)", 410, 90, 2),
        launch(500, 5, 3),
        kernel(NCCL, 520, 300, 3, stream=9),
        event("Memcpy HtoD (Pageable -> Device)", 900, 50, **copy, bytes=600_000),
        allocation(100, 1 << 30, allocated=3 << 30, reserved=5 << 30),
    ]


def test_a_device_is_told_by_one_line_a_table_and_what_it_waited_for(tmp_path):
    """The first line has busy, idle and communication; every figure is in the trace."""
    path = write_trace(tmp_path / "step.json", step(), distributedInfo={"rank": 1, "world_size": 2})

    assert render_kernels(found_in(path)) == (
        """\
GPU busy 64 %, idle 36 %, communication 30 % (30 % exposed) of the window
step.json · rank 1 of 2 · 1.00 ms · 11 events · 1 step
  kernel                                calls    total  % busy     mean  section
  ncclDevKernel_AllReduce_Sum_f32_RIN…      1   300 µs    47 %   300 µs  forward
  volta_sgemm_128x64_nn                     1   200 µs    31 %   200 µs  forward
  relu_kernel                               1  90.0 µs    14 %  90.0 µs  forward
  Memcpy HtoD (Pageable -> Device)          1  50.0 µs     8 %  50.0 µs
  total                                     4   640 µs   100 %
work     compute 290 µs, communication 300 µs, copies 50.0 µs (50.0 µs exposed)
idle     360 µs, of which 280 µs in 3 gaps
         180 µs waiting for the host, 20.0 µs for the device, 80.0 µs unknown
longest  gap of 180 µs, host in aten::stack
         gap of 80.0 µs, host outside operators
         gap of 50.0 µs after the last device work, host outside operators
launch   delay from call to start: p50 5.00 µs, p95 15.0 µs, max 15.0 µs
         3 of 3 launches have a device record
copies   Memcpy HtoD (Pageable -> Device) ×1: 50.0 µs, 600 kB at 12.0 GB/s
memory   peak 3.00 GiB allocated of 5.00 GiB reserved
unlinked 1 × launch unknown
"""
    )


def test_a_trace_without_devices_says_so(tmp_path):
    """And shows operators by their own time."""
    path = write_trace(
        tmp_path / "cpu.json", [operator("aten::mm", 0, 30), operator("aten::add", 40, 10)]
    )

    assert render_kernels(found_in(path)) == (
        """\
CPU only: no kernel, copy or memset was recorded
cpu.json · rank 0 · 50.0 µs · 2 events
  operator                                       calls     self  % self     mean
  aten::mm                                           1  30.0 µs    75 %  30.0 µs
  aten::add                                          1  10.0 µs    25 %  10.0 µs
  total                                              2  40.0 µs   100 %
"""
    )


def test_a_trace_with_rows_that_are_not_known_is_not_said_to_be_of_a_cpu_only(tmp_path):
    """The first process is in the first line, others have lines below the table."""
    entries = [operator("aten::mm", 0, 30)]
    for process, many in (("NPU 0", 3), ("NPU 1", 1)):
        entries += [event("op", 5, 1, category="", pid=process, tid=1)] * many

    lines = render_kernels(found_in(write_trace(tmp_path / "npu.json", entries))).splitlines()

    assert lines[0] == (
        "no known device work: device rows of process NPU 0 (3 events) have unknown types"
    )
    assert lines[-1] == "unknown  device rows of process NPU 1 (1 event) have unknown types"


def test_damage_hides_no_row_that_is_not_known(tmp_path):
    """The first line has the first process, and that only a part could be read."""
    npu = event("op", 5, 1, category="", pid="NPU 0", tid=1)
    entries = [operator("aten::mm", 0, 30), npu, {"ph": "E", "pid": 9, "tid": 9, "ts": 90}]

    text = render_kernels(found_in(write_trace(tmp_path / "npu.json", entries)))

    assert " ".join(text.split()).startswith(
        "no known device work in the part that could be read: device rows of process NPU 0 "
        "(1 event) have unknown types npu.json"
    )


def test_sections_count_what_ran_in_them(tmp_path):
    """Kernels where a device was at work, else the outermost operators."""
    found = found_in(write_trace(tmp_path / "step.json", step()), "section")
    assert render_kernels(found).splitlines()[2].split() == [
        "section", "kernels", "total", "%", "busy", "mean",
    ]  # fmt: skip

    host = [entry for entry in step() if entry.get("cat") in {"cpu_op", "user_annotation"}]
    found = found_in(write_trace(tmp_path / "cpu.json", host), "section")
    lines = render_kernels(found).splitlines()
    assert lines[2].split() == ["section", "operators", "total", "%", "window", "mean"]
    assert lines[3].split()[:4] == ["forward", "2", "190", "µs"]


def test_what_is_beyond_the_top_is_summed(tmp_path):
    """Rows that are not shown are counted, so that the column adds up."""
    path = write_trace(tmp_path / "step.json", step())
    lines = render_kernels(found_in(path), top=2).splitlines()

    assert lines[4].split()[:2] == ["volta_sgemm_128x64_nn", "1"]
    assert lines[5].split() == ["…", "2", "more", "2", "140", "µs", "22", "%"]
    assert lines[6].split() == ["total", "4", "640", "µs", "100", "%"]


def test_a_section_of_one_letter_leaves_room_for_its_heading(tmp_path):
    """No line is wider than the terminal."""
    entries = [event("a", 0, 9, category="user_annotation"), operator("aten::mm", 1, 2)]
    lines = render_kernels(found_in(write_trace(tmp_path / "t.json", entries))).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[2].endswith("  section")


def test_communication_stands_out_in_colour_alone(tmp_path):
    """Red with colour; the same characters without."""
    found = found_in(write_trace(tmp_path / "step.json", step()))
    coloured = render_kernels(found, color=True)

    assert "\x1b[31m  ncclDevKernel" in coloured
    assert "\x1b" not in render_kernels(found)


def test_devices_have_a_line_each_where_there_are_several(tmp_path):
    """The first line is of all of them together."""
    entries = [
        operator("aten::mm", 0, 100),
        kernel("a", 0, 50, 1, device=0),
        kernel("b", 0, 100, 2, device=1),
    ]
    lines = render_kernels(found_in(write_trace(tmp_path / "two.json", entries))).splitlines()

    assert lines[0] == "GPU busy 75 %, idle 25 %, communication 0 % of the window"
    assert lines[2:4] == [
        "  rank 0 device 0: busy 50 %, idle 50 %, communication 0 %",
        "  rank 0 device 1: busy 100 %, idle 0 %, communication 0 %",
    ]


def test_damage_is_told_with_its_place(tmp_path):
    """What could be read is shown, and where the rest is missing."""
    path = write_trace(tmp_path / "cut.json", step())
    text = path.read_text()
    path.write_text(text[: text.index("Memcpy HtoD")])
    shown = render_kernels(found_in(path))

    assert shown.startswith("GPU busy")
    (line,) = [line for line in shown.splitlines() if line.startswith("damaged  ")]
    assert "truncated, first at byte " in line


def test_a_damaged_trace_is_not_said_to_be_of_a_cpu(tmp_path):
    """Kernels may have been in the part that is lost."""
    path = write_trace(tmp_path / "cut.json", step())
    text = path.read_text()
    path.write_text(text[: text.index("volta_sgemm")])

    first = render_kernels(found_in(path)).splitlines()[0]
    assert first == "no kernel, copy or memset in the part that could be read"


@pytest.mark.parametrize("by", [None, *BY])
def test_an_empty_trace_has_no_events(tmp_path, by):
    """Which is not the same as events of a CPU only."""
    path = tmp_path / "empty.json"
    path.write_text("[]")

    assert render_kernels(found_in(path, by)) == "no events\nempty.json · rank 0 · 0 s · 0 events\n"


def collectives():
    """What a trace of gloo has: annotations, and next to nothing of operators."""
    annotate = {"category": "user_annotation"}
    return [
        event("ProfilerStep#4", 0, 1000, **annotate),
        event("gloo:all_reduce", 100, 300, **annotate),
        event("gloo:all_reduce", 500, 200, tid=7, **annotate),
        event("gloo::not_one", 800, 200, **annotate),
        operator("aten::empty", 2000, 1),
    ]


def test_collectives_without_a_kernel_are_seen_at_once(tmp_path):
    """Their annotations tell what a process of a CPU waited for."""
    path = write_trace(tmp_path / "gloo.json", collectives())

    lines = render_kernels(found_in(path)).splitlines()
    assert lines[2] == "collectives: 500 µs in gloo:all_reduce ×2; --by annotation"
    assert render_kernels(found_in(path, "annotation")).splitlines()[2].endswith("×2")
    device = write_trace(tmp_path / "gpu.json", [*collectives(), kernel(NCCL, 520, 300, 3)])
    assert "collectives" not in render_kernels(found_in(device))


@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("kernel", "no kernel: no device work was recorded"),
        ("stream", "no stream: no device work was recorded"),
        ("step", "no step in which an operator was busy"),
        ("phase", "no phase is known: the window was not recorded in the steps of a run"),
    ],
)
def test_where_nothing_is_it_says_what_there_is(tmp_path, by, why):
    """By which other groups there are rows."""
    found = found_in(write_trace(tmp_path / "gloo.json", collectives()), by)

    assert [line.strip() for line in render_kernels(found).splitlines()[3:]] == [
        why,
        "available: --by operator (1 row), --by annotation (3 rows)",
    ]


def test_where_no_operator_is_it_says_no_more(tmp_path):
    """Nothing was at work in an operator, as there is none."""
    path = write_trace(tmp_path / "t.json", [event("x", 0, 9, category="unheard_of")])

    assert render_kernels(found_in(path)).splitlines()[-1] == "  no operator was recorded"


@pytest.fixture(scope="module", params=real_traces())
def recorded(request):
    """The rows of each recorded trace."""
    trace = read_trace(request.param)
    links = link(trace)
    return rows_of(trace, count(trace, links), links.orphans)


@pytest.mark.parametrize("by", BY)
def test_every_line_of_a_recorded_trace_fits(recorded, by):
    """However long its names are, in whatever way it is grouped."""
    for width in (70, 80, 100, 200):
        found = find_kernels(recorded, "x" * 99, by)
        lines = render_kernels(found, width=width).splitlines()

        assert max(map(columns, lines)) <= width
        assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("count", "step", "expected"),
    [
        (0, 1000, "0 B"),
        (999, 1000, "999 B"),
        (1000, 1000, "1.00 kB"),
        (307_323_096, 1000, "307 MB"),
        (999_960, 1000, "1.00 MB"),
        (6_629_508_096, 1024, "6.17 GiB"),
        (3 << 40, 1024, "3.00 TiB"),
    ],
)
def test_bytes_have_three_figures(count, step, expected):
    """With the unit that suits them."""
    assert size(count, step) == expected


def test_overlap_with_a_duration_that_is_far_too_long_is_reported(tmp_path):
    """Its share of busy time is small because that duration is in it."""
    stuck = kernel("stuck", 500, 30_000_000, 9)
    kernels = [kernel("gemm", 100 * at, 100, at) for at in range(1, 9)]

    text = render_kernels(found_in(write_trace(tmp_path / "stuck.json", [*kernels, stuck])))

    assert "\noverlap  work on the same stream overlaps by 400 µs: normal for graphs" in text


def test_work_that_overlaps_on_one_stream_is_said(tmp_path):
    """Rows then add up to more than busy; streams that run beside each other are none of it."""
    sound = [launch(0, 5, 1), kernel("a", 10, 50, 1), kernel("b", 30, 50, 2, stream=9)]
    lines = render_kernels(found_in(write_trace(tmp_path / "sound.json", sound))).splitlines()
    assert not [line for line in lines if line.startswith("overlap")]

    longer = [*sound, kernel("c", 40, 40, 3)]
    found = found_in(write_trace(tmp_path / "longer.json", longer))
    assert (found.total.busy_ns, found.total.overlap_ns) == (70_000, 20_000)
    assert (
        "\noverlap  work on the same stream overlaps by 20.0 µs: normal for graphs"
    ) in render_kernels(found)
