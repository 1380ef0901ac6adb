"""Watch over the calls of the models that the program named, in each step.

``torch.nn.Module._call_impl`` is woven once the first model is named: a hook of the module would
be pickled and copied with it. If a named module is called inside another one, only the outermost
call counts. Under ``torch.compile`` our code is not visible, so for a compiled model the call from
outside counts.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.thread_ident import get_ident

if TYPE_CHECKING:
    from collections.abc import Callable

_get_ident = get_ident
_UNSEEN: Final = nullcontext()
_NAME: Final = "_otel_mlperf_work"
_MOST_FOUND: Final = 16
"""Maximum number of models found in a program that names none."""


class Watcher(Protocol):
    """Receiver of the calls of one module."""

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Handle a call that is about to happen."""


class CallWatch:
    """Gate that calls of modules are woven into."""

    def __init__(self) -> None:
        self.busy = True
        """Whether calls are not observed: there is no watcher, or one is open."""
        self.find: Callable[[Any], Watcher | None] | None = None
        """Makes a watcher for an unnamed module; None: only named ones are watched."""
        self._of: dict[int, tuple[weakref.ref[Any], Watcher]] = {}
        self._is_woven = False
        self._found = 0

    def add(self, module: Any, watcher: Watcher, torch: Any) -> None:
        """Report the calls of ``module`` to ``watcher`` from now on.

        Raises:
            OSError: this torch cannot be woven.
            TypeError: this torch cannot be woven.
        """
        self._tell(module, watcher)
        self.begin(torch)

    def begin(self, torch: Any) -> None:
        """Observe calls from now on.

        Raises:
            OSError: this torch cannot be woven.
            TypeError: this torch cannot be woven.
        """
        if not self._is_woven:
            # Loads the syntax tools of Python, which the package's import must not wait for.
            from otel_mlperf.pytorch.loop.weave import weave

            weave(torch.nn.Module._call_impl, self, _NAME, subject="(self, args, kwargs)")
            self._is_woven = True
        self.busy = False

    def of(self, subject: Any) -> Any:
        """Return the gate for a call; only those of the loop's thread are observed."""
        if _get_ident() != LoopThread.ident:
            return _UNSEEN
        try:
            module, args, kwargs = subject
            watcher = self._watcher_of(module)
            if watcher is None:
                return _UNSEEN
            watcher.called(module, args, kwargs)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return _UNSEEN
        return self

    def _watcher_of(self, module: Any) -> Watcher | None:
        known = self._of.get(id(module))
        if known is None and type(module).__name__ == "OptimizedModule":
            known = self._of.get(
                id(module._orig_mod)
            )  # the one that was named before it was compiled
        if known is not None:
            return known[1]
        if self.find is None or self._found >= _MOST_FOUND:
            return None
        watcher = self.find(module)
        if watcher is not None:
            self._found += 1
            self._tell(module, watcher)
        return watcher

    def _tell(self, module: Any, watcher: Watcher) -> None:
        number = id(module)
        # Removed by a function of C: the interpreter drops exceptions raised in a Python callback.
        self._of[number] = weakref.ref(module, partial(self._of.pop, number)), watcher

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, *_: object) -> None:
        self.busy = False
