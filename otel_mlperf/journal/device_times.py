"""Device times of the sections of one root, which a later payload of its own contains.

``device clock`` is the clock of the device as written here: it starts at the first stamp.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_Id = Annotated[int, msgspec.Meta(ge=0)]


class SectionTimes(msgspec.Struct, frozen=True, array_like=True):
    """Times at which one section's stamps were put and passed, ns after the first stamp of all."""

    span: _Id
    entry: _Id
    is_same_stream: bool
    """Whether its stamps are in the same stream as those of the first section."""
    host_begin: _Time
    """When its start stamp was put, by the host's clock."""
    host_end: _Time
    begin: _Time
    """When the start stamp was passed, by the device's clock."""
    end: _Time


class DeviceTimes(msgspec.Struct, frozen=True, array_like=True):
    """Device times of sections that are reported together, as ``d`` of a payload."""

    root: _Id
    """The root span of their trace."""
    device: _Id
    is_step: bool
    """Whether the first section is the step itself."""
    is_mixed: bool
    """Whether part of the step is excluded from it: a validation, a checkpoint."""
    host_ns: _Time
    """When the first stamp was put, by the host's monotonic clock."""
    device_ns: _Time
    """When the first stamp was passed, by the device's clock."""
    low: _Time
    """Lower bound of host clock minus device clock, according to these stamps."""
    high: _Time
    """Upper bound of that difference."""
    sections: list[SectionTimes]
