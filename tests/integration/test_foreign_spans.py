"""Is nothing lost of a program that traces itself through the OpenTelemetry API?"""

from __future__ import annotations

import importlib.util

import pytest
from runs import PROGRAMS, adds_up, run_program

STEPS = 200
_spec = importlib.util.spec_from_file_location("megatron_like", PROGRAMS / "megatron_like.py")
megatron_like = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(megatron_like)


@pytest.mark.parametrize("end", ["finish", "kill"])
def test_every_span_and_sum_arrives(tmp_path, end):
    """Spans created are those that ended, and those open when it was killed; none is lost."""
    ended = run_program(
        tmp_path / "runs", "--end", end, "--steps", str(STEPS), program="megatron_like.py"
    ).settled()
    spans, _, tokens = ended.counted

    assert ended.code == (0 if end == "finish" else -9)
    assert tokens == STEPS * 4096
    assert spans == STEPS * megatron_like.SPANS + (end == "finish")
    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
    assert account["created"] == spans + (3 if end == "kill" else 0)
    (stored,) = ended.rows("SELECT max(value) AS n FROM readings WHERE name = 'train.tokens'")
    assert stored["n"] == tokens
    if end == "kill":
        cut = ended.rows("SELECT name FROM spans WHERE interrupted ORDER BY start_ns")
        assert [row["name"] for row in cut] == ["run", "train-step", "forward-backward"]
