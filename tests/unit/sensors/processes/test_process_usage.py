"""Usage of one process is read rightly, whatever it is called, and over all of its threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import write_files

from otel_mlperf.sensors.processes.process_usage import (
    Scheduled,
    Stat,
    ThreadSums,
    parse_scheduled,
    parse_stat,
    parse_statm,
    parse_switches,
)

TICK = os.sysconf("SC_CLK_TCK")
REST = "S 3 7 7 0 -1 4194304 500 600 20 30 1500 250 1 2 20 0 12 0 88000 4096000 300 99"


@pytest.mark.parametrize("command", ["python", "a b", "x) S 1 (y", ")", "", "(()"])
def test_a_command_may_hold_anything(command):
    """Blanks and brackets in it move no other field."""
    assert parse_stat(f"7 ({command}) {REST}\n".encode()) == Stat(
        command=command.encode(),
        parent=3,
        minor_faults=500,
        major_faults=20,
        user_s=1500 / TICK,
        system_s=250 / TICK,
        waited_user_s=1 / TICK,
        waited_system_s=2 / TICK,
        threads=12,
        start_s=88000 / TICK,
    )


def test_this_process_is_as_the_system_calls_say():
    """CPU times lie between two of ``times``; memory is that of ``smaps_rollup``."""
    before = os.times()
    found = parse_stat(Path("/proc/self/stat").read_bytes())
    after = os.times()
    virtual_bytes, resident_bytes = parse_statm(Path("/proc/self/statm").read_bytes())
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (resident,) = (int(line.split()[1]) << 10 for line in rollup if line.startswith("Rss:"))

    assert before.user <= found.user_s <= after.user
    assert before.system <= found.system_s <= after.system
    assert found.parent == os.getppid()
    assert resident_bytes == pytest.approx(resident, abs=1 << 20)
    assert virtual_bytes >= resident_bytes


@pytest.mark.parametrize("text", [b"", b"12", b"a b c", b"-1 2"])
def test_text_that_is_no_statm_gives_nothing(text):
    """A file of a process that has just ended is empty."""
    assert parse_statm(text) == []


def test_a_process_starts_when_the_kernel_says():
    """In seconds since the machine started, to a tick."""
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        found = parse_stat(Path(f"/proc/{process.pid}/stat").read_bytes())
    after_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before_s - 1 / TICK <= found.start_s <= after_s


@given(st.binary(max_size=200) | st.text("()0123456789 S-", max_size=200).map(str.encode))
def test_any_text_gives_a_line_or_none(text):
    """Parsing never raises, and no number is below zero."""
    found = parse_stat(text)

    assert found is None or min(found[1:]) >= 0


def status(voluntary, involuntary):
    return (
        f"Name:\tpython\nvoluntary_ctxt_switches:\t{voluntary}\n"
        f"nonvoluntary_ctxt_switches:\t{involuntary}\n"
    )


def test_threads_add_up_also_after_their_end(tmp_path):
    """A thread that ended counts with what was last read of it."""
    write_files(tmp_path, {"task/1/status": status(10, 1), "task/2/status": status(20, 2)})
    counter = ThreadSums(tmp_path, "status", parse_switches)
    assert counter.read() == (30, 3)
    shutil.rmtree(tmp_path / "task/2")
    write_files(tmp_path, {"task/1/status": status(15, 1), "task/3/status": status(7, 0)})

    assert counter.read() == (42, 3)


def test_what_a_thread_got_of_the_cpus_is_in_seconds():
    """The third number counts turns."""
    assert parse_scheduled(b"1500000000 250000000 77\n") == Scheduled(1.5, 0.25)


@pytest.mark.parametrize("text", [b"", b"0 0 0\n", b"12 13\n", b"a b c\n"])
def test_a_kernel_that_keeps_no_account_of_its_threads_has_none(text):
    """Zeros are not what they waited."""
    assert parse_scheduled(text) is None


def test_waits_for_a_cpu_add_up_also_after_a_threads_end(tmp_path):
    """They are counted, and what is counted must not fall."""
    write_files(tmp_path, {f"task/{n}/schedstat": f"5000 {n}000000000 7\n" for n in (1, 2)})
    sums = ThreadSums(tmp_path, "schedstat", parse_scheduled)
    assert sums.read() == (1e-5, 3.0)
    shutil.rmtree(tmp_path / "task/2")
    write_files(tmp_path, {"task/1/schedstat": "6000 4000000000 8\n"})

    assert sums.read() == (1.1e-5, 6.0)


def test_a_process_that_is_gone_has_none(tmp_path):
    """Absent, not zero."""
    assert ThreadSums(tmp_path / "gone", "status", parse_switches).read() is None


def test_threads_of_this_process_that_wait_are_counted():
    """A thread that waits a hundred times adds a hundred switches, though it is not the first."""
    start, turn, back = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def wait():
        for _ in range(100):
            turn.acquire()
            back.release()
        start.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    counter = ThreadSums(Path("/proc/self"), "status", parse_switches)
    before = counter.read()
    for _ in range(100):
        turn.release()
        back.acquire()
    after = counter.read()
    start.set()
    thread.join()

    assert sum(after) - sum(before) >= 100


@given(st.binary(max_size=100))
def test_any_text_gives_switches_or_none(text):
    """Parsing never raises."""
    found = parse_switches(text)

    assert found is None or min(found) >= 0
