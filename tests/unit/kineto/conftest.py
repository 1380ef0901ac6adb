"""What tests of profiler traces share."""

from __future__ import annotations

from functools import cache

import pytest
from kineto_recorded import record


@pytest.fixture(scope="session")
def recorded_trace(tmp_path_factory):
    """The path of a trace recorded here with these options, once in a session for each."""
    return cache(lambda *options: record(tmp_path_factory.mktemp("recorded"), *options))
