"""Which conditions of what brings the data are worth a word?"""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.finding_row import FindingRow

LOADING_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="worker_startup",
        name="WorkerStartup",
        severity="warning",
        threshold=0.15,
        summary=(
            "the workers of {dataset} are started anew for each of {passes:.0f} passes, "
            "{each} each: {value:.0%} of the training"
        ),
        action=(
            "DataLoader(..., persistent_workers=True), and one loader for all epochs: the workers "
            "then stay from pass to pass."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="slow_worker",
        name="SlowWorker",
        severity="warning",
        threshold=0.1,
        summary=(
            "worker {worker} of {dataset} takes {times:.1f} × as long for a batch as the others, "
            "and batches come in order: the wait for it is {value:.0%} of a step"
        ),
        action=(
            "Look at what is different for that worker, likely its part of the data: {reason}. "
            "Spread the work evenly (shards of one size, shuffled samples); more workers will not "
            "help."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="collate",
        name="SlowCollate",
        severity="warning",
        threshold=0.5,
        matters=0.1,
        summary="collate_fn takes {value:.0%} of a batch of {dataset}, and the steps wait for it",
        action=(
            "Make collate_fn cheaper: what can be done for a sample belongs in `__getitem__` or "
            "before the training; build each tensor of the batch once (torch.stack, pad_sequence), "
            "without loops over its elements."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="storage",
        name="SlowStorage",
        severity="warning",
        threshold=0.5,
        matters=0.1,
        summary=(
            "samples of {dataset} wait for {value:.0%} of a batch's time without using a CPU, "
            "likely for files or a network, and the steps wait for them"
        ),
        action=(
            "Read ahead: {workers} (they wait and need no CPU of their own). Or make reading "
            "cheaper: copy the data to a local disk or into memory first, keep it in few large "
            "files, read a sample once."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="uneven_batches",
        name="UnevenBatches",
        severity="warning",
        threshold=0.15,
        summary=(
            "a step's time follows the size of its batch, and {padding:.0%} of that is likely "
            "padding: {value:.0%} of a step"
        ),
        action=(
            "Put samples of similar length into a batch (a batch_sampler that sorts by length in "
            "buckets), pad to the longest of the batch only, or pack sequences."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="transfer",
        name="CopiesToDevice",
        severity="warning",
        threshold=0.1,
        summary="copies to the device take {value:.0%} of a step by themselves, {how}",
        action=(
            "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True): the next "
            "batch then goes over while the device works. Copy bytes (uint8) and convert them "
            "there."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="cold_start",
        name="ColdStart",
        severity="warning",
        threshold=0.1,
        summary="{what}, {times:.1f} × as long as later: {value:.0%} of the training",
        action=(
            "Look at what is done the first time alone: files that are read before they are in "
            "memory (copy or read them beforehand), compilation, benchmarks of kernels, caches of "
            "the program; or at what is set up at each begin of a pass."
        ),
        of_ended=True,
    ),
)
