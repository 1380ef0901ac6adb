"""Rows of the tables on a run's page.

The page's template calls these functions, which select, sort and format the rows.
"""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.summary.goodput_shapes import OTHER
from otel_mlperf.quantities import duration, figures, percent, plural
from otel_mlperf.report.comparison_table import NUMBERS, difference_text, measured
from otel_mlperf.report.kernel_names import short_names

if TYPE_CHECKING:
    from otel_mlperf.analysis.comparison.comparison_shapes import Comparison, TimeChange
    from otel_mlperf.analysis.profiles.window_shapes import KernelRow, Kernels
    from otel_mlperf.analysis.steps.step_shapes import Row
    from otel_mlperf.analysis.summary.call_shapes import CallFigures
    from otel_mlperf.analysis.summary.summary_shapes import Summary

_MAX_FOLDERS: Final = 2
"""Maximum number of a path's folders to show; the browser shows the whole path on hover."""


def file_place(file: str, line: int) -> str:
    """Return a source location as ``folder/folder/file:line``, with at most two folders."""
    *folders, name = file.split(os.sep)
    return f"{'/'.join([*folders[-_MAX_FOLDERS:], name])}:{line}"


MOST_CALLS: Final = 40
MAX_RANKS: Final = 16
MOST_KERNELS: Final = 25
_KERNEL_NAME: Final = 52
_COLORS: Final = {
    names.DATA_LOADING: "data",
    names.FORWARD: "forward",
    names.BACKWARD: "backward",
    names.OPTIMIZER: "optimizer",
    names.COMMUNICATION: "communication",
}
_OWN_COLORS: Final = 8


class RankLine(NamedTuple):
    """Row of the table of ranks: one rank compared with the other ranks."""

    rank: int
    mean_ns: float
    more: float
    """Excess over the median of all ranks' mean step times, as a share of this median."""
    parts: list[tuple[str, str, float]]
    """Name, CSS class and mean time (ns) of each section of the rank, and of untracked time."""
    stands_out: bool


def color(category: str, at: int) -> str:
    """Return the CSS class of a section's colour: by its category, else by its index ``at``.

    The class is ``none`` if the section has no category.
    """
    if category in _COLORS:
        return _COLORS[category]
    return f"own{at % _OWN_COLORS}" if category else "none"


def rows(summary: Summary, *, beside: bool = False) -> list[tuple[Row, str]]:
    """Return the sections in a step (if ``beside``, those concurrent with it), with CSS classes."""
    if summary.steps is None:
        return []
    colors = section_colors(summary)
    return [
        (row, colors.get(row.name, "none")) for row in summary.steps.rows if row.beside is beside
    ]


def section_colors(summary: Summary) -> dict[str, str]:
    """Return CSS classes by section name; a section has the same colour on the whole page."""
    if summary.steps is None:
        return {}
    return {row.name: color(row.category, at) for at, row in enumerate(summary.steps.rows)}


def calls(summary: Summary) -> list[CallFigures]:
    """Return the ``MOST_CALLS`` sections with the most total time, in descending order."""
    return sorted(summary.calls, key=lambda call: -call.sum_ns)[:MOST_CALLS]


def call_color(call: CallFigures, summary: Summary) -> str:
    """Return the CSS class of the section's colour; ``none`` if the calls are outside steps."""
    return section_colors(summary).get(call.name, "none") if call.in_step else "none"


def place(call: CallFigures) -> str:
    """Return where a section's calls are made, as text: the steps of a phase, or a section."""
    if call.in_step:
        return f"in {call.phase} steps" + ", concurrent" * call.beside
    around = call.path.rpartition("/")[0]
    return f"in {around}" if around else "outside steps"


def frequency(call: CallFigures, summary: Summary) -> str:
    """Return the number of calls per second of the run, over all ranks, as text."""
    return figures(call.count / (summary.duration_ns / 1e9)) if summary.duration_ns else ""


def ranks(summary: Summary) -> list[RankLine]:
    """Return the ``MAX_RANKS`` slowest ranks, slowest first; empty for a run with a single rank."""
    if summary.steps is None or len(summary.steps.ranks) < 2:
        return []
    usual = median(rank.mean_ns for rank in summary.steps.ranks)
    colors = section_colors(summary)
    outside = {one.rank for one in summary.steps.stand_outs}
    slowest = sorted(summary.steps.ranks, key=lambda rank: -rank.mean_ns)[:MAX_RANKS]
    return [
        RankLine(
            rank.rank,
            rank.mean_ns,
            rank.mean_ns / usual - 1 if usual else 0.0,
            [(name, colors.get(name, "none"), spent) for name, spent in rank.sections.items()],
            rank.rank in outside,
        )
        for rank in slowest
    ]


def signed(share: float) -> str:
    """Return a share as a percentage with its sign, such as ``+3.1 %``; zero gets a plus."""
    return f"{round(100 * share, 1) + 0.0:+.1f} %"


def ledger(summary: Summary) -> list[tuple[str, int, float, str]]:
    """Return the breakdown of the run's time, largest first: kind, nanoseconds, share, CSS class.

    The list is empty if all time is of the kind ``other``.
    """
    if summary.ledger is None:
        return []
    spent_ns = summary.ledger.spent_ns
    total = sum(spent_ns.values())
    if total == spent_ns.get(OTHER, 0):
        return []
    largest_first = sorted(spent_ns.items(), key=lambda item: -item[1])
    return [(kind, ns, ns / total, _LEDGER.get(kind, "none")) for kind, ns in largest_first if ns]


_LEDGER: Final = {
    "train": "forward",
    "predict": "forward",
    "data wait": "data",
    "validation": "backward",
    "checkpoint": "optimizer",
    "compile": "own2",
    "imports": "own1",
    "set-up": "own0",
    "restart": "communication",
    "lost work": "own4",
    "idle": "own3",
}


def kernels(found: Kernels) -> list[tuple[KernelRow, str]]:
    """Return the first (longest) kernels, each with a name that fits into a row."""
    shown = found.rows[:MOST_KERNELS]
    return list(zip(shown, short_names([row.name for row in shown], _KERNEL_NAME), strict=True))


def has_sections(summary: Summary) -> bool:
    """Return whether a run without steps called any section; False for a run with steps."""
    return any(branch.count for branch in summary.tree)


def changes(comparison: Comparison) -> list[tuple[TimeChange, str, float]]:
    """Return the change of the step, then the changes of the sections, largest first.

    Each change has its text, and its size relative to the largest change (0 to 1).
    """
    if not comparison.times:
        return []
    step, *others = comparison.times
    shown = [step, *sorted(others, key=lambda time: -abs(time.share))]
    largest = max(abs(time.share) for time in shown) or 1.0
    return [(time, difference_text(time), abs(time.share) / largest) for time in shown]


def numbers(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return, for each compared number, its name and its value in both runs, as texts."""
    return [
        (NUMBERS[one.name], measured(one.name, one.before), measured(one.name, one.after))
        for one in comparison.numbers
        if one.name in NUMBERS
    ]


def environment(summary: Summary) -> list[tuple[str, str]]:
    """Return labels and texts on the run, its machine and its values; unknown facts are omitted."""
    machine = summary.machine
    texts = [
        ("run", f"{summary.name} · {summary.id}"),
        ("started", ""),
        ("ranks", f"{plural(summary.ranks, 'rank')} on {plural(summary.nodes, 'node')}"),
        ("integrations", ", ".join(summary.integrations)),
        ("CPUs", f"{machine.cpus:g}" if machine and machine.cpus else ""),
        ("devices", ", ".join(gpu.name for gpu in machine.gpus) if machine else ""),
        ("parameters", _pairs(summary.params)),
        ("result", _pairs(summary.result)),
        ("last logged values", _pairs(summary.last)),
        ("counters", _pairs(summary.counted)),
    ]
    return [(name, value) for name, value in texts if value]


def recording(summary: Summary) -> list[str]:
    """Return notes on lost and pending data, overhead, and steps that the figures exclude."""
    telemetry = summary.telemetry
    texts = []
    if telemetry.lost is not None:
        texts.append(f"{telemetry.lost:,} items lost")
    if telemetry.pending:
        texts.append(f"{telemetry.pending:,} items not sent to a server yet")
    if telemetry.sections_lost:
        texts.append(f"{plural(telemetry.sections_lost, 'section')} lost and not in the figures")
    if telemetry.overhead is not None:
        share = telemetry.overhead
        texts.append(f"recording overhead {'<0.1 %' if share < 0.001 else percent(share)}")
    if summary.warm_up is not None:
        warm_up = summary.warm_up
        texts.append(
            f"warm-up step {warm_up.number} ({duration(warm_up.duration_ns)}) is not in the figures"
        )
    if summary.profiled_steps:
        texts.append(f"a profiler slowed down {plural(summary.profiled_steps, 'step')}")
    return [*texts, *summary.missing]


def _pairs(known: dict[str, Any]) -> str:
    return " · ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in known.items()
    )
