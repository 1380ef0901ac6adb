"""Terminal rendering of a run's summary: steps, sections and epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.run.run_processes import ENDED, IMPORTED, RUNNING
from otel_mlperf.analysis.steps.step_shares import UNTRACKED, shown
from otel_mlperf.quantities import (
    Unit,
    column_unit,
    duration,
    percent,
    plural,
    rate,
    size,
)
from otel_mlperf.report.section_tables import call_lines, request_lines, use_lines
from otel_mlperf.report.summary_notes import around_lines, marked, telemetry_lines
from otel_mlperf.terminal_lines import WIDTH, bar, broken, columns, folded, left, short, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.steps.step_shapes import Row, StepFigures
    from otel_mlperf.analysis.summary.epoch_figures import EpochFigures
    from otel_mlperf.analysis.summary.summary_shapes import Branch, Summary
    from otel_mlperf.terminal_lines import Line, Style

_MAX_EPOCHS: Final = 40
_WIDTH: Final = 8


def epoch_lines(epochs: list[EpochFigures]) -> list[Line]:
    """Return a line per epoch, for the last 40 epochs at most."""
    if not epochs:
        return [[("  no step has an epoch: om.epochs() counts them", "dim")]]
    times, peaks = ("total", "mean", "sd", "min", "max"), ("memory", "CUDA", "reserved")
    lines: list[Line] = [[(_columns("epoch", "steps", times, peaks), "dim")]]
    if left_out := epochs[:-_MAX_EPOCHS]:
        lines.append([(f"  {len(left_out)} earlier epochs: summary --json contains all", "dim")])
    lines += [[(_epoch_row(one), "")] for one in epochs[-_MAX_EPOCHS:]]
    return lines


def _epoch_row(one: EpochFigures) -> str:
    times = (one.total_ns, one.mean_ns, one.deviation_ns, one.min_ns, one.max_ns)
    peaks = (one.memory_peak_bytes, one.cuda_peak_bytes, one.cuda_reserved_bytes)
    sizes = ["–" if peak is None else size(peak, 1024) for peak in peaks]
    return _columns(f"{one.epoch}", f"{one.steps:,}", [*map(duration, times)], sizes)


def _columns(epoch: str, steps: str, times: Sequence[str], peaks: Sequence[str]) -> str:
    cells = [f"{time:>{_WIDTH}}" for time in times] + [f"{peak:>{_WIDTH + 1}}" for peak in peaks]
    return f"  {epoch:>5}{steps:>6}" + "".join(cells)


_MAX_ROWS = 14
_MAX_BRANCHES = 40
_MIN_COLLECTED_SHARE = 0.01
"""Minimum share of a step for garbage collections on other threads to have a row."""
_NO_SECTIONS = {
    RUNNING: "no step and no section has ended",
    ENDED: "its steps and sections are not stored yet",
    IMPORTED: "no step was recorded: otel-mlperf import has made this run of traces",
}
_NOTHING = (
    "nothing was recorded; use om.steps and om.span in the script, see README",
    "a program that it starts is not recorded: start that by 'otel-mlperf run'",
)
_COLLECTION = shown(names.SPAN_COLLECTION)
_NAME = 13
_LONGEST_NAME = 28
_LONGEST_BRANCH = 34
_BAR = 20
_BRANCH_BAR = 14
_SHORTEST_BAR = 4
_OUTCOMES: dict[str, Style] = {
    "finished": "green",
    "running": "cyan",
    "ended": "cyan",
    "imported": "dim",
}
_COLORS: dict[str, Style] = {
    names.DATA_LOADING: "yellow",
    names.FORWARD: "green",
    names.BACKWARD: "blue",
    names.OPTIMIZER: "magenta",
    names.COMMUNICATION: "red",
    "": "dim",
}


def render_summary(
    summary: Summary,
    *,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
    calls: bool = False,
    epochs: bool = False,
) -> str:
    """Render the summary of a run.

    ``calls`` adds a table of all section calls, ``epochs`` a table of epochs.
    """
    lines = _heading(summary, width)
    if summary.steps:
        lines += _steps(summary, summary.steps, width)
    elif summary.tree or not summary.calls:
        lines += _tree(summary, width)
    lines += (call_lines if calls else request_lines)(summary.calls, width)
    lines += epoch_lines(summary.epochs) if epochs else []
    lines += use_lines(summary.used, width)
    lines += around_lines(summary, width)
    lines += telemetry_lines(summary, width)
    return text(lines, color=color, unicode=unicode)


def heading_text(summary: Summary) -> str:
    """Return a run's name, id, outcome, ranks and duration in one line."""
    return "".join(part for part, _ in _heading(summary, 1000)[-1])


def steps_text(steps: StepFigures) -> str:
    """Return the number of steps, their mean and percentiles, and their throughput in one line."""
    return "".join(part for part, _ in _figures(steps))


def _heading(summary: Summary, width: int) -> list[Line]:
    lines: list[Line] = []
    if summary.failure:
        lines += [[(line, "red")] for line in broken(failure_text(summary), width)]
    of = f" of {summary.world_size}" if summary.world_size > summary.ranks else ""
    ranks = plural(summary.ranks, "rank") if not of else f"{summary.ranks}{of} ranks"
    where = f"{ranks}, {plural(summary.nodes, 'node')}"
    if summary.rank is not None:
        where = f"rank {summary.rank} of {summary.world_size}"
    rest = [f" · restarted {summary.restarts}×"] if summary.restarts else []
    rest += [f" · {where}", f" · {duration(summary.duration_ns)}"]
    before = f" · {summary.short_id} · "
    # Only the name is cut, never the outcome, which is the more important part.
    room = width - columns(before) - columns(summary.outcome) - sum(map(columns, rest))
    style = _OUTCOMES.get(summary.outcome, "red")
    name = short(summary.name, max(8, room))
    line: Line = [(name, "bold"), (before, ""), (summary.outcome, style)]
    return [*lines, *folded([*line, *((part, "") for part in rest)], width)]


def failure_text(summary: Summary) -> str:
    """Return ``failed at step 37 in forward: RuntimeError: …``; empty if the run did not fail."""
    failure = summary.failure
    if failure is None:
        return ""
    parts_text = [summary.outcome]
    if failure.step is not None:
        parts_text.append(f"at step {failure.step}")
    if failure.section:
        parts_text.append(f"in {shown(failure.section)}")
    if summary.ranks > 1:
        parts_text.append(f"on rank {failure.rank}")
    why = [part for part in (failure.type, failure.message) if part]
    return ": ".join([" ".join(parts_text), *why])


def _steps(summary: Summary, steps: StepFigures, width: int) -> list[Line]:
    heading = "one step (host time)" if summary.has_gpu else "one step"
    table = _table(heading, steps.rows, column_unit(steps.mean_ns), width)
    return [*folded(_figures(steps), width), *table]


def _figures(steps: StepFigures) -> Line:
    unit = column_unit(steps.mean_ns)
    which = "step" if steps.phase == names.TRAIN else f"{steps.phase} step"
    figures = (
        f" · mean {unit.number(steps.mean_ns)} {unit.name}"
        f"  p50 {unit.number(steps.p50_ns)}  p95 {unit.number(steps.p95_ns)}"
    )
    line: Line = [(plural(steps.count, which), "bold"), (figures, "")]
    for value, item in ((steps.tokens_per_s, "tokens/s"), (steps.samples_per_s, "samples/s")):
        line += [(f" · {rate(value)} {item}", "")] if value is not None else []
    return line


def _table(heading: str, rows: list[Row], unit: Unit, width: int) -> list[Line]:
    main = _with_parts(_cut([row for row in rows if not row.beside]), rows)
    beside = _cut([row for row in rows if _is_elsewhere(row) and not _is_nothing(row)])
    longest = max(columns(heading) + 2, *(columns(row.name) for row in (*main, *beside)))
    name = min(max(_NAME, longest), max(_NAME, _LONGEST_NAME + (width - WIDTH) // 2))
    numbers = [unit.number(row.mean_ns) for row in (*main, *beside)]
    mean = max(7, *(len(number) + 2 for number in numbers))
    p95 = max(6, *(len(unit.number(row.p95_ns or 0)) + 2 for row in (*main, *beside)))
    title = f"  {left(heading, name)}{f'mean {unit.name}':>{mean}}{'p95':>{p95}}  share"
    bars = _bar_room(_BAR, width, columns(title) + 2)
    lines: list[Line] = [[(title, "dim")]]
    lines += [_row(row, unit, (name, mean, p95, bars)) for row in main]
    if beside:
        lines.append([("  concurrent with the step", "dim")])
        lines += [_row(row, unit, (name, mean, p95, bars)) for row in beside]
    return lines


def _is_elsewhere(row: Row) -> bool:
    """Return whether a row's section ran on another thread or task than the step."""
    return row.beside and not row.inside


def _with_parts(main: list[Row], rows: list[Row]) -> list[Row]:
    shown: list[Row] = []
    for row in main:
        parts = [part for part in rows if part.beside and part.inside == row.name]
        shown += [row, *_cut(parts)]
    return shown


def _is_nothing(row: Row) -> bool:
    """Return whether a row is of garbage collections whose share of a step is negligible."""
    return row.category == names.GARBAGE_COLLECTION and row.share < _MIN_COLLECTED_SHARE


def _bar_room(usual: int, width: int, taken: int) -> int:
    return max(_SHORTEST_BAR, min(usual + max(0, width - WIDTH) // 2, width - taken))


def _row(row: Row, unit: Unit, widths: tuple[int, int, int, int]) -> Line:
    name, mean, p95, bars = widths
    late = "–" if row.p95_ns is None else unit.number(row.p95_ns)
    indent = "  " * bool(row.beside and row.inside)
    label = indent + left(row.name, name - len(indent))
    line = f"  {label}{unit.number(row.mean_ns):>{mean}}{late:>{p95}}"
    if row.beside:
        return [(line, "")]
    line += f"{percent(row.share):>7}  "
    where = f"{'  ' * bool(bar(row.share, bars))}in {row.inside}" if row.inside else ""
    return [(line, ""), (bar(row.share, bars), _COLORS.get(row.category, "cyan")), (where, "dim")]


def _cut(rows: list[Row]) -> list[Row]:
    """Return the largest rows in their original order, and a row with the sum of the other rows."""
    if len(rows) <= _MAX_ROWS:
        return rows
    # The untracked row is always retained: without it the rows would not sum to the step.
    largest = sorted(rows, key=lambda row: (row.name == UNTRACKED, row.mean_ns))
    separate_names = {row.name for row in largest[-_MAX_ROWS + 1 :]}
    merged = [row for row in rows if row.name not in separate_names]
    separate = [row for row in rows if row.name in separate_names]
    rest = type(merged[0])(
        name=f"{len(merged)} others",
        category="",
        mean_ns=sum(row.mean_ns for row in merged),
        p95_ns=None,
        share=sum(row.share for row in merged),
        beside=merged[0].beside,
        inside=merged[0].inside if merged[0].beside else "",
    )
    at = len(separate) - (separate[-1].name == UNTRACKED)
    return [*separate[:at], rest, *separate[at:]]


def _tree(summary: Summary, width: int) -> list[Line]:
    branches = _largest(summary.tree)
    # Garbage collections happen in any program: alone they do not count as recorded sections.
    if not any(branch.count for branch in branches if branch.name != _COLLECTION):
        nothing = [_NO_SECTIONS[summary.outcome]] if summary.outcome in _NO_SECTIONS else _NOTHING
        return [[(line, "dim")] for line in nothing]
    names_of = [f"{'  ' * min(branch.depth, 8)}{branch.name}{marked(branch.name, summary)}"
                for branch in branches]  # fmt: skip
    max_column = max(_NAME, _LONGEST_BRANCH + (width - WIDTH) // 2)
    column = min(max(_NAME, *map(columns, names_of)) + 1, max_column)
    title = f"  {left('section', column)}{'calls':>9}{'total':>10}{'self':>10}  share"
    lines: list[Line] = [[(title, "dim")]]
    bars = _bar_room(_BRANCH_BAR, width, columns(title) + 2)
    for name, branch in zip(names_of, branches, strict=True):
        lines.append(_branch(name, branch, column, bars))
    if len(branches) < len(summary.tree):
        lines.append([(f"  {len(summary.tree) - len(branches)} smaller ones", "dim")])
    return lines


def _branch(name: str, branch: Branch, column: int, bars: int) -> Line:
    indent = len(name) - len(name.lstrip())
    label = name[:indent] + left(name[indent:], column - indent)
    calls = f"{branch.count:,}" if branch.count else ""
    total = duration(branch.sum_ns) if branch.count else ""
    line = f"  {label}{calls:>9}{total:>10}{duration(branch.self_ns):>10}"
    if branch.beside:
        return [(line, ""), (" concurrent", "dim")]
    style: Style = "dim" if branch.name == UNTRACKED else "cyan"
    return [(f"{line}{percent(branch.share):>7}  ", ""), (bar(branch.share, bars), style)]


def _largest(tree: list[Branch]) -> list[Branch]:
    """Return the tree without its smallest branches; ancestors of a shown branch are retained."""
    if len(tree) <= _MAX_BRANCHES:
        return tree
    min_ns = sorted((branch.sum_ns for branch in tree), reverse=True)[_MAX_BRANCHES - 1]
    drawn: list[Branch] = []
    # The last line is the untracked time: without it the shares would not sum to 100 %.
    for branch in tree[:-1]:
        if branch.sum_ns >= min_ns and branch.depth <= (drawn[-1].depth + 1 if drawn else 0):
            drawn.append(branch)
    return [*drawn, tree[-1]]
