"""Entry point of the agent process, which serves the journals of one folder."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.folder_lock import OnlyOne

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # read when numpy is loaded
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"


def main(argv: list[str]) -> int:
    """Serve the folder that contains the journal ``argv[0]``; return an exit code.

    If another agent already serves the folder, only read the GPUs that the other agent cannot see.
    """
    from otel_mlperf.agent.intake.first_look import FirstLook
    from otel_mlperf.journal.folder_lock import OnlyOne, is_served
    from otel_mlperf.journal.journal_folder import is_own
    from otel_mlperf.own_processes import lift_limit

    lift_limit()  # before numpy is imported, which aborts the process under a low memory limit
    journal = Path(argv[0]).absolute()
    if not is_own(journal.parent):
        return 1
    # Use all cores: the rank that started this process may be bound to a few cores, which must not
    # be disturbed.
    with contextlib.suppress(OSError, AttributeError):  # only Linux binds processes
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    if is_served(journal.parent):
        _signal_ready()
    # Every rank starts an agent, but only one agent gets the lock. That agent makes room in the
    # journals immediately: loading the agent takes seconds, and the training processes record in
    # the meantime.
    with (lock := OnlyOne(journal.parent)) as is_mine:
        first_look = FirstLook(journal.parent)
        if is_mine:
            first_look.start()
            _signal_ready()
        try:
            return _serve_or_sample(journal, lock if is_mine else None, first_look.stop)
        finally:
            first_look.stop()


def _signal_ready() -> None:
    """Signal the training process that started this agent to continue (see ``agent_launch``)."""
    main_module = sys.modules["__main__"]
    with contextlib.suppress(AttributeError, OSError):
        os.close(main_module.__dict__.pop("ready", -1))


def _serve_or_sample(journal: Path, lock: OnlyOne | None, take_over: Callable[[], None]) -> int:
    # Prevent pyarrow from loading these remote file systems, which are unused and cost 3 MB.
    for module in ("_azurefs", "_gcsfs", "_hdfs", "_s3fs"):
        sys.modules[f"pyarrow.{module}"] = None  # type: ignore[assignment]
    from otel_mlperf.agent.lifecycle.agent_process import (
        first_meta,
        leave_the_job,
        lower_priority,
        remove_if_empty,
        serve,
    )
    from otel_mlperf.agent.model.agent_options import read_options
    from otel_mlperf.ids import safe_name

    meta = first_meta(journal.parent)
    if meta is None:
        # All journals were read while this agent waited for the lock. Its lock file may have kept
        # the previous agent from removing the folder.
        if lock is not None:
            remove_if_empty(journal.parent)
        return 0
    leave_the_job(Path(meta.run_folder), safe_name(meta.host))
    quieten = partial(lower_priority, os.getpriority(os.PRIO_PROCESS, 0))
    code = 0
    if lock is not None:
        code = serve(
            journal.parent, read_options(os.environ), lock, take_over=take_over, quieten=quieten
        )
    if journal.exists():
        from otel_mlperf.agent.readings.gpu_sidecar import sample

        quieten()
        sample(journal, os.environ)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
