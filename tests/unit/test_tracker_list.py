"""Is a tracker chosen by its name, and one that is not installed said before any work is done?"""

from __future__ import annotations

import subprocess
import sys

import pytest
from runs import environment

import otel_mlperf as om
from otel_mlperf.config import Config


@pytest.mark.parametrize("given", [" tensorboard,, tensorboard", ["tensorboard"]])
def test_trackers_are_named_by_commas_or_in_a_list(given):
    """As every setting of several words."""
    assert Config(destinations=given).destinations == "tensorboard"


def test_unknown_tracker_is_refused_with_those_that_are_known():
    """Before any work is done."""
    with pytest.raises(om.ConfigError, match="found 'tensorbord', expected some of tensorboard"):
        Config(destinations="tensorbord")


def test_argument_that_asks_for_what_is_not_installed_is_an_error(tmp_path, monkeypatch):
    """It says what installs it, and nothing has begun."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(om.ConfigError, match=r"pip install 'otel-mlperf\[tensorboard\]'"):
        om.start(destinations="tensorboard", dir=str(tmp_path))

    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import sys
import otel_mlperf as om
if sys.argv[1] == "missing":
    sys.modules["tensorboard"] = None
with om.start(console=False):
    for _ in om.steps(range(3)):
        pass
print("trained", "tensorboard.compat" in sys.modules)
"""


@pytest.mark.parametrize("case", ["missing", "installed"])
def test_variable_never_stops_a_training(tmp_path, case):
    """A tracker that is missing is said once; one that is there is not loaded by the program."""
    command = [sys.executable, "-c", PROGRAM, case]
    chosen = {"OTEL_MLPERF_DESTINATIONS": "tensorboard", "OTEL_MLPERF_AGENT": "none"}
    environ = environment(tmp_path / "runs", **chosen)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)

    assert done.stdout == "trained False\n"
    said = "OTEL_MLPERF_DESTINATIONS: tensorboard is not installed: pip install 'otel-mlperf"
    assert done.stderr.count(said) == (case == "missing")
