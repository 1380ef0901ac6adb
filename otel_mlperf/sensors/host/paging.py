"""Page faults and swapped pages of the host. Own code: psutil counts no faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile, field
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from pathlib import Path


class PagingSensor:
    """Counts of ``/proc/vmstat``."""

    def __init__(self, proc: Path) -> None:
        self._vmstat = KeptFile(proc / "vmstat", may_lack=False)

    def read(self) -> list[Measurement]:
        """Return what the kernel has counted so far; a fault is minor or major, never both."""
        text, measured = self._vmstat.read(), []
        faults, major = field(text, b"pgfault "), field(text, b"pgmajfault ")
        if faults is not None and major is not None:
            # pgfault counts the major ones too.
            for kind, count in (("minor", max(0, faults - major)), ("major", major)):
                labels = {names.PAGING_FAULT: kind}
                measured.append(Measurement(names.PAGING_FAULTS.name, labels, count))
        for direction, key in (("in", b"pswpin "), ("out", b"pswpout ")):
            pages = field(text, key)
            if pages is not None:
                labels = {names.PAGING_DIRECTION: direction}
                measured.append(Measurement(names.PAGING_OPERATIONS.name, labels, pages))
        return measured

    def close(self) -> None:
        """Close the file."""
        self._vmstat.close()
