"""Start, supervision and restart of the agent process.

The agent is a process of its own that outlives this one. It is started through a short-lived child,
so that it is no child of this process (``os.wait()`` of the program never sees it) and leaves no
zombie. It gets no file descriptor of the job, and an isolated ``sys.path``: a ``queue.py`` next to
the user's script must not break it.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.ids import safe_name
from otel_mlperf.journal.folder_lock import is_served
from otel_mlperf.journal.journal_folder import make_private
from otel_mlperf.journal.layout import Word
from otel_mlperf.own_processes import AGENT_BYTES, command, room_here, room_of_next, shortage
from otel_mlperf.portability import host_name
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.settings.config import LEVEL
from otel_mlperf.settings.declared_config import declare
from otel_mlperf.upper_parts import upper
from otel_mlperf.whole_file import make_folder, open_private

if TYPE_CHECKING:
    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.settings.config import Config

_SILENT_NS = 5_000_000_000
_END_SILENT_NS = 1_000_000_000
_GRACE_NS = 20_000_000_000
_HOUR_NS = 3_600_000_000_000
_OFTEN = 5
LONGEST_PAUSE_NS = 300_000_000_000
"""Longest pause between two starts of agents that all die: each pause is twice the previous one."""
_FORK_FIRST = "import os\nif os.fork(): os._exit(0)\n"
"""Imports come after it: the child that this process waits for must be gone in milliseconds."""
_UNTIL_READY_S = 0.5
_WAIT_FIRST = f"""\
import os, select
heard, ready = os.pipe()
if os.fork():
    os.close(ready)
    select.select([heard], [], [], {_UNTIL_READY_S})
    os._exit(0)
os.close(heard)
"""
"""At a run's start: the first rows must not come before the agent makes room for them."""
_DROPPED = (
    "LD_PRELOAD",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""glibc keeps the freed memory of columns and requests, 3 MB, unless these variables are set."""
_TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class AgentWatch:
    """Supervision of the agent for one journal: starts it, and checks it at step boundaries."""

    def __init__(self, journal: Journal, meta: JournalMeta, config: Config) -> None:
        self._journal, self._meta, self._config = journal, meta, config
        self._starts: list[int] = []
        self._next_look = 0
        self.thread: threading.Thread | None = None
        """The agent's thread, if it is not a process."""
        self.is_impossible = False
        """Whether no agent can be started; the reason has been logged."""

    def start(self) -> None:
        """Start the agent; in a thread, with a warning, where no process can be started."""
        now = time.monotonic_ns()
        self._starts.append(now)
        self._next_look = now + _SILENT_NS
        if self._config.agent == "thread":
            self._start_thread()
        elif self._config.agent == "process" and self._has_room(room_of_next()):
            try:
                start_process(
                    self._journal.path,
                    self._meta.run_folder,
                    self._config,
                    is_awaited=len(self._starts) == 1,
                )
            except (OSError, subprocess.SubprocessError) as error:
                warn_once(
                    "the agent cannot be started as a process (%s): it runs in a thread", error
                )
                self._start_thread()

    def _has_room(self, room_bytes: int) -> bool:
        """Return whether an agent may map what it loads; else it would end silently."""
        if lack := shortage(room_bytes, AGENT_BYTES):
            self._give_up(lack)
        return not lack

    def _give_up(self, why: object) -> None:
        self.is_impossible = True
        warn_once("the agent cannot be started at all: %s; recorded data remains in shared memory "
                  "until you run 'otel-mlperf doctor --recover'", why)  # fmt: skip

    def _start_thread(self) -> None:
        if not self._has_room(room_here()):
            return
        environ = agent_environ(self._config, self._meta.run_folder)
        try:
            self.thread = upper("run_in_thread")(self._journal, self._meta, environ)
        except RuntimeError as error:  # the job's limit of threads is reached
            self._give_up(error)

    def look(self, now: int) -> None:
        """Restart the agent if it has died; costs a comparison until five seconds are over."""
        if now < self._next_look:
            return
        self._next_look = now + _SILENT_NS
        self._keep_journal()
        if self._config.agent != "process" or not self._is_silent(now, _SILENT_NS):
            return
        # The last start stays, however old: the next look counts from it.
        self._starts = [s for s in self._starts if now - s < _HOUR_NS] or self._starts[-1:]
        # The cause of its death will mostly kill the next agent too, but may be over later.
        pause = min(_SILENT_NS << min(len(self._starts) - 1, 32), LONGEST_PAUSE_NS)
        if now < self._starts[-1] + pause:
            self._next_look = self._starts[-1] + pause
            return
        # In a thread: a training step must not wait for a process to start.
        threading.Thread(target=self._restart, name="otel_mlperf-restart", daemon=True).start()

    def ensure(self) -> None:
        """Start an agent at the end of the run if there is none any more: nothing checks later."""
        self._keep_journal()
        if self._config.agent == "process" and self._is_silent(time.monotonic_ns(), _END_SILENT_NS):
            self._restart()

    def _keep_journal(self) -> None:
        """Write the journal's header again, and its file where somebody has removed it.

        Otherwise no agent would find the journal, or accept it.
        """
        try:
            self._journal.say_again()
            if self._journal.is_removed:
                make_private(os.path.dirname(self._journal.path))
                self._journal.make_file_again()
                warn_once("the journal %s was removed from shared memory (for example at logout "
                          "with RemoveIPC=yes); the file was created again, nothing is lost",
                          self._journal.path)  # fmt: skip
        except Exception as error:  # noqa: BLE001 - recording never raises
            raise_foreign(error)
            warn_once("%s; retried later", error)

    def _is_silent(self, now: int, most_ns: int) -> bool:
        """Return whether the agent sends no sign of life; a new agent is given time to load."""
        beat, started = self._journal.words[Word.BEAT], self._starts[-1]
        if beat < started:
            return now - started > _GRACE_NS
        return now - beat > most_ns

    def _restart(self) -> None:
        try:
            # A slow disk or a busy node keeps an agent silent for long, and a second agent could do
            # nothing. Only the agent's death releases the lock.
            if is_served(Path(self._journal.path).parent):
                return
            if len(self._starts) > _OFTEN:
                warn_once("the agent has died %d times within an hour; restarts continue with "
                          "pauses of up to %d minutes; for the cause, see agent/*/agent.log in the "
                          "run folder", _OFTEN, LONGEST_PAUSE_NS // 60_000_000_000)  # fmt: skip
            self.start()
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


def start_process(
    journal: str, run_folder: str, config: Config, *, is_awaited: bool = False
) -> None:
    """Start an agent for a journal and those next to it; return when it is on its own.

    ``is_awaited``: return only when it has made room in the journals, which costs some hundredths
    of a second. A second agent for the same folder ends by itself because of a lock, or stays to
    read what the first cannot see.

    Raises:
        OSError: no process can be started.
        subprocess.SubprocessError: the agent could not detach from this process.
    """
    before = _WAIT_FIRST if is_awaited else _FORK_FIRST
    with _start_log(run_folder) as log:
        child = subprocess.Popen(
            command("otel_mlperf.agent.__main__", journal, before=before),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=agent_environ(config, run_folder),
            start_new_session=True,
            close_fds=True,
        )
    if child.wait(timeout=10):
        raise subprocess.SubprocessError(f"exit status {child.returncode}, see {log.name}")


def _start_log(run_folder: str) -> BinaryIO:
    """Return the log for output of the agent before its own log; null while the disk refuses it."""
    # Of this host alone: on a shared disk hundreds start at the same time.
    logs = os.path.join(run_folder, "agent", safe_name(host_name()))
    try:
        make_folder(logs)
        return open(os.path.join(logs, "start.log"), "ab", opener=open_private)
    except OSError:
        return open(os.devnull, "ab")


def agent_environ(config: Config, run_folder: str) -> dict[str, str]:
    """Return the agent's environment: this process's, the settings in force, and no hooks."""
    # The agent's working directory differs from the program's: a relative path would differ, too.
    said, _ = declare(os.environ)
    environ = _RETURNED | {key: value for key, value in said.items() if key not in _DROPPED}
    environ.update(config.to_environ())
    environ["OTEL_MLPERF_DIR"] = os.path.dirname(run_folder)
    environ.pop("OTEL_MLPERF_CONFIG", None)
    environ.pop(LEVEL, None)  # its meaning is part of the settings
    environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    if config.provider == "join":
        environ[_TRACES_EXPORTER] = "none"  # spans would arrive twice
    return environ
