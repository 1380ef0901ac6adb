"""Each rank adds a bounded number of series to Prometheus, and nothing to the node's."""

from __future__ import annotations

import os
import sys

import pytest
import warm_python
from fault_server import FaultServer
from runs import PROGRAMS, ending, environment, settle

from otel_mlperf import names
from otel_mlperf.store.run_folders import list_runs

OF_RANK, OF_NODE = 70, 110
"""What ``docs/sizes.md`` says at most: at ``basic``, with a handful of sections."""


@pytest.fixture
def series(tmp_path):
    """The series of a run of so many ranks on this node, by the rank in their resource."""

    def record(ranks: int) -> dict[int | None, set[tuple[str, ...]]]:
        folder = tmp_path / str(ranks)
        folder.mkdir()
        command = [sys.executable, str(PROGRAMS / "ranks.py"), "--meet", str(folder)]
        job = {"OTEL_MLPERF_RUN_ID": os.urandom(8).hex(), "WORLD_SIZE": str(ranks)}
        with FaultServer(folder) as server:
            job["OTEL_EXPORTER_OTLP_ENDPOINT"] = server.url
            started = [
                warm_python.Popen(
                    command, env=environment(folder / "runs", **job, RANK=str(rank)), stderr=-3
                )
                for rank in range(ranks)
            ]
            with ending(started):
                assert [process.wait() for process in started] == [0] * ranks
                (run,) = list_runs(folder / "runs")
                settle(run.path)
            found: dict[int | None, set[tuple[str, ...]]] = {}
            for point in server.points():
                labels = sorted(f"{key}={value}" for key, value in point["attributes"].items())
                rank = point["resource"].get(names.RANK)
                found.setdefault(rank, set()).add((point["name"], *labels))
            return found

    return record


@pytest.mark.slow
def test_ranks_stay_within_their_budget_and_add_nothing_to_the_node(series):
    """Each has so many, whatever the number of ranks; those of a node are not by rank."""
    one, four = series(1), series(4)
    of_node = [label for _, *labels in four[None] for label in labels]

    assert set(four) == {None, 0, 1, 2, 3}
    assert max(len(of_rank) for of_rank in (one[0], *(four[rank] for rank in range(4)))) <= OF_RANK
    assert max(len(one[None]), len(four[None])) <= OF_NODE
    assert not [label for label in of_node if label.startswith((names.RANK, names.LOCAL_RANK))]
