"""The sums of ``resources=True`` equal the kernel's figures, from the program to the summary."""

from __future__ import annotations

import json
import sys

import pytest
import warm_python
from runs import environment, run_program

from otel_mlperf import names

STEPS, KIB = 300, 1 << 10


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the program's kernel said, and what its summary says."""
    runs = tmp_path_factory.mktemp("resources") / "runs"
    ended = run_program(runs, "--steps", str(STEPS), program="resources.py").settled()
    assert ended.code == 0, ended.errors
    command = [sys.executable, "-m", "otel_mlperf", "summary", str(ended.folder), "--json"]
    summary = warm_python.check_output(command, env=environment(runs), text=True)
    return json.loads(ended.output), json.loads(summary)


def figures(summary, name):
    """Calls and figures of the one place of a section."""
    (use,) = (use for use in summary["used"] if use["name"] == name)
    return use["calls"], use["figures"]


def test_nested(told):
    """Of 300 steps, most of which are not kept, each call counts: bytes to the byte."""
    kernel, summary = told
    (outer_calls, outer), (inner_calls, inner) = (
        figures(summary, name) for name in ("outer", "inner")
    )
    cpu_ns, written = kernel["kernel"]["outer"]

    assert outer_calls == inner_calls == STEPS
    assert outer["written_bytes"]["total"] == written == STEPS * 3 * KIB
    assert inner["written_bytes"] == {
        "count": STEPS, "total": STEPS * 2 * KIB, "mean": 2 * KIB, "least": 2 * KIB,
        "most": 2 * KIB, "variance": 0.0,
    }  # fmt: skip
    assert STEPS * 500_000 <= inner["cpu_ns"]["total"] < outer["cpu_ns"]["total"] <= cpu_ns


def test_threaded(told):
    """Forty calls in four threads are each what the kernel said of its thread."""
    kernel, summary = told
    calls, figure = figures(summary, "threaded")
    of_threads = [said for name, said in kernel["kernel"].items() if name.startswith("threaded")]
    written = [said[1] for said in of_threads]

    assert calls == len(of_threads) == 40
    assert figure["written_bytes"]["total"] == sum(written) == sum(range(1, 41)) * KIB
    assert (figure["written_bytes"]["least"], figure["written_bytes"]["most"]) == (KIB, 40 * KIB)
    assert 40 * 1_000_000 <= figure["cpu_ns"]["total"] <= sum(said[0] for said in of_threads)


def test_tasks(told):
    """Tasks that gave way claim nothing of their thread; those that did not have all of theirs."""
    _, summary = told
    (waited, waits), (worked, works) = (figures(summary, name) for name in ("waits", "works"))

    assert waited == worked == 20
    assert works["written_bytes"]["total"] == 20 * 3 * KIB
    assert not waits.keys() & {measure.key for measure in names.MEASURES[:5]}
    assert waits["memory_after_bytes"]["count"] == 20


def test_the_process(told):
    """CPU time and peak of a run of a second or two are the process's own."""
    kernel, summary = told
    process = summary["process"]

    assert process["cpus"] * summary["duration_ns"] / 1e9 >= kernel["process_s"] > 0.1
    assert 0 < process["memory_peak_bytes"] <= kernel["peak_bytes"]
