"""Tracks on which code runs: threads and asyncio tasks.

Sections of one track nest; sections of different tracks are concurrent. A thread's track is its
ident. A task's track is a small number that is released when the task object is freed. Threads and
tasks are registered in the journal by name.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.thread_ident import get_ident

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_NAMED = 512
"""Maximum number of named tasks, and of named threads: the journal's entries are limited."""


_running_loop: Callable[[], Any] | None = None


def find_running_loop() -> Callable[[], Any] | None:
    """Return asyncio's function that returns the running loop; None if asyncio is not imported."""
    global _running_loop
    if _running_loop is None:
        _running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return _running_loop


def is_in_task() -> bool:
    """Return whether the caller runs in an event loop, so that its track is a task."""
    running_loop = _running_loop or find_running_loop()
    return running_loop is not None and running_loop() is not None


class _Task(weakref.ref[Any]):
    __slots__ = ("key",)
    key: int


class CallerTracks:
    """Registry of the tracks of one journal; ``entry`` adds an entry to the journal."""

    def __init__(self, entry: Callable[[Sequence[object]], int]) -> None:
        self._entry = entry
        self._known = threading.local()
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []
        self._tasks: dict[int, _Task] = {}
        # Filled by a C function, ``list.append``: the interpreter would drop an exception that a
        # signal handler raises in a Python callback of a weak reference.
        self._ended: list[_Task] = []
        self._next = itertools.count(1).__next__
        self._thread = itertools.count(1).__next__

    def current(self) -> int:
        """Return the track of the caller; register the track if it is new."""
        if is_in_task():
            task = sys.modules["asyncio"].current_task()
            if task is not None:
                return self._task_number(task)
        ident = get_ident()
        # Remembered per thread, because idents are reused for later threads.
        if getattr(self._known, "ident", None) != ident:
            self._known.ident = ident
            self._register_thread(ident)
        return ident

    def _register_thread(self, ident: int) -> None:
        if self._thread() > _MAX_NAMED:
            return
        # Not threading.current_thread(): for a thread that Python did not start, it creates a dummy
        # object that outlives the thread.
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        name = thread.name if thread is not None else "thread"
        self._entry(["track", ident, threading.get_native_id(), safe_name_text(name), False])

    def _task_number(self, task: Any) -> int:
        if self._ended:
            self._release_ended()
        key = id(task)
        number = self._numbers.get(key)
        if number is None:
            is_new = not self._free
            number = self._next() if is_new else self._free.pop()
            self._numbers[key] = number
            self._tasks[key] = task_ref = _Task(task, self._ended.append)
            task_ref.key = key
            if is_new and number <= _MAX_NAMED:
                self._entry(["track", number, threading.get_native_id(), f"task {number}", True])
        return number

    def _release_ended(self) -> None:
        while self._ended:
            key = self._ended.pop().key
            del self._tasks[key]
            self._free.append(self._numbers.pop(key))
