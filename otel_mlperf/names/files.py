"""Metrics of files, measured while a program asks for them."""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import DISK_DIRECTION
from otel_mlperf.names.metric import Metric

SPAN_FILE_READ: Final = "file.read"
SPAN_FILE_WRITE: Final = "file.write"
FILE_READ: Final = "read"
FILE_WRITE: Final = "write"
FILE_IO: Final = Metric(
    "ml.file.io",
    "By",
    "counter",
    "Bytes that calls of files read and wrote, of those that were opened while files were watched.",
    (DISK_DIRECTION,),
)
FILE_IO_TIME: Final = Metric(
    "ml.file.io.time",
    "s",
    "counter",
    "Time of the calls that are counted in ml.file.io.",
    (DISK_DIRECTION,),
)
