"""Formatting of times, counts, sizes and shares as short texts for tables."""

from __future__ import annotations

from typing import NamedTuple


class Unit(NamedTuple):
    """Unit of time, with the number of decimals that a column in this unit shows."""

    name: str
    size: int
    """Length of the unit in nanoseconds."""
    decimals: int = 1

    def number(self, ns: float) -> str:
        """Return ``ns`` nanoseconds in this unit as text, without the unit's name."""
        return f"{ns / self.size:,.{self.decimals}f}"


_UNITS = (Unit("s", 1_000_000_000), Unit("ms", 1_000_000), Unit("µs", 1_000), Unit("ns", 1, 0))
_MINUTE = 59.95e9


def column_unit(ns: float) -> Unit:
    """Return the unit (seconds to microseconds) for a column of times up to about ``ns``."""
    if ns >= 10e9:
        return Unit("s", 1_000_000_000, 2)
    if ns >= 1e6:
        return Unit("ms", 1_000_000, 1 if ns >= 10e6 else 2)
    return Unit("µs", 1_000, 1 if ns >= 10e3 else 2)


def duration(ns: float) -> str:
    """Format a time with three significant digits: ``412 ms``, ``19.2 s``, ``2 m 51 s``."""
    if ns >= _MINUTE:
        return _long(round(ns / 1e9))
    # The threshold is below the unit: 0.9995 s is rounded and shown as 1.00 s.
    fitting = (unit for unit in _UNITS if ns >= unit.size * 0.9995)
    unit = next(fitting, _UNITS[-1]) if ns else _UNITS[0]
    return f"{figures(ns / unit.size)} {unit.name}"


def figures(value: float) -> str:
    """Format a number with three significant digits, or all integer digits: ``1.92``, ``4,120``."""
    if value < 9.995:
        return f"{value:.2f}" if value else "0"
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Format a share in whole percent; a positive share below 1 % becomes ``<1 %``."""
    if 0 < share < 0.01:
        return "<1 %"
    return f"{share * 100:.0f} %"


def rate(per_second: float) -> str:
    """Format a rate with three significant digits: ``1,330``."""
    if per_second < 999.5:
        return figures(per_second)
    return f"{round(per_second, 3 - len(str(int(per_second)))):,.0f}"


def plural(count: int, word: str) -> str:
    """Format a count with its noun: ``1 rank``, ``2 ranks``, ``3 batches``."""
    ending = "es" if word.endswith(("s", "ch")) else "s"
    return f"{count:,} {word}" + ("" if count == 1 else ending)


def _long(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {seconds:02} s"


def size_and_rate(count: float, per_second: float) -> str:
    """Format a number of bytes and a rate in bytes per second: ``307 MB at 1.2 GB/s``."""
    return f"{size(count)} at {size(per_second)}/s"


def size(count: float, step: int = 1000) -> str:
    """Format bytes with three significant digits: ``307 MB``; with ``step`` 1024, ``6.17 GiB``."""
    letters = "KMGTP" if step == 1024 else "kMGTP"
    if count < step:
        return f"{count:,.0f} B"
    for letter in letters:
        count /= step
        if count < step * 0.9995 or letter == letters[-1]:
            break
    return f"{figures(count)} {letter}{'iB' if step == 1024 else 'B'}"


def signed(ratio: float) -> str:
    """Format a relative change in percent, without the percent sign: ``+3.1``, ``-12``."""
    digits = 1 if abs(ratio) < 0.0995 else 0
    return f"{round(ratio * 100, digits) + 0.0:+,.{digits}f}"


def signed_size(many: int) -> str:
    """Format a change in bytes with its sign: ``+3.10 MB``; zero has no sign."""
    sign = "-" if many < 0 else "+" * bool(many)
    return sign + size(abs(many))
