"""Time and memory of functions and lines in profiled sections, and memory growth.

Profiled calls of all ranks and processes are summed by section. Functions of profiler windows with
stacks are summed by name, without the time of PyTorch's operators inside them and without this
package's own functions. Memory growth is the difference between the memory of a process and the
memory at an earlier time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from otel_mlperf.run_files.growth_file import MemoryGrowth, read_growths
from otel_mlperf.run_files.hot_file import HotSpot, Kind, ProfiledCall, read_calls
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.store.run_folders import RunFolder


_WINDOWS: Final = """SELECT count(*), count(DISTINCT rank), sum(end_ns - start_ns)::BIGINT
FROM windows WHERE digest IN (SELECT digest FROM totals WHERE what = 'python')"""
_FUNCTIONS: Final = """SELECT name, arg_max(section, section_ns) AS section,
    sum(count)::BIGINT AS calls, sum(self_ns)::BIGINT AS own_ns, sum(total_ns)::BIGINT AS total_ns
FROM totals WHERE what = 'python' GROUP BY name ORDER BY own_ns DESC, name"""
_WRITTEN: Final = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<name>.+)")
"""Python function as named by PyTorch; names of C functions are in angle brackets instead."""
_OURS: Final = re.compile(r"(.*/)?otel_mlperf/(recorder|journal|integrations|pytorch)/")


class WindowFunctions(NamedTuple):
    """Python functions in the profiler windows of a run, largest first."""

    windows: int
    ranks: int
    duration_ns: int
    """Sum of the durations of the windows that have functions."""
    functions: Sequence[dict[str, Any]]
    """Name, file and line, the section with most of the time, calls and times."""


def read_window_functions(store: Store, section: str | None = None) -> WindowFunctions | None:
    """Return the Python functions of all profiler windows; None if there are no such functions.

    If ``section`` is given, only functions that spent most of their time in it are included.
    """
    ((windows, ranks, duration_ns),) = store.rows(_WINDOWS)
    if not windows:
        return None
    functions = [
        row | _named(row["name"])
        for row in store.records(_FUNCTIONS)
        if section in (None, row["section"]) and not _OURS.match(row["name"])
    ]
    return WindowFunctions(windows, ranks, duration_ns, functions) if functions else None


def _named(name: str) -> dict[str, Any]:
    found = _WRITTEN.fullmatch(name)
    if found is None:
        return {"name": name.strip("<>"), "file": "", "line": 0}
    return found.groupdict() | {"line": int(found["line"])}


HotKind = Literal[Kind, "window"]


class HotSection(msgspec.Struct, frozen=True, kw_only=True):
    """Profile of one section in one phase; kind ``window``: of all profiler windows together."""

    section: str
    """Empty: everything in profiler windows with stacks."""
    category: str
    phase: str
    kind: HotKind
    calls: int
    """Profiled calls of the section, or windows."""
    ranks: int
    duration_ns: int
    """Duration of those calls or windows, including the profiler's cost."""
    kept_bytes: int
    """Bytes allocated and not freed at the end of the calls."""
    peak_bytes: int
    """Peak of allocated bytes in one call."""
    spots: list[HotPart]
    """Functions or lines, largest first."""
    more: int
    """Minimum number of further functions or lines that a process did not store."""
    left_out: dict[str, int]
    """Number of calls without a profile, by reason."""
    passed_over: int
    """Number of calls not profiled because another section was being profiled."""


class HotPart(HotSpot, frozen=True, kw_only=True, omit_defaults=False):
    """One function or line in all profiled calls of a section."""

    share: float
    """Share of the calls' time, or of ``kept_bytes``."""
    within: str = ""
    """For a function in profiler windows: the section with most of its time."""


class HotRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="hot/1"):
    """Profiles of a run: sections, and functions of profiler windows."""

    id: str
    """Id of the run."""
    short_id: str
    sections: list[HotSection]
    """Longest first, windows last; empty: nothing was profiled."""
    growths: list[MemoryGrowth] = []
    """Memory growth between two points, sorted by the later point."""


def find_hot(run: RunFolder, section: str | None = None, rank: int | None = None) -> HotRun:
    """Return the profiles of a run, or only those of one ``section`` or ``rank``."""
    groups: dict[tuple[str, str, Kind], list[ProfiledCall]] = defaultdict(list)
    for call in read_calls(run.path):
        if section in (None, call.section) and rank in (None, call.rank):
            groups[call.section, call.phase, call.kind].append(call)
    sections = [_sum_calls(calls) for calls in groups.values()]
    sections.sort(key=lambda one: (-one.duration_ns, one.section))
    sections += _windows(Store(run.path, rank), section)
    # Memory growth belongs to the process, not to a section.
    growths = [
        growth
        for growth in (read_growths(run.path) if section is None else ())
        if rank in (None, growth.rank)
    ]
    growths.sort(key=lambda one: one.end_ns)
    return HotRun(id=run.facts.id, short_id=run.short_id, sections=sections, growths=growths)


def _sum_calls(calls: Sequence[ProfiledCall]) -> HotSection:
    seen = [call for call in calls if not call.left_out]
    duration, grown = (
        sum(getattr(call, of) for call in seen) for of in ("duration_ns", "kept_bytes")
    )
    return HotSection(
        section=calls[0].section,
        category=calls[0].category,
        phase=calls[0].phase,
        kind=calls[0].kind,
        calls=len(seen),
        ranks=len({call.rank for call in seen}),
        duration_ns=duration,
        kept_bytes=grown,
        peak_bytes=max((call.peak_bytes for call in seen), default=0),
        spots=_spots(seen, grown if calls[0].kind == "memory" else duration),
        more=max((call.more for call in seen), default=0),
        left_out=dict(Counter(call.left_out for call in calls if call.left_out)),
        passed_over=sum(call.passed_over for call in calls),
    )


def _windows(store: Store, section: str | None) -> list[HotSection]:
    found = read_window_functions(store, section)
    if found is None:
        return []
    parts = [
        HotPart(share=of["own_ns"] / found.duration_ns, within=of.pop("section"), **of)
        for of in found.functions
    ]
    return [
        HotSection(
            section="", category="profiler", phase="", kind="window", calls=found.windows,
            ranks=found.ranks, duration_ns=found.duration_ns, kept_bytes=0, peak_bytes=0,
            spots=parts, more=0, left_out={}, passed_over=0,
        )
    ]  # fmt: skip


def _spots(calls: Sequence[ProfiledCall], whole: int) -> list[HotPart]:
    sums: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for spot in (spot for call in calls for spot in call.spots):
        sums[spot.name, spot.file, spot.line].update(
            calls=spot.calls,
            own_ns=spot.own_ns,
            total_ns=spot.total_ns,
            kept_bytes=spot.kept_bytes,
            blocks=spot.blocks,
        )
    parts = [
        HotPart(
            name=name,
            file=file,
            line=line,
            calls=of["calls"],
            own_ns=of["own_ns"],
            total_ns=of["total_ns"],
            kept_bytes=of["kept_bytes"],
            blocks=of["blocks"],
            share=(of["own_ns"] + of["kept_bytes"]) / whole if whole else 0.0,
        )
        for (name, file, line), of in sums.items()
    ]
    return sorted(parts, key=lambda part: -part.share)
