"""Code called by a garbage collection may record, without harm to the interrupted code."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from contextvars import ContextVar
from pathlib import Path

import pytest
from runs import LIMIT_S

ROOT = Path(__file__).parents[4]
PROGRAM = """
import gc, os, signal
import otel_mlperf as om
from otel_mlperf.recorder.core import faults

def record(*_):
    with om.span("meanwhile"), om.span("inside"):
        pass

class Cycle:
    def __init__(self):
        self.itself = self

    __del__ = record

def strike(phase, info):
    if phase == "start":
        signal.raise_signal(signal.SIGUSR1)

def work():
    for _ in range(500):
        with om.span("outer"), om.span("work"):
            pass

om.start("collecting", dir={folder!r}, agent="none", console=False, readings={readings!r})
signal.signal(signal.SIGUSR1, record)
if {by!r} == "handler":
    gc.callbacks.append(strike)
{fork}
# Whatever may be made in a section is the object at which a collection begins, some time.
for threshold in range(2, 40):
    gc.set_threshold(threshold)
    for _ in range(8):
        if {by!r} == "finalizer":
            Cycle()
        work()
gc.callbacks[:] = [call for call in gc.callbacks if call is not strike]
print(faults._Faults.total)
"""
FORK = "if child := os.fork(): os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)"


@pytest.mark.sampled(1)
@pytest.mark.fault("F57")
@pytest.mark.parametrize("by", ["handler", "finalizer"])
@pytest.mark.parametrize(
    ("readings", "fork"),
    [("none", ""), ("basic", ""), ("none", FORK)],
    ids=["plain", "counted", "forked"],
)
def test_sections_in_the_middle_of_a_collection(tmp_path, by, readings, fork):
    """Sections of handlers and finalizers that a collection calls crash nothing, nor fail."""
    program = PROGRAM.format(folder=str(tmp_path), by=by, readings=readings, fork=fork)
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )

    assert done.stderr == ""
    assert (done.returncode, done.stdout.strip()) == (0, "0")


def test_what_has_left_a_context_is_freed(start):
    """A collection frees what earlier ones held, and so does the end of the run."""

    class Value:
        pass

    variable = ContextVar("variable")

    def leave() -> weakref.ref[Value]:
        value = Value()
        token = variable.set(value)
        gc.collect()
        variable.reset(token)
        return weakref.ref(value)

    recording = start()
    during = leave()
    gc.collect()
    assert during() is None
    at_end = leave()
    recording.run.stop()
    assert at_end() is None
