"""To which step and section does each event belong, on its own thread and on autograd's."""

from __future__ import annotations

import numpy as np
import pytest
from kineto_traces import BASE_NS, PID, event, kernel, launch, operator, write_trace

from otel_mlperf.kineto.linking.link import Place, link
from otel_mlperf.kineto.linking.sections import Sections
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import NONE

ENGINE = 4400
STEP_TRACE, RUN_TRACE = 1, 2


def recorded(*rows):
    """Sections given as name, start and end in µs; a dictionary behind says what is special."""
    rows = [row if len(row) == 4 else (*row, {}) for row in rows]
    trace = [special.get("trace", STEP_TRACE) for *_, special in rows]
    return Sections(
        span_id=np.arange(1, len(rows) + 1, dtype=np.uint64),
        parent_id=np.zeros(len(rows), np.uint64),
        trace_id=np.array([[number] * 16 for number in trace], np.uint8).reshape(-1, 16),
        start_ns=np.array([BASE_NS + round(row[1] * 1000) for row in rows], np.int64),
        end_ns=np.array([BASE_NS + round(row[2] * 1000) for row in rows], np.int64),
        thread=np.array([special.get("thread", PID) for *_, special in rows], np.int64),
        is_step=np.array([row[0].endswith(".step") for row in rows], np.bool_),
        name=[row[0] for row in rows],
    )


def annotation(name, start, duration, **options):
    """A ``user_annotation``."""
    return event(name, start, duration, category="user_annotation", **options)


def back(name, start, duration, number, *, tid=ENGINE):
    """An operator of the backward pass, on autograd's thread."""
    args = {"Sequence number": number, "Fwd thread id": 1}
    return operator(name, start, duration, tid=tid, **args)


@pytest.fixture
def linked(tmp_path):
    """By name of the event: parent, section, step and place."""

    def build(*entries, sections=None, **options):
        trace = read_trace(write_trace(tmp_path / "t.json", entries, **options))
        links = link(trace, sections)
        event_names = [trace.names[name] for name in trace.events.name.tolist()] + [None]
        section_names = [*sections.name, None] if sections else [None]
        step_names = [step.name for step in links.steps] + [None]
        return {
            name: (
                event_names[links.parent[row]],
                section_names[links.section[row]],
                step_names[links.step[row]],
                Place(links.place[row]).name,
            )
            for row, name in enumerate(event_names[:-1])
        }

    return build


def test_device_event_counts_to_the_step_that_launched_it(linked) -> None:
    """The device is a step behind; what it does late belongs to who asked for it."""
    found = linked(
        annotation("ProfilerStep#1", 0, 100),
        operator("aten::mm", 10, 50),
        launch(20, 5, 7),
        annotation("ProfilerStep#2", 100, 100),
        kernel("gemm", 150, 20, 7),
    )

    assert found["gemm"] == ("aten::mm", None, "ProfilerStep#1", "LAUNCHED")
    assert found["ProfilerStep#2"] == (None, None, "ProfilerStep#2", "ROOT")


def test_device_event_counts_to_the_step_of_its_call_not_of_what_is_around(linked) -> None:
    """An annotation around several steps is in the first of them, or in none."""
    found = linked(
        annotation("epoch", 0, 900),
        annotation("ProfilerStep#1", 10, 100),
        annotation("ProfilerStep#2", 120, 100, tid=ENGINE),
        launch(150, 5, 7),
        kernel("gemm", 500, 20, 7),
    )

    assert found["gemm"] == ("epoch", None, "ProfilerStep#2", "LAUNCHED")


def test_other_threads_count_to_the_step_of_their_time(linked) -> None:
    """Annotations of steps are on one thread; what runs beside it in that time is theirs."""
    found = linked(
        annotation("ProfilerStep#1", 0, 100),
        operator("inside", 10, 50, tid=ENGINE),
        operator("after", 100, 50, tid=ENGINE),
    )

    assert found["inside"][2] == "ProfilerStep#1"
    assert found["after"][2] is None


def test_backward_operators_after_a_step_count_to_that_of_their_forward_operator(linked) -> None:
    """With all that is inside them."""
    found = linked(
        annotation("ProfilerStep#1", 0, 100),
        operator("aten::mm", 10, 50, **{"Sequence number": 3, "Fwd thread id": 0}),
        back("MmBackward0", 110, 50, 3),
        operator("aten::t", 120, 5, tid=ENGINE),
    )

    assert found["MmBackward0"][2] == "ProfilerStep#1"
    assert found["aten::t"] == ("MmBackward0", None, "ProfilerStep#1", "NESTED")


def test_roots_hang_under_the_innermost_section_of_their_thread(linked) -> None:
    """What is in a root stays under it; what is in no section has none."""
    found = linked(
        operator("aten::linear", 10, 30),
        operator("aten::addmm", 15, 20),
        operator("aten::add", 60, 10),
        operator("aten::late", 200, 10),
        sections=recorded(("train.step", 0, 100), ("forward", 5, 50)),
    )

    assert found == {
        "aten::linear": (None, "forward", "train.step", "SECTION"),
        "aten::addmm": ("aten::linear", None, "train.step", "NESTED"),
        "aten::add": (None, "train.step", "train.step", "SECTION"),
        "aten::late": (None, None, None, "ROOT"),
    }


def test_innermost_wins_between_annotations_and_sections(linked) -> None:
    """A section inside an annotation takes what is in it; the annotation stands beside."""
    found = linked(
        annotation("outer", 2, 90),
        annotation("inner", 12, 20),
        operator("aten::mm", 15, 10),
        operator("aten::add", 60, 10),
        launch(18, 2, 7),
        kernel("gemm", 300, 20, 7),
        sections=recorded(("train.step", 0, 100), ("forward", 10, 50)),
    )

    assert found["outer"] == (None, "train.step", "train.step", "SECTION")
    assert found["inner"] == (None, "forward", "train.step", "SECTION")
    assert found["aten::mm"] == ("inner", None, "train.step", "NESTED")
    assert found["aten::add"] == ("outer", None, "train.step", "NESTED")
    assert found["gemm"] == ("aten::mm", None, "train.step", "LAUNCHED")


def test_events_may_begin_a_little_before_their_section(linked) -> None:
    """By what the two clocks differ, and no more."""
    found = linked(
        operator("near", 98, 20),
        operator("far", 46, 20),
        sections=recorded(("forward", 50, 90), ("backward", 100, 190)),
    )

    assert found["near"][1] == "backward"
    assert found["far"][1] is None


def test_backward_pass_hangs_under_the_section_that_waits_for_it(linked) -> None:
    """Autograd runs it on a thread of its own, for the thread that ran the forward pass."""
    found = linked(
        operator("aten::mm", 10, 20, **{"Sequence number": 3, "Fwd thread id": 0}),
        back("MmBackward0", 60, 10, 3),
        operator("aten::t", 62, 5, tid=ENGINE),
        operator("AccumulateGrad", 75, 10, tid=ENGINE),
        operator("aten::between", 95, 2, tid=ENGINE),
        launch(63, 1, 7, tid=ENGINE),
        kernel("gemm", 300, 20, 7),
        sections=recorded(("train.step", 0, 100), ("forward", 5, 50), ("backward", 55, 90)),
    )

    assert found["MmBackward0"] == (None, "backward", "train.step", "ENGINE")
    assert found["aten::t"] == ("MmBackward0", None, "train.step", "NESTED")
    assert found["AccumulateGrad"] == (None, "backward", "train.step", "ENGINE")
    assert found["aten::between"] == (None, "train.step", "train.step", "ENGINE")
    assert found["gemm"] == ("aten::t", None, "train.step", "LAUNCHED")


def test_threads_of_nobody_hang_under_the_step_of_their_time(linked) -> None:
    """Nothing tells which section they work for."""
    found = linked(
        operator("aten::mm", 60, 10, tid=777),
        operator("aten::late", 160, 10, tid=777),
        sections=recorded(("train.step", 0, 100), ("forward", 55, 90)),
    )

    assert found["aten::mm"] == (None, "train.step", "train.step", "STEP")
    assert found["aten::late"] == (None, None, None, "ROOT")


def test_thread_with_sections_of_its_own_keeps_them(linked) -> None:
    """A section of the run's trace is of no step, whatever step runs meanwhile."""
    found = linked(
        operator("aten::copy_", 20, 10, tid=777),
        sections=recorded(
            ("train.step", 0, 100), ("prefetch", 10, 50, {"thread": 777, "trace": RUN_TRACE})
        ),
    )

    assert found["aten::copy_"] == (None, "prefetch", None, "SECTION")


def test_annotation_that_is_a_section_once_more_is_its_twin(linked) -> None:
    """What is in it hangs under the section; one of the same name at another time stays."""
    found = linked(
        annotation("forward", 6, 43),
        operator("aten::mm", 10, 20),
        annotation("backward", 60, 10),
        sections=recorded(("train.step", 0, 900), ("forward", 5, 50), ("backward", 400, 800)),
    )

    assert found["forward"] == (None, "forward", "train.step", "TWIN")
    assert found["aten::mm"] == (None, "forward", "train.step", "SECTION")
    assert found["backward"] == (None, "train.step", "train.step", "SECTION")


def test_section_has_one_twin_at_most(linked, tmp_path) -> None:
    """Of two annotations of the name inside it the outer is it."""
    entries = [annotation("forward", 6, 43), annotation("forward", 7, 41)]
    trace = read_trace(write_trace(tmp_path / "twice.json", entries))

    links = link(trace, recorded(("forward", 5, 50)))

    assert [Place(place).name for place in links.place] == ["TWIN", "SECTION"]
    assert links.section.tolist() == [0, 0]


def test_annotated_step_is_the_twin_of_the_recorded_one(linked) -> None:
    """Both say the same; the recorded one has a number, a phase and a trace."""
    found = linked(
        annotation("ProfilerStep#3", 2, 95),
        operator("aten::mm", 20, 20),
        sections=recorded(("train.step", 10, 100)),
    )

    assert found["ProfilerStep#3"] == (None, "train.step", "train.step", "TWIN")
    assert found["aten::mm"] == (None, "train.step", "train.step", "SECTION")


def test_devices_share_of_a_twin_hangs_under_the_section(tmp_path) -> None:
    """The annotation is not shown, so that of the device has the section above."""
    entries = [
        annotation("forward", 6, 43, **{"External id": 4}),
        event("forward", 60, 9, category="gpu_user_annotation", pid=0, **{"External id": 4}),
    ]
    trace = read_trace(write_trace(tmp_path / "t.json", entries))

    links = link(trace, recorded(("train.step", 0, 100), ("forward", 5, 50)))

    assert links.parent.tolist() == [NONE, NONE]
    assert links.section.tolist() == [1, 1]
    assert [Place(place).name for place in links.place] == ["TWIN", "ANNOTATED"]
    assert links.step.tolist() == [0, 0]


def test_bare_launch_in_a_section_hangs_there(linked) -> None:
    """Its kernel hangs under the call, not under the annotation around the section."""
    found = linked(
        annotation("outer", 2, 90),
        launch(20, 2, 7),
        kernel("gemm", 300, 20, 7),
        sections=recorded(("train.step", 0, 100), ("forward", 10, 50)),
    )

    assert found["cudaLaunchKernel"] == (None, "forward", "train.step", "SECTION")
    assert found["gemm"] == ("cudaLaunchKernel", None, "train.step", "LAUNCHED")


def test_bare_launch_in_a_section_inside_an_operator_stays_in_the_section(linked) -> None:
    """Its External id names the operator around the section, which is further out."""
    found = linked(
        operator("custom::op", 2, 90, external=9),
        launch(20, 2, 7, **{"External id": 9}),
        kernel("gemm", 300, 20, 7, **{"External id": 9}),
        sections=recorded(("train.step", 0, 100), ("inside", 10, 50)),
    )

    assert found["custom::op"] == (None, "train.step", "train.step", "SECTION")
    assert found["gemm"] == ("cudaLaunchKernel", None, "train.step", "LAUNCHED")


def test_event_stays_under_what_is_around_it_when_a_section_ends_meanwhile(linked) -> None:
    """The section outside began before its parent: the parent is further in."""
    found = linked(
        operator("aten::mm", 20, 40),
        operator("aten::t", 55, 2),
        sections=recorded(("train.step", 0, 100), ("forward", 10, 50)),
    )

    assert found["aten::t"] == ("aten::mm", None, "train.step", "NESTED")


def test_operator_that_begins_a_little_early_keeps_what_is_in_it(linked) -> None:
    """It is in the section by the tolerance, so nothing lies between it and its children."""
    found = linked(
        operator("aten::mm", 8, 40),
        operator("aten::t", 15, 2),
        sections=recorded(("train.step", 0, 100), ("forward", 10, 50)),
    )

    assert found["aten::mm"][1] == "forward"
    assert found["aten::t"] == ("aten::mm", None, "train.step", "NESTED")


def test_only_annotations_of_the_profiler_are_steps(linked) -> None:
    """Not what a person calls alike."""
    found = linked(annotation("ProfilerStep#1 again", 0, 100), operator("aten::mm", 10, 5))

    assert found["aten::mm"] == ("ProfilerStep#1 again", None, None, "NESTED")


def test_sections_are_left_out_where_the_trace_has_no_unix_time(linked) -> None:
    """Nothing says when it was."""
    found = linked(
        operator("aten::mm", 10, 20),
        sections=recorded(("train.step", 0, 100)),
        base_ns=None,
    )

    assert found["aten::mm"] == (None, None, None, "ROOT")


def test_steps_of_annotations_count_where_none_is_recorded(linked) -> None:
    """The run has sections of that time, but no step."""
    found = linked(
        annotation("ProfilerStep#3", 0, 100),
        operator("aten::mm", 10, 20),
        sections=recorded(("set up", 5, 50, {"trace": RUN_TRACE})),
    )

    assert found["aten::mm"] == (None, "set up", "ProfilerStep#3", "SECTION")


def test_times_on_a_thread_are_kept_whatever_is_shown_above(tmp_path) -> None:
    """``around`` is the event that contains one, for self times, also where a section is above."""
    entries = [annotation("outer", 0, 100), operator("aten::mm", 15, 10)]
    trace = read_trace(write_trace(tmp_path / "t.json", entries))

    links = link(trace, recorded(("forward", 10, 50)))

    assert links.parent.tolist() == [NONE, NONE]
    assert links.around.tolist() == [NONE, 0]


def test_each_thread_may_have_steps_of_its_own(linked) -> None:
    """Of several that run at once an event counts to the one of its thread."""
    found = linked(
        annotation("ProfilerStep#1", 0, 100),
        annotation("ProfilerStep#2", 5, 100, tid=ENGINE),
        operator("aten::mm", 10, 20),
        operator("aten::add", 10, 20, tid=ENGINE),
    )

    assert found["aten::mm"][2] == "ProfilerStep#1"
    assert found["aten::add"][2] == "ProfilerStep#2"


def test_empty_trace_links_to_nothing(tmp_path) -> None:
    """With and without sections."""
    trace = read_trace(write_trace(tmp_path / "t.json", []))

    for sections in (None, recorded(("train.step", 0, 100))):
        links = link(trace, sections)
        assert len(links.parent) == 0
        assert links.orphans == {}
