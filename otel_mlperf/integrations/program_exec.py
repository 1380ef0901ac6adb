"""Recording across ``os.exec*``: the program that replaces this one is recorded in its place.

A wrapper ends so, and a program that starts itself again with other variables. The run of the
replaced program ends first: nothing could end it later.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.integrations.integration import harmless
from otel_mlperf.integrations.start_request import FOLDER, Autostart, short_words
from otel_mlperf.recorder.api.start import current

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATH = "PYTHONPATH"


class _Exec:
    """The request that a replacement of this process receives; None: no request."""

    told: Autostart | None = None


def watch_exec(told: Autostart) -> None:
    """Pass ``told`` on to the program that replaces this process, from now on."""
    if _Exec.told is None:
        os.execv = _following(os.execv, _exec_here)
        os.execve = _following(os.execve, _exec_with)
    _Exec.told = told


def leave_exec() -> None:
    """Stop passing the request on: the program starts its runs itself, and so will the next one."""
    _Exec.told = None


def _following(replace: Any, call: Callable[..., Any]) -> Any:
    # The other functions of ``os`` (execl, execvp, …) look these two up when they are called.
    @functools.wraps(replace)
    def follow(*arguments: Any) -> Any:
        return call(replace, *arguments)

    return follow


def _exec_here(replace: Any, path: Any, *rest: Any) -> Any:
    before = dict(os.environ)
    environ = _end_run(path, before)
    if environ is None:
        return replace(path, *rest)
    os.environ.update(environ)
    try:
        return replace(path, *rest)
    finally:  # the process was not replaced
        os.environ.clear()
        os.environ.update(before)


def _exec_with(replace: Any, path: Any, words: Any, environ: Any) -> Any:
    return replace(path, words, _end_run(path, environ) or environ)


@harmless
def _end_run(path: Any, environ: Mapping[str, str]) -> dict[str, str] | None:
    """End the run, and return the environment in which the next program is recorded."""
    told, run = _Exec.told, current()
    recorder = None if run is None else run._recorder
    if told is None or run is None or recorder is None or not run.is_active:
        return None
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        return None  # the next folder of PATH is tried
    is_used = recorder.registry.has_sections
    recorder.shows_summary &= is_used
    run.stop()
    before = environ.get(_PATH) or ""
    rest = before.removeprefix(FOLDER).removeprefix(os.pathsep) if FOLDER in before else before
    passed = msgspec.structs.replace(
        told,
        scope="this" if told.scope == "this" else "programs",
        python_path=rest if rest or (_PATH in environ and not before) else None,
        pid=os.getpid(),
        delegated=short_words(sys.argv[1:]),
        behind="" if is_used else recorder.meta.run_folder,
    )
    return passed.put(environ)
