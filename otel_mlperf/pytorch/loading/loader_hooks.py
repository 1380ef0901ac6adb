"""Hooks into torch that observe the inside of a DataLoader.

They observe where an iterator is made, starts a pass and is asked for a batch, and where a batch
is fetched and pinned. No value, random stream, exception or traceback changes. What a version of
torch does not expose is left out and logged once. Workers are observed where they are forked: a
process that is started afresh (``spawn``, ``forkserver``) knows nothing of this one.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from otel_mlperf.pytorch.loading.loader_gates import CollateMoment, LoaderGates
from otel_mlperf.pytorch.loop.weave import see, weave
from otel_mlperf.recorder.api import start
from otel_mlperf.recorder.core.forks import call_in_children

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.run import Run

_gates: LoaderGates | None = None


def install() -> None:
    """Observe the inside of loaders from now on; torch has been imported. Never raises."""
    global _gates
    if _gates is None:  # Woven code is permanent, and would be observed twice.
        _gates = LoaderGates(_worker_id)
        see("the inside of loaders", _install)
    _gates.switch(is_off=False)


def switch_off() -> None:
    """Stop observing."""
    if _gates is not None:
        _gates.switch(is_off=True)


def _worker_id() -> int | None:
    # By name: the module is imported, and a lookup through importlib costs microseconds per batch.
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    info = None if worker is None else worker._worker_info
    return None if info is None else int(info.id)


def _install() -> None:
    assert _gates is not None
    gates = _gates
    torch: Any = importlib.import_module("torch")
    loader: Any = importlib.import_module("torch.utils.data.dataloader")
    fetch: Any = importlib.import_module("torch.utils.data._utils.fetch")
    pin: Any = importlib.import_module("torch.utils.data._utils.pin_memory")
    vars(fetch).setdefault("torch", torch)  # queried in each woven function, whether it compiles
    base = loader._BaseDataLoaderIter
    _weave("iterators", base.__init__, gates.made, "self")
    _weave("their passes", base._reset, gates.passed, "(self, first_iter)")
    for kind in (loader._SingleProcessDataLoaderIter, loader._MultiProcessingDataLoaderIter):
        _weave("their batches", kind._next_data, gates.asked, "self")
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        _weave("fetched batches", kind.fetch, gates.fetching, "self")
    _weave("pinned batches", pin.pin_memory, gates.pinning, "None")
    see("collating", lambda: _see_collate(fetch._BaseDatasetFetcher, gates))
    start.at_begin.append(_begin_with)
    run = start.current()
    if run is not None:
        _end_with(run)
    # No interface removes this callback, one more reason to register it only once in a process.
    call_in_children(gates.in_child)


def _see_collate(fetcher: Any, gates: LoaderGates) -> None:
    fetcher.collate_fn = CollateMoment(gates)


def _begin_with(run: Run) -> None:
    if _gates is not None:
        _gates.loaders.forget()
    _end_with(run)


def _end_with(run: Run) -> None:
    run.before_end.append(_finish)


def _finish() -> None:
    if _gates is not None:
        _gates.loaders.tell()


def _weave(what: str, function: Any, gate: Any, subject: str) -> None:
    name = f"_otel_mlperf_loader_{gate.name}"
    see(what, lambda: weave(function, gate, name, subject=subject))
