"""Durations and resource use of the calls of each section, from all ranks and flushes."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.analysis.summary.call_shapes import CallFigures, SectionUse, UseFigures
from otel_mlperf.otlp.histogram import ExponentialBuckets, error_ratio, merged, quantile
from otel_mlperf.tables.run_tables import DurationRow, ResourceRow
from otel_mlperf.value_sums import ValueSums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_mlperf.store.table_reader import Store

_COUNTS: Final = msgspec.json.Decoder(list[int])
_PLACE: Final = ("name", "category", "phase", "path", "in_step", "beside")
_TIMED_PLACE: Final = (*_PLACE, "bound_s")


def read_calls(store: Store) -> list[CallFigures]:
    """Return call figures by section and place: requests first, then calls with most total time."""
    return _sorted(_rows_by_place(store, "category <> $category", names.RUN).get(0, {}))


def read_call_buckets(store: Store) -> list[tuple[CallFigures, ExponentialBuckets]]:
    """Return figures and duration histogram (in seconds) by section and place, most time first."""
    found = _rows_by_place(store, "category <> $category", names.RUN).get(0, {})
    calls = [(_figures_at(place, of), merged(map(_buckets, of))) for place, of in found.items()]
    return sorted(calls, key=lambda call: -call[0].sum_ns)


def read_calls_by_name(store: Store, left_out: Sequence[str]) -> dict[str, CallFigures]:
    """Return the calls outside steps by section name, merged over places and time limits.

    Sections of the categories ``left_out`` are excluded.
    """
    where = "WHERE NOT in_step AND NOT list_contains($left_out, category)"
    found: dict[str, list[DurationRow]] = {}
    for row in store.read(DurationRow, where, left_out=left_out):
        found.setdefault(row.name, []).append(row)
    anywhere = {"phase": "", "path": "", "in_step": False, "beside": False, "bound_s": None}
    calls = {
        name: _figures({"name": name, "category": rows[0].category, **anywhere}, rows)
        for name, rows in found.items()
    }
    return dict(sorted(calls.items(), key=lambda item: -item[1].sum_ns))


def read_requests_by_period(
    store: Store, origin_ns: int, every_ns: int
) -> dict[int | None, list[CallFigures]]:
    """Return the figures of requests by the number of the period in which they ended.

    Period 0 starts at ``origin_ns``; ``every_ns`` is a multiple of a minute. The key None contains
    requests without a time, from parts written by an earlier version.
    """

    def period(row: DurationRow) -> int | None:
        return None if row.minute_ns is None else (row.minute_ns - origin_ns) // every_ns

    found = _rows_by_place(store, "category = $category", names.REQUEST, period)
    return {of_period: _sorted(of_place) for of_period, of_place in found.items()}


def _rows_by_place(
    store: Store,
    where: str,
    category: str,
    period: Callable[[DurationRow], int | None] = lambda _: 0,
) -> dict[int | None, dict[tuple[Any, ...], list[DurationRow]]]:
    found: dict[int | None, dict[tuple[Any, ...], list[DurationRow]]] = {}
    for row in store.read(DurationRow, f"WHERE {where}", category=category):
        place = {name: getattr(row, name) for name in _TIMED_PLACE}
        if row.category == names.REQUEST and not row.in_step:
            place["path"] = ""  # merges requests of one name in different enclosing sections
        place["beside"] &= row.in_step  # outside steps threads are not distinguished
        of_place = found.setdefault(period(row), {})
        of_place.setdefault(tuple(place.values()), []).append(row)
    return found


def _sorted(found: dict[tuple[Any, ...], list[DurationRow]]) -> list[CallFigures]:
    calls = [_figures_at(place, of) for place, of in found.items()]
    return sorted(calls, key=lambda one: (one.category != names.REQUEST, -one.sum_ns))


def _figures_at(place: tuple[Any, ...], rows: list[DurationRow]) -> CallFigures:
    return _figures(dict(zip(_TIMED_PLACE, place, strict=True)), rows)


def _figures(place: dict[str, Any], rows: list[DurationRow]) -> CallFigures:
    sums = _merge(
        ValueSums(row.count, row.sum_ns, row.min_ns, row.max_ns, row.spread) for row in rows
    )
    buckets = merged(map(_buckets, rows))
    within = None if place["bound_s"] is None else sum(row.within for row in rows)
    place["name"] = shown(place["name"])
    return CallFigures(
        **place,
        count=sums.count,
        errors=sum(row.errors for row in rows),
        sum_ns=sums.total,
        mean_ns=sums.mean,
        deviation_ns=math.sqrt(sums.variance),
        min_ns=sums.least,
        p50_ns=_quantile_ns(buckets, 0.5),
        p95_ns=_quantile_ns(buckets, 0.95),
        p99_ns=_quantile_ns(buckets, 0.99),
        max_ns=sums.most,
        error_ratio=error_ratio(buckets),
        within=within,
        within_share=None if within is None else within / sums.count,
    )


def _merge(sums: Iterable[ValueSums]) -> ValueSums:
    return reduce(ValueSums.merged, sums)


def _buckets(row: DurationRow) -> ExponentialBuckets:
    return ExponentialBuckets(
        count=row.count,
        sum=row.sum_ns / 1e9,
        min=row.min_ns / 1e9,
        max=row.max_ns / 1e9,
        scale=row.scale,
        zero_count=row.zeros,
        offset=row.first_bucket,
        counts=_COUNTS.decode(row.counts),
    )


def _quantile_ns(buckets: ExponentialBuckets, share: float) -> float:
    return (quantile(buckets, share) or 0.0) * 1e9


def read_section_uses(store: Store) -> list[SectionUse]:
    """Return the resource use of each measured section and place, most CPU time first."""
    found: dict[tuple[Any, ...], dict[str, list[ValueSums]]] = {}
    for row in store.read(ResourceRow):
        of_place = found.setdefault(tuple(getattr(row, name) for name in _PLACE), {})
        sums = ValueSums(row.count, row.total, row.least, row.most, row.spread)
        of_place.setdefault(row.measure, []).append(sums)
    uses = [_use(dict(zip(_PLACE, place, strict=True)), of) for place, of in found.items()]
    return sorted(uses, key=_cpu_ns, reverse=True)


def _cpu_ns(use: SectionUse) -> int:
    cpu = use.figures.get(names.CPU_NS.key)
    return cpu.total if cpu else -1


def _use(place: dict[str, Any], parts: dict[str, list[ValueSums]]) -> SectionUse:
    figures = {
        measure.key: _use_figures(_merge(parts[measure.key]))
        for measure in (*names.MEASURES, names.GPU_NS)
        if measure.key in parts
    }
    calls = max(of.count for of in figures.values()) if figures else 0
    place["name"] = shown(place["name"])
    return SectionUse(**place, calls=calls, figures=figures)


def _use_figures(sums: ValueSums) -> UseFigures:
    return UseFigures(
        count=sums.count,
        total=sums.total,
        mean=sums.mean,
        least=sums.least,
        most=sums.most,
        variance=sums.variance,
    )
