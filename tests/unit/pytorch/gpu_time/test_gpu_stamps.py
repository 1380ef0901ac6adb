"""The GPU time of each section is what the device took, and nothing is ever waited for."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_cuda import FakeGpu

import otel_mlperf as om
from otel_mlperf.recorder.sections.section import Section
from otel_mlperf.recorder.sections.section_context import Extra

US, MS = 1_000, 1_000_000


def work(gpu, name, launch_ns, ns, pieces=4):
    """A section that gives the device pieces of work; returns the truth by the simulation."""
    begin = gpu.current_stream().reached()
    with om.span(name):
        for _ in range(pieces):
            gpu.launch(ns)
            gpu.host(launch_ns)
        end = gpu.current_stream().reached()
    return end - begin


def train(gpu, steps, launch_ns, ns, data_ns=0, *, wait=False):
    """A loop; returns the truth of each step: data by section name."""
    truth = []
    for _ in range(steps):
        with om.step():
            gpu.host(data_ns)
            truth.append({
                "forward": work(gpu, "forward", launch_ns, ns),
                "backward": work(gpu, "backward", launch_ns, 2 * ns),
                "optimizer.step": work(gpu, "optimizer.step", launch_ns, ns // 2),
            })  # fmt: skip
            if wait:
                gpu.wait()
    return truth


@pytest.mark.parametrize(
    ("launch_ns", "ns", "wait"),
    [(10 * US, MS, True), (10 * US, MS, False), (MS, 10 * US, False)],
    ids=["waits each step", "runs ahead", "launches slowly"],
)
def test_gpu_time_is_the_devices(gpu_run, launch_ns, ns, wait):
    """Each section of each step has the time that the device took between its two stamps."""
    truth = train(gpu_run.gpu, 20, launch_ns, ns, 3 * MS, wait=wait)
    gpu_run.gpu.host(10_000 * MS)
    om.stop()

    for name in ("forward", "backward", "optimizer.step"):
        by_span = {told.span: told for told in gpu_run.told if told.name == name}
        found = [by_span[span].ns for span in gpu_run.spans(name)]
        assert found == [step[name] for step in truth]
    assert not gpu_run.missed


def test_a_step_has_marks_of_its_own(gpu_run):
    """The step's own come first in its last row, and hold those of its sections."""
    train(gpu_run.gpu, 3, 10 * US, MS, wait=True)
    gpu_run.gpu.host(100 * MS)
    om.stop()

    for span in gpu_run.spans("train.step"):
        step, *inside = (told for told in gpu_run.told if told.root == span)
        assert step.is_step
        assert step.span == span
        assert len(inside) == 3
        assert all(step.begin <= told.begin <= told.end <= step.end for told in inside)
        assert gpu_run.is_flagged(span)


class Schedule:
    """A program made up at random, and the truth about its sections."""

    def __init__(self, seed, gpu):
        self.rng, self.gpu = random.Random(seed), gpu
        self.truth = {}
        """GPU time by span."""

    def go_on(self, depth):
        """Launches, waits and opens sections."""
        for _ in range(self.rng.randrange(4)):
            action = self.rng.choices(("launch", "host", "wait", "section"), (6, 6, 1, 7))[0]
            if action == "launch":
                self.gpu.launch(self.rng.randrange(5 * MS))
            elif action == "host":
                self.gpu.host(self.rng.randrange(2 * MS))
            elif action == "wait":
                self.gpu.wait()
            elif depth:
                self.section(depth)

    def section(self, depth):
        begin = self.gpu.current_stream().reached()
        with om.span(self.rng.choice(("forward", "backward", "transfer", "loss"))) as section:
            self.go_on(depth - 1)
            end = self.gpu.current_stream().reached()
        self.truth[section.sid] = end - begin


def test_random_schedules(start_gpu):
    """Whatever is launched, nested and waited for: GPU times are the simulation's truth."""
    for seed in range(25):
        gpu = FakeGpu()
        run, schedule = start_gpu(gpu), Schedule(seed, gpu)
        for _ in range(15):
            with om.step():
                schedule.go_on(3)
        schedule.go_on(2)
        gpu.host(1000 * MS)
        om.stop()

        found = {told.span: told.ns for told in run.told if not told.is_step}
        assert found == schedule.truth, seed
        assert not run.missed


@pytest.mark.parametrize("drift", [-5e-5, 5e-5])
def test_bounds_hold_the_difference_of_the_clocks(start_gpu, drift):
    """Host clock less device clock is between the bounds, whatever the device's clock is like."""
    gpu = FakeGpu(drift)
    run = start_gpu(gpu)
    train(gpu, 30, 10 * US, MS, 3 * MS, wait=True)
    gpu.host(100 * MS)
    om.stop()

    for told in run.told:
        # The device's clock began with the first stamp; by the simulation its event was at:
        true_begin = (run.told[0].host_begin + 5 * US) + told.begin / (1 + drift)
        slack = abs(told.begin * drift) + US
        assert told.low - slack <= true_begin - told.begin <= told.high + slack
        assert told.low <= told.high


def test_the_host_is_behind_no_mark(gpu_run):
    """A stamp is passed after it was given to the device."""
    train(gpu_run.gpu, 5, MS, 10 * US)
    gpu_run.gpu.host(100 * MS)
    om.stop()

    for told in gpu_run.told:
        assert told.begin + told.high >= told.host_begin
        assert told.host_begin <= told.host_end


def test_nothing_waits_and_little_is_asked(gpu_run):
    """A device that never comes to the stamps costs one question a stamp."""
    gpu = gpu_run.gpu
    gpu.launch(10**15)
    train(gpu, 10, 10 * US, MS)

    stamps = 10 * (2 + 3 * 2)
    assert gpu.queries <= stamps
    assert gpu_run.told == []
    om.stop()
    assert gpu_run.missed == {"late": 40}


def test_a_pool_that_is_empty(start_gpu):
    """Without a free event a section goes without GPU time, counted; events are used again."""
    gpu = FakeGpu()
    run = start_gpu(gpu, most=32)
    gpu.launch(100 * MS)
    train(gpu, 10, US, US)
    assert gpu.made == 32
    assert run.missed["pool"] > 0
    gpu.host(1000 * MS)
    train(gpu, 200, 10 * US, 10 * US, wait=True)
    gpu.host(100 * MS)
    om.stop()

    assert gpu.made == 32
    told = {told.root for told in run.told if told.is_step}
    assert set(run.spans("train.step")[-190:]) <= told


def test_captured_graphs_are_left_alone(gpu_run):
    """While a graph is captured no event is recorded or asked: the fake would fail at once."""
    gpu = gpu_run.gpu
    train(gpu, 1, US, MS)
    with om.step():
        gpu.capturing = True
        with om.span("forward"):
            gpu.host(MS)
        gpu.capturing = False
        with om.span("backward"):
            gpu.capturing = True
        gpu.capturing = False
        work(gpu, "optimizer.step", US, MS)
    gpu.host(100 * MS)
    om.stop()

    last = gpu_run.spans("train.step")[-1]
    assert [t.name for t in gpu_run.told if t.root == last] == ["train.step", "optimizer.step"]
    assert gpu_run.missed == {"capture": 2}


def test_other_streams(gpu_run):
    """A section in another stream has its time there, and says that it was not the step's."""
    gpu = gpu_run.gpu
    train(gpu, 1, US, MS)
    side = gpu.stream(0, 7)
    with om.step():
        gpu.launch(50 * MS)
        gpu.streams.append(side)
        transfer = work(gpu, "transfer", US, MS)
        gpu.streams.pop()
        with om.span("backward"):
            gpu.streams.append(side)
        gpu.streams.pop()
    gpu.host(1000 * MS)
    om.stop()

    last = gpu_run.spans("train.step")[-1]
    found = {t.name: t for t in gpu_run.told if t.root == last}
    assert found["transfer"].ns == transfer
    assert not found["transfer"].is_same_stream
    assert "backward" not in found
    assert gpu_run.missed == {"stream": 1}


def test_several_devices(gpu_run):
    """Each device has its own events and clock; the row with the step comes last."""
    gpu = gpu_run.gpu
    train(gpu, 1, US, MS)
    truth = []
    for _ in range(3):
        with om.step():
            gpu.streams.append(gpu.stream(1, 0))
            truth.append(work(gpu, "forward", US, 2 * MS))
            gpu.streams.pop()
            work(gpu, "backward", US, MS)
            gpu.host(50 * MS)
    gpu.host(1000 * MS)
    om.stop()

    told = [t for t in gpu_run.told if t.root in gpu_run.spans("train.step")[1:]]
    assert [t.ns for t in told if t.device == 1] == truth
    assert [t.name for t in told[:3]] == ["forward", "train.step", "backward"]


def test_other_threads_put_no_marks(gpu_run):
    """Only the thread that runs the steps: others would break what it captures."""
    gpu = gpu_run.gpu
    train(gpu, 1, US, MS)

    def section():
        with om.span("forward"):
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(section).result()
    moved = om.span("backward")
    moved.__enter__()
    thread = threading.Thread(target=moved.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    gpu.host(100 * MS)
    om.stop()

    assert len(gpu_run.spans("forward")) == 2
    assert len([t for t in gpu_run.told if t.name == "forward"]) == 1


def test_nothing_before_cuda(start_gpu):
    """Until the program initialises CUDA sections take the short way; then those of old names too.

    Steps: the first that begins afterwards has its own stamps already.
    """
    gpu = FakeGpu()
    gpu.initialized = False
    run = start_gpu(gpu)

    @om.span("forward")
    def forward():
        gpu.launch(MS)

    with om.step():
        forward()
        with om.span("loss") as section:
            assert section.extra is None
            assert isinstance(section, Section)
    assert gpu.made == 0
    assert run.recorder.sections.stamps is None
    gpu.initialized = True
    run.recorder.stepping.due_ns = 0
    for _ in range(2):
        with om.step():
            forward()
            with om.span("loss") as section:
                assert isinstance(section.extra, Extra)
            gpu.host(10 * MS)
    gpu.host(100 * MS)
    om.stop()

    last = run.spans("train.step")[-2:]
    for span in last:
        told = [t.name for t in run.told if t.root == span]
        assert told == ["train.step", "forward", "loss"]


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("forward", {"forward", "train.step"}),
        ("all", {"forward", "mine", "data.load", "train.step"}),
        ("special", {"mine", "train.step"}),
    ],
)
def test_switched_on_by_category(start_gpu, setting, found):
    """A setting says which sections have GPU time; steps have it wherever any has."""
    run = start_gpu(gpu_time_categories=setting)
    for _ in range(2):
        with om.step():
            for name, category in (("forward", None), ("mine", "special"), ("data.load", None)):
                with om.span(name, category=category):
                    run.gpu.launch(MS)
        run.gpu.host(100 * MS)
    om.stop()

    assert {told.name for told in run.told} == found


def test_outside_steps(gpu_run):
    """Sections outside steps are told in rows of a few, also while no step ends."""
    truth = [work(gpu_run.gpu, "forward", 10 * US, (i + 1) * MS) for i in range(40)]
    gpu_run.gpu.host(10_000 * MS)
    with om.span("forward"):
        pass
    told = gpu_run.told
    assert len(told) >= 32
    gpu_run.gpu.host(MS)
    om.stop()

    assert [t.ns for t in gpu_run.told][:40] == truth
    assert {t.root for t in gpu_run.told} == {gpu_run.recorder.meta.run_span}


def test_a_checkpoint_inside_a_step(gpu_run):
    """A step whose span holds what is no time of it says so."""
    train(gpu_run.gpu, 1, US, MS)
    with om.step(), om.span("checkpoint"):
        pass
    gpu_run.gpu.host(100 * MS)
    om.stop()

    assert [t.is_mixed for t in gpu_run.told if t.is_step] == [False, True]


def test_a_step_that_ended_long_ago(gpu_run):
    """One of which is only now known that it ended has its end at its last section's stamp."""
    gpu, stepping = gpu_run.gpu, gpu_run.recorder.stepping
    train(gpu, 1, US, MS)
    step = stepping.begin()
    work(gpu, "forward", US, MS)
    over_ns = gpu.now_ns
    gpu.host(500 * MS)
    gpu.launch(300 * MS)
    stepping.end(step, over_ns)
    gpu.host(1000 * MS)
    om.stop()

    own, forward = (t for t in gpu_run.told if t.root == gpu_run.spans("train.step")[-1])
    assert own.end == forward.end


def test_a_step_that_is_taken_back(gpu_run):
    """Its own stamp is free again, its sections are told as ones of no step."""
    gpu, stepping = gpu_run.gpu, gpu_run.recorder.stepping
    train(gpu, 1, US, MS)
    step = stepping.begin()
    work(gpu, "forward", US, MS)
    stepping.cancel(step)
    gpu.host(100 * MS)
    train(gpu, 1, US, MS)
    gpu.host(100 * MS)
    om.stop()

    assert len([t for t in gpu_run.told if t.name == "forward"]) == 3
    assert len([t for t in gpu_run.told if t.is_step]) == 2


def test_an_error_in_the_section(gpu_run):
    """A section that is left by an exception has its time; the exception is the program's."""
    gpu = gpu_run.gpu
    train(gpu, 1, US, MS)

    def fails():
        with om.step(), om.span("backward"):
            gpu.launch(7 * MS)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fails()
    gpu.host(100 * MS)
    om.stop()

    assert [t.ns for t in gpu_run.told if t.name == "backward"][-1] == 7 * MS


@pytest.mark.parametrize("call", ["current_stream", "is_current_stream_capturing"])
def test_a_device_in_trouble(gpu_run, monkeypatch, caplog, call):
    """Where CUDA fails, GPU time ends for good, said once; the program notices nothing."""
    gpu = gpu_run.gpu
    train(gpu, 2, US, MS)

    def fails(**_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(gpu, call, fails)
    gpu.now_ns += 100 * MS
    with om.step():
        for _ in range(3):
            with om.span("forward"):
                pass
    om.stop()

    assert len([r for r in caplog.records if "illegal memory access" in r.getMessage()]) == 1
    assert gpu_run.missed == {"error": 1}
    assert len(gpu_run.spans("train.step")) == 3


def test_a_forked_child_asks_nothing(gpu_run):
    """A fork's child never touches its parent's device, not in sections open at the fork either."""
    gpu = gpu_run.gpu
    train(gpu, 1, US, MS)
    with om.step(), om.span("forward"):
        queries, made = gpu.queries, gpu.made
        pid = os.fork()
        if not pid:
            status = 1
            try:
                with om.span("backward"):
                    gpu.host(100 * MS)
                status = 0 if (gpu.queries, gpu.made) == (queries, made) else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0


def test_not_loaded_without_cuda(tmp_path):
    """A program that uses no CUDA loads nothing of it, and its sections take the short way."""
    program = f"""
import os, sys
import otel_mlperf as om
settings = dict(agent="none", console=False, gpu_time_categories="all")
with om.start("x", dir={str(tmp_path)!r}, **settings) as run:
    for _ in range(3):
        with om.step(), om.span("forward") as section:
            assert section.extra is None
os.unlink(run._recorder.journal.path)
os.rmdir(os.path.dirname(run._recorder.journal.path))
assert "otel_mlperf.pytorch.gpu_time.gpu_stamps" not in sys.modules
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
