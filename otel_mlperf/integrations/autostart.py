"""Automatic start of recording in a program that does not call ``start()``.

``otel-mlperf run`` replaces itself with plain ``python``. Therefore ``__main__``, arguments, paths,
pickling, workers, exit codes and tracebacks are exactly those of ``python``. One environment
variable and one folder at the front of ``PYTHONPATH`` make Python run this package's
``sitecustomize`` first. That module starts the run, switches the integrations on, and removes the
variable and the folder. In a launcher, variable and folder remain, so that the programs that the
launcher starts inherit them. The program to record is determined from the command line alone,
before any of its code has run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.integrations.start_request import (
    detect_program,
    is_terminal,
    read_autostart,
    short_words,
)
from otel_mlperf.integrations.started_ranks import (
    join_with_group,
    leave_starts,
    script_rank,
    watch_starts,
)

if TYPE_CHECKING:
    from otel_mlperf.integrations.start_request import Autostart, Program
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.recorder.lifecycle.run_identity import Identity

_FIRST: Final = 1000
"""Exit priority in a ``multiprocessing`` process: higher than that of its other exit handlers."""


def begin() -> None:
    """Start the run that the environment requests, if this process's program is to be recorded."""
    request = read_autostart(os.environ)
    if request is None:
        return
    program = detect_program(sys.argv, sys.orig_argv, is_prompt=is_terminal())
    is_rank = "RANK" in os.environ
    is_recorded = _is_recorded(program, request, is_rank=is_rank)
    is_starter = is_recorded and not is_rank and request.scope in ("programs", "ranks")
    # Must come before the run starts: the agent and other child processes inherit the environment
    # as it is then.
    if request.scope in ("this", "group") or (is_recorded and is_rank):
        request.remove_from(os.environ)
    elif is_starter:
        _request_recording(request)
    if request.scope == "group":
        join_with_group(request, join)
    elif request.run_id:
        record(request.name or program.name, script_rank(request, os.environ))
    elif is_recorded:
        run = record(request.name or program.name)
        _follow(request, run, is_starter=is_starter)
        if not is_rank:
            watch_starts(join)


def _is_recorded(program: Program, request: Autostart, *, is_rank: bool) -> bool:
    is_requested = request.pid == os.getpid() or program.is_named_in(request.delegated)
    if program.kind == "text":
        return is_requested
    return program.is_recorded and (is_rank or request.scope != "ranks" or is_requested)


def _request_recording(request: Autostart, folder: str = "") -> None:
    """Request the recording of child programs that are ranks or do this program's work.

    ``folder`` is the folder of this program's run, empty as long as there is no run.
    """
    args = short_words(sys.argv[1:])
    request = msgspec.structs.replace(request, scope="ranks", pid=0, delegated=args, behind=folder)
    os.environ.update(request.put({}))


def _follow(request: Autostart, run: Run, *, is_starter: bool) -> None:
    from otel_mlperf.integrations.program_exec import watch_exec

    if run.path is None:
        return
    watch_exec(request)
    if request.behind and "RANK" not in os.environ:  # otherwise the starter may be a rank
        _mark_wrapper(request.behind, is_wrapper=True)
    if is_starter:
        _request_recording(request, str(run.path))
        run.before_end.append(partial(_hide_wrapper, run))


def _mark_wrapper(folder: str, *, is_wrapper: bool) -> None:
    from otel_mlperf.run_files.run_file import write_wrapper

    with contextlib.suppress(OSError, msgspec.MsgspecError):
        write_wrapper(folder, is_wrapper=is_wrapper)


def _hide_wrapper(run: Run) -> None:
    """Suppress the summary of a run that only started another recorded program."""
    from otel_mlperf.errors import StoreError
    from otel_mlperf.run_files.run_file import read_run_file

    recorder = run._recorder
    assert recorder is not None
    folder = recorder.meta.run_folder
    try:
        if not read_run_file(Path(folder)).is_wrapper:
            return
    except StoreError:
        return
    if recorder.registry.has_sections:
        _mark_wrapper(folder, is_wrapper=False)
    else:
        recorder.shows_summary = False


def record(name: str, who: Identity | None = None, **overrides: Any) -> Run:
    """Start a run on behalf of the program, whose own ``start()`` continues this run.

    Args:
        name: name of the run.
        who: rank and run of this process (None: read from the environment).
        **overrides: settings of ``Config`` for a rank given by ``who``.
    """
    from otel_mlperf.integrations.switch import integrate_all, named_off
    from otel_mlperf.recorder.api.start import start, start_as

    # The run must start before the integrations: their failures are counted in its journal.
    run = start(name) if who is None else start_as(name, who, **overrides)
    run.lend(_give_way)
    recorder = run._recorder
    if recorder is not None:  # without a recorder the hooks would only cost time
        integrate_all(but=named_off(recorder.config))
    return run


def join(name: str, who: Identity) -> None:
    """Make this ``multiprocessing`` process a rank of its parent's run."""
    from multiprocessing.util import Finalize

    run = record(name, who)
    # Ended by both: a ``multiprocessing`` process may end without ``atexit`` handlers, or run them
    # last.
    Finalize(None, partial(_end, run), exitpriority=_FIRST)
    atexit.register(_end, run)


def _end(run: Run) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
        error = error.__context__  # torch logs the cause and exits with a code
    run.__exit__(type(error) if error is not None else None, error, None)


def _give_way() -> None:
    from otel_mlperf.integrations.program_exec import leave_exec
    from otel_mlperf.integrations.switch import give_way

    leave_starts()
    leave_exec()
    give_way()
