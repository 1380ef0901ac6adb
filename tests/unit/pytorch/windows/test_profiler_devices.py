"""Available or chosen activities are recorded, and dangerous profiling is refused."""

from __future__ import annotations

import os

import pytest
import torch

from otel_mlperf.pytorch.windows.capture import (
    choose_activities,
    has_crashing_graphs,
    quiet,
)


@pytest.mark.fault("F82")
@pytest.mark.parametrize(
    ("cuda", "are_graphs_used", "expected"),
    [
        ("12.4", True, True),
        ("11.8", True, True),
        ("12.5", True, True),
        ("12.6", True, False),
        ("12.10", True, False),
        ("13.0", True, False),
        ("12.4", False, False),
        (None, True, False),
        ("12", True, True),
    ],
)
def test_cuda_graphs_are_not_profiled_with_old_cuda(cuda, are_graphs_used, expected):
    """Before 12.6 a profiler that starts again crashes them."""
    assert has_crashing_graphs(cuda, are_graphs_used=are_graphs_used) is expected


@pytest.mark.fault("F81")
def test_everything_that_torch_offers_is_recorded():
    """Without a choice; a machine without a GPU says so."""
    there = {kind.name.lower() for kind in torch.profiler.supported_activities()}
    kinds, names, problem = choose_activities(())

    assert set(names) == there
    assert {kind.name.lower() for kind in kinds} == there
    assert problem == ("torch finds no GPU here" if there == {"cpu"} else "")


def test_choice_is_kept():
    """What is not wanted is not recorded, and is no problem."""
    kinds, names, problem = choose_activities(["cpu"])

    assert (kinds, names, problem) == ([torch.profiler.ProfilerActivity.CPU], ["cpu"], "")


def test_kineto_is_quiet_only_as_long_as_it_reads_its_level(monkeypatch):
    """The variable is gone afterwards, and one of the user's own stays as it is."""
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    with quiet():
        assert int(os.environ["KINETO_LOG_LEVEL"]) > 10
    assert "KINETO_LOG_LEVEL" not in os.environ

    monkeypatch.setenv("KINETO_LOG_LEVEL", "0")
    with quiet():
        assert os.environ["KINETO_LOG_LEVEL"] == "0"
    assert os.environ["KINETO_LOG_LEVEL"] == "0"
