"""Are context switches counted over all threads, and never backwards?"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from kernel_files import write_files

from otel_mlperf.sensors.processes.context_switches import SwitchCounter, Switches, parse_switches


def status(voluntary, involuntary):
    return (
        f"Name:\tpython\nvoluntary_ctxt_switches:\t{voluntary}\n"
        f"nonvoluntary_ctxt_switches:\t{involuntary}\n"
    )


def test_threads_add_up_also_after_their_end(tmp_path):
    """A thread that ended counts with what was last read of it."""
    write_files(tmp_path, {"task/1/status": status(10, 1), "task/2/status": status(20, 2)})
    counter = SwitchCounter(tmp_path)
    assert counter.read() == Switches(30, 3)
    shutil.rmtree(tmp_path / "task/2")
    write_files(tmp_path, {"task/1/status": status(15, 1), "task/3/status": status(7, 0)})

    assert counter.read() == Switches(42, 3)


def test_a_process_that_is_gone_has_none(tmp_path):
    """Absent, not zero."""
    assert SwitchCounter(tmp_path / "gone").read() is None


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
    counter = SwitchCounter(Path("/proc/self"))
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
