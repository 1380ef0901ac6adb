"""Allocation history of CUDA devices, kept for the moment at which memory runs out.

PyTorch itself keeps the history, up to a maximum number of the newest entries with their stacks
(an allocation and its end are about two entries). It is enabled by the setting, from the first
step in which CUDA is in use until the run's end. If the program already has the history enabled,
it stays as it is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.pytorch.memory.allocator import loaded_torch
from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from otel_mlperf.recorder.lifecycle.run import Run

_OF_TORCH: Final = "/torch/"
UNKNOWN: Final = "not known: OTEL_MLPERF_CUDA_MEMORY_HISTORY says how many entries are kept"


class AllocationHistory:
    """Allocation history, enabled for one run.

    Args:
        entries: maximum number of entries.
        find_torch: finds torch once CUDA is initialised.
    """

    def __init__(self, entries: int, find_torch: Callable[[], Any] = loaded_torch) -> None:
        self._entries, self._find_torch = entries, find_torch
        self._is_settled = False
        self._kept_by: Any = None

    def look(self, _now_ns: int = 0) -> None:
        """Start once CUDA is in use; raises only what a signal handler raised."""
        torch = None if self._is_settled else self._find_torch()
        if torch is None:
            return
        self._is_settled = True
        try:
            if not torch._C._cuda_isHistoryEnabled():
                self._kept_by = torch.cuda.memory
                torch.cuda.memory._record_memory_history(
                    context="alloc", stacks="python", max_entries=self._entries
                )
        except Exception as error:
            if is_foreign(error):
                raise
            warn_once("the history of CUDA memory is not kept: %s: %s",
                      type(error).__name__, error)  # fmt: skip

    def finish(self) -> None:
        """Disable the history if it was enabled here."""
        if self._kept_by is not None:
            self._kept_by._record_memory_history(enabled=None)


def blocks_in_use(snapshot: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the blocks in use of a snapshot, with their ``address`` if torch records it."""
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield block


def bytes_by(
    places: Iterable[str], blocks: Iterable[Mapping[str, Any]]
) -> dict[str, tuple[int, int]]:
    """Return requested bytes and number of blocks, by the place of each block."""
    sizes, counts = Counter[str](), Counter[str]()
    for place, block in zip(places, blocks, strict=True):
        sizes[place] += block.get("requested_size", block["size"])
        counts[place] += 1
    return {place: (size, counts[place]) for place, size in sizes.items()}


def bytes_by_line(snapshot: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return bytes and blocks in use in a snapshot, by the line that allocated them."""
    blocks = list(blocks_in_use(snapshot))
    return bytes_by([_place(block.get("frames") or []) for block in blocks], blocks)


def _place(frames: list[Mapping[str, Any]]) -> str:
    """Return the innermost line that is not PyTorch's own."""
    theirs = [frame for frame in frames if _OF_TORCH not in frame["filename"]]
    for frame in (*theirs, *frames):
        return f"{frame['filename']}:{frame['line']} {frame['name']}"
    return UNKNOWN


def _begin(run: Run) -> None:
    recorder = run._recorder
    if recorder is not None and recorder.config.cuda_memory_history:
        history = AllocationHistory(recorder.config.cuda_memory_history)
        history.look()
        recorder.stepping.now_and_then.append(history.look)
        run.before_end.append(history.finish)


at_begin.append(_begin)
