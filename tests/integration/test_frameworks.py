"""A program of each framework is recorded correctly, and left unchanged.

Untouched, but for those that nobody can see the loop of, who say their steps.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
import warm_python
from loop_programs import (
    BETWEEN,
    FRAMEWORKS,
    PARTS,
    packages_of,
    read_watch,
    start_loop,
    true_counts,
)
from runs import adds_up, environment
from tiers import require_packages

pytestmark = [pytest.mark.frameworks, pytest.mark.parametrize("name", FRAMEWORKS)]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """What a program left, started once for all tests; where recorded, its agent has left."""
    done = {}

    def start(name, style=None):
        require_packages(*packages_of(name))
        style = style or true_counts(name)[0].style
        if (name, style) not in done:
            ended = start_loop(name, style, tmp_path_factory.mktemp(f"{name}-{style}"))
            done[name, style] = ended if style == "plain" else ended.settled()
        return done[name, style]

    return start


def test_program_is_what_it_was(started, name):
    """Output, with each loss in it, and exit code are those of plain Python."""
    ended, plain = started(name), started(name, "plain")

    assert (ended.code, ended.output) == (plain.code, plain.output), ended.errors
    assert ended.code == 0
    assert ended.output


def test_what_a_program_says_of_itself_is_true(started, name):
    """What the stopwatch could be placed at was counted by it."""
    (true,) = true_counts(name)
    hidden = {(PARTS | BETWEEN)[kind] for kind in true.unmarked}
    marked = {part: count for part, count in true.calls.items() if count and part not in hidden}
    if not marked:
        pytest.skip("all of it happens inside the framework")

    measured = Counter(part for part, *_ in read_watch(started(name, "plain")).parts)
    assert {part: count for part, count in measured.items() if part not in hidden} == marked


def test_steps_hold_the_work_that_is_theirs(started, name):
    """As many steps as the framework counts, each with its batches, passes and update."""
    (true,) = true_counts(name)
    rows = started(name).rows(
        "SELECT n, name, sum(count)::BIGINT AS calls FROM steps JOIN sections USING (phase, n) "
        f"WHERE phase = 'train' AND name IN {(*PARTS.values(),)} GROUP BY n, name ORDER BY n"
    )
    steps = {}
    for row in rows:
        steps.setdefault(row["n"], {})[row["name"]] = row["calls"]

    assert list(steps.values()) == true.steps
    assert list(steps) == [*range(len(true.steps))]


def test_steps_are_of_the_epochs_of_the_framework(started, name):
    """Each step of an untouched loop, without a call by the program."""
    (true,) = true_counts(name)
    if "epochs" not in true.counts:
        pytest.skip("its steps are said, or in no epochs")
    rows = started(name).rows("SELECT epoch FROM steps WHERE phase = 'train' ORDER BY n")

    assert [row["epoch"] for row in rows] == true.epochs


def test_validations_and_checkpoints_are_counted(started, name):
    """Each has its section, outside the steps."""
    (true,) = true_counts(name)
    rows = started(name).rows(
        "SELECT name, sum(count)::BIGINT AS calls FROM sections WHERE n IS NULL "
        f"AND name IN {(*BETWEEN.values(),)} AND path NOT LIKE '%validate/%' GROUP BY name"
    )
    expected = {part: true.calls[part] for part in BETWEEN.values() if true.calls.get(part)}

    assert {row["name"]: row["calls"] for row in rows} == expected


def test_phases_add_up_to_the_step(started, name):
    """The rows of the summary, with what is in none, are the step."""
    ended = started(name)
    command = [sys.executable, "-m", "otel_mlperf", "summary", "--json", str(ended.folder)]
    answer = json.loads(warm_python.check_output(command, env=environment(ended.runs), text=True))
    rows = [row["mean_ns"] for row in answer["steps"]["rows"] if not row["beside"]]

    assert sum(rows) == pytest.approx(answer["steps"]["mean_ns"], rel=1e-6)


def test_everything_is_accounted_for(started, name):
    """Each span and point has its fate, and none is lost."""
    accounts = [of for by in started(name).accounts().values() for of in by.values()]

    assert accounts
    assert all(map(adds_up, accounts))
    assert not any(account["lost"] or account["pending"] for account in accounts)
