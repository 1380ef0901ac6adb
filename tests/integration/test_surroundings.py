"""Does a program go on wherever it is started, and is it told in one sentence what is missing?"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """
import otel_mlperf as om
with om.start("odd", agent="none", console=False):
    for _ in om.steps(range(3)):
        with om.span("work"): pass
try:
    print("done")
except (OSError, AttributeError):
    pass
"""
GONE = "import os; os.rmdir(os.getcwd())\n" + TRAIN
CLOSED = "import sys; sys.stdout = sys.stderr = None\n" + TRAIN
BESIDE = f"""
import importlib
for name in ("_interpreters", "_xxsubinterpreters"):
    try: made = importlib.import_module(name)
    except ImportError: continue
    other = made.create()
    made.run_string(other, {TRAIN!r})
    made.destroy(other)
    break
"""


def go_on(program: str, place: Path, **variables: str) -> list[str]:
    """What a program says that is started there with these variables alone, and ends well."""
    place.mkdir()
    environ = {"PATH": os.environ["PATH"]} | variables
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=place, env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.fault("F100")
@pytest.mark.parametrize(
    ("program", "variables", "said"),
    [
        pytest.param(TRAIN, {}, [], id="no home"),
        pytest.param(TRAIN, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, [],
                     id="ascii"),
        pytest.param(CLOSED, {}, [], id="no output"),
        pytest.param(TRAIN, {"RANK": "9" * 23, "WORLD_SIZE": "x"}, [
            f"RANK={'9' * 23} is no number", "WORLD_SIZE=x is no number"], id="numbers"),
        pytest.param(TRAIN, {"OTEL_RESOURCE_ATTRIBUTES": "a=" + "x" * 3000}, [
            "OTEL_RESOURCE_ATTRIBUTES is too long"], id="resource"),
        pytest.param(GONE, {}, [
            "creating a run folder in otel-runs: the working directory is gone; set "
            "OTEL_MLPERF_DIR; nothing is recorded"], id="no directory"),
        pytest.param(BESIDE, {}, ["otel_mlperf records in a process's main interpreter only"],
                     id="subinterpreter"),
        pytest.param(TRAIN, {"OTEL_MLPERF_DIR": "/sys{folder}"}, ["writing the run folder: "],
                     id="no disk"),
    ],
)  # fmt: skip
def test_odd_surroundings_end_no_program(tmp_path, program, variables, said):
    """One sentence for each thing that cannot be, and the program goes on."""
    variables = {name: value.format(folder=tmp_path) for name, value in variables.items()}
    told = go_on(program, tmp_path / "here", **variables)

    assert len(told) == len(said)
    for sentence, start in zip(sorted(told), sorted(said), strict=True):
        assert sentence.startswith(f"otel_mlperf: {start}")
