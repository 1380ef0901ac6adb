"""The children of a training process are found and distinguished."""

from __future__ import annotations

import pytest
from kernel_files import write_files

from otel_mlperf.sensors.processes.children import ChildFinder, Commands, role_of

TRAIN = b"python\0train.py\0"
SERVER = b"python\0-c\0from multiprocessing.forkserver import main; main(3, 4)\0"
SPAWN = b"python\0-c\0from multiprocessing.spawn import spawn_main\0--multiprocessing-fork\0"
TRACKER = b"python\0-c\0from multiprocessing.resource_tracker import main;main(5)\0"


@pytest.mark.parametrize(
    ("name", "own", "parent", "of_training", "role"),
    [
        (b"pt_data_worker", b"anything", TRAIN, True, "worker"),
        (b"python", TRAIN, TRAIN, True, "worker"),
        (b"python", SPAWN, TRAIN, True, "worker"),
        (b"python", SERVER, SERVER, False, "worker"),
        (b"python", SERVER, TRAIN, True, "other"),
        (b"python", TRACKER, TRAIN, True, "other"),
        (b"nvcc", b"nvcc\0-c\0", TRAIN, True, "other"),
        (b"sh", b"sh\0-c\0sleep\0", b"sh\0-c\0sleep\0", False, "other"),
    ],
)
def test_workers_are_told_from_other_children(name, own, parent, of_training, role):
    """Forked, spawned or from a fork server: workers; what became another program is not."""
    assert role_of(name, Commands(own, parent, of_training)) == role


@pytest.fixture
def proc(tmp_path):
    """7 has started 8 and 9 by its first thread and 20 by another; 8 has started 10."""
    lists = {"7/task/7": "8 9 ", "7/task/71": "20 ", "8/task/8": "10 ", "9/task/9": ""}
    return write_files(tmp_path, {f"{at}/children": text for at, text in lists.items()})


def test_descendants_are_found_through_all_threads(proc):
    """Also the children of children."""
    finder = ChildFinder(7, proc)

    assert finder.find((), ()) == {8, 9, 10, 20}
    assert finder.find({8, 9, 10, 20}, ()) == set()
    finder.close()


def test_children_of_other_threads_are_found_some_looks_later(proc):
    """Each look goes through the lists of first threads, every sixth through all."""
    finder = ChildFinder(7, proc)
    known = finder.find((), ())
    write_files(proc, {"7/task/7/children": "8 9 11 ", "7/task/71/children": "20 21 "})

    assert finder.find(known, ()) == {11}
    looks = [finder.find(known | {11}, ()) for _ in range(5)]
    assert looks == [set(), set(), set(), set(), {21}]
    finder.close()


def test_what_is_counted_elsewhere_is_left_out_with_its_own(proc):
    """Another training process among the children keeps its children."""
    finder = ChildFinder(7, proc)

    assert finder.find((), {8}) == {9, 20}
    finder.close()


def test_a_kernel_without_lists_of_children_shows_none(tmp_path):
    """Nothing is found, and nothing raised."""
    finder = ChildFinder(7, tmp_path)

    assert [finder.find((), ()) for _ in range(2)] == [set(), set()]
    finder.close()
