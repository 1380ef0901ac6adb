"""Copies of a torch DataLoader with other settings."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from otel_mlperf.loader_trial.trial_shapes import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def is_torch_loader(loader: Any) -> bool:
    """Return whether it is a DataLoader, whose settings can be varied; torch is not imported."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def is_iterable_dataset(loader: Any) -> bool:
    """Return whether each worker iterates a copy of its dataset."""
    data: Any = sys.modules["torch.utils.data"]
    return isinstance(loader.dataset, data.IterableDataset)


def setting_of(loader: Any) -> Setting:
    """Return the program's setting."""
    return Setting(num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor)


def count_ahead(loader: Any) -> int:
    """Return the number of batches that its workers prefetch."""
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def made_again(loader: Any, setting: Setting, collate: Callable[[Any], Any] | None = None) -> Any:
    """Return a plain DataLoader with the program's arguments, and that setting.

    Workers are persistent. ``collate`` replaces the program's own function.
    """
    data: Any = sys.modules["torch.utils.data"]
    more = _batching(loader) | (
        {"in_order": loader.in_order} if hasattr(loader, "in_order") else {}
    )
    if setting.num_workers:
        more |= {
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": setting.prefetch_factor or loader.prefetch_factor or 2,
            "persistent_workers": True,
        }
    return data.DataLoader(
        loader.dataset,
        num_workers=setting.num_workers,
        collate_fn=collate or loader.collate_fn,
        pin_memory=loader.pin_memory,
        generator=loader.generator,
        **more,
    )


@contextmanager
def many_workers() -> Iterator[None]:
    """Suppress torch's warning about more workers than CPUs: they are best if they only wait."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _batching(loader: Any) -> dict[str, Any]:
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    sampler = {} if is_iterable_dataset(loader) else {"sampler": loader.sampler}
    if loader.batch_size is None:
        return {"batch_size": None, **sampler}
    return {"batch_size": loader.batch_size, "drop_last": loader.drop_last, **sampler}
