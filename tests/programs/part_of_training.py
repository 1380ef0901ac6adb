"""Some steps of a training, from one number on; it ends well, in an error, or by SIGKILL."""

from __future__ import annotations

import argparse
import os
import signal
import time

import otel_mlperf as om

parser = argparse.ArgumentParser()
parser.add_argument("--count")
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--end", choices=("well", "error", "kill"), default="well")
args = parser.parse_args()

with om.start("part", step=args.first):
    time.sleep(0.02)  # set-up
    if args.first:
        with om.span("checkpoint.load"):
            time.sleep(0.01)
    for _ in om.epochs(1):
        for step in om.steps(range(args.steps)):
            with om.span("forward"):
                time.sleep(0.01)
            if step + 1 == args.steps and args.end == "error":
                raise SystemExit(3)
            if step + 1 == args.steps and args.end == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        with om.span("checkpoint"):
            time.sleep(0.01)
        with om.phase("validate"):
            for _ in om.steps(range(2)):
                time.sleep(0.01)
