"""The counters of a thread and its process are the kernel's own."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import Counter
from pathlib import Path

from open_files import open_files

from otel_mlperf.recorder.core.used_so_far import PAGE_BYTES, Counters, KernelFile

KIB = 1 << 10


def kernels_io(of="thread-self"):
    words = Path(f"/proc/{of}/io").read_text().split()
    return int(words[1]), int(words[3])


def test_a_thread_has_its_own():
    """CPU time, switches and bytes are the calling thread's, not its process's."""
    counters, told = Counters(), []

    def work():
        with open("/dev/zero", "rb", buffering=0) as zeros, open(os.devnull, "wb") as sink:
            sink.write(zeros.read(256 * KIB))
        began_ns = time.thread_time_ns()
        told.append((began_ns, counters.after(), time.thread_time_ns(), kernels_io(), _rusage()))

    before = counters.before()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    after = counters.after()

    began_ns, of_thread, ended_ns, (read, written), usage = told[0]
    assert 256 * KIB <= of_thread.read_bytes <= read < of_thread.read_bytes + 4 * KIB
    assert written == of_thread.written_bytes == 256 * KIB
    assert began_ns <= of_thread.cpu_ns <= ended_ns
    assert of_thread.voluntary <= usage.ru_nvcsw
    assert after.read_bytes - before.read_bytes < 256 * KIB
    assert after.cpu_ns >= before.cpu_ns


def _rusage():
    return resource.getrusage(resource.RUSAGE_THREAD)


def test_a_file_that_the_program_closed_is_opened_again(tmp_path):
    """Who closes every descriptor gets nothing of another file, and nothing of ours is lost."""
    path, other = tmp_path / "statm", tmp_path / "other"
    path.write_text("1 2 3")
    other.write_text("the program's")
    file = KernelFile(str(path))
    assert file.read() == b"1 2 3"

    os.close(file._file.fd)
    assert file.read() == b""
    assert file.read() == b"1 2 3"

    fd = file._file.fd
    os.close(fd)
    theirs = os.open(other, os.O_RDONLY)
    assert theirs == fd
    file.close()
    assert os.read(theirs, 3) == b"the"
    os.close(theirs)


def test_a_forked_child_reads_its_own():
    """What was opened before a fork is the parent's, and is opened anew."""
    file, (reader, writer) = KernelFile("/proc/self/stat"), os.pipe()
    assert int(file.read().split()[0]) == os.getpid()
    pid = os.fork()
    if pid == 0:
        os.write(writer, file.read().split()[0])
        os._exit(0)
    os.waitpid(pid, 0)

    assert int(os.read(reader, 20)) == pid
    os.close(reader)
    os.close(writer)


def test_more_threads_than_files():
    """So many keep a file open at once, the others open it anew; all are read, all is closed."""
    counters, read = Counters(), []
    together = threading.Barrier(101)
    begun = open_counters()

    def look():
        read.append(counters.after().read_bytes)
        together.wait()
        together.wait()

    threads = [threading.Thread(target=look) for _ in range(100)]
    for thread in threads:
        thread.start()
    together.wait()
    held = open_counters() - begun
    together.wait()
    for thread in threads:
        thread.join()

    assert len(read) == 100
    assert None not in read
    assert 0 < held.total() <= 64
    assert not open_counters() - begun


def open_counters():
    """Files of threads' bytes that this process has open, whoever opened them."""
    return Counter({name: count for name, count in open_files().items() if "/io" in name})


def test_the_peak_is_never_below_what_is_resident(tmp_path):
    """The kernel raises its own count of the peak only now and then."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text(f"9 {1 << 40} 1")

    memory = Counters(str(tmp_path)).of_process()
    assert memory.peak_bytes == memory.resident_bytes == PAGE_BYTES << 40
