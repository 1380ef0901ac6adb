"""What does it cost that PyTorch keeps where CUDA memory was allocated?

    python tests/bench/allocation_history.py [ROUNDS]

One process, one row a block, in shuffled order, the garbage collected and the history filled before
each; ``A/A`` is the same as the row before it, and shows how much two equal ones differ on this
machine. Rows are of one tensor that is made and given back, from few frames of Python and from
forty more, and of the training step of a small transformer, whose time the host takes, and of a
large one, whose time the device takes. Each block stands beside the row without a history in the
same round. Before them: what a full history takes of host memory, and how long writing it takes
when memory runs out, and its size.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

import otel_mlperf as om
from otel_mlperf.pytorch.memory.allocator import AllocationHistory

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15
ENTRIES = (10_000, 100_000)
DEEP = 40
OFF, OFF_AGAIN = "no history", "no history (A/A)"
MOST = 100_000


class Work(NamedTuple):
    """Something that allocates on the device."""

    do: Callable[[], object]
    times: int
    """In a block."""


def allocate() -> None:
    """A tensor out of what the allocator has kept, and back."""
    torch.empty(1 << 18, device="cuda")


def deep(frames: int) -> None:
    """The same from so many frames of Python."""
    if frames:
        deep(frames - 1)
    else:
        allocate()


def make_step(width: int, layers: int, batch: int, length: int) -> Callable[[], object]:
    """A training step of a transformer in bfloat16."""
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(batch, length, width, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return step


def allocations() -> int:
    """So far, of this device."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def time_block(work: Work, entries: int) -> float:
    """Seconds of one, with so many allocations kept; 0: none."""
    history = AllocationHistory(entries, lambda: torch)
    if entries:
        history.look()
        for _ in range(entries // 2):
            allocate()
    gc.collect()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(work.times):
        work.do()
    torch.cuda.synchronize()
    took = (time.perf_counter() - start) / work.times
    history.finish()
    return took


def compare(name: str, work: Work, rounds: int) -> None:
    """A row for each number of entries, and one without that stands beside one without."""
    rows = {OFF: 0, OFF_AGAIN: 0, **{f"newest {n:,} kept": n for n in ENTRIES}}
    time_block(work, 0)
    before = allocations()
    work.do()
    count = allocations() - before
    found: dict[str, list[float]] = {row: [] for row in rows}
    for _ in range(rounds):
        for row in random.sample(list(rows), len(rows)):
            found[row].append(time_block(work, rows[row]))
    for row, values in found.items():
        took = statistics.median(values)
        ratios = [a / b for a, b in zip(values, found[OFF], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        each = (took - statistics.median(found[OFF])) / count * 1e6
        print(
            f"| {name} | {count:,} | {row} | {took * 1e6:,.1f} µs | {middle:.3f}"
            f" ({low:.3f} … {high:.3f}) | {each:+.2f} µs |",
            flush=True,
        )


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def weigh(work: Work) -> None:
    """What a full history is in host memory and on disk."""
    gc.collect()
    before = resident_bytes()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"agent": "none", "console": False, "readings": "none"}
        with om.start("x", dir=folder, cuda_memory_history=MOST, **settings):
            begun = allocations()
            while allocations() - begun < MOST:
                work.do()
            held = resident_bytes() - before
            start = time.perf_counter()
            path = om.memory_snapshot()
            took = time.perf_counter() - start
        assert path is not None
        size = path.stat().st_size
    print(
        f"{MOST:,} allocations and as many that are given back take {held / 1e6:.0f} MB of host"
        f" memory; writing the newest {MOST:,} took {took:.2f} s, and {size / 1e6:.0f} MB"
    )


def main() -> int:
    """Prints a table in Markdown."""
    if not torch.cuda.is_available():
        print("needs a CUDA device: torch sees none")
        return 1
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(f"on: {torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    small = Work(make_step(256, 4, 8, 64), 30)
    weigh(small)
    print("\n| what | allocations | history | time | of none | more for each |")
    print("|---|---:|---|---:|---:|---:|")
    compare("a tensor", Work(allocate, 5_000), rounds)
    compare(f"a tensor, {DEEP} frames more", Work(lambda: deep(DEEP), 5_000), rounds)
    compare("step of a small transformer", small, rounds)
    compare("step of a large transformer", Work(make_step(1024, 8, 32, 512), 8), rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
