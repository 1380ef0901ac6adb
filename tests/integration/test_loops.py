"""Each common kind of loop is recorded correctly, both unmodified and by the API."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
import warm_python
from loop_programs import BETWEEN, LOOPS, PARTS, read_watch, start_loop, true_counts
from runs import adds_up, environment

STYLES = ("untouched", "api")
ROWS = [(name, style) for name in LOOPS for style in STYLES]
each_program = pytest.mark.sampled(1, by="name")


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Starts a program as often as it says that it is, once for all tests; what each start left."""
    done = {}

    def start(name, style):
        if (name, style) not in done:
            folder = tmp_path_factory.mktemp(f"{name}-{style}")
            done[name, style] = [start_loop(name, style, folder) for _ in true_counts(name)]
        return done[name, style]

    return start


@pytest.fixture(scope="module")
def recorded(started):
    """The starts of a program with what is true of each, once their agents have left."""

    def settle(name, style):
        starts = [ended.settled() for ended in started(name, style)]
        return list(zip(starts, true_counts(name), strict=True))

    return settle


def seen(true, style, counts):
    """What can be seen of the program in that style."""
    hidden = {PARTS.get(kind) for kind in true.unseen} if style == "untouched" else set()
    return {name: count for name, count in counts.items() if name not in hidden}


def calls_in_steps(ended):
    """Calls of each section of a step, by step: of those that finished, and of the others."""
    rows = ended.rows(
        "SELECT n, name, error, sum(count)::BIGINT AS calls FROM steps JOIN sections "
        "USING (phase, n) WHERE phase = 'train' AND name IN "
        f"{tuple(PARTS.values())} GROUP BY n, name, error ORDER BY n"
    )
    finished, failed = {}, {}
    for row in rows:
        (failed if row["error"] else finished).setdefault(row["n"], {})[row["name"]] = row["calls"]
    return list(finished.values()), list(failed.values())


@each_program
@pytest.mark.parametrize("name", LOOPS)
def test_what_a_program_says_of_itself_is_true(started, name):
    """Steps and parts as its stopwatch has counted them, in each step and between them."""
    for ended, true in zip(started(name, "plain"), true_counts(name), strict=True):
        watched = read_watch(ended)
        steps = [Counter() for _ in watched.steps_ns]
        for part, step, _, _ in watched.parts:
            if step is not None and part in PARTS.values():
                steps[step][part] += 1

        assert steps == [*true.steps, *([true.unfinished] if true.unfinished else [])]
        assert Counter(part for part, *_ in watched.parts) == true.calls


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", [name for name in LOOPS if "epochs" in true_counts(name)[0].counts]
)
def test_steps_are_of_the_epochs_of_the_loop(recorded, name):
    """Passes over its loader, of an untouched program."""
    ((ended, true),) = recorded(name, "untouched")
    rows = ended.rows("SELECT epoch FROM steps WHERE phase = 'train' ORDER BY n")

    assert [row["epoch"] for row in rows] == true.epochs


@each_program
@pytest.mark.parametrize(("name", "style"), ROWS)
def test_program_is_what_it_was(started, name, style):
    """Output, errors and exit code are those of plain Python."""
    for ended, plain in zip(started(name, style), started(name, "plain"), strict=True):
        assert (ended.code, ended.output, ended.errors) == (plain.code, plain.output, plain.errors)
        assert ended.output


@each_program
@pytest.mark.parametrize(("name", "style"), ROWS)
def test_steps_hold_the_work_that_is_theirs(recorded, name, style):
    """As many steps as there are, each with its own batches, passes and updates."""
    for ended, true in recorded(name, style):
        if style == "untouched" and "steps" in true.unseen:
            assert ended.rows("SELECT n FROM steps") == []
            continue
        finished, failed = calls_in_steps(ended)

        assert finished == true.steps
        assert failed == ([true.unfinished] if true.unfinished else [])


@each_program
@pytest.mark.parametrize(("name", "style"), ROWS)
def test_steps_have_the_numbers_that_they_have(recorded, name, style):
    """They count from 0; where the program goes on with a training, from where that was."""
    for ended, true in recorded(name, style):
        first = true.first
        count = 0 if style == "untouched" and "steps" in true.unseen else len(true.steps)
        rows = ended.rows("SELECT number FROM steps WHERE NOT error AND phase = 'train' ORDER BY n")

        assert [row["number"] for row in rows] == [first + i for i in range(count)]


@each_program
@pytest.mark.parametrize(("name", "style"), ROWS)
def test_calls_are_counted(recorded, name, style):
    """Batches, forwards, backwards, updates, validations and checkpoints, wherever they are."""
    names = (*PARTS.values(), *BETWEEN.values())
    for ended, true in recorded(name, style):
        rows = ended.rows(
            "SELECT name, sum(count)::BIGINT AS calls FROM sections "
            f"WHERE name IN {names} AND path NOT LIKE '%validate/%' GROUP BY name"
        )

        assert {row["name"]: row["calls"] for row in rows} == seen(true, style, true.calls)


def told(ended, *words):
    """What a command says of the run that a program has left."""
    command = [sys.executable, "-m", "otel_mlperf", *words, str(ended.folder)]
    return warm_python.check_output(command, env=environment(ended.runs), text=True)


def of_the_loop(ended):
    """What was found, by its id, but for what others do on this machine meanwhile."""
    found = json.loads(told(ended, "summary", "--json"))["findings"]
    return {one["id"]: one for one in found if one["id"] != "noisy_neighbour"}


@pytest.mark.slow
def test_steps_that_cannot_be_seen_are_no_secret(recorded):
    """All who speak of the run say what was seen, what is missing, and the one line that helps."""
    ((ended, _),) = recorded("update_by_hand", "untouched")
    seen = (
        "no step of a PyTorch loop was detected: 12 forward passes, 12 backward passes, no "
        "optimizer step"
    )

    found = of_the_loop(ended)["unseen_steps"]
    assert (found["severity"], found["summary"]) == ("warning", seen)
    summary = " ".join(told(ended, "summary").split())
    assert f"{seen} {found['action']}" in summary
    assert f"warn unseen_steps {seen} → {found['action']}" in " ".join(
        told(ended, "doctor").split()
    )


@pytest.mark.slow
def test_the_line_that_is_advised_helps(tmp_path):
    """The same program with ``om.step()`` around its turns, and nothing else, has its steps.

    What it updates by hand is in no section still, which is a fourth of a step or more.
    """
    (true,) = true_counts("update_by_hand")
    ended = start_loop("update_by_hand", "advised", tmp_path).settled()
    finished, failed = calls_in_steps(ended)

    assert finished == [{"forward": 1, "backward": 1}] * len(true.steps)
    assert failed == []
    assert of_the_loop(ended).keys() <= {"uncovered", "costly_line"}


@each_program
@pytest.mark.parametrize(("name", "style"), ROWS)
def test_everything_is_accounted_for(recorded, name, style):
    """Each span and point has its fate, and none is lost."""
    for ended, _ in recorded(name, style):
        accounts = [of for by in ended.accounts().values() for of in by.values()]

        assert accounts
        assert all(map(adds_up, accounts))
        assert not any(account["lost"] or account["pending"] for account in accounts)
