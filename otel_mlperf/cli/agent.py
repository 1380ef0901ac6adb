"""One process that serves all runs on a node."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def serve_runs(run: str | None, *, once: bool) -> None:
    """Serve ``run``, or every run of this user on this node, until all have ended with ``once``."""
    from otel_mlperf.agent.lifecycle.agent_process import serve
    from otel_mlperf.agent.lifecycle.run_recovery import folders_to_read
    from otel_mlperf.agent.model.agent_options import read_options
    from otel_mlperf.cli.output import echo
    from otel_mlperf.journal.folder_lock import is_served
    from otel_mlperf.store.run_folders import find_run

    options = replace(read_options(os.environ), prints=True)
    threads: dict[Path, threading.Thread] = {}
    while True:
        # A run may become active again after its agent has ended: it is served again.
        threads = {folder: serving for folder, serving in threads.items() if serving.is_alive()}
        for folder in folders_to_read(None if run is None else find_run(run)):
            if folder not in threads and not is_served(folder):
                echo(f"serving {folder.name}")
                thread = threading.Thread(target=serve, args=(folder, options), daemon=True)
                threads[folder] = thread
                thread.start()
        if once and not threads:
            return
        time.sleep(1)
