"""CPU time of children that no reading saw.

Children that start and end between two readings, such as workers that are started anew each pass,
are never seen. Of other children the last moments are missed. Once a process has waited for a
child, the kernel adds what the child used to the process's own ``cutime`` and ``cstime``
(proc_pid_stat(5)). These include what the child had waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.sensors.processes.usage import Stat


class CpuTimes(NamedTuple):
    """CPU time by mode."""

    user_s: float = 0.0
    system_s: float = 0.0


class EndedChildren:
    """CPU time of the ended children of one training process and its descendants."""

    def __init__(self) -> None:
        self._read = self._unread = CpuTimes()

    def leave_out(self, user_s: float, system_s: float) -> None:
        """Exclude time of an ended child that another count contains."""
        self._read = CpuTimes(self._read.user_s + user_s, self._read.system_s + system_s)

    def unread(self, living: Iterable[Stat]) -> CpuTimes:
        """Return the total so far, given the living processes; never less than before.

        Children that no process waits for (an orphan, or if the program ignores ``SIGCHLD``) stay
        unknown.
        """
        user_s, system_s = -self._read.user_s, -self._read.system_s
        for stat in living:
            user_s += stat.waited_user_s
            system_s += stat.waited_system_s
        self._unread = CpuTimes(
            max(self._unread.user_s, user_s), max(self._unread.system_s, system_s)
        )
        return self._unread
