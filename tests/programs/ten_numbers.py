"""A training of some seconds, all of whose steps are kept and two of them profiled."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

import otel_mlperf as om

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_BYTES = 200 << 20
VALIDATED = (5, 12)


def batches(many: int, pause_s: float) -> Iterator[torch.Tensor]:
    """Batches of 32 samples that have to be waited for."""
    for _ in range(many):
        time.sleep(pause_s)
        yield torch.randn(32, 64)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--pause", type=float, default=0.3)
    given = parser.parse_args()
    first, last = nn.Linear(64, 64), nn.Linear(64, 10)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
    with om.start("ten-numbers") as run, om.torch_profile(wait=3, warmup=1, active=2, repeat=1):
        for number, inputs in enumerate(om.steps(batches(given.steps, given.pause))):
            # For half of the time: the most that is in use is not what is in use at the end.
            held = torch.ones(HELD_BYTES // 4) if number < given.steps // 2 else None
            with om.span("forward"):
                with om.span("encode"):
                    encoded = first(inputs).relu()
                loss = last(encoded).square().mean()
            with om.span("backward"):
                loss.backward()
            with om.span("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            del held
            if number in VALIDATED:
                with torch.no_grad(), om.phase("validate"):
                    for others in om.steps(batches(1, given.pause)):
                        last(first(others).relu())
    stats = run.stats().values()
    print(json.dumps({one.name: [one.count, one.total_ns, one.self_ns] for one in stats}))


if __name__ == "__main__":
    main()
