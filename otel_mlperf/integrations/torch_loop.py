"""The integration of torch itself: how is a loop recorded that no framework runs?

torch shows the moments of a loop; where its steps begin and end is inferred from them. A framework
knows that better, and says so with ``own_steps``.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mlperf.integrations.after_import import after_import

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
        self._is_in_place = False

    def switch_on(self, framework: ModuleType) -> None:
        """Sees the moments of torch from now on."""
        from otel_mlperf.pytorch.loop import hooks
        from otel_mlperf.pytorch.loop.watched_calls import WATCHED_CALLS

        hooks.install()
        if not self._is_in_place:
            self._is_in_place = True
            for module in WATCHED_CALLS:
                after_import(module, partial(hooks.see_library, module))

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
