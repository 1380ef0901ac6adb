"""Data types of DataLoader use, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one worker number of a loader, over all passes."""

    rank: int
    worker: str
    """Number of the worker; ``main``: the training process, for a loader without workers."""
    batches: int
    items_ns: float
    """Mean time per batch in ``__getitem__``, or in the dataset's iterator."""
    collate_ns: float
    """Mean time per batch in ``collate_fn``."""
    cpu_ns: float | None = None
    """Part of ``items_ns``: CPU time of the worker's thread; None: not measured."""
    delay_ns: float | None = None
    """Part of ``items_ns`` in which the worker was ready to run without a CPU; None: the kernel
    does not report this."""
    is_slow: bool = False
    """Whether the worker's batches take far longer than those of the other workers."""

    @property
    def fetch_ns(self) -> float:
        """Return the worker's mean fetch time of a batch."""
        return self.items_ns + self.collate_ns

    @property
    def idle_ns(self) -> float | None:
        """Return the part of ``items_ns`` in which the worker waited (for files); None: unknown."""
        if self.cpu_ns is None:
            return None
        return max(0.0, self.items_ns - self.cpu_ns - (self.delay_ns or 0.0))


class FirstBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Passes through a loader, and their mean time to the first batch."""

    workers: str
    """``started`` for the pass, ``kept`` from the previous pass, ``none``: the loader has no
    workers."""
    passes: int
    mean_ns: float
    end_ns: float = 0.0
    """Mean time from the last batch of a pass to its end, in which non-persistent workers are
    stopped."""


class LoaderUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a DataLoader over the whole run, all ranks together."""

    dataset: str
    """Class of the dataset; a second concurrent loader of that class has a number appended."""
    batches: int
    """Batches delivered to the program."""
    wait_ns: float
    """Total time that the program waited for batches."""
    ready: float | None
    """Mean number of queued batches when the program requests one; None: no workers."""
    none_ready_share: float | None
    """Share of the program's requests for a batch at which the queue was empty."""
    fetch_ns: float | None
    """Mean fetch time of a worker per batch; None: workers are not observed (``spawn``)."""
    items_ns: float | None
    collate_ns: float | None
    workers: list[WorkerUse]
    first_batches: list[FirstBatches]
    elements: float | None = None
    """Mean elements of a batch, counted in the largest tensor of each sample before padding; None:
    unknown."""
