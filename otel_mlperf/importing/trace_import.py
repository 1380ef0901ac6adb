"""Import of traces: conversion, span budget, and output to a run, a server or a file."""

from __future__ import annotations

import os
import re
import sys
import uuid
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.errors import OutputError, TraceError, Unreachable, UsageError
from otel_mlperf.journal.profiler_windows import WINDOW_SUFFIX
from otel_mlperf.kineto.convert import Conversion, convert, requests, sent_rows, store
from otel_mlperf.kineto.spans.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path
    from typing import BinaryIO

    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.trace_events import Trace
    from otel_mlperf.otlp.endpoint_settings import SignalSettings
    from otel_mlperf.otlp.http_client import OtlpClient
    from otel_mlperf.report.import_notes import Imported
    from otel_mlperf.store.run_folders import RunFolder

SERVICE: Final = "torch-profiler"
"""Service name of a trace that belongs to no run."""
STDOUT: Final = "-"
"""File name that means standard output."""
_BUDGET = re.compile(r"(\d+)\s*([kmg]i?b|b)?", re.IGNORECASE)
_UNITS: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_BINARY: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def without_descriptions(paths: list[Path]) -> list[Path]:
    """Return the paths without window descriptions, which ``profiles/*.json`` also matches.

    If no path is a trace, all paths are returned.
    """
    traces = [path for path in paths if not path.name.endswith(WINDOW_SUFFIX)]
    return traces or paths


def judge(imported: list[Imported], wanted: int) -> None:
    """Raise an error unless all ``wanted`` requested traces were imported completely.

    Raises:
        Unreachable: a server refused spans.
        TraceError: a file is damaged or cannot be read.
    """
    from otel_mlperf.quantities import plural

    refused = sum(trace.refused or 0 for trace in imported)
    if refused:
        raise Unreachable(f"importing: the server rejected {refused:,} spans")
    damaged, unreadable = sum(bool(trace.damage) for trace in imported), wanted - len(imported)
    if damaged or unreadable:
        counts = [f"{damaged} damaged"] if damaged else []
        counts += [f"{unreadable} unreadable"] if unreadable else []
        around = "; everything around the damage was imported" if damaged else ""
        raise TraceError(f"importing {plural(wanted, 'trace')}: {', '.join(counts)}{around}")


class Importer:
    """Converter of traces that delivers each one to a run, a server or a file."""

    def __init__(self, budget: str, rank: int | None, capture: Path | None = None) -> None:
        """Create an importer of traces.

        ``budget`` is the text of ``--budget``. ``rank`` is assumed for traces that do not record
        their rank (None: 0). If the traces replay CUDA graphs, ``capture`` is a trace of these
        graphs' capture.

        Raises:
            UsageError: ``budget`` is invalid.
            TraceError: no part of ``capture`` can be read.
        """
        from otel_mlperf.kineto.counting.captured_graphs import read_captures

        self._budget, self._rank = parse_budget(budget), rank
        self._captured = read_captures(capture) if capture else None
        self._run: RunFolder | None = None
        self._new_run = ""
        """Name of the run to create with the first trace that is not empty."""
        self._run_id = ""
        """Id of the run that stores the traces; set before the run is created."""
        self._wanted = 1
        """Number of traces imported together."""
        self._client: OtlpClient | None = None
        self._out: BinaryIO | None = None
        self._out_path = ""

    def put_into(self, run: str) -> None:
        """Select the run to import into; a missing run is created with the first trace.

        Raises:
            NoSuchRun: the run can neither be found nor created.
            StoreError: the run cannot be read.
        """
        from otel_mlperf.importing.imported_run import find_or_none

        self._run = find_or_none(run)
        self._new_run = "" if self._run else run
        self._run_id = self._run.facts.id if self._run else os.urandom(16).hex()

    def send_to(self, settings: SignalSettings, stack: ExitStack) -> None:
        """Send imported spans to a server, until ``stack`` ends and closes the connection."""
        from otel_mlperf.otlp.grpc_client import open_client

        self._client = stack.enter_context(closing(open_client(settings)))

    def write_to(
        self, path: Path, traces: list[Path], stack: ExitStack, *, is_replaced: bool
    ) -> None:
        """Write imported spans to ``path`` (``-``: standard output), complete when ``stack`` ends.

        Raises:
            UsageError: ``path`` is one of the traces.
            OutputError: the file already exists or cannot be written.
        """
        from otel_mlperf.whole_file import new_file

        self._out_path = str(path)
        if self._out_path == STDOUT:
            self._out = sys.stdout.buffer
            return
        if path.exists() and any(trace.exists() and trace.samefile(path) for trace in traces):
            raise UsageError(
                f"--out {path}: this file is one of the traces to import; choose another file"
            )
        self._out = stack.enter_context(new_file(path, is_replaced=is_replaced))

    def take_all(
        self,
        traces: list[Path],
        progress: Callable[[Path], Callable[[int], None] | None],
        say: Callable[[str], None],
    ) -> Iterator[Imported]:
        """Import the traces in order; pass the error of a failed trace to ``say`` and skip it.

        ``progress`` returns the function that receives the number of bytes read of a trace (None:
        no such function).

        Raises:
            StoreError: the run folder cannot be read or written.
            Unreachable: the server does not accept the spans.
        """
        self._wanted = len(traces)
        for trace in traces:
            try:
                imported = self.take(trace, progress(trace))
            except TraceError as error:
                say(str(error))
            else:
                yield imported

    def take(self, path: Path, progress: Callable[[int], None] | None) -> Imported:
        """Import one trace; return a summary. ``progress``, if given, receives the bytes read.

        Raises:
            TraceError: no part of the trace can be read.
            StoreError: the run folder cannot be read or written.
            Unreachable: the server does not accept the spans.
        """
        from otel_mlperf.importing.imported_run import belongs_to
        from otel_mlperf.report.import_notes import describe

        run, window = belongs_to(path, self._run, is_new=bool(self._new_run))
        converted = convert(
            path,
            self._budget or partial(budget_of, window, self._ranks_of),
            window=window,
            run_folder=run.path if run else None,
            run_id=self._run_id,
            rank=self._rank,
            captured=self._captured,
            progress=progress,
        )
        outcome = self._store(converted)
        resource = self._resource(converted, run or self._run)
        if self._client is not None:
            outcome["sent"], outcome["refused"] = self._send(converted, resource, self._client)
        if self._out is not None:
            self._write(converted, resource, self._out)
            outcome["out"] = self._out_path
        return describe(converted, str(path), **outcome)

    def _ranks_of(self, trace: Trace) -> int:
        """Return the number of ranks that share a step's span budget.

        These are the ranks in the run or imported together. The other ranks of the world size send
        no spans and get no share.
        """
        if not self._run_id:
            return 1
        return min(
            trace.world_size or 1, max(self._wanted, len(self._known_ranks() | {trace.rank}))
        )

    def _known_ranks(self) -> set[int | None]:
        from otel_mlperf.store.table_reader import Store

        if self._run is None:
            return set()
        return {rank for (rank,) in Store(self._run.path).rows("SELECT DISTINCT rank FROM windows")}

    def _store(self, converted: Conversion) -> dict[str, Any]:
        """Store the conversion in the requested run, if any; return fields of the summary."""
        from otel_mlperf.importing.imported_run import (
            find_mismatch,
            is_made,
            make_run,
            write_process,
        )
        from otel_mlperf.store.table_reader import Store

        if converted.is_empty or not (self._run or self._new_run):
            return {}
        outcome: dict[str, Any] = {"is_run_new": self._run is None}
        self._run = run = self._run or make_run(self._new_run, self._run_id, converted)
        same = "SELECT 1 FROM windows WHERE digest = $digest"
        outcome["is_replaced"] = bool(Store(run.path).rows(same, digest=converted.trace.digest))
        outcome["note"] = find_mismatch(run, converted)
        # Must follow the queries above: otherwise they would find this trace itself.
        store(converted, run.path)
        if is_made(run):
            write_process(run, converted)
        return outcome | {"run": str(run.path)}

    def _resource(self, converted: Conversion, run: RunFolder | None) -> dict[str, Any]:
        if run is not None:
            from otel_mlperf.replay.span_requests import resource_of
            from otel_mlperf.store.table_reader import Store

            return resource_of(run, Store(run.path), converted.rank, converted.restart)
        trace = converted.trace
        attributes: dict[str, Any] = {
            names.SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or SERVICE,
            names.SERVICE_INSTANCE_ID: str(uuid.uuid5(uuid.NAMESPACE_OID, trace.digest)),
            names.RANK: converted.rank,
        }
        if trace.world_size is not None:
            attributes[names.WORLD_SIZE] = trace.world_size
        if isinstance(trace.header.get("host_name"), str):
            attributes[names.HOST_NAME] = trace.header["host_name"]
        return attributes

    def _send(
        self, converted: Conversion, resource: dict[str, Any], client: OtlpClient
    ) -> tuple[int, int]:
        from otel_mlperf.replay.span_requests import deliver

        refused = sum(deliver(client, body) for _, body in requests(converted, resource))
        return converted.kept + converted.roll_ups - refused, refused

    def _write(self, converted: Conversion, resource: dict[str, Any], out: BinaryIO) -> None:
        from otel_mlperf.otlp.otlp_json import encode_lines

        try:
            out.writelines(encode_lines(resource, sent_rows(converted)))
            out.flush()
        except BrokenPipeError:  # With `--out -`, a closed pipe is not an error.
            raise
        except OSError as error:
            raise OutputError(f"writing {self._out_path}: {error.strerror}") from error


def parse_budget(text: str) -> Budget | None:
    """Parse ``--budget``: a number of spans, a size, or ``none`` for no limit.

    Return None if ``text`` is empty: the default budget then applies.

    Raises:
        UsageError: ``text`` has none of these forms.
    """
    if not text:
        return None
    if text.lower() == "none":
        return Budget(spans=None)
    match = _BUDGET.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise UsageError(
            f"--budget {text}: expected a number of spans, a size such as 2MiB, or none"
        )
    if match[2]:
        return Budget(spans=None, bytes=int(match[1]) * (_UNITS | _BINARY)[match[2].lower()])
    return Budget(spans=int(match[1]))


def budget_of(window: Window | None, ranks: Callable[[Trace], int], trace: Trace) -> Budget:
    """Return the budget that the agent would use, so that an imported window sends the same spans.

    ``window`` is None for a trace that no run recorded: then ``ranks`` returns the number of ranks
    that share a step's budget.
    """
    from otel_mlperf.agent.model.agent_options import read_options

    policy = read_options(os.environ).policy
    if window is None:
        return Budget(policy.spans_of_rank(ranks(trace)))
    spans, by_trace = policy.spans_of_window(window)
    return Budget(spans, by_trace=by_trace)
