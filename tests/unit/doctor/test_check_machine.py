"""The check finds what keeps a machine from recording well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otel_mlperf.doctor.check_machine import (
    check_clock,
    check_gpu,
    check_machine,
    check_python,
    check_room,
    check_runs_folder,
    check_shared_memory,
    check_torch,
)


def test_the_python_is_told_by_its_place():
    """Where a package is not found, it is mostly another one than the program's."""
    assert check_python().found.endswith(f", {sys.executable}")


def test_shared_memory_that_is_not_there_is_a_warning(tmp_path):
    """Recording goes on, on the disk."""
    check = check_shared_memory(str(tmp_path / "shm"))

    assert (check.level, check.do) == ("warn", f"make {tmp_path}/shm writable")


def test_a_runs_folder_that_cannot_be_made_is_a_failure(tmp_path):
    """A file is in its place."""
    (tmp_path / "file").write_text("")

    assert check_runs_folder(tmp_path / "file" / "runs").level == "FAIL"
    assert check_runs_folder(tmp_path / "not" / "yet").level == "ok"


@pytest.mark.parametrize(
    ("free", "level"), [(0, "FAIL"), (1 << 20, "warn"), ((1 << 30) - 1, "warn"), (1 << 30, "ok")]
)
def test_a_full_disk_is_a_failure_and_a_nearly_full_one_a_warning(free, level):
    """On a full one nothing is recorded at all."""
    assert check_room(Path("runs"), free).level == level


def test_the_run_folder_is_the_first_check_of_the_machine(tmp_path):
    """Of several failures a full disk explains the others."""
    assert check_machine(tmp_path, 1)[0].what == "run folder"


@pytest.mark.parametrize(
    ("now", "state", "nodes", "level"),
    [(1_760_000_000.0, 0, 2, "ok"), (1_760_000_000.0, None, 2, "ok"),
     (1_760_000_000.0, 5, 1, "ok"), (1_760_000_000.0, 5, 2, "warn"), (86_400.0, 0, 1, "FAIL")],
)  # fmt: skip
def test_a_clock_is_set_and_synchronised_or_not(now, state, nodes, level):
    """1970 is a failure; a clock of its own only where several nodes compare."""
    assert check_clock(lambda: now, state, nodes).level == level


def test_the_gpu_driver_is_read_from_the_kernel(tmp_path):
    """No library is loaded for it."""
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\nGCC")

    assert check_gpu(driver).found == "NVIDIA driver 550.54.14; section times are host times"
    assert check_gpu(Path("/nowhere")).level == "ok"


def test_torch_is_looked_for_without_loading_it():
    """A doctor that takes ten seconds is not called."""
    assert check_torch().level == "ok"
