"""A process of ours gets the addresses that it needs, or reports the shortage."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otel_mlperf.own_processes import AGENT_BYTES, room_here, room_of_next, shortage

LIMITED = """
import resource
from otel_mlperf.own_processes import lift_limit, room_here, room_of_next
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (256 << 20, most))
before = room_here()
lift_limit()
print(before < 256 << 20, room_here() > before, resource.getrlimit(resource.RLIMIT_AS)[0] == most)
resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))
print(room_of_next() == 256 << 20)
"""


def test_a_process_lifts_its_own_limit() -> None:
    """As far as whoever started it has allowed; the next one may have as much."""
    told = subprocess.check_output([sys.executable, "-c", LIMITED], text=True)

    assert told.split() == ["True"] * 4


def test_without_a_limit_there_is_room() -> None:
    """Nothing is said where nothing is limited, or enough is left."""
    assert shortage(room_of_next(), AGENT_BYTES) == shortage(room_here(), 1 << 20) == ""


@pytest.mark.parametrize(("room", "said"), [(100 << 20, "100 MiB"), (0, "0 MiB")])
def test_a_shortage_is_said_with_what_helps(room, said) -> None:
    """How much there is, how much is needed, and how it is raised."""
    assert shortage(room, 350 << 20) == (
        f"the limit of address space leaves {said}, 350 MiB are required: raise "
        "RLIMIT_AS with ulimit -H -v"
    )
