"""Benchmark of one loader: throughput, time of its transforms, and the best setting."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.loader_trial.loader_settings import (
    Inside,
    LoaderAnswer,
    Setting,
    TransformTime,
    Trial,
    find_best,
    is_as_fast,
    pasted,
    try_settings,
)
from otel_mlperf.loader_trial.loaders import (
    count_prefetched,
    is_iterable_dataset,
    is_torch_loader,
    made_again,
    many_workers,
    setting_of,
)
from otel_mlperf.loader_trial.timing import Pace, time_batches, time_pass, timed_transforms
from otel_mlperf.recorder.stepping.batch_size import count_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_MAX_DEPTH: Final = 8


def count_bytes(batch: Any, depth: int = _MAX_DEPTH) -> int:
    """Return the bytes of all tensors and arrays in ``batch``, down to ``depth`` nested levels."""
    size = getattr(batch, "nbytes", None)
    if isinstance(size, int):
        return size
    if depth == 0 or isinstance(batch, str | bytes):
        return 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif not isinstance(batch, list | tuple | set):
        batch = list(getattr(batch, "__dict__", {}).values())  # e.g. a dataclass
    parts: Iterable[Any] = batch
    return sum(count_bytes(part, depth - 1) for part in parts)


_PSS: Final = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)


def read_memory(workers: Iterable[int] = (), proc: Path = Path("/proc")) -> int | None:
    """Return the memory in bytes of this process and of ``workers`` (process ids).

    The memory is the PSS: a page that n processes share counts as 1/n in each of them. The result
    is None if the memory of this process cannot be read.
    """
    sizes = [_pss(proc / str(pid) / "smaps_rollup") for pid in (os.getpid(), *workers)]
    return None if sizes[0] is None else sum(size or 0 for size in sizes)


def _pss(file: Path) -> int | None:
    try:
        found = _PSS.search(file.read_bytes())
    except OSError:  # The process has ended, or the kernel has no such file.
        return None
    return int(found[1]) * 1024 if found else None


_COPIES = (
    "each worker has a copy of an IterableDataset: with several workers, samples are repeated "
    "unless the dataset splits them with get_worker_info()"
)
_NOISY = "{setting} was fastest, but within the noise the recommended setting is as fast"


def try_loader(
    target: str,
    loader: Any,
    *,
    batches: int,
    counts: Sequence[int] | None,
    cpus: int,
    tell: Callable[[str], None],
) -> LoaderAnswer:
    """Benchmark ``loader``; a DataLoader is also benchmarked with other settings.

    Args:
        target: name of the loader on the command line.
        loader: an iterable of batches.
        batches: batches per turn.
        counts: numbers of workers to try (None: chosen by the number of CPUs and the speed-up).
        cpus: CPUs that workers may use.
        tell: receives a label of each trial before it starts.

    Raises:
        LoaderError: the loader is empty, or its code raises.
    """
    if not is_torch_loader(loader):
        tell("current settings")
        before, pace = read_memory(), time_batches(loader, batches, 0, time.perf_counter_ns)
        return _answer(target, loader, pace, [_trial(None, pace, before)], cpus)
    tell("parts of the loader")
    inside, pace = look_inside(loader, batches, time.perf_counter_ns)
    now = setting_of(loader)

    def measure(setting: Setting) -> Trial:
        tell(pasted(setting))
        with many_workers():
            return try_setting(loader, setting, batches)

    trials = try_settings(measure, counts, now, cpus)
    return _answer(target, loader, pace, trials, cpus, inside, now)


def try_setting(loader: Any, setting: Setting, batches: int) -> Trial:
    """Benchmark ``loader`` with ``setting``, in turns of at least ``batches`` batches."""
    again, before = made_again(loader, setting), read_memory()
    known = {child.pid for child in active_children()}
    # Workers deliver in rotation: with fewer than two batches per worker, the result would depend
    # on which worker is next.
    turn = max(batches, 2 * setting.num_workers)
    found = time_batches(again, turn, count_prefetched(again), time.perf_counter_ns)
    workers = {child.pid for child in active_children()} - known
    return _trial(setting, found, before, [pid for pid in workers if pid])


def look_inside(loader: Any, batches: int, clock: Callable[[], int]) -> tuple[Inside, Pace]:
    """Time batches in this process; return the parts of a batch's cost, and the throughput."""
    collate_ns = 0

    def collate(samples: Any) -> Any:
        nonlocal collate_ns
        start_ns = clock()
        try:
            return loader.collate_fn(samples)
        finally:
            collate_ns += clock() - start_ns

    again = made_again(loader, Setting(num_workers=0), collate)
    with timed_transforms(loader.dataset, clock) as transforms:
        pace, count = time_pass(again, batches, clock)
    parts = [
        TransformTime(name=one.name, calls=one.calls, batch_ns=one.spent_ns / count)
        for one in transforms
        if one.calls
    ]
    items_ns = pace.batch_ns - collate_ns / count
    inside = Inside(
        batch_ns=pace.batch_ns, items_ns=items_ns, collate_ns=collate_ns / count, transforms=parts
    )
    return inside, pace


def _trial(
    setting: Setting | None, pace: Pace, before: int | None, workers: Sequence[int] = ()
) -> Trial:
    after = read_memory(workers)
    grown = None if before is None or after is None else max(0, after - before)
    return Trial(
        setting=setting,
        batches=pace.batches,
        batch_ns=pace.batch_ns,
        noise=pace.noise,
        samples_per_s=pace.samples_per_s,
        first_batch_ns=pace.first_batch_ns,
        memory_bytes=grown,
    )


def _answer(
    target: str,
    loader: Any,
    pace: Pace,
    trials: list[Trial],
    cpus: int,
    inside: Inside | None = None,
    now: Setting | None = None,
) -> LoaderAnswer:
    best = find_best(trials) if now is not None else None
    as_it_is = next((t for t in trials if now is not None and _is_now(t, now)), None)
    return LoaderAnswer(
        target=target,
        kind=type(loader).__name__,
        dataset=None if now is None else type(loader.dataset).__name__,
        epoch_batches=_length(loader),
        batch_samples=count_samples(pace.first, "auto"),
        batch_bytes=count_bytes(pace.first),
        cpus=cpus,
        now=now,
        trials=trials,
        inside=inside,
        best=best.setting if best else None,
        line=pasted(best.setting) if best and best.setting else None,
        gain=as_it_is.batch_ns / best.batch_ns if best and as_it_is else None,
        notes=read_notes(loader, trials, best),
    )


def _is_now(trial: Trial, now: Setting) -> bool:
    setting = trial.setting
    return setting is not None and setting == Setting(num_workers=now.num_workers)


def read_notes(loader: Any, trials: list[Trial], best: Trial | None) -> list[str]:
    """Return notes on a DataLoader and on the choice of ``best``; [] if ``best`` is None."""
    if best is None:
        return []
    fastest = min(trials, key=lambda trial: trial.batch_ns)
    notes = [_COPIES] if is_iterable_dataset(loader) else []
    if fastest is not best and fastest.setting and is_as_fast(best, fastest):
        notes.append(_NOISY.format(setting=fastest.setting.words))
    return notes


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # An IterableDataset need not have a length.
        return None
