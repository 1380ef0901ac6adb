"""Files of a process's control groups: the files' paths, and the limits and use in the files.

``/proc/<pid>/cgroup`` contains the group of each controller, ``/proc/<pid>/mountinfo`` the mount
points of the group trees. In a container the mounted tree may start below the machine's root.
Groups above this tree are not visible and are ignored.

Versions 1 and 2 of control groups report the same values in different files, notations and units:
version 2 has microseconds instead of nanoseconds, and ``max`` instead of ``-1`` or a number larger
than any memory.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from otel_mlperf.sensors.kernel_files import KeptFile, field, number, read_once

if TYPE_CHECKING:
    from collections.abc import Sequence

Controller = Literal["memory", "cpu", "cpuacct"]
_UNIFIED: Final = ""
_MOUNT_FIELDS: Final = 10
_HOME: Final = PurePosixPath("/sys")


class Mount(NamedTuple):
    """A mounted tree of control groups, as listed in ``/proc/<pid>/mountinfo``."""

    controllers: tuple[str, ...]
    """Controllers of version 1; for version 2 ``("",)``, as in ``/proc/<pid>/cgroup``."""
    root: str
    """Path of the group that is mounted at ``point``."""
    point: str


class Chain(NamedTuple):
    """Folders of a group and of its visible parent groups, innermost first."""

    version: int
    folders: tuple[Path, ...]


def parse_membership(text: bytes) -> dict[str, str]:
    """Parse ``/proc/<pid>/cgroup`` into group paths by controller (key ``""`` in version 2)."""
    groups: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").split("\n"):
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdigit() and path.startswith("/"):
            for controller in controllers.split(","):
                groups.setdefault(controller, path)
    return groups


def parse_mounts(text: bytes) -> list[Mount]:
    """Parse ``/proc/<pid>/mountinfo`` into the mounted trees of control groups."""
    mounts = []
    for line in text.decode("utf-8", "replace").split("\n"):
        words = line.split(" ")
        # Fields are counted from the end, because the number of optional fields varies.
        if len(words) < _MOUNT_FIELDS - 1 or words[-4] != "-":
            continue
        kind, options = words[-3], words[-1].split(",")
        if kind == "cgroup2":
            mounts.append(Mount((_UNIFIED,), words[3], words[4]))
        elif kind == "cgroup":
            mounts.append(Mount(tuple(options), words[3], words[4]))
    return mounts


def find_chain(
    controller: Controller, groups: dict[str, str], mounts: Sequence[Mount], sys: Path
) -> Chain | None:
    """Return the groups of a process for ``controller``; None if they are not visible.

    ``groups`` contains the path of the process's group for each controller.
    """
    # If both versions are mounted, each controller belongs to one: version 1 lists its own.
    version = 1 if controller in groups else 2
    wanted = controller if version == 1 else _UNIFIED
    path = groups.get(wanted)
    # A path with ".." is outside this control group namespace, and not mounted.
    if path is None or ".." in PurePosixPath(path).parts:
        return None
    for mount in mounts:
        if wanted in mount.controllers:
            # Without a control group namespace, a container has the host's path, but only its own
            # part of the tree is mounted.
            below = _below(path, mount.root)
            top = _at(mount.point, sys)
            steps = [top.joinpath(*below[:n]) for n in range(len(below), -1, -1)]
            return Chain(version, tuple(steps))
    return None


def _below(path: str, root: str) -> tuple[str, ...]:
    try:
        return PurePosixPath(path).relative_to(root).parts
    except ValueError:
        return ()


def _at(point: str, sys: Path) -> Path:
    try:
        return sys / PurePosixPath(point).relative_to(_HOME)
    except ValueError:
        return Path(point)


class Membership:
    """Control groups of one process, updated when the process is moved to other groups."""

    def __init__(self, pid: int, proc: Path, sys: Path) -> None:
        self._file = KeptFile(proc / str(pid) / "cgroup")
        self._sys = sys
        self._mounts = parse_mounts(read_once(proc / str(pid) / "mountinfo"))
        self._text = b""
        self._chains: dict[Controller, Chain | None] = {}

    def read(self) -> None:
        """Update the groups of the process, which may have been moved."""
        # Read in each pass, because Slurm, systemd or a container runtime may move a process.
        text = self._file.read()
        if text != self._text or not self._chains:
            self._text, groups = text, parse_membership(text)
            self._chains = {
                controller: find_chain(controller, groups, self._mounts, self._sys)
                for controller in get_args(Controller)
            }

    def chain(self, controller: Controller) -> Chain | None:
        """Return the groups for ``controller`` as last read; None if they are not visible."""
        return self._chains.get(controller)

    def close(self) -> None:
        """Close the file that lists the groups."""
        self._file.close()


_MICRO: Final = 1e6
_NANO: Final = 1e9
_MAX_CPUS: Final = 1 << 16
"""Upper bound for CPU numbers, above the limit of any kernel."""


class CpuReading(NamedTuple):
    """Reading of the group with the lowest CPU quota; values that are not reported are None."""

    limit_cpus: float | None = None
    cpu_s: float | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None


def parse_cpu_list(text: bytes) -> list[int]:
    """Return the numbers in a list of CPUs like ``0-3,8``; [] if ``text`` is no such list."""
    cpus: list[int] = []
    for part in text.strip().split(b","):
        first, dash, last = part.partition(b"-")
        low, high = number(first), number(last if dash else first)
        if low is None or high is None or not low <= high < _MAX_CPUS:
            return []
        cpus += range(low, high + 1)
    return cpus


def parse_quota(quota_and_period: bytes) -> float | None:
    """Return a quota in CPUs (quota / period); None if the quota is ``max`` (version 1: ``-1``)."""
    words = quota_and_period.split()
    if len(words) != 2:
        return None
    quota, period = number(words[0]), number(words[1])
    return quota / period if quota and period else None


def parse_throttling(text: bytes) -> CpuReading:
    """Parse ``cpu.stat``, with times in microseconds (version 2) or nanoseconds (version 1)."""
    micro, nano = field(text, b"throttled_usec "), field(text, b"throttled_time ")
    return CpuReading(
        cpu_s=_seconds(field(text, b"usage_usec "), _MICRO),
        periods=field(text, b"nr_periods "),
        throttled_periods=field(text, b"nr_throttled "),
        throttled_s=_seconds(nano, _NANO) if micro is None else _seconds(micro, _MICRO),
    )


def _seconds(count: int | None, in_a_second: float) -> float | None:
    return None if count is None else count / in_a_second


class CpuGroup:
    """CPU quotas and CPU time of a group and of its parent groups."""

    def __init__(self, groups: Chain, times: Chain | None) -> None:
        """``times`` are the groups of controller ``cpuacct``; None if these are not visible."""
        limits = ["cpu.max"] if groups.version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        self._limits = [[KeptFile(at / name) for name in limits] for at in groups.folders]
        self._stats = [KeptFile(at / "cpu.stat") for at in groups.folders]
        self._times = _usage_files(times)

    def read(self) -> CpuReading:
        """Read the group with the lowest quota or, if no group has a quota, the innermost group."""
        tightest, limit = 0, None
        for at, files in enumerate(self._limits):
            cpus = parse_quota(b" ".join(file.read() for file in files))
            # "<", not "<=": of several groups with the same quota, the innermost is preferred.
            if cpus is not None and (limit is None or cpus < limit):
                tightest, limit = at, cpus
        reading = parse_throttling(self._stats[tightest].read())._replace(limit_cpus=limit)
        # In version 1, quotas and CPU time may be in trees of different depth: then indices differ.
        if reading.cpu_s is None and len(self._times) == len(self._stats):
            used = number(self._times[tightest].read().strip())
            reading = reading._replace(cpu_s=_seconds(used, _NANO))
        return reading

    def close(self) -> None:
        """Close all files."""
        for file in chain.from_iterable((*self._limits, self._stats, self._times)):
            file.close()


def _usage_files(times: Chain | None) -> list[KeptFile]:
    folders: tuple[Path, ...] = times.folders if times and times.version == 1 else ()
    return [KeptFile(folder / "cpuacct.usage") for folder in folders]


_UNLIMITED: Final = 1 << 62
"""Values from here upward mean no limit, because version 1 reports the largest number of pages."""
_FILES: Final = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes",
        "memory.oom_control", b"total_inactive_file "),
    2: ("memory.max", "memory.current", "memory.peak", "memory.events", b"inactive_file "),
}  # fmt: skip


class MemoryReading(NamedTuple):
    """Reading of the group with the lowest memory limit; values that are not reported are None."""

    limit_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    """Usage without inactive file pages, as computed by Kubernetes."""
    peak_bytes: int | None = None
    oom_kills: int | None = None


def parse_limit(text: bytes) -> int | None:
    """Parse a limit in bytes; return None if there is no limit."""
    limit = number(text.strip())
    return None if limit is None or limit >= _UNLIMITED else limit


class MemoryGroup:
    """Memory limits and use of a group and of its parent groups."""

    def __init__(self, groups: Chain) -> None:
        limit, usage, peak, events, self._inactive = _FILES[groups.version]
        self._limits = [KeptFile(folder / limit) for folder in groups.folders]
        self._files = [
            tuple(KeptFile(folder / name) for name in (usage, "memory.stat", peak, events))
            for folder in groups.folders
        ]

    def read(self) -> MemoryReading:
        """Read the group with the lowest limit or, if no group has a limit, the innermost group."""
        lowest, limit = 0, None
        for at, file in enumerate(self._limits):
            size = parse_limit(file.read())
            if size is not None and (limit is None or size < limit):
                lowest, limit = at, size
        usage, stat, peak, events = (file.read() for file in self._files[lowest])
        # If pages move between the readings of two files, the difference may be negative.
        used, inactive = number(usage.strip()), field(stat, self._inactive)
        working = None if used is None or inactive is None else max(0, used - inactive)
        kills = field(events, b"oom_kill ")
        return MemoryReading(limit, used, working, number(peak.strip()), kills)

    def close(self) -> None:
        """Close all files."""
        for file in chain.from_iterable((self._limits, *self._files)):
            file.close()
