"""Bounds on the speed of a training step, held by pytest: ``pytest examples/test_speed.py``."""

import time

import pytest

import otel_mlperf as om


def train(steps, load_ms=1.0, forward_ms=2.0):
    for _ in om.steps(range(steps), samples=32):
        with om.span("load"):
            time.sleep(load_ms / 1e3)
        with om.span("forward"):
            time.sleep(forward_ms / 1e3)


@pytest.mark.ml_performance(max=["train.step.p95=100ms", "forward.mean=50ms"])
def test_a_step_is_quick():
    train(20)


@pytest.mark.ml_performance(max="samples_per_s>=100")
def test_a_step_takes_many_samples():
    train(20)


# Written by `pytest --ml-performance-write`, and committed: slower by over half is a failure.
# Of few steps, some of them held up by a busy machine, nobody could tell.
@pytest.mark.ml_performance(baseline="baselines/train.json", tolerance=0.5)
def test_a_step_is_no_slower_than_it_was():
    train(200)


def test_a_bound_may_follow_from_the_body(ml_performance):
    forward_ms = 3.0
    train(20, forward_ms=forward_ms)
    ml_performance.hold(f"forward.p50={20 * forward_ms}ms")


@pytest.mark.ml_performance(max=["preprocess.max=1s", "duration_ns=5s"])
def test_sections_need_no_step():
    for _ in range(5):
        with om.span("preprocess"):
            time.sleep(0.001)
