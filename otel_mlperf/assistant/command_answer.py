"""What does a command answer to an assistant? The command's own JSON, from a process of its own.

So it can be stopped, what it loads is given back, and there is one way to each number.
"""

from __future__ import annotations

import sys
from typing import Final

import anyio
import msgspec

from otel_mlperf.errors import NoSuchRun, NotAnswered
from otel_mlperf.store.run_folders import find_run, runs_dir

LIMIT_S: Final = 120.0
MOST_CHARACTERS: Final = 200_000
_LONGEST_ERROR: Final = 4_000
_SELF: Final = "otel-mlperf: "


async def answer(command: str, *arguments: str) -> str:
    """What ``otel-mlperf COMMAND --json`` prints, in one line.

    Raises:
        NotAnswered: the command fails, takes too long, or says more than can be read.
    """
    # Without -P Python would also take modules from the folder in which the assistant was started.
    call = [sys.executable, "-P", "-m", "otel_mlperf", command, "--json", *arguments]
    try:
        with anyio.fail_after(LIMIT_S):
            done = await anyio.run_process(call, check=False)
    except TimeoutError as error:
        raise NotAnswered(
            f"{command}: it took longer than {LIMIT_S:g} s and was stopped"
        ) from error
    said = done.stdout.decode()
    if not said.strip():
        message = done.stderr.decode(errors="replace").strip().removeprefix(_SELF)
        raise NotAnswered(message[:_LONGEST_ERROR] or f"{command}: it ended with {done.returncode}")
    whole = msgspec.json.format(said.encode(), indent=-1).decode()
    if len(whole) > MOST_CHARACTERS:
        raise NotAnswered(
            f"{command}: the answer has {len(whole):,} characters, more than {MOST_CHARACTERS:,}; "
            "ask for one rank, fewer rows, or what is of interest by the tool query"
        )
    return whole


def run_path(run: str) -> str:
    """The folder of a run that is meant by name, id or ``latest``; no path leads elsewhere.

    Raises:
        NoSuchRun: none matches.
        StoreError: it is not readable.
    """
    folder = runs_dir()
    if "/" not in run and "\0" not in run:
        found = find_run(run, folder).path.resolve()
        if found.parent == folder.resolve():
            return str(found)
    raise NoSuchRun(
        f"looking for run {run!r}: paths are refused here; name one by its name, the beginning of "
        "its id, or latest: the tool runs lists them"
    )
