"""Each epoch's own time is known, and the peak memory by its end."""

from __future__ import annotations

import json
import statistics

from run_folders import MS, START, RunFolderBuilder, S
from summaries import summary_of

from otel_mlperf import names
from otel_mlperf.report.summary_table import render_summary


def two_epochs(tmp_path):
    """Three steps each, with a pause between them, and peaks that were read twice."""
    run = RunFolderBuilder(tmp_path)
    for n in range(6):
        at = n * 10 * MS + (20 * S if n > 2 else 0)
        run.step(n, at, {"forward": (n + 1) * MS}, epoch=n // 3)
    run.process(40 * S)
    for at, peak in ((S, 1e9), (30 * S, 3e9)):
        run.row("readings", rank=0, restart=0, name=names.RUN_MEMORY_PEAK.name, labels="{}",
                time_ns=START + at, value=peak)  # fmt: skip
    return run


def test_each_epoch(tmp_path):
    """Steps, their extremes and spread, the time of all, and the peak by its end."""
    first, second = summary_of(two_epochs(tmp_path)).epochs

    assert (first.epoch, first.steps, first.steps_ns) == (0, 3, 6 * MS)
    assert (first.min_ns, first.max_ns, first.mean_ns) == (MS, 3 * MS, 2 * MS)
    assert first.deviation_ns == statistics.pstdev([MS, 2 * MS, 3 * MS])
    assert first.total_ns == 23 * MS
    assert (first.memory_peak_bytes, first.cuda_peak_bytes) == (1e9, None)
    assert (second.epoch, second.steps_ns, second.memory_peak_bytes) == (1, 15 * MS, 1e9)


def test_both_peaks_of_the_device(tmp_path):
    """What was given out and what was reserved for it, of the fullest device, in two columns."""
    run = two_epochs(tmp_path)
    for index, state, peak in ((0, "allocated", 2e9), (1, "allocated", 1e9), (0, "reserved", 4e9)):
        labels = {names.DEVICE_INDEX: str(index), names.CUDA_MEMORY_STATE: state}
        run.row("readings", rank=0, restart=0, name=names.CUDA_MEMORY_PEAK_USAGE.name,
                labels=json.dumps(labels), time_ns=START + S, value=peak)  # fmt: skip
    summary = summary_of(run)
    lines = [" ".join(line.split()) for line in render_summary(summary, epochs=True).splitlines()]

    first, _ = summary.epochs
    assert (first.cuda_peak_bytes, first.cuda_reserved_bytes) == (2e9, 4e9)
    assert "0 3 23.0 ms 2.00 ms 816 µs 1.00 ms 3.00 ms 954 MiB 1.86 GiB 3.73 GiB" in lines


def test_a_reading_after_its_end_is_no_peak_of_an_epoch(tmp_path):
    """Of the process's own account at its end the epoch's span has it; without, it is unknown."""
    run = two_epochs(tmp_path)
    run.step(6, 21 * S, {"forward": MS}, epoch=2)
    for at, peak in ((20 * S, 2e9), (22 * S, 5e9)):
        run.row("readings", rank=0, restart=0, name=names.RUN_MEMORY_PEAK.name, labels="{}",
                time_ns=START + at, value=peak)  # fmt: skip
    said = {names.TRAINING_EPOCH: 0, names.EPOCH_MEMORY_PEAK: 1_500_000_000}
    run.span(None, "train.epoch", 0, S, category=names.EPOCH, attributes=json.dumps(said))

    peaks = [epoch.memory_peak_bytes for epoch in summary_of(run).epochs]
    assert peaks == [1.5e9, None, 5e9]


def test_table(tmp_path):
    """A line for each, where it is asked for; what is not known is a dash."""
    summary = summary_of(two_epochs(tmp_path))
    lines = [" ".join(line.split()) for line in render_summary(summary, epochs=True).splitlines()]

    assert "epoch steps total mean sd min max memory CUDA reserved" in lines
    assert "0 3 23.0 ms 2.00 ms 816 µs 1.00 ms 3.00 ms 954 MiB – –" in lines
    assert "  epoch " not in render_summary(summary)


def test_step_that_was_made_again_counts_once(tmp_path):
    """After a restart it is the last one that counts."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 50 * MS}, epoch=0)
    run.step(0, S, {"forward": 10 * MS}, epoch=0, restart=1)
    run.process(2 * S)

    (epoch,) = summary_of(run).epochs
    assert (epoch.steps, epoch.steps_ns) == (1, 10 * MS)
