"""The methods of series record exactly, from any thread and despite any interruption."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from cell_values import buckets, head, number, series

import otel_mlperf as om
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.recorder.api import instruments


@pytest.fixture(autouse=True)
def _no_instruments(monkeypatch):
    """No test knows the instruments of another."""
    monkeypatch.setattr(instruments, "_instruments", {})


@pytest.mark.fault("F56")
def test_threads(recording):
    """Sums of many threads are exact, in one cell a series."""
    tokens, depth = om.counter("tokens"), om.histogram("depth")

    def work():
        for i in range(2000):
            tokens.add(1)
            tokens.add(1, half=("a", "b")[i % 2])
            depth.record(i % 7)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert series(recording, "counter") == {
        ("tokens", ()): 16_000,
        ("tokens", (("half", "a"),)): 8_000,
        ("tokens", (("half", "b"),)): 8_000,
    }
    cells = series(recording, "histogram")["depth", ()]
    zeros = 8 * len(range(0, 2000, 7))
    assert head(cells) == (8 * sum(i % 7 for i in range(2000)), zeros, 0, 6)
    assert sum(buckets(cells).values()) == 16_000 - zeros


@pytest.mark.fault("F57")
def test_signal_handlers(recording):
    """Recording in a signal handler that interrupts recording loses nothing."""
    tokens, depth = om.counter("tokens"), om.histogram("depth")
    handled = count = 0

    def handle(number, frame):
        nonlocal handled
        handled += 1
        tokens.add(1)
        depth.record(3.0)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while handled < 200:
            tokens.add(1)
            depth.record(3.0)
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert series(recording, "counter") == {("tokens", ()): count + handled}
    cells = series(recording, "histogram")["depth", ()]
    assert head(cells)[0] == 3.0 * (count + handled)
    assert sum(buckets(cells).values()) == count + handled


class FromGpu:
    """Like a tensor on a GPU: looking at its value would wait."""

    is_cuda = True

    def item(self):
        raise AssertionError("waited for the GPU")

    __float__ = __bool__ = __lt__ = __ge__ = item


@pytest.mark.parametrize(
    "value",
    ["x", None, math.nan, math.inf, -math.inf, 10**400, torch.tensor(1.0), FromGpu(), np.ones(2)],
    ids=["text", "none", "nan", "inf", "-inf", "huge", "tensor", "gpu", "array"],
)
@pytest.mark.parametrize("is_bound", [False, True])
def test_what_cannot_be_recorded(recording, value, is_bound):
    """No number, one without end, or a tensor is left out, without harm and without a look."""
    labels = {"lang": "de"} if is_bound else {}
    tokens, depth = om.counter("tokens").labels(**labels), om.gauge("depth").labels(**labels)
    length = om.histogram("length").labels(**labels)
    for _ in range(2):
        for record in (tokens.add, depth.set, length.record):
            record(2)
            record(value)

    key = tuple(labels.items())
    assert series(recording, "counter")["tokens", key] == 4
    assert series(recording, "gauge")["depth", key] == 2
    assert head(series(recording, "histogram")["length", key]) == (4, 0, 2, 2)


def test_negative(recording, said):
    """A counter and a histogram take no negative value, which is said once."""
    for _ in range(2):
        om.counter("tokens").add(-1)
        om.histogram("length").record(-0.5)

    assert recording.cells() == {}
    assert said() == [
        "tokens: a negative value is ignored; use a gauge",
        "length: a negative value is ignored; its buckets cover values of at least zero",
    ]


def test_gauge_that_nobody_has_set(recording):
    """A gauge whose value could not be recorded has none."""
    om.gauge("depth").set(math.nan)

    assert recording.cells() == {}


@pytest.mark.fault("F25")
def test_forked_child(recording):
    """A forked child records for itself, also through methods bound in the parent."""
    tokens = om.counter("tokens")
    tokens.add(1)
    add = tokens.add
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            add(10)
            tokens.add(100, lang="de")
            child = om.recorder.api.span.active()
            found = child.cells._shared
            total = sum(child.journal.floats[word + 1] for word in found.values())
            os.write(writing, str(total).encode())
            os.unlink(child.journal.path)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    tokens.add(2)

    assert status == 0
    assert os.read(reading, 100) == b"110.0"
    assert series(recording, "counter") == {("tokens", ()): 3}
    os.close(reading)
    os.close(writing)


KILLED = """
import os, struct, sys
import otel_mlperf as om
run = om.start("x", dir=sys.argv[1], agent="none", console=False, readings="none")
print(run._recorder.journal.path, flush=True)
tokens, length = om.counter("tokens"), om.histogram("length")
n = 0
while True:
    tokens.add(1, lang="de")
    length.record(n % 1000)
    n += 1
    os.pwrite(int(sys.argv[2]), struct.pack("<Q", n), 0)
"""


@pytest.mark.parametrize("after", [1, 300, 20_000])
def test_killed(tmp_path, after):
    """What was recorded when the process is killed is there, to the last value."""
    with (tmp_path / "count").open("w+b") as counted:
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(counted.fileno())]
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, pass_fds=[counted.fileno()]
        )
        with program:
            path = program.stdout.readline().strip()
            while int.from_bytes(os.pread(counted.fileno(), 8, 0), "little") < after:
                assert program.poll() is None
            program.kill()
        n = int.from_bytes(os.pread(counted.fileno(), 8, 0), "little")
    reader = JournalReader(path)
    entries = reader.new_entries()
    found = {}
    for number_, *words in reader.cells().tolist():
        found.setdefault(entries[number_][2], []).append(words)
    reader.close()
    os.unlink(path)
    os.rmdir(os.path.dirname(path))

    ((total, *_),) = found["ml.user.tokens"]
    cells = found["ml.user.length"]
    recorded = sum(buckets(cells).values()) + head(cells)[1]
    assert number(total) in (n, n + 1)
    assert recorded in (n, n + 1)
    assert head(cells)[0] == pytest.approx(sum(i % 1000 for i in range(n)), abs=1000)
