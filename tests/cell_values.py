"""Readers of the cells of counters, gauges and histograms in a test's journal."""

from __future__ import annotations

import struct

from otel_mlperf import names
from otel_mlperf.journal.layout import BUCKETS_AT, BUCKETS_IN_CELL, HistogramCell


def number(word):
    """A cell's word as the float that it holds."""
    return struct.unpack("<d", word.to_bytes(8, "little"))[0]


def series(recording, kind):
    """Value by name and labels of the instruments of one kind; cells of a histogram.

    Without the labels that stand for a library's scope.
    """
    found = {}
    for (is_kind, name, *about), cells in recording.cells().items():
        if is_kind == kind:
            labels = tuple(pair for pair in about[1] if pair[0] not in names.SCOPE_FIELDS)
            found[name.removeprefix("ml.user."), labels] = (
                cells if kind == "histogram" else number(cells[0][0])
            )
    return found


def buckets(cells):
    """Count by index of the bucket, of a histogram's cells."""
    found = {}
    for *words, part in cells:
        if part not in (0, HistogramCell.HEAD, HistogramCell.EXEMPLAR):
            first = (part - BUCKETS_AT) * BUCKETS_IN_CELL
            found |= {first + i: n for i, n in enumerate(words[:BUCKETS_IN_CELL]) if n}
    return found


def head(cells):
    """Sum, zeros, least and most of a histogram's cells."""
    ((total, zeros, least, most, *_),) = [cell for cell in cells if cell[-1] == HistogramCell.HEAD]
    return number(total), zeros, number(least), number(most)
