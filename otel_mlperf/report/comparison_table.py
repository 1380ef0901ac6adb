"""Terminal rendering of comparisons of runs: times, other differences and changed kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.analysis.comparison.bounds import NOTHING_COMPARED
from otel_mlperf.analysis.comparison.comparison import MATTERS
from otel_mlperf.quantities import (
    column_unit,
    duration,
    figures,
    plural,
    rate,
    signed,
    size,
)
from otel_mlperf.report.kernel_names import short_name
from otel_mlperf.terminal_lines import (
    LABEL,
    WIDTH,
    Line,
    broken,
    columns,
    labelled_lines,
    left,
    short,
    text,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.comparison.comparison_shapes import (
        Comparison,
        Differing,
        KernelChange,
        NumberChange,
        RunMeasures,
        ShapeBasis,
        TimeChange,
        Word,
    )
    from otel_mlperf.analysis.steps.mean_estimates import Interval
    from otel_mlperf.quantities import Unit
    from otel_mlperf.terminal_lines import Style


_MAX_KERNELS: Final = 5
_LONGEST_SHAPE: Final = 60
_OTHER_NAME: Final = 40
_MIN_NAME: Final = 16
_SAME: Final[dict[ShapeBasis, str]] = {
    "inputs": " of the same shape",
    "launch": " of the same grid or size",
    "": "; shapes are unknown",
}


def kernel_change_lines(comparison: Comparison, width: int) -> list[Line]:
    """Return lines on kernel time and changed kernels; empty if a run was not profiled."""
    if comparison.kernels_ns is None:
        return []
    before_ns, after_ns = comparison.kernels_ns
    runs = (comparison.before, comparison.after)
    unit = "step" if all(run.profiled_steps for run in runs) else "window"
    more = f" ({signed(after_ns / before_ns - 1)} %)" if before_ns else ""
    total = f"all kernels {duration(before_ns)} → {duration(after_ns)} per {unit}{more}"
    if not comparison.kernels:
        total += ": no significant change of a kernel"
    room = width - LABEL
    lines = labelled_lines("kernels", [total])
    for change in comparison.kernels[:_MAX_KERNELS]:
        first, *rest = _kernel_texts(change, unit, room)
        style: Style = "red" if change.after_ns > change.before_ns else "green"
        lines += labelled_lines("", [first], style)
        lines += labelled_lines(
            "", [f"  {part}" for text_line in rest for part in broken(text_line, room - 2)]
        )
    if (left_out := len(comparison.kernels) - _MAX_KERNELS) > 0:
        lines += labelled_lines("", [f"… {left_out} more: --json contains all"])
    return lines


def _kernel_texts(change: KernelChange, unit: str, room: int) -> list[str]:
    times = f"{duration(change.before_ns)} → {duration(change.after_ns)} per {unit}"
    name = short_name(change.name, max(_MIN_NAME, room - columns(times) - 2))
    of = " of ".join(filter(None, (change.operator, change.section)))
    lines = [f"{name}: {times}", f"{change.reason}: {_why(change)}" + (f", in {of}" if of else "")]
    if change.shapes is not None:
        lines.append(" → ".join(_shape(shape) for shape in change.shapes))
    return lines


def _why(change: KernelChange) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        return "only after" if before is None else "only before"
    if change.reason == "count":
        return f"{figures(before.calls_per_step)} → {figures(after.calls_per_step)} calls"
    if change.reason == "replaced":
        return f"instead of {short_name(before.name, _OTHER_NAME)}"
    by_call = f"{duration(before.mean_ns)} → {duration(after.mean_ns)} per call"
    if change.reason == "shape":
        return by_call
    return by_call + _SAME[change.compared_by]


def _shape(shape: str) -> str:
    return short(shape.replace(", []", "").replace("c10::", ""), _LONGEST_SHAPE)


_NAME: Final = 13
_LONGEST_NAME: Final = 28
_MAX_ROWS: Final = 16
_MAX_PARAMS: Final = 12
_VERDICT_STYLES: Final[dict[Word, Style]] = {
    "slower": "red",
    "faster": "green",
    "same": "",
    "unclear": "dim",
}
_UNKNOWN: Final = "–"


def render_comparison(
    comparison: Comparison, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render the times of steps and sections in two runs side by side, then other differences."""
    before, after = comparison.before, comparison.after
    lines: list[Line] = [[(_heading(before, after, width), "bold")]]
    if comparison.times or comparison.kernels_ns is None:
        lines += _time_lines(comparison.times, width) if comparison.times else []
    if comparison.calls or not (comparison.times or comparison.kernels_ns):
        lines += _call_lines(comparison.calls, width)
    lines += _number_lines(comparison.numbers, width)
    lines += _differing_lines(comparison.differing, width)
    lines += kernel_change_lines(comparison, width)
    lines += _left_out_lines(before, after, width)
    lines += _certainty_lines(comparison, width)
    return text(lines, color=color, unicode=unicode)


def render_comparisons(
    comparisons: Sequence[Comparison],
    *,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """Render one line per run, compared with the first run, then the parameters that differ."""
    first = comparisons[0].before
    runs = [first, *(comparison.after for comparison in comparisons)]
    measured_times = next(
        (one.times or one.calls for one in comparisons if one.times or one.calls), None
    )
    name_of = measured_times[0].name if measured_times else "step"
    unit = column_unit(max(_mean_ns(run, name_of) for run in runs))
    name = min(max(4, *(columns(_named(run)) for run in runs)), _LONGEST_NAME)
    heading = short(name_of, 24) + f" {unit.name}"
    title = f"{left('run', name)}{heading:>10}{'difference':>24}  {'word':<8}"
    title += f"{'samples/s':>11}"
    room = max(10, columns(heading))
    lines: list[Line] = [[(title, "dim")]]
    lines.append(_run_line(first, None, _mean_ns(first, name_of), unit, (name, room)))
    for one in comparisons:
        change = next((of for of in (*one.times, *one.calls) if of.name == name_of), None)
        mean_ns = _mean_ns(one.after, name_of)
        lines.append(_run_line(one.after, change, mean_ns, unit, (name, room)))
    lines += [line for one in comparisons for line in _given_lines(one, width)]
    return text(lines, color=color, unicode=unicode)


def _run_line(
    run: RunMeasures, change: TimeChange | None, mean_ns: float, unit: Unit, widths: tuple[int, int]
) -> Line:
    mean = unit.number(mean_ns) if mean_ns else _UNKNOWN
    samples = run.numbers.get("samples_per_s")
    difference = difference_text(change) if change else ""
    verdict: Word | None = change.word if change else None
    return [
        (left(_named(run), widths[0]), "bold"),
        (f"{mean:>{widths[1]}}{difference:>24}  ", ""),
        (f"{verdict or '':<8}", _VERDICT_STYLES[verdict] if verdict else ""),
        (f"{rate(samples) if samples is not None else _UNKNOWN:>11}", ""),
    ]


def _given_lines(one: Comparison, width: int) -> list[Line]:
    texts = [differing_text(differing) for differing in one.differing if differing.what != "last"]
    if not texts:
        return []
    room = width - LABEL
    label = short(one.after.short_id, LABEL - 1)
    return labelled_lines(label, wrapped("", texts[:_MAX_PARAMS], room, " · "))


def _heading(before: RunMeasures, after: RunMeasures, width: int) -> str:
    return short(f"{_named(before)} → {_named(after)} · {_steps(before, after)}", width)


def _steps(before: RunMeasures, after: RunMeasures) -> str:
    if before.steps or after.steps:
        return f"{before.steps:,} and {plural(after.steps, 'step')} compared"
    if before.profiled_steps or after.profiled_steps:
        return f"{before.profiled_steps:,} and {plural(after.profiled_steps, 'profiled step')}"
    return f"{counted(before)} and {counted(after)}"


def counted(run: RunMeasures) -> str:
    """Return the number of measured steps (of calls, if the run has no steps) as text."""
    if run.steps:
        return plural(run.steps, "step")
    return plural(sum(time.steps for time in run.calls), "call")


def _named(run: RunMeasures) -> str:
    return f"{run.name} {run.short_id}"


def _mean_ns(run: RunMeasures, name: str) -> float:
    times = (*run.times, *run.calls)
    return next((time.mean_ns.value for time in times if time.name == name), 0.0)


def _time_lines(times: Sequence[TimeChange], width: int) -> list[Line]:
    return _change_lines("one step", times, width)


def _call_lines(calls: Sequence[TimeChange], width: int) -> list[Line]:
    if not calls:
        return [[(f"  {NOTHING_COMPARED}", "dim")]]
    return _change_lines("a call outside steps", calls, width)


def _change_lines(heading: str, times: Sequence[TimeChange], width: int) -> list[Line]:
    largest = max(max(time.before_ns or 0.0, time.after_ns or 0.0) for time in times)
    unit = column_unit(largest)
    shown = [times[0], *sorted(times[1:], key=lambda time: -abs(time.share))[:_MAX_ROWS]]
    rows = [time for time in times if time in shown]
    room = max(_NAME, _LONGEST_NAME + (width - WIDTH) // 2)
    name = min(max(_NAME, columns(heading) + 1, *(columns(time.name) + 1 for time in rows)), room)
    title = f"  {left(heading, name)}{f'before {unit.name}':>11}{'after':>9}{'difference':>25}"
    lines: list[Line] = [[(title, "dim")]]
    for time in rows:
        numbers = f"{_number(time.before_ns, unit):>11}{_number(time.after_ns, unit):>9}"
        line = f"  {left(time.name, name)}{numbers}{difference_text(time):>25}  "
        is_in_both = None not in (time.before_ns, time.after_ns)
        verdict = f"{time.word}{usual_note(time)}" if is_in_both else ""
        lines.append(
            [(line, "bold" if time is times[0] else ""), (verdict, _VERDICT_STYLES[time.word])]
        )
    if (more := len(times) - len(rows)) > 0:
        lines.append([(f"  … {plural(more, 'more section')}: --json contains all", "dim")])
    return lines


def _number(ns: float | None, unit: Unit) -> str:
    return _UNKNOWN if ns is None else unit.number(ns)


def difference_text(time: TimeChange) -> str:
    """Return the change with its confidence interval, such as ``+3.1 % (+1.2 … +5.0)``.

    It is the change on which the verdict is based: of the mean, or of the usual time (the mean
    without the shortest and longest tenth). For a section that only one run has, the text is
    ``only after`` or ``only before``.
    """
    if time.before_ns is None:
        return "only after"
    if time.after_ns is None:
        return "only before"
    interval = time.usual if time.by == "usual" else time.mean
    if interval is None:
        ratio = time.after_ns / time.before_ns - 1 if time.before_ns else 0.0
        return f"{signed(ratio)} %"
    return f"{signed(interval.ratio)} % {_reach(interval)}"


def usual_note(time: TimeChange) -> str:
    """Return `` (trimmed mean)`` if means and trimmed means change differently, else no text.

    The trimmed means are the ones that the comparison shows.
    """
    if time.by != "usual" or time.usual is None or not time.before_ns or time.after_ns is None:
        return ""
    of_means = time.after_ns / time.before_ns - 1
    return " (trimmed mean)" if abs(of_means - time.usual.ratio) >= MATTERS else ""


def _reach(interval: Interval) -> str:
    return f"({signed(interval.low)} … {signed(interval.high)})"


def _number_lines(numbers: Iterable[NumberChange], width: int) -> list[Line]:
    texts = [
        f"{NUMBERS[one.name]} {measured(one.name, one.before)} → "
        f"{measured(one.name, one.after)}{_percent_more(one)}"
        for one in numbers
        if one.name in NUMBERS and None not in (one.before, one.after)
    ]
    return _labelled("totals", texts, width)


NUMBERS: Final = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "memory_peak_bytes": "memory",
    "cuda_peak_bytes": "CUDA memory",
    "gpu_memory_bytes": "GPU memory",
    "cpus": "CPUs used",
    "duration_ns": "duration",
}


def measured(name: str, value: float | None) -> str:
    """Return ``value`` of the measure ``name`` (a key of ``NUMBERS``) as text; None is a dash."""
    if value is None:
        return _UNKNOWN
    if name.endswith("_bytes"):
        return size(value, 1024)
    return duration(value) if name.endswith("_ns") else rate(value)


def _percent_more(one: NumberChange) -> str:
    if not one.before or one.after is None:
        return ""
    return f" ({signed(one.after / one.before - 1)} %)"


def _differing_lines(differing: Iterable[Differing], width: int) -> list[Line]:
    lines: list[Line] = []
    by_kind: dict[str, list[str]] = {}
    for one in differing:
        by_kind.setdefault(one.what, []).append(differing_text(one))
    for kind, texts in by_kind.items():
        more = [f"… {len(texts) - _MAX_PARAMS} more"] if len(texts) > _MAX_PARAMS else []
        lines += _labelled(_LABELS[kind], [*texts[:_MAX_PARAMS], *more], width)
    return lines


_LABELS: Final = {"param": "params", "result": "result", "machine": "machine", "last": "last"}


def differing_text(one: Differing) -> str:
    """Return the name of a fact that differs between two runs, with its value in each run."""
    return f"{one.name} {_value(one.before)} → {_value(one.after)}"


def _value(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return short(str(value), 40)


def _left_out_lines(before: RunMeasures, after: RunMeasures, width: int) -> list[Line]:
    texts = [
        f"{reason} steps: {before.left_out.get(reason, 0):,} before, "
        f"{after.left_out.get(reason, 0):,} after"
        for reason in dict.fromkeys((*before.left_out, *after.left_out))
    ]
    return _labelled("excluded", texts, width)


def _certainty_lines(comparison: Comparison, width: int) -> list[Line]:
    if not (comparison.times or comparison.calls):
        return []
    sentence = f"{comparison.confidence * 100:.1f} % jointly, for all intervals"
    if any(time.word == "unclear" for time in (*comparison.times, *comparison.calls)):
        sentence += f"; unclear: more {'steps' if comparison.times else 'calls'} are needed"
    return [[(short(f"{'confidence':<{LABEL}} {sentence}", width), "dim")]]


def _labelled(label: str, texts: list[str], width: int) -> list[Line]:
    if not texts:
        return []
    return labelled_lines(label, wrapped("", texts, width - LABEL, " · "))
