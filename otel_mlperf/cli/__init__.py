"""Entry point of the command line: dispatch of commands, and exit codes for errors.

``main`` is the only place that maps errors to exit codes. A command's module is imported when the
command is used, and itself imports libraries only where they are needed. Therefore ``otel-mlperf
run``, whose process becomes the user's program, imports none of them.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from otel_mlperf.errors import NoRoom, OtelMlperfError, SharedRunFolderWarning

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERRUPTED = 130
_NOT_WRITTEN = 74
_ACTING = frozenset({"run", "import", "export", "report", "profile", "serve", "--recover"})
"""Commands (and an option) with side effects.

They fail if the reader of their output closes the pipe, because their remaining work is then not
done."""


def main() -> NoReturn:
    """Run the command in ``sys.argv``, and exit with its exit code."""
    _replace_closed_streams()
    try:
        _dispatch(sys.argv[1:])
        sys.stdout.flush()
        code = 0
    except OtelMlperfError as error:
        code = error.exit_code
        _report(str(error))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        _forget_output()  # the reader of the output has closed the pipe
        code = int(not _ACTING.isdisjoint(sys.argv[1:]))
    except OSError as error:
        _forget_output()
        code = _NOT_WRITTEN
        _report(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Replace standard streams that the shell closed (``>&-``) with ``/dev/null``.

    Such streams are None in Python: commands need no check for None after the replacement. The
    replacement also occupies the descriptors. Otherwise a file opened later could get the
    descriptor of a standard stream, and a library's output would be written into this file. A
    program that ``run`` starts in place of this process does not inherit the replacements: its
    streams remain closed.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open


def _report(message: str) -> None:
    from otel_mlperf.cli.output import warn

    with suppress(OSError):
        warn(message)


def _show_warning(
    default: Callable[..., None], message: Warning | str, category: type[Warning], *rest: Any
) -> None:
    if issubclass(category, SharedRunFolderWarning):
        _report(str(message))
    else:
        default(message, category, *rest)


def _forget_output() -> None:
    """Discard output that cannot be written, so that Python does not fail again on exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):
            stream.flush()
            continue
        with suppress(OSError, AttributeError):
            os.dup2(nowhere, stream.fileno())


def _dispatch(arguments: list[str]) -> None:
    if arguments[:1] == ["run"]:
        from otel_mlperf.cli.run import main as run

        run(arguments[1:])
    _make_room()
    from otel_mlperf.cli.commands import call

    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=SharedRunFolderWarning)
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        call(arguments)


def _make_room() -> None:
    """Ensure that the address space limit leaves room for the libraries of commands.

    Raises:
        NoRoom: the limit is too low, and cannot be raised sufficiently.
    """
    from otel_mlperf.own_processes import AGENT_BYTES, lift_limit, room_of_next, shortage

    lift_limit()
    if lack := shortage(room_of_next(), AGENT_BYTES):
        raise NoRoom(f"loading what a command needs: {lack}")
