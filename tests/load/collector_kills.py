"""Does Jaeger hold every span although the real Collector is killed five times under load?

python tests/load/collector_kills.py --kills 5
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import loads
from servers.stack import Stack

STEP = 1 + loads.job.PIECES


def in_jaeger(stack: Stack, traces: list[str]) -> int:
    """How many spans of these steps Jaeger has, each counted once."""
    return sum(len({span.span_id for span in stack.jaeger_trace(trace)}) for trace in traces)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--every-s", type=float, default=8.0)
    given = parser.parse_args()
    rows, most = [], 0
    for recorder in ("ours", "sdk"):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            stack = Stack(Path(folder))
            stack.start()
            try:
                with loads.under(recorder, stack.otlp_endpoint) as one:
                    traces = one.folder / "traces.txt"
                    seconds = str((given.kills + 1) * given.every_s)
                    one.start(
                        "--rate", str(given.rate), "--seconds", seconds, "--traces", str(traces)
                    )
                    for _ in range(given.kills):
                        time.sleep(given.every_s - 2)
                        stack.collector.kill()
                        time.sleep(2)
                        stack.collector.start()
                    one.wait()
                    one.settle()
                    ids = traces.read_text().split()
                    wait_for_the_last(stack, ids)
                    found = in_jaeger(stack, ids)
                    # The run has a trace of its own, which is not asked for.
                    found += recorder == "ours"
                    rows.append(one.row(f"Collector killed {given.kills} times", found))
                    most = max(most, one.made - found if recorder == "ours" else 0)
            finally:
                stack.stop()
    loads.show(*rows)
    return 1 if most else 0


def wait_for_the_last(stack: Stack, ids: list[str]) -> None:
    """The Collector's queue is empty when its last trace is whole, or does not grow any more."""
    before = -1
    while (found := in_jaeger(stack, ids[-200:])) != before:
        before = found
        time.sleep(3)


if __name__ == "__main__":
    sys.exit(main())
