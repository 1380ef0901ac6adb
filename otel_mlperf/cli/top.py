"""``otel-mlperf top``: live view of a running job."""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import replace

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import print_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.text import Text

    from otel_mlperf.analysis.live.live_view import Live

_EVERY_S: Final = 1.0


def top(
    run: RunArgument = "latest",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="Refresh interval in seconds.")
    ] = _EVERY_S,
    as_json: JsonOption = False,
) -> None:
    """Watch a run live: ranks, step times, GPUs, findings.

    Ctrl-C quits. Ranks on this node are read live, without a server; ranks on other nodes show
    their last stored state.
    """
    from otel_mlperf.analysis.findings.finding_watch import FindingWatch
    from otel_mlperf.analysis.live.live_view import LiveWatch
    from otel_mlperf.analysis.run.run_processes import RUNNING
    from otel_mlperf.report.live_screen import render_top
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.terminal_lines import shown_in

    chosen = find_run(run)
    watch, findings = LiveWatch(chosen), FindingWatch(chosen)

    def look() -> Live:
        return replace(watch.look(), findings=findings.look())

    live = look()
    if not (once or as_json) and sys.stdout.isatty() and live.outcome == RUNNING:
        color, unicode = shown_in(sys.stdout)
        live = _watched(look, live, every, color=color, unicode=unicode)
    # Print the last frame again: the alternate screen and its content are removed at the end.
    print_answer(live, partial(render_top, live), as_json=as_json)


def _watched(
    look: Callable[[], Live], live: Live, every: float, *, color: bool, unicode: bool
) -> Live:
    """Draw frames on the alternate screen until the run ends or the user quits.

    The terminal is restored, and the last state returned.
    """
    from rich.console import Console
    from rich.live import Live as Screen

    from otel_mlperf.analysis.run.run_processes import RUNNING

    console = Console(no_color=not color)
    for name in ("SIGTERM", "SIGHUP"):  # must restore the terminal as well
        if number := getattr(signal, name, None):  # SIGHUP does not exist on Windows
            signal.signal(number, signal.default_int_handler)
    try:
        with Screen(
            _frame(live, console, unicode), console=console, screen=True, auto_refresh=False
        ) as screen:
            while live.outcome == RUNNING:
                time.sleep(every)
                live = look()
                screen.update(_frame(live, console, unicode), refresh=True)
    except KeyboardInterrupt:
        pass  # Ctrl-C is the way to quit
    return live


def _frame(live: Live, console: Console, unicode: bool) -> Text:
    from rich.text import Text

    from otel_mlperf.report.live_screen import render_top

    size = console.size
    drawn = render_top(
        live, width=size.width, height=size.height, color=not console.no_color, unicode=unicode
    )
    return Text.from_ansi(drawn, no_wrap=True, overflow="crop")
