"""Lines below the table of a run's summary: goodput, loaders, machine, work, telemetry, advice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.run.run_processes import IMPORTED, RUNNING
from otel_mlperf.analysis.steps.step_shares import COLLECTION, shown
from otel_mlperf.analysis.summary.goodput_shapes import PRODUCTIVE
from otel_mlperf.analysis.summary.logged import GAUGE
from otel_mlperf.analysis.summary.marked_points import of_first_rank
from otel_mlperf.journal.journal_folder import ROOM
from otel_mlperf.quantities import duration, percent, plural, size_and_rate
from otel_mlperf.report.finding_lines import finding_lines
from otel_mlperf.report.kernel_facts import unknown_row_texts
from otel_mlperf.report.machine_lines import gpu_lines, machine_lines, work_lines
from otel_mlperf.terminal_lines import (
    LABEL,
    Line,
    broken,
    columns,
    labelled,
    labelled_lines,
    short,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.analysis.steps.step_shapes import AggregateTotal, StepFigures
    from otel_mlperf.analysis.summary.goodput_shapes import Ledger
    from otel_mlperf.analysis.summary.loader_shapes import FirstBatches, LoaderUse, WorkerUse
    from otel_mlperf.analysis.summary.summary_shapes import (
        OutsideShare,
        ProgramSeries,
        Summary,
        Telemetry,
    )

_MIN_SHARE: Final = 0.005
"""Minimum share of the run's time for a kind of time to be listed."""


def goodput_lines(ledger: Ledger | None, width: int) -> list[Line]:
    """Return lines on the goodput and the kinds of time, largest first.

    The list is empty if the run has no productive time.
    """
    total = 0 if ledger is None else sum(ledger.spent_ns.values())
    if ledger is None or not total or not any(ledger.spent_ns[kind] for kind in PRODUCTIVE):
        return []
    by_size = sorted(ledger.spent_ns.items(), key=lambda item: -item[1])
    kinds = [f"{kind} {percent(ns / total)}" for kind, ns in by_size if ns >= _MIN_SHARE * total]
    if ledger.lost_steps:
        kinds.append(plural(ledger.lost_steps, "step") + " lost")
    head = f"{percent(ledger.goodput)} of {duration(ledger.wall_ns)}: "
    return labelled_lines("goodput", wrapped(head, kinds, width - LABEL))


_MAX_LOADERS: Final = 3
_MAX_SLOW_WORKERS: Final = 3
_STARTED: Final = "started"


def loader_lines(loaders: Sequence[LoaderUse], width: int) -> list[Line]:
    """Return lines per data loader on waits, queued batches, fetch times and workers."""
    room, lines = width - LABEL, []
    for loader in loaders[:_MAX_LOADERS]:
        lines += wrapped(f"{loader.dataset}: ", list(_waits(loader)), room)
        lines += [part for line in _inside(loader) for part in broken(line, room)]
    if rest := loaders[_MAX_LOADERS:]:
        lines.append(f"{plural(len(rest), 'other')}: summary --json contains all")
    return labelled_lines("loader", lines)


def _waits(loader: LoaderUse) -> Iterator[str]:
    yield f"{plural(loader.batches, 'batch')}, waited {duration(loader.wait_ns)} in next()"
    if loader.ready is not None and loader.none_ready_share is not None:
        empty = percent(loader.none_ready_share)
        yield f"{loader.ready:.1f} batches queued on average, queue empty at {empty} of requests"


def _inside(loader: LoaderUse) -> Iterator[str]:
    if loader.fetch_ns is not None and loader.items_ns is not None:
        where = "main process" if loader.ready is None else "a worker"
        collate = duration(loader.collate_ns or 0.0)
        parts = f"__getitem__ {duration(loader.items_ns)}, collate {collate}"
        yield f"per batch {duration(loader.fetch_ns)} in {where}: {parts}"
    slow = [worker for worker in loader.workers if worker.is_slow]
    ranks = len({worker.rank for worker in loader.workers})
    for worker in slow[:_MAX_SLOW_WORKERS]:
        yield _slow(worker, loader.workers, ranks)
    yield from (_started(first) for first in loader.first_batches if first.workers == _STARTED)


def _slow(worker: WorkerUse, workers: Sequence[WorkerUse], ranks: int) -> str:
    others = [other.fetch_ns for other in workers if not other.is_slow]
    rank = f" of rank {worker.rank}" if ranks > 1 else ""
    usual = f", other workers {duration(sum(others) / len(others))}" if others else ""
    return f"worker {worker.worker}{rank} is slow: {duration(worker.fetch_ns)} per batch{usual}"


def _started(first: FirstBatches) -> str:
    if first.passes == 1:
        return f"worker start-up: {duration(first.mean_ns)} to the first batch"
    every = f"{first.passes} × {duration(first.mean_ns)}"
    return f"workers restart each pass, {every}: use persistent_workers=True"


_BETWEEN = " · "
_MIN_OUTSIDE_SHARE = 0.01
_LONGEST_NAME = 28
_MAX_ADDED_UP = 5
_MAX_RANKS = 3
_CHECKPOINTS = {names.CHECKPOINT_WRITE: "saved", names.CHECKPOINT_READ: "loaded"}
_MAX_LINES = 8
"""Maximum number of lines below one label."""
_WHOLE = 1e12
"""Whole numbers below this limit are shown with all digits."""


def closing_lines(summary: Summary) -> list[str]:
    """Return the lines below the summary's table as plain text, wrapped only at 1000 columns."""
    lines = around_lines(summary, 1000) + telemetry_lines(summary, 1000)
    return ["".join(part for part, _ in line).rstrip() for line in lines]


def around_lines(summary: Summary, width: int) -> list[Line]:
    """Return lines on findings, slow ranks, time outside steps, loaders, machines and values."""
    lines = finding_lines(summary.findings, summary.short_id, width, ranks=summary.ranks)
    lines += _ranks(summary.steps, width) if summary.steps else []
    lines += labelled_lines("added up", _added_up(summary.aggregates, width - LABEL))
    if summary.warm_up:
        line = f"step {summary.warm_up.number}: {duration(summary.warm_up.duration_ns)}"
        lines.append(labelled("warm-up", f"{line} (not in the figures above)"))
    if summary.outside:
        lines += labelled_lines("outside", _outside(summary, width - LABEL)[:2])
    if summary.left_open:
        lines.append(labelled("open", f"never closed: {', '.join(summary.left_open)}"))
    lines += gpu_lines(summary.gpu, width)
    lines += loader_lines(summary.loaders, width)
    lines += goodput_lines(summary.ledger, width)
    for total in summary.checkpoints:
        label = _CHECKPOINTS[total.direction]
        moved = size_and_rate(total.bytes, total.bytes_per_s)
        lines.append(labelled(label, f"checkpoints: {moved}"))
    for files in summary.files:
        line = f"{files.direction} {size_and_rate(files.bytes, files.bytes_per_s)}"
        lines.append(labelled("files", line))
    lines += [
        *_concurrent(summary, width),
        *_slowest(summary, width),
        *machine_lines(summary, width),
    ]
    lines += work_lines(summary.work, width)
    lines += labelled_lines("marks", _marks(summary, width - LABEL))
    return [*lines, *_profiled(summary, width), *_reported_values(summary, width)]


def _added_up(aggregates: Sequence[AggregateTotal], room: int) -> list[str]:
    lines = []
    for one in aggregates[:_MAX_ADDED_UP]:
        where = f" in {shown(one.enclosing)}" if one.enclosing else ""
        where = f" concurrent with {shown(one.enclosing)}".rstrip() if one.beside else where
        line = f"{one.name} ×{one.count:,}: {duration(one.sum_ns)}{where}"
        if one.count > 1:
            mean = duration(one.sum_ns / one.count)
            line += f", mean {mean}, {duration(one.min_ns)}–{duration(one.max_ns)}"
        lines.append(short(line, room))
    if rest := aggregates[_MAX_ADDED_UP:]:
        lines += [f"{plural(len(rest), 'other')}: summary --json contains all"]
    return lines


def _ranks(steps: StepFigures, width: int) -> list[Line]:
    lines = []
    for stand_out in steps.stand_outs[:_MAX_RANKS]:
        more = ", ".join(f"{name} +{duration(ns)}" for name, ns in stand_out.more_ns.items())
        lines.append(short(f"rank {stand_out.rank}: {more}", width - LABEL))
    if (omitted := len(steps.stand_outs) - _MAX_RANKS) > 0:
        lines.append(f"{plural(omitted, 'more rank')}: summary --json contains all")
    return labelled_lines("ranks", lines)


def _marks(summary: Summary, room: int) -> list[str]:
    texts = [
        f"{short(mark.name, _LONGEST_NAME)} at step {mark.number:,}"
        for mark in of_first_rank(summary.marks)
    ]
    return _few(wrapped("", texts, room)) if texts else []


def _concurrent(summary: Summary, width: int) -> list[Line]:
    if not summary.beside:
        return []
    texts = [
        f"{short(part.name, _LONGEST_NAME)} {duration(part.sum_ns)} ({part.count:,}×)"
        for part in summary.beside
    ]
    return labelled_lines("parallel", _few(wrapped("", texts, width - LABEL)))


def _slowest(summary: Summary, width: int) -> list[Line]:
    slow = summary.slowest
    if slow is None:
        return []
    rank = f" on rank {slow.rank}" if summary.ranks > 1 else ""
    cause = f"{slow.section} {duration(slow.section_ns)}"
    if slow.collection_ns >= _MIN_OUTSIDE_SHARE * slow.duration_ns > 0:
        if slow.section != COLLECTION:
            cause += f", {COLLECTION} {duration(slow.collection_ns)}"
        cause += f" in {slow.collection_in}" if slow.collection_in else ""
    mark = ", profiled" if slow.profiled else "" if slow.kept else ", not sampled"
    if mark and not slow.profiled and slow.kept_number is not None:
        mark = f", not sampled (sampled: step {slow.kept_number})"
    line = f"step {slow.number}{rank}: {duration(slow.duration_ns)}{mark} · {cause}"
    return [labelled("slowest", short(line, width - LABEL))]


def _profiled(summary: Summary, width: int) -> list[Line]:
    texts = []
    if summary.windows:
        profiled = plural(summary.profiled_steps, "step") + " of the table above"
        steps = f", {profiled}" * bool(summary.profiled_steps)
        windows = plural(summary.windows, "window")
        texts.append(f"{windows}{steps} · otel-mlperf kernels {summary.short_id}")
    elif summary.profiled_steps:
        steps = plural(summary.profiled_steps, "step")
        texts.append(
            f"{steps} of the table above · otel-mlperf summary {summary.short_id} --functions"
        )
    for reason, count in summary.windows_left_out.items():
        texts.append(f"{plural(count, 'window')} skipped: {reason}")
    lines = [short(line, width - LABEL) for line in texts]
    for message in unknown_row_texts(summary.unknown_rows):
        lines += broken(message, width - LABEL)
    return labelled_lines("profiled", lines)


def _outside(summary: Summary, room: int) -> list[str]:
    total = summary.outside_ns
    head = f"{duration(total)} outside steps ({percent(summary.outside_share)})"
    shares = [part for part in summary.outside if _counts(total, part.sum_ns)]
    # Shares are sorted in descending order: drop the smallest ones until two lines suffice.
    for kept in range(len(shares), 0, -1):
        texts = [_part(total, share) + marked(share.name, summary) for share in shares[:kept]]
        rest = sum(share.sum_ns for share in shares[kept:])
        texts += [f"other {duration(rest)}"] if _counts(total, rest) else []
        lines = wrapped(f"{head}: ", texts, room)
        if len(lines) <= 2:
            return lines
    return [head]


def _counts(total: float, part: float) -> bool:
    """Return whether a part is large enough to be shown."""
    return part >= _MIN_OUTSIDE_SHARE * total > 0


def marked(name: str, summary: Summary) -> str:
    """Return the suffix ``(never closed)`` if the section ``name`` was never closed, else empty."""
    return " (never closed)" if name in summary.left_open else ""


def _part(total: float, share: OutsideShare) -> str:
    times = f" ({share.count:,}×)" if share.count is not None and share.count > 1 else ""
    return f"{short(share.name, _LONGEST_NAME)} {duration(share.sum_ns)}{times}"


def _reported_values(summary: Summary, width: int) -> list[Line]:
    room, lines = width - LABEL, []
    for label, facts in (
        ("params", summary.params),
        ("last", summary.last),
        ("counted", summary.counted),
        ("gauges", _gauges(summary.series)),
        ("result", summary.result),
    ):
        values = [short(f"{key} {_value(value)}", room) for key, value in facts.items()]
        between = ", " if label == "result" else " · "
        lines += labelled_lines(label, _few(wrapped("", values, room, between) if values else []))
    return lines


def _few(lines: list[str]) -> list[str]:
    if len(lines) <= _MAX_LINES:
        return lines
    return [*lines[: _MAX_LINES - 1], "… summary --json contains all"]


def _gauges(series: list[ProgramSeries]) -> dict[str, float]:
    return {
        f"{gauge.name} ({', '.join(gauge.labels.values())})"
        if gauge.labels
        else gauge.name: gauge.value
        for gauge in series
        if gauge.kind == GAUGE
    }


def _value(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"


def telemetry_lines(summary: Summary, width: int) -> list[Line]:
    """Return lines on lost and pending data, overhead, the run folder, and the next command."""
    facts, notes = summary.telemetry, summary.missing
    facts_line, place = _recorded(summary), f"stored in {readable(summary.path)}"
    stored: Line = [(place, "")]
    if facts.pending and summary.outcome != RUNNING:
        # The agent delivers pending items during the run; afterwards the user must recover them.
        id, pending = summary.short_id, facts.pending
        notes = [f"{pending:,} not sent yet: otel-mlperf doctor {id} --recover", *notes]
    taken = LABEL + sum(columns(part) + len(_BETWEEN) for part, _ in facts_line)
    if not facts_line or taken + columns(place) <= width:
        lines = [_joined("telemetry", facts_line + stored)]
    else:
        lines = [_joined("telemetry", facts_line), _joined("", stored)]
    for note in notes:  # wrapped: a note ends with the command that helps
        lines += labelled_lines("", broken(note, width - LABEL), "yellow")
    lines.append([("next      ", "dim"), (summary.next, "bold")])
    return [*_as_of(summary), *_incomplete(facts), *lines]


def _as_of(summary: Summary) -> list[Line]:
    lines = []
    if summary.progress is not None:
        done = summary.progress
        steps = f"{done.step + 1:,} of {done.expected:,} steps ({percent(done.share)})"
        rest = "" if done.left_ns is None else f", {duration(done.left_ns)} left"
        lines.append(labelled("progress", steps + rest))
    if summary.as_of is None or summary.outcome != RUNNING:
        return lines
    at = time.strftime("%d %b %H:%M:%S", time.localtime(summary.as_of.time_ns / 1e9))
    step = "" if summary.as_of.step is None else f", step {summary.as_of.step}"
    return [*lines, labelled("as of", at + step)]


def _recorded(summary: Summary) -> Line:
    facts, line = summary.telemetry, Line()
    if facts.lost is not None:
        line.append((f"{plural(facts.lost, 'record')} lost", "red" if facts.lost else ""))
    elif summary.outcome != IMPORTED:
        line.append(("not counted yet", ""))
    if facts.pending and summary.outcome == RUNNING:
        line.append((f"{facts.pending:,} not sent yet", ""))
    if facts.overhead is not None:
        line.append((f"overhead {_overhead(facts.overhead)} of run time", ""))
    return line


def _incomplete(facts: Telemetry) -> list[Line]:
    if not facts.sections_lost:
        return []
    why = f"{plural(facts.sections_lost, 'span')} lost, the journal was full"
    return [
        [("figures   ", "dim"), (f"incomplete: {why}", "red")],
        [(" " * LABEL, ""), (ROOM, "")],
    ]


def _joined(label: str, parts_line: Line) -> Line:
    line: Line = [(f"{label:<{LABEL}}", "dim")]
    for at, part in enumerate(parts_line):
        line += [(_BETWEEN, ""), part] if at else [part]
    return line


def _overhead(share: float) -> str:
    """Return a share in tenths of a percent; a share that rounds to zero becomes ``<0.1 %``."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def readable(path: str) -> str:
    """Return a path relative to the working directory; a path outside it is returned as given."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path
