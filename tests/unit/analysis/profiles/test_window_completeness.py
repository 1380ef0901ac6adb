"""A window of one rank that is shorter than those of others is detected."""

from __future__ import annotations

import pytest

from otel_mlperf.analysis.profiles.recorded_windows import with_rank_losses
from otel_mlperf.analysis.profiles.window_shapes import WindowFacts
from otel_mlperf.store.window_facts import WindowCompleteness

COMPLETE = WindowCompleteness(
    ratio=1.0, is_complete=True, has_device_times=True, launches=9, answered=9, losses=[],
    whole=None,
)  # fmt: skip


def window(rank, steps, **fields):
    """A complete window of a rank."""
    known = {
        "restart": 0, "trace": f"rank{rank}.json", "digest": f"{rank}", "start_ns": 100,
        "duration_ns": 50, "is_unix_time": True, "events": 1, "categories": {}, "orphans": {},
        "damage": [], "completeness": COMPLETE,
    }  # fmt: skip
    return WindowFacts(rank=rank, steps=[f"train step {step}" for step in steps], **known | fields)


def test_steps_that_another_rank_has_are_missing(tmp_path):
    """Of the shorter window, by name and by who has them; the longer one is complete."""
    first, second = with_rank_losses([window(0, (5, 6, 7)), window(1, (5, 6))], [0, 0])

    assert first.completeness == COMPLETE
    (loss,) = second.completeness.losses
    assert (loss.kind, loss.missing, loss.of) == ("rank_step", 1, 3)
    assert loss.words == (
        "1 of 3 steps are missing in the window of rank 1: train step 7, which rank 0 recorded"
    )
    assert not second.completeness.is_complete
    assert second.completeness.ratio == pytest.approx(2 / 3)
    assert second.completeness.has_device_times


@pytest.mark.parametrize(
    ("steps", "numbers"), [((8, 9), [0, 0]), ((5, 6), [0, 1]), ((5, 6, 7), [0, 0])]
)
def test_windows_of_other_steps_are_not_compared(steps, numbers):
    """Ranks that recorded nothing in common, windows of another number, and equal ones."""
    windows = [window(0, (5, 6, 7)), window(1, steps)]

    assert with_rank_losses(windows, numbers) == windows


def test_a_rank_may_have_the_steps_in_several_windows():
    """Imported traces have no number: what a rank has in another window is not missing."""
    windows = [window(0, (5, 6, 7)), window(1, (5, 6)), window(1, (6, 7), digest="x")]

    assert with_rank_losses(windows, [None] * 3) == windows


def test_of_a_window_that_nobody_has_looked_into_nothing_is_said():
    """It was read by a version that did not."""
    windows = [window(0, (5, 6, 7)), window(1, (5,), completeness=None)]

    assert with_rank_losses(windows, [0, 0]) == windows
