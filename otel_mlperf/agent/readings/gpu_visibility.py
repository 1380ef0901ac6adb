"""Which GPUs does each process of the node see, and what was read of those that the agent does not?

Where every task has a control group or container of its own (Slurm), the agent sees the GPUs of the
task that has started it, and samplers in the others see theirs. They meet at small files beside the
journals, each replaced as a whole: ``agent.gpus`` and ``<journal>.gpus`` say who sees what,
``<key>.sampled`` what a sampler has read.
"""

from __future__ import annotations

import contextlib
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.sensors.gpus.gpu import Device  # noqa: TC001 - msgspec reads it
from otel_mlperf.sensors.gpus.visible_devices import CONTAINER
from otel_mlperf.sensors.kernel_files import PROC, read_once
from otel_mlperf.sensors.measurement import Measurement  # noqa: TC001 - msgspec reads it
from otel_mlperf.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

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
        return _decode_view((folder / (name + _SEEN)).read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def read_views(folder: Path) -> dict[str, View]:
    """What ranks see, by the name of their journal; those of journals that are gone are removed."""
    found = {}
    for path in folder.glob(f"*{_SEEN}"):
        name = path.name.removesuffix(_SEEN)
        if name == AGENT:
            continue
        if not (folder / name).exists():
            path.unlink(missing_ok=True)
        elif (view := read_view(folder, name)) is not None:
            found[name] = view
    return found


def write_sampled(folder: Path, key: str, sampled: Sampled) -> None:
    """Replaces what the sampler of ``key`` has read.

    Raises:
        OSError: the folder is gone, or there is no room.
    """
    _replace(folder / (key + _SAMPLED), sampled)


def read_sampled(folder: Path) -> list[Sampled]:
    """What all samplers have read last, also those that are gone."""
    found = []
    for path in sorted(folder.glob(f"*{_SAMPLED}")):
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            found.append(_decode_sampled(path.read_bytes()))
    return found


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
