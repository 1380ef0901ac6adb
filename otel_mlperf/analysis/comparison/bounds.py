"""Bounds on a run's measures, and regression checks of a run against its baseline.

A bound is written ``train.step.p95=20ms`` or ``samples_per_s>=1000``. It names the step, a section
or a number of the run. The name of the step or a section can be followed by a statistic: ``mean``
(the default), ``usual``, ``p50``, ``p95`` or ``max``. ``=`` and ``<=`` set a maximum, ``>=`` sets a
minimum.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from otel_mlperf.analysis.comparison.comparison import MATTERS
from otel_mlperf.analysis.comparison.run_measures import STEP
from otel_mlperf.errors import UsageError

if TYPE_CHECKING:
    from otel_mlperf.analysis.comparison.comparison_shapes import (
        Comparison,
        RunMeasures,
        TimeChange,
        TimeMeasures,
    )

Level = Literal["breach", "nothing", "warn", "ok"]
"""Verdict level. *nothing*: no comparison was possible, which does not count as a pass."""
_BOUND: Final = re.compile(
    r"\s*(?P<name>.+?)\s*(?P<sign><=|>=|=)\s*(?P<value>[\d.]+)\s*(?P<unit>\S*)"
)
_STATISTICS: Final = ("mean", "usual", "p50", "p95", "max")
_UNITS: Final = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9,
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    "": 1.0,
}  # fmt: skip


NOTHING_COMPARED: Final = (
    "nothing was compared: the runs have no steps and no sections outside steps in common"
)


class Bound(msgspec.Struct, frozen=True):
    """Upper or lower limit of one value of a run."""

    told: str
    """The bound as the user wrote it."""
    name: str
    is_highest: bool
    value: float
    """The limit in nanoseconds, bytes, or the number's own unit."""
    unit: str
    """Unit in which the user wrote the bound."""


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one bound or one change."""

    name: str
    level: Level
    said: str
    """One line with the numbers."""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="verdicts/1"):
    """All verdicts on a run, and whether it may pass."""

    is_broken: bool
    """Whether any verdict is a breach, or nothing could be compared."""
    verdicts: list[Verdict]
    context: list[str]
    """Further information for a reviewer of a breach, as text; empty: there is no baseline."""


def parse_bound(told: str) -> Bound:
    """Parse a bound that the user wrote in ``told``, e.g. ``train.step.p95=20ms``.

    Raises:
        UsageError: the text is not a valid bound.
    """
    match = _BOUND.fullmatch(told)
    try:
        if match is None:
            raise ValueError
        value = float(match["value"]) * _UNITS[match["unit"]]
    except (ValueError, KeyError):
        raise UsageError(
            f"--max {told!r}: expected a bound such as train.step.p95=20ms or samples_per_s>=1000; "
            f"units: {', '.join(unit for unit in _UNITS if unit)}"
        ) from None
    return Bound(told, match["name"], match["sign"] != ">=", value, match["unit"])


def judge_bound(run: RunMeasures, bound: Bound) -> Verdict:
    """Return the verdict on a bound: *ok* if the run's value is within the bound, else *breach*.

    Raises:
        UsageError: the run has no value with the bound's name, which is probably misspelled, or the
            value is a time and the bound has no unit.
    """
    value = _find(run, bound.name)
    if bound.value and not bound.unit and bound.name not in run.numbers:
        raise UsageError(f"--max {bound.told}: a time needs a unit, such as {bound.told}ms")
    is_kept = value <= bound.value if bound.is_highest else value >= bound.value
    text = f"limit {bound.told}: measured {value / _UNITS[bound.unit]:,.4g}{bound.unit}"
    return Verdict(bound.name, "ok" if is_kept else "breach", text)


def judge_changes(comparison: Comparison, tolerance: float = 0.0) -> list[Verdict]:
    """Return the verdict on the first time (usually the whole step), then on all further breaches.

    A time is a breach if it is significantly longer by more than ``tolerance`` (a ratio); a
    section must also make the step (outside steps: the run) at least 1 % longer. A new section is a
    breach if it makes the step longer by more than 1 % and more than ``tolerance``. If the runs
    have no time in common, the only verdict has the level *nothing*.
    """
    step = comparison.times[:1]
    # If only one of the runs has steps, nothing inside steps can be compared.
    times = comparison.times if step and None not in (step[0].before_ns, step[0].after_ns) else []
    changes = [*times, *comparison.calls]
    if not changes:
        return [Verdict(STEP, "nothing", NOTHING_COMPARED)]
    verdicts = [_judge(change, tolerance) for change in changes]
    return [verdicts[0], *(verdict for verdict in verdicts[1:] if verdict.level == "breach")]


def _judge(change: TimeChange, tolerance: float) -> Verdict:
    interval = change.usual if change.by == "usual" else change.mean
    if interval is None:
        text = "unclear: too few steps or calls"
        if change.before_ns is None:
            text = "new"
        elif change.after_ns is None:
            text = "only in the baseline"
        is_breach = change.before_ns is None and change.share > max(MATTERS, tolerance)
        return Verdict(change.name, "breach" if is_breach else "warn", f"{change.name} is {text}")
    text = (
        f"{change.name} changed by {interval.ratio:+.1%} "
        f"({interval.low:+.1%} … {interval.high:+.1%}): {change.word}{_times(change)}"
    ).replace("%", " %")
    is_slower = change.word == "slower" and interval.low > tolerance
    matters = change.name == STEP or change.share >= MATTERS
    level: Level = "breach" if is_slower and matters else "ok"
    return Verdict(change.name, "warn" if change.word == "unclear" else level, text)


def _times(change: TimeChange) -> str:
    if change.before_ns is None or change.after_ns is None:
        return ""
    return f", {change.before_ns / 1e6:,.4g} → {change.after_ns / 1e6:,.4g} ms"


def find_value(run: RunMeasures, name: str) -> float | None:
    """Return the value of a run that is called ``name``; None if the run has no such value.

    The value is one of the run's numbers, or a statistic (in ns) of the step or of a section.
    """
    if name in run.numbers:
        return run.numbers[name]
    section = name.removeprefix(f"{run.phase}.") if run.phase else name
    head, _, statistic = section.rpartition(".")
    for candidate, of in ((section, "mean"), (head, statistic)):
        if of in _STATISTICS:
            for time in (*run.times, *run.calls):
                if candidate in (time.name, time.name.replace(" ", "_")):
                    return _statistic(time, of)
    return None


def _find(run: RunMeasures, name: str) -> float:
    if (value := find_value(run, name)) is not None:
        return value
    times = (*run.times, *run.calls)
    known = [time.name.replace(" ", "_") for time in times] + sorted(run.numbers)
    raise UsageError(
        f"--max {name}: run {run.short_id} contains no figure of this name; available figures: "
        f"{', '.join(known)}; suffixes for times: {', '.join(_STATISTICS)}"
    )


def _statistic(time: TimeMeasures, which: str) -> float:
    return {
        "mean": time.mean_ns.value,
        "usual": time.usual_ns.value,
        "p50": time.p50_ns,
        "p95": time.p95_ns,
        "max": time.max_ns,
    }[which]
