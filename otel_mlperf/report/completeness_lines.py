"""Lines about the completeness of profiler windows, and what they lack."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import percent, plural
from otel_mlperf.terminal_lines import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import WindowFacts
    from otel_mlperf.terminal_lines import Line

_MOST_WINDOWS: Final = 3
_MOST_LOSSES: Final = 4
_LONGEST: Final = 4_096
"""Maximum characters per line: step names come from the file."""


def incomplete_lines(windows: Sequence[WindowFacts], width: int) -> list[Line]:
    """Return what each window lacks, and how busy devices were in its complete part."""
    incomplete = [
        (window, losses_line) for window in windows if (losses_line := losses_text(window))
    ]
    lines: list[Line] = []
    for window, losses_line in incomplete[:_MOST_WINDOWS]:
        of = f"{window.trace}, rank {window.rank}: " if len(windows) > 1 else ""
        line = short(f"incomplete: {of}{losses_line}", _LONGEST)
        lines += [[(part, "red")] for part in textwrap.wrap(line, width, subsequent_indent="  ")]
    if len(incomplete) > _MOST_WINDOWS:
        more = plural(len(incomplete) - _MOST_WINDOWS, "more window")
        lines.append([(f"  and {more} incomplete", "red")])
    return lines


def losses_text(window: WindowFacts) -> str:
    """Return the losses of a window in one sentence; empty without losses."""
    losses = window.completeness.losses if window.completeness else []
    texts = [loss.words for loss in losses[:_MOST_LOSSES]]
    if len(losses) > _MOST_LOSSES:
        texts.append(f"{len(losses) - _MOST_LOSSES} more in --json")
    return "; ".join([*texts, *_whole(window)])


def _whole(window: WindowFacts) -> Iterable[str]:
    """Yield the part in which no device work is missing."""
    whole = window.completeness.whole if window.completeness else None
    if whole is None:
        return
    begin, end = ((at - window.start_ns) / 1e6 for at in (whole.start_ns, whole.end_ns))
    length_ns = whole.end_ns - whole.start_ns
    busy = ", ".join(percent(device.busy_ns / length_ns) for device in whole.devices)
    yield f"whole between {begin:,.1f} and {end:,.1f} ms: GPU busy {busy} there"


def answered_text(windows: Iterable[WindowFacts]) -> str:
    """Return how many launches have a device record; empty without launches."""
    known = [window.completeness for window in windows if window.completeness]
    launches = sum(completeness.launches for completeness in known)
    answered = sum(completeness.answered for completeness in known)
    return f"{answered:,} of {launches:,} have their record of the device" if launches else ""
