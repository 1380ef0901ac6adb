"""How does recording begin in a program that does not ask for it?

``otel-mlperf run`` replaces itself by plain ``python``, so that everything is as under ``python``
because it is ``python``: ``__main__``, arguments, paths, pickling, workers, exit codes, tracebacks.
One variable and one folder at the front of ``PYTHONPATH`` bring ``sitecustomize`` of ours to run
first; it starts the run, switches the integrations on, and takes both away again. Launchers keep
them, for the programs that they start. Which program it is is told from the command line alone,
before any of its code has run.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.integrations.started_program import detect_program
from otel_mlperf.integrations.started_ranks import (
    join_with_group,
    leave_starts,
    script_rank,
    watch_starts,
)
from otel_mlperf.integrations.told_start import read_autostart

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.recorder.lifecycle.run_identity import Identity

_FIRST: Final = 1000
"""Before what others do at the end of such a process."""


def begin() -> None:
    """Starts the run that this process was told to record, if its program is one to record."""
    told = read_autostart(os.environ)
    if told is None:
        return
    program = detect_program(sys.argv, sys.orig_argv)
    is_rank = "RANK" in os.environ
    # Before the run begins: what is started from here on, the agent first, sees the environment
    # that the program has without us.
    if told.scope in ("this", "group") or (program.is_recorded and is_rank):
        told.take_away(os.environ)
    elif program.is_recorded and told.scope == "programs":
        # It may start ranks of its own, which record themselves; its other children do not.
        for_ranks = msgspec.structs.replace(told, scope="ranks")
        os.environ.update(for_ranks.put({}))
    if told.scope == "group":
        join_with_group(told, join)
    elif told.run_id:
        record(told.name or program.name, script_rank(told, os.environ))
    elif program.is_recorded and (is_rank or told.scope != "ranks"):
        record(told.name or program.name)
        if not is_rank:
            watch_starts(join)


def record(name: str, who: Identity | None = None, **overrides: Any) -> Run:
    """Begins a run on behalf of this process, under whose own ``start()`` it goes on.

    Args:
        name: of the run.
        who: which rank of which run this is, where the environment does not say it.
        **overrides: single settings of ``Config``, of such a rank.
    """
    from otel_mlperf.integrations.switch import integrate_all, named_off
    from otel_mlperf.recorder.api.start import start, start_as

    # The run comes first: what goes wrong with an integration is counted in its journal.
    run = start(name) if who is None else start_as(name, who, **overrides)
    run.lend(_give_way)
    recorder = run._recorder
    if recorder is not None:  # else what is watched costs a loop its time for nothing
        integrate_all(but=named_off(recorder.config))
    return run


def join(name: str, who: Identity) -> None:
    """Makes a process of ``multiprocessing`` a rank of a run; the one that started it tells it."""
    from multiprocessing.util import Finalize

    run = record(name, who)
    # Such a process ends without what ``atexit`` has, or behind it.
    Finalize(None, partial(_end, run), exitpriority=_FIRST)
    atexit.register(_end, run)


def _end(run: Run) -> None:
    """Called while what the process fails with goes on, if it does."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
        error = error.__context__  # torch has written it down, and ends with a code
    run.__exit__(type(error) if error is not None else None, error, None)


def _give_way() -> None:
    from otel_mlperf.integrations.switch import give_way

    leave_starts()
    give_way()
