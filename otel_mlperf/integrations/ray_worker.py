"""Worker side of Ray Train: a worker, which trains in its own thread, becomes a rank."""

from __future__ import annotations

import importlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.integrations.autostart import record
from otel_mlperf.integrations.integration import harmless
from otel_mlperf.integrations.start_request import Autostart
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.core.recording import unreplaced
from otel_mlperf.recorder.lifecycle.run_folder import count_restart
from otel_mlperf.recorder.lifecycle.run_identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.recorder.lifecycle.run import Run


@contextmanager
def as_rank(told: str, folder: str) -> Iterator[None]:
    """Record the block as a rank; an exception marks the rank as failed, and propagates.

    Args:
        told: the ``Autostart`` request, as JSON text.
        folder: the run folder's path; on another node, the folder might not exist.
    """
    run = _begin(told, folder)
    if run is None:
        yield
        return
    with run:
        yield


@harmless
def _begin(text: str, folder: str) -> Run | None:
    if unreplaced() is not None:
        return None  # this process is already recorded
    request = msgspec.json.decode(text, type=Autostart)
    place = importlib.import_module("ray.train").get_context()
    rank = place.get_world_rank()
    LoopThread.move_here()
    who = Identity(
        run_id=request.run_id,
        rank=rank,
        local_rank=place.get_local_rank(),
        world_size=place.get_world_size(),
        restart=_count_restart(folder, rank),
    )
    return record(request.name or "", who, dir=os.path.dirname(folder))


def _count_restart(folder: str, rank: int) -> int | None:
    """Return the restart count of a worker; None if the run folder does not exist here.

    Ray restarts failed workers without notifying them. Starts are counted under the name
    ``worker-RANK``, separately from the starts of the driver, which is not a worker.
    """
    return count_restart(folder, f"worker-{rank}", None) if os.path.isdir(folder) else None
