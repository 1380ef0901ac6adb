"""What do the samplers say of GPUs that are hidden from the agent?"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.readings.gpu_visibility import (
    AGENT,
    View,
    detect_place,
    drop_views,
    find_ids,
    read_sampled,
    read_views,
    write_view,
)
from otel_mlperf.sensors.kernel_files import PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from otel_mlperf.sensors.gpus.gpu import Device
    from otel_mlperf.sensors.measurement import Measurement

_log = logging.getLogger("otel_mlperf.agent")
_FIRST_S: Final = 2.0
"""For how long the agent's own first look at the GPUs is waited for."""
_MISSED: Final = 3
"""Readings of a sampler that may be missing before its last one counts no more."""


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
        found: list[Measurement] = []
        oldest_ns = (self._clock() - self._fresh_s) * 1e9
        for one in read_sampled(self._folder):
            if one.monotonic_ns >= oldest_ns:
                new = [said for said in one.measurements if said.device not in taken]
                taken.update(said.device for said in new if said.device)
                found += new
        return found
