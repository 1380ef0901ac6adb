"""Around which calls inside a DataLoader do we stand, that torch lets us see?

An iterator is made, is asked for a batch, or begins another pass; in it, or in one of its workers,
a batch is fetched, collated, pinned. Each is a gate that a function of torch is woven into.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from otel_mlperf.pytorch.loading.asking import Asked, Made, Passed, Pinning
from otel_mlperf.pytorch.loading.fetching import Fetching
from otel_mlperf.pytorch.loading.gate import Gate, Shared, Thread
from otel_mlperf.pytorch.loading.loader_figures import Loaders

if TYPE_CHECKING:
    from collections.abc import Callable


class LoaderGates(Shared):
    """The gates, and what they share.

    Args:
        worker_id: the number of the worker that this process is; None: it is none.
    """

    def __init__(self, worker_id: Callable[[], int | None]) -> None:
        super().__init__(worker_id)
        self._pid = os.getpid()
        self.all: tuple[Gate, ...] = (
            Made(self),
            Passed(self),
            Asked(self),
            Fetching(self),
            Pinning(self),
        )
        self.made, self.passed, self.asked, self.fetching, self.pinning = self.all

    def switch(self, *, is_off: bool) -> None:
        """Whether nothing is seen from now on."""
        for gate in self.all:
            gate.busy = is_off

    def in_child(self) -> None:
        """This process was forked: if it is a worker it counts for its parent, and no more."""
        pid = os.getpid()
        if self._pid != pid:
            started = None if self.fetching.busy else self.thread.started
            thread, loaders = Thread(), Loaders()
            # No call in between: whoever is interrupted does either all of it again, or nothing.
            self.inherited, self.thread, self.loaders, self._pid = started, thread, loaders, pid
        self.switch(is_off=True)
        self.fetching.busy = self.inherited is None
