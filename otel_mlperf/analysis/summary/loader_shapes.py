"""Data types of DataLoader use, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a loader, by its number, over all passes."""

    rank: int
    worker: str
    """``main``: the training process itself, of a loader without workers."""
    batches: int
    items_ns: float
    """Mean of a batch in ``__getitem__``, or in the dataset's iterator."""
    collate_ns: float
    """Mean of a batch in ``collate_fn``."""
    cpu_ns: float | None = None
    """Of ``items_ns``, CPU time of its thread; None: nobody counted."""
    delay_ns: float | None = None
    """Of ``items_ns``, ready to run and without a CPU; None: the kernel does not say."""
    is_slow: bool = False
    """Whether it takes far longer for a batch than the others do."""

    @property
    def fetch_ns(self) -> float:
        """Mean of a batch."""
        return self.items_ns + self.collate_ns

    @property
    def idle_ns(self) -> float | None:
        """Of ``items_ns``, waiting for something else than a CPU: files, a network, a lock."""
        if self.cpu_ns is None:
            return None
        return max(0.0, self.items_ns - self.cpu_ns - (self.delay_ns or 0.0))


class FirstBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Passes through a loader, and how long each took to its first batch."""

    workers: str
    """``started`` for the pass, ``kept`` from the one before, ``none``: there are none."""
    passes: int
    mean_ns: float
    end_ns: float = 0.0
    """How long each took to its end after its last batch: workers that are not kept are ended."""


class LoaderUse(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader over the whole run, all ranks together."""

    dataset: str
    """The class of its dataset; a second one of it at a time has a number behind."""
    batches: int
    """That the program got."""
    wait_ns: float
    """That it waited for them, all together."""
    ready: float | None
    """Mean of batches that were ready when it asked for one; None: there are no workers."""
    none_ready_share: float | None
    """How often none was."""
    fetch_ns: float | None
    """Mean that a worker took for a batch; None: workers are not seen (``spawn``)."""
    items_ns: float | None
    collate_ns: float | None
    workers: list[WorkerUse]
    first_batches: list[FirstBatches]
    elements: float | None = None
    """Mean of a batch, of its samples' largest tensors before they were padded; None: of none."""
