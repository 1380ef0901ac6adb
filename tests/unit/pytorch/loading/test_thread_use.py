"""A thread's CPU time, and its wait for a CPU, are known."""

from __future__ import annotations

import pytest
from interrupted_calls import interruptions
from open_files import open_files

from otel_mlperf.pytorch import loading
from otel_mlperf.pytorch.loading.loader_figures import ThreadUse, Used


def test_waiting_for_a_cpu_is_the_second_number(tmp_path):
    """As the kernel writes it, read anew each time."""
    file = tmp_path / "schedstat"
    file.write_text("399604 2309545 2\n")
    use = ThreadUse(str(file))
    before = use.read()
    file.write_text("399604 2309600 3\n")

    assert before.delay_ns == 2_309_545
    assert use.read().since(before).delay_ns == 55
    assert before.cpu_ns > 0


def test_a_kernel_that_does_not_say(tmp_path):
    """No such file, or something else in it: CPU time alone is known."""
    (tmp_path / "odd").write_text("none\n")

    for name in ("missing", "odd"):
        used = ThreadUse(str(tmp_path / name)).read()
        assert used.delay_ns == 0 < used.cpu_ns


def test_between_two_moments():
    """What was used meanwhile."""
    assert Used(9, 5).since(Used(4, 2)) == Used(5, 3)


@pytest.mark.fault("F95")
def test_interrupt_as_a_thread_ends(tmp_path):
    """What comes as its reader is given up arrives, and no descriptor stays open."""
    file = tmp_path / "schedstat"
    file.write_text("1 2 3\n")
    readers = [ThreadUse(str(file)) for _ in range(50)]

    def end() -> None:
        readers.pop()

    for moment, raised, arrived in interruptions(loading, KeyboardInterrupt, end):
        assert arrived is raised, moment.where
        assert open_files()[str(file)] == len(readers), moment.where


@pytest.mark.fault("F95")
def test_interrupt_as_a_reader_is_made():
    """What comes then arrives, and no other exception with it."""

    def make() -> None:
        ThreadUse()

    for moment, raised, arrived in interruptions(loading, KeyboardInterrupt, make):
        assert arrived is raised, moment.where
