"""Export of a run to one file, for timeline viewers or other tools."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf.errors import NothingToExport, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from otel_mlperf.analysis.steps.step_selection import Selected
    from otel_mlperf.report.timeline_files import Format

_NUMBERS: Final = re.compile(r"(\d+)(?:-(\d+))?")
_UI: Final = "https://ui.perfetto.dev (Open trace file)"


class ExportFormat(NamedTuple):
    """Export file format: file name suffix, writer function, and how to open the file."""

    ending: str
    """Suffix of the file name, including the dot."""
    write: Callable[[Selected, BinaryIO], str]
    """Function that writes the selection to a file and returns a description of the written
    content. The function raises NothingToExport if the selection is empty."""
    reader: str
    """Instruction for opening the file."""


def parse_steps(text: str) -> tuple[int, int]:
    """Parse a step number (``7``) or a range (``7-9``); return the first and the last step.

    Raises:
        UsageError: the text is neither a number nor a range.
    """
    match = _NUMBERS.fullmatch(text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else -1
    if last < first:
        raise UsageError(
            f"exporting steps {text!r}: expected a number such as 7, or a range such as 7-9"
        )
    return first, last


def _write_perfetto(selected: Selected, file: BinaryIO) -> str:
    from otel_mlperf.report.perfetto import PerfettoFormat

    return _write_timeline(selected, file, PerfettoFormat())


def _write_chrome(selected: Selected, file: BinaryIO) -> str:
    from otel_mlperf.report.chrome import ChromeFormat

    return _write_timeline(selected, file, ChromeFormat())


def _write_timeline(selected: Selected, file: BinaryIO, form: Format) -> str:
    from otel_mlperf.quantities import plural
    from otel_mlperf.report.timeline_files import write_timeline

    counts = write_timeline(selected, form, file.write)
    # Raise before the temporary file is renamed: an empty file would look like an empty run.
    if not (counts.slices or counts.points or counts.instants):
        raise _nothing(selected, "nothing is stored yet")
    marks = f"{plural(counts.instants, 'mark')}, " if counts.instants else ""
    return (
        f"{marks}{plural(counts.slices, 'slice')} and {plural(counts.points, 'value')} "
        f"on {plural(counts.lines, 'track')}"
    )


def _write_otlp(selected: Selected, file: BinaryIO) -> str:
    from otel_mlperf.quantities import plural
    from otel_mlperf.replay.span_requests import lines

    count = 0
    for spans, line in lines(selected):
        count += spans
        file.write(line)
    if not count:
        raise _nothing(selected, "the run has no sampled spans")
    return plural(count, "span")


def _nothing(selected: Selected, why: str) -> NothingToExport:
    run = selected.run.short_id
    return NothingToExport(f"exporting run {run}: {why}; see otel-mlperf summary {run}")


PERFETTO: Final = ExportFormat(".perfetto-trace", _write_perfetto, f"open the file in {_UI}")
CHROME: Final = ExportFormat(
    ".json", _write_chrome, f"open the file in {_UI} or in chrome://tracing (Load)"
)
OTLP_JSON: Final = ExportFormat(
    ".jsonl", _write_otlp, "read the file with the Collector's otlpjsonfile receiver"
)
