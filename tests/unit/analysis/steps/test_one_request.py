"""One request is shown: the slowest, or by its id or number."""

from __future__ import annotations

import json
import sys

import pytest
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.steps.one_request import read_request
from otel_mlperf.cli import main
from otel_mlperf.errors import NoSuchRequest
from otel_mlperf.store.run_folders import read_run


@pytest.fixture
def served(tmp_path):
    """A run of three requests with a section each; the second is the slowest."""
    run = RunFolderBuilder(tmp_path, "serve")
    for n, spent in enumerate((10, 50, 20)):
        of = {"trace_id": f"{n + 7:032x}", "phase": "", "kept": "first"}
        said = json.dumps({names.REQUEST_ID: f"r{n}"})
        root = run.span(None, "predict", n * 100 * MS, spent * MS, category=names.REQUEST,
                        attributes=said, **of)  # fmt: skip
        run.span(
            None, "forward", n * 100 * MS, (spent - 1) * MS, parent_id=root, root_id=root, **of
        )
    run.process(S)
    return read_run(run.write())


@pytest.mark.parametrize(("wanted", "id"), [(None, "r1"), ("r2", "r2"), ("1", "r0")])
def test_a_request_is_chosen_by_its_time_its_id_or_its_number(served, wanted, id):
    """With the sections that are inside it, and none of another."""
    found = read_request(served, wanted)

    assert (found.request_id, found.kept_requests, found.chosen) == (id, 3, wanted is None)
    assert [(one.name, one.depth) for one in found.spans] == [("predict", 0), ("forward", 1)]
    assert found.duration_ns == found.spans[0].duration_ns


def test_a_request_that_is_not_there_is_told_with_those_that_are(served):
    """Their ids, and how many."""
    with pytest.raises(NoSuchRequest, match="3 sampled requests have spans, with ids r0, r1, r2"):
        read_request(served, "nobody")
    with pytest.raises(NoSuchRequest, match="no spans of requests are stored"):
        read_request(served, rank=5)


def test_show_draws_it(served, monkeypatch, capsys):
    """By ``--phase request``, as the finding of late requests advises."""
    argv = ["otel-mlperf", "show", str(served.path), "--phase", "request"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as end:
        main()

    lines = capsys.readouterr().out.splitlines()
    assert not end.value.code
    assert lines[0].startswith("request predict r1 · rank 0 · run ")
    assert lines[3] == "request number 2 · 50.0 ms"
    assert lines[-1].split()[:3] == ["forward", "49.0", "ms"]
