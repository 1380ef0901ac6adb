"""Memory, shortages and allocation history of PyTorch's CUDA allocator.

Memory and shortages are read at the start of a step, from the allocator's own account: nothing
waits for a GPU, and nothing is reset that the program may read. The account is read at most four
times a second, and less often if the measured cost of reading exceeds a thousandth of the time.
CUDA is never initialised for it.

PyTorch itself keeps the history, up to a maximum number of the newest entries with their stacks
(an allocation and its end are about two entries), for the moment at which memory runs out. It is
enabled by the setting, from the first step in which CUDA is in use until the run's end. If the
program already has the history enabled, it stays as it is.
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

_LEAST_NS: Final = 250_000_000
_SHARE: Final = 1000
"""Minimum pause as a multiple of the time that a reading took."""
_DEVICES_NS: Final = 5_000_000_000
"""Interval at which devices are checked that were not in use."""
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
    """Reader of the allocator's accounts in one run's process.

    Args:
        recorder: recorder of the run.
        find_torch: finds torch once CUDA is initialised.
        clock: monotonic nanoseconds.
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
        self._most: dict[tuple[int, str], int] = {}
        """The peak since the run started, by device and state, as last published."""
        self._peaks: dict[tuple[int, str], PeakSinceStart] = {}
        self._note_peaks()

    def _note_peaks(self) -> None:
        """Store the peaks that earlier runs of this process left."""
        try:
            torch = self._find_torch()
            for device in range(torch.cuda.device_count()) if torch is not None else ():
                account = torch.cuda.memory_stats_as_nested_dict(device)
                for key in _STATES.values() if account else ():
                    peak = account[key]["all"]["peak"]
                    self._peaks[device, key] = PeakSinceStart(peak)
        except Exception as error:  # noqa: BLE001 - what is foreign goes on
            raise_foreign(error)  # otherwise reading the account will fail too, and is reported

    def look(self, now_ns: int) -> None:
        """Read the accounts if due; raises only what a signal handler raised."""
        if now_ns < self._due_ns or self._is_broken:
            return
        try:
            torch = self._find_torch()
            if torch is None:
                self._due_ns = now_ns + _LEAST_NS
                return
            began = self._clock()
            self._read(torch, now_ns)
            self._due_ns = now_ns + max(_LEAST_NS, (self._clock() - began) * _SHARE)
        except Exception as error:
            if is_foreign(error):
                raise
            self._is_broken = True  # a version of torch that behaves differently
            warn_once("the memory of the CUDA allocator cannot be read: %s: %s",
                      type(error).__name__, error)  # fmt: skip

    def finish(self) -> None:
        """Read the accounts a last time."""
        self._due_ns = 0
        self.look(self._clock())

    def peaks(self) -> dict[str, int]:
        """Return the peaks so far of the fullest device, as attributes of an epoch that ends."""
        self.finish()
        names_of = {"allocated": names.EPOCH_CUDA_PEAK, "reserved": names.EPOCH_CUDA_RESERVED}
        found: dict[str, int] = {}
        for (_, state), most in self._most.items():
            found[names_of[state]] = max(found.get(names_of[state], 0), most)
        return found

    def _read(self, torch: Any, now_ns: int) -> None:
        devices = list(self._used)
        if now_ns >= self._devices_due_ns:
            self._devices_due_ns = now_ns + _DEVICES_NS
            devices = list(range(torch.cuda.device_count()))
        for device in devices:
            account = torch.cuda.memory_stats_as_nested_dict(device)
            # A device on which the process never reserved anything is used by other processes.
            if account and account["reserved_bytes"]["all"]["peak"]:
                if device not in self._used:
                    self._used[device] = labels_of(torch, device)
                self._publish(device, account)

    def _publish(self, device: int, account: Any) -> None:
        cells, labels = self._recorder.cells, self._used[device]
        for state, key in _STATES.items():
            kind, size = (*labels, (names.CUDA_MEMORY_STATE, state)), account[key]["all"]
            cells.set(names.CUDA_MEMORY.name, names.CUDA_MEMORY.unit, size["current"], kind)
            most = names.CUDA_MEMORY_MOST
            peak = self._peaks.get((device, key))
            highest = peak.update(size["peak"], size["current"]) if peak else size["peak"]
            self._most[device, state] = highest
            cells.set(most.name, most.unit, highest, kind)
        split = names.CUDA_MEMORY_SPLIT
        cells.set(split.name, split.unit, account["inactive_split_bytes"]["all"]["current"], labels)
        for metric, key in _TOTALS.items():
            total = account.get(key)
            if total is None:
                continue  # an older torch does not count it
            before = self._totals.get((device, key), total)  # earlier counts are not of the run
            self._totals[device, key] = total
            # The program may reset torch's count to zero.
            cells.add(
                metric.name, metric.unit, total - before if total >= before else total, labels
            )


def labels_of(torch: Any, device: int) -> Labels:
    """Return a device's number in this process and, if known, its UUID in NVML's format."""
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
            warn_once("the history of CUDA memory cannot be recorded: %s: %s",
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


def _begin_history(run: Run) -> None:
    recorder = run._recorder
    if recorder is not None and recorder.config.cuda_memory_history:
        history = AllocationHistory(recorder.config.cuda_memory_history)
        history.look()
        recorder.stepping.now_and_then.append(history.look)
        run.before_end.append(history.finish)


at_begin.append(_begin_history)
