"""Finding of steps that wait for data, with the recommended action and its gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.cold_start import find_cold_start, find_worker_startup
from otel_mlperf.analysis.findings.contention import find_contention
from otel_mlperf.analysis.findings.loader_causes import (
    WORTH_NS,
    find_loader_causes,
    model_loader,
    wait_of,
    workers_needed,
)
from otel_mlperf.analysis.steps.step_shares import DATA_WAIT
from otel_mlperf.findings.finding import Finding, Gain, Severity, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.loader_causes import LoaderModel
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.summary.summary_shapes import MachineUse, Summary

_MIN_STEPS: Final = 3
_FULL: Final = 0.9
"""Share of the CPUs in use above which no CPU is free for more workers."""
_MIN_EXPLAINED: Final = 0.5
"""Share of the data wait above which a cause is reported as its explanation."""
_CHEAPER_SAMPLES: Final = (
    "The CPUs are busy, so more workers may not help: make loading a sample cheaper (decode or "
    "augment less, or only once before the training), or request more CPUs."
)
_MORE_WORKERS: Final = (
    "Use DataLoader(..., num_workers={workers}, persistent_workers=True): loading a batch takes "
    "{batch:.1f} ms, the rest of the step {work:.1f} ms, and {free}. Decoding and augmenting "
    "all samples before the training would save at most {share:.0f} % of a step."
)
_NO_WORKERS: Final = (
    "Use DataLoader(..., num_workers=0) or larger batches: a worker loads a batch in "
    "{batch:.1f} ms, which is less than the time to transfer the batch to the training process."
)
_SEE_CAUSE: Final = "See the finding {id}, which explains most of the data wait."


class _Advice(NamedTuple):
    action: str
    gain: Gain | None
    severity: Severity | None = None
    """None: the severity in the findings table applies."""


def find_data_loading(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if data waits of the main phase exceed the threshold share of a step."""
    summary, row = numbers.summary, row_of("data_loading")
    steps = summary.steps
    # With one or two steps, the worker start in the first step would dominate.
    if steps is None or steps.count < _MIN_STEPS:
        return []
    waits = [
        section
        for section in steps.rows
        if section.category == names.DATA_LOADING and not section.beside
    ]
    wait_ns = wait_of(steps)
    share = min(1.0, sum(section.share for section in waits))
    if not row.holds(share):
        return []
    advice = _advise(numbers, share)
    if advice is None:
        return []
    summary_text = row.summary.format(value=share)
    if steps.phase != names.TRAIN:
        summary_text = f"{steps.phase} steps wait for data {share:.0%} of the time"
    return [
        Finding(
            id=row.id,
            severity=advice.severity or row.severity,
            summary=summary_text,
            action=advice.action,
            evidence={
                "share": share,
                "wait_ns": wait_ns,
                "step_ns": steps.mean_ns,
                "steps": steps.count,
            },
            where=Where(section=max(waits, key=lambda section: section.mean_ns).name),
            gain=advice.gain,
            command=_command(summary),
        )
    ]


def _advise(numbers: RunNumbers, share: float) -> _Advice | None:
    model, machine = model_loader(numbers), numbers.summary.machine
    if model is None:
        return _advise_unseen(share, machine)
    if _lacks_cpus(numbers, model):
        return None  # another finding covers it
    cause = _cause(numbers, model)
    if cause is not None:
        return _Advice(_SEE_CAUSE.format(id=cause.id), cause.gain)
    if model.wait_ns < WORTH_NS:
        return None
    if model.waited(lambda use: use.fetch_ns) < _MIN_EXPLAINED * model.wait_ns:
        return _advise_other(model, share, machine)
    return _advise_workers(model, share, machine)


def _lacks_cpus(numbers: RunNumbers, model: LoaderModel) -> bool:
    """Return whether workers would keep up with the steps if nothing had to wait for a CPU.

    False if there are no workers or no CPU contention.
    """
    contended = find_contention(numbers)
    if not model.workers or not contended:
        return False
    main_waits = max(one.evidence["main_thread_waits"] for one in contended)
    work_ns = model.work_ns * (1 - main_waits)
    calm = model._replace(step_ns=model.wait_ns + work_ns)
    left_ns = calm.waited(lambda use: use.fetch_ns - (use.delay_ns or 0.0))
    return not row_of("data_loading").holds(left_ns / (left_ns + work_ns))


def _cause(numbers: RunNumbers, model: LoaderModel) -> Finding | None:
    for finding in find_loader_causes(numbers):
        won = finding.gain.high if finding.gain is not None else 0.0
        if won * model.step_ns > _MIN_EXPLAINED * model.wait_ns:
            return finding
    start_findings = [*find_worker_startup(numbers), *find_cold_start(numbers)]
    waited_ns = model.wait_ns * (numbers.summary.steps.count if numbers.summary.steps else 0)
    for finding in start_findings:
        is_wait = finding.where.section == DATA_WAIT
        if is_wait and finding.evidence["excess_ns"] > _MIN_EXPLAINED * waited_ns:
            return finding
    return None


def _advise_other(model: LoaderModel, share: float, machine: MachineUse | None) -> _Advice | None:
    if _is_full(machine):
        return None  # the step waits for a CPU, which another finding covers
    return _advise_transfer(model) if model.workers else _advise_unseen(share, machine)


def _advise_transfer(model: LoaderModel) -> _Advice | None:
    """Return the advice for steps that wait for batches to be transferred from fast workers.

    Return None if loading without workers would save too little.
    """
    won_ns = model.wait_ns - model.fetch_ns
    won = won_ns / model.step_ns
    if won_ns < WORTH_NS or not row_of("data_loading").holds(won):
        return None
    fields = {"batch": model.fetch_ns / model.batches / 1e6}
    return _Advice(_NO_WORKERS.format(**fields), Gain(low=0.0, high=won), "info")


def _advise_workers(model: LoaderModel, share: float, machine: MachineUse | None) -> _Advice:
    """Return the advice to add workers or, if no CPU is free, to make loading a sample cheaper.

    The minimum gain of more workers is at most the free share of the CPUs.
    """
    by_workers = model.won(lambda use: use.fetch_ns, model.workers + 1)
    busy = machine.cpu_share if machine is not None else None
    free = 1.0 if busy is None else max(0.0, 1.0 - busy)
    if _is_full(machine) or free <= 0:
        return _Advice(_CHEAPER_SAMPLES, Gain(low=0.0, high=share))
    action = _MORE_WORKERS.format(
        workers=max(model.workers + 1, workers_needed(model)),
        batch=model.fetch_ns / model.batches / 1e6,
        work=model.work_ns / 1e6,
        free=f"{100 * free:.0f} % of the CPU time is free" if free < share else "CPUs are free",
        share=100 * share,
    )
    return _Advice(action, Gain(low=min(by_workers, free), high=share))


def _advise_unseen(share: float, machine: MachineUse | None) -> _Advice:
    """Return general advice for a data source without recorded internal times.

    The minimum gain is that of loading concurrently with computing: the shorter of the two is
    saved. It is zero if no CPU is free. The maximum gain is the whole wait.
    """
    is_full = _is_full(machine)
    gain = Gain(low=0.0 if is_full else min(share, 1.0 - share), high=share)
    return _Advice(_CHEAPER_SAMPLES if is_full else row_of("data_loading").action, gain)


def _is_full(machine: MachineUse | None) -> bool:
    return machine is not None and machine.cpu_share is not None and machine.cpu_share > _FULL


def _command(summary: Summary) -> str:
    slowest = summary.slowest
    if slowest is None or slowest.kept_number is None:
        return ""
    return f"otel-mlperf show {summary.short_id} --step {slowest.kept_number}"
