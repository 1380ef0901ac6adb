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

# The hooks are imported where they are needed: they bring the syntax tools of Python along, which
# programs without torch, and those that only `import otel_mlperf`, shall not wait for.


class TorchLoop:
    """Steps, their parts, validations and checkpoints of a loop that is written by hand."""

    name: Final = "torch"
    module: Final = "torch"
    needs: Final = ()  # each hook that this version of torch has no place for is left out alone

    def __init__(self) -> None:
        self._is_awaiting = self._is_in_place = False
        self._imported: list[str] = []
        """Watched modules that were imported before torch was seen."""

    def await_libraries(self) -> None:
        """Awaits the modules of watched calls.

        Before torch is imported: the module that imports it is in ``sys.modules`` by then, without
        its functions.
        """
        from otel_mlperf.pytorch.loop.watched_calls import WATCHED_CALLS

        if not self._is_awaiting:
            self._is_awaiting = True
            for module in WATCHED_CALLS:
                after_import(module, partial(self._see_library, module))

    def switch_on(self, framework: ModuleType) -> None:
        """Sees the moments of torch from now on."""
        from otel_mlperf.pytorch.loop import hooks

        hooks.install()
        self._is_in_place = True
        self.await_libraries()
        notice_package(framework.__name__)
        imported, self._imported = self._imported, []
        for module in imported:
            hooks.see_library(module)

    def _see_library(self, module: str) -> None:
        if not self._is_in_place:
            self._imported.append(module)
            return
        from otel_mlperf.pytorch.loop import hooks

        hooks.see_library(module)

    def switch_off(self) -> None:
        """Sees nothing from now on."""
        from otel_mlperf.pytorch.loop import hooks

        hooks.give_way()


@contextmanager
def own_steps() -> Iterator[None]:
    """While a framework's loop runs that says its steps itself: none are inferred from torch.

    Data wait, forward, backward and optimizer are sections all the same, of the steps that are
    said. For an integration, around the framework's ``fit()``: what is open when it begins and was
    only inferred is taken back, so that the first ``om.step()`` is no step inside a step.
    """
    from otel_mlperf.pytorch.loop import hooks

    hooks.hold_steps()
    try:
        yield
    finally:
        hooks.release_steps()
