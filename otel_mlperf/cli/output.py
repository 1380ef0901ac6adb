"""Output of commands: answers as text or JSON, progress, status and warnings."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Protocol, Self, TextIO

    class Render(Protocol):
        """Function that renders an answer as text for a terminal."""

        def __call__(self, *, width: int, color: bool, unicode: bool) -> str:
            """Return the text in ``width`` columns; ``unicode`` allows characters outside ASCII."""
            ...


def to_json(answer: Any) -> str:
    """Return an answer as indented JSON; times remain in nanoseconds (``_ns``).

    Names in an answer can come from untrusted programs. Characters that control a terminal or
    change the direction of text are therefore escaped; they only occur within JSON strings.
    """
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
    return _UNSEEN.sub(_escaped, text)


def _escaped(char: re.Match[str]) -> str:
    units = char[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def echo(message: str) -> None:
    """Print a message about the command's result to standard output."""
    from otel_mlperf.terminal_lines import visible

    print(visible(message), flush=True)


def print_answer(answer: Any, render: Render, *, as_json: bool) -> None:
    """Print an answer as JSON, or as the text that ``render`` returns."""
    from otel_mlperf.terminal_lines import shown_in, width_of

    if as_json:
        print(to_json(answer))
        return
    color, unicode = shown_in(sys.stdout)
    print(render(width=width_of(sys.stdout), color=color, unicode=unicode), end="")


def warn(message: str) -> None:
    """Print a warning about a problem that does not stop the command to standard error."""
    from otel_mlperf.terminal_lines import visible

    print(f"otel-mlperf: {visible(message)}", file=sys.stderr, flush=True)


_UNSEEN = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""Control characters beyond ASCII's first 32, and characters that reorder, break or hide text."""


class Status:
    """Status line on standard error; nothing is shown if standard error is no terminal."""

    def __init__(self) -> None:
        self._status: Any = None

    def __enter__(self) -> Callable[[str], None]:
        if not sys.stderr.isatty():
            return lambda _: None
        from rich.console import Console
        from rich.markup import escape

        status = self._status = Console(stderr=True).status("")
        status.start()
        return lambda text: status.update(escape(text))

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()


class Progress:
    """Progress bar of the bytes read from several files, shown if standard error is a terminal."""

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
                TextColumn("{task.description}", markup=False),
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
        """Return a callback for the number of bytes read of ``trace``; None if no bar is shown."""
        if self._bar is None:
            return None
        from otel_mlperf.terminal_lines import visible

        before, self._done = self._done, self._done + self._sizes[trace]

        def read(count: int) -> None:
            self._bar.update(self._task, completed=before + count, description=visible(trace.name))

        return read

    def write(self, text: str, stream: TextIO) -> None:
        """Print whole lines of the command's output to ``stream`` without disturbing the bar."""
        self._pause(lambda: print(text, end="", file=stream, flush=True))

    def _pause(self, output: Callable[[], None]) -> None:
        if self._bar is None:
            output()
            return
        self._bar.stop()
        output()
        self._bar.start()

    def warn(self, message: str) -> None:
        """Print a warning to standard error without disturbing the bar."""
        self._pause(lambda: warn(message))
