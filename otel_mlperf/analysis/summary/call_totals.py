"""Durations of each section's calls: mean, standard deviation and quantiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.analysis.summary.call_shapes import CallFigures
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.otlp.quantiles import error_ratio, merged, quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.store.table_reader import Store

_COUNTS: Final = msgspec.json.Decoder(list[int])
_PLACE: Final = ("name", "category", "phase", "path", "in_step", "beside", "bound_s")


class _Part(NamedTuple):
    """One row of table ``durations``, without its place."""

    calls: int
    errors: int
    within: int
    sum_ns: int
    min_ns: int
    max_ns: int
    spread: float
    scale: int
    zeros: int
    first_bucket: int
    counts: str

    def buckets(self) -> ExponentialBuckets:
        """Return its histogram, in seconds."""
        return ExponentialBuckets(
            count=self.calls,
            sum=self.sum_ns / 1e9,
            min=self.min_ns / 1e9,
            max=self.max_ns / 1e9,
            scale=self.scale,
            zero_count=self.zeros,
            offset=self.first_bucket,
            counts=_COUNTS.decode(self.counts),
        )


def read_calls(store: Store) -> list[CallFigures]:
    """Return the figures of each section and place: requests first, then by total time."""
    return _read(store, "category <> $category", names.RUN, "0").get(0, [])


def read_call_buckets(store: Store) -> list[tuple[CallFigures, ExponentialBuckets]]:
    """Return figures and histogram, in seconds, of each section and place, most time first."""
    found = _parts_by_place(store, "category <> $category", names.RUN, "0").get(0, {})
    calls = [(_figures_at(place, of), merged(one.buckets() for one in of))
             for place, of in found.items()]  # fmt: skip
    return sorted(calls, key=lambda call: -call[0].sum_ns)


def read_calls_by_name(store: Store, left_out: Sequence[str]) -> dict[str, CallFigures]:
    """Return the calls outside steps, merged over all places and bounds of a name.

    Args:
        store: of the run.
        left_out: excluded categories.
    """
    columns = ", ".join(("name", "category", "count", *_Part._fields[1:]))
    found: dict[str, tuple[str, list[_Part]]] = {}
    for name, category, *row in store.rows(
        f"SELECT {columns} FROM durations WHERE NOT in_step "
        "AND NOT list_contains($left_out, category)",
        left_out=left_out,
    ):
        found.setdefault(name, (category, []))[1].append(_Part(*row))
    anywhere: dict[str, Any] = {"phase": "", "path": "", "in_step": False, "beside": False}
    calls = {
        name: _figures(anywhere | {"name": name, "category": category, "bound_s": None}, parts)
        for name, (category, parts) in found.items()
    }
    return dict(sorted(calls.items(), key=lambda item: -item[1].sum_ns))


def read_requests_by_period(
    store: Store, origin_ns: int, every_ns: int
) -> dict[int | None, list[CallFigures]]:
    """Return the figures of requests by the period, from ``origin_ns``, in which they ended.

    The key None contains parts written by an earlier version. Periods are whole minutes.
    """
    period = f"(minute_ns - {origin_ns:d}) // {every_ns:d}"
    return _read(store, "category = $category", names.REQUEST, period)


def _read(
    store: Store, where: str, category: str, period: str
) -> dict[int | None, list[CallFigures]]:
    found = _parts_by_place(store, where, category, period)
    return {of_period: _sorted(of_place) for of_period, of_place in found.items()}


def _parts_by_place(
    store: Store, where: str, category: str, period: str
) -> dict[int | None, dict[tuple[Any, ...], list[_Part]]]:
    columns = ", ".join((*_PLACE, "count", *_Part._fields[1:]))
    found: dict[int | None, dict[tuple[Any, ...], list[_Part]]] = {}
    for of_period, *row in store.rows(
        f"SELECT {period}, {columns} FROM durations WHERE {where}", category=category
    ):
        place = dict(zip(_PLACE, row, strict=False))
        if place["category"] == names.REQUEST and not place["in_step"]:
            place["path"] = ""  # requests of one name are merged, whatever encloses them
        place["beside"] &= place["in_step"]  # outside steps threads are not distinguished
        of_place = found.setdefault(of_period, {})
        of_place.setdefault(tuple(place.values()), []).append(_Part(*row[len(_PLACE) :]))
    return found


def _sorted(found: dict[tuple[Any, ...], list[_Part]]) -> list[CallFigures]:
    calls = [_figures_at(place, of) for place, of in found.items()]
    return sorted(calls, key=lambda one: (one.category != names.REQUEST, -one.sum_ns))


def _figures_at(place: tuple[Any, ...], parts: list[_Part]) -> CallFigures:
    return _figures(dict(zip(_PLACE, place, strict=True)), parts)


def _figures(place: dict[str, Any], parts: list[_Part]) -> CallFigures:
    """Merge all parts: each part has its spread about its own mean."""
    count, total = sum(part.calls for part in parts), sum(part.sum_ns for part in parts)
    mean = total / count
    spread = sum(
        part.spread + part.calls * (part.sum_ns / part.calls - mean) ** 2 for part in parts
    )
    buckets = merged(part.buckets() for part in parts)
    within = None if place["bound_s"] is None else sum(part.within for part in parts)
    place["name"] = shown(place["name"])
    return CallFigures(
        **place,
        count=count,
        errors=sum(part.errors for part in parts),
        sum_ns=total,
        mean_ns=mean,
        deviation_ns=math.sqrt(spread / count),
        min_ns=min(part.min_ns for part in parts),
        p50_ns=_quantile_ns(buckets, 0.5),
        p95_ns=_quantile_ns(buckets, 0.95),
        p99_ns=_quantile_ns(buckets, 0.99),
        max_ns=max(part.max_ns for part in parts),
        error_ratio=error_ratio(buckets),
        within=within,
        within_share=None if within is None else within / count,
    )


def _quantile_ns(buckets: ExponentialBuckets, share: float) -> float:
    return (quantile(buckets, share) or 0.0) * 1e9
