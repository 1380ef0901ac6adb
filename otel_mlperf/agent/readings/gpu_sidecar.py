"""Sidecar (sampler) that reads GPUs that are visible to a rank but not to the node's agent.

Every rank starts an agent process in its own control group. Only one of these agents serves the
node. If GPUs of a rank are hidden from the serving agent, the rank's other agent process continues
as a *sampler*. A sampler reads only GPUs, and passes the readings to the serving agent through
files. A sampler ends after all ranks that see the same GPUs have ended. The training process is not
involved.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.model.agent_options import read_options
from otel_mlperf.agent.readings.gpu_visibility import (
    AGENT,
    SAMPLER,
    Sampled,
    View,
    detect_place,
    drop_sampled,
    read_view,
    read_views,
    write_sampled,
    write_view,
)
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.folder_lock import OnlyOne
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.sensors.gpus.vendors import Gpus
from otel_mlperf.sensors.kernel_files import PROC
from otel_mlperf.sensors.sensor_kind import Surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.sensors.measurement import Level

_log = logging.getLogger("otel_mlperf.agent")
_AGENT_S: Final = 60.0
"""Maximum wait for the agent's list of its GPUs, because a driver can load slowly."""
_LOOK_S: Final = 0.5
"""Interval between checks whether the ranks still run."""


def sample(journal: Path, environ: Mapping[str, str], proc: Path = PROC) -> None:
    """Read GPUs that the rank of ``journal`` sees but the agent does not.

    Returns after all ranks that see these GPUs have ended. Reads nothing if no GPUs are hidden from
    the agent, if GPU readings are disabled, or if another sampler reads the same GPUs.
    """
    options = read_options(environ)
    if options.readings == "none" or "gpu" not in options.sources:
        return
    place, ranks = detect_place(environ, proc), _Ranks(journal)
    try:
        agent = _wait_for_agent(ranks)
        if ranks.pids and (agent is None or agent.place != place):
            _Sampler(ranks, place, options, options.readings, proc).run(agent)
    except OSError as error:
        _log.info("the GPU sampler of %s ends: %s", journal.name, error)
    finally:
        ranks.close()
        with contextlib.suppress(OSError):
            journal.parent.rmdir()  # left over if we wrote after the agent had removed it


def _wait_for_agent(ranks: _Ranks) -> View | None:
    until_s = time.monotonic() + _AGENT_S
    while ranks.look() and time.monotonic() < until_s:
        if (view := read_view(ranks.folder, AGENT)) is not None:
            return view
        time.sleep(_LOOK_S)
    return None


class _Ranks:
    """Processes of one rank, and of other ranks of the node that see the same GPUs."""

    def __init__(self, journal: Path) -> None:
        self.folder, self.name = journal.parent, journal.name
        self.pids: frozenset[int] = frozenset()
        """Ids of the running processes."""
        self._readers: dict[str, JournalReader] = {}

    def look(self, key: str = "") -> bool:
        """Update ``pids``; return whether this rank or another with view key ``key`` is running."""
        names = {self.name}
        if key:
            names |= {name for name, view in read_views(self.folder).items() if view.key == key}
        alive = [reader for name in names if (reader := self._open(name)) and reader.is_running]
        self.pids = frozenset(reader.meta.pid for reader in alive)
        return bool(alive)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _open(self, name: str) -> JournalReader | None:
        if name not in self._readers:
            try:
                self._readers[name] = JournalReader(str(self.folder / name))
            except JournalError:
                return None
        return self._readers[name]


class _Sampler:
    def __init__(
        self, ranks: _Ranks, place: str, options: Options, level: Level, proc: Path
    ) -> None:
        self._ranks, self._place, self._interval_s = ranks, place, options.readings_s
        self._gpus = Gpus(Surroundings(level, pids=lambda: ranks.pids, proc=proc))

    def run(self, agent: View | None) -> None:
        try:
            if not self._find_gpus():
                return
            view = View(self._place, self._gpus.devices())
            if agent is not None and agent.ids == view.ids:
                return
            write_view(self._ranks.folder, self._ranks.name, view)
            with OnlyOne(self._ranks.folder, view.key + SAMPLER) as is_mine:
                if is_mine:
                    _log.info(
                        "%s: a separate sampler reads the GPUs of this journal's process",
                        self._ranks.name,
                    )
                    self._serve(view)
        finally:
            self._gpus.close()

    def _find_gpus(self) -> bool:
        while self._ranks.look():
            late = self._gpus.late
            self._gpus.read()
            devices = self._gpus.devices()
            if devices or self._gpus.late == late:
                return bool(devices)
            time.sleep(_LOOK_S)
        return False

    def _serve(self, view: View) -> None:
        folder, due_s = self._ranks.folder, time.monotonic()
        try:
            while self._ranks.look(view.key):
                agent = read_view(folder, AGENT)
                if agent is not None and agent.ids == view.ids:
                    return  # a new agent has started, which sees these GPUs
                if time.monotonic() >= due_s:
                    due_s = time.monotonic() + self._interval_s
                    write_sampled(folder, view.key, self._read())
                time.sleep(min(_LOOK_S, self._interval_s))
        finally:
            drop_sampled(folder, view.key)

    def _read(self) -> Sampled:
        pid = min(self._ranks.pids, default=0)
        measured = [m if m.device else m._replace(pid=pid) for m in self._gpus.read()]
        return Sampled(time.monotonic_ns(), measured)
