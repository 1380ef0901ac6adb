"""Traces that PyTorch writes on this machine, and the times of the parts that it ran."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import warm_python
from runs import PROGRAMS

from otel_mlperf.kineto.linking.sections import Sections

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


def record(folder, *options):
    """Runs ``programs/profiled.py``; returns the path of its trace."""
    path = folder / "recorded.json"
    command = [sys.executable, str(PROGRAMS / "profiled.py"), str(path), *options]
    done = warm_python.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return path


def parts_as_sections(path):
    """The parts of the program as sections: each ``train.step`` is a trace."""
    rows = sorted(
        json.loads(path.with_suffix(".parts").read_text()), key=lambda row: (row[1], -row[2])
    )
    steps = np.cumsum([name == "train.step" for name, *_ in rows])
    return Sections(
        span_id=np.arange(1, len(rows) + 1, dtype=np.uint64),
        parent_id=np.zeros(len(rows), np.uint64),
        trace_id=np.repeat(steps.astype(np.uint8), 16).reshape(-1, 16),
        start_ns=np.array([row[1] for row in rows], np.int64),
        end_ns=np.array([row[2] for row in rows], np.int64),
        thread=np.array([row[3] for row in rows], np.int64),
        is_step=np.array([row[0] == "train.step" for row in rows], np.bool_),
        name=[row[0] for row in rows],
    )
