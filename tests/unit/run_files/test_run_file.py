"""What one rank writes of a run is what every reader finds, and never half of it."""

from __future__ import annotations

import json

import pytest

from otel_mlperf.errors import StoreError
from otel_mlperf.run_files.run_file import (
    FORMAT,
    RUN_FILE,
    RunFile,
    extend_run_file,
    read_run_file,
    write_integrations,
    write_run_file,
)

FACTS = {"id": "3f2a", "name": "digits", "started_ns": 7, "params": {"lr": 0.1}, "tags": ["a"]}


def test_what_is_written_is_read(tmp_path):
    """The format is added; what was not said has its default."""
    assert write_run_file(str(tmp_path), FACTS)

    assert read_run_file(tmp_path) == RunFile(**FACTS, host="", world_size=1, format=FORMAT)
    assert [path.name for path in tmp_path.iterdir()] == [RUN_FILE]


def test_the_first_rank_to_write_is_believed(tmp_path):
    """Others of its run agree with it, another run is told that the folder is taken."""
    write_run_file(str(tmp_path), FACTS)

    assert write_run_file(str(tmp_path), FACTS | {"started_ns": 8})
    assert not write_run_file(str(tmp_path), FACTS | {"id": "77aa"})
    assert read_run_file(tmp_path).started_ns == 7


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"'])
def test_a_damaged_file_is_nobodys(tmp_path, content):
    """It is left as it is."""
    (tmp_path / RUN_FILE).write_text(content)

    assert not write_run_file(str(tmp_path), FACTS)
    assert (tmp_path / RUN_FILE).read_text() == content
    with pytest.raises(StoreError, match="a run folder requires this file"):
        read_run_file(tmp_path)


def test_later_facts_are_added(tmp_path):
    """Of parameters the later wins; what only a newer version knows stays."""
    write_run_file(str(tmp_path), FACTS | {"from_tomorrow": 1})
    extend_run_file(str(tmp_path), {"lr": 0.2, "depth": 3}, ["b"])

    found = read_run_file(tmp_path)
    assert (found.params, found.tags) == ({"lr": 0.2, "depth": 3}, ["a", "b"])
    assert json.loads((tmp_path / RUN_FILE).read_text())["from_tomorrow"] == 1


def test_the_integrations_are_those_that_are_on_now(tmp_path):
    """The last word counts, and touches nothing else."""
    write_run_file(str(tmp_path), FACTS | {"from_tomorrow": 1})
    write_integrations(str(tmp_path), ["torch"])
    assert read_run_file(tmp_path) == RunFile(**FACTS, integrations=["torch"])

    write_integrations(str(tmp_path), [])
    assert read_run_file(tmp_path) == RunFile(**FACTS)
    assert json.loads((tmp_path / RUN_FILE).read_text())["from_tomorrow"] == 1
