"""Schedule of the readings of each source, and assignment of readings to ranks.

Readings of a training process, and of a GPU that a rank uses, belong to the rank. PyTorch reports
the GPU after it has allocated tensors; until then, the environment variables of the process
determine the GPU. All other readings belong to the node.

Rates need two readings. In the first seconds of a rank's steps, host and processes are therefore
read at each poll of the journals, and GPUs each second, so that even short runs have rates. GPUs
that a sidecar reads are not read more often.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.agent.model.events import Read, SensorReading
from otel_mlperf.agent.readings.gpu_visibility import find_ids
from otel_mlperf.journal.bulletin import GPUS
from otel_mlperf.sensors.gpus.visible_devices import device_of
from otel_mlperf.sensors.kernel_files import PROC, read_once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.agent.readings.sensor_set import SensorSet
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.sensors.gpus.gpu import Device
    from otel_mlperf.sensors.measurement import Measurement

Mains = dict[str, "JournalMeta"]
"""Metadata of the main journals (not of forked children) of running ranks, by journal name."""
Used = dict[str, frozenset[str]]
"""``hw.id`` of the GPUs on which a process has allocated tensors, by journal name."""
_NODE: Final = ""
_SOON_S: Final = 1.0
_QUICK_S: Final[Mapping[str, float]] = {"host": 0.4, "process": 0.4, GPUS: 0.9}
"""Intervals of quick readings. For /proc, they are shorter than the poll interval, but limited,
because a journal that fills up causes many polls. GPU drivers report averages over a second. All
other sources keep their interval."""
_QUICK_FOR_S: Final = 10.0
"""Duration of quick readings after a rank's first step. Longer runs have two regular readings."""
_SECOND_WITHIN_S: Final = 0.85
"""Duration of quick readings after the first reading, because CPU rates need a second reading."""


class ReadingRounds:
    """Schedule that reads the sensor sources of a machine at regular intervals."""

    def __init__(
        self,
        machine: SensorSet,
        interval_s: float,
        *,
        used: Callable[[], Used] = dict,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = PROC,
    ) -> None:
        self._used = used
        self._machine, self._interval_s = machine, interval_s
        self._clock, self._proc = clock, proc
        self._due_s = clock()
        self._quick_until_s = self._due_s
        self._is_first = True
        self._quick_due_s: dict[str, float] = {}
        self._stepping: set[str] = set()
        self._wanted: set[str] = set()
        self._waiting: set[str] = set()
        self._owners: tuple[object, dict[str, str]] = (None, {})

    def hasten(self) -> None:
        """Schedule the next reading within a second. Called when a rank has started."""
        self._due_s = min(self._due_s, self._clock() + _SOON_S)

    def step(self, mains: Mains, stepping: Collection[str] = ()) -> list[Read]:
        """Start due readings without blocking; return an event for each reading that is complete.

        ``stepping`` contains those journals in ``mains`` whose ranks have started a step.
        """
        now_s = self._clock()
        if not self._stepping.issuperset(stepping):
            self._stepping.update(stepping)
            self._quick_due_s, self._quick_until_s = {}, now_s + _QUICK_FOR_S
        if mains and now_s >= self._due_s:
            if self._is_first:
                self._is_first, self._quick_until_s = False, now_s + _SECOND_WITHIN_S
            self._due_s += self._interval_s
            # Skip missed readings, for example after the machine was suspended.
            if self._due_s <= now_s:
                self._due_s = now_s + self._interval_s
            self._want(mains, self._machine.sources.keys())
        elif mains and now_s < self._quick_until_s and (quick := self._quick_sources(now_s)):
            self._want(mains, quick)
        return [
            self._event(name, measured, mains)
            for name in self._machine.sources
            if (measured := self._take(name)) is not None
        ]

    def _quick_sources(self, now_s: float) -> list[str]:
        quick = self._machine.sources.keys() & _QUICK_S.keys()
        return [name for name in quick if self._quick_due_s.get(name, now_s) <= now_s]

    def _want(self, mains: Mains, sources: Collection[str]) -> None:
        now_s = self._clock()
        self._quick_due_s |= {name: now_s + _QUICK_S[name] for name in _QUICK_S.keys() & sources}
        self._machine.pids = frozenset(meta.pid for meta in mains.values())
        self._machine.loop_threads = {
            meta.pid: meta.thread for meta in mains.values() if meta.thread
        }
        self._wanted.update(sources)

    def _take(self, name: str) -> list[Measurement] | None:
        source = self._machine.sources[name]
        if name in self._wanted and name not in self._waiting:
            self._wanted.remove(name)
            self._waiting.add(name)
            source.begin()
        if name not in self._waiting:
            return None
        measured = source.take()
        if measured is not None:
            self._waiting.remove(name)
        return measured

    def _event(self, source: str, measured: list[Measurement], mains: Mains) -> Read:
        by_pid = {meta.pid: name for name, meta in mains.items()}
        owners: dict[str, str] = {}
        if any(measurement.device for measurement in measured):
            owners = self._owners_of(self._machine.devices(), mains)
        readings = []
        for metric, labels, value, pid, device, text in measured:
            journal = by_pid.get(pid) if pid else owners.get(device, _NODE)
            if journal is not None:  # None: the process has just ended
                readings.append(SensorReading(journal, metric, labels, float(value), text))
        metrics = self._machine.metrics.get(source, tuple)()
        return Read(source, time.time_ns(), readings, [*metrics])

    def _owners_of(self, devices: Sequence[Device], mains: Mains) -> dict[str, str]:
        used = self._used()
        views = self._machine.views()
        known = (devices, tuple(mains), used, views)
        # Cached until an input changes: readings are frequent, but GPU assignments rarely change.
        if self._owners[0] != known:
            self._owners = (known, find_owners(devices, mains, used, self._proc, views))
        return self._owners[1]

    def close(self) -> None:
        """Close all sources."""
        for source in self._machine.sources.values():
            source.close()


def find_used(journals: Mapping[str, JournalState]) -> Used:
    """Return the GPUs on which each process has allocated tensors, by journal name."""
    return {
        name: frozenset(
            value
            for kind, *content in journal.entries.values()
            if kind == "cell" and content[1] == names.CUDA_MEMORY.name
            for key, value in content[3]
            if key == names.HW_ID
        )
        for name, journal in journals.items()
    }


def find_owners(
    devices: Sequence[Device],
    mains: Mapping[str, JournalMeta],
    used: Used,
    proc: Path,
    views: Mapping[str, Sequence[Device]] | None = None,
) -> dict[str, str]:
    """Return the journal of the rank that uses each device, by ``hw.id``.

    Device indices of a rank refer to the GPUs that the rank sees: the rank's entry in ``views``, or
    else ``devices``. If several ranks claim a device, the owner is the rank in the agent's own
    control group, or else the first rank. Such conflicts occur if each task has its own container:
    all tasks count GPUs from zero, and the agent sees only the GPUs of its own task.
    """
    claims: dict[str, list[str]] = {}
    for name, meta in sorted(mains.items(), key=lambda item: item[1].rank):
        seen = (views or {}).get(name, devices)
        allocated_on: Collection[str] = used.get(name, frozenset()) & find_ids(seen)
        for uuid in allocated_on or filter(None, (device_of(meta.local_rank, meta.visible, seen),)):
            claims.setdefault(uuid, []).append(name)
    return {
        uuid: ranks[0] if len(ranks) == 1 else _nearest(ranks, mains, proc)
        for uuid, ranks in claims.items()
    }


def _nearest(ranks: list[str], mains: Mapping[str, JournalMeta], proc: Path) -> str:
    ours = read_once(proc / "self" / "cgroup")
    nearby = (name for name in ranks if read_once(proc / str(mains[name].pid) / "cgroup") == ours)
    return next(nearby, ranks[0])
