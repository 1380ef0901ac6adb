"""Step and section times of a block of code, available as soon as the block ends.

The block is recorded as a run without an agent, in a temporary folder. The process that wrote the
journal also reads it, and derives the statistics that a finished run would have.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.ended_steps import gather
from otel_mlperf.agent.derivation.new_rows import NewRows
from otel_mlperf.agent.model.journal_state import JournalState
from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures
from otel_mlperf.analysis.comparison.run_measures import STEP, measure_times
from otel_mlperf.analysis.steps.step_shares import LONGER, UNTRACKED, shown
from otel_mlperf.errors import OtelMlperfError
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Flag, Word
from otel_mlperf.recorder.api.start import start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.agent.model.journal_state import Root
    from otel_mlperf.analysis.comparison.comparison_shapes import TimeMeasures
    from otel_mlperf.recorder.lifecycle.run import Run

ROWS: Final = 65_536
"""Size of the journal in rows, enough for some 10,000 steps: nothing drains it during the run."""


class RecordedBody:
    """A block of code that is being recorded as a run."""

    def __init__(self, name: str, run: Run) -> None:
        self._name, self._run = name, run
        self._began_ns = time.monotonic_ns()

    def measure(self) -> RunMeasures:
        """Return the measures so far; must be called at most once, while the block is recorded.

        Raises:
            OtelMlperfError: the journal overflowed, nothing was recorded, or the block stopped the
                run.
        """
        return _measure(self._run, self._name, time.monotonic_ns() - self._began_ns)


@contextmanager
def record_body(name: str) -> Iterator[RecordedBody]:
    """Record the block as a separate run; a ``start()`` inside continues that run.

    Raises:
        RunActive: another run of this process is active.
    """
    folder = tempfile.mkdtemp(prefix="otel_mlperf-")
    try:
        run = start(
            name,
            agent="none",
            console=False,
            readings="none",
            dir=folder,
            journal_rows=ROWS,
            endpoint="",
        )
        run.lend(lambda: None)
        try:
            yield RecordedBody(name, run)
        finally:
            _end(run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(run: Run) -> None:
    journal = run._recorder.journal if run._recorder else None
    run.stop()
    if journal is not None:
        with suppress(OSError):
            Path(journal.path).unlink()
            Path(journal.path).parent.rmdir()
        journal.release()


def _measure(run: Run, name: str, duration_ns: int) -> RunMeasures:
    recorder = run._recorder
    if recorder is None:
        raise OtelMlperfError(f"recording {name}: nothing was recorded; see the log for the reason")
    if not run.is_active:
        raise OtelMlperfError(
            f"recording {name}: the body stopped the run; remove the call of stop()"
        )
    journal = recorder.journal
    # Reads through the writer's mapping: opening and closing the file again would release its lock.
    reader = JournalReader(journal.path, journal.buffer)
    if lost := journal.said[Word.LOST_RING_FULL]:
        raise OtelMlperfError(
            f"recording {name}: the body created {lost:,} spans more than the limit of {ROWS:,}; "
            "record fewer spans"
        )
    rows = reader.take()
    state = JournalState(reader.meta, entries=reader.new_entries(), fresh=rows.tobytes())
    batch = NewRows(state)
    phase, times, numbers = _times(batch, state)
    return RunMeasures(
        id=run.id,
        short_id=run.id[:4],
        name=name,
        outcome="finished",
        phase=phase,
        steps=times[0].steps if times else 0,
        left_out={},
        times=times,
        calls=_calls(batch, state),
        numbers={"duration_ns": float(duration_ns)} | numbers,
        params={},
        result={},
        last={},
        machine={},
    )


def _times(batch: NewRows, state: JournalState) -> tuple[str, list[TimeMeasures], dict[str, float]]:
    """Return the phase (``train`` if it has steps), times and rates; all empty if no step ended."""
    if not len(batch.steps):
        return "", [], {}
    steps = _ended_steps(batch, state)
    phases = {step.root.phase for step in steps}
    phase = names.TRAIN if names.TRAIN in phases else min(phases)
    steps = [step for step in steps if step.root.phase == phase and not step.is_error]
    durations = [step.duration_ns for step in steps]
    # As in the statistics of a run, the first step is excluded if it lasted far longer than the
    # other steps.
    if len(steps) > 2 and durations[0] > LONGER * float(np.median(durations[1:])):
        steps = steps[1:]
    if not steps:
        return phase, [], {}
    durations_ns = np.array([step.duration_ns for step in steps], np.float64)
    samples = sum(step.samples for step in steps)
    rates = {"samples_per_s": samples / float(durations_ns.sum()) * 1e9} if samples else {}
    sections = dict.fromkeys(name for step in steps for name in step.own_ns)
    times = [measure_times(STEP, "", durations_ns)]
    for name, category in sections:
        own = [step.own_ns.get((name, category), 0) for step in steps]
        times.append(measure_times(shown(name), category, np.array(own, np.float64)))
    rest = np.array([step.rest_ns for step in steps], np.float64)
    return phase, [*times, measure_times(UNTRACKED, "", rest)], rates


@dataclass(slots=True)
class _Step:
    root: Root
    is_error: bool
    duration_ns: int = 0
    rest_ns: int = 0
    """Time outside sections."""
    samples: int = 0
    own_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    """Self times, by name and category of the section."""


def _ended_steps(batch: NewRows, state: JournalState) -> list[_Step]:
    """Return the steps in order, with times that exclude validations and checkpoints inside."""
    is_root = batch.steps["span"] == batch.steps["root"]
    ends = batch.steps[is_root][np.argsort(batch.steps["root"][is_root])]
    rows = batch.steps[np.isin(batch.steps["root"], ends["root"])]
    roots = [state.roots[span] for span in ends["root"].tolist()]
    tracks = np.array([root.track for root in roots], np.uint64)
    loading = state.sections_of(names.DATA_LOADING)
    ended = gather(rows, ends["root"], tracks, ends["end"].astype(np.int64), loading)
    steps = [
        _Step(root, is_error=bool(flags & Flag.ERROR))
        for root, flags in zip(roots, ends["flags"].tolist(), strict=True)
    ]
    # Rows are sorted by end; a summary lists a step's sections in the order of their starts.
    order = np.lexsort((ended.rows["start"], ended.step))
    order = order[~ended.concurrent[order]]
    columns = (ended.step, ended.self_ns, ended.duration_ns)
    fields = (ended.rows[field] for field in ("span", "root", "name"))
    listed = (column[order].tolist() for column in (*columns, *fields))
    for at, own_ns, duration_ns, span, root, number in zip(*listed, strict=True):
        step, payload = steps[at], batch.payloads.get(span, {})
        outside_ns = int(payload.get("x") or 0)
        if span == root:
            step.duration_ns = duration_ns - outside_ns
            step.rest_ns += own_ns - outside_ns
            step.samples = int(payload.get("n") or 0)
        else:
            _, name, category, *_ = state.section(number)
            key = (name, category)
            step.own_ns[key] = step.own_ns.get(key, 0) + own_ns - outside_ns
            step.rest_ns += outside_ns
    return sorted(steps, key=lambda step: step.root.n)


def _calls(batch: NewRows, state: JournalState) -> list[TimeMeasures]:
    """Return the call durations of sections outside steps, by name."""
    calls: dict[tuple[str, str], list[int]] = {}
    for row in batch.outside[np.argsort(batch.outside["start"])]:
        _, name, category, *_ = state.section(int(row["name"]))
        if category != names.RUN:
            calls.setdefault((name, category), []).append(int(row["end"]) - int(row["start"]))
    return [
        measure_times(shown(name), category, np.array(of, np.float64))
        for (name, category), of in calls.items()
    ]
