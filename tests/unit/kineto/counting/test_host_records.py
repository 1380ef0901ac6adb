"""Missing records of the host are detected."""

from __future__ import annotations

import pytest
from kineto_traces import allocation, event, kernel, launch, operator, write_trace

from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace


def losses_of(tmp_path, entries, **header):
    """What is said of these entries, by kind."""
    trace = read_trace(write_trace(tmp_path / "t.json", entries, **header))
    return {loss.kind: loss for loss in find_completeness(trace, link(trace)).losses}


def numbered(first, count, make):
    """Records with the numbers from ``first`` on, a microsecond apart each."""
    entries = [make(10.0 * at) for at in range(count)]
    for number, entry in enumerate(entries, first):
        entry["args"]["Ev Idx"] = number
    return entries


def operators(count=100):
    """Operators with numbers from 0 on."""
    return numbered(0, count, lambda at: operator("aten::mm", at, 5))


def allocations():
    """A hundred allocations with the numbers behind those of the operators."""
    return numbered(100, 100, lambda at: allocation(at, 512))


def frames():
    """A hundred frames with the numbers behind those of the allocations."""
    return numbered(200, 100, lambda at: event("f.py(1): f", at, 5, category="python_function"))


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("operator", range(40, 60)),
        ("operator", range(10)),
        ("operator", range(80, 100)),
        ("allocation", range(130, 150)),
        ("allocation", range(150, 200)),
        ("frame", range(200, 240)),
        ("frame", range(210, 290, 2)),
    ],
)
def test_what_has_lost_its_number_is_counted(tmp_path, kind, lost):
    """In the middle of a kind, at its begin and at its end, where the next kind begins."""
    entries = operators() + allocations() + frames()
    left = [entry for entry in entries if entry["args"]["Ev Idx"] not in set(lost)]

    found = losses_of(tmp_path, left)

    assert {name: (loss.missing, loss.of) for name, loss in found.items()} == {
        kind: (len(lost), 100)
    }


def test_a_kind_that_was_asked_for_and_is_not_there_is_missing(tmp_path):
    """The header says that stacks were recorded; where it does not, nobody misses them."""
    entries = operators() + allocations()

    assert losses_of(tmp_path, entries, with_stack=1).keys() == {"frame"}
    assert losses_of(tmp_path, entries, with_stack=0) == {}
    assert losses_of(tmp_path, operators(), with_stack=1, profile_memory=1).keys() == {
        "frame", "allocation",
    }  # fmt: skip


def test_a_file_cut_to_size_by_hand_has_lost_nothing(tmp_path):
    """A handful of records out of thousands is an example, not a window."""
    entries = [operator("aten::mm", 1, 5, **{"Ev Idx": at}) for at in (0, 1, 36777)]

    assert losses_of(tmp_path, entries) == {}


def test_operators_that_calls_name_and_that_are_not_there_are_missing(tmp_path):
    """The last ones, whose numbers nobody can miss: a call bears the External id of its caller."""
    entries = []
    for number in range(1, 21):
        entries += [
            launch(100 * number, 5, 1000 + number, **{"External id": number}),
            kernel("gemm", 100 * number + 10, 5, 1000 + number),
        ]
        if number <= 15:
            entries.append(operator("aten::mm", 100 * number - 5, 50, external=number))

    (loss,) = losses_of(tmp_path, entries).values()

    assert (loss.kind, loss.missing, loss.of) == ("operator", 5, 20)
    assert (loss.end_ns - loss.start_ns) == 400_000


def test_operators_after_the_last_frame_have_lost_theirs(tmp_path):
    """Frames have the last numbers of all: none is missing where the file ends with them."""
    left = [entry for entry in frames() if entry["args"]["Ev Idx"] < 250]
    found = losses_of(tmp_path, operators() + allocations() + left)

    assert {kind: (loss.missing, loss.of) for kind, loss in found.items()} == {
        "frames_end": (50, 100)
    }


def steps(numbers, category="user_annotation"):
    """Annotations of steps."""
    return [
        event(f"ProfilerStep#{number}", 100 * number, 90, category=category) for number in numbers
    ]


def test_a_step_between_two_others_is_missing(tmp_path):
    """By its number."""
    (loss,) = losses_of(tmp_path, steps([4, 6])).values()

    assert (loss.kind, loss.missing, loss.of, loss.what) == ("step", 1, 3, "ProfilerStep#5")


def test_a_step_that_only_the_device_shows_is_missing(tmp_path):
    """The last one, too: its copy on the device's rows is there."""
    entries = steps([4, 5]) + steps([4, 5, 6], "gpu_user_annotation")

    assert losses_of(tmp_path, entries)["step"].what == "ProfilerStep#6"
