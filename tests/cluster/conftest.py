"""Which chain do the tests of this folder share?"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from cluster import engines
from cluster.chain import Chain, reachable_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def chain() -> Iterator[Chain]:
    """The whole chain, running; a test that kills a part of it starts it again."""
    if reason := engines.missing():
        pytest.skip(reason)
    folder = reachable_folder()
    made = Chain(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
