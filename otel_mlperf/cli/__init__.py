"""The command line: which words does it know, and how does an error become an exit code?

``main`` is the only place where that happens. Commands are loaded when they are called, and load
their libraries when they run: ``otel-mlperf run`` becomes the program without any of them.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from otel_mlperf.errors import OtelMlperfError

_INTERRUPTED = 130


def main() -> NoReturn:
    """Runs the command that ``sys.argv`` names and exits."""
    try:
        _dispatch(sys.argv[1:])
        sys.stdout.flush()
        code = 0
    except OtelMlperfError as error:
        code = error.exit_code
        print(f"otel-mlperf: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        # Who reads us has seen enough; Python must not find that out again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _dispatch(arguments: list[str]) -> None:
    if arguments[:1] == ["run"]:
        from otel_mlperf.cli.run import main as run

        run(arguments[1:])
    from otel_mlperf.cli.commands import call

    call(arguments)
