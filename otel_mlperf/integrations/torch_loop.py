"""The integration of torch itself: recording of a loop that no framework runs.

torch exposes the moments of a loop, from which the start and end of its steps are inferred. A
framework knows them better, and declares that with ``own_steps``.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mlperf.integrations.after_import import after_import, notice_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# The hooks are imported where they are needed: they load the syntax tools of Python, for which
# programs without torch, and those that only `import otel_mlperf`, must not wait.


class TorchLoop:
    """Integration of a hand-written loop: steps, their parts, validations and checkpoints."""

    name: Final = "torch"
    module: Final = "torch"
    needs: Final = ()  # a hook that does not fit this version of torch is left out alone

    def __init__(self) -> None:
        self._is_awaiting = self._is_in_place = False
        self._imported: list[str] = []
        """Watched modules that were imported before torch was switched on."""

    def await_libraries(self) -> None:
        """Wait for the modules of watched calls.

        It must run before torch is imported: later the module that imports torch is in
        ``sys.modules`` without its functions.
        """
        from otel_mlperf.pytorch.loop.watched_calls import WATCHED_CALLS

        if not self._is_awaiting:
            self._is_awaiting = True
            for module in WATCHED_CALLS:
                after_import(module, partial(self._see_library, module))

    def switch_on(self, framework: ModuleType) -> None:
        """Watch the moments of torch from now on."""
        from otel_mlperf.pytorch.loop import loop_hooks

        loop_hooks.install()
        self._is_in_place = True
        self.await_libraries()
        notice_package(framework.__name__)
        imported, self._imported = self._imported, []
        for module in imported:
            loop_hooks.see_library(module)

    def _see_library(self, module: str) -> None:
        if not self._is_in_place:
            self._imported.append(module)
            return
        from otel_mlperf.pytorch.loop import loop_hooks

        loop_hooks.see_library(module)

    def switch_off(self) -> None:
        """Stop watching torch."""
        from otel_mlperf.pytorch.loop import loop_hooks

        loop_hooks.give_way()


@contextmanager
def own_steps() -> Iterator[None]:
    """Suspend inferred steps while a framework's loop reports its steps itself.

    Data wait, forward, backward and optimizer remain sections, of the reported steps. It is for an
    integration, around the framework's ``fit()``. A step that is open at its start and was only
    inferred is cancelled, so that the first ``om.step()`` is no step inside a step.
    """
    from otel_mlperf.pytorch.loop import loop_hooks

    loop_hooks.hold_steps()
    try:
        yield
    finally:
        loop_hooks.release_steps()
