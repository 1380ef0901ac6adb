"""Which cases of the tests of analysis `make test` runs.

Each case builds a run folder and judges it by some seventy queries: a fifth of a second.
"""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of each table of cases `make test` runs one."""
    if hasattr(item, "callspec") and not item.get_closest_marker("sampled"):
        item.add_marker(pytest.mark.sampled(1))
