"""What is left of the CUDA allocator's state when the program runs out of GPU memory?

When the exception leaves its first section, what torch knows of the allocator is written to the
run folder, and the section names the file: ``memory/<rank>-<n>.pickle`` for pytorch.org/memory_viz
(with its history, if the program records that), ``.txt`` for people, ``.json`` for programs. The
exception goes on as it is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import internal_error, log
from otel_mlperf.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.recorder.sections.section_context import SectionContext

FOLDER: Final = "memory"
"""Of a run folder."""
_MOST: Final = 8
"""Of one process: a program may run out of memory again and again, and go on."""
_SEEN: Final = "_otel_mlperf_seen"


class OutOfMemory:
    """Writes what is known when one of a run's sections runs out of GPU memory.

    Args:
        recorder: of the run.
        find_torch: finds torch, if it is there.
    """

    def __init__(
        self, recorder: Recorder, find_torch: Callable[[], Any] = lambda: sys.modules.get("torch")
    ) -> None:
        self._recorder, self._find_torch = recorder, find_torch
        self._written = 0

    def failed(self, section: SectionContext, error: BaseException) -> None:
        """An exception leaves a section; never raises, whatever it is."""
        # By name first: every exception that leaves a section comes here.
        if type(error).__name__ != "OutOfMemoryError":
            return
        try:
            torch = self._find_torch()
            is_ours = torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
            if not is_ours or getattr(error, _SEEN, False) or self._written >= _MOST:
                return
            # Before anything is written: the same exception leaves the sections around this one.
            setattr(error, _SEEN, True)
            self._written += 1
            path = self._write(torch, error)
            if path is not None:
                section.set(**{names.CUDA_MEMORY_SNAPSHOT: f"{FOLDER}/{path.name}"})
                log.warning("out of GPU memory: the allocator's state is in %s", path)
        except Exception as problem:  # noqa: BLE001 - the program's exception goes on
            internal_error(problem)

    def _write(self, torch: Any, error: BaseException) -> Path | None:
        import pickle

        folder = Path(self._recorder.meta.run_folder) / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        base = _free(folder, self._recorder.meta.rank)
        device = torch.cuda.current_device()
        pieces: dict[str, Callable[[], bytes]] = {
            # The format of pytorch.org/memory_viz; nothing here ever reads one.
            ".pickle": lambda: pickle.dumps(torch.cuda.memory._snapshot()),
            ".txt": lambda: b"%s\n\n%s" % (_text(error), _text(torch.cuda.memory_summary(device))),
            ".json": lambda: self._facts(torch, device, error),
        }
        written = [_write_piece(base + suffix, make) for suffix, make in pieces.items()]
        return next((path for path in written if path is not None), None)

    def _facts(self, torch: Any, device: int, error: BaseException) -> bytes:
        import msgspec

        accounts = {
            str(n): torch.cuda.memory_stats_as_nested_dict(n)
            for n in range(torch.cuda.device_count())
        }
        facts = {
            "run_id": self._recorder.meta.run_id,
            "rank": self._recorder.meta.rank,
            "unix_ns": time.time_ns(),
            "device": device,
            "error": str(error),
            "accounts": accounts,
        }
        return msgspec.json.format(msgspec.json.encode(facts))


def _text(value: object) -> bytes:
    return str(value).encode("utf-8", "replace")


def _free(folder: Path, rank: int) -> str:
    """The first name that no other file has: a rank that was restarted goes on counting."""
    taken = {path.stem for path in folder.iterdir()}
    n = next(n for n in range(1, len(taken) + 2) if f"{rank}-{n}" not in taken)
    return str(folder / f"{rank}-{n}")


def _write_piece(name: str, make: Callable[[], bytes]) -> Path | None:
    """Writes what can be had; None where it cannot."""
    path = Path(name)
    try:
        write_whole(path, make())
    except Exception as problem:  # noqa: BLE001 - the other pieces may work
        path.unlink(missing_ok=True)
        raise_foreign(problem)
        log.warning("out of GPU memory: %s is not written: %s", path.name, problem)
        return None
    return path


def _begin(run: Run) -> None:
    if run._recorder is not None:
        run._recorder.sections.at_failure.append(OutOfMemory(run._recorder).failed)


at_begin.append(_begin)
