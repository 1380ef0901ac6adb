"""Data types of a loader benchmark, as ``--json`` prints them."""

from __future__ import annotations

import msgspec

from otel_mlperf.quantities import plural


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """DataLoader arguments that are varied; other arguments remain the program's."""

    num_workers: int
    prefetch_factor: int | None = None
    """None: the program's value."""

    @property
    def words(self) -> str:
        """Return ``2 workers, prefetch 4``."""
        workers = plural(self.num_workers, "worker")
        deeper = self.prefetch_factor
        return workers if deeper is None else f"{workers}, prefetch {deeper}"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one setting, after its workers have started."""

    setting: Setting | None
    """None: it is not a DataLoader, and has no setting."""
    batches: int
    """Number of timed batches."""
    batch_ns: float
    """Time between batches: the median of the turns."""
    noise: float
    """Half the range from the second fastest to the second slowest turn, as a share."""
    samples_per_s: float | None
    first_batch_ns: int
    """Time from creating an iterator to its first batch: the start-up time of workers."""
    memory_bytes: int | None = None
    """Additional memory of this process and its workers; None: not readable."""

    @property
    def batches_per_s(self) -> float:
        """Return the throughput in batches."""
        return 1e9 / self.batch_ns if self.batch_ns else 0.0


class TransformTime(msgspec.Struct, frozen=True, kw_only=True):
    """One transform of the dataset."""

    name: str
    calls: int
    batch_ns: float
    """Mean time of all its calls in a batch."""


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a batch without workers, in the same process."""

    batch_ns: float
    items_ns: float
    """Time in ``__getitem__``, or in the dataset's iterator."""
    collate_ns: float
    transforms: list[TransformTime]
    """Transforms, whose time is a part of the items'."""


class LoaderAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="loader/1"):
    """Result of a loader benchmark: throughput, cost breakdown, and best setting."""

    target: str
    kind: str
    """Class of the loader."""
    dataset: str | None
    epoch_batches: int | None
    """None: the loader has no length."""
    batch_samples: int | None
    batch_bytes: int
    """Bytes of tensors and arrays in the first batch."""
    cpus: int
    now: Setting | None
    """The program's setting."""
    trials: list[Trial]
    inside: Inside | None
    best: Setting | None
    line: str | None
    """The best setting as code, to be pasted."""
    gain: float | None
    """Speed-up of the best setting over the current one."""
    notes: list[str] = []
