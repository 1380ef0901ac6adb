"""One profiled step is exactly its part of its windows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from kineto_traces import PID, event, kernel, launch, operator, real_traces, write_trace
from run_folders import MS, RUN_ID, START, RunFolderBuilder

from otel_mlperf import ids
from otel_mlperf.analysis.profiles.kernel_totals import find_kernels, find_step, read_rows
from otel_mlperf.analysis.profiles.profiled_steps import (
    choose_step,
    find_profiled,
    read_step_events,
)
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.journal.profiler_windows import Window, WindowStep
from otel_mlperf.kineto.convert import convert, store
from otel_mlperf.kineto.counting.attribution import find_attribution
from otel_mlperf.kineto.counting.stored_step import count_step
from otel_mlperf.kineto.counting.totals import self_times, totals
from otel_mlperf.kineto.linking.sections import no_sections
from otel_mlperf.kineto.spans.budget import Budget
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store
from otel_mlperf.store.window_facts import StepEvents

ADDED = ("count", "total_ns", "self_ns", "device_ns")
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


class Profiled:
    """A run folder with windows."""

    def __init__(self, folder):
        self.path = folder
        self.rows = read_rows(read_run(folder))
        self.store = Store(folder)
        self.known = find_profiled(self.rows.windows)

    def chosen(self, number, phase=None):
        """A step on every rank."""
        return choose_step(self.known, number, phase, "run 3f2a")

    def step(self, number, phase=None, by=None, rank=None):
        """What is found about it."""
        store = self.store if rank is None else Store(self.path, rank)
        chosen = self.chosen(number, phase)
        events = read_step_events(store, chosen)
        return find_step(self.rows, count_step(self.rows, events), events, "digits", by, 2)

    def parts(self):
        """The totals of every step, and of what is in none."""
        inside = set()
        for number, phase in {(one.number, one.phase) for one in self.known}:
            chosen = self.chosen(number, phase)
            events = read_step_events(self.store, chosen)
            inside |= {row["span_id"] for row in events.events}
            yield count_step(self.rows, events).totals
        stored = self.store.records("SELECT * FROM spans WHERE kind = 'event'")
        rest = [row for row in stored if row["span_id"] not in inside]
        nowhere = StepEvents("", "", 0, [], rest, {}, {})
        yield count_step(self.rows, nowhere).totals


def added(totals, whats):
    """The figures of all rows, by what they are of."""
    found = Counter()
    for row in totals:
        if row.what in whats:
            for figure in ADDED:
                found[row.what, row.category, row.name, figure] += getattr(row, figure)
    return found


@pytest.mark.parametrize("path", real_traces())
def test_steps_of_a_real_trace_add_up_to_its_totals(path, tmp_path):
    """With what is in no step they are each kernel and operator of the window, to the ns."""
    run = RunFolderBuilder(tmp_path)
    run.process(10**9)
    folder = run.write()
    store(convert(path, Budget(100)), folder)
    profiled = Profiled(folder)
    if not profiled.known:
        pytest.skip("it shows no step")
    whats = ("kernel", "operator", "annotation", "stream")

    of_steps = added([row for part in profiled.parts() for row in part], whats)

    assert of_steps == added(profiled.rows.totals, whats)
    for one in profiled.known:
        (row,) = profiled.step(one.number, by="step").rows
        figures = find_kernels(profiled.rows, "", "step").rows
        same = next(whole for whole in figures if whole.name == one.name)
        assert (row.calls, row.total_ns, row.p50_ns) == (same.calls, same.total_ns, same.p50_ns)


def counted(found, step):
    """The figures of a step's events by category and name, as a window's are counted."""
    trace, links = found.trace, found.links
    where = find_attribution(trace, links, no_sections(), None)
    events, many = trace.events, len(trace.names)
    mine = np.flatnonzero(where.step == where.steps.index(step))
    group = events.category.astype(np.int64) * many + events.name
    own = self_times(trace, links.around)
    figures = totals(group[mine], events.duration_ns[mine], own[mine])
    return {
        (trace.categories[key // many], trace.names[key % many]): of_name
        for key, of_name in figures
    }


@pytest.mark.parametrize("path", real_traces())
def test_a_step_of_a_real_trace_is_counted_alike_from_store_and_events(path, tmp_path):
    """Each kernel, operator and annotation of a step has the same figures, quantiles too."""
    run = RunFolderBuilder(tmp_path)
    run.process(10**9)
    folder = run.write()
    found = convert(path, Budget(100))
    store(found, folder)
    profiled = Profiled(folder)
    if not profiled.known:
        pytest.skip("it shows no step")

    for step in profiled.known:
        chosen = profiled.chosen(step.number, step.phase)
        events = read_step_events(profiled.store, chosen)
        rows = count_step(profiled.rows, events).totals
        whole = counted(found, step.name)
        by_name = [
            row
            for row in rows
            if row.what in ("kernel", "operator", "annotation")
            # Rows among the operators that are none are in the test above.
            and row.category not in ("device", "annotation")
        ]
        assert by_name
        for row in by_name:
            expected = whole[row.category, row.name]
            assert {figure: getattr(row, figure) for figure in expected} == expected, row.name


class Recorded:
    """A run with recorded steps of 2 ms: 4 and 5 of the training, 4 of the validation."""

    STEPS = (("train", 4, 0), ("train", 5, 2), ("validate", 4, 4))

    def __init__(self, folder):
        self.run = RunFolderBuilder(folder, world_size=2)
        self.run.process(1000 * MS)
        self.windows = []

    def process(self, entries, rank=0, restart=0, after=0):
        """The steps of a process that begins ``after`` so many ms, and its window."""
        steps = []
        for phase, number, at in self.STEPS:
            trace = ids.trace_id(RUN_ID, restart, phase, number).to_bytes(16, "big").hex()
            known = {"trace_id": trace, "thread_id": PID, "kept": "profiled", "rank": rank}
            known |= {"restart": restart, "phase": phase, "number": number}
            begin = (at + after) * MS
            step = self.run.span(number, f"{phase}.step", begin, 2 * MS, **known)
            self.run.span(
                number, "forward", begin, MS, parent_id=step, root_id=step, **known
            )  # fmt: skip
            steps.append(WindowStep(phase, number, number, step, trace))
        window = Window(
            run_id=RUN_ID, restart=restart, rank=rank, world_size=2, pid=PID + rank, number=0,
            trace=f"rank{rank}.{restart}.pt.trace.json", parent="00000000000000ee", steps=steps,
            start=(START + after * MS, 0), end=(START + (after + 7) * MS, 7 * MS),
            activities=["cpu"],
        )  # fmt: skip
        self.windows.append((window, entries))

    def write(self):
        """The folder, with its windows read."""
        folder = self.run.write()
        (folder / "profiles").mkdir()
        for window, entries in self.windows:
            path = write_trace(folder / "profiles" / window.trace, entries, base_ns=window.start[0])
            store(convert(path, window=window, run_folder=folder), folder)
        return Profiled(folder)


def work(scale=1, ident=0):
    """Kernels in each step, launched late in one and run in the next; the last is in none."""
    first, second, third = (ident + number for number in (1, 2, 3))
    return [
        operator("aten::linear", 100, 200, external=first),
        operator("aten::addmm", 120, 100, external=first),
        launch(130, 5, first, **{"External id": first}),
        kernel("gemm", 1900, 400 * scale, first, **{"External id": first}),
        operator("aten::linear", 2100, 300 * scale, external=second),
        launch(2110, 5, second, **{"External id": second}),
        kernel(NCCL, 2400, 200, second, stream=9, **{"External id": second}),
        operator("aten::mm", 3500, 50, external=third),
        launch(3510, 5, third, **{"External id": third}),
        kernel("gemm", 3550, 150, third, **{"External id": third}),
        event("forward", 2000.5, 999, category="user_annotation"),
        operator("aten::argmax", 4100, 40),
        operator("aten::after", 6500, 10),
    ]


def test_recorded_steps_add_up_to_their_windows(tmp_path):
    """Every kernel and operator, and every section, of both ranks."""
    run = Recorded(tmp_path)
    run.process(work())
    run.process(work(2, ident=100), rank=1, after=1)
    profiled = run.write()
    whats = ("kernel", "operator", "stream", "section")

    found = added([row for part in profiled.parts() for row in part], whats)

    assert found == added(profiled.rows.totals, whats)
    assert found["kernel", "kernel", "gemm", "total_ns"] == (400 + 800 + 150 + 150) * 1000


def test_work_counts_for_the_step_that_launched_it(tmp_path):
    """A kernel that ran in the next step is not that one's."""
    run = Recorded(tmp_path)
    run.process(work())
    profiled = run.write()
    first, second = profiled.step(4), profiled.step(5)

    assert [(row.name, row.total_ns, row.section) for row in first.rows] == [
        ("gemm", 400_000, "forward")
    ]
    assert (first.step.name, first.step.phase, first.step.duration_ns) == (
        "train step 4", "train", 2 * MS,
    )  # fmt: skip
    assert (first.step.busy_ns, first.step.communication_ns) == (400_000, 0)
    assert [(row.name, row.total_ns, row.share) for row in second.rows] == [
        (NCCL, 200_000, 200 / 350),
        ("gemm", 150_000, 150 / 350),
    ]
    assert second.step.communication_ns == second.step.exposed_communication_ns == 200_000
    by_operator = {row.name: row for row in profiled.step(5, by="operator").rows}
    assert by_operator["aten::linear"].device_ns == 200_000
    assert by_operator["aten::linear"].self_ns == 295_000
    busy = {row.name: (row.measured_ns, row.share) for row in profiled.step(5, by="stream").rows}
    assert busy["device 0 stream 9"] == (200_000, 0.1)


def test_a_step_takes_its_own_time(tmp_path):
    """Without a validation inside it, as ``show`` says; what never ended took its span's."""
    run = Recorded(tmp_path)
    run.process(work())
    run.run.step(4, 0, {"forward": MS}, own=MS // 2)
    profiled = run.write()

    assert profiled.step(4).step.duration_ns == MS + MS // 2
    assert profiled.step(5).step.duration_ns == 2 * MS


def test_overlapped_communication_is_not_exposed(tmp_path):
    """What was computed for the step beside it is taken out."""
    entries = [
        operator("aten::mm", 100, 50, external=1),
        launch(110, 5, 1),
        launch(120, 5, 2),
        kernel("gemm", 200, 100, 1),
        kernel(NCCL, 250, 150, 2, stream=9),
    ]
    run = Recorded(tmp_path)
    run.process(entries)
    step = run.write().step(4).step

    assert (step.busy_ns, step.communication_ns) == (200_000, 150_000)
    assert step.exposed_communication_ns == 100_000


def test_work_of_an_unknown_device_is_busy_time_of_no_stream(tmp_path):
    """The events of a step have the numbers that the trace itself gives them."""
    known = {"correlation": 1, "stream": 7}
    entries = [
        operator("aten::mm", 100, 50, external=1),
        launch(110, 5, 1),
        event("gemm", 200, 100, category="kernel", pid=0, tid=7, **known),
    ]
    run = Recorded(tmp_path)
    run.process(entries)
    profiled = run.write()

    assert profiled.step(4).step.busy_ns == 100_000
    assert profiled.step(4, by="stream").rows == []


def test_ranks_are_added_up_unless_one_is_asked_for(tmp_path):
    """One step of several ranks is one table; each has a row of its own by step."""
    run = Recorded(tmp_path)
    run.process(work())
    run.process(work(2, ident=100), rank=1)
    profiled = run.write()

    both, one = profiled.step(4), profiled.step(4, rank=1)

    assert (both.step.ranks, both.rows[0].total_ns) == ([0, 1], 1_200_000)
    assert both.step.duration_ns == 4 * MS
    assert (one.step.ranks, one.rows[0].total_ns) == ([1], 800_000)
    assert [row.name for row in profiled.step(4, by="step").rows] == [
        "train step 4 · rank 1",
        "train step 4 · rank 0",
    ]


def test_a_number_means_the_training_and_the_newest_restart(tmp_path):
    """Other phases are asked for by name."""
    run = Recorded(tmp_path)
    run.process(work())
    run.process(work(3, ident=100), restart=1, after=20)
    profiled = run.write()

    assert profiled.step(4).rows[0].total_ns == 1_200_000
    validation = profiled.step(4, "validate")
    assert (validation.by, validation.step.name, validation.step.busy_ns) == (
        "operator", "validate step 4", None,
    )  # fmt: skip
    assert [row.name for row in validation.rows] == ["aten::argmax"]


def test_a_step_that_was_not_profiled_names_those_that_were(tmp_path):
    """By phase, neighbours together."""
    run = Recorded(tmp_path)
    run.process(work())
    profiled = run.write()

    with pytest.raises(
        NoSuchStep, match="this step was not profiled; profiled steps: train 4-5, val"
    ):
        profiled.step(6)
    with pytest.raises(NoSuchStep, match="looking for test step 4 in the profiler windows of run"):
        profiled.step(4, "test")


def test_events_that_had_to_go_are_said_to(tmp_path):
    """The totals of a window outlive its events in a full run folder."""
    run = Recorded(tmp_path)
    run.process(work())
    profiled = run.write()
    for part in (profiled.path / "tables" / "spans").glob("*window*"):
        part.unlink()

    with pytest.raises(NoSuchStep, match="they were deleted for newer events"):
        Profiled(profiled.path).step(4)


def test_equal_times_do_not_change_whose_they_are(tmp_path):
    """Of operators with the same begin and end the outer one has no time of its own."""
    entries = [
        event("ProfilerStep#3", 0, 100, category="user_annotation"),
        operator("aten::empty", 10, 5, external=3),
        operator("aten::zeros", 10, 5, external=2),
        operator("aten::ones", 10, 5, external=1),
    ]
    run = RunFolderBuilder(tmp_path)
    run.process(10**9)
    folder = run.write()
    store(convert(write_trace(tmp_path / "t.json", entries)), folder)
    found = Profiled(folder).step(3, by="operator")

    assert {row.name: row.self_ns for row in found.rows} == {
        "aten::empty": 5000,
        "aten::zeros": 0,
        "aten::ones": 0,
    }
    assert (found.step.phase, found.step.duration_ns) == ("", 100_000)
