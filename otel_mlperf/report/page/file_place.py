"""Source locations (file and line) on a page."""

from __future__ import annotations

import os
from typing import Final

_MOST_FOLDERS: Final = 2
"""Maximum folders of a path: its end is more informative; the browser shows the rest on hover."""


def file_place(file: str, line: int) -> str:
    """Return the end of the path, and the line."""
    *folders, name = file.split(os.sep)
    return f"{'/'.join([*folders[-_MOST_FOLDERS:], name])}:{line}"
