"""Metrics and attributes of data loading inside a DataLoader.

They describe the wait of the loop and the concurrent work of the loader's workers, by the dataset's
class.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.metric import Metric

DATASET: Final = "ml.dataset.name"
"""The class of a loader's dataset; a second one of it at a time has a number behind."""
LOADER_WORKER: Final = "ml.dataloader.worker.id"
"""Number of a worker; ``main``: the training process itself, of a loader without workers."""
LOADER_WORKERS: Final = "ml.dataloader.workers.state"
"""``started`` for this pass, ``kept`` from the previous one, ``none``: the loader has no workers.
"""
LOADER_PART: Final = "ml.dataloader.fetch.part"
"""``items``: ``__getitem__`` or the dataset's iterator; ``collate``: made into a batch."""
LOADER_ITEMS: Final = "items"
LOADER_COLLATE: Final = "collate"

LOADER_WAIT: Final = Metric(
    "ml.dataloader.wait.time",
    "s",
    "counter",
    "Time in which the program waited for batches of a DataLoader.",
    (DATASET,),
)
LOADER_BATCHES: Final = Metric(
    "ml.dataloader.batches", "{batch}", "counter", "Batches that it got.", (DATASET,)
)
LOADER_READY: Final = Metric(
    "ml.dataloader.batches.ready",
    "{batch}",
    "histogram",
    "Batches that workers had ready when the program asked for one.",
    (DATASET,),
)
LOADER_NONE_READY: Final = Metric(
    "ml.dataloader.batches.awaited",
    "{batch}",
    "counter",
    "Batches for which the program asked when none was ready.",
    (DATASET,),
)
LOADER_FIRST_BATCH: Final = Metric(
    "ml.dataloader.first_batch.time",
    "s",
    "histogram",
    "Time from the begin of a pass to its first batch, with the start of workers.",
    (DATASET, LOADER_WORKERS),
)
LOADER_FETCHED: Final = Metric(
    "ml.dataloader.worker.batches",
    "{batch}",
    "counter",
    "Batches that a worker has fetched.",
    (DATASET, LOADER_WORKER),
)
LOADER_FETCH_TIME: Final = Metric(
    "ml.dataloader.worker.time",
    "s",
    "counter",
    "Time in which a worker fetched them; the parts add up.",
    (DATASET, LOADER_WORKER, LOADER_PART),
)
LOADER_CPU: Final = Metric(
    "ml.dataloader.worker.cpu.time",
    "s",
    "counter",
    "CPU time of its thread while it got the samples, without collating.",
    (DATASET, LOADER_WORKER),
)
LOADER_DELAY: Final = Metric(
    "ml.dataloader.worker.delay.time",
    "s",
    "counter",
    "Time in which it was ready to run meanwhile and had no CPU, where the kernel says so.",
    (DATASET, LOADER_WORKER),
)
LOADER_SIZED: Final = Metric(
    "ml.dataloader.worker.sized.batches",
    "{batch}",
    "counter",
    "Batches of which the elements of the samples were counted: the first 32, then one in 16.",
    (DATASET, LOADER_WORKER),
)
LOADER_ELEMENTS: Final = Metric(
    "ml.dataloader.worker.sized.elements",
    "{element}",
    "counter",
    "Elements of the largest tensor of each sample of these, before they were padded to a batch.",
    (DATASET, LOADER_WORKER),
)
PLACES: Final = Metric(
    "ml.batch.places",
    "{place}",
    "counter",
    "Places of token numbers in the batches that were looked at, the 1st, 2nd, 4th, 8th and so on.",
)
PADDED: Final = Metric(
    "ml.batch.places.padded", "{place}", "counter", "Of these, those that are padding."
)
LOADER_END: Final = Metric(
    "ml.dataloader.end.time",
    "s",
    "histogram",
    "Time to the end of a pass after its last batch, with the end of workers that are not kept.",
    (DATASET, LOADER_WORKERS),
)
LOADER_PIN: Final = Metric(
    "ml.dataloader.pin.time",
    "s",
    "histogram",
    "Time to copy a batch into pinned memory, in the thread that does it.",
)
