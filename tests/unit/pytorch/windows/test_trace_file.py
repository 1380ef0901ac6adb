"""A trace in its folder is complete or absent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from otel_mlperf.errors import StoreError
from otel_mlperf.pytorch.windows.trace_file import has_device_events, write_trace

WHOLE = ' {\n "traceEvents": [\n ], "traceName": "x" }\n'


def exporting(text):
    return lambda path: Path(path).write_text(text)


def test_whole_trace_gets_its_name(tmp_path):
    """As TensorBoard expects it, with no other file beside it."""
    path = write_trace(exporting(WHOLE), tmp_path / "profiles", "rank0.3")

    assert path == tmp_path / "profiles" / "rank0.3.pt.trace.json"
    assert path.read_text() == WHOLE
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.fault("F90")
def test_name_that_is_taken_is_not_overwritten(tmp_path):
    """Another process of the same rank and number keeps its trace."""
    first = write_trace(exporting(WHOLE), tmp_path, "rank0.3")
    second = write_trace(exporting(WHOLE), tmp_path, "rank0.3")

    assert first != second
    assert second.name.endswith(".3.pt.trace.json")


@pytest.mark.fault("F84")
@pytest.mark.parametrize("text", ["", "{", '{"traceEvents": [ {"name": "a"},', "Traceback", "}"])
def test_damaged_trace_is_no_trace(tmp_path, text):
    """What a full disk leaves is taken away, and the error says how much room there is."""
    with pytest.raises(StoreError, match=r"bytes, .* bytes are free"):
        write_trace(exporting(text), tmp_path, "rank0.0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F84")
def test_export_that_writes_nothing_is_no_trace(tmp_path):
    """Torch itself says nothing."""
    with pytest.raises(StoreError):
        write_trace(lambda _: None, tmp_path, "rank0.0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F84")
def test_interrupted_export_leaves_nothing(tmp_path):
    """Ctrl-C arrives, and no half file stays."""

    def interrupted(path):
        Path(path).write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(interrupted, tmp_path, "rank0.0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("F95")
def test_time_limit_is_the_programs(tmp_path):
    """What a signal handler raises meanwhile is no fault of the disk, and leaves nothing."""

    def end(number, frame):
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(TimeoutError, match="enough"):
            write_trace(lambda path: signal.raise_signal(signal.SIGUSR1), tmp_path, "window")
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert list(tmp_path.iterdir()) == []


def as_kineto(path):
    """Writes beside the place that it is given, and renames that."""
    beside = Path(f"{path}.tmp")
    beside.write_text(WHOLE)
    beside.rename(path)


@pytest.mark.fault("S20")
@pytest.mark.parametrize("name", [".{}-rank0.3.json", ".{}-rank0.3.json.tmp"])
def test_a_link_in_the_folder_is_not_written_through(tmp_path, name):
    """Another user has put it there, under a name that the profiler was known to use."""
    outside, folder = tmp_path / "outside", tmp_path / "profiles"
    folder.mkdir()
    (folder / name.format(os.getpid())).symlink_to(outside)
    path = write_trace(as_kineto, folder, "rank0.3")

    assert path.read_text() == WHOLE
    assert not outside.exists()


@pytest.mark.fault("S20")
def test_a_folder_that_becomes_a_link_is_not_written_through(tmp_path):
    """Another user exchanges it while the profiler writes."""
    outside, folder = tmp_path / "outside", tmp_path / "profiles"
    outside.mkdir()

    def exchanged(path):
        folder.rename(tmp_path / "before")
        folder.symlink_to(outside)
        as_kineto(path)

    write_trace(exchanged, folder, "rank0.3")

    assert not any(outside.iterdir())
    assert [path.name for path in (tmp_path / "before").iterdir()] == ["rank0.3.pt.trace.json"]


@pytest.mark.fault("F84")
def test_folder_that_cannot_be_made_is_named(tmp_path):
    """The error says which."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/profiles: Not a directory"):
        write_trace(exporting(WHOLE), tmp_path / "file" / "profiles", "rank0.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"ph": "X", "cat": "kernel", "name"', True),
        ('"cat": "gpu_memcpy"', True),
        ('"cat": "cpu_op"', False),
        ("", False),
        (" " * ((1 << 20) - 5) + '"cat": "kernel"', True),
    ],
)
def test_device_events_are_found_wherever_they_are(tmp_path, text, expected):
    """Also across the blocks in which the file is read."""
    (tmp_path / "trace").write_text(text)

    assert has_device_events(tmp_path / "trace") is expected
