"""An experiment tracker shows a run like its tables, even if the agent is killed."""

from __future__ import annotations

import pytest
from runs import Running, adds_up, kill_two_agents
from tracked_points import in_event_files, in_tables, of_the_program, rounded

pytestmark = pytest.mark.slow


@pytest.mark.fault("F27")
def test_agent_killed_in_between_leaves_every_point_once(tmp_path) -> None:
    """In TensorBoard's files is each step, value and reading of the tables, and nothing twice."""
    with Running(
        tmp_path / "runs", "--pause", "0.02", OTEL_MLPERF_DESTINATIONS="tensorboard"
    ) as one:
        kill_two_agents(one.runs, written)
        ended = one.end().settled()

    assert ended.code == 0, ended.errors
    points = in_event_files(ended.folder / "tensorboard")
    assert of_the_program(points) == rounded(in_tables(ended.folder))
    steps = [point for point in points.elements() if point[1] == "train/step_duration_s"]
    assert len(steps) == ended.counted[1]
    account = ended.accounts()["scalars"]["tensorboard"]
    assert adds_up(account)
    assert account["delivered"] == account["created"] == points.total()


def written(runs) -> int:
    """How large the event files are by now."""
    return sum(path.stat().st_size for path in runs.glob("*/tensorboard/*/events.*"))
