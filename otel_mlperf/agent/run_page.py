"""Creation of the page of a run in a separate process.

That process leaves the CPU to other processes and has a limited time. It reads the tables, for
which the agent has neither the library nor the memory.
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
_MOST_WORDS: Final = 1000
"""Maximum number of characters of its output that are logged after a failure, from the end."""


def make_page(
    run_folder: Path, folder: Path, is_wanted: Callable[[], bool] = lambda: True
) -> bytes | None:
    """Return the page as ``otel-mlperf report`` writes it; None if it was not made.

    ``folder`` is the agent's own. The page is abandoned once ``is_wanted`` returns False.
    """
    place = folder / _FILE
    asked = msgspec.json.encode([str(run_folder), str(place), LIMIT_S]).decode()
    try:
        with tempfile.TemporaryFile() as said:
            child = subprocess.Popen(
                command("otel_mlperf.report.page.__main__", asked),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                start_new_session=True,
            )
            status = _status_of(child, is_wanted)
            if status == 0:
                return read_regular(place)
            said.seek(0)
            words = said.read()[-_MOST_WORDS:].decode(errors="replace").strip()
    except OSError as error:
        status, words = None, str(error)
    finally:
        place.unlink(missing_ok=True)
    _log.warning("the page of the run was not created (exit status %s): %s", status, words)
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
