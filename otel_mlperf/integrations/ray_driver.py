"""The driver's side of Ray Train: its workers receive that they are ranks of its run.

Ray passes the training function to them, with all that it refers to. They receive it with a wrapper
of this package, by value: a worker whose environment lacks this package trains all the same.
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
"""Module of Ray 2.43 and later; earlier versions pass whole trainers to Tune."""
FUNCTION: Final = "DataParallelTrainer._get_train_func"
"""Function that returns what a trainer's workers run."""
_LOOP: Final = "train_loop_per_worker"


@contextmanager
def telling_workers(trainer: Any, told: Autostart, folder: str) -> Iterator[None]:
    """Make a trainer return a recording function while it is asked for its function.

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
def _recorded(loop: Callable[..., Any], told: str, folder: str) -> Callable[..., Any]:
    # Defined in here, with all that it needs inside: that is what Ray passes by value.
    def train_loop(*given: Any) -> Any:
        import importlib

        try:  # by name: it runs in another process, which may not have the module
            worker = importlib.import_module("otel_mlperf.integrations.ray_worker")
        except ImportError:
            return loop(*given)
        with worker.as_rank(told, folder):
            return loop(*given)

    return functools.wraps(loop)(train_loop)
