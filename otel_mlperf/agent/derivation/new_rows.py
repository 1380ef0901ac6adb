"""New rows of a journal, split into rows that can be derived now and rows that must wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.model.journal_state import JournalState, Root
from otel_mlperf.journal.journal_reader import OPEN_TYPE, as_rows
from otel_mlperf.journal.layout import Flag, Kind, Word, signed
from otel_mlperf.journal.ring_scan import ROW_TYPE, PayloadParts, Rows, rows_of_kind
from otel_mlperf.otlp.span_limits import NO_LIMITS, SpanLimits
from otel_mlperf.redaction import Redactor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.contents import DeviceTimes

INTERRUPTED_FLAG = 1 << 6
"""Flag that the agent sets on sections that were open when their process died."""
_REMEMBERED = 1024
_FIRSTS = 64
_PATIENCE = 20
"""Maximum number of marks at which rows with an unknown root wait for that root."""
_NEVER = 1 << 63
"""End time assumed for open sections."""

Payloads = dict[int, dict[str, Any]]
"""Payloads by the span id of their row."""


class NewRows:
    """New rows of one journal since the last mark, by kind.

    ``steps`` are the section rows of ended steps, ``outside`` the section rows outside steps. Rows
    of open steps are stored in the journal's state until a later mark.
    """

    def __init__(self, journal: JournalState, limits: SpanLimits = NO_LIMITS) -> None:
        self.journal, self._limits = journal, limits
        fresh = np.frombuffer(journal.fresh, ROW_TYPE)
        journal.fresh = b""
        self._payloads = PayloadParts()
        # A payload and its section are published separately, and a poll may read only the payload:
        # then it waits in the state.
        waiting, new = np.frombuffer(journal.payloads, ROW_TYPE), rows_of_kind(fresh, Kind.PAYLOAD)
        self._payloads.feed(waiting)
        known_damaged = self._payloads.damaged
        self._payloads.feed(new)
        journal.damaged += self._payloads.damaged - known_damaged
        self._payload_rows, self._new_payloads = np.concatenate((waiting, new)), new["span"]
        ready = self._payloads.ready.items()
        self.payloads: Payloads = {span: of for span, of in ready if isinstance(of, dict)}
        """Complete payloads by the span id of their row."""
        reported = {span: of["d"] for span, of in self.payloads.items() if "d" in of}
        self.device_times: list[DeviceTimes] = list(reported.values())
        self._of_no_row = np.fromiter(reported, np.uint64)
        self._begin(fresh)
        values = rows_of_kind(fresh, Kind.VALUE)
        self.values = values[_can_have_started(values, journal)]
        journal.damaged += len(values) - len(self.values)
        marks = rows_of_kind(fresh, Kind.MARK)
        self.marks = marks[_can_have_started(marks, journal) & (marks["name"] != 0)]
        sections = rows_of_kind(fresh, Kind.SECTION)
        # Exclude overwritten rows: no table could be written with a time of the year 2500, for
        # example.
        can_be = _can_have_started(sections, journal) & (sections["end"] >= sections["start"])
        can_be &= (sections["end"] < np.uint64(journal.meta.latest_ns)) & (sections["span"] != 0)
        unread, journal.unread = journal.unread + _of_no_kind(fresh), 0
        self.created = len(sections) + unread
        sections = sections[can_be]
        self.damaged = self.created - len(sections)
        # Must run before the next line: otherwise stale entries would be counted as interrupted.
        self._note_stale(sections)
        sections = _place_pauses(journal, self._with_interrupted(sections))
        waiting_rows = np.frombuffer(journal.held, ROW_TYPE)
        self._sections = self._without_cancelled(np.concatenate((waiting_rows, sections)), fresh)
        self.steps: Rows
        self.outside: Rows
        self._split()

    def take_payload(self, span: int) -> dict[str, Any]:
        """Remove the payload of row ``span`` and return it redacted; {} if the row has none."""
        recorded = self.payloads.pop(span, None)
        if recorded is None:
            return {}
        # Redact here, not in the training process, where it would cost training time.
        redactor = Redactor()
        if given := recorded.get("a"):
            recorded["a"] = redactor.values(given)
        if events := recorded.get("v"):
            recorded["v"] = [[at, name, redactor.values(about)] for at, name, about in events]
        if links := recorded.get("l"):
            recorded["l"] = [[*link, redactor.values(about)] for *link, about in links]
        self.journal.redacted += redactor.hidden
        self._limits.apply(recorded)
        return recorded

    def _store_waiting(self, rows: Rows) -> None:
        """Store rows that must wait, and the payloads that the next mark needs, in the state."""
        journal = self.journal
        journal.held += rows.tobytes()
        waiting = np.frombuffer(journal.held, ROW_TYPE)["span"]
        # Stored as raw rows, because the whole state is written at each flush and bytes are cheap
        # to write.
        still = np.isin(self._payload_rows["span"], waiting)
        unfinished = np.isin(
            self._payload_rows["span"], np.fromiter(self._payloads.unfinished, np.uint64)
        )
        # A payload is written directly before its row, so that its row may be read only at the next
        # mark.
        spans = self._payload_rows["span"]
        ahead = np.isin(spans, self._new_payloads) & ~np.isin(spans, self._sections["span"])
        ahead &= ~np.isin(spans, self._of_no_row)
        journal.payloads = self._payload_rows[still | unfinished | ahead].tobytes()

    def _begin(self, fresh: Rows) -> None:
        journal, meta = self.journal, self.journal.meta
        for row in rows_of_kind(fresh, Kind.BEGIN):
            start, number, span, parent, n, track, name, _, _ = (int(v) for v in row.tolist())
            _, _, category, phase, _ = journal.section(name)
            if meta.is_child:
                # Steps of a forked child do not count as steps of its rank: they are sections of
                # the run.
                journal.demoted[span] = parent or meta.run_span
                continue
            is_run = category == names.RUN
            if not is_run and not signed(n):
                journal.first_steps = [*journal.first_steps, start][-_FIRSTS:]
            journal.roots[span] = Root(
                kind="run" if is_run else "step",
                trace=journal.run_trace if is_run else journal.step_trace(phase, signed(n)),
                phase=phase,
                n=signed(n),
                number=signed(number),
                parent=parent,
                start=start,
                name=name,
                track=track,
            )
        for row in rows_of_kind(fresh, Kind.FOREIGN):
            trace = int(row["start"]).to_bytes(8, "big") + int(row["end"]).to_bytes(8, "big")
            key = int(row["span"])
            state = self.payloads.get(key, {}).get("c", "")
            journal.roots[key] = Root(
                kind="foreign", trace=trace, trace_state=state, is_unsampled=bool(row["parent"])
            )

    def _note_stale(self, sections: Rows) -> None:
        """Store the ids of open-section entries whose rows were already read.

        A row is published before its table entry is cleared. A kill in between leaves both.
        """
        table = np.frombuffer(self.journal.open, OPEN_TYPE)["span"]
        # An entry may outlive its row for several marks: stale entries that still exist stay stale.
        known = np.concatenate((sections["span"], np.array(self.journal.stale, np.uint64)))
        self.journal.stale = table[np.isin(table, known)].tolist()

    def _with_interrupted(self, sections: Rows) -> Rows:
        journal = self.journal
        if not journal.left:
            return sections
        journal.ended_ns = _end_of(journal, sections["end"], self.values["start"])
        table = np.frombuffer(journal.open, OPEN_TYPE)
        table = table[~np.isin(table["span"], np.array(journal.stale, np.uint64))]
        rows = as_rows(table, journal.ended_ns)
        rows["flags"] = Kind.SECTION | Flag.ERROR | INTERRUPTED_FLAG
        self.created += len(rows)
        # Children first: rows are in the order in which sections end.
        return np.concatenate((sections, rows[np.argsort(rows["start"])[::-1]]))

    def _without_cancelled(self, sections: Rows, fresh: Rows) -> Rows:
        journal = self.journal
        # Must run before the split, so that children read at the same mark move to the enclosing
        # section.
        for row in rows_of_kind(fresh, Kind.CANCEL):
            span, parent, root = int(row["span"]), int(row["parent"]), int(row["root"])
            cancelled_root = journal.roots.pop(span, None)
            if cancelled_root:
                parent, root = cancelled_root.parent, journal.meta.run_span
            journal.cancelled[span] = [parent, root]
        _forget(journal.cancelled)
        if journal.demoted and len(sections):
            sections = _demote(sections, journal.demoted, journal.meta.run_span)
            _forget(journal.demoted)
        if journal.cancelled and len(sections):
            cancelled_ids = np.fromiter(journal.cancelled, np.uint64)
            touched = np.isin(sections["parent"], cancelled_ids) | np.isin(
                sections["root"], cancelled_ids
            )
            if touched.any():
                sections = sections.copy()
                for i in np.flatnonzero(touched).tolist():
                    _adopt(sections, i, journal.cancelled)
        return sections

    def _split(self) -> None:
        journal, rows = self.journal, self._sections
        roots = np.unique(rows["root"])
        own_row = set(rows["root"][rows["span"] == rows["root"]].tolist())
        ended: list[int] = []
        waiting: list[int] = []
        strangers: list[int] = []
        requests = _open_requests(journal)
        for root in roots.tolist():
            known = journal.roots.get(root)
            if known is None and root in journal.ended:
                ended.append(root)
            elif known is not None and known.kind == "step":
                (ended if root in own_row else waiting).append(root)
            elif known is None and root not in own_row and root != journal.meta.run_span:
                (waiting if root in requests else strangers).append(root)
        # A step is derived once its own row is read. A thread publishes rows in order, so rows of
        # the same thread inside the step were read before. Rows of other threads may arrive later;
        # their step is then in ``ended``.
        of_steps = np.isin(rows["root"], np.array(ended, np.uint64))
        later = np.isin(rows["root"], np.array(waiting, np.uint64)) & (not journal.left)
        unknown = np.isin(rows["root"], np.array(strangers, np.uint64))
        later |= unknown & self._still_patient(unknown)
        self.steps = rows[of_steps]
        self.outside = rows[~of_steps & ~later]
        journal.held = b""
        self._store_waiting(rows[later])

    def _still_patient(self, unknown: NDArray[np.bool_]) -> bool:
        """Return whether rows with an unknown root should wait for that root.

        If the BEGIN row of the root was dropped, the root never appears. The rows then become part
        of the run's trace.
        """
        journal = self.journal
        journal.held_marks = journal.held_marks + 1 if unknown.any() else 0
        return not journal.left and journal.held_marks < _PATIENCE


def _place_pauses(journal: JournalState, sections: Rows) -> Rows:
    """Return ``sections``, with parent and root filled in for garbage collections.

    The enclosing section is the innermost one that contains the whole collection. The recorder
    cannot determine that section: a collection can happen while a section is being opened or
    closed. Partial overlap is impossible, because a collection is a single call on its thread.
    """
    is_pause = sections["flags"] & Flag.PAUSE != 0
    if not is_pause.any():
        return sections
    sections = sections.copy()
    table = np.frombuffer(journal.open + journal.around, OPEN_TYPE)
    ended = np.concatenate((sections["span"], np.array(journal.stale, np.uint64)))
    still_open = as_rows(table[~np.isin(table["span"], ended)], _NEVER)
    around = np.concatenate((sections[~is_pause], still_open))
    for i in np.flatnonzero(is_pause).tolist():
        pause = sections[i]
        pause["parent"], pause["root"] = _place(journal, pause, around)
        # Move sections that finalizers recorded during the pause.
        inside = (sections["start"] >= pause["start"]) & (sections["end"] <= pause["end"])
        inside &= (sections["track"] == pause["track"]) & ~is_pause
        sections["parent"][inside & (sections["parent"] == pause["parent"])] = pause["span"]
    return sections


def _place(journal: JournalState, pause: Any, around: Rows) -> tuple[int, int]:
    enclosing = around[(around["start"] <= pause["start"]) & (around["end"] >= pause["end"])]
    mine = enclosing[enclosing["track"] == pause["track"]]
    if not len(mine):
        mine = enclosing[np.isin(enclosing["span"], np.fromiter(journal.roots, np.uint64))]
    if not len(mine):
        return journal.meta.run_span, journal.meta.run_span
    # If sections started at the same time, the one that ended first is the innermost.
    inner = mine[np.lexsort((mine["end"], -mine["start"].astype(np.int64)))[0]]
    return int(inner["span"]), int(inner["root"])


def _open_requests(journal: JournalState) -> set[int]:
    table = np.frombuffer(journal.open + journal.around, OPEN_TYPE)
    own = table[table["span"] == table["root"]]
    return {
        span
        for span, name in zip(own["span"].tolist(), own["name"].tolist(), strict=True)
        if journal.section(name)[2] == names.REQUEST
    }


def _end_of(journal: JournalState, *known: NDArray[np.uint64]) -> int:
    reported = journal.words.get(Word.END_TIME)
    if reported:
        return reported
    started = np.frombuffer(journal.open, OPEN_TYPE)["start"]
    newest = [int(times.max()) for times in (*known, started) if len(times)]
    return max(journal.alive_ns, journal.words.get(Word.STEP_TIME, 0), *newest)


def remember_ended(journal: JournalState) -> None:
    """Remove all but the newest ended steps, for which rows of other threads can still arrive."""
    _forget(journal.ended)


def _forget(table: dict[int, Any]) -> None:
    for key in list(table)[: max(0, len(table) - _REMEMBERED)]:
        del table[key]


def _demote(sections: Rows, demoted: dict[int, int], run: int) -> Rows:
    sections = sections.copy()
    ids_ = np.fromiter(demoted, np.uint64)
    for i in np.flatnonzero(np.isin(sections["span"], ids_)).tolist():
        sections["parent"][i] = demoted[int(sections["span"][i])]
    sections["root"][np.isin(sections["root"], ids_)] = run
    return sections


def _adopt(sections: Rows, i: int, cancelled: dict[int, list[int]]) -> None:
    for field, inherited in (("root", 1), ("parent", 0)):
        # Bounded iterations: ids in overwritten rows may form a cycle.
        for _ in cancelled:
            known = cancelled.get(int(sections[field][i]))
            if known is None:
                break
            sections[field][i] = known[inherited]


def _can_have_started(rows: Rows, journal: JournalState) -> NDArray[np.bool_]:
    meta, start = journal.meta, rows["start"]
    is_after: NDArray[np.bool_] = start >= np.uint64(meta.earliest_ns)
    return is_after & (start < np.uint64(meta.latest_ns))


def _of_no_kind(rows: Rows) -> int:
    """Return the number of rows of an invalid kind. Empty rows do not count: they end a journal."""
    kind = rows["flags"] & 15
    return int(((kind > Kind.MARK) | ((kind == 0) & (rows["span"] != 0))).sum())
