"""Upload of a growing Weights & Biases file to the W&B server.

W&B's own command reads and uploads the file in a separate process, which ends by itself after the
end record. The process detects the end of the agent. If the run has ended by that time, the process
has a limited time to finish the upload. If the agent was killed, the process ends immediately,
because the next agent starts a new upload process.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_mlperf.own_processes import command
from otel_mlperf.whole_file import make_folder, open_private

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log = logging.getLogger("otel_mlperf.agent")
_REST_S: Final = 60.0
"""Wait before a failed upload is started again. Also the minimum time to finish after the agent's
end."""
_NICE: Final = 10


class Upload:
    """Upload process of one W&B file."""

    def __init__(self, environ: Mapping[str, str], log: Path, rest_s: float) -> None:
        """Initialize without starting a process.

        ``log`` is the file for the command's output. ``rest_s`` is the time in seconds (at least
        60) that the process has to finish after the agent's end.
        """
        self._grace_message = b"%d\n" % max(rest_s, _REST_S)
        settings = {
            "WANDB_DIR": str(log.parent),
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_SHOW_INFO": "false",
        }
        self._environ, self._log_file = {**environ, **settings}, log
        self._child: subprocess.Popen[bytes] | None = None
        self._again_s = 0.0

    def go_on(self, path: Path, *, has_ended: bool, is_anew: bool) -> None:
        """Start or continue the upload of the file ``path``, which has grown.

        ``has_ended``: the file now has an end record. ``is_anew``: an earlier end record was
        replaced.
        """
        if is_anew:  # the process reads nothing after the earlier end record
            self._stop()
        if not self._is_running():
            self._start(path)
        if has_ended and self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.write(self._grace_message)
                self._child.stdin.flush()

    def leave(self) -> None:
        """Close the pipe to the process, which then has a limited time to finish."""
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
            self._child.poll()

    def _is_running(self) -> bool:
        child = self._child
        if child is None or (code := child.poll()) is None:
            return child is not None
        _log.warning(
            "wandb: the upload ended before the run (exit status %d); see %s", code, self._log_file
        )
        self._stop()
        self._again_s = time.monotonic() + _REST_S
        return False

    def _start(self, path: Path) -> None:
        if time.monotonic() < self._again_s:
            return
        try:
            make_folder(self._log_file.with_name("wandb"))
            # Block the log folder by a file: the command would write a line each second, for days.
            logs = self._log_file.with_name("wandb") / "logs"
            os.close(open_private(str(logs), os.O_WRONLY | os.O_CREAT))
            with open(self._log_file, "ab", opener=open_private) as log:
                self._child = subprocess.Popen(
                    command("otel_mlperf.agent.delivery.wandb_upload", str(path)),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=self._environ,
                    start_new_session=True,
                )
        except OSError as error:
            _log.warning("wandb: the process for the upload cannot be started: %s", error)

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self.leave()
        self._child, self._again_s = None, 0.0


def main(argv: list[str]) -> int:
    """Upload the file ``argv[0]`` until the run or the agent ends; return the exit code."""
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    threading.Thread(target=_end_with_the_agent, daemon=True).start()
    from wandb.cli.cli import cli

    # Do not skip synced files, because another process may have marked an outdated state as
    # uploaded.
    arguments = ["beta", "sync", "--live", "--no-skip-synced", argv[0]]
    return int(cli(arguments, standalone_mode=False) or 0)


def _end_with_the_agent() -> None:
    received = b""
    while chunk := os.read(0, 1 << 10):  # until the agent has closed the pipe or ended
        received += chunk
    if received:
        time.sleep(int(received.split()[-1]))
    os._exit(1)
