"""Visibility of GPUs by process, and the readings of GPUs that the agent does not see.

Where every task has a control group or container of its own (Slurm), the agent sees the GPUs of the
task that started it. Samplers in the other tasks see theirs. They communicate by small files next
to the journals, each replaced as a whole: ``agent.gpus`` and ``<journal>.gpus`` record who sees
what, ``<key>.sampled`` contains what a sampler has read. ``gpu_sidecar`` writes the samplers'
files; the agent reads them as one more source, ``TaskGpus``.
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
"""Maximum wait for the agent's own first look at the GPUs."""
_MISSED: Final = 3
"""Number of readings of a sampler that may be missing before its last one is ignored."""
AGENT: Final = "agent"
"""Used in place of a journal's name for what the agent sees."""
_SEEN: Final = ".gpus"
_SAMPLED: Final = ".sampled"
SAMPLER: Final = ".sampler"
"""Suffix of the lock that makes a sampler the only one of its key."""


class View(msgspec.Struct, frozen=True):
    """Devices that one process sees."""

    place: str
    """Identifies which devices it may open: two processes with the same value see the same."""
    devices: tuple[Device, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Return ``hw.id`` of all devices and of the instances on them."""
        return find_ids(self.devices)

    @property
    def key(self) -> str:
        """Return a key that is equal for all processes that see the same devices."""
        return blake2b("\0".join(sorted(self.ids)).encode(), digest_size=8).hexdigest()


class Sampled(msgspec.Struct, frozen=True):
    """Last readings of a sampler."""

    monotonic_ns: int
    measurements: list[Measurement]


_decode_view: Final = msgspec.msgpack.Decoder(View).decode
_decode_sampled: Final = msgspec.msgpack.Decoder(Sampled).decode


def find_ids(devices: Iterable[Device]) -> frozenset[str]:
    """Return ``hw.id`` of devices and of the instances on them."""
    return frozenset(
        uuid for device in devices for uuid in (device.uuid, *(i.uuid for i in device.instances))
    )


def detect_place(environ: Mapping[str, str], proc: Path = PROC) -> str:
    """Return control groups, name spaces and container of this process, as one text."""
    here = proc / "self"
    words = [read_once(here / "cgroup").decode("utf-8", "replace")]
    for kind in ("cgroup", "mnt"):
        with contextlib.suppress(OSError):
            words.append(str((here / "ns" / kind).readlink()))
    return "\n".join([*words, environ.get(CONTAINER, "")])


def write_view(folder: Path, name: str, view: View) -> None:
    """Replace the view of the process of journal ``name``, or of the agent.

    Raises:
        OSError: the folder is gone, or there is no room.
    """
    _replace(folder / (name + _SEEN), view)


def read_view(folder: Path, name: str) -> View | None:
    """Return a view; None: not written yet."""
    try:
        return _decode_view(read_regular(folder / (name + _SEEN)))
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def read_views(folder: Path) -> dict[str, View]:
    """Return the views of ranks by the name of their journal; remove those of removed journals."""
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
    """Replace the readings of the sampler of ``key``.

    Raises:
        OSError: the folder is gone, or there is no room.
    """
    _replace(folder / (key + _SAMPLED), sampled)


def read_sampled(folder: Path) -> list[Sampled]:
    """Return the last readings of all samplers, including ended ones."""
    sampled = []
    for path in sorted(folder.glob(f"*{_SAMPLED}")):
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            sampled.append(_decode_sampled(read_regular(path)))
    return sampled


def drop_sampled(folder: Path, key: str) -> None:
    """Remove the readings of the sampler of ``key``, which are not read any more."""
    (folder / (key + _SAMPLED)).unlink(missing_ok=True)


def drop_views(folder: Path) -> None:
    """Remove all files of this module."""
    for ending in (_SEEN, _SAMPLED, SAMPLER):
        for path in folder.glob(f"*{ending}*"):
            path.unlink(missing_ok=True)


def _replace(path: Path, content: View | Sampled) -> None:
    write_whole(path, msgspec.msgpack.encode(content))


class TaskGpus:
    """Source that publishes what the agent sees, and returns what samplers read of the rest."""

    def __init__(
        self,
        folder: Path,
        seen: Callable[[], Sequence[Device] | None],
        interval_s: float,
        *,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seen`` returns the GPUs that the agent sees itself; None: it has not looked yet."""
        self._folder, self._seen, self._clock = folder, seen, clock
        self._fresh_s = _MISSED * interval_s + 1
        self._place = detect_place(os.environ, proc)
        self._told: View | None = None
        self._began_s = clock()
        self.views: Mapping[str, tuple[Device, ...]] = {}
        """GPUs of ranks that see others than the agent, by journal; replaced as a whole."""

    def begin(self) -> bool:
        """Return True, because a pass never waits."""
        return True

    def take(self) -> list[Measurement] | None:
        """Return the measurements of devices that the agent does not see itself, each once."""
        own = self._seen()
        # Without its own list it would treat GPUs as hidden that it is about to see itself.
        if own is None and self._clock() - self._began_s < _FIRST_S:
            return None
        try:
            if own is not None:
                self._tell(View(self._place, tuple(own)))
            views = read_views(self._folder)
            self.views = {name: view.devices for name, view in views.items()}
            return self._sampled(set(find_ids(own or ())))
        except OSError as error:
            _log.info("reading the files of GPU samplers failed: %s", error)
            return []

    def close(self) -> None:
        """Remove every file, because the ranks have ended."""
        drop_views(self._folder)

    def _tell(self, view: View) -> None:
        if view != self._told:
            write_view(self._folder, AGENT, view)
            self._told = view

    def _sampled(self, taken: set[str]) -> list[Measurement]:
        measured: list[Measurement] = []
        # Older ones are of a sampler that has ended: its last reading is not current.
        oldest_ns = (self._clock() - self._fresh_s) * 1e9
        for sampled in read_sampled(self._folder):
            if sampled.monotonic_ns >= oldest_ns:
                new = [said for said in sampled.measurements if said.device not in taken]
                taken.update(said.device for said in new if said.device)
                measured += new
        return measured
