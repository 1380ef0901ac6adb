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

from otel_mlperf.address_space import AGENT_BYTES, room_here, room_of_next, shortage
from otel_mlperf.config import LEVEL
from otel_mlperf.declared_config import declare
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.ids import safe_name
from otel_mlperf.isolated_process import command
from otel_mlperf.journal.folder_lock import is_served
from otel_mlperf.journal.journal_folder import make_private
from otel_mlperf.journal.layout import Word
from otel_mlperf.portability import host_name
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.upper_parts import upper
from otel_mlperf.whole_file import make_folder, open_private

if TYPE_CHECKING:
    from otel_mlperf.config import Config
    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.journal.meta import JournalMeta

_SILENT_NS = 5_000_000_000
_END_SILENT_NS = 1_000_000_000
_GRACE_NS = 20_000_000_000
_HOUR_NS = 3_600_000_000_000
_OFTEN = 5
LONGEST_PAUSE_NS = 300_000_000_000
"""Between two starts of agents that all die: each pause is twice the one before, up to this."""
_FORK_FIRST = "import os\nif os.fork(): os._exit(0)\n"
"""Imports come then: the child that we wait for must be gone in milliseconds."""
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
"""At a run's start: what comes at once must not come before somebody makes room for it."""
_DROPPED = (
    "LD_PRELOAD",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""glibc keeps what was freed of columns and requests, 3 MB, unless it is told not to."""
_TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class AgentWatch:
    """Starts the agent for one journal and looks after it at step boundaries."""

    def __init__(self, journal: Journal, meta: JournalMeta, config: Config) -> None:
        self._journal, self._meta, self._config = journal, meta, config
        self._starts: list[int] = []
        self._next_look = 0
        self.thread: threading.Thread | None = None
        """The agent, where it is not a process."""
        self.is_impossible = False
        """Whether there can be none; it has been said why."""

    def start(self) -> None:
        """Starts the agent: in a thread, which is said, where no process can be started."""
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
                say_once(
                    "the agent cannot be started as a process (%s): it runs in a thread", error
                )
                self._start_thread()

    def _has_room(self, room_bytes: int) -> bool:
        """Whether an agent may map what it loads; else it would end without a word."""
        if lack := shortage(room_bytes, AGENT_BYTES):
            self._give_up(lack)
        return not lack

    def _give_up(self, why: object) -> None:
        self.is_impossible = True
        say_once("the agent cannot be started at all: %s; what is recorded stays in shared "
                 "memory until 'otel-mlperf recover' reads it", why)  # fmt: skip

    def _start_thread(self) -> None:
        if not self._has_room(room_here()):
            return
        environ = agent_environ(self._config, self._meta.run_folder)
        try:
            self.thread = upper("run_in_thread")(self._journal, self._meta, environ)
        except RuntimeError as error:  # as many threads as the job may have
            self._give_up(error)

    def look(self, now: int) -> None:
        """Starts the agent again if it has died; costs a comparison until five seconds are over."""
        if now < self._next_look:
            return
        self._next_look = now + _SILENT_NS
        self._keep_journal()
        if self._config.agent != "process" or not self._is_silent(now, _SILENT_NS):
            return
        # The last one stays, however old: the next look counts from it.
        self._starts = [s for s in self._starts if now - s < _HOUR_NS] or self._starts[-1:]
        # Whatever it dies of will mostly kill the next one too, and yet may be over later.
        pause = min(_SILENT_NS << min(len(self._starts) - 1, 32), LONGEST_PAUSE_NS)
        if now < self._starts[-1] + pause:
            self._next_look = self._starts[-1] + pause
            return
        # In a thread: a training step does not wait for a process to start.
        threading.Thread(target=self._restart, name="otel_mlperf-restart", daemon=True).start()

    def ensure(self) -> None:
        """At the end, which nobody looks at later: starts an agent if there is none any more."""
        self._keep_journal()
        if self._config.agent == "process" and self._is_silent(time.monotonic_ns(), _END_SILENT_NS):
            self._restart()

    def _keep_journal(self) -> None:
        """Writes the journal's header again, and its file where somebody has removed it.

        Else no agent would find it, or believe it.
        """
        try:
            self._journal.say_again()
            if self._journal.is_removed:
                make_private(os.path.dirname(self._journal.path))
                self._journal.make_file_again()
                say_once("somebody has removed %s from shared memory (logging out does it where "
                         "RemoveIPC=yes); it is there again, nothing is lost",
                         self._journal.path)  # fmt: skip
        except Exception as error:  # noqa: BLE001 - recording never raises
            raise_foreign(error)
            say_once("%s; it is tried again", error)

    def _is_silent(self, now: int, most_ns: int) -> bool:
        """Whether nothing is heard of it; one that has just been started is given time to load."""
        beat, started = self._journal.words[Word.BEAT], self._starts[-1]
        if beat < started:
            return now - started > _GRACE_NS
        return now - beat > most_ns

    def _restart(self) -> None:
        try:
            # A slow disk or a busy node keeps an agent silent for long, and another one beside it
            # could do nothing. Only a death lets go of the lock.
            if is_served(Path(self._journal.path).parent):
                return
            if len(self._starts) > _OFTEN:
                say_once("the agent has died %d times within an hour; it is started again, with "
                         "pauses of up to %d minutes; agent/*/agent.log in the run folder may say "
                         "why", _OFTEN, LONGEST_PAUSE_NS // 60_000_000_000)  # fmt: skip
            self.start()
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


def start_process(
    journal: str, run_folder: str, config: Config, *, is_awaited: bool = False
) -> None:
    """Starts an agent for a journal and those beside it, and returns when it is on its own.

    ``is_awaited``: and makes room in the journals, which takes some hundredths of a second.

    A second agent for the same folder ends by itself, a lock makes it one; or it stays to read what
    the first cannot see.

    Raises:
        OSError: no process can be started.
        subprocess.SubprocessError: it did not get away from this one.
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
    """What an agent says before it has a log of its own; nowhere while the disk refuses it."""
    # Of this host alone: on a shared disk hundreds start at once.
    logs = os.path.join(run_folder, "agent", safe_name(host_name()))
    try:
        make_folder(logs)
        return open(os.path.join(logs, "start.log"), "ab", opener=open_private)
    except OSError:
        return open(os.devnull, "ab")


def agent_environ(config: Config, run_folder: str) -> dict[str, str]:
    """The agent's environment: this one's, the settings in force, nothing that hooks into it."""
    # The agent has another folder than the program, where a file's path may mean another file.
    said, _ = declare(os.environ)
    environ = _RETURNED | {key: value for key, value in said.items() if key not in _DROPPED}
    environ.update(config.to_environ())
    environ["OTEL_MLPERF_DIR"] = os.path.dirname(run_folder)
    environ.pop("OTEL_MLPERF_CONFIG", None)
    environ.pop(LEVEL, None)  # what it means is in the settings
    environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    if config.provider == "join":
        environ[_TRACES_EXPORTER] = "none"  # spans would arrive twice
    return environ
