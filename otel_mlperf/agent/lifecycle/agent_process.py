"""Process or thread in which the agent runs, from its start to its end.

The agent runs in its own process, detached from the training job. If no process can be started, the
agent is a thread of the user's program. One such thread serves all ranks of a node. The thread of
any other rank waits until the rank's journal has been read, or takes over if the serving thread
ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.delivery.provider_destination import drop_sockets
from otel_mlperf.agent.lifecycle.node_folder import claim_folder
from otel_mlperf.agent.model.agent_options import read_options
from otel_mlperf.agent.readings.gpu_visibility import drop_views
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.bulletin import drop_readings
from otel_mlperf.journal.folder_lock import LOCK, OnlyOne
from otel_mlperf.journal.journal_folder import is_own, journals_in
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.portability import IS_PORTABLE
from otel_mlperf.run_files.run_file import RUN_FILE, write_run_file
from otel_mlperf.whole_file import make_folder, open_private

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Mapping

    from otel_mlperf.agent.lifecycle.agent_loop import Agent
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.journal.meta import JournalMeta

_log = logging.getLogger("otel_mlperf.agent")
_NICE: Final = 10
_OOM_SCORE: Final = "500"
_WAITS_S: Final = (0.1, 1, 2, 5, 10, *([30] * 20))
"""Waits before journals that could not be stored are retried, ten minutes in total."""
_LOG_BYTES: Final = 1 << 20


def serve(
    folder: Path,
    options: Options,
    lock: OnlyOne | None = None,
    *,
    take_over: Callable[[], None] = lambda: None,
    quieten: Callable[[int], None] = lambda _: None,
) -> int:
    """Serve the journals in ``folder`` until the last journal has ended; return an exit code.

    Does nothing if another agent serves the folder, or if other users can write to the folder: a
    journal contains the path of the run folder to which the agent writes.

    Args:
        folder: folder of the journals.
        options: options of the agent.
        lock: lock of the folder that the caller has acquired; None if this function must acquire
            the lock.
        take_over: called before a journal is opened: stops the ``FirstLook`` thread, which until
            then freed the journals' slots.
        quieten: lowers the priority of all threads but the given one (see ``Agent.run``).
    """
    if not is_own(folder):
        _log.error("other users can write to %s: no journal in this folder is read", folder)
        return 1
    for wait_s in (*_WAITS_S, 0.0):
        with (lock := lock or OnlyOne(folder)) as is_mine:
            if not is_mine:
                return 0
            _serve_locked(folder, options, lock, take_over, quieten)
        # If there is still a journal, retry: a process may have started while this agent was
        # ending, or the disk was full so that a journal could not be stored.
        if not journals_in(folder) or first_meta(folder) is None:
            remove_if_empty(folder)
            return 0
        time.sleep(wait_s)
    _log.error(
        "giving up: data in %s could not be stored; run otel-mlperf doctor --recover", folder
    )
    return 1


def _serve_locked(
    folder: Path,
    options: Options,
    lock: OnlyOne,
    take_over: Callable[[], None],
    quieten: Callable[[int], None],
) -> None:
    meta = first_meta(folder)
    if meta is None:
        return
    with _claimed_agent(meta, folder, options, take_over=take_over) as agent:
        try:
            agent.run(lock.keeps, quieten)
        except Exception:
            # Log it, because a process without a terminal shows no traceback.
            if _log.hasHandlers():
                _log.exception("the agent failed; the next agent reads the remaining journals")
            raise


def _make_run_folder(meta: JournalMeta) -> None:
    about = {"id": meta.run_id, "name": meta.run_name, "started_ns": meta.unix_ns,
             "host": meta.host, "world_size": meta.world_size,
             "key": meta.run_key or ""}  # fmt: skip
    make_folder(meta.run_folder)
    if not os.path.exists(os.path.join(meta.run_folder, RUN_FILE)) and not write_run_file(
        meta.run_folder, about
    ):
        raise JournalError(
            f"storing the run {meta.run_id}: {meta.run_folder} belongs to another run"
        )


def run_in_thread(
    journal: Journal, meta: JournalMeta, environ: Mapping[str, str]
) -> threading.Thread:
    """Start a daemon thread that serves the folder of ``journal`` until the journal is read."""
    thread = threading.Thread(
        target=_run_thread,
        args=(journal, meta, environ),
        name="otel_mlperf agent",
        daemon=True,
    )
    thread.start()
    return thread


def _run_thread(journal: Journal, meta: JournalMeta, environ: Mapping[str, str]) -> None:
    folder = Path(journal.path).parent
    try:
        while os.path.exists(journal.path):
            with (lock := OnlyOne(folder)) as is_mine:
                if is_mine and os.path.exists(journal.path):
                    # Use the existing mapping: opening the file again would drop the program's
                    # lock.
                    own = {journal.path: journal.buffer}
                    with _claimed_agent(meta, folder, read_options(environ), own) as agent:
                        agent.run(lock.keeps)
        remove_if_empty(folder)
    except Exception:  # noqa: BLE001 - a thread has no caller
        _log.exception("the agent failed; unread data remains in the journal")


@contextlib.contextmanager
def _claimed_agent(
    meta: JournalMeta,
    folder: Path,
    options: Options,
    own: dict[str, mmap.mmap] | None = None,
    take_over: Callable[[], None] = lambda: None,
) -> Iterator[Agent]:
    """Claim a folder for the agent's state; yield an agent for the journals in ``folder``."""
    # Imported late: every rank starts an agent, and only the one that serves needs these modules.
    from otel_mlperf.agent.intake.tail import Tail
    from otel_mlperf.agent.lifecycle.agent_loop import Agent

    _make_run_folder(meta)
    with claim_folder(Path(meta.run_folder), meta.host, folder) as place:
        yield Agent(place, Tail(folder, own, take_over), options)


def first_meta(folder: Path) -> JournalMeta | None:
    """Return the metadata of the first readable journal in ``folder``; None if none can be read."""
    for path in journals_in(folder):
        try:
            reader = JournalReader(str(path))
        except JournalError as error:
            _log.info("%s", error)
            continue
        meta = reader.meta
        reader.close()
        return meta
    return None


def remove_if_empty(folder: Path) -> None:
    """Remove a folder of journals and the agent's files in it, if no journal is left."""
    if not journals_in(folder):
        with contextlib.suppress(OSError):
            drop_readings(str(folder))
            drop_views(folder)
            drop_sockets(folder)
            (folder / LOCK).unlink()
            folder.rmdir()


def leave_the_job(run_folder: Path, host: str) -> None:
    """Detach this process from the training job, and make it the OOM killer's first choice."""
    # Leave the working directory, so that it can be unmounted.
    os.chdir("/")
    os.umask(0o077)  # also for files of libraries and child processes
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    _log_to(run_folder / "agent" / host / "agent.log")


def lower_priority(from_nice: int, but: int = 0) -> None:
    """Lower the priority of all threads of this process except ``but``, a native thread id.

    The job gets the CPU first. The thread ``but``, which makes room in the journals, keeps the nice
    value ``from_nice``, because the thread needs little CPU time, but without delay.
    """
    # In portable mode, priorities are per process: all threads get the lower one.
    threads = [0] if IS_PORTABLE else map(int, os.listdir("/proc/self/task"))
    for thread in threads:
        if thread != but:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, from_nice + _NICE)


def _log_to(path: Path) -> None:
    from logging.handlers import RotatingFileHandler

    try:
        make_folder(path.parent)
        # Create the file here: the handler would follow a link that another user has created.
        os.close(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        handler: logging.Handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1)
    except OSError:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("otel_mlperf", "opentelemetry"):  # SDK exporters log their failures
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("otel_mlperf").setLevel(logging.INFO)
