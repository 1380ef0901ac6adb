"""Recording across ``os.exec*``: the program that replaces this one is recorded in its place.

Wrapper programs end with ``exec``, and so do programs that restart themselves with other
environment variables. The current run is ended before the replacement, because nothing could end
the run later.
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
    request: Autostart | None = None


def watch_exec(told: Autostart) -> None:
    """Pass the start request ``told`` to any program that replaces this process from now on."""
    if _Exec.request is None:
        os.execv = _following(os.execv, _execv)
        os.execve = _following(os.execve, _execve)
    _Exec.request = told


def leave_exec() -> None:
    """Stop passing the start request on, because this program starts its runs itself."""
    _Exec.request = None


def _following(replace: Any, call: Callable[..., Any]) -> Any:
    # The other exec functions of ``os`` (execl, execvp, …) call these two by their global names.
    @functools.wraps(replace)
    def follow(*arguments: Any) -> Any:
        return call(replace, *arguments)

    return follow


def _execv(replace: Any, path: Any, *rest: Any) -> Any:
    before = dict(os.environ)
    environ = _end_run(path, before)
    if environ is None:
        return replace(path, *rest)
    os.environ.update(environ)
    try:
        return replace(path, *rest)
    finally:  # reached only if the exec failed
        os.environ.clear()
        os.environ.update(before)


def _execve(replace: Any, path: Any, arguments: Any, environ: Any) -> Any:
    return replace(path, arguments, _end_run(path, environ) or environ)


@harmless
def _end_run(path: Any, environ: Mapping[str, str]) -> dict[str, str] | None:
    """End the run and return the environment for the next program; None if no run was ended."""
    request, run = _Exec.request, current()
    recorder = None if run is None else run._recorder
    if request is None or run is None or recorder is None or not run.is_active:
        return None
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        return None  # not executable: ``execvp`` tries the next folder
    is_used = recorder.registry.has_sections
    recorder.shows_summary &= is_used
    run.stop()
    before = environ.get(_PATH) or ""
    rest = before.removeprefix(FOLDER).removeprefix(os.pathsep) if FOLDER in before else before
    passed = msgspec.structs.replace(
        request,
        scope="this" if request.scope == "this" else "programs",
        python_path=rest if rest or (_PATH in environ and not before) else None,
        pid=os.getpid(),
        delegated=short_words(sys.argv[1:]),
        behind="" if is_used else recorder.meta.run_folder,
    )
    return passed.put(environ)
