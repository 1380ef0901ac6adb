"""The wheel of this tree, built and unpacked for an interpreter."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(folder: Path) -> Path:
    """The wheel, built into ``folder``."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (file,) = folder.glob("*.whl")
    return file


def unpack_metadata(wheel: Path, folder: Path) -> Path:
    """A folder with the wheel's metadata alone: on the path its entry points are this tree's."""
    with zipfile.ZipFile(wheel) as content:
        for name in content.namelist():
            if ".dist-info/" in name:
                content.extract(name, folder)
    return folder
