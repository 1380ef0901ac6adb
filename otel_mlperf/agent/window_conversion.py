"""Queue of the profiler windows that wait for conversion, and the results of conversions.

The agent itself never reads a profiler trace: a separate process does, one trace at a time and with
a timeout. The result of a conversion is one event in the agent's log, from which a replay creates
the same requests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from otel_mlperf import ids
from otel_mlperf.agent.model.events import SensorReading, WindowConverted
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.profiler_windows import FOLDER, WINDOW_SUFFIX, Window, read_window
from otel_mlperf.kineto.job import Job, read_result
from otel_mlperf.own_processes import command
from otel_mlperf.whole_file import make_folder, open_private, open_without_links

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.kineto.job import Result

_log = logging.getLogger("otel_mlperf.agent")
_POLL_S: Final = 0.05
TRIES: Final = 3
LIMIT_S: Final = 600
FAILED: Final = "window_failed"
"""Loss reason of a window's profiler events if all tries to convert the window failed."""
_SUFFIX: Final = ".result"
_TEXT_BLOCK: Final = 1 << 20
_EVENT: Final = b'"ph": "X"'
"""Text that occurs once for each complete event of a profiler trace."""


class FoundWindow(NamedTuple):
    """Profiler window of a process on this host: file name, service instance id and description."""

    name: str
    instance: str
    window: Window


class WindowQueue:
    """Converter of the profiler windows that processes of this host write to a run folder."""

    def __init__(self, run_folder: Path, folder: Path, options: Options) -> None:
        self._profiles = run_folder / FOLDER
        self._run_folder, self._options = run_folder, options
        self.results = folder / "windows"
        self._tries: dict[str, int] = {}
        self._seen: dict[str, FoundWindow] = {}
        self._bad: set[str] = set()
        self._forgotten: set[str] = set()
        self._ready: list[str] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._current = ""
        self._until_s = 0.0

    @property
    def waiting(self) -> bool:
        """Return whether any window released by ``stored`` is not converted yet."""
        return bool(self._ready or self._current)

    def look(self, state: AgentState) -> bool:
        """Find new windows, which then wait for ``stored``; return whether any were found."""
        try:
            names = [name for name in os.listdir(self._profiles) if name.endswith(WINDOW_SUFFIX)]
        except OSError:
            return False
        known = {*self._seen, *self._bad, *state.windows}
        return bool(sum(self._add(name, state) for name in sorted(names) if name not in known))

    def _add(self, name: str, state: AgentState) -> bool:
        try:
            window = read_window(self._profiles / name)
        except JournalError as error:
            self._bad.add(name)  # written atomically: reading the file again would fail too
            _log.warning("%s", error)
            return False
        instance = ids.instance_id(window.run_id, window.restart, window.rank)
        if instance in state.ranks:
            self._seen[name] = FoundWindow(name, instance, window)
        return instance in state.ranks

    def stored(self) -> None:
        """Release found windows for conversion, now that the tables contain their sections."""
        known = {*self._ready, self._current}
        self._ready += [
            name for name in self._seen if name not in known and self._tries.get(name, 0) < TRIES
        ]

    def step(self, state: AgentState) -> list[WindowConverted]:
        """Start and end conversions without blocking; return an event for each finished window."""
        ended: list[WindowConverted] = []
        if self._child is not None:
            ended = self._ended(self._child)
        if self._child is None and self._ready:
            self._start(self._ready.pop(0), state)
        return ended

    def rest(self, state: AgentState) -> Iterator[WindowConverted]:
        """Convert all remaining windows for ``doctor --recover``; block until they are finished."""
        self.look(state)
        self.stored()
        while self.waiting:
            yield from self.step(state)
            time.sleep(_POLL_S)

    def _start(self, name: str, state: AgentState) -> None:
        self._current, self._until_s = name, time.monotonic() + LIMIT_S
        self._tries[name] = self._tries.get(name, 0) + 1
        job = self._job(self._seen[name], state)
        try:
            make_folder(self.results)
            with open(self.results / "log", "ab", opener=open_private) as log:
                self._child = subprocess.Popen(
                    command("otel_mlperf.kineto.__main__", msgspec.json.encode(job).decode()),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            _log.warning(
                "converting the profiler window %s: the process cannot be started: %s", name, error
            )
            self._current = ""

    def _job(self, wanted: FoundWindow, state: AgentState) -> Job:
        spans, by_trace = self._options.policy.spans_of_window(wanted.window)
        return Job(
            window=str(self._profiles / wanted.name),
            run_folder=str(self._run_folder),
            result=str(self._result(wanted.name)),
            resource=state.ranks[wanted.instance].resource,
            is_sent=self._options.sends_spans,
            spans=spans,
            by_trace=by_trace,
            sampler=self._options.sampler,
            limit_s=LIMIT_S,
        )

    def _ended(self, child: subprocess.Popen[bytes]) -> list[WindowConverted]:
        code = child.poll()
        if code is None and time.monotonic() < self._until_s:
            return []
        # Also kill a process that has exceeded the time limit: otherwise one slow trace would block
        # all other windows.
        self._kill()
        name, self._current = self._current, ""
        ended = self._seen[name]
        event = _read_converted(name, ended.instance, self._result(name)) if code == 0 else None
        # Retry: a conversion may have been killed because other processes used up the memory. After
        # three failures, the trace itself is assumed to be the cause.
        if event is None and self._tries[name] < TRIES:
            _log.warning(
                "converting the profiler window %s ended with status %s: retried", name, code
            )
            self._ready.append(name)
            return []
        if event is None:
            events = _count_events(self._profiles / ended.window.trace)
            _log.error(
                "converting the profiler window %s ended with status %s: %d events lost",
                name,
                code,
                events,
            )
            event = WindowConverted(name, ended.instance, events=events, lost=FAILED)
        del self._seen[name]
        return [event]

    def _result(self, name: str) -> Path:
        return self.results / (name.removesuffix(WINDOW_SUFFIX) + _SUFFIX)

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._child = None

    def stop(self) -> None:
        """Kill a running conversion. The next agent or ``doctor --recover`` repeats it."""
        if self.waiting:
            _log.warning(
                "%d profiler windows are not converted yet: run otel-mlperf doctor --recover",
                len(self._seen),
            )
        self._kill()

    def forget(self, state: AgentState) -> None:
        """Remove the result files of all windows in ``state``, which must have been written."""
        for name in state.windows.keys() - self._forgotten:
            with contextlib.suppress(OSError):
                self._result(name).unlink(missing_ok=True)
        self._forgotten.update(state.windows)


def bodies(event: WindowConverted, folder: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield item count and body (None if unreadable) of each request of a converted window."""
    path, at = folder / os.path.basename(event.file), event.begin
    # Compare checksums: another conversion may have replaced the file, with other offsets.
    contents = _read(path)
    is_intact = contents is not None and contents[2] == event.check
    for items, size in event.requests:
        yield items, _part(path, at, size) if is_intact else None
        at += size


def _read(path: Path) -> tuple[Result, int, int] | None:
    try:
        return read_result(path)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def _part(path: Path, at: int, size: int) -> bytes | None:
    try:
        with open(path, "rb", opener=open_without_links) as file:
            file.seek(at)
            body = file.read(size)
    except OSError:
        return None
    return body if len(body) == size else None


def _read_converted(window: str, instance: str, path: Path) -> WindowConverted | None:
    if (contents := _read(path)) is None:
        return None
    result, begin, check = contents
    return WindowConverted(
        window=window,
        instance=instance,
        digest=result.digest,
        events=result.events,
        rolled_up=result.rolled_up,
        file=path.name,
        check=check,
        begin=begin,
        requests=result.requests,
        end_ns=result.end_ns,
        readings=[SensorReading("", *figure) for figure in result.figures],
    )


def _count_events(trace: Path) -> int:
    # Count occurrences of text, because an unreadable trace cannot be parsed.
    count, rest = 0, b""
    try:
        with open(trace, "rb", opener=open_without_links) as file:
            while block := file.read(_TEXT_BLOCK):
                text = rest + block
                count += text.count(_EVENT)
                rest = text[-len(_EVENT) + 1 :]
    except OSError:
        return count
    return count
