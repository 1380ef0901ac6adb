"""Live state of the ranks on this node, read from the ranks' journals."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.live.live_requests import RequestsSeen, look_at_requests
from otel_mlperf.analysis.live.live_store import MAX_STEPS, StepSeen
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.bulletin import read_readings
from otel_mlperf.journal.journal_folder import SHARED_MEMORY, folders_of_run, journals_in, rank_of
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Kind, Word, signed
from otel_mlperf.journal.ring_scan import PayloadParts, rows_of_kind

if TYPE_CHECKING:
    from otel_mlperf.analysis.live.live_readings import Value
    from otel_mlperf.journal.bulletin import RunWarning
    from otel_mlperf.journal.ring_scan import Rows
    from otel_mlperf.store.run_folders import RunFolder

_MAX_ROWS: Final = 1 << 15


class PublishedNow(NamedTuple):
    """Latest readings and warnings that the agent on this node has published."""

    readings: list[Value]
    read_ns: int
    warnings: list[str]
    """Texts of the current warnings."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """Live state of one rank, read from its journal."""

    host: str
    step: int | None
    """Number of the step that started last."""
    phase: str
    section: str
    open_ns: int | None
    steps: list[StepSeen]
    last: dict[str, float]
    requests: list[RequestsSeen] = []


def look(run: RunFolder, now_ns: int) -> dict[int, Looked]:
    """Return the live state of each running rank on this node, by rank.

    Ranks of other users are omitted. ``now_ns`` is the Unix time.
    """
    by_rank: dict[int, Looked] = {}
    for path in journals_in(*_folders(run)):
        try:
            # Read-only: moving the tail, which only the agent may do, would free rows for writes.
            journal = JournalReader(str(path), is_writable=False)
        except JournalError:  # just deleted, or owned by another user
            continue
        try:
            # A forked child has its parent's rank, and would hide the parent's state.
            if journal.is_running and not journal.meta.is_child:
                by_rank[journal.meta.rank] = look_at(journal, now_ns - time.monotonic_ns())
        finally:
            journal.close()
    return dict(sorted(by_rank.items()))


def published(run: RunFolder, now_ns: int) -> PublishedNow | None:
    """Return the readings and warnings that the agent on this node published last.

    Return None if it has published no readings. ``now_ns`` is the Unix time.
    """
    shift_ns = now_ns - time.monotonic_ns()
    for folder in _folders(run):
        news = read_readings(folder)
        if news is None or not news.groups:
            continue
        values: list[Value] = [
            (rank_of(reading.journal), reading.metric, reading.labels, reading.value)
            for group in news.groups.values()
            for reading in group.readings
        ]
        read_ns = max(group.monotonic_ns for group in news.groups.values()) + shift_ns
        return PublishedNow(values, read_ns, [_warned(warning) for warning in news.warnings])
    return None


def _warned(warning: RunWarning) -> str:
    rank = rank_of(warning.journal)
    return warning.summary if rank is None else f"rank {rank}: {warning.summary}"


def _folders(run: RunFolder) -> tuple[str, str]:
    return folders_of_run(run.facts.id, run.path, SHARED_MEMORY)


def look_at(journal: JournalReader, shift_ns: int) -> Looked:
    """Return the live state of one rank; ``shift_ns`` is Unix time minus monotonic time."""
    rows = journal.ring.newest(_MAX_ROWS)
    entries = journal.new_entries()  # after the rows: contains all of their names
    section, open_ns = _innermost(journal, entries)
    phase, steps = _steps(entries, rows, shift_ns)
    number = journal.word(Word.STEP)
    return Looked(
        host=journal.meta.host,
        step=signed(number) if journal.word(Word.STEP_TIME) else None,
        phase=phase,
        section=section,
        open_ns=open_ns,
        steps=steps,
        last=_logged(entries, rows),
        requests=look_at_requests(journal, entries, rows),
    )


def _innermost(journal: JournalReader, entries: dict[int, list[Any]]) -> tuple[str, int | None]:
    """Return the name of the main thread's innermost open section, and its age in ns.

    The main thread is the thread of the oldest open section, which is the run. If no section is
    open, the name is empty and the age None.
    """
    table = journal.open_sections()
    if not len(table):
        return "", None
    main = table[table["track"] == table["track"][np.argmin(table["start"])]]
    inner = main[np.argmax(main["start"])]
    name = _name(entries, int(inner["name"]))
    return name, max(0, time.monotonic_ns() - int(inner["start"]))


def _steps(entries: dict[int, list[Any]], rows: Rows, shift_ns: int) -> tuple[str, list[StepSeen]]:
    """Return a phase and its last steps: training, else the phase of the newest step."""
    sections = rows_of_kind(rows, Kind.SECTION)
    of_step = np.isin(sections["name"], _numbers(entries, names.STEP))
    own = sections[of_step & (sections["span"] == sections["root"])]
    phases = [entries[number][3] for number in own["name"].tolist()]
    phase = names.TRAIN if names.TRAIN in phases else phases[-1] if phases else ""
    own = own[[its_phase == phase for its_phase in phases]][-MAX_STEPS:]
    payloads, begins = PayloadParts(), rows_of_kind(rows, Kind.BEGIN)
    payloads.feed(rows_of_kind(rows, Kind.PAYLOAD))
    numbers = dict(zip(begins["span"].tolist(), begins["end"].tolist(), strict=True))
    waited = _waited(entries, sections, own)
    seen = []
    for row in own:
        span, start, end = (int(row[field]) for field in ("span", "start", "end"))
        if span not in numbers:  # the step's start record was overwritten
            continue
        payload = payloads.ready.get(span) or {}
        seen.append(
            StepSeen(
                number=signed(numbers[span]),
                start_ns=start + shift_ns,
                end_ns=end + shift_ns,
                duration_ns=max(0, end - start - int(payload.get("x") or 0)),
                waited_ns=waited.get(span, 0),
                samples=payload.get("n"),
                tokens=payload.get("t"),
                flops=payload.get("f"),
            )
        )
    return phase, seen


def _waited(entries: dict[int, list[Any]], sections: Rows, steps: Rows) -> dict[int, int]:
    """Return the data wait of each step on the step's own thread in ns, by span id of the step."""
    tracks = dict(zip(steps["span"].tolist(), steps["track"].tolist(), strict=True))
    waits = sections[np.isin(sections["name"], _numbers(entries, names.DATA_LOADING))]
    # A nested wait is already included in the outer one.
    outer = waits[~np.isin(waits["parent"], waits["span"])]
    by_span: dict[int, int] = {}
    for root, track, start, end in outer[["root", "track", "start", "end"]].tolist():
        if tracks.get(root) == track:
            by_span[root] = by_span.get(root, 0) + max(0, end - start)
    return by_span


def _numbers(entries: dict[int, list[Any]], category: str) -> list[int]:
    return [
        number
        for number, content in entries.items()
        if content[0] == "section" and content[2] == category
    ]


def _logged(entries: dict[int, list[Any]], rows: Rows) -> dict[str, float]:
    values = rows_of_kind(rows, Kind.VALUE)
    numbers = values["end"].copy().view(np.float64).tolist()
    last: dict[str, float] = {}
    for entry, value in zip(values["name"].tolist(), numbers, strict=True):
        last[_name(entries, entry)] = value
    return last


def _name(entries: dict[int, list[Any]], number: int) -> str:
    kind, name, *_ = entries.get(number) or ("", names.OTHER)
    return str(name) if kind == "section" else names.OTHER
