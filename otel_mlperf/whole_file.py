"""How does a command write a file for its user: whole or not at all, and over no other?"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from otel_mlperf.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO


@contextmanager
def new_file(path: Path, *, is_replaced: bool = False) -> Iterator[BinaryIO]:
    """A file that gets its name when all is written; nothing is left of it after an error.

    Raises:
        OutputError: a file is there that must not be replaced, or the place refuses.
    """
    if path.exists() and not (is_replaced and path.is_file()):
        raise OutputError(
            f"writing {path}: it is there already; --force replaces it, --out names another"
            if path.is_file()
            else f"writing {path}: it is no file; give the name of one with --out"
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        why = error.strerror or error
        raise OutputError(f"writing {path}: {why}; --out names another place") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
