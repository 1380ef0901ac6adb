"""Findings of models with operations so small that overhead dominates the step.

*Operators on the host* are judged by two figures: the number of operations in the autograd graph of
a backward pass, and the time of a backward pass while the main thread had a CPU. One operation has
an overhead of about 5 µs on a current CPU, regardless of its size. Measured durations, including
computation: 7 µs on one row of 64 numbers, 350 µs in a transformer of 256 dimensions. Larger
operations are also reported if the model seems to process items one at a time: the loop calls the
model many times before one backward pass, selects many elements one by one, or uses each weight
repeatedly.

*Launches*: a kernel launch costs the host some microseconds, or tens of microseconds including
Python and autograd. If kernels are shorter, the host determines the time of forward, backward and
optimizer, and the GPU idles in between. A CUDA graph launches all work in one call, so those
sections last only as long as the GPU works. Their share of a step is then at most the GPU
utilization. Therefore the gain is at least their current share minus the utilization.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.gpu_busy import read_gpu_busy
from otel_mlperf.analysis.findings.stack_lines import read_stack_lines
from otel_mlperf.analysis.steps.step_shares import share_of_passes
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers


_MIN_STEPS: Final = 10
_COMPUTING: Final = (names.FORWARD, names.BACKWARD, names.OPTIMIZER)
_MAX_BUSY: Final = 0.7
"""GPU utilization above which the idle share of a GPU is too uncertain."""
_MIN_SAVED: Final = 0.75
"""Minimum saved fraction of the difference, because a CUDA graph also costs some time."""


def find_launches(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if launches limit the rank with the lowest GPU utilization, else none."""
    steps, row = numbers.summary.steps, row_of("small_operators")
    busy = read_gpu_busy(numbers)
    if steps is None or steps.count < _MIN_STEPS or not busy:
        return []
    rank = min(busy, key=lambda one: busy[one])
    sections = [
        one
        for one in steps.rows
        if one.category in _COMPUTING or one.name in _COMPUTING
        if not one.beside
    ]
    computing = sum(one.share for one in sections)
    won = computing - busy[rank]
    if busy[rank] > _MAX_BUSY or not row.holds(won):
        return []
    longest = max(sections, key=lambda one: one.share)
    how = (
        f"the GPU is busy only {busy[rank]:.0%} of the time, but forward pass, backward pass and "
        f"optimizer take {computing:.0%} of a step on the host, most of it in {longest.name}"
    )
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(how=how),
            action=row.action,
            evidence={"gpu_busy": busy[rank], "computing_share": computing, "share": won},
            where=Where(section=longest.name, rank=rank),
            gain=Gain(low=_MIN_SAVED * won, high=computing - busy[rank] / 2),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]


_OVERHEAD_NS: Final = 5_000.0
"""Overhead of one operation, without its computation."""
_MANY: Final = 200
"""Number of operations from which small ones are a problem; a small model has fewer operations."""
_CALLS: Final = 16
"""Model calls per backward pass from which calls are assumed to be for single items."""
_MIN_SHARE_CALLED: Final = 0.1
_SELECTS: Final = 32
"""Selects of single elements per backward pass from which a loop over elements is assumed."""
_MIN_SHARE_SELECTED: Final = 0.05
"""Minimum overhead share of an operation if elements are selected one by one. The backward pass of
each select fills a whole tensor with zeros."""
_REUSED: Final = 40.0
"""Operations per weight from which layers are assumed to be called in a loop; usual are 3 to 10."""
_MIN_COMPUTING: Final = 0.1
_MIN_SAVED_OF_SINGLE: Final = 0.75
"""Minimum saved fraction of forward and backward passes if single items are computed."""
_MIN_SAVED_OF_SMALL: Final = 0.85
"""Minimum saved fraction of the overhead of small operations, because some operations remain."""
_PASSES: Final = """SELECT rank, spent / backwards, coalesce(forwards, 0) / backwards FROM (
    SELECT rank, sum(sum_ns) FILTER (category = $backward) AS spent,
        sum(count) FILTER (category = $backward) AS backwards,
        sum(count) FILTER (name = $forward) AS forwards
    FROM sections WHERE phase = $phase AND n > 0 GROUP BY rank)
    WHERE backwards > 0"""


class _Single(NamedTuple):
    """Evidence that the model processes items one at a time: counts per backward pass."""

    calls: float
    selects: float
    """Elements selected from a tensor one by one."""
    reuse: float

    @property
    def least(self) -> float:
        """Return the minimum overhead share of a finding; infinity without signs of a loop."""
        if self.selects >= _SELECTS:
            return _MIN_SHARE_SELECTED
        is_loop = self.calls >= _CALLS or self.reuse >= _REUSED
        return _MIN_SHARE_CALLED if is_loop else math.inf

    @property
    def words(self) -> str:
        if self.calls >= _CALLS:
            return f"; the model is called {self.calls:.0f} times per backward pass"
        if self.selects >= _SELECTS:
            return f"; {self.selects:.0f} elements are selected one by one per backward pass"
        if self.reuse >= _REUSED:
            return f"; {self.reuse:.0f} operations per weight: layers are called in a loop"
        return ""


def find_small_operators(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for the first rank whose operations are too small, else none.

    If a GPU is used, return the finding of ``find_launches``.
    """
    summary, row = numbers.summary, row_of("small_operators")
    steps = summary.steps
    if numbers.uses_gpu:
        return find_launches(numbers)
    if steps is None or steps.count < _MIN_STEPS:
        return []
    computing = _share_of_passes(numbers)
    if computing < _MIN_COMPUTING:
        return []
    passes = _read_passes(numbers)
    shares = read_cpu_shares(numbers)
    # Excludes CPU waits: an operation of any size lasts longer while other threads have the CPU.
    running = {
        one.rank: one.main_on_cpu / (one.main_on_cpu + one.main_waits)
        for one in shares.ranks
        if one.main_on_cpu
    }
    selects, weights = numbers.latest(names.GRAPH_SELECTS), numbers.latest(names.GRAPH_WEIGHTS)
    for rank, nodes in numbers.latest(names.GRAPH_NODES).items():
        pass_ns, calls = passes.get(rank, (computing * steps.mean_ns, 0.0))
        each_ns = pass_ns / nodes if nodes >= _MANY else 0.0
        each_ns *= running.get(rank, 1.0)
        share = min(1.0, _OVERHEAD_NS / each_ns) if each_ns else 0.0
        reuse = nodes / weights[rank] if weights.get(rank) else 0.0
        single = _Single(calls, selects.get(rank, 0.0), reuse)
        # If the number of weights is unknown, the loop is torch's own RNN, which users cannot
        # improve.
        is_small = rank in weights and row.holds(share)
        if is_small or share >= single.least:
            return [_finding(numbers, rank, nodes, each_ns, share, single, computing)]
    return []


def _is_backward_seen(numbers: RunNumbers) -> bool:
    steps = numbers.summary.steps
    return steps is not None and any(row.category == names.BACKWARD for row in steps.rows)


def _share_of_passes(numbers: RunNumbers) -> float:
    """Return the share of a step in forward and backward passes.

    If no section covers the backward pass, the result is an upper bound: it includes all untracked
    time, except for the time that samples attribute to other lines of the user's program.
    """
    steps = numbers.summary.steps
    assert steps is not None
    share = share_of_passes(steps)
    if _is_backward_seen(numbers):
        return share
    own = max((one.share(one.own_lines()) for one in read_stack_lines(numbers.store)), default=0.0)
    return share + max(0.0, numbers.uncovered - own)


def _read_passes(numbers: RunNumbers) -> dict[int, tuple[float, float]]:
    steps = numbers.summary.steps
    assert steps is not None
    return {
        rank: (each_ns, calls)
        for rank, each_ns, calls in numbers.store.rows(
            _PASSES, backward=names.BACKWARD, forward=names.FORWARD, phase=steps.phase
        )
    }


def _finding(
    numbers: RunNumbers,
    rank: int,
    nodes: float,
    each_ns: float,
    share: float,
    single: _Single,
    computing: float,
) -> Finding:
    row = row_of("small_operators")
    how = (
        f"a backward pass runs {nodes:,.0f} operations of {each_ns / 1e3:.1f} µs each, of which "
        f"{share:.0%} is overhead"
    )
    if not _is_backward_seen(numbers):
        how = f"a backward pass runs {nodes:,.0f} operations of at most {each_ns / 1e3:.1f} µs each"
    where = _line(numbers, rank)
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(how=how)
        + single.words
        + (f"; likely caused by {where}" if where else ""),
        action=row.action,
        evidence={
            "operations": nodes,
            "each_ns": each_ns,
            "dispatch_share": share,
            "forward_and_backward_share": computing,
            "calls": single.calls,
            "selects": single.selects,
            "reuse": single.reuse,
        },
        where=Where(section=where or names.BACKWARD, rank=rank),
        gain=_gain(share, computing, is_single=bool(single.words)),
        command=f"otel-mlperf show {numbers.summary.short_id}",
    )


def _gain(share: float, computing: float, *, is_single: bool) -> Gain:
    """Return the share of a step that larger operations save.

    ``computing`` is the share of a step in both passes, ``share`` the part of it that is overhead.
    Single items are mostly overhead. Otherwise, larger operations save the overhead and a part of
    the computation.
    """
    if is_single:
        return Gain(low=_MIN_SAVED_OF_SINGLE * computing, high=computing)
    return Gain(low=_MIN_SAVED_OF_SMALL * share * computing, high=(1 + share) / 2 * computing)


def _line(numbers: RunNumbers, rank: int) -> str:
    """Return the line of the model that most samples of a rank are in; empty if unknown."""
    for lines in read_stack_lines(numbers.store):
        called = [line for line in lines.calls if line.within == "torch"]
        if lines.rank == rank and called:
            return str(max(called, key=lambda line: lines.share([line])))
    return ""
