"""Control groups of a process and where their files are. Own code: psutil reads none.

``/proc/<pid>/cgroup`` names the group of each controller, ``/proc/<pid>/mountinfo`` where trees are
mounted. In a container the mounted tree may start below the machine's root. Groups above it cannot
be seen, and are ignored.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from otel_mlperf.sensors.kernel_files import KeptFile, read_once

if TYPE_CHECKING:
    from collections.abc import Sequence

Controller = Literal["memory", "cpu", "cpuacct"]
_UNIFIED: Final = ""
_MOUNT_FIELDS: Final = 10
_HOME: Final = PurePosixPath("/sys")


class Mount(NamedTuple):
    """Mounted tree of control groups."""

    controllers: tuple[str, ...]
    """Controllers of version 1; for version 2 ``("",)``, as in ``/proc/<pid>/cgroup``."""
    root: str
    """The group at the mount point."""
    point: str


class Chain(NamedTuple):
    """Folders of a group and of all groups above it, the innermost first."""

    version: int
    folders: tuple[Path, ...]


def parse_membership(text: bytes) -> dict[str, str]:
    """Return the path of the group by controller; ``""`` stands for version 2."""
    groups: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").split("\n"):
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number.isdigit() and path.startswith("/"):
            for controller in controllers.split(","):
                groups.setdefault(controller, path)
    return groups


def parse_mounts(text: bytes) -> list[Mount]:
    """Return the mounted trees in ``/proc/<pid>/mountinfo``."""
    mounts = []
    for line in text.decode("utf-8", "replace").split("\n"):
        words = line.split(" ")
        # Optional fields come before the dash, so fields behind it are counted from the end.
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
    """Return the groups of the process for ``controller``; None if they cannot be seen."""
    # If both are mounted, a controller is in one of them: version 1 lists its own.
    version = 1 if controller in groups else 2
    wanted = controller if version == 1 else _UNIFIED
    path = groups.get(wanted)
    # ".." leads out of our control group namespace: nothing of it is mounted here.
    if path is None or ".." in PurePosixPath(path).parts:
        return None
    for mount in mounts:
        if wanted in mount.controllers:
            # A container without a namespace of its own has the host's path, and only its part
            # mounted.
            below = _below(path, mount.root)
            top = _at(mount.point, sys)
            steps = [top.joinpath(*below[:n]) for n in range(len(below), -1, -1)]
            return Chain(version, tuple(steps))
    return None


def _below(path: str, root: str) -> tuple[str, ...]:
    """Return the path from the mounted group to the process's; empty if it is not below it."""
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
    """Control groups of one process, updated when it is moved to other groups."""

    def __init__(self, pid: int, proc: Path, sys: Path) -> None:
        self._file = KeptFile(proc / str(pid) / "cgroup")
        self._sys = sys
        self._mounts = parse_mounts(read_once(proc / str(pid) / "mountinfo"))
        self._text = b""
        self._chains: dict[Controller, Chain | None] = {}

    def read(self) -> None:
        """Update the groups of the process."""
        # Each time, because Slurm, systemd and container runtimes may move a process after its
        # start.
        text = self._file.read()
        if text != self._text or not self._chains:
            self._text, groups = text, parse_membership(text)
            self._chains = {
                controller: find_chain(controller, groups, self._mounts, self._sys)
                for controller in get_args(Controller)
            }

    def chain(self, controller: Controller) -> Chain | None:
        """Return the groups of a controller as read last."""
        return self._chains.get(controller)

    def close(self) -> None:
        """Close its file."""
        self._file.close()
