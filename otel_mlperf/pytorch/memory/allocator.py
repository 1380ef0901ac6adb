"""Memory, shortages and allocation history of PyTorch's CUDA allocator.

Memory and shortages are read from the allocator's statistics at the start of a step. A reading
neither waits for a GPU nor resets counters that the program might read. Readings are taken at most
four times a second, and less often if they would cost more than a thousandth of the time. CUDA is
never initialised for a reading.

PyTorch itself can record an allocation history, which shows why memory ran out: the newest entries
with their stacks, up to a maximum number (about two entries for an allocation and its release). The
setting ``cuda_memory_history`` enables the history from the first step in which CUDA is in use
until the run's end. A history that the program has enabled itself is not changed.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign, raise_foreign
from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.recorder.core.used_so_far import PeakSinceStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from otel_mlperf.recorder.instruments.cells import Labels
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run

_MIN_INTERVAL_NS: Final = 250_000_000
_SHARE: Final = 1000
"""Minimum pause between readings, as a multiple of a reading's duration."""
_DEVICES_NS: Final = 5_000_000_000
"""Interval at which unused devices are checked, in ns."""
_STATES: Final = {"allocated": "allocated_bytes", "reserved": "reserved_bytes"}
_TOTALS: Final = {
    names.CUDA_RETRIES: "num_alloc_retries",
    names.CUDA_OOMS: "num_ooms",
    names.CUDA_DEVICE_ALLOCATIONS: "num_device_alloc",
}


def loaded_torch() -> Any:
    """Return PyTorch, if the program has imported it and has initialised CUDA; else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return torch if cuda is not None and cuda.is_initialized() else None


class Allocator:
    """Reader of the allocator's statistics in one run's process.

    Args:
        recorder: recorder of the run.
        find_torch: returns torch once CUDA is initialised, until then None.
        clock: returns monotonic nanoseconds.
    """

    def __init__(
        self,
        recorder: Recorder,
        find_torch: Callable[[], Any] = loaded_torch,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._recorder, self._find_torch, self._clock = recorder, find_torch, clock
        self._due_ns = self._devices_due_ns = 0
        self._used: dict[int, Labels] = {}
        self._totals: dict[tuple[int, str], float] = {}
        self._is_broken = False
        self._published_peaks: dict[tuple[int, str], int] = {}
        """Peaks since the run started, by device and state, as last published."""
        self._peaks: dict[tuple[int, str], PeakSinceStart] = {}
        self._note_peaks()

    def _note_peaks(self) -> None:
        """Store the peaks that torch already reports, from earlier runs of this process."""
        try:
            torch = self._find_torch()
            for device in range(torch.cuda.device_count()) if torch is not None else ():
                account = torch.cuda.memory_stats_as_nested_dict(device)
                for key in _STATES.values() if account else ():
                    peak = account[key]["all"]["peak"]
                    self._peaks[device, key] = PeakSinceStart(peak)
        except Exception as error:  # noqa: BLE001 - what is foreign goes on
            raise_foreign(error)  # other errors recur at the next reading, which reports them

    def look(self, now_ns: int) -> None:
        """Read the statistics if due; only exceptions of the user's signal handlers propagate."""
        if now_ns < self._due_ns or self._is_broken:
            return
        try:
            torch = self._find_torch()
            if torch is None:
                self._due_ns = now_ns + _MIN_INTERVAL_NS
                return
            start_ns = self._clock()
            self._read(torch, now_ns)
            self._due_ns = now_ns + max(_MIN_INTERVAL_NS, (self._clock() - start_ns) * _SHARE)
        except Exception as error:
            if is_foreign(error):
                raise
            self._is_broken = True  # a version of torch that behaves differently
            warn_once("the memory of the CUDA allocator cannot be read: %s: %s",
                      type(error).__name__, error)  # fmt: skip

    def finish(self) -> None:
        """Read the statistics a last time."""
        self._due_ns = 0
        self.look(self._clock())

    def peaks(self) -> dict[str, int]:
        """Read the statistics; return the highest peaks of any device, in bytes, by attribute."""
        self.finish()
        names_of = {"allocated": names.EPOCH_CUDA_PEAK, "reserved": names.EPOCH_CUDA_RESERVED}
        found: dict[str, int] = {}
        for (_, state), peak in self._published_peaks.items():
            found[names_of[state]] = max(found.get(names_of[state], 0), peak)
        return found

    def _read(self, torch: Any, now_ns: int) -> None:
        devices = list(self._used)
        if now_ns >= self._devices_due_ns:
            self._devices_due_ns = now_ns + _DEVICES_NS
            devices = list(range(torch.cuda.device_count()))
        for device in devices:
            account = torch.cuda.memory_stats_as_nested_dict(device)
            # Skips devices on which this process has never reserved memory: other processes use
            # them.
            if account and account["reserved_bytes"]["all"]["peak"]:
                if device not in self._used:
                    self._used[device] = labels_of(torch, device)
                self._publish(device, account)

    def _publish(self, device: int, account: Any) -> None:
        cells, labels = self._recorder.cells, self._used[device]
        for state, key in _STATES.items():
            kind, size = (*labels, (names.CUDA_MEMORY_STATE, state)), account[key]["all"]
            cells.set(names.CUDA_MEMORY.name, names.CUDA_MEMORY.unit, size["current"], kind)
            peak_metric = names.CUDA_MEMORY_PEAK_USAGE
            peak = self._peaks.get((device, key))
            highest = peak.update(size["peak"], size["current"]) if peak else size["peak"]
            self._published_peaks[device, state] = highest
            cells.set(peak_metric.name, peak_metric.unit, highest, kind)
        split = names.CUDA_MEMORY_SPLIT
        cells.set(split.name, split.unit, account["inactive_split_bytes"]["all"]["current"], labels)
        for metric, key in _TOTALS.items():
            total = account.get(key)
            if total is None:
                continue  # an older torch does not count it
            before = self._totals.get((device, key), total)  # earlier counts are not the run's
            self._totals[device, key] = total
            # The program may reset torch's count to zero.
            cells.add(
                metric.name, metric.unit, total - before if total >= before else total, labels
            )


def labels_of(torch: Any, device: int) -> Labels:
    """Return labels: a device's number in this process and, if known, its UUID in NVML's format."""
    labels = ((names.DEVICE_INDEX, str(device)),)
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    # torch does not distinguish an instance's UUID from a GPU's, and writes that of an AMD GPU
    # differently.
    if uuid is None or "MIG" in properties.name or torch.version.hip is not None:
        return labels
    return (*labels, (names.HW_ID, f"GPU-{uuid}"))


def _begin(run: Run) -> None:
    recorder = run._recorder
    if recorder is not None and recorder.config.reads("allocator"):
        allocator = Allocator(recorder)
        recorder.stepping.now_and_then.append(allocator.look)
        recorder.stepping.peaks.append(allocator.peaks)
        run.before_end.append(allocator.finish)


at_begin.append(_begin)


_OF_TORCH: Final = "/torch/"
UNKNOWN: Final = "unknown: set OTEL_MLPERF_CUDA_MEMORY_HISTORY to the number of recorded entries"


class AllocationHistory:
    """Allocation history of PyTorch, enabled for one run.

    Args:
        entries: maximum number of entries.
        find_torch: returns torch once CUDA is initialised, until then None.
    """

    def __init__(self, entries: int, find_torch: Callable[[], Any] = loaded_torch) -> None:
        self._entries, self._find_torch = entries, find_torch
        self._is_settled = False
        self._kept_by: Any = None

    def look(self, _now_ns: int = 0) -> None:
        """Enable the history if CUDA is in use; only exceptions of signal handlers propagate."""
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
            warn_once("the history of CUDA memory cannot be recorded: %s: %s",
                      type(error).__name__, error)  # fmt: skip

    def finish(self) -> None:
        """Disable the history if ``look`` has enabled the history."""
        if self._kept_by is not None:
            self._kept_by._record_memory_history(enabled=None)


def blocks_in_use(snapshot: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a snapshot's blocks that are in use, with ``address`` if torch records addresses."""
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield block


def bytes_by(
    places: Iterable[str], blocks: Iterable[Mapping[str, Any]]
) -> dict[str, tuple[int, int]]:
    """Return requested bytes and number of blocks by place; ``places`` has one item per block."""
    sizes, counts = Counter[str](), Counter[str]()
    for place, block in zip(places, blocks, strict=True):
        sizes[place] += block.get("requested_size", block["size"])
        counts[place] += 1
    return {place: (size, counts[place]) for place, size in sizes.items()}


def bytes_by_line(snapshot: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return requested bytes and number of blocks in use, by the line that allocated them."""
    blocks = list(blocks_in_use(snapshot))
    return bytes_by([_place(block.get("frames") or []) for block in blocks], blocks)


def _place(frames: list[Mapping[str, Any]]) -> str:
    theirs = [frame for frame in frames if _OF_TORCH not in frame["filename"]]
    for frame in (*theirs, *frames):
        return f"{frame['filename']}:{frame['line']} {frame['name']}"
    return UNKNOWN


def _begin_history(run: Run) -> None:
    recorder = run._recorder
    if recorder is not None and recorder.config.cuda_memory_history:
        history = AllocationHistory(recorder.config.cuda_memory_history)
        history.look()
        recorder.stepping.now_and_then.append(history.look)
        run.before_end.append(history.finish)


at_begin.append(_begin_history)
