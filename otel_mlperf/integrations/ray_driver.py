"""Driver side of Ray Train: the workers become ranks of the driver's run.

Ray sends the training function to its workers, with all objects that it refers to. This module
wraps the function before it is sent. The wrapper is sent by value, so that a worker without this
package still trains.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.integrations.integration import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_mlperf.integrations.start_request import Autostart

MODULE: Final = "ray.train.v2.api.data_parallel_trainer"
"""Module of the trainer in Ray 2.43 and later; earlier versions pass whole trainers to Tune."""
FUNCTION: Final = "DataParallelTrainer._get_train_func"
"""Method that returns the function that a trainer's workers run."""
_LOOP: Final = "train_loop_per_worker"


@contextmanager
def recording_workers(trainer: Any, told: Autostart, folder: str) -> Iterator[None]:
    """Inside the context, replace a trainer's training function with one that records.

    Args:
        trainer: the ``DataParallelTrainer``.
        told: the start request for a rank of the run.
        folder: the run folder's path, valid in any working directory.
    """
    loop = vars(trainer).get(_LOOP)
    recorded = _recorded(loop, told.as_text(), folder) if callable(loop) else None
    if recorded is not None:
        setattr(trainer, _LOOP, recorded)
    try:
        yield
    finally:
        if recorded is not None:
            setattr(trainer, _LOOP, loop)


@harmless
def _recorded(loop: Callable[..., Any], request: str, folder: str) -> Callable[..., Any]:
    # Nested, with its imports inside: Ray passes only such a function by value.
    def train_loop(*given: Any) -> Any:
        import importlib

        try:  # by name: the worker's environment may lack the module
            worker = importlib.import_module("otel_mlperf.integrations.ray_worker")
        except ImportError:
            return loop(*given)
        with worker.as_rank(request, folder):
            return loop(*given)

    return functools.wraps(loop)(train_loop)
