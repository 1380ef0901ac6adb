"""Folder for the runs of the tests of reports."""

from __future__ import annotations

import pytest


@pytest.fixture
def runs(tmp_path):
    """The folder of runs, named as users see it."""
    folder = tmp_path / "otel-runs"
    folder.mkdir()
    return folder
