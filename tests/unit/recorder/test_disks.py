"""The training process accesses no disks and networks while it trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runs import LIMIT_S, Ended, environment

ROOT = Path(__file__).parents[3]
TRAINING = """
import json, os, shutil, sys
import otel_mlperf as om

seen, is_training = [], False

def note(event, arguments):
    if is_training and event.split(".")[0] in ("open", "os", "socket", "subprocess", "shutil"):
        seen.append([event, str(arguments[0]) if arguments else ""])

sys.addaudithook(note)
with om.start("x") as run:
    is_training = True
    for _ in om.epochs(2):
        for x in om.steps([[1, 2]] * 200):
            with om.span("forward", rows=2), om.span("inner", aggregate=True):
                om.log(loss=0.5)
            om.counter("tokens").add(2)
        with om.phase("validate"):
            for x in om.steps([1] * 20):
                pass
    is_training = False
print(json.dumps(seen))
if os.environ["OTEL_MLPERF_AGENT"] == "none":
    shutil.rmtree(os.path.dirname(run._recorder.journal.path))
"""
LOOKING = """
import os, shutil, sys
import otel_mlperf as om

seen = []
sys.addaudithook(lambda event, given: seen.append(str(given[0])) if event == "open" else None)
run = om.start("x", agent="none", console=False)
with om.step():
    pass
run.stop()
print(sum("/x-" in name and run.path.name not in name for name in seen))
shutil.rmtree(os.path.dirname(run._recorder.journal.path))
"""


def printed(program, runs, **variables):
    """What a program prints, from JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(runs, OTEL_MLPERF_CONSOLE="false", **variables),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return json.loads(done.stdout)


@pytest.mark.fault("F41")
@pytest.mark.parametrize("agent", ["none", "process"])
def test_training_opens_no_file_on_a_disk(tmp_path, agent):
    """Between start and end it opens files of shared memory and the kernel alone, on no disk."""
    seen = printed(TRAINING, tmp_path / "runs", OTEL_MLPERF_AGENT=agent)
    if agent == "process":
        Ended(0, "", "", tmp_path / "runs", tmp_path).settled()

    assert [one for one in seen if not one[1].startswith(("/dev/shm/", "/proc/self/"))] == []


@pytest.mark.fault("F44")
def test_runs_that_lie_there_are_not_looked_into(tmp_path):
    """However many folders earlier runs have left: none of their files is opened."""
    for number in range(300):
        (tmp_path / f"x-{number:04x}").mkdir()
        (tmp_path / f"x-{number:04x}" / "run.json").write_text("no JSON")

    assert printed(LOOKING, tmp_path, OTEL_MLPERF_RUN_ID="f" * 32) == 0
