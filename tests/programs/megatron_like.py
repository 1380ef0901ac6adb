"""A loop that traces itself as Megatron-LM's does, through the OpenTelemetry API alone.

Each step has 53 spans: four micro batches through four layers and back, the exchange of gradients,
and the parts of the optimizer. It counts for itself what has ended, in a mapped file.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import signal
from pathlib import Path

from opentelemetry import metrics, trace

SPANS = 53
MICROBATCHES = range(4)
LAYERS = range(4)
OPTIMIZER = (
    "optimizer-copy-to-main-grad",
    "optimizer-unscale-and-check-inf",
    "optimizer-clip-main-grad",
    "optimizer-inner-step",
    "optimizer-copy-main-to-model-params",
)


def train_step(span, iteration, ended=lambda: None):
    """One step.

    Args:
        span: ``start_as_current_span`` of a tracer.
        iteration: number of the step.
        ended: called when a span has ended.
    """
    with span("train-step", attributes={"iteration": iteration}):
        with span("forward-backward"):
            for microbatch in MICROBATCHES:
                with span("batch-generator"):
                    pass
                ended()
                for direction in ("forward", "backward"):
                    with span(f"{direction}-step", attributes={"microbatch": microbatch}):
                        for _ in LAYERS:
                            with span(f"transformer-layer-{direction}"):
                                pass
                            ended()
                    ended()
        ended()
        with span("all-grads-sync"):
            pass
        ended()
        with span("optimizer"):
            for part in OPTIMIZER:
                with span(part):
                    pass
                ended()
        ended()
    ended()


def main():
    """Trains until it kills itself, or to the end."""
    import otel_mlperf as om

    parser = argparse.ArgumentParser()
    parser.add_argument("--count", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--end", default="finish")
    given = parser.parse_args()
    gc.disable()  # long collections would be sections beside those that are counted here
    Path(given.count).write_bytes(bytes(24))
    with open(given.count, "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 24)).cast("Q")

    def count():
        words[0] += 1

    span = trace.get_tracer("megatron").start_as_current_span
    tokens = metrics.get_meter("megatron").create_counter("train.tokens", "{token}")
    run = om.start("foreign", provider="install")
    for iteration in range(given.steps):
        train_step(span, iteration, count)
        tokens.add(4096, {"split": "train"})
        words[2] += 4096
    if given.end == "kill":
        with span("train-step"), span("forward-backward"):
            os.kill(os.getpid(), signal.SIGKILL)
    run.stop()
    words[0] += 1


if __name__ == "__main__":
    main()
