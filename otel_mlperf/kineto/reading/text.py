"""Which part of the text of a trace is in memory?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_mlperf.kineto.reading.source import Source


PART_BYTES: Final = 1 << 19
"""Small enough that a block, and what is made of it, stays in the processor's cache."""


class Text:
    """A window over the stream: bytes are appended at its end and dropped at its beginning.

    One piece is read ahead on a thread: to read, decompress and hash needs no interpreter, so it
    costs no time beside decoding where there is a second processor.
    """

    def __init__(self, source: Source, progress: Callable[[int], None] | None = None) -> None:
        self._source = source
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, "otel-mlperf-trace")
        self._ahead = self._thread.submit(source.read)
        self._piece = memoryview(b"")
        """Read, but not yet in ``data``."""
        self.data = b""
        self.offset = 0
        """Of ``data[0]`` in the uncompressed text."""
        self.ended = False
        """``data`` reaches to the end of the text."""

    def __enter__(self) -> Text:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def more(self) -> bool:
        """Append up to ``PART_BYTES``; false at the end."""
        if not self._piece:
            self._piece = memoryview(self._ahead.result())
            if self._piece:
                self._ahead = self._thread.submit(self._source.read)
            if self._progress is not None:
                self._progress(self._source.file_bytes)
        self.data = b"".join((self.data, self._piece[:PART_BYTES]))
        self.ended = not self._piece
        self._piece = self._piece[PART_BYTES:]
        return not self.ended

    def drop(self, size: int) -> None:
        """Forget the first ``size`` bytes."""
        self.data = self.data[size:]
        self.offset += size
