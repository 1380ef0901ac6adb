"""The integration of torch's DataLoader: what happens inside it, whoever writes the loop?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType


class DataLoaders:
    """Waits, ready batches and workers of every DataLoader."""

    name: Final = "dataloader"
    module: Final = "torch"
    needs: Final = ()  # each hook that this version of torch has no place for is left out alone

    def switch_on(self, framework: ModuleType) -> None:
        """Sees the inside of loaders from now on."""
        # Here: it brings the syntax tools of Python along, which only programs with torch need.
        from otel_mlperf.pytorch.loading import hooks

        hooks.install()

    def switch_off(self) -> None:
        """Sees nothing from now on."""
        from otel_mlperf.pytorch.loading import hooks

        hooks.switch_off()
