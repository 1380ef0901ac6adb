"""Visibility of GPUs by process, and readings of GPUs that the agent does not see.

If every task has its own control group or container (Slurm), the agent only sees the GPUs of the
task that started it. Samplers (``gpu_sidecar``) in other tasks read the GPUs of those tasks.
Samplers communicate with the agent by small files next to the journals, each replaced as a whole:
``agent.gpus`` and ``<journal>.gpus`` list the visible devices, ``<key>.sampled`` contains the
readings of a sampler. The agent reads these files as the source ``TaskGpus``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.sensors.gpus.gpu import Device  # noqa: TC001 - msgspec reads it
from otel_mlperf.sensors.gpus.visible_devices import CONTAINER
from otel_mlperf.sensors.kernel_files import PROC, read_once
from otel_mlperf.sensors.measurement import Measurement  # noqa: TC001 - msgspec reads it
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

_log = logging.getLogger("otel_mlperf.agent")
_FIRST_S: Final = 2.0
"""Maximum wait for the agent's own first list of GPUs."""
_MISSED: Final = 3
"""If a sampler misses this number of readings, its last readings are ignored."""
AGENT: Final = "agent"
"""Name used for the agent's own view, in place of a journal's name."""
_SEEN: Final = ".gpus"
_SAMPLED: Final = ".sampled"
SAMPLER: Final = ".sampler"
"""Suffix of the lock file that allows one sampler per key."""


class View(msgspec.Struct, frozen=True):
    """GPUs that are visible to one process."""

    place: str
    """Control groups, namespaces and container. Processes with equal values see equal GPUs."""
    devices: tuple[Device, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Return the ``hw.id`` of all devices and of all MIG instances on these devices."""
        return find_ids(self.devices)

    @property
    def key(self) -> str:
        """Return a hash of the ids, which is equal for all processes that see the same devices."""
        return blake2b("\0".join(sorted(self.ids)).encode(), digest_size=8).hexdigest()


class Sampled(msgspec.Struct, frozen=True):
    """Latest readings of one sampler."""

    monotonic_ns: int
    measurements: list[Measurement]


_decode_view: Final = msgspec.msgpack.Decoder(View).decode
_decode_sampled: Final = msgspec.msgpack.Decoder(Sampled).decode


def find_ids(devices: Iterable[Device]) -> frozenset[str]:
    """Return the ``hw.id`` of all devices and of all MIG instances on these devices."""
    return frozenset(
        uuid for device in devices for uuid in (device.uuid, *(i.uuid for i in device.instances))
    )


def detect_place(environ: Mapping[str, str], proc: Path = PROC) -> str:
    """Return control groups, namespaces and container of this process as one text."""
    process = proc / "self"
    parts = [read_once(process / "cgroup").decode("utf-8", "replace")]
    for kind in ("cgroup", "mnt"):
        with contextlib.suppress(OSError):
            parts.append(str((process / "ns" / kind).readlink()))
    return "\n".join([*parts, environ.get(CONTAINER, "")])


def write_view(folder: Path, name: str, view: View) -> None:
    """Write the view of the process of journal ``name``, or of the agent (``AGENT``).

    Raises:
        OSError: the folder was removed, or there is no room.
    """
    _replace(folder / (name + _SEEN), view)


def read_view(folder: Path, name: str) -> View | None:
    """Return the view that was written for ``name``; None if it is missing or unreadable."""
    try:
        return _decode_view(read_regular(folder / (name + _SEEN)))
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def read_views(folder: Path) -> dict[str, View]:
    """Return the views of ranks by journal name. Files of removed journals are deleted."""
    views = {}
    for path in folder.glob(f"*{_SEEN}"):
        name = path.name.removesuffix(_SEEN)
        if name == AGENT:
            continue
        if not (folder / name).exists():
            path.unlink(missing_ok=True)
        elif (view := read_view(folder, name)) is not None:
            views[name] = view
    return views


def write_sampled(folder: Path, key: str, sampled: Sampled) -> None:
    """Write the latest readings of the sampler with view key ``key``.

    Raises:
        OSError: the folder was removed, or there is no room.
    """
    _replace(folder / (key + _SAMPLED), sampled)


def read_sampled(folder: Path) -> list[Sampled]:
    """Return the latest readings of all samplers, including samplers that were killed."""
    sampled = []
    for path in sorted(folder.glob(f"*{_SAMPLED}")):
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            sampled.append(_decode_sampled(read_regular(path)))
    return sampled


def drop_sampled(folder: Path, key: str) -> None:
    """Remove the file with the readings of the sampler with view key ``key``."""
    (folder / (key + _SAMPLED)).unlink(missing_ok=True)


def drop_views(folder: Path) -> None:
    """Remove all files in ``folder`` that this module writes."""
    for ending in (_SEEN, _SAMPLED, SAMPLER):
        for path in folder.glob(f"*{ending}*"):
            path.unlink(missing_ok=True)


def _replace(path: Path, content: View | Sampled) -> None:
    write_whole(path, msgspec.msgpack.encode(content))


class TaskGpus:
    """Source that publishes the agent's view, and returns the samplers' readings of other GPUs."""

    def __init__(
        self,
        folder: Path,
        seen: Callable[[], Sequence[Device] | None],
        interval_s: float,
        *,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seen`` returns the GPUs that the agent sees, or None if they are not determined yet."""
        self._folder, self._seen, self._clock = folder, seen, clock
        self._fresh_s = _MISSED * interval_s + 1
        self._place = detect_place(os.environ, proc)
        self._published: View | None = None
        self._began_s = clock()
        self.views: Mapping[str, tuple[Device, ...]] = {}
        """GPUs that each rank with a sampler sees, by journal. Replaced, never changed in place."""

    def begin(self) -> bool:
        """Return True without starting anything, because ``take`` reads the files."""
        return True

    def take(self) -> list[Measurement] | None:
        """Return measurements of GPUs that only samplers see; None until the agent's are known."""
        own_devices = self._seen()
        # Wait for the agent's own list of GPUs: otherwise its GPUs would count as hidden.
        if own_devices is None and self._clock() - self._began_s < _FIRST_S:
            return None
        try:
            if own_devices is not None:
                self._publish(View(self._place, tuple(own_devices)))
            views = read_views(self._folder)
            self.views = {name: view.devices for name, view in views.items()}
            return self._sampled(set(find_ids(own_devices or ())))
        except OSError as error:
            _log.info("reading the files of GPU samplers failed: %s", error)
            return []

    def close(self) -> None:
        """Remove all files of views and readings, because the ranks have ended."""
        drop_views(self._folder)

    def _publish(self, view: View) -> None:
        if view != self._published:
            write_view(self._folder, AGENT, view)
            self._published = view

    def _sampled(self, taken: set[str]) -> list[Measurement]:
        measured: list[Measurement] = []
        # Older readings are outdated, because their sampler was killed.
        oldest_ns = (self._clock() - self._fresh_s) * 1e9
        for sampled in read_sampled(self._folder):
            if sampled.monotonic_ns >= oldest_ns:
                new = [each for each in sampled.measurements if each.device not in taken]
                taken.update(each.device for each in new if each.device)
                measured += new
        return measured
