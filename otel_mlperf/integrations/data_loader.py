"""The integration of torch's DataLoader: its waits, ready batches and workers, in any loop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from otel_mlperf.integrations.after_import import after_import

if TYPE_CHECKING:
    from types import ModuleType

_LOADERS: Final = "torch.utils.data.dataloader"
"""The module with the loader; torch or the program imports it. Without it there is no loader to
see.
"""


class DataLoaders:
    """Integration of every DataLoader: waits, ready batches and workers."""

    name: Final = "dataloader"
    module: Final = "torch"
    needs: Final = ()  # a hook that does not fit this version of torch is left out alone

    def __init__(self) -> None:
        self._is_on = self._is_awaited = False

    def switch_on(self, framework: ModuleType) -> None:
        """Watch the inside of loaders from now on."""
        self._is_on = True
        if _LOADERS in sys.modules:
            self._see()
        elif not self._is_awaited:
            self._is_awaited = True
            after_import(_LOADERS, self._see)

    def switch_off(self) -> None:
        """Stop watching loaders."""
        self._is_on = False
        if _LOADERS in sys.modules:
            from otel_mlperf.pytorch.loading import loader_hooks

            loader_hooks.switch_off()

    def _see(self) -> None:
        if self._is_on:
            # Imported here: it loads the syntax tools of Python, which only programs with torch
            # need.
            from otel_mlperf.pytorch.loading import loader_hooks

            loader_hooks.install()
