"""Update of metric series from derived rows.

Where the result is the same, the rows of one mark are summed first and only the sum is added to a
series, because looking up a series costs more than adding a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from otel_mlperf.agent.derivation.journal_rows import DerivedRows
    from otel_mlperf.agent.derivation.metric_series import Meter
    from otel_mlperf.agent.derivation.section_calls import SectionCalls, SectionPlace, Use
    from otel_mlperf.agent.derivation.step_rows import DerivedSteps, EndedStep
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.agent.model.kept_span import SampledSpan
    from otel_mlperf.tables.run_tables import GpuStepRow, SectionRow, ValueRow

_PRODUCTIVE: Final = (names.TRAIN, names.PREDICT)
_TOTALS: Final[list[tuple[names.Measure, names.Metric, dict[str, Any]]]] = [
    (names.CPU_NS, names.SECTION_CPU, {}),
    (names.GPU_NS, names.SECTION_GPU, {}),
    (names.SWITCHES, names.SECTION_SWITCHES, {names.CONTEXT_SWITCH: "voluntary"}),
    (names.INVOLUNTARY_SWITCHES, names.SECTION_SWITCHES, {names.CONTEXT_SWITCH: "involuntary"}),
    (names.READ_BYTES, names.SECTION_IO, {names.DISK_DIRECTION: "read"}),
    (names.WRITTEN_BYTES, names.SECTION_IO, {names.DISK_DIRECTION: "write"}),
    (names.MEMORY_GROWTH, names.SECTION_MEMORY_GROWTH, {}),
    (names.CUDA_GROWTH, names.SECTION_CUDA_GROWTH, {}),
]
_PEAKS: Final = [
    (names.MEMORY_PEAK, names.SECTION_MEMORY_PEAK),
    (names.CUDA_PEAK, names.SECTION_CUDA_PEAK),
]


def measure_rows(rows: DerivedRows, journal: JournalState, meter: Meter) -> None:
    """Add the derived rows of one journal to the metric series of its rank."""
    _measure_values(rows.values, meter)
    _measure_steps(rows.steps.whole, journal, meter)
    _measure_productive(rows.steps, journal, meter)
    _measure_calls(rows.calls, journal, meter)
    _measure_aggregates([row for row, _ in rows.outside], meter)
    _measure_aggregates(rows.aggregates, meter)
    for uses in rows.uses:
        for place, of_place in uses.items():
            _measure_uses(_section_labels(place, journal), of_place, meter)
    _measure_gpu_steps(rows.gpu_steps, meter)
    _add_request_exemplars(rows.spans, journal, meter)


def _section_labels(place: SectionPlace, journal: JournalState) -> dict[str, str]:
    _, name, category, phase, _ = journal.section(place.name)
    return _labels(name, category, phase if place.in_step else "")


def _labels(name: str, category: str, phase: str) -> dict[str, str]:
    return {names.SECTION_NAME: name, names.SECTION_CATEGORY: category, names.ML_PHASE: phase}


def _measure_values(values: Iterable[ValueRow], meter: Meter) -> None:
    for row in values:
        metric, phase = names.LOGGED.get(row.name), row.phase
        name = metric.name if metric else names.user_metric(row.name)
        meter.set(name, {names.ML_PHASE: phase} if phase else {}, row.value)


def _measure_steps(steps: Sequence[EndedStep], journal: JournalState, meter: Meter) -> None:
    by_phase: dict[str, list[EndedStep]] = {}
    self_ns: dict[int, int] = {}
    for step in steps:
        by_phase.setdefault(step.root.phase, []).append(step)
        self_ns[step.root.name] = self_ns.get(step.root.name, 0) + step.self_ns
    for phase, same in by_phase.items():
        _measure_phase({names.ML_PHASE: phase}, same, journal.meta.shift_ns, meter)
    for number, total_ns in self_ns.items():
        _, name, category, phase, _ = journal.section(number)
        meter.add(names.SECTION_SELF_TIME, _labels(name, category, phase), total_ns / 1e9)
    if steps:
        last_s = (steps[-1].end + journal.meta.shift_ns) / 1e9
        meter.set(names.LAST_STEP_TIME.name, {}, last_s)


def _measure_phase(
    labels: dict[str, str], steps: Sequence[EndedStep], shift_ns: int, meter: Meter
) -> None:
    meter.add(names.STEPS, labels, len(steps))
    for metric, counts in (
        (names.SAMPLES, [step.samples for step in steps if step.samples is not None]),
        (names.TOKENS, [step.tokens for step in steps if step.tokens is not None]),
        (names.FLOPS, [step.flops for step in steps if step.flops is not None]),
    ):
        if counts:
            meter.add(metric, labels, sum(counts))
    counted = [step.duration_ns for step in steps if step.flops is not None]
    if counted:
        meter.add(names.FLOPS_TIME, labels, sum(counted) / 1e9)
    meter.set(names.STEP_NUMBER.name, labels, steps[-1].root.number)
    durations = np.array([step.duration_ns for step in steps])
    meter.record(names.STEP_DURATION, labels, durations)
    for step in steps:
        if step.kept:
            exemplar = (step.end + shift_ns, step.root.trace, step.span)
            meter.exemplar(names.STEP_DURATION, labels, step.duration_ns, exemplar)


def _measure_productive(steps: DerivedSteps, journal: JournalState, meter: Meter) -> None:
    """Add the productive time: durations of successful training and prediction steps.

    Compilation in these steps, and waits for data in training steps, are subtracted.
    """
    good = [step for step in steps.whole if not step.error and step.root.phase in _PRODUCTIVE]
    if not good:
        return
    sections = steps.sections
    trained = [step.span for step in good if step.root.phase == names.TRAIN]
    productive_ns = sum(step.duration_ns for step in good)
    numbers = np.unique(sections.rows["name"]).tolist()
    for category, spans in (
        (names.DATA_LOADING, trained),
        (names.COMPILE, [step.span for step in good]),
    ):
        excluded = [number for number in numbers if journal.section(number)[2] == category]
        if excluded:
            mine = np.isin(sections.rows["name"], np.array(excluded, np.uint64))
            mine &= ~sections.concurrent
            mine &= np.isin(sections.rows["root"], np.array(spans, np.uint64))
            productive_ns -= int(sections.self_ns[mine].sum())
    if productive_ns > 0:
        meter.add(names.RUN_PRODUCTIVE, {}, productive_ns / 1e9)


def _measure_calls(calls: Iterable[SectionCalls], journal: JournalState, meter: Meter) -> None:
    durations: dict[tuple[int, bool], list[NDArray[np.int64]]] = {}
    labels_of: dict[tuple[int, bool], dict[str, str]] = {}
    for of_place in calls:
        place = of_place.place
        key = (place.name, place.in_step)
        if key not in labels_of:
            labels_of[key] = _section_labels(place, journal)
        labels = labels_of[key]
        durations.setdefault(key, []).append(of_place.durations_ns)
        if of_place.bound_s is not None:
            meter.add(names.SECTION_BOUNDED, labels, len(of_place.within))
            meter.add(names.SECTION_WITHIN, labels, int(of_place.within.sum()))
        is_part = not (place.in_step and place.concurrent)
        meter.add(names.SECTION_SELF_TIME, labels, of_place.self_ns / 1e9 if is_part else 0)
    # All places in one call: recording many values costs about as much as recording one.
    for key, parts in durations.items():
        values = np.concatenate(parts) if len(parts) > 1 else parts[0]
        meter.record(names.SECTION_DURATION, labels_of[key], values)


def _measure_aggregates(rows: Iterable[SectionRow], meter: Meter) -> None:
    for row in rows:
        if row.aggregate:
            labels = _labels(row.name, row.category, row.phase)
            # In a step, only parts of a wait have a path. The self time of the wait includes
            # theirs.
            is_wait = row.n is not None and row.path
            meter.add(names.SECTION_SELF_TIME, labels, 0 if is_wait else row.self_ns / 1e9)


def _measure_uses(labels: dict[str, str], uses: Iterable[Use], meter: Meter) -> None:
    totals: dict[str, int] = {}
    peaks: dict[str, int] = {}
    for use in uses:
        for key, value in use.items():
            if value:
                totals[key] = totals.get(key, 0) + value
            peaks[key] = max(peaks.get(key, value), value)
    for measure, metric, more in _TOTALS:
        key = measure.key
        if key in totals:
            scale = 1e9 if key.endswith("_ns") else 1
            meter.add(metric, labels | more, totals[key] / scale)
    for measure, metric in _PEAKS:
        if measure.key in peaks:
            meter.raise_to(metric, labels, peaks[measure.key])


def _measure_gpu_steps(rows: Iterable[GpuStepRow], meter: Meter) -> None:
    for row in rows:
        phase = {names.ML_PHASE: row.phase}
        known = {"host": row.host_paced_ns, "device": row.device_paced_ns}
        paced = known | {"unknown": row.gpu_ns - sum(known.values())}
        for by, ns in paced.items():
            if ns:
                meter.add(names.STEP_GPU, phase | {names.PACED_BY: by}, ns / 1e9)
        if row.idle_ns:
            meter.add(names.STEP_GPU_IDLE, phase, row.idle_ns / 1e9)


def _add_request_exemplars(
    spans: Iterable[SampledSpan], journal: JournalState, meter: Meter
) -> None:
    for span in spans:
        if span.span != span.root or span.interrupted or span.kind != "section":
            continue
        name, category, *_ = span.entry
        if category == names.REQUEST:
            labels, duration_ns = _labels(name, category, ""), span.end - span.start
            exemplar = (span.end + journal.meta.shift_ns, span.trace, span.span)
            meter.exemplar(names.SECTION_DURATION, labels, duration_ns, exemplar)
