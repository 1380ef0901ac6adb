"""The description of a profiler window is read as it was written, or refused by name."""

from __future__ import annotations

import pytest

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.profiler_windows import Window, WindowStep, read_window, write_window

WINDOW = Window(
    run_id="r", restart=0, rank=1, world_size=2, pid=7, number=3, trace="rank1.3.pt.trace.json",
    parent="00ff", steps=[WindowStep("train", 4, 5, "01", "02")], start=(1, 2), end=(3, 4),
    activities=["cpu"],
)  # fmt: skip


def test_what_is_written_is_read(tmp_path):
    """Beside the trace, under its name, with nothing else left there."""
    place = write_window(tmp_path, WINDOW)

    assert place.name == "rank1.3.window.json"
    assert read_window(place) == WINDOW
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b'{"run_id": "\xff"}'])
def test_damaged_description_is_named(tmp_path, damage):
    """With what to do about it, whatever is wrong with the file."""
    place = tmp_path / "rank1.3.window.json"
    place.write_bytes(damage)

    with pytest.raises(JournalError, match=r"rank1\.3\.window\.json: .*; delete the file to skip"):
        read_window(place)


@pytest.mark.fault("S20")
@pytest.mark.parametrize("trace", ["../elsewhere.json", "/etc/passwd", "", ".."])
def test_a_trace_outside_of_its_folder_is_refused(tmp_path, trace):
    """Its content would be stored in tables that somebody else reads."""
    place = write_window(tmp_path, WINDOW)
    place.write_bytes(place.read_bytes().replace(WINDOW.trace.encode(), trace.encode()))

    with pytest.raises(JournalError, match="is not the name of a file"):
        read_window(place)
