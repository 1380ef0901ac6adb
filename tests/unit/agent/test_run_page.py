"""The page of a run is made in parallel to the agent, or given up in time."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.agent.run_page import make_page

pytestmark = pytest.mark.usefixtures("warm_children")


@pytest.fixture
def run(tmp_path):
    """The folder of a run of two steps."""
    builder = RunFolderBuilder(tmp_path)
    builder.process(S)
    for n in (0, 1):
        builder.step(n, n * 10 * MS, {"forward": 8 * MS}, own=2 * MS)
    return builder.write()


def test_page_is_that_of_the_command(run, tmp_path):
    """A whole file of HTML about the run; nothing of it is left beside the agent's own files."""
    folder = tmp_path / "agent"
    folder.mkdir()

    page = make_page(run, folder).decode()

    assert page.startswith("<!doctype html>")
    assert {"digits", "forward", "default-src"} <= {
        word for word in ("digits", "forward", "default-src") if word in page
    }
    assert list(folder.iterdir()) == []


def test_page_that_cannot_be_made_is_said(run, tmp_path, caplog):
    """With what the process that was to make it said."""
    (run / "run.json").write_text(json.dumps({"no": "run"}))

    assert make_page(run, tmp_path) is None
    assert "the page of the run was not created" in caplog.text
    assert "run.json" in caplog.text


def test_page_that_nobody_wants_any_more_is_given_up(run, tmp_path):
    """Whoever makes it ends, however far it is; nothing is left."""
    folder = tmp_path / "agent"
    folder.mkdir()

    assert make_page(run, folder, lambda: False) is None
    assert list(folder.iterdir()) == []
