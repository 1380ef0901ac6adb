"""Snapshots of PyTorch's CUDA allocator in the run folder, on request and when memory runs out.

A snapshot consists of three files ``memory/<rank>-<n>``: ``.pickle`` for pytorch.org/memory_viz
(with the allocation history, if that is enabled), ``.txt`` for people and ``.json`` for programs.
Parts that cannot be made are left out. The section of a block is derived from the block's
allocation time in the history, and from the sections in the journal: open ones, and ended ones as
far back as its ring reaches.

When an out-of-memory exception leaves its first section, a snapshot is written, and an attribute of
the section names the snapshot's first file. The exception propagates unchanged.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.journal.layout import ROW, ROW_BYTES, Kind
from otel_mlperf.pytorch.memory.allocator import (
    blocks_in_use,
    bytes_by,
    bytes_by_line,
    loaded_torch,
)
from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import internal_error, log
from otel_mlperf.recorder.sections.section_context import CURRENT, sections_above
from otel_mlperf.whole_file import make_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.recorder.sections.section_context import SectionContext

_SECTION: Final = int(Kind.SECTION)
_NOT_KNOWN: Final = "not known"


class _Section(NamedTuple):
    start_ns: int
    end_ns: int
    entry: int


def bytes_by_section(recorder: Recorder, snapshot: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return requested bytes and number of the blocks in use, by innermost section at allocation.

    The result is empty if there is no allocation history. A block that is older than the history or
    the journal's ring is counted under ``not known``.
    """
    times_ns = _allocated_at(snapshot)
    if not times_ns:
        return {}
    blocks = list(blocks_in_use(snapshot))
    allocated_ns = [times_ns.get(block.get("address"), 0) for block in blocks]
    return bytes_by(_names_at(recorder, allocated_ns), blocks)


def _allocated_at(snapshot: Mapping[str, Any]) -> dict[Any, int]:
    """Return the time of the last allocation at each address, in monotonic ns."""
    from otel_mlperf.recorder.lifecycle.clocks import read_clocks

    unix_ns, monotonic_ns = read_clocks()
    before_ns = unix_ns - monotonic_ns
    return {
        entry["addr"]: entry["time_us"] * 1_000 - before_ns
        for trace in snapshot["device_traces"]
        for entry in trace
        if entry["action"] == "alloc" and "time_us" in entry
    }


def _names_at(recorder: Recorder, times_ns: list[int]) -> list[str]:
    found = [_NOT_KNOWN] * len(times_ns)
    order = sorted(range(len(times_ns)), key=times_ns.__getitem__)
    sections = sorted((*_ended(recorder), *_still_open()))
    around: list[_Section] = []
    following = 0
    for at in order:
        now_ns = times_ns[at]
        while following < len(sections) and sections[following].start_ns <= now_ns:
            around.append(sections[following])
            following += 1
        # The innermost open section is the one that started last. Ended sections are removed: later
        # times cannot be inside them.
        around = [one for one in around if one.end_ns >= now_ns]
        if around:
            found[at] = recorder.registry.about(around[-1].entry)[0]
    return found


def _ended(recorder: Recorder) -> Iterator[_Section]:
    shape = recorder.journal.shape
    begin = shape.ring_at
    ring = bytes(recorder.journal.buffer[begin : begin + shape.rows * ROW_BYTES])
    for start, end, _, _, _, _, entry, flags, slot in ROW.iter_unpack(ring):
        if slot and flags & 15 == _SECTION:
            yield _Section(start, end, entry)


def _still_open() -> Iterator[_Section]:
    now_ns = time.monotonic_ns()
    return (_Section(one.t0, now_ns, one.entry) for one in sections_above(CURRENT.get()))


FOLDER: Final = "memory"
"""Subfolder of a run folder for allocator snapshots."""
_MAX_LINES: Final = 20
"""Maximum number of lines of a list."""
_BY_SECTION: Final = "Memory in use, by the section in which it was allocated"
_BY_LINE: Final = "Memory in use, by the line that allocated it"


def write_allocator(recorder: Recorder, torch: Any, why: str) -> Path | None:
    """Write a snapshot's files; return the first written file's path, None if nothing was written.

    Args:
        recorder: recorder of the run.
        torch: the module, whose CUDA is initialised.
        why: reason for the snapshot, stored in the text and the JSON.
    """
    import pickle

    meta = recorder.meta
    folder = Path(meta.run_folder) / FOLDER
    try:
        make_folder(folder)
        base = _free(folder, meta.rank)
    except OSError as error:
        log.warning("the state of the CUDA allocator cannot be written: %s", error)
        return None
    device, snapshot = torch.cuda.current_device(), cache(torch.cuda.memory._snapshot)
    pieces: dict[str, Callable[[], bytes]] = {
        # pickle is the format of pytorch.org/memory_viz; this package never loads one.
        ".pickle": lambda: pickle.dumps(snapshot()),
        ".txt": lambda: _render_text(recorder, why, torch.cuda.memory_summary(device), snapshot),
        ".json": lambda: _facts(meta, torch, device, why),
    }
    written = [_write_piece(base + suffix, make) for suffix, make in pieces.items()]
    return next((path for path in written if path is not None), None)


def _facts(meta: JournalMeta, torch: Any, device: int, why: str) -> bytes:
    import msgspec

    accounts = {
        str(n): torch.cuda.memory_stats_as_nested_dict(n) for n in range(torch.cuda.device_count())
    }
    facts = {
        "run_id": meta.run_id,
        "rank": meta.rank,
        "unix_ns": time.time_ns(),
        "device": device,
        "error": why,
        "accounts": accounts,
    }
    return msgspec.json.format(msgspec.json.encode(facts))


def _render_text(recorder: Recorder, why: str, summary: str, snapshot: Callable[[], Any]) -> bytes:
    lists = [
        _tried(lambda: _render_sizes(_BY_SECTION, bytes_by_section(recorder, snapshot()))),
        _tried(lambda: _render_sizes(_BY_LINE, bytes_by_line(snapshot()))),
    ]
    return b"\n\n".join(map(_text, filter(None, (why, *lists, summary))))


def _tried(render: Callable[[], str]) -> str:
    try:
        return render()
    except Exception as problem:  # noqa: BLE001 - a version of torch that answers otherwise
        raise_foreign(problem)
        return ""


def _render_sizes(head: str, sizes: Mapping[str, tuple[int, int]]) -> str:
    """List the places with the most bytes, with bytes and blocks; empty if there are no places."""
    order = sorted(sizes.items(), key=lambda item: (-item[1][0], item[0]))[:_MAX_LINES]
    rows = [f"{size:>18,} bytes in {count:,}: {place}" for place, (size, count) in order]
    return "\n".join([head, *rows]) if rows else ""


def _text(value: object) -> bytes:
    return str(value).encode("utf-8", "replace")


def _free(folder: Path, rank: int) -> str:
    """Return the first base name in ``folder`` that no earlier snapshot of the rank uses."""
    used = {path.stem for path in folder.iterdir()}
    n = next(n for n in range(1, len(used) + 2) if f"{rank}-{n}" not in used)
    return str(folder / f"{rank}-{n}")


def _write_piece(name: str, make: Callable[[], bytes]) -> Path | None:
    path = Path(name)
    try:
        write_whole(path, make())
    except Exception as problem:  # noqa: BLE001 - the other pieces may work
        path.unlink(missing_ok=True)
        raise_foreign(problem)
        log.warning("the state of the CUDA allocator: %s cannot be written: %s", path.name, problem)
        return None
    return path


def memory_snapshot(why: str = "asked for") -> Path | None:
    """Write the current state of PyTorch's CUDA allocator into the run folder.

    The files are the same as when GPU memory runs out: a pickle for pytorch.org/memory_viz, a text
    and a JSON. If the allocation history is enabled, by the setting ``cuda_memory_history`` or by
    the program, the pickle contains the history, and the text lists the sections and lines with the
    most memory in use.

    Args:
        why: reason for writing it, stored in the text and in the JSON.

    Returns:
        The first file written, normally the pickle; None if no run is active, the program uses no
        CUDA, or nothing can be written.
    """
    try:
        recorder = active()
        torch = None if recorder is None or is_compiling() else loaded_torch()
        if recorder is None or torch is None:
            return None
        return write_allocator(recorder, torch, str(why))
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return None


_MAX_SNAPSHOTS: Final = 8
"""Maximum number per process: a program may run out of memory repeatedly, and continue."""
_SEEN: Final = "_otel_mlperf_seen"


class OutOfMemory:
    """Writer of an allocator snapshot when a section of a run runs out of GPU memory.

    Args:
        recorder: recorder of the run.
        find_torch: returns torch if it is imported, else None.
    """

    def __init__(
        self, recorder: Recorder, find_torch: Callable[[], Any] = lambda: sys.modules.get("torch")
    ) -> None:
        self._recorder, self._find_torch = recorder, find_torch
        self._written = 0

    def failed(self, section: SectionContext, error: BaseException) -> None:
        """Write a snapshot if the exception means that GPU memory ran out; never raises."""
        # Checked by name first: this function is called for every exception that leaves a section.
        if type(error).__name__ != "OutOfMemoryError":
            return
        try:
            torch = self._find_torch()
            is_ours = torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
            if not is_ours or getattr(error, _SEEN, False) or self._written >= _MAX_SNAPSHOTS:
                return
            # Marked before anything is written: the same exception leaves the sections around this
            # one.
            setattr(error, _SEEN, True)
            self._written += 1
            path = write_allocator(self._recorder, torch, str(error))
            if path is not None:
                section.set(**{names.CUDA_MEMORY_SNAPSHOT: f"{FOLDER}/{path.name}"})
                log.warning(
                    "out of GPU memory: the state of the CUDA allocator is stored in %s", path
                )
        except Exception as problem:  # noqa: BLE001 - the program's exception goes on
            internal_error(problem)


def _begin(run: Run) -> None:
    if run._recorder is not None:
        run._recorder.sections.at_failure.append(OutOfMemory(run._recorder).failed)


at_begin.append(_begin)
