"""The real Chromium for tests."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_MS = 300_000
"""For what takes a second: so long only on a machine that is very busy."""


class BrowserMissingError(Exception):
    """What a browser needs is not installed."""


def missing(error: ImportError) -> BrowserMissingError:
    """A package that is not installed."""
    return BrowserMissingError(f"{error.name} is not installed: see requirements/check.txt")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser without a window, driven by playwright.

    Raises:
        BrowserMissingError: a part of what is needed is not installed.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise missing(error) from error
    path = shutil.which("chromium")
    if path is None:
        raise BrowserMissingError("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=READY_MS
        )
        try:
            yield browser
        finally:
            browser.close()
