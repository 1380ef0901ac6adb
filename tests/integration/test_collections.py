"""A long garbage collection is named where a user looks, and nothing else is blamed for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from runs import adds_up, environment, run_program

STEP = 3
LOOPS = Path(__file__).parents[1] / "programs" / "loops"
COUNTED = """
import gc, runpy, sys
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv[1] + "/closure.py", run_name="__main__")
print(gc.get_stats()[2]["collections"])
"""


def asked(ended, *arguments) -> dict:
    """What a command answers of the run, as JSON."""
    command = [sys.executable, "-m", "otel_mlperf", *arguments, "--json"]
    return json.loads(warm_python.check_output(command, env=environment(ended.runs)))


def test_a_collection_in_a_wait_for_data_is_named_everywhere(tmp_path) -> None:
    """In the step's spans, the rows and the slowest step; the rows add up to the step."""
    ended = run_program(tmp_path / "runs", program="collecting.py").settled()
    summary = asked(ended, "summary", "latest")
    (step,) = asked(ended, "show", "latest", "--step", str(STEP))["ranks"]

    spans = {span["name"]: span for span in step["spans"]}
    pause, wait = spans["gc.collect"], spans["data.load"]
    assert (pause["depth"], wait["depth"]) == (2, 1)
    assert pause["attributes"] == {"cpython.gc.generation": "2"}
    assert wait["self_ns"] == wait["duration_ns"] - pause["duration_ns"]
    (measured,) = [row for row in step["sections"] if row["name"] == "garbage collection"]
    assert (measured["self_ns"], measured["inside"]) == (pause["duration_ns"], "data wait")
    own = sum(row["self_ns"] for row in step["sections"] if not row["beside"])
    assert own == step["duration_ns"]
    slowest = summary["slowest"]
    assert (slowest["number"], slowest["collection_ns"]) == (STEP, pause["duration_ns"])
    assert slowest["collection_in"] == "data wait"
    (row,) = [row for row in summary["steps"]["rows"] if row["name"] == "garbage collection"]
    assert row["inside"] == "data wait"
    assert adds_up(ended.accounts()["spans"]["store"])


@pytest.mark.slow
def test_what_recording_loads_brings_no_full_collection_into_the_first_steps(tmp_path) -> None:
    """An untouched program looks at all of its objects as often as without being recorded.

    In interpreters of their own: the collections during imports are what it is about.
    """
    pytest.importorskip("torch")
    script = tmp_path / "counted.py"
    script.write_text(COUNTED)
    plain = [sys.executable, str(script), str(LOOPS)]
    recorded = [sys.executable, "-m", "otel_mlperf", "run", *plain[1:]]

    counts = [
        int(subprocess.check_output(call, env=environment(tmp_path), text=True).splitlines()[-1])
        for call in (plain, recorded)
    ]

    assert counts[1] <= counts[0]
