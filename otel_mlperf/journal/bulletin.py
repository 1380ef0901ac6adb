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
"""Its name in the folder of the journals."""
GPUS = "gpu"
TASK_GPUS = "task_gpus"
"""Sources: GPUs that the agent reads, and those that samplers read for it."""


class Reading(msgspec.Struct, array_like=True, frozen=True):
    """One value of one series."""

    journal: str
    """File name of the journal of the rank that it is of; empty: of the node."""
    metric: str
    labels: dict[str, str]
    value: float


class Group(msgspec.Struct, array_like=True, frozen=True):
    """What one source said."""

    monotonic_ns: int
    """When it was read."""
    readings: list[Reading]
    before_ns: int = 0
    """When it was read the time before; 0: it was not."""
    before: list[Reading] = []
    """The totals of which a rate is told, as they were then."""


class RunWarning(msgspec.Struct, array_like=True, frozen=True):
    """A condition of the table of findings that holds now: what ``on_warning`` is called with."""

    rule: str
    """Name of the rule."""
    journal: str
    """As of a reading."""
    labels: dict[str, str]
    value: float
    """What was compared with the threshold, as it was when the condition began to hold."""
    since_unix_ns: int
    summary: str
    """What is the case."""
    action: str
    """What to do about it."""


class Published(msgspec.Struct, frozen=True):
    """The whole file."""

    groups: dict[str, Group]
    """By source: ``host``, ``process``, ``gpu``, …"""
    warnings: list[RunWarning]


_decode = msgspec.msgpack.Decoder(Published).decode


def write_readings(folder: str, groups: Mapping[str, Group], warnings: list[RunWarning]) -> None:
    """Replaces the file.

    Raises:
        OSError: the folder is gone, or there is no room.
    """
    write_whole(
        os.path.join(folder, FILE), msgspec.msgpack.encode(Published(dict(groups), warnings))
    )


def read_readings(folder: str) -> Published | None:
    """What the agent wrote last; None: nothing yet, or by another version."""
    try:
        with open(os.path.join(folder, FILE), "rb", opener=open_at_once) as file:
            return _decode(file.read())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise_foreign(error)
        return None


def drop_readings(folder: str) -> None:
    """Removes the file: nobody writes it any more."""
    for name in (FILE, f"{FILE}.new"):
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            continue
