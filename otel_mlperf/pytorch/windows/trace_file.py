"""Trace files: their folder and name, and writing them completely or not at all.

torch reports no error if it cannot write: the file is then missing, or truncated where the disk was
full.
"""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.errors import StoreError
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.ids import safe_name
from otel_mlperf.journal.profiler_windows import FOLDER, TRACE_SUFFIX
from otel_mlperf.recorder.core.faults import log
from otel_mlperf.recorder.lifecycle.run_identity import script_name
from otel_mlperf.settings.load_config import load_config
from otel_mlperf.whole_file import make_folder, replacing_by_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_reported_folders: set[Path] = set()
_next_number = itertools.count().__next__
_BLOCK: Final = 1 << 20
_DEVICE_EVENTS: Final = (b'"cat": "kernel"', b'"cat": "gpu_mem', b'"cat":"kernel"')


def next_number() -> int:
    """Return the number of the next window of this process, starting with 0."""
    return _next_number()


def folder_of(recorder: Recorder) -> Path:
    """Return the folder for the traces of a run's profiler windows."""
    return Path(recorder.meta.run_folder) / FOLDER


def name_of(recorder: Recorder, number: int) -> str:
    """Return the base name of a window's files, with worker and number as TensorBoard expects."""
    meta = recorder.meta
    restart = f"-restart{meta.restart}" if meta.restart else ""
    child = f"-child{meta.pid}" if meta.is_child else ""
    return f"rank{meta.rank}{restart}{child}.{number}"


def folder_without_run() -> Path:
    """Return the folder for traces that belong to no run."""
    return Path(load_config().dir).absolute() / FOLDER


def name_without_run() -> str:
    """Return the base name of a trace that belongs to no run."""
    return f"{safe_name(script_name())}-{os.getpid()}.{next_number()}"


def write_trace(export: Callable[[str], object], folder: Path, name: str) -> Path:
    """Write a trace by ``export`` to ``<folder>/<name>.pt.trace.json``, and return its path.

    Raises:
        StoreError: the file was not written; the message contains the reason.
        OSError: raised by a signal handler of the program during the export.
    """
    try:
        make_folder(folder)
        place = folder / f"{name}{TRACE_SUFFIX}"
        if place.exists():
            place = folder / f"{name.replace('.', f'-{os.getpid()}.', 1)}{TRACE_SUFFIX}"
    except OSError as error:
        raise StoreError(
            f"writing a profiler trace to {folder}: {error.strerror}; free disk space, or make the "
            "folder writable"
        ) from error
    try:
        # Not synced: the training process waits, and a trace has hundreds of megabytes.
        with replacing_by_name(place) as written:
            export(written)
            _check(Path(written), folder)
    except OSError as error:
        if is_foreign(error):
            raise  # e.g. a TimeoutError of the program
        raise StoreError(
            f"writing the profiler trace {place}: {error.strerror}; free disk space"
        ) from error
    return place


def has_started(results: Any) -> bool:
    """Return whether Kineto's ``results`` contain a trace; False if another profiler took over."""
    for name in ("trace_start_ns", "trace_start_us"):  # the latter until torch 2.4
        if hasattr(results, name):
            return bool(getattr(results, name)())
    return bool(results.events())


def has_device_events(trace: Path) -> bool:
    """Return whether the trace contains events of a GPU."""
    # Searched as text in blocks: parsing the JSON of a window takes longer than recording it.
    overlap = max(map(len, _DEVICE_EVENTS)) - 1
    before = b""
    with trace.open("rb") as file:
        while block := file.read(_BLOCK):
            text = before + block
            if any(pattern in text for pattern in _DEVICE_EVENTS):
                return True
            before = text[-overlap:]
    return False


def report_path(trace: Path, *, console: bool) -> None:
    """Log the path of a trace; with ``console``, print the first path in each folder on stderr."""
    log.info("profiler trace: %s", trace)
    if not console or trace.parent in _reported_folders:
        return
    _reported_folders.add(trace.parent)
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed or missing
        sys.stderr.write(f"otel_mlperf: profiler trace: {trace}\n")


def _check(trace: Path, folder: Path) -> None:
    """Raise if the file does not start and end like a JSON object."""
    # torch writes sequentially, so a truncated trace lacks its end. Reading the whole file would
    # block the training for seconds.
    with trace.open("rb") as file:
        head = file.read(64).lstrip()[:1]
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 64))
        tail = file.read().rstrip()[-1:]
    if (head, tail) != (b"{", b"}"):
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
        raise StoreError(
            f"writing a profiler trace to {folder}: torch wrote an incomplete trace of "
            f"{size:,} bytes, {free:,} bytes are free; free disk space"
        )
