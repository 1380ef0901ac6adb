"""Lock that keeps profiler windows apart from other profilers in this process.

torch allows one profiler at a time: starting a second one, in any thread, drops the events of the
first, whose export then ends in a segmentation fault. Our profiler therefore does not start while
another profiler is active, and stops when one starts. Profilers of ``torch.profiler`` and
``torch.autograd.profiler`` are active from start to stop, even while their schedule waits, because
each can start to record at any step.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Owner(Protocol):
    """Protocol of an owner of a profiler that this package has started."""

    def give_way(self) -> None:
        """Stop our profiler before another one starts; returns when our profiler has stopped."""


class _Ours(threading.local):
    """Flag per thread: whether the thread is inside one of our own calls to torch."""

    is_calling = False


_ours = _Ours()
_owners: dict[None, Owner] = {}
"""At most one owner; set by a single C call, so that an interrupt cannot leave it unclear."""
_others: dict[int, weakref.ref[Any]] = {}
"""Active profilers of the program, by ``id()``. Removed by a C function: the interpreter would drop
exceptions raised in a Python callback, as of a WeakSet.
"""
_is_installed = False
watchers: list[Callable[[bool], None]] = []
"""Called when the user's own profiler starts to record (True), and when it ends (False)."""


def install() -> None:
    """Start observing all profilers that start and stop, once torch has been imported."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    backend = sys.modules["torch.autograd.profiler"].profile
    frontend = sys.modules["torch.profiler.profiler"].profile
    for profiler in _find_active(frontend):
        _note(profiler)
    _wrap(frontend, "start", before=_arrives)
    _wrap(frontend, "stop", after=_leaves)
    _wrap(backend, "_prepare_trace", before=_arrives)
    _wrap(backend, "_start_trace", after=lambda _: _notify(is_recording=True))
    _wrap(backend, "__exit__", after=_leaves_for_good)


def claim(owner: Owner) -> bool:
    """Acquire the right to run a profiler. Return False if another profiler is active."""
    # Must not block: the owner may be this thread, which a signal handler has interrupted.
    if _owners.setdefault(None, owner) is not owner:
        return False
    # A profiler that another thread starts during this check may be missed: torch then drops our
    # events; `has_started` detects that before the export, which would crash.
    if _others or sys.modules["torch.autograd.profiler"]._is_profiler_enabled:
        release(owner)
        return False
    return True


def release(owner: Owner) -> None:
    """Release the right to run a profiler, if ``owner`` has it."""
    if _owners.get(None) is owner:
        del _owners[None]


def is_alone() -> bool:
    """Return whether the user's program has no active profiler."""
    return not _others


@contextmanager
def calling() -> Iterator[None]:
    """Mark calls to torch's profiler inside the context as this package's own."""
    _ours.is_calling = True
    try:
        yield
    finally:
        _ours.is_calling = False


def _find_active(kind: type) -> list[Any]:
    """Return profilers that were started, but not stopped, before the observation started.

    All objects are searched, once per process, and only if torch indicates that one might exist.
    """
    tracker = getattr(sys.modules["torch.autograd.profiler"], "KinetoStepTracker", None)
    if not getattr(tracker, "_step_dict", None):
        return []
    return [
        profiler
        for profiler in gc.get_objects()
        if type(profiler) is kind and getattr(profiler, "step_rec_fn", None) is not None
    ]


def _wrap(
    kind: Any,
    name: str,
    before: Callable[[Any], None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> None:
    function = getattr(kind, name, None)
    if function is None:  # another version of torch: renamed methods are not observed
        return

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _ours.is_calling:  # our own profilers use the same methods
            return function(self, *args, **kwargs)
        if before is not None:
            _safely(before, self)
        try:
            return function(self, *args, **kwargs)
        finally:
            if after is not None:
                _safely(after, self)

    setattr(kind, name, call)


def _note(profiler: Any) -> None:
    number = id(profiler)
    _others[number] = weakref.ref(profiler, partial(_others.pop, number))


def _arrives(profiler: Any) -> None:
    _note(profiler)  # must be first: afterwards none of ours starts
    owner = _owners.get(None)
    if owner is not None:
        owner.give_way()


def _leaves(profiler: Any) -> None:
    _others.pop(id(profiler), None)


def _leaves_for_good(profiler: Any) -> None:
    _others.pop(id(profiler), None)
    _notify(is_recording=False)


def _notify(*, is_recording: bool) -> None:
    for watcher in watchers:
        watcher(is_recording)


def _safely(call: Callable[[Any], None], profiler: Any) -> None:
    try:
        call(profiler)
    except Exception as error:  # noqa: BLE001 - the program's own profiler goes on
        internal_error(error)
