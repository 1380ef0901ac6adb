"""``trace_handler()``: an ``on_trace_ready`` handler for programs with a profiler of their own.

The trace is stored in the run's folder, like that of a window. torch exports a profile only once,
so a further handler that exports the profile receives a copy.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.settings.load_config import load_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from otel_mlperf.recorder.lifecycle.recorder import Recorder


class TraceHandler:
    """Handler that ``trace_handler()`` returns; called with the profile when its trace is ready."""

    def __init__(self, also: Callable[[Any], object] | None = None) -> None:
        self._also = also
        self._is_watching = False
        self._watch()

    def __call__(self, profile: Any) -> None:
        """Write the trace of ``profile``, and call the program's own handler.

        Raises only what a signal handler of the program raised in the meantime.
        """
        path = None
        try:
            self._watch()
            path = _write(profile, active())
        except Exception as error:  # noqa: BLE001 - torch would raise it into the training
            _warn("the trace of the program's own profiler is lost", error)
        if self._also is None:
            return
        try:
            with _copies(profile, path):
                self._also(profile)
        except Exception as error:  # noqa: BLE001 - torch would raise it into the training
            _warn("trace_handler(also=…) failed", error)

    def _watch(self) -> None:
        """Start marking the steps during which the program's own profiler records."""
        if not self._is_watching and "torch.profiler" in sys.modules:
            from otel_mlperf.pytorch.windows import profiler_lock

            self._is_watching = True
            profiler_lock.install()
            if _note_profiler not in profiler_lock.watchers:
                profiler_lock.watchers.append(_note_profiler)


def trace_handler(also: Callable[[Any], object] | None = None) -> Callable[[Any], None]:
    """Return a handler for ``profile(…, on_trace_ready=om.trace_handler())``.

    For programs that use ``torch.profiler`` themselves. The trace is stored in ``profiles/`` in the
    run's folder, and its events become spans under the sections that caused them. Failures never
    reach the training.

    Args:
        also: another handler, which is called afterwards and exports a copy of the trace, so that
            ``tensorboard_trace_handler("./log")`` works as before.
    """
    return TraceHandler(also)


def _warn(message: str, error: Exception) -> None:
    if is_foreign(error):
        raise error
    warn_once(f"{message}: %s: %s", type(error).__name__, error)


def _note_profiler(is_recording: bool) -> None:
    """Start or stop marking steps, because the program's profiler starts or stops recording."""
    recorder = active()
    if recorder is None:
        return
    from otel_mlperf.pytorch.windows.window_end import seen_steps_of

    profiled = seen_steps_of(recorder)
    if is_recording:
        profiled.begin()
    else:
        profiled.end()


def _write(profile: Any, recorder: Recorder | None) -> Path:
    from otel_mlperf.pytorch.windows.trace_file import (
        folder_without_run,
        name_without_run,
        report_path,
        write_trace,
    )

    if recorder is None:
        path = write_trace(profile.export_chrome_trace, folder_without_run(), name_without_run())
        report_path(path, console=load_config().console)
        return path
    section = recorder.sections.enter(names.SPAN_PROFILER_EXPORT, names.PROFILER)
    try:
        return _write_window(profile, recorder, section.sid)
    finally:
        section.__exit__(None, None, None)


def _write_window(profile: Any, recorder: Recorder, export_span: int) -> Path:
    from otel_mlperf.pytorch.windows.trace_file import folder_of, name_of, next_number, write_trace
    from otel_mlperf.pytorch.windows.window_end import Facts, describe
    from otel_mlperf.recorder.lifecycle.clocks import read_clocks

    # torch's times are those of time.perf_counter(), which is the monotonic clock.
    unix_ns, monotonic_ns = read_clocks()
    shift = unix_ns - monotonic_ns
    start, end = profile.profiler.profiling_start_time_ns, profile.profiler.profiling_end_time_ns
    number = next_number()
    path = write_trace(profile.export_chrome_trace, folder_of(recorder), name_of(recorder, number))
    facts = Facts(
        export_span=export_span,
        start=(start + shift, start),
        end=(end + shift, end),
        activities=sorted(kind.name.lower() for kind in profile.activities),
    )
    describe(recorder, path, number, facts)
    recorder.cells.add(names.PROFILE_WINDOWS.name, names.PROFILE_WINDOWS.unit, 1)
    return path


@contextmanager
def _copies(profile: Any, path: Path | None) -> Iterator[None]:
    """Make ``profile`` export a copy of the trace at ``path``; if that is None, export as usual."""
    if path is None:
        yield
        return

    def export_chrome_trace(place: str, *_: Any, **__: Any) -> None:
        import gzip
        import shutil

        if not place.endswith(".gz"):
            shutil.copyfile(path, place)
            return
        with path.open("rb") as trace, gzip.open(place, "wb") as copy:
            shutil.copyfileobj(trace, copy)

    # Replaced on this object only, while the program's handler runs: torch would raise at a second
    # export.
    profile.export_chrome_trace = export_chrome_trace
    try:
        yield
    finally:
        try:
            del profile.export_chrome_trace
        except AttributeError as error:
            internal_error(error)
