"""Durations and resource use of the calls of each section, from all ranks and flushes."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.analysis.summary.call_figures import CallFigures, SectionUse, UseFigures
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.otlp.quantiles import error_ratio, merged, quantile
from otel_mlperf.value_sums import ValueSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.store.table_reader import Store

_COUNTS: Final = msgspec.json.Decoder(list[int])
_PLACE: Final = ("name", "category", "phase", "path", "in_step", "beside")
_TIMED_PLACE: Final = (*_PLACE, "bound_s")
_SUMS: Final = ("count", "total", "least", "most", "spread")
_TIMES: Final = (
    *("count", "sum_ns", "min_ns", "max_ns", "spread"),
    *("errors", "within", "scale", "zeros", "first_bucket", "counts"),
)


class _Part(NamedTuple):
    """One row of table ``durations``, without its place."""

    sums: ValueSums
    errors: int
    within: int
    scale: int
    zeros: int
    first_bucket: int
    counts: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> _Part:
        """Return the part in the columns ``_TIMES``."""
        values = len(ValueSums.__struct_fields__)
        return cls(ValueSums(*row[:values]), *row[values:])

    def buckets(self) -> ExponentialBuckets:
        """Return its histogram, in seconds."""
        return ExponentialBuckets(
            count=self.sums.count,
            sum=self.sums.total / 1e9,
            min=self.sums.least / 1e9,
            max=self.sums.most / 1e9,
            scale=self.scale,
            zero_count=self.zeros,
            offset=self.first_bucket,
            counts=_COUNTS.decode(self.counts),
        )


def _add_up(sums: Iterable[ValueSums]) -> ValueSums:
    return reduce(ValueSums.merged, sums)


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
    columns = ", ".join(("name", "category", *_TIMES))
    found: dict[str, tuple[str, list[_Part]]] = {}
    for name, category, *row in store.rows(
        f"SELECT {columns} FROM durations WHERE NOT in_step "
        "AND NOT list_contains($left_out, category)",
        left_out=left_out,
    ):
        found.setdefault(name, (category, []))[1].append(_Part.of(row))
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
    columns = ", ".join((*_TIMED_PLACE, *_TIMES))
    found: dict[int | None, dict[tuple[Any, ...], list[_Part]]] = {}
    for of_period, *row in store.rows(
        f"SELECT {period}, {columns} FROM durations WHERE {where}", category=category
    ):
        place = dict(zip(_TIMED_PLACE, row, strict=False))
        if place["category"] == names.REQUEST and not place["in_step"]:
            place["path"] = ""  # requests of one name are merged, whatever encloses them
        place["beside"] &= place["in_step"]  # outside steps threads are not distinguished
        of_place = found.setdefault(of_period, {})
        of_place.setdefault(tuple(place.values()), []).append(_Part.of(row[len(_TIMED_PLACE) :]))
    return found


def _sorted(found: dict[tuple[Any, ...], list[_Part]]) -> list[CallFigures]:
    calls = [_figures_at(place, of) for place, of in found.items()]
    return sorted(calls, key=lambda one: (one.category != names.REQUEST, -one.sum_ns))


def _figures_at(place: tuple[Any, ...], parts: list[_Part]) -> CallFigures:
    return _figures(dict(zip(_TIMED_PLACE, place, strict=True)), parts)


def _figures(place: dict[str, Any], parts: list[_Part]) -> CallFigures:
    sums = _add_up(part.sums for part in parts)
    buckets = merged(part.buckets() for part in parts)
    within = None if place["bound_s"] is None else sum(part.within for part in parts)
    place["name"] = shown(place["name"])
    return CallFigures(
        **place,
        count=sums.count,
        errors=sum(part.errors for part in parts),
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


def _quantile_ns(buckets: ExponentialBuckets, share: float) -> float:
    return (quantile(buckets, share) or 0.0) * 1e9


def read_section_uses(store: Store) -> list[SectionUse]:
    """Return the use of each measured section and place; most CPU time first."""
    columns = ", ".join((*_PLACE, "measure", *_SUMS))
    found: dict[tuple[Any, ...], dict[str, list[ValueSums]]] = {}
    for row in store.rows(f"SELECT {columns} FROM resources"):
        place, (measure, *sums) = row[: len(_PLACE)], row[len(_PLACE) :]
        found.setdefault(place, {}).setdefault(measure, []).append(ValueSums(*sums))
    uses = [_use(dict(zip(_PLACE, place, strict=True)), of) for place, of in found.items()]
    return sorted(uses, key=_cpu_ns, reverse=True)


def _cpu_ns(use: SectionUse) -> int:
    cpu = use.figures.get(names.CPU_NS.key)
    return cpu.total if cpu else -1


def _use(place: dict[str, Any], parts: dict[str, list[ValueSums]]) -> SectionUse:
    figures = {
        measure.key: _use_figures(_add_up(parts[measure.key]))
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
