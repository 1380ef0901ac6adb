"""What does ``import`` do with one trace?"""

from __future__ import annotations

import os
import re
import sys
import uuid
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.errors import JournalError, OutputError, StoreError, UsageError
from otel_mlperf.journal.window import FOLDER, TRACE_SUFFIX, WINDOW_SUFFIX, Window, read_window
from otel_mlperf.kineto.convert import Converted, convert, requests, sent_rows, store
from otel_mlperf.kineto.spans.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path
    from typing import BinaryIO

    from otel_mlperf.otlp.client import Client
    from otel_mlperf.report.import_notes import Imported
    from otel_mlperf.store.run_folders import RunFolder

SERVICE: Final = "torch-profiler"
"""Who speaks in a trace that belongs to no run."""
STDOUT: Final = "-"
"""As a file: standard output."""
_BUDGET = re.compile(r"(\d+)\s*([kmg]i?b|b)?", re.IGNORECASE)
_UNITS: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_BINARY: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def parse_budget(text: str) -> Budget | None:
    """The budget of ``--budget``: a number of spans, a size, ``none``; None if it is not given.

    Raises:
        UsageError: it is none of them.
    """
    if not text:
        return None
    if text.lower() == "none":
        return Budget(spans=None)
    found = _BUDGET.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise UsageError(
            f"--budget {text}: a number of spans, a size like 2MiB, or none is expected"
        )
    if found[2]:
        return Budget(spans=None, bytes=int(found[1]) * (_UNITS | _BINARY)[found[2].lower()])
    return Budget(spans=int(found[1]))


class Importer:
    """Converts traces one after the other and takes each where it is wanted."""

    def __init__(self, budget: Budget | None, rank: int | None) -> None:
        self._budget, self._rank = budget, rank
        self.run: RunFolder | None = None
        self.new_run = ""
        """Name of the run to make once there is something to put into it."""
        self.client: Client | None = None
        self._out: BinaryIO | None = None
        self._out_path = ""

    def open(self, path: Path, traces: list[Path], stack: ExitStack, *, is_replaced: bool) -> None:
        """Opens the file of ``--out``, which gets its name with the end of ``stack``.

        Raises:
            UsageError: it is one of the traces.
            OutputError: it is there already, or cannot be written.
        """
        from otel_mlperf.whole_file import new_file

        self._out_path = str(path)
        if self._out_path == STDOUT:
            self._out = sys.stdout.buffer
            return
        if path.exists() and any(one.exists() and one.samefile(path) for one in traces):
            raise UsageError(f"--out {path}: it is one of the traces to import; name another file")
        self._out = stack.enter_context(new_file(path, is_replaced=is_replaced))

    def take(self, path: Path, progress: Callable[[int], None] | None) -> Imported:
        """Imports one trace.

        Raises:
            TraceError: nothing of it can be read.
            StoreError: the run folder cannot be read or written.
            Unreachable: the server does not take it.
        """
        from otel_mlperf.report.import_notes import describe

        run, window = self._belongs_to(path)
        found = convert(
            path,
            self._budget or _budget_of(window),
            window=window,
            run_folder=run.path if run else None,
            rank=self._rank,
            progress=progress,
        )
        outcome = self._store(found)
        resource = self._resource(found, run or self.run)
        if self.client is not None:
            outcome["sent"], outcome["refused"] = self._send(found, resource, self.client)
        if self._out is not None:
            self._write(found, resource, self._out)
            outcome["out"] = self._out_path
        return describe(found, str(path), **outcome)

    def _store(self, found: Converted) -> dict[str, Any]:
        """Puts it into the run, if one is wanted and there is something; what came of that."""
        from otel_mlperf.importing.imported_run import is_made, make_run, strangeness, write_process
        from otel_mlperf.store.table_reader import Store

        if found.is_empty or not (self.run or self.new_run):
            return {}
        outcome: dict[str, Any] = {"is_run_new": self.run is None}
        self.run = run = self.run or make_run(self.new_run, found)
        same = "SELECT 1 FROM windows WHERE digest = $digest"
        outcome["is_replaced"] = bool(Store(run.path).rows(same, digest=found.trace.digest))
        outcome["note"] = strangeness(run, found)
        store(found, run.path)
        if is_made(run):
            write_process(run, found)
        return outcome | {"run": str(run.path)}

    def _belongs_to(self, path: Path) -> tuple[RunFolder | None, Window | None]:
        """The run whose window the trace is, with the window; else the run of ``--run``."""
        from otel_mlperf.store.run_folders import read_run

        if self.new_run or not path.is_file():
            return self.run, None  # reading what is no file says what it is
        place = path.with_name(path.name.removesuffix(TRACE_SUFFIX) + WINDOW_SUFFIX)
        try:
            window = read_window(place)
            run = self.run or read_run(_run_of(path))
        except (JournalError, StoreError):
            return self.run, None
        same = window.run_id == run.facts.id and window.trace == path.name
        return (run, window) if same else (self.run, None)

    def _resource(self, found: Converted, run: RunFolder | None) -> dict[str, Any]:
        if run is not None:
            from otel_mlperf.replay.span_requests import resource_of
            from otel_mlperf.store.table_reader import Store

            return resource_of(run, Store(run.path), found.rank, found.restart)
        trace = found.trace
        attributes: dict[str, Any] = {
            names.SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or SERVICE,
            names.SERVICE_INSTANCE_ID: str(uuid.uuid5(uuid.NAMESPACE_OID, trace.digest)),
            names.RANK: found.rank,
        }
        if trace.world_size is not None:
            attributes[names.WORLD_SIZE] = trace.world_size
        if isinstance(trace.header.get("host_name"), str):
            attributes[names.HOST_NAME] = trace.header["host_name"]
        return attributes

    def _send(self, found: Converted, resource: dict[str, Any], client: Client) -> tuple[int, int]:
        """How many spans the server took, and how many it refused."""
        from otel_mlperf.replay.span_delivery import deliver

        refused = sum(deliver(client, body) for _, body in requests(found, resource))
        return found.kept + found.roll_ups - refused, refused

    def _write(self, found: Converted, resource: dict[str, Any], out: BinaryIO) -> None:
        from otel_mlperf.otlp.otlp_json import encode_lines

        try:
            out.writelines(encode_lines(resource, sent_rows(found)))
            out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"writing {self._out_path}: {error.strerror}") from error


def _budget_of(window: Window | None) -> Budget:
    """What the agent would send of it, so that an import of a window sends the same."""
    from otel_mlperf.agent.model.agent_options import read_options
    from otel_mlperf.agent.model.sampling_policy import allowance

    policy = read_options(os.environ).policy
    if window is None:
        return Budget(policy.spans_of_rank(1))
    spans, by_trace = allowance(policy, window)
    return Budget(spans, by_trace=by_trace)


def _run_of(trace: Path) -> Path:
    """The run folder in whose folder of windows a trace lies; itself where it lies in none."""
    folder = trace.resolve().parent
    return folder.parent if folder.name == FOLDER else folder
