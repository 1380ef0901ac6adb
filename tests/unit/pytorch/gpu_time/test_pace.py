"""Reports on idling and on ranks waiting for each other are true for simulated devices."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from fake_cuda import FakeGpu

import otel_mlperf as om
from otel_mlperf.agent.derivation.gpu_times import narrowed, step_on_device

US, MS = 1_000, 1_000_000
WORK = ("forward", "backward", "optimizer.step")


def steps_of(run):
    """What the agent says of each step, and its stamps in the step's stream, as they were told."""
    bounds, found = None, []
    for times in run.device_times:
        bounds = narrowed(bounds, times)
        if times.is_step:
            low, high, _ = bounds
            found.append((step_on_device(times, run.entries(*WORK), low, high), times))
    return found


def true_pace(times, difference_ns):
    """Time paced by the host and by the device, with what nobody knows: how the clocks differ."""
    step = times.sections[0]
    stamps = [(s.begin, s.host_begin) for s in times.sections]
    stamps = sorted(stamps + [(s.end, s.host_end) for s in times.sections])
    soon = max(200 * US, (step.end - step.begin) // 100)
    shift = difference_ns + times.device_ns - times.host_ns
    host = sum(b[0] - a[0] for a, b in pairwise(stamps) if b[0] + shift - b[1] <= soon)
    return host, step.end - step.begin - host


def section(gpu, name, launch_ns, ns):
    gpu.host(20 * US)  # what a program takes between two sections, at least
    with om.span(name):
        for _ in range(4):
            gpu.launch(ns)
            gpu.host(launch_ns)


def loop(run, steps, *, data_ns=0, launch_ns=10 * US, ns=MS, wait=False):
    gpu = run.gpu
    for _ in range(steps):
        with om.step():
            gpu.host(data_ns)
            for name in WORK:
                section(gpu, name, launch_ns, ns)
            if wait:
                gpu.wait()
    gpu.host(100_000 * MS)
    om.stop()


@pytest.mark.parametrize(
    ("how", "by"),
    [
        ({"wait": True}, "device"),
        ({"ns": 2 * MS}, "device"),
        ({"launch_ns": MS, "ns": 10 * US}, "host"),
        ({"data_ns": 50 * MS, "wait": True}, "host"),
        ({"data_ns": 3 * MS, "wait": True}, "device"),
    ],
    ids=["waits each step", "runs ahead", "launches slowly", "waits for data", "waits a little"],
)
def test_who_waited_for_whom(gpu_run, how, by):
    """Loops whose pace is plain are seen as what they are, once clocks have been compared."""
    loop(gpu_run, 30, **how)

    found = [step.pace.by for step, _ in steps_of(gpu_run)][5:]
    assert len(found) == 25
    assert set(found) == {by}


@pytest.mark.parametrize("wait", [True, False])
def test_idle_is_what_no_section_covers(gpu_run, wait):
    """Where only sections give work that follows at once, their gaps are the device's idling."""
    loop(gpu_run, 20, data_ns=20 * MS, wait=wait)

    for step, _ in steps_of(gpu_run)[1:]:
        work_ns = 3 * 4 * MS
        assert step.idle_ns == step.gpu_ns - work_ns
        assert step.idle_ns >= 20 * MS - 12 * MS
        assert sum(step.pace) == step.gpu_ns


@pytest.mark.parametrize("drift", [0.0, 9e-5, -9e-5])
def test_no_claim_is_wrong(start_gpu, drift):
    """Whatever the program does: what is said to be paced by one was."""
    known = whole = 0
    for seed in range(20):
        rng = random.Random(seed)
        gpu = FakeGpu(drift)
        run = start_gpu(gpu)
        for _ in range(40):
            with om.step():
                gpu.host(rng.choice((0, 0, 10 * MS)))
                for name in WORK:
                    section(gpu, name, rng.choice((10 * US, MS)), rng.choice((20 * US, 2 * MS)))
                if rng.random() < 0.2:
                    gpu.wait()
        gpu.host(100_000 * MS)
        om.stop()

        first = run.device_times[0]
        for step, times in steps_of(run):
            # The device's clock began at the first stamp, 5 µs after that was given to it.
            difference = first.host_ns + 5 * US - round(times.device_ns * drift / (1 + drift))
            host, device = true_pace(times, difference)
            assert step.pace.host_ns <= host + 50 * US
            assert step.pace.device_ns <= device + 50 * US
            known += step.pace.host_ns + step.pace.device_ns
            whole += step.gpu_ns
    assert known > 0.9 * whole


def test_a_step_without_work(gpu_run):
    """Where no section gives the device work, idling is not known."""
    for _ in range(3):
        with om.step():
            gpu_run.gpu.host(MS)
    gpu_run.gpu.host(100 * MS)
    om.stop()

    assert {step.idle_ns for step, _ in steps_of(gpu_run)} == {None}


def test_a_clock_that_was_set(gpu_run):
    """Bounds that contradict those before take their place."""
    loop(gpu_run, 3)
    first, *_, last = gpu_run.device_times
    assert narrowed([10**15, 10**15 + 1, first.device_ns], last) == narrowed(None, last)
