"""Integration of torch itself: recording of a training loop that no framework runs.

Start and end of steps are inferred from a loop's calls of torch. The integration of a framework
that reports its own steps suspends this inference with ``own_steps``.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mlperf.integrations.after_import import after_import, notice_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# The hooks are imported lazily: they load ``ast`` and ``inspect``, which programs without torch,
# and a plain `import otel_mlperf`, must not wait for.


class TorchLoop:
    """Integration of a hand-written loop: steps, their parts, validations and checkpoints."""

    name: Final = "torch"
    module: Final = "torch"
    needs: Final = ()  # hooks that do not fit this version of torch are skipped individually

    def __init__(self) -> None:
        self._is_awaiting = self._is_in_place = False
        self._imported: list[str] = []
        """Watched modules that were imported before torch was switched on."""

    def await_libraries(self) -> None:
        """Register import hooks for the modules that contain the watched calls.

        Must run before torch is imported: otherwise a module whose own import loads torch is
        already in ``sys.modules``, but does not have its functions yet.
        """
        from otel_mlperf.pytorch.loop.watched_calls import WATCHED_CALLS

        if not self._is_awaiting:
            self._is_awaiting = True
            for module in WATCHED_CALLS:
                after_import(module, partial(self._see_library, module))

    def switch_on(self, framework: ModuleType) -> None:
        """Start observing the loop's calls of torch."""
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
        """Stop observing torch."""
        from otel_mlperf.pytorch.loop import loop_hooks

        loop_hooks.give_way()


@contextmanager
def own_steps() -> Iterator[None]:
    """Suspend step inference while a framework's loop reports its steps itself.

    For use in an integration, around the framework's ``fit()``. Data wait, forward, backward and
    optimizer remain sections of the reported steps. An inferred step that is open at the start is
    ended or cancelled: otherwise the first ``om.step()`` would be nested in it.
    """
    from otel_mlperf.pytorch.loop import loop_hooks

    loop_hooks.hold_steps()
    try:
        yield
    finally:
        loop_hooks.release_steps()
