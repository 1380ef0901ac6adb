"""Do the states of the memory add up, and are they the kernel's?"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_files import of, values, write_files

from otel_mlperf import names
from otel_mlperf.sensors.host.host_memory import MemorySensor, parse_memory

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
"""
VMSTAT = "nr_free_pages 1\npgfault 1000\npgmajfault 40\npswpin 5\npswpout 6\n"


def read(root, level="basic"):
    sensor = MemorySensor(level, root)
    found = sensor.read()
    sensor.close()
    return found


def test_states_add_up_to_the_limit(tmp_path):
    """Used is what is neither free nor a cache that can be given back."""
    found = read(write_files(tmp_path, {"meminfo": MEMINFO}))

    sizes = {"used": 430, "free": 200, "buffers": 50, "cached": 320}
    assert of(names.SYSTEM_MEMORY, found) == {(k,): v * 1024 for k, v in sizes.items()}
    assert sum(sizes.values()) == 1000
    assert of(names.SYSTEM_MEMORY_LIMIT, found) == {(): 1000 * 1024}
    assert of(names.SYSTEM_MEMORY_AVAILABLE, found) == {(): 600 * 1024}
    assert of(names.SYSTEM_MEMORY_UTILIZATION, found) == {("used",): 0.43}


def test_paging_comes_with_level_detailed(tmp_path):
    """Swap, faults and swapped pages; a fault is minor or major, never both."""
    write_files(tmp_path, {"meminfo": MEMINFO, "vmstat": VMSTAT})
    basic, detailed = values(read(tmp_path)), values(read(tmp_path, "detailed"))

    assert {key: detailed[key] for key in detailed.keys() - basic.keys()} == {
        (names.SYSTEM_MEMORY_SHARED.name,): 30 * 1024,
        (names.PAGING_USAGE.name, "used"): 300 * 1024,
        (names.PAGING_USAGE.name, "free"): 100 * 1024,
        (names.PAGING_UTILIZATION.name, "used"): 0.75,
        (names.PAGING_FAULTS.name, "minor"): 960,
        (names.PAGING_FAULTS.name, "major"): 40,
        (names.PAGING_OPERATIONS.name, "in"): 5,
        (names.PAGING_OPERATIONS.name, "out"): 6,
    }


def test_without_swap_there_is_no_share_of_it(tmp_path):
    """Nothing over nothing is absent."""
    none = MEMINFO.replace("400 kB", "0 kB").replace("100 kB", "0 kB")
    found = read(write_files(tmp_path, {"meminfo": none}), "detailed")

    assert of(names.PAGING_USAGE, found) == {("used",): 0, ("free",): 0}
    assert of(names.PAGING_UTILIZATION, found) == {}


@pytest.mark.fault("F74")
def test_what_the_kernel_does_not_say_is_absent(tmp_path):
    """A missing line takes what depends on it away, and nothing else."""
    old = MEMINFO.replace("MemAvailable:     600 kB\n", "").replace("Buffers:", "Puffers:")
    found = read(write_files(tmp_path, {"meminfo": old}))

    assert values(found) == {(names.SYSTEM_MEMORY_LIMIT.name,): 1000 * 1024}
    assert read(tmp_path / "nowhere", "detailed") == []


def test_memory_agrees_with_psutil():
    """The total is psutil's exactly, what is in use to 256 MiB: others allocate in between."""
    found = read(Path("/proc"), "detailed")
    theirs = psutil.virtual_memory()
    near = 256 << 20

    assert of(names.SYSTEM_MEMORY_LIMIT, found) == {(): theirs.total}
    states = of(names.SYSTEM_MEMORY, found)
    assert sum(states.values()) == theirs.total
    assert abs(states["free",] - theirs.free) < near
    assert abs(states["cached",] - theirs.cached) < near
    assert abs(of(names.SYSTEM_MEMORY_AVAILABLE, found)[()] - theirs.available) < near
    swap = psutil.swap_memory()
    assert sum(of(names.PAGING_USAGE, found).values()) == swap.total


lines = st.lists(
    st.tuples(
        st.sampled_from(["MemTotal:", "MemFree:", "Buffers:", "Cached:", "SReclaimable:"]),
        st.integers(-5, 2**40) | st.text(max_size=5),
    )
)


@given(st.binary(max_size=200) | lines.map(lambda n: "\n".join(f"{k} {v}" for k, v in n).encode()))
def test_any_text_gives_states_that_add_up_or_none(text):
    """Parsing never raises, and no state is below zero."""
    found = parse_memory(text)

    assert not found or min(found.values()) >= 0
