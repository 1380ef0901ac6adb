"""Totals of the events of one profiled step, as rows of the tables of windows.

They are computed from the rows of single events in the same way as the tables: quantiles by nearest
rank, an operator's own time without the operators nested in it on its thread.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.profiles.profiled_events import find_events
from otel_mlperf.intervals import CoveredTime, nearest_rank
from otel_mlperf.store.window_facts import (
    ANNOTATION,
    CAPTURED,
    KERNEL,
    ON_DEVICE,
    ON_HOST,
    OPERATOR,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_mlperf.analysis.profiles.kernel_rows import Rows
    from otel_mlperf.analysis.profiles.profiled_events import ProfiledEvent
    from otel_mlperf.analysis.profiles.profiled_steps import ProfiledStep, StepEvents

_COMMUNICATION: Final = "communication"
_COMPUTE: Final = "compute"
_OTHER: Final = "other"


class ProfiledStepRows(NamedTuple):
    """A step's rows of the tables, and the busy times of devices."""

    rows: dict[str, Rows]
    busy_ns: int | None
    communication_ns: int | None
    exposed_communication_ns: int | None


def count_step(
    tables: Mapping[str, Rows], chosen: Sequence[ProfiledStep], recorded: StepEvents
) -> ProfiledStepRows:
    """Compute a step's rows; ``tables`` of the whole windows identify each name."""
    known = {(row["category"], row["name"]): (row["what"], row["kind"]) for row in tables["totals"]}
    events = find_events(recorded, known, chosen[0].name)
    work = [event for event in events if event.what == KERNEL]
    digests = {step.rank: step.digest for step in chosen}
    rows = {
        "totals": [
            *_by_name(events, digests),
            *_in_no_operator(events, work, digests),
            *_by_place(events, work, chosen[0], digests),
        ],
        "streams": _streams(work, recorded.lengths_ns),
        "copies": _copies(work, tables["copies"]),
    }
    rows["totals"] += _by_stream(work, digests)
    if not work:
        return ProfiledStepRows(rows, None, None, None)
    talk = _busy(event for event in work if event.kind == _COMMUNICATION)
    compute = _busy(event for event in work if event.kind == _COMPUTE)
    both = _busy(event for event in work if event.kind in (_COMMUNICATION, _COMPUTE))
    # The union minus the compute time is exposed communication.
    return ProfiledStepRows(rows, _busy(work), talk, both - compute)


def _by_name(events: Iterable[ProfiledEvent], digests: Mapping[int, str]) -> Rows:
    groups: dict[tuple[Any, ...], list[ProfiledEvent]] = defaultdict(list)
    for event in events:
        if event.what in (KERNEL, OPERATOR, ANNOTATION):
            groups[event.rank, event.what, event.category, event.name].append(event)
        if event.what == ANNOTATION and event.is_inside:
            groups[event.rank, OPERATOR, ANNOTATION, event.name].append(event)
    totals = []
    for (rank, what, category, name), part in groups.items():
        section, spent = _main_section(part)
        more = {
            "digest": digests.get(rank, ""),
            "kind": part[0].kind,
            "section": section,
            "section_ns": spent,
            "device_ns": sum(event.device_ns for event in part),
        }
        totals.append(_total(rank, what, category, name, part) | more)
    return totals


def _in_no_operator(
    events: Iterable[ProfiledEvent], work: Iterable[ProfiledEvent], digests: Mapping[int, str]
) -> Rows:
    """Return device work outside operators, by the operator of its graph's capture, or its call."""
    # Keyed by its number, and by its id, which work names if its own number differs.
    calls: dict[tuple[int, int | str], ProfiledEvent] = {}
    for event in events:
        number = event.more.get(names.CORRELATION_ID)
        if not event.more.get(names.ASYNCHRONOUS):
            calls[event.rank, event.span] = event
            if number:
                calls[event.rank, number] = event
    groups: dict[tuple[int, str, str], list[tuple[ProfiledEvent, ProfiledEvent]]]
    groups = defaultdict(list)
    for event in work:
        if operator := event.more.get(names.CAPTURED_OPERATOR):
            groups[event.rank, CAPTURED, operator].append((event, event))
        elif not event.is_inside:
            key = event.more.get(names.LAUNCH) or event.more.get(names.CORRELATION_ID, 0)
            call = calls.get((event.rank, key))
            groups[event.rank, ON_DEVICE, call.name if call else ""].append((event, call or event))
    totals = []
    for (rank, category, name), part in groups.items():
        launched = [event for event, _ in part]
        section, spent = _main_section(launched)
        # If the call is unknown, the work itself is counted.
        counted = list({id(call): call for _, call in part}.values())
        totals.append(
            _total(rank, OPERATOR, category, name, counted)
            | {"digest": digests.get(rank, ""), "section": section, "section_ns": spent}
            | {"device_ns": sum(event.duration_ns for event in launched)}
            | ({} if name and category == ON_DEVICE else {"self_ns": 0})
        )
    return totals


def _main_section(part: Iterable[ProfiledEvent]) -> tuple[str, int]:
    """Return the section with most of their time, and that time."""
    spent: dict[str, int] = defaultdict(int)
    for event in part:
        if event.section:
            spent[event.section] += event.duration_ns
    return min(spent.items(), key=lambda item: (-item[1], item[0]), default=("", 0))


def _by_place(
    events: Iterable[ProfiledEvent],
    work: Iterable[ProfiledEvent],
    step: ProfiledStep,
    digests: Mapping[int, str],
) -> Rows:
    # A nested operator is already included in the outer operator's time.
    outermost = [event for event in events if event.what == OPERATOR and not event.is_inside]
    totals = []
    for category, part in ((ON_DEVICE, work), (ON_HOST, outermost)):
        groups: dict[tuple[int, str, str], list[ProfiledEvent]] = defaultdict(list)
        for event in part:
            groups[event.rank, "step", step.name].append(event)
            groups[event.rank, "phase", step.phase].append(event)
            groups[event.rank, "section", event.section].append(event)
        totals += [
            _total(rank, what, category, name, mine) | {"digest": digests.get(rank, "")}
            for (rank, what, name), mine in groups.items()
        ]
    return totals


def _total(
    rank: int, what: str, category: str, name: str, part: Sequence[ProfiledEvent]
) -> dict[str, Any]:
    times = sorted(event.duration_ns for event in part)
    return {
        "rank": rank,
        "what": what,
        "category": category,
        "name": name,
        "device": None,
        "stream": None,
        "kind": "",
        "section": "",
        "section_ns": 0,
        "count": len(part),
        "total_ns": sum(times),
        "self_ns": sum(event.own_ns for event in part),
        "device_ns": 0,
        "min_ns": times[0],
        "max_ns": times[-1],
        "p50_ns": times[nearest_rank(len(times), 50)],
        "p95_ns": times[nearest_rank(len(times), 95)],
    }


def _by_stream(work: Iterable[ProfiledEvent], digests: Mapping[int, str]) -> Rows:
    totals = []
    for (rank, device, stream), part in _of_streams(work).items():
        name = f"device {device} stream {stream}"
        own = {"device": device, "stream": stream, "digest": digests.get(rank, "")}
        totals.append(_total(rank, "stream", ON_DEVICE, name, part) | own)
    return totals


def _streams(work: Iterable[ProfiledEvent], lengths_ns: Mapping[int, int]) -> Rows:
    return [
        {
            "rank": rank,
            "device": device,
            "stream": stream,
            "busy_ns": _union(part),
            "window_ns": lengths_ns.get(rank, 0),
        }
        for (rank, device, stream), part in _of_streams(work).items()
    ]


def _of_streams(work: Iterable[ProfiledEvent]) -> dict[tuple[int, int, int], list[ProfiledEvent]]:
    """Group work by rank, device and stream; work without these is excluded."""
    streams: dict[tuple[int, int, int], list[ProfiledEvent]] = defaultdict(list)
    for event in work:
        device, stream = (event.more.get(key) for key in (names.DEVICE_INDEX, names.STREAM_ID))
        if device is not None and stream is not None:
            streams[event.rank, device, stream].append(event)
    return streams


def _copies(work: Iterable[ProfiledEvent], known: Rows) -> Rows:
    about: dict[str, tuple[str, bool]] = {}
    for row in known:
        # If a name occurs in several directions, a single event's direction is unknown.
        same = about.get(row["name"], (row["direction"],))[0] == row["direction"]
        about[row["name"]] = (row["direction"] if same else _OTHER, row["pageable"])
    rows = []
    for event in work:
        if event.name in about:
            direction, pageable = about[event.name]
            size = event.more.get(names.MEMCPY_SIZE)
            rows.append(
                {
                    "direction": direction,
                    "name": event.name,
                    "pageable": pageable,
                    "count": 1,
                    "total_ns": event.duration_ns,
                    "sized_ns": event.duration_ns if size is not None else 0,
                    "bytes": size,
                }
            )
    return rows


def _busy(work: Iterable[ProfiledEvent]) -> int:
    """Return the time in which some of the work was running, summed over devices."""
    # Computed per device: two concurrent devices count as two busy devices.
    of_device: dict[tuple[int, int | None], list[ProfiledEvent]] = defaultdict(list)
    for event in work:
        of_device[event.rank, event.more.get(names.DEVICE_INDEX)].append(event)
    return sum(map(_union, of_device.values()))


def _union(part: Iterable[ProfiledEvent]) -> int:
    in_order = sorted(part, key=lambda event: event.start_ns)
    cover = CoveredTime(in_order[0].start_ns)
    for event in in_order:
        cover.add(event.start_ns, event.end_ns)
    return cover.covered_ns
