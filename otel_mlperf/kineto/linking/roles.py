"""What part does an event play, whatever its version and vendor call it?"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


class Role(IntEnum):
    """The part of an event."""

    HOST = 0
    """On a thread of the host, and nothing more is known."""
    OPERATOR = 1
    ANNOTATION = 2
    PYTHON = 3
    """A frame of Python's stack."""
    CALL = 4
    """A call of a runtime or driver."""
    DEVICE = 5
    DEVICE_ANNOTATION = 6
    """An annotation once more, as long as the device worked for it."""
    WINDOW = 7
    """The profiler's own span around everything."""


_ROLES: Final = {
    Role.OPERATOR: {"cpu_op", "operator"},
    Role.ANNOTATION: {"user_annotation", "profilerstep"},
    Role.PYTHON: {"python_function", "python"},
    Role.CALL: {
        *("runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"),
        *("xpu_runtime", "xpu_driver", "mtia_runtime", "glow_runtime"),
        *("privateuse1_runtime", "privateuse1_driver"),
    },
    Role.DEVICE: {
        *("kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"),
        *("cuda_sync", "cuda_event", "mtia_ccp_events", "mtia_workloadd", "hpu_op"),
        *("collective_comm", "cuda_profiler_range"),
    },
    Role.DEVICE_ANNOTATION: {"gpu_user_annotation"},
    Role.WINDOW: {"trace"},
    Role.HOST: {"overhead", "cpu_instant_event"},
}
_KNOWN: Final = {category: role for role, known in _ROLES.items() for category in known}
IS_DEVICE: Final = (Role.DEVICE, Role.DEVICE_ANNOTATION)


def find_roles(trace: Trace) -> NDArray[np.uint8]:
    """The role of each event.

    Of a category that is not known here, an event with a stream is the device's: runtime calls and
    operators have none.
    """
    events = trace.events
    known = np.array([_KNOWN.get(name, _UNKNOWN) for name in trace.categories] or [0], np.uint8)
    roles = known[events.category]
    guessed = np.where(events.stream != NONE, Role.DEVICE, Role.HOST).astype(np.uint8)
    return np.where(roles == _UNKNOWN, guessed, roles)


_UNKNOWN: Final = 255
