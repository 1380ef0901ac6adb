"""Is the space that of the run folder's disk?"""

from __future__ import annotations

import shutil

import pytest
from kernel_files import of

from otel_mlperf import names
from otel_mlperf.sensors.host.filesystem import FilesystemSensor


def test_space_agrees_with_the_standard_library(tmp_path):
    """States add up to the size, and free is what a user can still write, to 64 MiB."""
    found = FilesystemSensor(tmp_path).read()
    theirs = shutil.disk_usage(tmp_path)

    ((mountpoint,),) = of(names.FILESYSTEM_LIMIT, found)
    states = {key[1]: size for key, size in of(names.FILESYSTEM_USAGE, found).items()}
    assert tmp_path.is_relative_to(mountpoint)
    assert of(names.FILESYSTEM_LIMIT, found)[mountpoint,] == theirs.total == sum(states.values())
    assert states["free"] == pytest.approx(theirs.free, abs=64 << 20)
    share = states["used"] / (states["used"] + states["free"])
    assert of(names.FILESYSTEM_UTILIZATION, found) == {(mountpoint,): share}


def test_a_folder_that_is_gone_is_absent(tmp_path):
    """Nothing is said of a disk that cannot be asked."""
    assert FilesystemSensor(tmp_path / "gone").read() == []
