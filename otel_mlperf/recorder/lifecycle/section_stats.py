"""Result types of ``run.stats()``: durations of sections, as numbers and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final

from otel_mlperf.journal.section_sums import Sums, add_durations, quantile_of
from otel_mlperf.quantities import duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.journal.section_sums import PublishedSums


@dataclass(frozen=True, slots=True)
class SectionStats:
    """Durations of the ended calls of one section; unknown values are None."""

    name: str
    count: int
    total_ns: int
    """Sum of the durations."""
    self_ns: int
    """``total_ns`` without the time of child sections on the same thread or task."""
    min_ns: int | None
    max_ns: int | None
    """Minimum and maximum duration; None for aggregated calls since a mark."""
    _calls: tuple[list[PublishedSums], list[int]] | None = field(default=None, repr=False)
    """The agent's sums of earlier calls, and the durations of later ones."""

    @property
    def mean_ns(self) -> float:
        """``total_ns / count``."""
        return self.total_ns / self.count

    @property
    def p95_ns(self) -> float | None:
        """Return the 95th percentile of the durations; None if calls are aggregated.

        The result is exact if all calls are of about the last second. Otherwise it is derived from
        histogram buckets, which are 9 % wide.
        """
        if self._calls is None or self.min_ns is None or self.max_ns is None:
            return None
        told, durations = self._calls
        if not told:
            return sorted(durations)[math.ceil(0.95 * len(durations)) - 1]
        counts: Counter[int] = Counter()
        for of in told:
            counts.update(of.calls_by_bucket())
        at = quantile_of(add_durations(counts, durations), 0.95)
        return min(max(at, self.min_ns), self.max_ns)

    @property
    def variance_ns2(self) -> float | None:
        """Return the population variance of the durations; None if calls are aggregated."""
        if self._calls is None:
            return None
        told, durations = self._calls
        sums = Sums()
        for of in told:
            sums.add(Sums(of.count, of.total_ns, spread=of.spread))
        if durations:
            mean = sum(durations) / len(durations)
            spread = sum([(duration - mean) ** 2 for duration in durations])
            sums.add(Sums(len(durations), sum(durations), spread=spread))
        return sums.spread / sums.count

    @property
    def deviation_ns(self) -> float | None:
        """Return the population standard deviation; None if calls are aggregated."""
        variance = self.variance_ns2
        return None if variance is None else math.sqrt(variance)


def both(one: SectionStats, other: SectionStats) -> SectionStats:
    """Merge the statistics of two sections that share a name."""
    least = most = calls = None
    if one.min_ns is not None and other.min_ns is not None:
        least = min(one.min_ns, other.min_ns)
    if one.max_ns is not None and other.max_ns is not None:
        most = max(one.max_ns, other.max_ns)
    if one._calls is not None and other._calls is not None:
        calls = one._calls[0] + other._calls[0], one._calls[1] + other._calls[1]
    return SectionStats(
        one.name,
        one.count + other.count,
        one.total_ns + other.total_ns,
        one.self_ns + other.self_ns,
        least,
        most,
        calls,
    )


class Stats(Mapping[str, SectionStats]):
    """Statistics of this process's ended sections, by name, the largest total first.

    Example: ``stats["forward"].mean_ns``. It is printed as a table, also in a notebook.
    """

    __slots__ = ("_sections", "counted", "elapsed_ns", "missing", "run", "since")

    def __init__(
        self,
        sections: dict[str, SectionStats],
        *,
        run: str = "",
        since: str = "start",
        elapsed_ns: int = 0,
        counted: dict[str, float] | None = None,
        missing: tuple[str, ...] = (),
    ) -> None:
        self._sections = sections
        self.run = run
        """Name of the run."""
        self.since = since
        """Start of the period: ``start``, ``epoch``, ``last`` or ``mark``."""
        self.elapsed_ns = elapsed_ns
        """Length of the period, which ends at the query or at the end of the run."""
        self.counted = counted or {}
        """Growth of the program's counters in the period over all label sets, by name."""
        self.missing = missing
        """Descriptions of data that is not included, with reasons."""

    @property
    def complete(self) -> bool:
        """Whether all ended sections are included."""
        return not self.missing

    def __getitem__(self, name: str) -> SectionStats:
        return self._sections[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)

    def __str__(self) -> str:
        return render_text(self)

    def __repr__(self) -> str:
        about = "" if self.complete else ", not complete"
        return f"<Stats of {len(self)} sections since {self.since}{about}>"

    def _repr_html_(self) -> str:
        return render_html(self)


_HEAD: Final = ("calls", "total", "self", "share", "mean", "sd", "min", "p95", "max")
_UNKNOWN: Final = "–"
_WIDEST: Final = 40
_CELL: Final = "text-align:right;padding:0 .8em"


def render_text(stats: Stats) -> str:
    """Return a text table with a total row, and lines for counters and missing data."""
    rows = _rows(stats)
    names = [name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…" for name, _ in rows]
    first = max(map(len, names))
    widths = [max(len(row[i]) for _, row in rows) for i in range(len(_HEAD))]
    lines = [
        name.ljust(first)
        + "".join(f"  {figure:>{width}}" for figure, width in zip(row, widths, strict=True))
        for name, (_, row) in zip(names, rows, strict=True)
    ]
    rule = "─" * max(map(len, lines))
    return "\n".join([_title(stats), *lines[:-1], rule, lines[-1], *_notes(stats)])


def render_html(stats: Stats) -> str:
    """Return the table as HTML without scripts and links; text of the program is escaped."""
    rows = [
        f"<tr><td style='text-align:left'>{escape(name)}</td>"
        + "".join(f"<td style='{_CELL}'>{escape(figure)}</td>" for figure in row)
        + "</tr>"
        for name, row in _rows(stats)
    ]
    lines = "".join(f"<div>{escape(line)}</div>" for line in _notes(stats))
    title = f"<b>{escape(_title(stats))}</b>"
    return f"<div style='font-family:monospace'>{title}<table>{''.join(rows)}</table>{lines}</div>"


def _title(stats: Stats) -> str:
    since = {"last": "the last call", "mark": "the mark"}.get(stats.since, stats.since)
    return f"{stats.run}: {duration(stats.elapsed_ns)} since {since}"


def _rows(stats: Stats) -> list[tuple[str, tuple[str, ...]]]:
    """Return names and cells of the head row, the sections and the total row.

    Only self times are summed, because a section's total time includes its children.
    """
    calls = sum(one.count for one in stats.values())
    own = sum(one.self_ns for one in stats.values())
    total = (f"{calls:,}", "", duration(own), _share(own, stats), *([""] * 5))
    return [
        ("section", _HEAD),
        *((one.name, _figures(one, stats)) for one in stats.values()),
        ("total", total),
    ]


def _figures(one: SectionStats, stats: Stats) -> tuple[str, ...]:
    return (
        f"{one.count:,}",
        duration(one.total_ns),
        duration(one.self_ns),
        _share(one.self_ns, stats),
        duration(one.mean_ns),
        *map(_known, (one.deviation_ns, one.min_ns, one.p95_ns, one.max_ns)),
    )


def _share(ns: float, stats: Stats) -> str:
    return percent(ns / stats.elapsed_ns) if stats.elapsed_ns else _UNKNOWN


def _known(ns: float | None) -> str:
    return _UNKNOWN if ns is None else duration(ns)


def _notes(stats: Stats) -> list[str]:
    counted = " · ".join(f"{name} {count:,.15g}" for name, count in stats.counted.items())
    missing = [f"missing: {what}" for what in stats.missing]
    return [f"counted: {counted}", *missing] if counted else missing
