"""Automatic start of recording in a program that does not call ``start()``.

``otel-mlperf run`` replaces itself by plain ``python``, so that everything is as under ``python``
because it is ``python``: ``__main__``, arguments, paths, pickling, workers, exit codes, tracebacks.
One variable and one folder at the front of ``PYTHONPATH`` make Python run this package's
``sitecustomize`` first. It starts the run, switches the integrations on, and removes both again.
Launchers keep them, for the programs that they start. The program is determined from the command
line alone, before any of its code has run.
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
    is_typed,
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
"""Priority that precedes other exit handlers of such a process."""


def begin() -> None:
    """Start the requested run in this process, if its program is one to record."""
    told = read_autostart(os.environ)
    if told is None:
        return
    program = detect_program(sys.argv, sys.orig_argv, is_prompt=is_typed())
    is_rank = "RANK" in os.environ
    is_recorded = _is_recorded(program, told, is_rank=is_rank)
    is_starter = is_recorded and not is_rank and told.scope in ("programs", "ranks")
    # Before the run starts: processes started from here on, the agent first, see the environment
    # that the program has without this package.
    if told.scope in ("this", "group") or (is_recorded and is_rank):
        told.take_away(os.environ)
    elif is_starter:
        _tell_started(told)
    if told.scope == "group":
        join_with_group(told, join)
    elif told.run_id:
        record(told.name or program.name, script_rank(told, os.environ))
    elif is_recorded:
        run = record(told.name or program.name)
        _follow(told, run, is_starter=is_starter)
        if not is_rank:
            watch_starts(join)


def _is_recorded(program: Program, told: Autostart, *, is_rank: bool) -> bool:
    is_asked_for = told.pid == os.getpid() or program.is_named_in(told.delegated)
    if program.kind == "text":
        return is_asked_for
    return program.is_recorded and (is_rank or told.scope != "ranks" or is_asked_for)


def _tell_started(told: Autostart, folder: str = "") -> None:
    """Request recording of started programs that are ranks, or this program's delegated work."""
    words = short_words(sys.argv[1:])
    told = msgspec.structs.replace(told, scope="ranks", pid=0, delegated=words, behind=folder)
    os.environ.update(told.put({}))


def _follow(told: Autostart, run: Run, *, is_starter: bool) -> None:
    """Record the programs that this program starts, or is replaced by."""
    from otel_mlperf.integrations.program_exec import watch_exec

    if run.path is None:
        return
    watch_exec(told)
    if told.behind and "RANK" not in os.environ:  # the starter of ranks may be one itself
        _mark_wrapper(told.behind, is_wrapper=True)
    if is_starter:
        _tell_started(told, str(run.path))
        run.before_end.append(partial(_hide_wrapper, run))


def _mark_wrapper(folder: str, *, is_wrapper: bool) -> None:
    from otel_mlperf.run_files.run_file import write_wrapper

    with contextlib.suppress(OSError, msgspec.MsgspecError):
        write_wrapper(folder, is_wrapper=is_wrapper)


def _hide_wrapper(run: Run) -> None:
    """Hide a run that has only started another one."""
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
    """Start a run on behalf of this process, whose own ``start()`` continues it.

    Args:
        name: name of the run.
        who: rank and run of this process, where the environment does not contain them.
        **overrides: single settings of ``Config``, for such a rank.
    """
    from otel_mlperf.integrations.switch import integrate_all, named_off
    from otel_mlperf.recorder.api.start import start, start_as

    # The run comes first: failures of integrations are counted in its journal.
    run = start(name) if who is None else start_as(name, who, **overrides)
    run.lend(_give_way)
    recorder = run._recorder
    if recorder is not None:  # without a recorder the hooks would only cost time
        integrate_all(but=named_off(recorder.config))
    return run


def join(name: str, who: Identity) -> None:
    """Make a process of ``multiprocessing`` a rank of the run of the process that started it."""
    from multiprocessing.util import Finalize

    run = record(name, who)
    # Such a process ends without ``atexit`` handlers, or after them.
    Finalize(None, partial(_end, run), exitpriority=_FIRST)
    atexit.register(_end, run)


def _end(run: Run) -> None:
    """End the run while the exception that ends the process, if any, is being handled."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
        error = error.__context__  # torch has logged it, and ends with a code
    run.__exit__(type(error) if error is not None else None, error, None)


def _give_way() -> None:
    from otel_mlperf.integrations.program_exec import leave_exec
    from otel_mlperf.integrations.switch import give_way

    leave_starts()
    leave_exec()
    give_way()
