"""Exact parsing of microseconds in decimal text to whole nanoseconds.

Traces contain ``ts`` and ``dur`` in microseconds: whole, with three decimals, or (if rewritten by
other tools) with any number of decimals. A float represents a current Unix time to 250 ns only.
Numbers with decimals are therefore passed as text and converted with integer arithmetic.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

NO_TIME: Final = np.iinfo(np.int64).min
"""Marks values that are not a time, or exceed 64 bits."""
UNIX_TIME_NS: Final = 10**17
"""A time in 1973; lower times are not Unix times but count from the start of a machine."""
_LONGEST_NS: Final = 10**16
"""Maximum plausible duration of a record: 115 days."""
_LONGEST_PAUSE_NS: Final = 60 * 10**9
"""Maximum time between a record at 0 and the nearest other record, if 0 is a real time."""
_LONGEST_AHEAD_NS: Final = 10**8
"""Maximum time by which a record at 0 on a stream may precede its call, if 0 is a real time."""
_MAX_NS: Final = 2**63 - 1
_MAX_US: Final = _MAX_NS // 1000
_WHOLE_DIGITS: Final = 16
_DECIMALS: Final = 9
_LONGEST_TEXT: Final = 64
_MILLI_LENGTH: Final = 19
"""Maximum length of a number: the point and 18 digits, or 17 and a sign, which fit 64 bits."""
_BELOW_UNIT: Final = 10 ** (_DECIMALS - 3)
# Value of a digit by its position, from the ninth decimal to the sixteenth before the point.
_NANOSECONDS: Final = np.array(
    [0] * (_DECIMALS - 3) + [10**power for power in range(_WHOLE_DIGITS + 3)], np.int64
)
_BELOW: Final = np.array(
    [10**power for power in range(_DECIMALS - 3)] + [0] * (_WHOLE_DIGITS + 3), np.int64
)
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_EXACT: Final = Context(prec=2 * _LONGEST_TEXT, rounding=ROUND_HALF_EVEN)


def parse_times(values: Callable[[], Iterable[Any]], count: int) -> NDArray[np.int64]:
    """Convert ``count`` values in microseconds, each an ``int`` or decimal text, to nanoseconds.

    Fractions of a nanosecond are rounded to the nearest, ties to even. Values that are not a number
    or exceed 64 bits become NO_TIME. ``values`` is called again if any value is text.
    """
    try:
        # Some versions write whole microseconds, which are decoded as integers.
        whole = np.fromiter(values(), np.int64, count)
    except (TypeError, ValueError, OverflowError):
        return _parse_texts(values, count)
    if count and (whole.max() > _MAX_US or whole.min() < -_MAX_US):
        return np.where((whole > _MAX_US) | (whole < -_MAX_US), NO_TIME, whole * 1000)
    return whole * 1000


def _parse_texts(values: Callable[[], Iterable[Any]], count: int) -> NDArray[np.int64]:
    try:
        joined = "\n".join(values())
    except TypeError:  # Some values are integers.
        joined = ""
    # Kineto always writes three decimals; other numbers of decimals are from tools that rewrote the
    # file.
    times = _parse_milli(joined, count) if joined.isascii() else None
    if times is not None:
        return times
    texts = list(map(str, values()))
    joined = "\n".join(texts)
    # Parsed value by value, because int() and Decimal() also accept non-ASCII digits, and a line
    # feed in a text would shift all following rows.
    if not joined.isascii() or joined.count("\n") != len(texts) - 1:
        return np.array([_parse_text(text) for text in texts], np.int64)
    times, is_plain = _parse_plain(np.frombuffer(f"{joined}\n".encode(), np.uint8))
    for row in np.flatnonzero(~is_plain).tolist():
        times[row] = _parse_text(texts[row])
    return times


def _parse_milli(joined: str, count: int) -> NDArray[np.int64] | None:
    """Parse ``count`` lines with three decimals each, as Kineto writes; None if a line differs.

    Removing the point converts such a number to nanoseconds, in a fifth of the time of
    ``_parse_plain``.
    """
    text = f"{joined}\n".encode()
    array = np.frombuffer(text, np.uint8)
    ends, dots = np.flatnonzero(array == ord("\n")), np.flatnonzero(array == ord("."))
    if len(ends) != count or not np.array_equal(dots + 4, ends):
        return None
    begins = np.concatenate(([0], ends[:-1] + 1))
    # Each line must have digits, one point and a line feed, and a sign only in front, because
    # fromstring would misread other text without an error.
    signs = int(np.count_nonzero(array[begins] == ord("-")))
    others = int(np.count_nonzero(array - np.uint8(ord("0")) > 9))
    if others != 2 * len(ends) + signs or int((ends - begins).max()) > _MILLI_LENGTH:
        return None
    times: NDArray[np.int64] = np.fromstring(text.replace(b".", b""), np.int64, sep="\n")
    return times


def _parse_plain(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Parse one number like ``-123.456`` per line; also return which lines are such numbers.

    All digits of all lines are weighted in one operation, by their distance from the decimal point.
    """
    end = np.flatnonzero(text == ord("\n"))
    start = np.concatenate(([0], end[:-1] + 1))
    negative = text[start] == ord("-")
    dots = np.flatnonzero(text == ord("."))
    dot = end.copy()
    dot[np.searchsorted(end, dots)] = dots
    digit = text - np.uint8(ord("0"))
    is_other = digit > 9
    # All other characters must be digits, except one optional point and one leading sign.
    others = np.add.reduceat(is_other, start, dtype=np.int64)
    whole, decimals = dot - start - negative, end - dot - 1
    is_plain = (
        (others == 1 + negative + (dot < end))
        & (whole >= 1)
        & (whole <= _WHOLE_DIGITS)
        & (decimals <= _DECIMALS)
    )
    digit[is_other] = 0
    place = np.repeat(dot, end - start + 1) - np.arange(len(text))
    power = np.clip(place + (place < 0), 1 - _DECIMALS, _WHOLE_DIGITS) + _DECIMALS - 1
    times = np.add.reduceat(digit * _NANOSECONDS[power], start)
    if decimals.max() > 3:
        times += _rounded(np.add.reduceat(digit * _BELOW[power], start), times)
    is_plain &= times >= 0  # Sixteen digits may exceed 64 bits.
    signed: NDArray[np.int64] = np.where(negative, -times, times)
    return signed, is_plain


def _rounded(below: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.bool_]:
    up: NDArray[np.bool_] = (2 * below > _BELOW_UNIT) | (
        (2 * below == _BELOW_UNIT) & (times % 2 == 1)
    )
    return up


def _parse_text(text: str) -> int:
    if len(text) > _LONGEST_TEXT:
        return NO_TIME
    try:
        number = Decimal(text.strip())
        if not number.is_finite() or number.adjusted() > 17:
            return NO_TIME
        time = int(_EXACT.to_integral_value(_EXACT.scaleb(number, 3)))
    except (InvalidOperation, OverflowError):
        return NO_TIME
    return time if abs(time) <= _MAX_NS else NO_TIME


def why_no_time(value: Any) -> str:
    """Return the kind of damage in ``value``, for which ``parse_times`` returned NO_TIME."""
    if value is None:
        return "missing_field"
    text = str(value) if isinstance(value, str | int) else ""
    if text.strip("+-").lower() in ("nan", "inf", "infinity"):
        return "not_a_number"
    if _NUMBER.fullmatch(text.strip()):
        return "number_too_long" if len(text) > _LONGEST_TEXT else "out_of_range"
    return "wrong_type"


def find_timeless(
    columns: Mapping[str, NDArray[np.signedinteger[Any]]], zero_ns: int
) -> NDArray[np.intp]:
    """Return the rows of records whose time the profiler never filled in.

    ``zero_ns`` is the time that a ``ts`` of 0 stands for. Profilers write such records in one of
    these ways:

    - at 0, far from all other records or, on a stream, far before the call with the same
      correlation;
    - before 1973, while most other records have current times (or the reverse);
    - with a duration of years, because it was computed as an end minus 0.
    """
    none = np.zeros(0, np.intp)
    start_ns, duration_ns = columns["start_ns"], columns["duration_ns"]
    if not len(start_ns):
        return none
    first, last = start_ns.min(), start_ns.max()
    is_mixed = first < UNIX_TIME_NS <= last
    # For an intact file, only the minimum and maximum are computed.
    if first > zero_ns and not is_mixed and duration_ns.max() <= _LONGEST_NS:
        return none
    is_zero = (start_ns == zero_ns) | (start_ns == 0)
    is_timeless = duration_ns > _LONGEST_NS
    is_timeless[_before_their_calls(columns, np.flatnonzero(is_zero))] = True
    others = start_ns[~is_zero]
    if len(others) and np.abs(others - zero_ns).min() > _LONGEST_PAUSE_NS:
        is_timeless |= is_zero
    if is_mixed:
        is_old = start_ns < UNIX_TIME_NS
        many_old = np.count_nonzero(others < UNIX_TIME_NS)
        is_timeless |= is_old if 2 * many_old < len(others) else ~is_old
    return np.flatnonzero(is_timeless)


def _before_their_calls(
    columns: Mapping[str, NDArray[np.signedinteger[Any]]], rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return those ``rows`` on streams that are far before all others with their correlation."""
    start_ns, number = columns["start_ns"], columns["correlation"]
    rows = rows[(columns["stream"][rows] != NONE) & (number[rows] > 0)]
    if not len(rows):
        return rows
    mates = np.flatnonzero(np.isin(number, number[rows]))
    mates = np.setdiff1d(mates, rows)
    mates = mates[np.lexsort((start_ns[mates], number[mates]))]
    at = np.searchsorted(number[mates], number[rows])
    found = np.flatnonzero(np.isin(number[rows], number[mates]))
    ahead = start_ns[mates[at[found]]] - start_ns[rows[found]]
    return rows[found[ahead > _LONGEST_AHEAD_NS]]
