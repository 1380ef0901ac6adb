"""Creation of the page of a run in a separate process, with low priority and a time limit.

The process reads the tables, which would require a library and memory that the agent does not have.
"""

from __future__ import annotations

import logging
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.own_processes import command
from otel_mlperf.whole_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = logging.getLogger("otel_mlperf.agent")
LIMIT_S: Final = 120
_POLL_S: Final = 0.05
_FILE: Final = "report.html"
_MAX_OUTPUT_BYTES: Final = 1000
"""Maximum number of bytes of the process's output that are logged after a failure."""


def make_page(
    run_folder: Path, folder: Path, is_wanted: Callable[[], bool] = lambda: True
) -> bytes | None:
    """Return the page, as ``otel-mlperf report`` writes it; None if creating it failed.

    ``folder`` is the agent's folder, for the temporary file. The page is abandoned as soon as
    ``is_wanted`` returns False.
    """
    place = folder / _FILE
    arguments = msgspec.json.encode([str(run_folder), str(place), LIMIT_S]).decode()
    try:
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                command("otel_mlperf.report.page.__main__", arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
            status = _status_of(child, is_wanted)
            if status == 0:
                return read_regular(place)
            output.seek(0)
            message = output.read()[-_MAX_OUTPUT_BYTES:].decode(errors="replace").strip()
    except OSError as error:
        status, message = None, str(error)
    finally:
        place.unlink(missing_ok=True)
    _log.warning("the page of the run was not created (exit status %s): %s", status, message)
    return None


def _status_of(child: subprocess.Popen[bytes], is_wanted: Callable[[], bool]) -> int | None:
    until = time.monotonic() + LIMIT_S
    while child.poll() is None:
        if time.monotonic() > until or not is_wanted():
            child.kill()
            child.wait()
            return None
        time.sleep(_POLL_S)
    return child.returncode
