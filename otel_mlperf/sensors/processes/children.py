"""Child processes of a training process: their roles, and the CPU time of ended children.

Children are read from the kernel's lists, because psutil scans all processes, at 30 times the cost.
Children that start and end between two readings (such as DataLoader workers that are restarted each
pass) are not observed. For all other children, the time after their last reading is not observed.
The missing CPU time is derived from ``cutime`` and ``cstime`` (proc_pid_stat(5)): when a process
waits for an ended child, the kernel adds the child's CPU time, including the child's own ``cutime``
and ``cstime``, to the two times of the waiting process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from otel_mlperf.sensors.kernel_files import KeptFile, entries, number, read_once

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from otel_mlperf.sensors.processes.process_usage import Stat

Role = Literal["worker", "other"]
_TORCH_WORKER: Final = b"pt_data_worker"
_SPAWNED: Final = b"--multiprocessing-fork"
_FORK_SERVER: Final = b"multiprocessing.forkserver"
_THREADS_EVERY: Final = 6
"""Children of threads other than the first are included in each search of this number."""


class Commands(NamedTuple):
    """Command lines of a child and its parent, in the kernel's format."""

    own: bytes
    parent: bytes
    is_parent_training: bool


def role_of(name: bytes, commands: Commands) -> Role:
    """Return ``worker`` for a process started by multiprocessing, otherwise ``other``.

    DataLoader workers are started by multiprocessing. A process is recognized as a worker by any
    of:

    - the process name that PyTorch sets since 2.6,
    - the command line of a spawned process,
    - the same command line as the training process or the fork server: a forked process that has
      not executed another program.
    """
    if name == _TORCH_WORKER or _SPAWNED in commands.own:
        return "worker"
    forks = commands.is_parent_training or _FORK_SERVER in commands.parent
    return "worker" if forks and commands.own == commands.parent else "other"


class ChildFinder:
    """Finder of the descendants of the process ``pid``, based on the kernel's lists of children."""

    def __init__(self, pid: int, proc: Path) -> None:
        self._pid, self._proc = pid, proc
        self._lists: dict[int, KeptFile] = {}
        self._looks = 0

    def find(self, known: Collection[int], never: Collection[int]) -> set[int]:
        """Return the ids of descendants except ``known``, which earlier searches found.

        Processes in ``never`` and their descendants are excluded. Children of threads other than
        the first thread might be found only a few searches later.
        """
        in_all_threads = self._looks % _THREADS_EVERY == 0
        self._looks += 1
        for pid in [pid for pid in self._lists if pid != self._pid and pid not in known]:
            self._lists.pop(pid).close()
        children: set[int] = set()
        waiting = [self._pid, *known]
        while waiting:
            for child in self._children(waiting.pop(), in_all_threads=in_all_threads):
                if child not in never and child not in known and child not in children:
                    children.add(child)
                    waiting.append(child)
        return children

    def _children(self, pid: int, *, in_all_threads: bool) -> Iterator[int]:
        folder = self._proc / str(pid) / "task"
        if in_all_threads:
            # Each list contains the children of one thread, and a DataLoader may run in any thread.
            texts = [read_once(folder / thread / "children") for thread in entries(folder)]
        else:
            if pid not in self._lists:
                self._lists[pid] = KeptFile(folder / str(pid) / "children")
            texts = [self._lists[pid].read()]
        for word in b" ".join(texts).split():
            child = number(word)
            if child is not None:
                yield child

    def role(self, pid: int, stat: Stat) -> Role:
        """Return the role of the child ``pid``, derived from its name and command line."""
        own, parent = self._command(pid), self._command(stat.parent)
        return role_of(stat.command, Commands(own, parent, stat.parent == self._pid))

    def _command(self, pid: int) -> bytes:
        return read_once(self._proc / str(pid) / "cmdline")

    def close(self) -> None:
        """Close all files."""
        for file in self._lists.values():
            file.close()


class CpuTimes(NamedTuple):
    """CPU time by mode."""

    user_s: float = 0.0
    system_s: float = 0.0


class EndedChildren:
    """CPU time of a process's ended descendants, without the part that their readings include."""

    def __init__(self) -> None:
        self._read = self._unread = CpuTimes()

    def leave_out(self, user_s: float, system_s: float) -> None:
        """Exclude CPU time of an ended child that another count already includes."""
        self._read = CpuTimes(self._read.user_s + user_s, self._read.system_s + system_s)

    def unread(self, living: Iterable[Stat]) -> CpuTimes:
        """Return the total of this CPU time so far, which never decreases.

        ``living`` are the statistics of the training process and its living descendants. Children
        for which no process waits are not counted: orphans, and all children if the program ignores
        ``SIGCHLD``.
        """
        user_s, system_s = -self._read.user_s, -self._read.system_s
        for stat in living:
            user_s += stat.waited_user_s
            system_s += stat.waited_system_s
        self._unread = CpuTimes(
            max(self._unread.user_s, user_s), max(self._unread.system_s, system_s)
        )
        return self._unread
