"""Shared by tests of watched loops: a run in which they are watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from otel_mlperf.integrations.torch_loop import TorchLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def watched(train: Callable[..., Any]) -> Iterator[Any]:
    """A run in which torch's loops are watched, and nothing of it afterwards."""
    trained, integration = train(), TorchLoop()
    integration.switch_on(torch)
    yield trained
    integration.switch_off()
