"""Process that renders a run's HTML page for the agent."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

_LAST: Final = 19
"""Lowest scheduling priority: all other processes take precedence."""


def main(argv: list[str]) -> int:
    """Write the HTML page and return the process's exit code.

    ``argv[0]`` is a JSON list: run folder, output file, timeout in seconds.
    """
    import msgspec

    from otel_mlperf.errors import OtelMlperfError

    run_folder, file, limit_s = msgspec.json.decode(argv[0], type=tuple[str, str, int])
    os.setpriority(os.PRIO_PROCESS, 0, _LAST)
    signal.alarm(limit_s)  # enforces the timeout even if the agent has died
    try:
        _write(run_folder, file)
    except OtelMlperfError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _write(run_folder: str, file: str) -> None:
    from pathlib import Path

    from otel_mlperf.analysis.page.page_contents import read_page
    from otel_mlperf.report.page.page_file import render_page
    from otel_mlperf.store.run_folders import read_run
    from otel_mlperf.whole_file import write_whole

    page = render_page(read_page([read_run(Path(run_folder))]))
    write_whole(file, page.encode())
