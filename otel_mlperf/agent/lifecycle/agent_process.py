"""Process of the agent: started next to a job without disturbing it, and ended after it.

The agent runs in a process of its own, which leaves the job. Where no process can be started, the
agent is a thread of the program. Of several ranks of a node, one thread serves all, as one agent
would. The other threads wait until their journal has been read, or until that thread has gone.
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
"""Waits between attempts at journals that cannot be stored: ten minutes in all."""
_LOG_BYTES: Final = 1 << 20


def serve(
    folder: Path,
    options: Options,
    lock: OnlyOne | None = None,
    *,
    take_over: Callable[[], None] = lambda: None,
    quieten: Callable[[int], None] = lambda _: None,
) -> int:
    """Read the journals of ``folder`` until the last has ended; return an exit code.

    Does nothing if another agent already serves the folder, or if other users may put journals
    there: a journal names the run folder that is written to.

    Args:
        folder: where the journals are stored.
        options: the agent's options.
        lock: the folder's, if it is held already.
        take_over: stops the thread that has made room in the journals so far.
        quieten: called with the thread that continues to do so (see ``Agent.run``).
    """
    if not is_own(folder):
        _log.error("other users can write to %s: no journal in this folder is read", folder)
        return 1
    for wait_s in (*_WAITS_S, 0.0):
        with (lock := lock or OnlyOne(folder)) as is_mine:
            if not is_mine:
                return 0
            _serve_locked(folder, options, lock, take_over, quieten)
        # A process may have started while the lock was still ours, and found an agent; or the disk
        # was full and its journal could not be stored.
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
            # A process without a terminal shows no traceback.
            if _log.hasHandlers():
                _log.exception("the agent failed; the next agent reads the remaining journals")
            raise


def _make_run_folder(meta: JournalMeta) -> None:
    """Create the run folder if the program could not, because its disk was full or refused it.

    Raises:
        OSError: the disk still refuses.
        JournalError: another run has the folder by now.
    """
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
    """Serve the folder of ``journal`` in a daemon thread until that journal has been read."""
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
                    # On its own mapping: opening the file again would drop the program's lock.
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
    """Yield the agent of the journals in ``folder``, with the node's folder of their run locked."""
    # Not loaded earlier: every rank starts an agent, and all but one find that the node is served.
    from otel_mlperf.agent.intake.tail import Tail
    from otel_mlperf.agent.lifecycle.agent_loop import Agent

    _make_run_folder(meta)
    with claim_folder(Path(meta.run_folder), meta.host, folder) as place:
        yield Agent(place, Tail(folder, own, take_over), options)


def first_meta(folder: Path) -> JournalMeta | None:
    """Return the metadata of the first readable journal; None if there is none."""
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
    """Remove a journal folder that has no journal any more."""
    if not journals_in(folder):
        with contextlib.suppress(OSError):
            drop_readings(str(folder))
            drop_views(folder)
            drop_sockets(folder)
            (folder / LOCK).unlink()
            folder.rmdir()


def leave_the_job(run_folder: Path, host: str) -> None:
    """Detach this process from the job, and make it the first candidate for an OOM kill."""
    # The job's directory must not be kept busy: it may be unmounted.
    os.chdir("/")
    os.umask(0o077)  # also for what libraries and child processes write
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    _log_to(run_folder / "agent" / host / "agent.log")


def lower_priority(from_nice: int, but: int = 0) -> None:
    """Lower the priority of every thread of this process but one, so that the job goes first.

    The thread that makes room in the journals needs little time, but immediately: it keeps
    ``from_nice``.
    """
    # On other systems only a process has a priority: the thread that makes room is slowed down,
    # too.
    threads = [0] if IS_PORTABLE else map(int, os.listdir("/proc/self/task"))
    for thread in threads:
        if thread != but:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, from_nice + _NICE)


def _log_to(path: Path) -> None:
    from logging.handlers import RotatingFileHandler

    try:
        make_folder(path.parent)
        # Created here: the handler would follow a link that another user has put there.
        os.close(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        handler: logging.Handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1)
    except OSError:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("otel_mlperf", "opentelemetry"):  # exporters log why they failed
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("otel_mlperf").setLevel(logging.INFO)
