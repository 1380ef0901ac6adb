"""Kernels whose time per profiled step changed, with the reason: shape, count or speed.

Kernels are matched by section, operator and name. Remaining kernels are matched by operator and
name (moved to another section), then by section and operator (another kernel for the same work).
The change of a kernel's time per step is the product of three ratios

    number of calls (count) x time per call at equal shapes (speed) x effect of other shapes (shape)

and the reason is the ratio that differs most from 1. If the shapes are unknown for more than half
of a kernel's time in either run, *speed* also includes the effect of other shapes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.analysis.comparison.comparison_shapes import KernelChange, ShapeMeasures
from otel_mlperf.analysis.comparison.kernel_measures import kernel_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_mlperf.analysis.comparison.comparison_shapes import (
        KernelMeasures,
        KernelReason,
        ShapeBasis,
    )

_KERNEL_MATTERS: Final = 0.05
"""Minimum change to report, as a share of the kernel's time per step before."""
_STEP_MATTERS: Final = 0.005
"""Minimum change to report, as a share of all kernels' time per step before."""
_KNOWN: Final = 0.5
"""Minimum share of a kernel's time whose shapes are known; below it, shapes are not compared."""
_BASES: Final[tuple[ShapeBasis, ...]] = ("inputs", "launch")
_Pair = tuple["KernelMeasures | None", "KernelMeasures | None"]
_KEYS: Final[tuple[Callable[[KernelMeasures], Any], ...]] = (
    lambda one: (one.section, one.operator, one.name),
    lambda one: (one.operator, one.name),
    lambda one: (one.section, one.operator) if one.operator else None,
)


def find_kernel_changes(
    before: Sequence[KernelMeasures], after: Sequence[KernelMeasures]
) -> list[KernelChange]:
    """Return the kernels with a changed time per step; empty if either run was not profiled.

    The largest slowdown comes first, the largest saving last.
    """
    if not before or not after:
        return []
    if not (_has_operators(before) and _has_operators(after)):
        before, after = _by_name(before), _by_name(after)
    whole_ns = sum(kernel.per_step_ns for kernel in before)
    changes = [_change(*pair) for pair in _matched(before, after)]
    found = [change for change in changes if _matters(change, whole_ns)]
    return sorted(found, key=lambda change: change.before_ns - change.after_ns)


def _has_operators(kernels: Sequence[KernelMeasures]) -> bool:
    return any(kernel.operator for kernel in kernels)


def _by_name(kernels: Sequence[KernelMeasures]) -> list[KernelMeasures]:
    """Merge kernels of the same name, because without operators only names can be matched."""
    of_name: dict[str, list[KernelMeasures]] = defaultdict(list)
    for kernel in kernels:
        of_name[kernel.name].append(kernel)
    together = []
    for name, of in of_name.items():
        main = max(of, key=lambda one: one.per_step_ns)
        shapes = [
            ShapeMeasures(calls_per_step=one.calls_per_step, mean_ns=one.mean_ns) for one in of
        ]
        together.append(kernel_of(name, main.section, "", shapes))
    return together


def _matched(before: Sequence[KernelMeasures], after: Sequence[KernelMeasures]) -> list[_Pair]:
    pairs: list[_Pair] = []
    left, right = list(before), list(after)
    for key in _KEYS:
        first, second = _grouped(left, key), _grouped(right, key)
        for known, of in first.items():
            # Paired by time per step, longest first: they differ in no other known property.
            pairs += zip(of, second.get(known, ()), strict=False)
        paired = {id(one) for pair in pairs for one in pair}
        left, right = ([one for one in of if id(one) not in paired] for of in (left, right))
    pairs += [(one, None) for one in left]
    pairs += [(None, one) for one in right]
    return pairs


def _grouped(
    kernels: Sequence[KernelMeasures], key: Callable[[KernelMeasures], Any]
) -> dict[Any, list[KernelMeasures]]:
    groups: dict[Any, list[KernelMeasures]] = defaultdict(list)
    for kernel in sorted(kernels, key=lambda one: -one.per_step_ns):
        if (known := key(kernel)) is not None:
            groups[known].append(kernel)
    return groups


def _matters(change: KernelChange, whole_ns: float) -> bool:
    more_ns = abs(change.after_ns - change.before_ns)
    return more_ns > _STEP_MATTERS * whole_ns and more_ns > _KERNEL_MATTERS * change.before_ns


def _change(before: KernelMeasures | None, after: KernelMeasures | None) -> KernelChange:
    known = after or before
    assert known is not None
    reason: KernelReason = "gone" if after is None else "new"
    shapes = None
    basis: ShapeBasis = ""
    if before is not None and after is not None:
        reason, basis = _reason(before, after)
        shapes = _other_shapes(before, after) if reason == "shape" else None
    return KernelChange(
        name=known.name,
        section=known.section,
        operator=known.operator,
        before_ns=before.per_step_ns if before else 0.0,
        after_ns=after.per_step_ns if after else 0.0,
        reason=reason,
        shapes=shapes,
        compared_by=basis,
        before=before,
        after=after,
    )


def _reason(before: KernelMeasures, after: KernelMeasures) -> tuple[KernelReason, ShapeBasis]:
    count = math.log(after.calls_per_step / before.calls_per_step)
    by_call = math.log(after.mean_ns / before.mean_ns)
    # Another kernel has another grid for the same work: compare only the operator's inputs.
    bases: tuple[ShapeBasis, ...] = ("inputs",) if before.name != after.name else _BASES
    known = [basis for basis in bases if _knows(before, basis) and _knows(after, basis)]
    found: ShapeBasis = known[0] if known else ""
    if before.name != after.name:
        is_other = bool(found) and not _by(before, found).keys() & _by(after, found).keys()
        return ("shape" if is_other else "replaced"), found
    speed = _speed(_by(before, found), _by(after, found)) if found else by_call
    factors: dict[KernelReason, float] = {
        "count": count,
        "speed": speed,
        "shape": by_call - speed,
    }
    return max(factors, key=lambda reason: abs(factors[reason])), found


def _knows(kernel: KernelMeasures, basis: str) -> bool:
    known_ns = sum(one.calls_per_step * one.mean_ns for one in kernel.shapes if getattr(one, basis))
    return known_ns >= _KNOWN * kernel.per_step_ns


def _by(kernel: KernelMeasures, basis: str) -> dict[str, tuple[float, float]]:
    """Return a kernel's calls per step and ns per step, by shape; omit calls of unknown shape.

    ``basis`` is the name of the field with the shape, ``inputs`` or ``launch``.
    """
    found: dict[str, tuple[float, float]] = {}
    for one in kernel.shapes:
        if shape := getattr(one, basis):
            calls, spent = found.get(shape, (0.0, 0.0))
            spent += one.calls_per_step * one.mean_ns
            found[shape] = calls + one.calls_per_step, spent
    return found


def _speed(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> float:
    """Return the log ratio of the time per call at equal shapes, weighted by the calls before.

    The arguments map a shape to calls per step and ns per step. If they have no shape in common,
    the change is unknown and the result is 0.0 (unchanged).
    """
    common = before.keys() & after.keys()
    if not common:
        return 0.0
    then = sum(before[shape][1] for shape in common)
    now = sum(before[shape][0] * after[shape][1] / after[shape][0] for shape in common)
    return math.log(now / then)


def _other_shapes(before: KernelMeasures, after: KernelMeasures) -> tuple[str, str] | None:
    for basis in _BASES:
        if _knows(before, basis) and _knows(after, basis):
            first, second = _by(before, basis), _by(after, basis)
            more = {
                shape: second.get(shape, (0.0,))[0] - first.get(shape, (0.0,))[0]
                for shape in (*first, *second)
            }
            return min(more, key=more.__getitem__), max(more, key=more.__getitem__)
    return None
