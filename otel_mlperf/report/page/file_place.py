"""Source locations (file and line) on a page."""

from __future__ import annotations

import os
from typing import Final

_MOST_FOLDERS: Final = 2
"""Of a path: its end tells more than its beginning, which the browser shows on request."""


def file_place(file: str, line: int) -> str:
    """The end of its path, and the line."""
    *folders, name = file.split(os.sep)
    return f"{'/'.join([*folders[-_MOST_FOLDERS:], name])}:{line}"
