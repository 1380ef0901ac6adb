"""Sums of a journal's sections, which the agent publishes to the process that writes the journal.

The sums are stored in the file ``<journal>.sums`` next to the journal, which is replaced as a
whole. This file contains count, sum, minimum, maximum, spread and distribution of the calls of each
name, up to a slot. The process adds later rows from its own ring. A query therefore costs about a
millisecond, and recording a section costs nothing extra.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import msgspec

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.journal.layout import HISTOGRAM_SCALE, START
from otel_mlperf.value_sums import ValueSums
from otel_mlperf.whole_file import open_without_links, write_whole

_MAX_OPEN: Final = 4096
MOST_PAUSES: Final = 64
"""Maximum number of garbage collections per track that are stored until their enclosing section
ends. Earlier ones are dropped, and then count in the self time of that section."""

NewCalls = tuple[int, int, int, int, list[int]]
"""New calls of one name: total, self time, minimum, maximum, and all durations, in ns."""


class Sums(msgspec.Struct, array_like=True):
    """Sums of the durations of one name's calls."""

    count: int = 0
    total_ns: int = 0
    self_ns: int = 0
    """Total duration minus the duration of sections directly inside on the same track."""
    least_ns: int = 0
    most_ns: int = 0
    spread: float = 0.0
    """Sum of the squared distances from the mean, in ns²."""
    counts: dict[int, int] = {}
    """Number of calls by bucket: bucket i counts durations above 2**(i/8) up to 2**((i+1)/8) ns."""

    def add(self, other: Sums) -> None:
        """Add the sums of further calls of the same name."""
        both = self._values().merged(other._values())
        self.count, self.total_ns, self.spread = both.count, both.total, both.spread
        self.least_ns, self.most_ns = both.least, both.most
        self.self_ns += other.self_ns
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def _values(self) -> ValueSums:
        return ValueSums(self.count, self.total_ns, self.least_ns, self.most_ns, self.spread)


class MarkSums(msgspec.Struct, array_like=True):
    """Sums of the calls after the mark at ``slot``, by entry number of the name."""

    slot: int = 0
    sections: dict[int, Sums] = {}


class Inside(msgspec.Struct, array_like=True):
    """Time that open sections have spent so far in sections directly inside."""

    by_section: dict[int, dict[int, int]] = {}
    """Time in ns, by id of the open section, then by track of the inner sections."""
    links: dict[int, int] = {}
    """Enclosing section of each open step, because the step's own row does not contain it."""
    pauses: dict[int, list[tuple[int, int]]] = {}
    """Start and end of garbage collections whose enclosing section is still open, by track."""

    def copy(self) -> Inside:
        """Return an independent copy."""
        return Inside(
            {section: dict(of) for section, of in self.by_section.items()},
            dict(self.links),
            {track: [*pauses] for track, pauses in self.pauses.items()},
        )

    def begin(self, root: int, around: int) -> None:
        """Store the id ``around`` of the section that encloses the step ``root``."""
        self.links[root] = around
        _forget(self.links)

    def around(self, section: int, parent: int) -> int:
        """Return the id of the section around ``section``; 0 if there is none.

        ``parent`` is the parent id in the row of ``section``, which is 0 for a step.
        """
        return parent or self.links.pop(section, 0)

    def add(self, section: int, track: int, took_ns: int) -> None:
        """Add the duration of a finished section that was directly inside ``section``."""
        of = self.by_section.pop(section, None) or {}
        of[track] = of.get(track, 0) + took_ns
        # Move the entry to the end, so that the first entry is the least recently updated one.
        self.by_section[section] = of
        _forget(self.by_section)

    def take(self, section: int, track: int) -> int:
        """Return the time in ns that a finished section spent in children on the same track."""
        return self.by_section.pop(section, {}).get(track, 0)

    def pause(self, track: int, start: int, end: int) -> None:
        """Add a garbage collection on ``track``."""
        pauses = self.pauses.setdefault(track, [])
        pauses.append((start, end))
        if len(pauses) > MOST_PAUSES:
            del pauses[0]

    def held(self, track: int, since: int, until: int) -> int:
        """Remove the collections inside a section that has ended; return their duration in ns.

        ``since`` and ``until`` are the section's start and end. The innermost section around a
        collection ends first, so the collection is counted there.
        """
        pauses = self.pauses.get(track)
        if not pauses:
            return 0
        mine = [(start, end) for start, end in pauses if start >= since and end <= until]
        self.pauses[track] = [pause for pause in pauses if pause not in mine]
        return sum(end - start for start, end in mine)

    def move(self, section: int, around: int) -> None:
        """Move the time inside a cancelled section to its enclosing section ``around``."""
        for track, took_ns in self.by_section.pop(section, {}).items():
            self.add(around, track, took_ns)


def _forget(table: dict[int, Any]) -> None:
    """Evict the oldest entry of a full table: sections that never end must not accumulate."""
    if len(table) > _MAX_OPEN:
        del table[next(iter(table))]


class RunningSums(msgspec.Struct, array_like=True):
    """Sums of all sections of one journal, since each mark."""

    inside: Inside = msgspec.field(default_factory=Inside)
    marks: dict[int, MarkSums] = msgspec.field(default_factory=lambda: {START: MarkSums()})


class PublishedSums(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Published sums of one name. The distribution is decoded on demand."""

    count: int
    total_ns: int
    self_ns: int
    least_ns: int
    most_ns: int
    spread: float
    counts: msgspec.Raw

    def calls_by_bucket(self) -> dict[int, int]:
        """Return the number of calls by bucket (see ``Sums.counts``)."""
        return _decode_counts(self.counts)


class PublishedMark(msgspec.Struct, array_like=True, frozen=True):
    """Published sums of the calls since one mark, by entry number of the name."""

    slot: int
    sections: dict[int, PublishedSums]


class Published(msgspec.Struct, array_like=True):
    """Content of a sums file."""

    next: int
    """First slot that the sums do not include."""
    holes: list[int]
    """Earlier slots that the sums do not include."""
    inside: Inside
    marks: dict[int, msgspec.Raw]
    """Encoded MarkSums by mark number, which ``read_mark`` decodes on demand."""
    read: dict[int, PublishedMark] = {}
    """Cache of decoded marks, by mark number."""


_decode = msgspec.msgpack.Decoder(Published).decode
_decode_mark = msgspec.msgpack.Decoder(PublishedMark).decode
_decode_counts = msgspec.msgpack.Decoder(dict[int, int]).decode


def add_durations(counts: dict[int, int], durations_ns: list[int]) -> dict[int, int]:
    """Return ``counts`` (calls by bucket) with a non-empty batch of durations added."""
    merged = Counter(counts)
    merged.update(
        math.ceil(math.log2(max(duration, 1)) * (1 << HISTOGRAM_SCALE)) - 1
        for duration in durations_ns
    )
    return merged


def quantile_of(counts: dict[int, int], share: float) -> float:
    """Return the quantile ``share`` (0 to 1) of the durations in ``counts``, in ns.

    There must be at least one call. Within a bucket, durations are assumed to be uniformly
    distributed on a logarithmic scale.
    """
    rank, value = share * sum(counts.values()), 0.0
    for bucket in sorted(counts):
        if rank <= counts[bucket]:
            return math.exp2((bucket + rank / counts[bucket]) / (1 << HISTOGRAM_SCALE))
        rank -= counts[bucket]
        value = math.exp2((bucket + 1) / (1 << HISTOGRAM_SCALE))
    return value


def sums_path(journal: str) -> str:
    """Return the path of a journal's sums file."""
    return f"{journal}.sums"


def write_sums(journal: str, next_: int, holes: list[int], sums: RunningSums) -> None:
    """Write the sums file. ``sums`` include all slots before ``next_`` except ``holes``.

    Raises:
        OSError: the folder was removed, or there is no room.
    """
    content = msgspec.msgpack.encode([next_, holes, sums.inside, sums.marks])
    write_whole(sums_path(journal), content)


def read_sums(journal: str) -> Published | None:
    """Return the content of the sums file; None if it is missing or from another version."""
    try:
        with open(sums_path(journal), "rb", opener=open_without_links) as file:
            return _decode(file.read())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise_foreign(error)
        return None


def read_mark(published: Published, number: int) -> PublishedMark | None:
    """Return the sums since mark ``number``; None if the file does not contain the mark."""
    content = published.marks.get(number)
    if content is not None and number not in published.read:
        published.read[number] = _decode_mark(content)
    return published.read.get(number)


def drop_sums(journal: str) -> None:
    """Remove a journal's sums file, if it exists."""
    for path in (sums_path(journal), f"{sums_path(journal)}.new"):
        with suppress(OSError):
            os.unlink(path)
