"""The agent's bulletin: latest readings and active warnings for the training processes of its node.

It is one file next to the journals, replaced as a whole: the latest values of each source, and the
warnings that are active. A reader sees one state of the file or the next, never a part.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.whole_file import open_at_once, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "readings"
"""Name of the file in the folder of the journals."""
GPUS = "gpu"
TASK_GPUS = "task_gpus"
"""Sources: GPUs that the agent reads, and those that samplers read for it."""


class Reading(msgspec.Struct, array_like=True, frozen=True):
    """A reading: one value of one series."""

    journal: str
    """File name of the journal of the reading's rank; empty: the reading is of the node."""
    metric: str
    labels: dict[str, str]
    value: float


class Group(msgspec.Struct, array_like=True, frozen=True):
    """Readings of one source."""

    monotonic_ns: int
    """Time of the reading."""
    readings: list[Reading]
    before_ns: int = 0
    """Time of the previous reading; 0: there was none."""
    before: list[Reading] = []
    """Previous values of the totals for which a rate is reported."""


class RunWarning(msgspec.Struct, array_like=True, frozen=True):
    """An active condition of the findings table: the argument of ``on_warning`` callbacks."""

    rule: str
    """Name of the rule."""
    journal: str
    """As in a reading."""
    labels: dict[str, str]
    value: float
    """Value that was compared with the threshold when the condition became active."""
    since_unix_ns: int
    summary: str
    """Description of the problem."""
    action: str
    """Recommended action."""


class Published(msgspec.Struct, frozen=True):
    """Content of the file."""

    groups: dict[str, Group]
    """Groups by source: ``host``, ``process``, ``gpu``, …"""
    warnings: list[RunWarning]


_decode = msgspec.msgpack.Decoder(Published).decode


def write_readings(folder: str, groups: Mapping[str, Group], warnings: list[RunWarning]) -> None:
    """Replace the file.

    Raises:
        OSError: the folder is gone, or there is no room.
    """
    write_whole(
        os.path.join(folder, FILE), msgspec.msgpack.encode(Published(dict(groups), warnings))
    )


def read_readings(folder: str) -> Published | None:
    """Return what the agent wrote last; None: nothing yet, or of another version."""
    try:
        with open(os.path.join(folder, FILE), "rb", opener=open_at_once) as file:
            return _decode(file.read())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise_foreign(error)
        return None


def drop_readings(folder: str) -> None:
    """Remove the file, which is not written any more."""
    for name in (FILE, f"{FILE}.new"):
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            continue
