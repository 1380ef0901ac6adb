"""Device times of the sections of one root, which a later payload of its own contains.

``device clock`` is the clock of the device as written here: it starts at the first stamp.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
_Id = Annotated[int, msgspec.Meta(ge=0)]


class SectionTimes(msgspec.Struct, frozen=True, array_like=True):
    """When the stamps of one section were put and passed, ns after the first of all."""

    span: _Id
    entry: _Id
    is_same_stream: bool
    """Whether its stamps are in the stream in which those of the first section are."""
    host_begin: _Time
    """When the stamp at its begin was put, by the host's clock."""
    host_end: _Time
    begin: _Time
    """When it was passed, by the device's clock."""
    end: _Time


class DeviceTimes(msgspec.Struct, frozen=True, array_like=True):
    """The sections that are told of together, as ``d`` of a payload."""

    root: _Id
    """The span that makes their trace."""
    device: _Id
    is_step: bool
    """Whether the first section is the step itself."""
    is_mixed: bool
    """Whether part of the step was no time of it: a validation, a checkpoint."""
    host_ns: _Time
    """When the first stamp was put, by the host's monotonic clock."""
    device_ns: _Time
    """When it was passed, by the device's clock."""
    low: _Time
    """Host clock less device clock is this at least, as far as these stamps tell."""
    high: _Time
    """It is this at most."""
    sections: list[SectionTimes]
