"""Start, supervision and restart of the agent process.

The agent outlives this process. A short-lived child starts it, so that the agent is no child of
this process: ``os.wait()`` of the program never returns it, and it leaves no zombie. The agent
inherits no file descriptors. Its ``sys.path`` is isolated: otherwise a ``queue.py`` next to the
user's script would shadow the standard library's.
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
"""Maximum pause between restarts of an agent that dies repeatedly; pauses double each time."""
_FORK_FIRST = "import os\nif os.fork(): os._exit(0)\n"
"""Code that detaches the agent. It precedes all imports, so that the child for which this process
waits exits within milliseconds.
"""
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
"""Code that detaches the agent and waits until it reads the journal. It is used at the start of a
run: otherwise the first rows could fill the ring.
"""
_DROPPED = (
    "LD_PRELOAD",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
_RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Variables by which glibc returns freed memory: otherwise it would keep 3 MB."""
_TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class AgentWatch:
    """Supervisor of the agent for one journal: starts the agent and checks it at steps."""

    def __init__(self, journal: Journal, meta: JournalMeta, config: Config) -> None:
        self._journal, self._meta, self._config = journal, meta, config
        self._starts: list[int] = []
        self._next_look = 0
        self.thread: threading.Thread | None = None
        """Thread of the agent, if the agent runs in this process."""
        self.is_impossible = False
        """Whether no agent can be started, for a reason that has been logged."""

    def start(self) -> None:
        """Start the agent as a process, or in a thread if requested or if no process can start."""
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
        """Return whether ``room_bytes`` of address space suffice for an agent.

        If not, warn and set ``is_impossible``, because the agent would end silently.
        """
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
        """Restart the agent if it has died; this is checked at most every five seconds."""
        if now < self._next_look:
            return
        self._next_look = now + _SILENT_NS
        self._keep_journal()
        if self._config.agent != "process" or not self._is_silent(now, _SILENT_NS):
            return
        # Keep the last start even if it is old: pauses are counted from it.
        self._starts = [s for s in self._starts if now - s < _HOUR_NS] or self._starts[-1:]
        # Pause before the restart: the cause of death usually persists, but may be temporary.
        pause = min(_SILENT_NS << min(len(self._starts) - 1, 32), LONGEST_PAUSE_NS)
        if now < self._starts[-1] + pause:
            self._next_look = self._starts[-1] + pause
            return
        # In a thread: a training step must not wait for a process to start.
        threading.Thread(target=self._restart, name="otel_mlperf-restart", daemon=True).start()

    def ensure(self) -> None:
        """Restart a dead agent at the end of the run, because there are no later checks."""
        self._keep_journal()
        if self._config.agent == "process" and self._is_silent(time.monotonic_ns(), _END_SILENT_NS):
            self._restart()

    def _keep_journal(self) -> None:
        """Rewrite the journal's header, and restore its file if it was removed.

        Agents reject a journal with a damaged header, and cannot find a journal without a file.
        """
        try:
            self._journal.rewrite_header()
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
        """Return whether no heartbeat arrived for ``most_ns``, or from a new agent for 20 s."""
        beat, started = self._journal.words[Word.BEAT], self._starts[-1]
        if beat < started:
            return now - started > _GRACE_NS
        return now - beat > most_ns

    def _restart(self) -> None:
        try:
            # A slow disk or a busy node may delay an agent for long. Only its death releases the
            # lock of the folder; until then a second agent could do nothing.
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
    """Start an agent for the journals of a folder, and return when it is detached.

    A second agent for the same folder ends because of a lock, or becomes a sidecar that reads GPUs
    hidden from the first agent.

    Args:
        journal: path of a journal in the folder.
        run_folder: path of the run folder.
        config: the settings.
        is_awaited: whether to return only when the agent reads the journals, which costs some
            hundredths of a second.

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
    """Open a file for output until the agent opens its log; after a disk error, ``/dev/null``."""
    # One folder per host: on a shared disk, hundreds of agents start at the same time.
    logs = os.path.join(run_folder, "agent", safe_name(host_name()))
    try:
        make_folder(logs)
        return open(os.path.join(logs, "start.log"), "ab", opener=open_private)
    except OSError:
        return open(os.devnull, "ab")


def agent_environ(config: Config, run_folder: str) -> dict[str, str]:
    """Return this process's environment with the effective settings, without injected libraries."""
    # Resolve the declared file here: a relative path would be wrong in the agent's working
    # directory.
    declared, _ = declare(os.environ)
    environ = _RETURNED | {key: value for key, value in declared.items() if key not in _DROPPED}
    environ.update(config.to_environ())
    environ["OTEL_MLPERF_DIR"] = os.path.dirname(run_folder)
    environ.pop("OTEL_MLPERF_CONFIG", None)
    environ.pop(LEVEL, None)  # the settings already contain its values
    environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    if config.provider == "join":
        environ[_TRACES_EXPORTER] = "none"  # spans would arrive twice
    return environ
