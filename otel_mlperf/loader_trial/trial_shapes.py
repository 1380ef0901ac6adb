"""Data types of a loader benchmark, as ``--json`` prints them."""

from __future__ import annotations

import msgspec

from otel_mlperf.quantities import plural


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a DataLoader that are tried; the others stay as the program gave them."""

    num_workers: int
    prefetch_factor: int | None = None
    """None: as the program gave it."""

    @property
    def words(self) -> str:
        """``2 workers, prefetch 4``."""
        workers = plural(self.num_workers, "worker")
        deeper = self.prefetch_factor
        return workers if deeper is None else f"{workers}, prefetch {deeper}"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A loader with one setting, once its workers were at work."""

    setting: Setting | None
    """None: it is no DataLoader, and has none."""
    batches: int
    """That were timed."""
    batch_ns: float
    """From one batch to the next: the median of the turns."""
    noise: float
    """Half of what lies between the second fastest turn and the second slowest, as a share."""
    samples_per_s: float | None
    first_batch_ns: int
    """From asking for an iterator to its first batch: what the start of workers takes."""
    memory_bytes: int | None = None
    """Memory that this process and the workers have more than before; None: not readable."""

    @property
    def batches_per_s(self) -> float:
        """How many it gives."""
        return 1e9 / self.batch_ns if self.batch_ns else 0.0


class TransformTime(msgspec.Struct, frozen=True, kw_only=True):
    """One transform of the dataset."""

    name: str
    calls: int
    batch_ns: float
    """Of all its calls in a batch, on average."""


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch takes where there are no workers, in the same process."""

    batch_ns: float
    items_ns: float
    """In ``__getitem__``, or in the dataset's iterator."""
    collate_ns: float
    transforms: list[TransformTime]
    """Part of the items."""


class LoaderAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="loader/1"):
    """How fast a loader is, what a batch is made of, and with which setting it is fastest."""

    target: str
    kind: str
    """The class of the loader."""
    dataset: str | None
    epoch_batches: int | None
    """None: it does not say."""
    batch_samples: int | None
    batch_bytes: int
    """Of tensors and arrays in the first batch."""
    cpus: int
    now: Setting | None
    """As the program has it."""
    trials: list[Trial]
    inside: Inside | None
    best: Setting | None
    line: str | None
    """The best setting, to be pasted."""
    gain: float | None
    """How many times as fast as now the best is."""
    notes: list[str] = []
