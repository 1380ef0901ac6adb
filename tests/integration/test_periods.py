"""The periods of a running run contain everything that has ended by now."""

from __future__ import annotations

import json

from runs import run_program


def test_periods_while_the_run_goes_on(tmp_path):
    """Each step and request, also where midnight falls into it."""
    ended = run_program(tmp_path / "runs", program="asks_periods.py")
    assert ended.code == 0, ended.errors
    answer = json.loads(ended.count.read_text())

    assert (answer["schema"], answer["outcome"]) == ("periods/1", "running")
    counted = {"steps": 0, "in a step": 0, "predict": 0}
    for period in answer["periods"]:
        counted["steps"] += period["steps"]["count"] if period["steps"] else 0
        for request in period["requests"]:
            counted[request["name"]] += request["count"]
    assert counted == {"steps": 50, "in a step": 50, "predict": 20}
