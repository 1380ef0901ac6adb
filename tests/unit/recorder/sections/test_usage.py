"""A section's usage equals the figures of kernel and allocator, wherever it ran."""

from __future__ import annotations

import asyncio
import mmap
import os
import resource
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_cuda import Account, Cuda
from interrupted_calls import interruptions
from open_files import open_files

import otel_mlperf as om
from otel_mlperf import names, recorder
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.api.otel_tracer import JournalTracer
from otel_mlperf.recorder.core.used_so_far import Counters
from otel_mlperf.recorder.sections.section_context import CURRENT

KIB, MIB = 1 << 10, 1 << 20
KEYS = [measure.key for measure in names.MEASURES]
OF_THREAD = KEYS[:5]
CPU_S = 0.02


def used(row):
    """What a section's row says that it used."""
    return dict(zip(KEYS, row.payload["u"], strict=True))


def total(rows, key):
    return sum(used(row)[key] for row in rows)


def burn(cpu_s=CPU_S):
    """Uses so much CPU time of the calling thread."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def move(size):
    """Reads and writes so many bytes."""
    with open("/dev/zero", "rb", buffering=0) as zeros, open(os.devnull, "wb", buffering=0) as sink:
        sink.write(zeros.read(size))


def wait():
    """Has the calling thread wait at least once: a limit may be over before it is waited for."""
    before = switches()
    while switches() == before:
        threading.Event().wait(0.001)


def switches():
    """How often the calling thread has waited."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class Kernel:
    """The calling thread's own counters, by the kernel."""

    def __init__(self):
        words = Path("/proc/thread-self/io").read_text().split()
        self.cpu_ns, self.voluntary_switches = time.thread_time_ns(), switches()
        self.read_bytes, self.written_bytes = int(words[1]), int(words[3])

    def holds(self, begun, of):
        """Whether what was used since ``begun`` is what sections say, and what was outside them."""
        assert 0 <= self.written_bytes - begun.written_bytes - of("written_bytes") < 4 * KIB
        assert 0 <= self.read_bytes - begun.read_bytes - of("read_bytes") < 16 * KIB
        assert self.cpu_ns - begun.cpu_ns >= of("cpu_ns")
        assert self.voluntary_switches - begun.voluntary_switches >= of("voluntary_switches")


def test_the_sum_of_all_calls_is_the_kernels(recording):
    """Many calls one after the other use what the kernel says of the thread meanwhile."""
    begun = Kernel()
    for _ in range(20):
        with om.span("work", resources=True):
            burn(0.002)
            move(64 * KIB)
            wait()
    ended = Kernel()

    rows = recording.sections("work")
    assert len(rows) == 20
    assert total(rows, "written_bytes") == total(rows, "read_bytes") == 20 * 64 * KIB
    assert total(rows, "cpu_ns") >= 20 * 2_000_000
    assert total(rows, "voluntary_switches") >= 20
    ended.holds(begun, lambda key: total(rows, key))


def test_a_section_uses_no_more_cpu_time_than_it_lasts(recording):
    """What reading the counters around it costs is not in a section of a microsecond."""
    for _ in range(50):
        with om.span("tiny", resources=True):
            pass
    for _ in om.steps(range(3)):
        pass

    rows = recording.sections("tiny")
    assert len(rows) == 50
    assert all(0 <= used(row)["cpu_ns"] <= row.end - row.start for row in rows)


def test_what_measuring_takes_is_counted_as_the_recorders(recording):
    """Of steps and sections alike, and no more than the time that has passed."""
    words, begun_ns = [], time.monotonic_ns()
    for of in (lambda: om.span("plain"), lambda: om.span("work", resources=True)):
        for _ in range(20):
            with of():
                pass
        words.append(recording.word(Word.WATCH_TIME))
    passed_ns = time.monotonic_ns() - begun_ns

    assert words[0] == 0
    assert 20 * 1_000 < words[1] < passed_ns


def test_nested_sections_hold_what_is_inside(recording):
    """What is inside counts in each section around it, as its time does."""
    with om.span("nothing", resources=True):
        pass
    with om.span("outer", resources=True):
        move(10 * KIB)
        with om.span("inner", resources=True):
            move(100 * KIB)
            burn()

    outer, inner = (used(recording.one(name)) for name in ("outer", "inner"))
    nothing = used(recording.one("nothing"))
    assert (nothing["read_bytes"], nothing["written_bytes"]) == (0, 0)
    assert inner["written_bytes"] == inner["read_bytes"] == 100 * KIB
    assert outer["written_bytes"] == 110 * KIB
    assert outer["cpu_ns"] >= inner["cpu_ns"] >= CPU_S * 1e9


def test_each_thread_has_its_own(recording):
    """Threads at the same time have each what they used, and all together what the kernel says."""
    together, kernels = threading.Barrier(4), []

    def work(share):
        begun = Kernel()
        together.wait()
        with om.span("work", resources=True, share=share):
            move(share * 64 * KIB)
            burn(0.005)
        kernels.append((share, begun, Kernel()))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))

    rows = {row.attributes["share"]: row for row in recording.sections("work")}
    assert len(rows) == 4
    for share, begun, ended in kernels:
        assert used(rows[share])["written_bytes"] == share * 64 * KIB
        assert used(rows[share])["cpu_ns"] >= 5_000_000
        ended.holds(begun, used(rows[share]).get)


def test_a_task_that_was_switched_away_claims_nothing_of_its_thread(recording):
    """One that awaited has no thread's numbers, one that did not has all of them."""

    async def waits():
        with om.span("waits", resources=True):
            await asyncio.sleep(0)
            burn(0.001)

    async def works():
        with om.span("works", resources=True):
            move(64 * KIB)

    async def main():
        await asyncio.gather(waits(), works())
        with om.span("around", resources=True):
            await asyncio.gather(waits(), works())

    with om.span("loop", resources=True):
        asyncio.run(main())

    for name in ("waits", "around"):
        for row in recording.sections(name):
            of = used(row)
            assert [of[key] for key in OF_THREAD] == [None] * 5
            assert of["memory_after_bytes"] > 0
    assert [used(row)["written_bytes"] for row in recording.sections("works")] == [64 * KIB] * 2
    assert used(recording.one("loop"))["written_bytes"] >= 128 * KIB


def test_an_eager_call_inside_a_turn_is_the_turns(recording):
    """An awaited coroutine that never gives way is part of its caller's turn."""

    async def inner():
        move(KIB)

    async def main():
        with om.span("call", resources=True):
            await inner()

    asyncio.run(main())

    assert used(recording.one("call"))["written_bytes"] == KIB


def test_a_loop_that_does_not_say(recording):
    """A loop of another make has no turns that could be told: nothing of the thread is claimed."""
    loop = asyncio.new_event_loop()
    asyncio.events._set_running_loop(loop)
    try:
        with om.span("work", resources=True):
            move(KIB)
    finally:
        asyncio.events._set_running_loop(None)
        loop.close()

    assert used(recording.one("work"))["written_bytes"] is None


def test_a_decorated_generator_claims_nothing_of_its_consumer(recording):
    """Its thread runs the consumer too: only memory is known."""

    @om.span(resources=True)
    def numbers():
        yield 1
        yield 2

    for _ in numbers():
        burn(0.001)

    (row,) = (row for row in recording.sections() if row.name.endswith("numbers"))
    assert [used(row)[key] for key in OF_THREAD] == [None] * 5
    assert used(row)["memory_before_bytes"] > 0


def test_a_section_that_ends_in_another_thread(recording):
    """The counters of two threads have nothing to do with each other."""
    section = om.span("moved", resources=True)
    section.__enter__()
    thread = threading.Thread(target=section.__exit__, args=(None, None, None))
    thread.start()
    thread.join()

    assert used(recording.one("moved"))["cpu_ns"] is None


def test_memory_of_the_process(recording):
    """Before, after and growth are there; the peak where the section was the first to reach it."""
    with om.span("warm", resources=True):
        mmap.mmap(-1, MIB).close()
    before = om.memory()
    room = before.peak_bytes - before.resident_bytes + 32 * MIB
    with om.span("grows", resources=True):
        held = mmap.mmap(-1, room)
        for place in range(0, room, mmap.PAGESIZE):
            held[place] = 1
    with om.span("frees", resources=True):
        held.close()

    grows, frees = (used(recording.one(name)) for name in ("grows", "frees"))
    assert room <= grows["memory_growth_bytes"] < room + room // 2 + 64 * MIB
    after = grows["memory_before_bytes"] + grows["memory_growth_bytes"]
    assert grows["memory_after_bytes"] == after
    assert grows["memory_peak_bytes"] >= after - MIB
    assert frees["memory_growth_bytes"] <= -room + 4 * MIB
    assert frees["memory_peak_bytes"] is None


def test_memory_of_the_allocator(recording):
    """Growth of what PyTorch's allocator gave out; the peak where it was the highest so far."""
    account = Account(allocated=100, peak=500)
    recording.recorder.sections._counters = Counters(find_cuda=lambda: Cuda([account]))
    with om.span("below", resources=True):
        account.allocate(50)
    with om.span("above", resources=True):
        account.allocate(400)
        account.allocate(-450)

    below, above = (used(recording.one(name)) for name in ("below", "above"))
    assert (below["cuda_growth_bytes"], below["cuda_peak_bytes"]) == (50, None)
    assert (above["cuda_growth_bytes"], above["cuda_peak_bytes"]) == (-50, 550)


def test_cuda_that_begins_inside(recording):
    """Where CUDA was initialised in the section all of its memory is the section's."""
    cuda = []
    recording.recorder.sections._counters = Counters(find_cuda=lambda: cuda[0] if cuda else None)
    with om.span("first", resources=True):
        cuda.append(Cuda([Account(allocated=7, peak=9)]))

    of = used(recording.one("first"))
    assert (of["cuda_growth_bytes"], of["cuda_peak_bytes"]) == (7, 9)


@pytest.mark.parametrize("broken", ["begin", "end"])
def test_what_cannot_be_read(start, broken):
    """An allocator that fails costs the numbers, not the section, and is counted."""
    recording = start()
    recording.may_fail = True
    calls = []

    def fails():
        calls.append(1)
        if broken == "begin" or len(calls) > 1:
            raise RuntimeError("CUDA error")

    recording.recorder.sections._counters = Counters(find_cuda=fails)
    with om.span("work", resources=True) as section:
        section.set(rows=1)

    row = recording.one("work")
    assert "u" not in row.payload
    assert row.attributes == {"rows": 1}


def test_every_shape(recording):
    """Decorated functions, handles, attributes, errors, checkpoints: all are measured."""

    @om.span("function", resources=True)
    def function():
        pass

    handle = om.span("handle", category="forward", resources=True, constant=1)
    function()
    for _ in range(2):
        with handle as section:
            section.set(rows=1)
    with om.step():
        with om.span("checkpoint", resources=True):
            pass
        with pytest.raises(ValueError, match="program"), om.span("fails", resources=True):
            raise ValueError("the program's")

    for name in ("function", "handle", "checkpoint", "fails"):
        assert all(used(row)["cpu_ns"] >= 0 for row in recording.sections(name))
    assert recording.one("fails").error[0] == "ValueError"
    assert recording.one("checkpoint").root == recording.span
    assert [row.attributes for row in recording.sections("handle")] == [
        {"constant": 1, "rows": 1},
        {"constant": 1, "rows": 1},
    ]


def test_decorated_before_the_run(start):
    """What was decorated before a run is measured in each, in two runs as in one."""

    @om.span(resources=True)
    def early():
        pass

    for _ in range(2):
        recording = start()
        early()
        (row,) = (row for row in recording.sections() if row.name.endswith("early"))
        assert used(row)["cpu_ns"] > 0
        om.stop()


@pytest.mark.parametrize(
    ("setting", "measured"),
    [
        ("", set()),
        ("all", {"forward", "mine", "plain", "train.step"}),
        ("forward, special", {"forward", "mine"}),
    ],
)
def test_switched_on_by_category(start, setting, measured):
    """A setting measures all sections of some categories, or of all, without a word in the code."""
    recording = start(resource_categories=setting)
    with om.step():
        for name, category in (("forward", None), ("mine", "special"), ("plain", None)):
            with om.span(name, category=category):
                pass

    found = {row.name for row in recording.sections() if "u" in row.payload}
    assert found == measured


@pytest.mark.parametrize("setting", ["step", "all"])
def test_steps(start, setting):
    """Each step of each phase is measured where its category is, whoever ends it."""
    recording = start(resource_categories=setting)
    with om.step(samples=8):
        move(64 * KIB)
    for _ in om.steps(range(2)):
        move(KIB)
    with om.phase("validate"), om.step():
        move(KIB)
    om.mark_step()
    move(2 * KIB)
    om.mark_step()

    steps = recording.sections("train.step")
    assert [used(row)["written_bytes"] for row in steps] == [64 * KIB, KIB, KIB, 2 * KIB]
    assert steps[0].payload["n"] == 8
    assert used(recording.one("validate.step"))["written_bytes"] == KIB


def test_steps_interrupted_at_every_moment(start):
    """Wherever Ctrl-C comes, a measured step is ended or never was, and the next is as new."""
    recording = start(resource_categories="all")

    def work():
        with om.step(), om.span("forward"):
            pass

    work()
    around = CURRENT.get()
    for moment, raised, arrived in interruptions(recorder, KeyboardInterrupt, work):
        assert arrived is raised, moment.where
        assert CURRENT.get() is around, moment.where
        assert recording.open() == ["run"], moment.where
        assert not recording.recorder.parents.steps, moment.where

    rows = recording.sections()
    assert max(Counter(row.span for row in rows).values()) == 1
    assert all(len(row.payload["u"]) == len(KEYS) for row in rows)


def test_spans_of_opentelemetry(start):
    """One that a block holds is measured like a section, one that is only opened is not."""
    recording = start(resource_categories="all")
    tracer = JournalTracer({})
    with tracer.start_as_current_span("block"):
        move(KIB)
    tracer.start_span("opened").end()

    assert used(recording.one("block"))["written_bytes"] == KIB
    assert "u" not in recording.one("opened").payload


def test_beside_plain_ones(recording):
    """The same name with and without: each call is what it asked to be."""
    for resources in (True, False, True):
        with om.span("forward", resources=resources):
            pass

    assert ["u" in row.payload for row in recording.sections("forward")] == [True, False, True]


def test_forked_child(recording):
    """In a forked child a section has the child's numbers, not its parent's."""
    with om.span("parent", resources=True):
        pass
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with om.span("child", resources=True) as section:
            move(64 * KIB)
        figures = section.extra.usage.figures
        os.write(writer, str(figures[KEYS.index("written_bytes")]).encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert os.read(reader, 100) == str(64 * KIB).encode()
    os.close(reader)
    os.close(writer)


def test_interrupted_at_every_moment(recording):
    """Wherever Ctrl-C comes, a section that was recorded has its figures, and closes its files."""

    def work():
        with om.span("work", resources=True):
            pass

    work()
    files = open_files()
    moments = 0
    for moment, raised, arrived in interruptions(recorder, KeyboardInterrupt, work):
        assert arrived is raised, moment.where
        moments += 1

    assert moments > 40
    rows = recording.sections("work")
    assert 1 < len(rows) <= moments + 2
    assert all(used(row)["cpu_ns"] >= 0 for row in rows)
    assert not open_files() - files
