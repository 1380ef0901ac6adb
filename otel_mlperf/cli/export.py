"""``otel-mlperf export``: how does a run get into a viewer of timelines, or into other tools?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from otel_mlperf.cli.arguments import RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.errors import NothingToExport, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from otel_mlperf.analysis.steps.step_selection import Selected
    from otel_mlperf.report.timeline_files import Format

_NUMBERS: Final = re.compile(r"(\d+)(?:-(\d+))?")
_UI: Final = "https://ui.perfetto.dev (Open trace file)"


def export(
    run: RunArgument = "latest",
    perfetto: Annotated[
        bool, typer.Option("--perfetto", help="A Perfetto trace, the default.")
    ] = False,
    chrome: Annotated[
        bool, typer.Option("--chrome", help="A Chrome trace: JSON, for chrome://tracing too.")
    ] = False,
    otlp_json: Annotated[
        bool, typer.Option("--otlp-json", help="The spans that servers get, as lines of OTLP/JSON.")
    ] = False,
    steps: Annotated[
        str | None,
        typer.Option("--steps", "--step", metavar="N|A-B", help="Only these training steps."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="In the current folder by default."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it is there.")
    ] = False,
) -> None:
    """Write a run into a file: its steps, sections, kernels and readings on one timeline."""
    from pathlib import Path

    from otel_mlperf.analysis.steps.step_selection import select
    from otel_mlperf.report.quantities import size
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.whole_file import new_file

    ending, write = _format(perfetto=perfetto, chrome=chrome, otlp_json=otlp_json)
    numbers = _numbers(steps)
    selected = select(find_run(run), numbers, rank)
    path = Path(out or f"{selected.run.path.resolve().name}{ending}")
    with new_file(path, is_replaced=force) as file:
        said = write(selected, file)
    print(f"{path}: {size(path.stat().st_size)}, {said}")


def _format(
    *, perfetto: bool, chrome: bool, otlp_json: bool
) -> tuple[str, Callable[[Selected, BinaryIO], str]]:
    """The ending of the file's name, and what writes it."""
    if perfetto + chrome + otlp_json > 1:
        raise UsageError("exporting: give one of --perfetto, --chrome and --otlp-json")
    if chrome:
        return ".json", _write_chrome
    return (".jsonl", _write_otlp) if otlp_json else (".perfetto-trace", _write_perfetto)


def _numbers(steps: str | None) -> tuple[int, int] | None:
    if steps is None:
        return None
    found = _NUMBERS.fullmatch(steps.strip())
    first = int(found[1]) if found else 0
    last = int(found[2] or found[1]) if found else -1
    if last < first:
        raise UsageError(f"exporting steps {steps!r}: give a number, like 7, or a range, like 7-9")
    return first, last


def _write_perfetto(selected: Selected, file: BinaryIO) -> str:
    from otel_mlperf.report.perfetto import PerfettoFormat

    return f"{_write_timeline(selected, file, PerfettoFormat())}\nopen it in {_UI}"


def _write_chrome(selected: Selected, file: BinaryIO) -> str:
    from otel_mlperf.report.chrome import ChromeFormat

    counts = _write_timeline(selected, file, ChromeFormat())
    return f"{counts}\nopen it in {_UI} or in chrome://tracing (Load)"


def _write_timeline(selected: Selected, file: BinaryIO, form: Format) -> str:
    from otel_mlperf.report.quantities import plural
    from otel_mlperf.report.timeline_files import write_timeline

    counts = write_timeline(selected, form, file.write)
    if not (counts.slices or counts.points):
        raise _nothing(selected, "nothing is stored of it yet")
    return (
        f"{plural(counts.slices, 'slice')} and {plural(counts.points, 'value')} "
        f"on {plural(counts.lines, 'track')}"
    )


def _write_otlp(selected: Selected, file: BinaryIO) -> str:
    from otel_mlperf.replay.span_requests import lines
    from otel_mlperf.report.quantities import plural

    count = 0
    for spans, line in lines(selected):
        count += spans
        file.write(line)
    if not count:
        raise _nothing(selected, "none of its spans were kept")
    return f"{plural(count, 'span')}\nread it with the Collector's otlpjsonfile receiver"


def _nothing(selected: Selected, why: str) -> NothingToExport:
    run = selected.run.short_id
    return NothingToExport(f"exporting run {run}: {why}; see otel-mlperf summary {run}")
