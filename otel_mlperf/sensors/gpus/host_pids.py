"""Which of our processes does a driver know by the numbers that we know?

A driver counts processes as the host does. In a container the same number is another process, or
none; so a process counts only when it lives in the host's process namespace. (Some newer drivers
translate the numbers. Whether one does cannot be seen, so nothing is made of it.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

HOST_NAMESPACE: Final = "pid:[4026531836]"
"""What every Linux calls the namespace that its first process is in (PROC_PID_INIT_INO)."""


def find_host_pids(pids: Collection[int], proc: Path) -> frozenset[int]:
    """Those of ``pids`` that have the same number on the host."""
    return frozenset(pid for pid in pids if _namespace(pid, proc) == HOST_NAMESPACE)


def _namespace(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "ns" / "pid").readlink().name
    except OSError:
        return ""
