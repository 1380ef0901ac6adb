"""States of the memory add up and are the kernel's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, values, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.host_sensor import by_state, read_memory

MEMINFO = """\
MemTotal:        1000 kB
MemFree:          200 kB
MemAvailable:     600 kB
Buffers:           50 kB
Cached:           300 kB
SwapCached:         7 kB
SwapTotal:        400 kB
SwapFree:         100 kB
Shmem:             30 kB
SReclaimable:      20 kB
Active:             1 kB
Inactive:           1 kB
"""
VMSTAT = "nr_free_pages 1\npgfault 1000\npgmajfault 40\npswpin 5\npswpout 6\n"


def read(root, level="basic"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil, "PROCFS_PATH", str(root))
        return read_memory(level)


def test_states_add_up_to_the_limit(tmp_path):
    """Used is what is neither free nor a cache that can be given back."""
    found = read(write_files(tmp_path, {"meminfo": MEMINFO}))

    sizes = {"used": 430, "free": 200, "buffers": 50, "cached": 320}
    assert of(names.SYSTEM_MEMORY, found) == {(k,): v * 1024 for k, v in sizes.items()}
    assert sum(sizes.values()) == 1000
    assert of(names.SYSTEM_MEMORY_LIMIT, found) == {(): 1000 * 1024}
    assert of(names.SYSTEM_MEMORY_AVAILABLE, found) == {(): 600 * 1024}
    assert of(names.SYSTEM_MEMORY_UTILIZATION, found) == {("used",): 0.43}


def test_swap_and_shared_memory_come_with_level_detailed(tmp_path):
    """Their sizes, and the share of the swap that is in use."""
    write_files(tmp_path, {"meminfo": MEMINFO, "vmstat": VMSTAT})
    basic, detailed = values(read(tmp_path)), values(read(tmp_path, "detailed"))

    assert {key: detailed[key] for key in detailed.keys() - basic.keys()} == {
        (names.SYSTEM_MEMORY_SHARED.name,): 30 * 1024,
        (names.PAGING_USAGE.name, "used"): 300 * 1024,
        (names.PAGING_USAGE.name, "free"): 100 * 1024,
        (names.PAGING_UTILIZATION.name, "used"): 0.75,
    }


def test_without_swap_there_is_no_share_of_it(tmp_path):
    """Nothing over nothing is absent."""
    none = MEMINFO.replace("400 kB", "0 kB").replace("100 kB", "0 kB")
    files = {"meminfo": none, "vmstat": VMSTAT}
    found = read(write_files(tmp_path, files), "detailed")

    assert of(names.PAGING_USAGE, found) == {("used",): 0, ("free",): 0}
    assert of(names.PAGING_UTILIZATION, found) == {}


@pytest.mark.fault("F74")
def test_what_the_kernel_does_not_say_is_absent(tmp_path):
    """No zeros stand in for what cannot be read."""
    assert read(tmp_path, "detailed") == []


def test_memory_and_swap_are_those_of_meminfo():
    """Sizes exactly, what is in use to 256 MiB: other processes allocate in between."""
    found, near = read(Path("/proc"), "detailed"), 256 << 20
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kernel = {name: int(size) << 10 for name, size, *_ in lines}

    assert of(names.SYSTEM_MEMORY_LIMIT, found) == {(): kernel["MemTotal:"]}
    states = of(names.SYSTEM_MEMORY, found)
    assert sum(states.values()) == kernel["MemTotal:"]
    assert states["free",] == pytest.approx(kernel["MemFree:"], abs=near)
    assert states["buffers",] == pytest.approx(kernel["Buffers:"], abs=near)
    cached = kernel["Cached:"] + kernel["SReclaimable:"]
    assert states["cached",] == pytest.approx(cached, abs=near)
    assert of(names.SYSTEM_MEMORY_SHARED, found)[()] == pytest.approx(kernel["Shmem:"], abs=near)
    available = of(names.SYSTEM_MEMORY_AVAILABLE, found)[()]
    assert available == pytest.approx(kernel["MemAvailable:"], abs=near)
    swap = of(names.PAGING_USAGE, found)
    assert sum(swap.values()) == kernel["SwapTotal:"]
    assert swap["free",] == pytest.approx(kernel["SwapFree:"], abs=near)


class Memory(NamedTuple):
    """What psutil returns on Linux."""

    total: int
    available: int
    free: int
    buffers: int
    cached: int


class MacMemory(NamedTuple):
    """What psutil returns on macOS, of which these two matter."""

    total: int
    available: int


@given(st.builds(Memory, *5 * [st.integers(0, 2**50)]))
def test_states_add_up_or_there_are_none(memory):
    """No state is below zero, whatever the counts are."""
    found = by_state(memory)

    assert not found or (sum(found.values()) == memory.total and min(found.values()) >= 0)


def test_states_of_a_system_without_buffers_add_up():
    """Used is what is not available."""
    assert by_state(MacMemory(total=1000, available=600)) == {"used": 400, "free": 600}
