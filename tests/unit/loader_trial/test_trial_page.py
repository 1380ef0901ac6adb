"""The page about a loader's trial is readable."""

from __future__ import annotations

from otel_mlperf.loader_trial.loader_settings import (
    Inside,
    LoaderAnswer,
    Setting,
    TransformTime,
    Trial,
)
from otel_mlperf.loader_trial.trial_page import render_loader
from otel_mlperf.terminal_lines import columns


def trial(workers, batch_ns, memory=None):
    return Trial(
        setting=Setting(num_workers=workers), batches=100, batch_ns=batch_ns, noise=0.02,
        samples_per_s=8e9 / batch_ns, first_batch_ns=210_000_000, memory_bytes=memory,
    )  # fmt: skip


def answer(**more):
    inside = Inside(
        batch_ns=80e6, items_ns=76e6, collate_ns=4e6,
        transforms=[TransformTime(name=name, calls=8, batch_ns=ns)
                    for name, ns in (("Crop", 8e6), ("Blur", 64e6))],
    )  # fmt: skip
    known = {
        "target": "train.py:loader", "kind": "DataLoader", "dataset": "Pix", "epoch_batches": 40,
        "batch_samples": 8, "batch_bytes": 1_200_000, "cpus": 2, "now": Setting(num_workers=0),
        "trials": [trial(0, 80e6), trial(2, 40e6, 36_000_000)], "inside": inside,
        "best": Setting(num_workers=2), "gain": 2.0,
        "line": "DataLoader(..., num_workers=2, persistent_workers=True)",
    }  # fmt: skip
    return LoaderAnswer(**known | more)


def shown(**more):
    lines = render_loader(answer(**more)).splitlines()
    assert all(columns(line) <= 80 for line in lines)
    return lines


def test_page():
    """The trials, what a batch is made of, the line to be pasted and what it is worth."""
    lines = shown()

    assert [line.rstrip("▇ ") for line in lines] == [
        "train.py:loader · DataLoader of Pix · 8 samples · 1.20 MB per batch",
        "  setting                   batches/s samples/s per batch     ±   first   memory",
        "  0 workers (current)            12.5       100   80.0 ms   2 %  210 ms        –",
        "  2 workers                      25.0       200   40.0 ms   2 %  210 ms +36.0 MB",
        "  one batch, no workers          mean  share",
        "  __getitem__                 76.0 ms   95 %",
        "    Crop                      8.00 ms   10 %",
        "    Blur                      64.0 ms   80 %",
        "  collate                     4.00 ms    5 %",
        "best      DataLoader(..., num_workers=2, persistent_workers=True)",
        "          25.0 batches/s ± 2 %, 2.0 times as fast as currently,",
        "          persistent workers: their start-up costs 12 % of an epoch",
    ]
    assert [line.count("▇") for line in lines[5:9]] == [19, 2, 16, 1]


def test_as_it_is_now():
    """Where nothing is better that is said, and notes come last."""
    lines = shown(best=Setting(num_workers=0), gain=1.0, line="DataLoader(..., num_workers=0)",
                  notes=["one two"])  # fmt: skip

    assert lines[-3:] == [
        "best      DataLoader(..., num_workers=0)",
        "          12.5 batches/s ± 2 %, current settings",
        "note      one two",
    ]


def test_no_data_loader():
    """What only gives batches is timed as it is."""
    alone = Trial(setting=None, batches=3, batch_ns=1e6, noise=0.0, samples_per_s=None,
                  first_batch_ns=1)  # fmt: skip
    lines = shown(trials=[alone], inside=None, best=None, line=None, now=None, dataset=None)

    assert lines[2].startswith("  current settings ")
    assert lines[-1] == "best      settings cannot be varied: the loader is not a DataLoader"
