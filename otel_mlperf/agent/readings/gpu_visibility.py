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
"""For how long the agent's own first look at the GPUs is waited for."""
_MISSED: Final = 3
"""Readings of a sampler that may be missing before its last one counts no more."""
AGENT: Final = "agent"
"""In the place of a journal's name: what the agent sees."""
_SEEN: Final = ".gpus"
_SAMPLED: Final = ".sampled"
SAMPLER: Final = ".sampler"
"""Ends the name of the lock that makes a sampler the only one of its key."""


class View(msgspec.Struct, frozen=True):
    """What one process sees."""

    place: str
    """What decides which devices it may open: of two with the same one, both see the same."""
    devices: tuple[Device, ...]

    @property
    def ids(self) -> frozenset[str]:
        """``hw.id`` of all devices and of the instances on them."""
        return find_ids(self.devices)

    @property
    def key(self) -> str:
        """The same for all processes that see the same devices."""
        return blake2b("\0".join(sorted(self.ids)).encode(), digest_size=8).hexdigest()


class Sampled(msgspec.Struct, frozen=True):
    """What a sampler has read last."""

    monotonic_ns: int
    measurements: list[Measurement]


_decode_view: Final = msgspec.msgpack.Decoder(View).decode
_decode_sampled: Final = msgspec.msgpack.Decoder(Sampled).decode


def find_ids(devices: Iterable[Device]) -> frozenset[str]:
    """``hw.id`` of devices and of the instances on them."""
    return frozenset(
        uuid for device in devices for uuid in (device.uuid, *(i.uuid for i in device.instances))
    )


def detect_place(environ: Mapping[str, str], proc: Path = PROC) -> str:
    """Control groups, name spaces and container of this process, as one text."""
    here = proc / "self"
    words = [read_once(here / "cgroup").decode("utf-8", "replace")]
    for kind in ("cgroup", "mnt"):
        with contextlib.suppress(OSError):
            words.append(str((here / "ns" / kind).readlink()))
    return "\n".join([*words, environ.get(CONTAINER, "")])


def write_view(folder: Path, name: str, view: View) -> None:
    """Replaces what the process of journal ``name``, or the agent, sees.

    Raises:
        OSError: the folder is gone, or there is no room.
    """
    _replace(folder / (name + _SEEN), view)


def read_view(folder: Path, name: str) -> View | None:
    """What it said; None: nothing yet."""
    try:
        return _decode_view(read_regular(folder / (name + _SEEN)))
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def read_views(folder: Path) -> dict[str, View]:
    """What ranks see, by the name of their journal; those of journals that are gone are removed."""
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
    """Replaces what the sampler of ``key`` has read.

    Raises:
        OSError: the folder is gone, or there is no room.
    """
    _replace(folder / (key + _SAMPLED), sampled)


def read_sampled(folder: Path) -> list[Sampled]:
    """What all samplers have read last, also those that are gone."""
    sampled = []
    for path in sorted(folder.glob(f"*{_SAMPLED}")):
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            sampled.append(_decode_sampled(read_regular(path)))
    return sampled


def drop_sampled(folder: Path, key: str) -> None:
    """Removes what the sampler of ``key`` has read: nobody reads it any more."""
    (folder / (key + _SAMPLED)).unlink(missing_ok=True)


def drop_views(folder: Path) -> None:
    """Removes everything that is said here."""
    for ending in (_SEEN, _SAMPLED, SAMPLER):
        for path in folder.glob(f"*{ending}*"):
            path.unlink(missing_ok=True)


def _replace(path: Path, content: View | Sampled) -> None:
    write_whole(path, msgspec.msgpack.encode(content))


class TaskGpus:
    """A source: tells what the agent sees, and takes what others read of the rest."""

    def __init__(
        self,
        folder: Path,
        seen: Callable[[], Sequence[Device] | None],
        interval_s: float,
        *,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seen`` gives the GPUs that the agent sees itself; None: it has not looked yet."""
        self._folder, self._seen, self._clock = folder, seen, clock
        self._fresh_s = _MISSED * interval_s + 1
        self._place = detect_place(os.environ, proc)
        self._told: View | None = None
        self._began_s = clock()
        self.views: Mapping[str, tuple[Device, ...]] = {}
        """What ranks see that see something else, by journal; replaced as a whole."""

    def begin(self) -> bool:
        """Nothing waits."""
        return True

    def take(self) -> list[Measurement] | None:
        """What is said of devices that the agent does not see itself, of each once."""
        own = self._seen()
        # Without its own list it would take for hidden what it is about to see itself.
        if own is None and self._clock() - self._began_s < _FIRST_S:
            return None
        try:
            if own is not None:
                self._tell(View(self._place, tuple(own)))
            views = read_views(self._folder)
            self.views = {name: view.devices for name, view in views.items()}
            return self._sampled(set(find_ids(own or ())))
        except OSError as error:
            _log.info("reading what samplers say: %s", error)
            return []

    def close(self) -> None:
        """Takes every file away: the ranks have ended."""
        drop_views(self._folder)

    def _tell(self, view: View) -> None:
        if view != self._told:
            write_view(self._folder, AGENT, view)
            self._told = view

    def _sampled(self, taken: set[str]) -> list[Measurement]:
        measured: list[Measurement] = []
        # Older ones are of a sampler that is gone: what it read last is no reading of now.
        oldest_ns = (self._clock() - self._fresh_s) * 1e9
        for sampled in read_sampled(self._folder):
            if sampled.monotonic_ns >= oldest_ns:
                new = [said for said in sampled.measurements if said.device not in taken]
                taken.update(said.device for said in new if said.device)
                measured += new
        return measured
