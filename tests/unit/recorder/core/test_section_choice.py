"""Sections are omitted, summed and printed as the settings demand; the rest is unchanged."""

from __future__ import annotations

import re

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.recorder.core.section_choice import SectionChoice


def test_by_category_and_by_pattern_of_the_name():
    """What is in both lists is left out; the wait for data is always there."""
    choice = SectionChoice(["debug", "tmp.*"], ["forward", "tmp.*", "data*"])

    assert choice.of("anything", "debug") == "exclude"
    assert choice.of("tmp.load", "other") == "exclude"
    assert choice.of("tmp", "other") == "record"
    assert choice.of("loss", "forward") == "aggregate"
    assert choice.of("data.load", "data_loading") == "record"
    assert choice.of("data.load", "data_loading") == "record"


def test_left_out_sections_leave_nothing(start):
    """However they are written, with attributes or as decorators; what is inside goes on."""
    recording = start(exclude="debug,tmp.*")

    @om.span("tmp.function")
    def function():
        return 3

    for _ in range(2):
        with om.span("tmp.block") as section:
            section.set(rows=1)
            with om.span("inside"):
                pass
        with om.span("named", category="debug", size=2):
            assert function() == 3

    assert {row.name for row in recording.sections()} == {"inside"}
    assert all(row.parent == recording.span for row in recording.sections("inside"))


def test_sections_are_added_up(start):
    """As with ``aggregate=True``: no rows, but exact counts."""
    recording = start(aggregate="decode*,debug")

    @om.span("decode.image")
    def decode():
        return 1

    for _ in range(5):
        decode()
        with om.span("parse", category="debug"):
            pass

    assert recording.sections() == []
    counts = {key[1]: sum(cell[0] for cell in cells) for key, cells in recording.cells().items()
              if key[0] == "aggregate"}  # fmt: skip
    assert counts == {"decode.image": 5, "parse": 5}


def test_steps_go_on_where_all_is_left_out(start):
    """Only sections are meant: steps, their waits and epochs are what the figures are made of."""
    recording = start(exclude="*")
    for _ in om.epochs(1):
        for _ in om.steps(range(3), accumulate=2):
            with om.span("forward"):
                pass

    names = [row.name for row in recording.sections()]
    assert "forward" not in names
    assert names.count("train.step") == 2
    assert names.count("data.load") >= 3


def test_a_later_run_decides_anew(start):
    """What one run leaves out another records, also of a function that was decorated before."""

    @om.span("tmp.function")
    def function():
        pass

    start(exclude="tmp.*")
    function()
    om.stop()
    recording = start()
    function()

    assert recording.one("tmp.function")


def test_calls_of_sections_are_printed(start, capsys):
    """Each when it ends, with how long it took; the others are not."""
    recording = start(print_sections="collate,loader.*")
    for _ in range(2):
        with om.span("collate"), om.span("other"):
            pass
    with pytest.raises(ValueError, match="no"), om.span("loader.read"):
        raise ValueError("no")

    lines = [line.rpartition(" ms")[0].split() for line in capsys.readouterr().err.splitlines()]
    assert [name for name, _ in lines] == ["collate", "collate", "loader.read"]
    times = [(row.end - row.start) / 1e6 for row in recording.sections("collate")]
    assert [float(ms) for _, ms in lines[:2]] == pytest.approx(times, abs=0.0051)


def test_printed_calls_tell_what_they_used(start, capsys):
    """CPU time and memory of a section that is measured, by the figures that it records."""
    recording = start(print_sections="collate", resource_categories="data_loading")
    with om.span("collate"):
        kept = bytearray(b"x" * (32 << 20))
    del kept

    (line,) = capsys.readouterr().err.splitlines()
    told = re.fullmatch(r"collate \S+ ms: cpu (\S+) ms, memory (\S+) MB(?:, peak \S+ MB)?", line)
    used = dict(zip([one.key for one in names.MEASURES], recording.one("collate").payload["u"],
                    strict=True))  # fmt: skip
    assert float(told[1]) == pytest.approx(used["cpu_ns"] / 1e6, abs=0.0051)
    assert float(told[2]) == pytest.approx(used["memory_growth_bytes"] / 1e6, abs=0.0051)
    assert float(told[2]) > 30


def test_first_steps_are_printed(start, capsys):
    """With what their thread did in them, so that the parts add up to the step."""
    recording = start(print_steps=2)
    for _ in om.steps(range(4)):
        with om.span("forward"), om.span("layer"):
            pass
        with om.span("forward"):
            pass
        om.log(loss=0.25)

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("train step 0: ")
    assert second.startswith("train step 1: ")
    spent_in, memory, loss = second.split("; ")
    assert re.fullmatch(r"memory [\d.]+ [MG]B(, cuda .*)?", memory)
    assert loss == "loss 0.25"
    whole, _, parts = spent_in.removeprefix("train step 1: ").partition(" ms: ")
    spent = {part.rpartition(" ")[0]: float(part.rpartition(" ")[2]) for part in parts.split(", ")}
    assert list(spent) == ["data.load", "forward", "untracked"]
    step = recording.sections("train.step")[1]
    assert float(whole) == pytest.approx((step.end - step.start) / 1e6, abs=0.0051)
    assert sum(spent.values()) == pytest.approx(float(whole), abs=0.021)
