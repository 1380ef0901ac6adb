"""The program never notices when the recorder itself fails."""

from __future__ import annotations

import gc
import inspect
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import otel_mlperf as om
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.api import decorate, span
from otel_mlperf.recorder.core import (
    attribute_values,
    faults,
    name_registry,
    scrub,
    tracks,
)
from otel_mlperf.recorder.instruments import (
    added_up_in_step,
    aggregated_places,
    aggregated_sections,
    cells,
    instrument_series,
    logged_values,
    open_aggregate,
)
from otel_mlperf.recorder.lifecycle import recorder
from otel_mlperf.recorder.sections import (
    parents,
    section_cases,
    section_context,
    section_span,
    slow_path,
)
from otel_mlperf.recorder.stepping import abandoned_loops, batch_size, one_step, step_recording

ROOT = Path(__file__).parents[4]
MODULES = [
    added_up_in_step,
    aggregated_places,
    aggregated_sections,
    open_aggregate,
    attribute_values,
    batch_size,
    cells,
    slow_path,
    section_cases,
    section_context,
    section_span,
    decorate,
    abandoned_loops,
    parents,
    name_registry,
    scrub,
    span,
    recorder,
    one_step,
    step_recording,
    tracks,
    logged_values,
]
INNER = [
    recorder.Recorder,
    name_registry.Registry,
    slow_path.SlowPath,
    section_cases.RecordedSections,
    parents.Parents,
    one_step.OneStep,
    step_recording.Stepping,
    cells.Cells,
    added_up_in_step.AddedUpInStep,
    aggregated_places.AggregatedPlaces,
    aggregated_sections.AggregatedSections,
    instrument_series.SeriesInUse,
    tracks.CallerTracks,
    logged_values.Values,
    span.Handle,
]


class Own(Exception):
    """Raised by the program."""


def use_everything():
    """A program that uses every name; returns what it computed."""
    out = []

    @om.span(f"name {use_everything.count}", layer=1)
    def work(x):
        return x + 1

    @om.step
    def train(x):
        return work(x)

    @om.span
    def numbers():
        yield from range(2)

    use_everything.count += 1
    for _ in om.epochs(1):
        for x in om.steps([[1, 2], [3]], accumulate=1):
            with om.span(f"forward {use_everything.count}", rows=2) as section:
                section.set(more=1)
                out.append(work(x[0]))
            with om.span("lookup", aggregate=True), om.span("checkpoint"):
                om.log(loss=0.5)
            with om.phase("validate"), om.step():
                out += numbers()
            out.append(train(1))
    om.mark_step()
    om.mark_step()
    om.counter("c").add(1)
    om.gauge("g").set(1)
    try:
        with om.span("failing"), om.step():
            raise Own("mine")
    except Own as error:
        out.append(str(error))
    return out


use_everything.count = 0
EXPECTED = [2, 0, 1, 2, 4, 0, 1, 2, "mine"]


def functions():
    """Every internal function and method: owner and name."""
    for owner in [*MODULES, *INNER]:
        for name, value in vars(owner).items():
            if inspect.isfunction(value) and not name.startswith("__"):
                is_own = value.__module__ == getattr(owner, "__module__", owner.__name__)
                if is_own and (owner, name) not in PUBLIC:
                    yield owner, name


# What the program itself calls, what only starting and stopping call, and one whole guard.
PUBLIC = {
    (span, "span"),
    (cells, "counter"),
    (cells, "gauge"),
    (span, "_follow"),
    (span.Handle, "set"),
    (span.Handle, "open"),
    (span.Handle, "new_section"),
}
FUNCTIONS = sorted(functions(), key=lambda pair: (pair[0].__name__, pair[1]))


IDS = [f"{owner.__name__.rpartition('.')[2]}.{name}" for owner, name in FUNCTIONS]


@pytest.mark.fault("F50")
@pytest.mark.parametrize(("owner", "name"), FUNCTIONS, ids=IDS)
def test_every_internal_function_may_raise(start, monkeypatch, owner, name):
    """Whichever function inside raises, the program computes the same and sees its errors."""
    recording = start()
    recording.may_fail = True

    def broken(*args, **kwargs):
        raise RuntimeError("inside")

    monkeypatch.setattr(owner, name, broken)
    try:
        result = use_everything()
    finally:
        monkeypatch.undo()
    om.stop()
    section_context.CURRENT.set(section_context.NOTHING)

    assert result == EXPECTED


@pytest.mark.fault("F50")
def test_the_program_as_it_is(recording):
    """Without a fault the same program computes the same, and nothing is counted."""
    assert use_everything() == EXPECTED
    om.stop()
    assert recording.word(Word.INTERNAL_ERRORS) == 0


@pytest.mark.fault("F50")
def test_counted_and_logged(start, monkeypatch, said):
    """Internal errors are counted each, and logged once a minute."""
    recording = start()
    recording.may_fail = True
    monkeypatch.setattr(name_registry.Registry, "entry", lambda *args: 1 / 0)
    for i in range(5):
        with om.span(f"new {i}"):
            pass

    assert recording.word(Word.INTERNAL_ERRORS) >= 5
    assert len(said()) == 1
    assert "the program continues" in said()[0]


@pytest.mark.fault("F50", "F59")
def test_broken_logging(start, monkeypatch):
    """A log handler that raises is no reason to raise."""
    recording = start()
    recording.may_fail = True

    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("handler")

    handler = Broken()
    faults.log.addHandler(handler)
    try:
        faults._Faults.next_log_ns = 0
        faults.internal_error(ValueError("x"))
        faults.warn_once("something")
    finally:
        faults.log.removeHandler(handler)

    assert recording.word(Word.INTERNAL_ERRORS) == 1


@pytest.mark.fault("F57")
def test_signal_handlers(recording):
    """Handlers that open sections while sections are opened and closed: all rows, no damage."""
    handled = 0

    def handle(number, frame):
        nonlocal handled
        handled += 1
        with om.span("handler", n=handled), om.span("inner"):
            pass

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    done = 0
    try:
        while handled < 300:
            with om.span("outer"), om.span("work"):
                done += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert len(recording.sections("work")) == len(recording.sections("outer")) == done
    assert len(recording.sections("handler")) == len(recording.sections("inner")) == handled
    rows = recording.sections()
    assert len({row.span for row in rows}) == len(rows)
    by_id = {row.span: row for row in rows}
    assert all(by_id[row.parent].name == "outer" for row in recording.sections("work"))
    assert recording.open() == ["run"]


@pytest.mark.fault("F95")
def test_interrupts_at_any_moment(recording):
    """Exceptions out of signal handlers, at any moment, are the program's; no section stays."""

    def handle(number, frame):
        raise Own("mine")

    before = signal.signal(signal.SIGALRM, handle)
    caught = 0
    # What other tests have left has finalizers: the interpreter drops what is raised in those.
    gc.disable()
    try:
        while caught < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002)  # may strike at once on a busy machine
                with om.span("around"):
                    for _ in range(20_000):
                        with om.span("work"):
                            pass
            except Own:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()

    rows = recording.sections()
    assert len({row.span for row in rows}) == len(rows)
    assert recording.open() == ["run"]


@pytest.mark.fault("F59")
@pytest.mark.parametrize("is_configured", [False, True])
def test_whose_warning_it_is(is_configured):
    """Warnings tell where they come from, in a program with logging and in one without."""
    lines = ["import logging, otel_mlperf as om"]
    if is_configured:
        lines.append("logging.basicConfig(format='%(name)s! %(message)s')")
    lines.append("om.counter('')")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stderr.splitlines()

    assert line.startswith("otel_mlperf! " if is_configured else "otel_mlperf: ")
