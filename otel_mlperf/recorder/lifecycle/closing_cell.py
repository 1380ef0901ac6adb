"""How does the closing text come into the cell of the notebook in which the run ended?

What a child process prints there on its own ends up in whatever cell runs by then. So the cell says
at once that the run has ended, and that line becomes the summary when all of it is stored: mostly
before the cell has ended, else later, from a thread. A front end finds the line again by its id.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.lifecycle.run_identity import is_notebook

if TYPE_CHECKING:
    from collections.abc import Sequence


class ClosingCell:
    """The line, and the child that makes the summary."""

    def __init__(self, folder: str, command: Sequence[str], environ: dict[str, str]) -> None:
        """``command`` prints the summary as a mapping of media types to texts, in JSON.

        Raises:
            Exception: the notebook shows nothing, or no thread can be started.
        """
        self._name, self._command, self._environ = os.path.basename(folder), command, environ
        # The notebook's own: this package does not need one.
        show: Any = importlib.import_module("IPython.display").display
        line = f"{self._name} has ended: its summary comes here once all of it is stored"
        self._line = show({"text/plain": line}, raw=True, display_id=True)
        # Not in the context of the cell: whoever runs a notebook from a script takes note of what
        # belongs to the cell that runs by then, whatever line it is about.
        self._thread = threading.Thread(target=self._fill, name="otel_mlperf summary", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until the summary is shown, or the time is over: then it is shown when it comes."""
        self._thread.join(timeout_s)

    def _fill(self) -> None:
        try:
            answer = subprocess.run(
                self._command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=self._environ,
                process_group=0, check=False,
            ).stdout  # fmt: skip
            told = f"{self._name} has ended: otel-mlperf summary {self._name}"
            made = msgspec.json.decode(answer) if answer else {"text/plain": told}
            self._line.update(made, raw=True)
        except Exception as error:  # noqa: BLE001 - nobody above a thread
            internal_error(error)


def open_cell(folder: str, command: Sequence[str], environ: dict[str, str]) -> ClosingCell | None:
    """The place for the summary of the run in ``folder``; None where no notebook can show it."""
    if not is_notebook() or not _is_kernel():
        return None
    try:
        return ClosingCell(folder, command, environ)
    except Exception as error:  # noqa: BLE001 - a kernel that ends: the summary is printed instead
        internal_error(error)
        return None


def _is_kernel() -> bool:
    """Whether this is the kernel itself: a fork of it can show nothing."""
    shell = sys.modules["IPython"].get_ipython()
    session = getattr(getattr(shell, "kernel", None), "session", None)
    return bool(getattr(session, "pid", os.getpid()) == os.getpid())
