"""How does a command say its answer, how far it has got, and what it stumbled over?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Protocol, Self, TextIO

    class Render(Protocol):
        """Draws an answer for people."""

        def __call__(self, *, width: int, color: bool, unicode: bool) -> str:
            """The text, with colours and more than ASCII where the stream takes them."""
            ...


def to_json(answer: Any) -> str:
    """An answer as indented JSON; times stay nanoseconds, as their names say."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def print_answer(answer: Any, render: Render, *, as_json: bool) -> None:
    """Prints an answer: all of it for programs, or what ``render`` makes of it for people."""
    from otel_mlperf.report.lines import shown_in, width_of

    if as_json:
        print(to_json(answer))
        return
    color, unicode = shown_in(sys.stdout)
    print(render(width=width_of(sys.stdout), color=color, unicode=unicode), end="")


def warn(message: str) -> None:
    """Says what is wrong and does not keep the command from going on."""
    print(f"otel-mlperf: {message}", file=sys.stderr, flush=True)


class Progress:
    """A bar on a terminal: how much of the files has been read."""

    def __init__(self, traces: list[Path]) -> None:
        self._bar: Any = None
        self._done = 0
        self._sizes = {trace: trace.stat().st_size if trace.is_file() else 0 for trace in traces}

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=sum(self._sizes.values()))
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def of(self, trace: Path) -> Callable[[int], None] | None:
        """What is told how many bytes of ``trace`` have been read."""
        if self._bar is None:
            return None
        before, self._done = self._done, self._done + self._sizes[trace]

        def read(count: int) -> None:
            self._bar.update(self._task, completed=before + count, description=trace.name)

        return read

    def write(self, text: str, stream: TextIO) -> None:
        """Writes whole lines of the command's output where the bar is."""
        self._pause(lambda: print(text, end="", file=stream, flush=True))

    def _pause(self, output: Callable[[], None]) -> None:
        if self._bar is None:
            output()
            return
        self._bar.stop()
        output()
        self._bar.start()

    def say(self, message: str) -> None:
        """Says what is wrong where the bar is."""
        self._pause(lambda: warn(message))
