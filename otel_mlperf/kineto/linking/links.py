"""What does linking say about each event of a trace?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.step_membership import Step


class Place(IntEnum):
    """Why an event is where it is."""

    ROOT = 0
    """A host event that nothing is around."""
    NESTED = 1
    """A host event within the time of its parent, on the same thread."""
    LAUNCHED = 2
    """A device event under what launched it, by the correlation of the call."""
    ASKED = 3
    """A device event without its call, under the operator of its External id."""
    ANNOTATED = 4
    """A device's copy of a host annotation, under that annotation."""
    SECTION = 5
    """Under the recorded section that was open on its thread, even if an event is around both."""
    ENGINE = 6
    """A root on a thread of autograd, under the section open on the thread that waits for it."""
    STEP = 7
    """A root on another thread without sections, under the step of its time."""
    TWIN = 8
    """An annotation that is a recorded section once more: not to be shown again."""
    WINDOW = 9
    """The profiler's own span around everything."""
    ORPHAN = 10
    """A device event of which nobody knows who launched it."""


@dataclass(slots=True)
class Links:
    """Where each event belongs; every array has one item for each event of the trace."""

    parent: NDArray[np.int32]
    """Row of the event above it; NONE: a root."""
    around: NDArray[np.int32]
    """For host events: row of the one that contains it on its thread, whatever is shown above."""
    section: NDArray[np.int32]
    """For roots: index of the recorded section above; NONE: none. A twin's is its own section."""
    step: NDArray[np.int32]
    """Index into ``steps``; NONE: outside of any."""
    forward: NDArray[np.int32]
    """For backward operators: row of the forward operator."""
    launch: NDArray[np.int32]
    """For device events: row of the call of runtime or driver that launched it."""
    place: NDArray[np.uint8]
    """A ``Place``."""
    is_device: NDArray[np.bool_]
    """Whether it ran on a device, not on a thread of the host."""
    steps: list[Step]
    orphans: dict[str, int]
    """What could not be linked, or contradicts itself, by kind: how many."""
