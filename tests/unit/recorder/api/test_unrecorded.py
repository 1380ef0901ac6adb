"""A program is warned that it forgot to start a run, once, and only if it did."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import warm_python

ROOT = Path(__file__).parents[4]
HINT = (
    "otel_mlperf: {} ran, but no run was started: nothing was recorded. Call start() first, or "
    "run the script as 'otel-mlperf run SCRIPT'; if this is intended, set OTEL_SDK_DISABLED=true\n"
)
DECORATED = """
@om.span
def forward(): return 1
"""
ENTERED = """
for _ in range(3):
    with om.span("forward"):
        with om.span("inner"): pass
"""

SPAWNING = """
import multiprocessing, otel_mlperf as om
def work():
    with om.span("work"): pass
if __name__ == "__main__":
    import program  # by a name that the worker can import
    process = multiprocessing.get_context("spawn").Process(target=program.work)
    process.start(); process.join()
    assert process.exitcode == 0
"""


def errors(code, *arguments, **variables):
    """What a program that ends well leaves on stderr."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTHON", "RANK"))}
    done = warm_python.run(
        [sys.executable, "-c", f"import sys, otel_mlperf as om\n{code}", *arguments],
        cwd=ROOT, env=clean | variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (ENTERED, "span('forward')"),
        (DECORATED + "forward(); forward()", "span('forward')"),
        ("with om.span('load', rows=1): pass", "span('load')"),
        ("with om.span('load', aggregate=True): pass", "span('load')"),
        ("@om.span('read')\ndef read(): yield 1\nlist(read())", "span('read')"),
        ("for _ in om.steps([1, 2]): pass", "steps()"),
        ("for _ in range(3):\n    with om.step(): pass", "step()"),
    ],
)
def test_what_ran_without_a_run_is_told_once(code, call):
    """By the first call of them, on one line, as the program ends."""
    assert errors(code) == HINT.format(call)


@pytest.mark.parametrize(
    "code",
    [
        "",
        DECORATED,  # a library that nobody has called
        "om.span('forward')",
        "om.counter('seen')",
    ],
)
def test_what_did_not_run_is_not_told(code):
    """Imported, decorated, made: that is not yet recording."""
    assert errors(code) == ""


def test_what_ran_before_the_run_is_not_told(tmp_path):
    """Nor after it: somebody has thought of it."""
    started = "om.start('x', dir=sys.argv[1], agent='none', console=False)"
    ending = """
import os
path = om.recorder.api.start._current._recorder.journal.path
om.stop()
with om.span("late"): pass
os.unlink(path); os.rmdir(os.path.dirname(path))
"""
    assert errors(f"{ENTERED}\n{started}\n{ending}", str(tmp_path)) == ""


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_MLPERF_CONSOLE": "0"},
        {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"},
    ],
)
def test_not_where_it_is_meant_nor_on_every_rank(variables):
    """By a setting, or because another rank says it."""
    assert errors(ENTERED, **variables) == ""


def test_a_run_that_is_switched_off_is_not_told():
    """Its start() was there; that it records nothing is the setting's doing."""
    assert errors("om.start('x', disabled=True)\n" + ENTERED) == ""


def test_a_fork_does_not_tell_it_again():
    """Also one that ends as a program does."""
    forked = ENTERED + "import os\nif not os.fork(): sys.exit()\nos.wait()"

    assert errors(forked) == HINT.format("span('forward')")


def test_a_spawned_worker_does_not_tell_it(tmp_path):
    """It imports the program and runs a part of it: the run is, or is not, the program's."""
    script = tmp_path / "program.py"
    script.write_text(SPAWNING)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"

    assert errors(code, PYTHONPATH=f"{ROOT}:{tmp_path}") == ""


def test_compiled_code_never_sees_it():
    """torch.compile traces through spans of a program without a run, in one graph."""
    code = """
import torch
@om.span
def helper(x): return 2 * x
def forward(x):
    with om.span("block"), om.span("more", layer=1), om.step():
        return helper(x) + 1
compiled = torch.compile(forward, backend="eager", fullgraph=True)
assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
"""
    assert errors(code) == ""


def test_a_disabled_span_stays_one_lookup():
    """After its first use a handle is one like all others: the hint costs no span anything."""
    code = """
from otel_mlperf.recorder.api.span import Handle
with om.span("forward"): pass
assert type(om.span("forward")) is Handle
@om.span
def work(): return 1
work(); work()
assert work.__closure__[work.__code__.co_freevars.index("idle")].cell_contents is work.__wrapped__
"""
    assert errors(code) == HINT.format("span('forward')")
