"""Which chain do the tests of this folder share?"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from cluster import engines
from cluster.chain import Chain, reachable_folder

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from cluster.stored import StoredSpan


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


@pytest.fixture
def told(
    request: pytest.FixtureRequest,
) -> Callable[[str, set[StoredSpan], Counter[StoredSpan]], None]:
    """Prints a line of the table: what is missing of a run, and what is stored again."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None

    def tell(what: str, recorded: set[StoredSpan], found: Counter[StoredSpan]) -> None:
        missing, again = len(recorded - found.keys()), found.total() - len(found)
        with capture.global_and_fixture_disabled():
            print(f"\n| {what} | {len(recorded):,} | {missing:,} | {again:,} |", flush=True)

    return tell
