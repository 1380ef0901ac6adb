"""Rows of the tables on a run's page.

The template calls these functions: they select, sort and format the rows.
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
    from otel_mlperf.analysis.summary.call_figures import CallFigures
    from otel_mlperf.analysis.summary.summary_shapes import Summary

_MOST_FOLDERS: Final = 2
"""Maximum folders of a path: its end is more informative; the browser shows the rest on hover."""


def file_place(file: str, line: int) -> str:
    """Return the end of the path, and the line."""
    *folders, name = file.split(os.sep)
    return f"{'/'.join([*folders[-_MOST_FOLDERS:], name])}:{line}"


MOST_CALLS: Final = 40
MOST_RANKS: Final = 16
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
    """One rank compared with the other ranks."""

    rank: int
    mean_ns: float
    more: float
    """Excess over the median of the ranks, as a share of it."""
    parts: list[tuple[str, str, float]]
    """Name, colour and time of its sections, and of the untracked time."""
    stands_out: bool


def color(category: str, at: int) -> str:
    """Return the CSS class of a section's colour: by its category, else by its index."""
    if category in _COLORS:
        return _COLORS[category]
    return f"own{at % _OWN_COLORS}" if category else "none"


def rows(summary: Summary, *, beside: bool = False) -> list[tuple[Row, str]]:
    """Return the sections of a step, each with its colour."""
    if summary.steps is None:
        return []
    colors = section_colors(summary)
    return [
        (row, colors.get(row.name, "none")) for row in summary.steps.rows if row.beside is beside
    ]


def section_colors(summary: Summary) -> dict[str, str]:
    """Return colours by section name, the same on the whole page."""
    if summary.steps is None:
        return {}
    return {row.name: color(row.category, at) for at, row in enumerate(summary.steps.rows)}


def calls(summary: Summary) -> list[CallFigures]:
    """Return the calls, most time first."""
    return sorted(summary.calls, key=lambda call: -call.sum_ns)[:MOST_CALLS]


def call_color(call: CallFigures, summary: Summary) -> str:
    """Return the section's colour for calls in steps, else a common colour."""
    return section_colors(summary).get(call.name, "none") if call.in_step else "none"


def place(call: CallFigures) -> str:
    """Return where its calls are made."""
    if call.in_step:
        return f"in {call.phase} steps" + ", concurrent" * call.beside
    around = call.path.rpartition("/")[0]
    return f"in {around}" if around else "outside steps"


def frequency(call: CallFigures, summary: Summary) -> str:
    """Return the calls per second of the run, over all ranks."""
    return figures(call.count / (summary.duration_ns / 1e9)) if summary.duration_ns else ""


def ranks(summary: Summary) -> list[RankLine]:
    """Return the ranks with the longest steps first; empty for a run of one rank."""
    if summary.steps is None or len(summary.steps.ranks) < 2:
        return []
    usual = median(rank.mean_ns for rank in summary.steps.ranks)
    colors = section_colors(summary)
    outside = {one.rank for one in summary.steps.stand_outs}
    slowest = sorted(summary.steps.ranks, key=lambda rank: -rank.mean_ns)[:MOST_RANKS]
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
    """Return ``+3.1 %``; a value that rounds to zero has no minus."""
    return f"{round(100 * share, 1) + 0.0:+.1f} %"


def ledger(summary: Summary) -> list[tuple[str, int, float, str]]:
    """Return the breakdown of the run's time: kind, time, share and colour, largest first.

    Empty if all of the time is of the kind ``other``.
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
    """Return the longest kernels, each with a name that fits into a line."""
    shown = found.rows[:MOST_KERNELS]
    return list(zip(shown, short_names([row.name for row in shown], _KERNEL_NAME), strict=True))


def has_sections(summary: Summary) -> bool:
    """Return whether a run without steps has any section."""
    return any(branch.count for branch in summary.tree)


def changes(comparison: Comparison) -> list[tuple[TimeChange, str, float]]:
    """Return the step, then the largest changes; each with its part of the largest change."""
    if not comparison.times:
        return []
    step, *others = comparison.times
    shown = [step, *sorted(others, key=lambda time: -abs(time.share))]
    most = max(abs(time.share) for time in shown) or 1.0
    return [(time, difference_text(time), abs(time.share) / most) for time in shown]


def numbers(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return the other measures of both runs: name, before and after."""
    return [
        (NUMBERS[one.name], measured(one.name, one.before), measured(one.name, one.after))
        for one in comparison.numbers
        if one.name in NUMBERS
    ]


def environment(summary: Summary) -> list[tuple[str, str]]:
    """Return name, parameters and machine of the run; unknown facts are left out."""
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
    """Return the quality of the recording, and what the figures do not include."""
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
