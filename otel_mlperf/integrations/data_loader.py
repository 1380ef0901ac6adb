"""Integration of torch's DataLoader: waits, ready batches and workers, in any training loop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from otel_mlperf.integrations.after_import import after_import

if TYPE_CHECKING:
    from types import ModuleType

_LOADERS: Final = "torch.utils.data.dataloader"
"""Module that defines ``DataLoader``; imported by torch or by the program."""


class DataLoaders:
    """Integration of every DataLoader: waits, ready batches and workers."""

    name: Final = "dataloader"
    module: Final = "torch"
    needs: Final = ()  # hooks that do not fit this version of torch are skipped individually

    def __init__(self) -> None:
        self._is_on = self._is_awaited = False

    def switch_on(self, framework: ModuleType) -> None:
        """Start observing loaders."""
        self._is_on = True
        if _LOADERS in sys.modules:
            self._see()
        elif not self._is_awaited:
            self._is_awaited = True
            after_import(_LOADERS, self._see)

    def switch_off(self) -> None:
        """Stop observing loaders."""
        self._is_on = False
        if _LOADERS in sys.modules:
            from otel_mlperf.pytorch.loading import loader_hooks

            loader_hooks.switch_off()

    def _see(self) -> None:
        if self._is_on:
            # Imported lazily: the hooks load ``ast`` and ``inspect``, which only programs with
            # torch need.
            from otel_mlperf.pytorch.loading import loader_hooks

            loader_hooks.install()
