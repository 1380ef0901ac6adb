"""Find the loader named by ``module:loader``, and create copies of it with other settings."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import warnings
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_mlperf.errors import LoaderError, NoSuchLoader, UsageError
from otel_mlperf.loader_trial.loader_settings import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_FAILURES = (Exception, SystemExit)
"""Exceptions of the user's code that are reported; Ctrl-C is passed on."""


def find_loader(target: str, folder: Path) -> Any:
    """Return the loader that ``target`` names; ``folder`` is searched before installed modules.

    A callable that is not iterable is called, and its result is the loader.

    Raises:
        UsageError: ``target`` lacks the module, the ``:`` or the name.
        NoSuchLoader: the file, module or name does not exist.
        LoaderError: the user's code raises, or the object is not iterable.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageError(
            f"{target!r} is not the name of a loader; expected e.g. module:loader or "
            "train.py:loader"
        )
    found = _named(_module(place, folder), name, place)
    if not _is_iterable(found) and callable(found):
        try:
            found = found()
        except _FAILURES as error:
            raise LoaderError(f"calling {target} failed: {failure(error)}") from error
    if not _is_iterable(found):
        raise LoaderError(
            f"{target} is a {type(found).__name__}, which cannot be iterated{_hint(found)}"
        )
    return found


def failure(error: BaseException) -> str:
    """Return a one-line message for an exception of the user's code, with the raising location."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    # An exception of a worker is re-raised with its traceback; the last line is the message.
    if lines and lines[0].startswith("Caught "):
        return lines[-1].strip()
    return f"{type(error).__name__}{f': {lines[0]}' if lines else ''}{place}"


def _module(place: str, folder: Path) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _of_file(folder / place, place)
        sys.path.insert(0, str(folder))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{place}.".startswith(f"{error.name}."):
            raise NoSuchLoader(
                f"no module {place} in {folder} or among the installed packages"
            ) from error
        raise LoaderError(f"importing {place} failed: {failure(error)}") from error
    except _FAILURES as error:
        if isinstance(error, NoSuchLoader):
            raise
        raise LoaderError(f"importing {place} failed: {failure(error)}") from error


def _of_file(path: Path, place: str) -> ModuleType:
    if not path.is_file():
        raise NoSuchLoader(f"no file {place}")
    sys.path.insert(0, str(path.parent.resolve()))  # Same as under `python train.py`.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Must be set before the module runs, because workers that it spawns look it up.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _named(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), 1, 0.6)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise NoSuchLoader(f"{place} contains no {name!r}{meant}")
        found = getattr(found, part)
    return found


def _is_iterable(found: Any) -> bool:
    return hasattr(type(found), "__iter__") and not isinstance(found, str | bytes | dict)


def _hint(found: Any) -> str:
    if hasattr(type(found), "__getitem__"):
        return ": it looks like a dataset; wrap the dataset in a DataLoader"
    return ""


def is_torch_loader(loader: Any) -> bool:
    """Return whether ``loader`` is torch's DataLoader, without importing torch."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def is_iterable_dataset(loader: Any) -> bool:
    """Return whether the dataset is an IterableDataset, of which each worker has a copy."""
    data: Any = sys.modules["torch.utils.data"]
    return isinstance(loader.dataset, data.IterableDataset)


def setting_of(loader: Any) -> Setting:
    """Return the setting with which the user's code created the DataLoader."""
    return Setting(num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor)


def count_prefetched(loader: Any) -> int:
    """Return how many batches all workers prefetch together; 0 if the loader has no workers."""
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def made_again(loader: Any, setting: Setting, collate: Callable[[Any], Any] | None = None) -> Any:
    """Return a plain DataLoader with the arguments of ``loader``, but with ``setting``.

    Workers are persistent. ``collate`` replaces the loader's own collate function.
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
    """Suppress torch's warning about more workers than CPUs, as workers that wait need no CPU."""
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
