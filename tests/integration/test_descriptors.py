"""Everything is recorded if a program closes our descriptors, and its own files are left alone."""

from __future__ import annotations

import sys

import pytest
import warm_python
from runs import PROGRAMS, Ended, adds_up, environment


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["all", "the journal's"])
def test_closed_descriptors_cost_no_step_and_no_file(tmp_path, how):
    """`os.closerange`, or reading the journal: both drop the lock that says that we live."""
    done = warm_python.run(
        [sys.executable, PROGRAMS / "closes_descriptors.py", how, tmp_path],
        env=environment(tmp_path / "runs"), capture_output=True, text=True,
    )  # fmt: skip
    ended = Ended(done.returncode, done.stdout, done.stderr, tmp_path / "runs", tmp_path).settled()

    assert (ended.code, ended.output, ended.errors) == (0, "intact\n", "")
    assert ended.rows("SELECT count(*) AS n FROM steps") == [{"n": 400}]
    (process,) = ended.rows("SELECT outcome FROM processes")
    assert process["outcome"] == "finished"
    account = ended.accounts()["spans"]["store"]
    assert adds_up(account)
    assert account["lost"] == {}
