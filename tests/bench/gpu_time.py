"""What does GPU time add to a section and to a step, beside one without?

On a CUDA device where there is one, else on the fake of the tests, whose events are of Python and
no cheaper than torch's. ``A/A`` is the plain section measured a second time. Shuffled blocks, a
collection of garbage before each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import otel_mlperf as om
from otel_mlperf.journal.layout import Word
from otel_mlperf.pytorch.gpu_time.gpu_stamps import GpuStamps
from otel_mlperf.pytorch.gpu_time.stamp_switch import Switch
from otel_mlperf.recorder.core import recording

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fake_cuda import FakeGpu

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = 15
SECTIONS = 5
clock = time.perf_counter_ns


class FakeNow(FakeGpu):
    """A simulated device in the time of the machine."""

    @property
    def now_ns(self) -> int:
        return time.monotonic_ns()

    @now_ns.setter
    def now_ns(self, ns: int) -> None:
        """Time passes by itself."""


def _device() -> tuple[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        try:
            import torch
        except ImportError:
            return "fake device", FakeNow()
    if not torch.cuda.is_available():
        return "fake device", FakeNow()
    torch.cuda.init()
    return torch.cuda.get_device_name(), torch.cuda


def _sections(name: str) -> Callable[[int], None]:
    def loop(n: int) -> None:
        for _ in range(n):
            with om.span(name):
                pass

    return loop


def _steps(name: str) -> Callable[[int], None]:
    def loop(n: int) -> None:
        for _ in range(n):
            with om.step():
                for _ in range(SECTIONS):
                    with om.span(name):
                        pass

    return loop


ROWS: dict[str, tuple[Callable[[int], None], int]] = {
    "section": (_sections("plain"), 5_000),
    "section, A/A": (_sections("plain"), 5_000),
    "section with GPU time": (_sections("forward"), 1_000),
    "step of five sections with GPU time": (_steps("forward"), 200),
    "step with GPU time, sections without": (_steps("plain"), 200),
}


def measure(blocks: int = BLOCKS) -> tuple[str, dict[str, float]]:
    """The device's name, and median nanoseconds by row."""
    name, cuda = _device()
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    order = random.Random(0)
    settings = {
        "agent": "none",
        "console": False,
        "readings": "none",
        "gpu_time_categories": "forward",
    }
    with tempfile.TemporaryDirectory() as folder, om.start("bench", dir=folder, **settings):
        recorder = recording.active()
        assert recorder is not None
        switch = Switch(recorder, lambda: cuda, GpuStamps)
        switch.look()
        words = recorder.journal.words
        for _ in range(blocks):
            for row in order.sample(list(ROWS), len(ROWS)):
                loop, n = ROWS[row]
                # Nobody reads the journal here: what a block wrote is given free.
                words[Word.TAIL] = recorder.journal.lease.end
                gc.collect()
                began = clock()
                loop(n)
                found[row].append((clock() - began) / n)
        switch.finish()
        lost = words[Word.LOST_RING_FULL]
        os.unlink(recorder.journal.path)
    if lost:
        sys.exit(f"{lost} rows found no room: the figures would be too good")
    return name, {row: statistics.median(values) for row, values in found.items()}


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    options = parser.parse_args()
    device, found = measure(options.blocks)
    plain = found["section"]
    if options.json:
        rows = [
            {"row": k, "ns": round(v, 1), "of_section": round(v / plain, 2)}
            for k, v in found.items()
        ]
        print(json.dumps({"benchmark": "gpu_time", "device": device, "rows": rows}))
        return
    print(f"on: {device}")
    for row, value in found.items():
        print(f"{row:<38} {value:8.0f} ns   {value / plain:6.2f} × a section")


if __name__ == "__main__":
    main()
