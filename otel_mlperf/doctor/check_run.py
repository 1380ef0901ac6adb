"""Checks of a run: agent, journals, item accounts, profiler windows and findings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.delivery.destination import CONSOLE_FILE
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.profiles.kernel_totals import find_windows
from otel_mlperf.analysis.profiles.recorded_windows import (
    REMEDIES,
    read_left_out,
    read_unknown_rows,
)
from otel_mlperf.analysis.run.item_accounts import RING_FULL
from otel_mlperf.analysis.run.run_processes import RUNNING, read_processes
from otel_mlperf.errors import JournalError
from otel_mlperf.findings.finding import Check
from otel_mlperf.journal.journal_folder import ROOM, SHARED_MEMORY, folders_of_run, journals_in
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Word
from otel_mlperf.quantities import plural
from otel_mlperf.report.finding_lines import finding_text
from otel_mlperf.report.kernel_facts import answered_text, losses_text, unknown_row_texts
from otel_mlperf.tables.window_tables import CompletenessRow, WindowRow, WindowTables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.profiles.window_shapes import WindowFacts
    from otel_mlperf.analysis.run.item_accounts import Accounts, RunAccount
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.table_reader import Store

_SILENT_S: Final = 5.0
"""Maximum seconds since the agent last read a journal; after these, it is dead or hangs."""
_FAULT: Final = "this is a bug in otel_mlperf: please report the bug with agent/*/agent.log"
_CALLBACK: Final = "see the errors in the program's log; training continued"
_AGAIN: Final = "profile again if needed: figures from these records are incomplete"
_TOO_LOW: Final = "GPU figures of this window are too low; profile again, with fewer steps"
_UNKNOWN_ROWS: Final = "device figures do not include these rows; see docs/profiler-numbers.md"
_MORE_ROWS: Final = "raise OTEL_MLPERF_JOURNAL_ROWS"
_LOSSES: Final = {
    Word.LOST_RING_FULL: ("spans (the journal was full)", ROOM),
    Word.LOST_PAYLOADS: ("attributes (the journal was full)", ROOM),
    Word.LOST_VALUES: ("values of log() (the journal was full)", ROOM),
    Word.LOST_OPEN: ("open spans became visible only at their end", _MORE_ROWS),
    Word.LOST_CELLS: ("counters or aggregates without room in the journal", _MORE_ROWS),
    Word.LOST_ENTRIES: (
        "names over the limit, recorded as 'other'",
        "use fewer names: pass varying parts as attributes",
    ),
    Word.INTERNAL_ERRORS: ("errors inside the recorder", _FAULT),
}


def check_run(
    run: RunFolder, store: Store, accounts: Accounts, shared_memory: str = SHARED_MEMORY
) -> list[Check]:
    """Check a run's journals, agent, profiler windows and item accounts."""
    outcome = read_processes(store).outcome
    folders = folders_of_run(run.facts.id, run.path, shared_memory)
    checks = check_journals(map(Path, folders), run.short_id, outcome, time.monotonic_ns())
    checks += check_profiler(read_left_out(store))
    checks += check_windows(store)
    for signal, destinations in accounts.items():
        for destination, account in destinations.items():
            title = f"{signal} → {destination}"
            checks.append(check_account(title, account, outcome, run.short_id))
    checks += [
        Check("ok", "console exporter", f"output is written to {path}")
        for path in sorted(run.path.glob(f"agent/*/{CONSOLE_FILE.format('*')}"))
    ]
    if not accounts:
        checks.append(
            Check(
                "warn",
                "accounting",
                "no agent has reported counts yet",
                f"otel-mlperf doctor {run.short_id} --recover",
            )
        )
    return checks


def check_profiler(left_out: dict[str, int]) -> list[Check]:
    """Return a warning per reason in ``left_out``, the number of skipped windows by reason."""
    return [
        Check("warn", "profiler", f"{plural(count, 'window')} skipped: {why}", REMEDIES[why])
        for why, count in left_out.items()
    ]


def check_windows(store: Store) -> list[Check]:
    """Return a warning per profiler window that lacks records, and checks on other windows."""
    rows = WindowTables(windows=store.read(WindowRow), completeness=store.read(CompletenessRow))
    known = [window for window in find_windows(rows) if window.completeness]
    checks = [
        Check("warn", "window", f"{window.trace} of rank {window.rank}: {message}", _remedy(window))
        for window in known
        if (message := losses_text(window))
    ]
    if whole := [window for window in known if not losses_text(window)]:
        answered = answered_text(whole)
        found = f"{plural(len(whole), 'window')} complete" + (f": {answered}" if answered else "")
        checks.append(Check("ok", "profiler", found))
    return checks + [
        Check("warn", "profiler", message, _UNKNOWN_ROWS)
        for message in unknown_row_texts(read_unknown_rows(store))
    ]


def _remedy(window: WindowFacts) -> str:
    is_true = window.completeness is None or window.completeness.has_device_times
    return _AGAIN if is_true else _TOO_LOW


def check_findings(run: RunFolder, store: Store) -> list[Check]:
    """Return a warning per finding of the run, or a passed check if there is none."""
    summary = judge_run(run, store=store)
    if not summary.findings:
        return [Check("ok", "findings", "no problems found")]
    return [
        Check("warn", finding.id, finding_text(finding, ranks=summary.ranks), finding.action)
        for finding in summary.findings
    ]


def check_journals(
    folders: Iterable[Path], short_id: str, outcome: str, now_ns: int
) -> list[Check]:
    """Check whether an agent reads the run's journals, and report data that processes dropped.

    Journals are searched in ``folders``; ``outcome`` is the run's, and ``now_ns`` the monotonic
    time.
    """
    checks: list[Check] = []
    paths = journals_in(*folders)
    for path in paths:
        try:
            reader = JournalReader(str(path))
        except JournalError as error:
            checks.append(Check("warn", "journal", str(error), "remove the file"))
            continue
        checks += _journal(reader, path, short_id, now_ns)
        reader.close()
    # Missing journals are correct only if the run has ended.
    if not paths:
        if outcome == RUNNING:
            return [
                Check("warn", "agent", "the run has not ended, but this node has no journal of the "
                    "run",
                      "run the doctor on the node of the run; if the process is gone, its end was "
                      "not recorded")
            ]  # fmt: skip
        return [Check("ok", "agent", "the run has ended; all its data is stored")]
    return checks


def _journal(reader: JournalReader, path: Path, short_id: str, now_ns: int) -> list[Check]:
    title = f"agent, rank {reader.meta.rank}"
    silent_s = (now_ns - reader.word(Word.BEAT)) / 1e9
    checks = [
        Check("warn", "dropped", f"{count:,} {name}", remedy)
        for word, (name, remedy) in _LOSSES.items()
        if (count := reader.word(word))
    ]
    if failed := reader.word(Word.CALLBACK_ERRORS):
        found = f"{plural(failed, 'call')} of callbacks of the program failed"
        checks.append(Check("warn", "callbacks", found, _CALLBACK))
    if not reader.is_owned:
        found = f"{path.name} belongs to a process that has ended"
        checks.append(Check("warn", title, found, f"otel-mlperf doctor {short_id} --recover"))
    # Failures: a live process whose journal nobody reads loses new records when the ring is full.
    elif not reader.word(Word.BEAT):
        checks.append(
            Check("FAIL", title, "no agent has read the journal", "otel-mlperf serve agent")
        )
    elif silent_s > _SILENT_S:
        found = f"the agent last read the journal {silent_s:.0f} s ago"
        checks.append(Check("FAIL", title, found, "see agent/*/agent.log in the run folder"))
    else:
        pid = reader.word(Word.AGENT_PID)
        checks.append(
            Check("ok", title, f"agent process {pid} read the journal {silent_s:.1f} s ago")
        )
    return checks


def check_account(what: str, account: RunAccount, outcome: str, short_id: str) -> Check:
    """Check that all items of one signal for one destination are accounted for and none is lost.

    ``what``: title of the check.
    """
    terms = [f"{account.delivered:,} delivered"]
    terms += [f"{account.rolled_up:,} rolled up"] if account.rolled_up else []
    if account.unselected:
        terms.append(f"{account.unselected:,} not sampled (counted in totals only)")
    terms += [f"{account.pending:,} pending"] if account.pending else []
    terms += [f"{count:,} lost ({reason})" for reason, count in account.lost.items() if count]
    sum_of = f"{account.created:,} created = {' + '.join(terms)}"
    # Must precede the checks of losses: if the sum is wrong, its numbers are unreliable.
    if not account.adds_up:
        missing = account.created - account.ended - account.pending
        return Check(
            "FAIL", what, f"{sum_of}; {missing:,} items are unaccounted for",
            _FAULT,
        )  # fmt: skip
    if account.lost.get(RING_FULL):
        return Check("warn", what, sum_of, ROOM)
    if sum(account.lost.values()):
        return Check("warn", what, sum_of, "see agent/*/agent.log in the run folder")
    if account.pending and outcome != RUNNING:
        return Check("warn", what, sum_of, f"otel-mlperf doctor {short_id} --recover")
    return Check("ok", what, sum_of)
