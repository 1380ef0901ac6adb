"""Bulletin: file in which the agent publishes readings and warnings to the node's processes.

The file is stored next to the journals. It contains the latest readings of each sensor source and
the active warnings. The file is replaced atomically, so that readers never see a partial file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.whole_file import open_without_links, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "readings"
"""Name of the bulletin in the folder of the journals."""
GPUS = "gpu"
TASK_GPUS = "task_gpus"
"""Names of sources: GPUs that the agent reads itself, and GPUs that samplers read for the agent."""


class Reading(msgspec.Struct, array_like=True, frozen=True):
    """One value of one metric series."""

    journal: str
    """File name of the journal of the rank to which the reading belongs; empty for the node."""
    metric: str
    labels: dict[str, str]
    value: float


class Group(msgspec.Struct, array_like=True, frozen=True):
    """Readings of one sensor source."""

    monotonic_ns: int
    """Time of the readings."""
    readings: list[Reading]
    before_ns: int = 0
    """Time of the previous readings; 0 if there are none."""
    before: list[Reading] = []
    """Previous values of the totals for which a rate is reported."""


class RunWarning(msgspec.Struct, array_like=True, frozen=True):
    """Active warning, which is the argument of ``on_warning`` callbacks."""

    rule: str
    """Name of the warning's rule in the findings table."""
    journal: str
    """Journal of the rank, as in ``Reading``."""
    labels: dict[str, str]
    value: float
    """Value that was compared with the threshold when the warning started."""
    since_unix_ns: int
    summary: str
    """Description of the problem."""
    action: str
    """Recommended action."""


class Published(msgspec.Struct, frozen=True):
    """Content of the bulletin."""

    groups: dict[str, Group]
    """Readings by source: ``host``, ``process``, ``gpu``, …"""
    warnings: list[RunWarning]


_decode = msgspec.msgpack.Decoder(Published).decode


def write_readings(folder: str, groups: Mapping[str, Group], warnings: list[RunWarning]) -> None:
    """Write the bulletin into ``folder``; ``groups`` are the readings by source.

    Raises:
        OSError: the folder was removed, or there is no room.
    """
    write_whole(
        os.path.join(folder, FILE), msgspec.msgpack.encode(Published(dict(groups), warnings))
    )


def read_readings(folder: str) -> Published | None:
    """Return the bulletin in ``folder``; None if it is missing or from another version."""
    try:
        with open(os.path.join(folder, FILE), "rb", opener=open_without_links) as file:
            return _decode(file.read())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise_foreign(error)
        return None


def drop_readings(folder: str) -> None:
    """Remove the bulletin from ``folder``, if it exists."""
    for name in (FILE, f"{FILE}.new"):
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            continue
