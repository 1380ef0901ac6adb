"""The program may be interrupted at every moment of a profiler window, and profile again."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from interrupted_calls import interruptions

import otel_mlperf as om
from otel_mlperf.pytorch import windows
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable


class TooSlowError(Exception):
    """What a time limit of the program raises."""


def block() -> None:
    with om.torch_profile():
        torch.ones(2) + 1


def schedule() -> None:
    with om.torch_profile(wait=0, warmup=1, active=1):
        for _ in om.steps(range(3)):
            torch.ones(2) + 1


@pytest.mark.sampled(1)
@pytest.mark.fault("F95", "F96")
# A file that was opened the moment before is closed by its finalizer, which warns.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("error", [KeyboardInterrupt, TooSlowError])
@pytest.mark.parametrize("use", [block, schedule], ids=lambda use: use.__name__)
def test_every_moment(train, use: Callable[[], None], error: type[BaseException]) -> None:
    """Interrupted at each moment, caught, profiled again: a window, and nothing is swallowed."""
    trained = train()
    use()  # torch is warm, names are registered
    before = CURRENT.get()
    wrong: list[str] = []
    gc.disable()
    try:
        for moment, raised, arrived in interruptions(windows, error, use):
            told = []
            if arrived is not raised:
                told.append(f"arrived: {arrived!r}")
            trained.recorder.stepping.abandoned.settle(None)
            if CURRENT.get() is not before:
                told.append(f"context: {CURRENT.get()}")
                CURRENT.set(before)
            if torch.autograd.profiler._is_profiler_enabled:
                told.append("still profiling")
            with om.torch_profile() as again:
                torch.ones(2) + 1
            if len(again.paths) != 1:
                told.append("not profiled again")
            if told:
                wrong.append(f"{moment.where}: {'; '.join(told)}")
    finally:
        gc.enable()
    assert not wrong
