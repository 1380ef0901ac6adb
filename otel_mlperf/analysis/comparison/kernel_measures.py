"""Kernel measures from a run's profiler windows: kernels by section, operator and shape."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf.analysis.comparison.comparison_shapes import KernelMeasures, ShapeMeasures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.store.table_reader import Store

_WINDOWS: Final = (
    "SELECT digest, steps FROM (SELECT *, row_number() OVER "
    "(PARTITION BY rank ORDER BY restart, start_ns, digest) AS place FROM windows) "
    "WHERE $window IS NULL OR place = $window"
)
_LAUNCHES: Final = (
    "SELECT name, section, operator, inputs, launch, sum(count), sum(total_ns) FROM launches "
    "WHERE list_contains($digests, digest) GROUP BY ALL"
)
_TOTALS: Final = (
    "SELECT name, arg_max(section, section_ns), '', '', '', sum(count), sum(total_ns) FROM totals "
    "WHERE what = 'kernel' AND list_contains($digests, digest) GROUP BY name"
)
"""Query for windows that an earlier version stored: they have no ``launches``."""


class KernelsOfWindows(NamedTuple):
    """Kernels measured in profiler windows."""

    kernels: list[KernelMeasures]
    """Sorted by time per step, longest first."""
    steps: int
    """Number of profiled steps over all windows; 0: the windows contain no steps."""
    windows: int


def read_kernels(store: Store, window: int | None = None) -> KernelsOfWindows:
    """Return the kernels of all profiler windows of a run, or of one window of each rank.

    ``window`` is the number of the window on each rank, from 1, in time order; None: all windows.
    If the windows contain no steps, the figures per step are figures per window.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    windows = [(digest, json.loads(steps)) for digest, steps in store.rows(_WINDOWS, window=window)]
    digests = [digest for digest, _ in windows]
    steps = sum(len(names) for _, names in windows)
    rows = store.rows(_LAUNCHES, digests=digests) or store.rows(_TOTALS, digests=digests)
    shapes: dict[tuple[str, str, str], list[ShapeMeasures]] = defaultdict(list)
    for *key, inputs, launch, calls, total_ns in rows:
        name, section, operator = key
        shapes[name, section, operator].append(
            ShapeMeasures(
                inputs=inputs,
                launch=launch,
                calls_per_step=calls / (steps or len(windows)),
                mean_ns=float(total_ns) / calls,
            )
        )
    found = [kernel_of(*key, shapes=of) for key, of in shapes.items()]
    found.sort(key=lambda one: (-one.per_step_ns, one.name, one.section, one.operator))
    return KernelsOfWindows(found, steps, len(windows))


def kernel_of(
    name: str, section: str, operator: str, shapes: Iterable[ShapeMeasures]
) -> KernelMeasures:
    """Return a kernel with the sums over ``shapes``, and ``shapes`` sorted by time, descending."""
    ordered = sorted(
        shapes, key=lambda one: (-one.calls_per_step * one.mean_ns, one.inputs, one.launch)
    )
    calls = sum(one.calls_per_step for one in ordered)
    return KernelMeasures(
        name=name,
        section=section,
        operator=operator,
        calls_per_step=calls,
        mean_ns=sum(one.calls_per_step * one.mean_ns for one in ordered) / calls,
        shapes=ordered,
    )
