"""Tests of ``otel_mlperf.portability``, and of what asks it."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kineto_traces import training_step, write_trace
from run_folders import RunFolderBuilder
from runs import LIMIT_S, PROGRAMS, ending, environment

from otel_mlperf.portability import open_descriptors, read_at

ONLY_LINUX = """
import fcntl, mmap, os, resource, time
names = {
    os: "posix_fallocate fdatasync sched_getaffinity sched_setaffinity O_PATH memfd_create "
        "pidfd_open eventfd splice copy_file_range posix_fadvise getrandom",
    time: "CLOCK_BOOTTIME pthread_getcpuclockid",
    mmap: "MAP_POPULATE MADV_REMOVE",
    resource: "RUSAGE_THREAD prlimit",
    fcntl: "F_OFD_SETLK F_OFD_GETLK F_ADD_SEALS F_SETPIPE_SZ",
}
for module, text in names.items():
    for name in text.split():
        vars(module).pop(name, None)
import otel_mlperf as om
with om.start("mac", agent="thread", console=True):
    for _ in om.steps(range(8)):
        with om.span("forward", resources=True):
            sum(range(20_000))
assert om.memory().peak_bytes > 1 << 20, om.memory()
"""
LIKE_WINDOWS = f"import sys; sys.path.insert(0, {str(PROGRAMS)!r}); import like_windows as w; "
IMPORT_ALL = """
w.become_windows()
import importlib, pkgutil
import otel_mlperf
for module in pkgutil.walk_packages(otel_mlperf.__path__, "otel_mlperf."):
    # The protocol's package and multiprocessing ask for modules of Windows itself.
    if not module.name.endswith(("__main__", "assistant", "joined_provider")):
        importlib.import_module(module.name)
"""
RECORDS = """
w.become_windows()
import otel_mlperf as om
for _ in range(2):
    with om.start("windows"):
        for _ in om.steps(range(3)):
            with om.span("forward"):
                pass
print(om.memory())
"""
OWNER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX)
print("locked", flush=True)
input()
fcntl.lockf(fd, fcntl.LOCK_UN)
print("unlocked", flush=True)
input()
"""
HAS_OWNER = """
import os, sys
from otel_mlperf.journal.meta import has_owner
print(has_owner(os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])))
"""
NOBODY = 1 << 22
"""A number that no process has."""
RANK = """
import otel_mlperf as om
print(om.start("ranks", agent="none", console=False).id)
"""


def run(tmp_path, *words, **variables):
    """A program of these tests, which ends well."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], env=environment(tmp_path / "runs", **variables),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_a_run_needs_no_call_that_only_linux_has(tmp_path) -> None:
    """Steps, sections and their CPU time are recorded, and nothing is said of what is absent."""
    done = run(tmp_path, "-c", ONLY_LINUX, OTEL_MLPERF_PORTABLE="1", TMPDIR=str(tmp_path))

    said = [line for line in done.stderr.splitlines() if line.startswith("otel_mlperf:")]
    assert [line.partition(" into ")[0] for line in said] == ["otel_mlperf: recording mac"]
    assert "8 steps" in done.stderr
    assert re.search(r"forward +8 +\d+ µs", done.stderr)  # what a call used


@pytest.mark.slow
def test_every_module_can_be_imported_on_windows(tmp_path) -> None:
    """None needs a module or a name of POSIX before it is used."""
    run(tmp_path, "-c", LIKE_WINDOWS + IMPORT_ALL)


@pytest.mark.slow
def test_on_windows_one_line_says_that_nothing_is_recorded(tmp_path) -> None:
    """The program runs as it would without us, and no run folder is made."""
    done = run(tmp_path, "-c", LIKE_WINDOWS + RECORDS)

    (line,) = done.stderr.splitlines()
    assert line.startswith("otel_mlperf: otel_mlperf records on Linux and macOS")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_runs_can_be_read_on_windows(tmp_path) -> None:
    """A run of another machine is summed up, compared and drawn, and a trace is imported."""
    for name, run_id in (("first", "a" * 16), ("second", "b" * 16)):
        builder = RunFolderBuilder(tmp_path / "runs", name, run_id)
        for number in range(30):
            builder.step(number, number * 10**7, {"forward": 6 * 10**6})
        builder.process(30 * 10**7)
        builder.write()
    first, second = "first-aaaa", "second-bbbb"
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    write_trace(trace, training_step())
    commands = [
        ["runs"], ["summary", first], ["compare", first, second],
        ["report", first, "--out", str(page)], ["query", first, "SELECT count(*) FROM steps"],
        ["kernels", str(trace)], ["import", str(trace), "--run", "imported"],
    ]  # fmt: skip
    words = [word for command in commands for word in [*command, "then"]][:-1]
    done = run(tmp_path, PROGRAMS / "like_windows.py", *words)

    assert "30 steps" in done.stdout
    assert page.stat().st_size > 10_000
    assert "imported" in {path.name.rpartition("-")[0] for path in (tmp_path / "runs").iterdir()}


def test_a_journal_has_an_owner_while_its_process_lives(tmp_path) -> None:
    """By the lock, and where the process has lost that by its number and age; until it ends."""
    file = tmp_path / "a.journal"
    file.write_bytes(b"journal")
    words = [sys.executable, "-c", OWNER, str(file)]
    owner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def has_owner(path, pid):
        done = run(tmp_path, "-c", HAS_OWNER, path, pid, OTEL_MLPERF_PORTABLE="1")
        return done.stdout == "True\n"

    with ending([owner]):
        assert owner.stdout.readline() == "locked\n"
        assert has_owner(file, NOBODY)
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "unlocked\n"
        assert has_owner(file, owner.pid)
        assert not has_owner(file, NOBODY)
        assert not has_owner(__file__, owner.pid)  # the process is younger
        owner.kill()
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        assert not has_owner(file, owner.pid)  # a zombie writes no more


def test_ranks_of_one_launcher_find_one_run(tmp_path) -> None:
    """By the start of their parent, which ``ps`` knows."""
    variables = {"WORLD_SIZE": "2", "OTEL_MLPERF_PORTABLE": "1", "TMPDIR": str(tmp_path)}
    ids = {run(tmp_path, "-c", RANK, RANK=rank, **variables).stdout for rank in "01"}

    assert len(ids) == 1


def test_a_part_of_a_file_is_read_without_moving(tmp_path) -> None:
    """As ``os.pread`` does, also where there is none."""
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    with file.open("rb") as opened, pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "pread")
        assert (read_at(opened.fileno(), 3, 4), opened.read(2)) == (b"456", b"01")


def test_descriptors_are_listed() -> None:
    """Those that are open are among them."""
    with Path(__file__).open("rb") as opened:
        assert opened.fileno() in open_descriptors()
        assert fcntl.fcntl(opened, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
