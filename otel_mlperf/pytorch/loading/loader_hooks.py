"""Hooks into torch that observe the inside of a DataLoader.

Observed are the creation of an iterator, the start of a pass, the request of a batch, and its
fetching and pinning. Values, random streams, exceptions and tracebacks do not change. Functions
that a version of torch does not have are skipped and logged once. Only forked workers are observed:
processes started with ``spawn`` or ``forkserver`` do not inherit the hooks.
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
    """Start observing the inside of loaders, once torch has been imported; never raises."""
    global _gates
    if _gates is None:  # woven code is permanent: install it only once
        _gates = LoaderGates(_worker_id)
        see("the inside of loaders", _install)
    _gates.switch(is_off=False)


def switch_off() -> None:
    """Stop observing the inside of loaders."""
    if _gates is not None:
        _gates.switch(is_off=True)


def _worker_id() -> int | None:
    # Looked up in ``sys.modules``: a lookup through importlib would cost microseconds per batch.
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
    vars(fetch).setdefault("torch", torch)  # woven functions query torch whether it compiles
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
    # Must be registered only once per process: there is no interface to remove this callback.
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


def _weave(part: str, function: Any, gate: Any, subject: str) -> None:
    name = f"_otel_mlperf_loader_{gate.name}"
    see(part, lambda: weave(function, gate, name, subject=subject))
