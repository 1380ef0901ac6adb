"""Users learn why there are no steps, what was observed, and the one line that helps."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.run_folders import read_run

ROW = row_of("unseen_steps")


def seen(runs, outcome="finished", integrations=("torch",), **calls):
    """A run that a program of torch has left, in which these parts were seen so often."""
    run = RunFolderBuilder(runs, integrations=integrations)
    for name, count in calls.items():
        run.outside(name, count * MS, count=count)
    run.process(0 if outcome == "running" else S, outcome)
    return run


def findings(run):
    return [one for one in judge_run(read_run(run.write())).findings if one.id == ROW.id]


def test_an_update_by_hand(tmp_path):
    """What was seen, what is missing, and the line that helps."""
    (found,) = findings(seen(tmp_path, forward=46, backward=17))

    assert found.summary == (
        "no step of a PyTorch loop was detected: 46 forward passes, 17 backward passes, no "
        "optimizer step"
    )
    assert found.severity == "warning"
    assert "`with om.step():`" in found.action
    assert found.evidence == {"forward": 46.0, "backward": 17.0, "optimizer": 0.0}


@pytest.mark.parametrize(
    ("calls", "told", "severity"),
    [
        ({}, "no forward pass, no backward pass, no optimizer step", "info"),
        (
            {"forward": 2000},
            "2,000 forward passes, no backward pass, no optimizer step",
            "info",
        ),
        ({"optimizer": 1}, "no forward pass, no backward pass, 1 optimizer step", "warning"),
        (
            {"backward": 3, "optimizer": 2},
            "no forward pass, 3 backward passes, 2 optimizer steps",
            "warning",
        ),
    ],
)
def test_whatever_is_missing_is_named(tmp_path, calls, told, severity):
    """Training that shows in parts only is a warning; a program that never trains is told so."""
    (found,) = findings(seen(tmp_path, **calls))

    assert (found.summary, found.severity) == (ROW.summary.format(seen=told), severity)


def test_what_a_validation_holds_is_not_counted(tmp_path):
    """The numbers are those that the section's row shows, without those below `validate`."""
    run = seen(tmp_path, forward=12, backward=12)
    run.outside("validate/forward", MS, count=2)

    (found,) = findings(run)
    assert found.evidence["forward"] == 12


def test_the_calls_are_those_of_a_rank(tmp_path):
    """Four ranks of ten passes each are not forty."""
    run = RunFolderBuilder(tmp_path, integrations=["torch"])
    for rank in range(4):
        run.section(None, "backward", MS, count=10, path="backward", rank=rank)
        run.process(S, rank=rank, world_size=4)

    (found,) = findings(run)
    assert found.evidence["backward"] == 10


@pytest.mark.parametrize("outcome", ["running", "failed", "interrupted", "killed"])
def test_a_run_that_has_not_finished_may_be_in_its_first_step(tmp_path, outcome):
    """Nothing is said of a few passes; of more than make a step, it is."""
    few, many = int(ROW.threshold), int(ROW.threshold) + 1

    assert findings(seen(tmp_path / "few", outcome, forward=few, backward=few)) == []
    assert len(findings(seen(tmp_path / "many", outcome, forward=many, backward=many))) == 1


def test_steps_that_were_seen_are_no_fault(tmp_path):
    """One step is enough."""
    run = seen(tmp_path, forward=46, backward=17)
    run.step(0, 0, {"forward": MS})

    assert findings(run) == []


@pytest.mark.parametrize("integrations", [(), ("tinyfit",)])
def test_where_nobody_expects_a_loop_of_torch(tmp_path, integrations):
    """A tool without torch, and a program that says its sections itself, hear nothing of it."""
    run = seen(tmp_path, integrations=integrations, forward=46)

    assert findings(run) == []


def test_nothing_at_all_says_how_to_record_something(tmp_path):
    """The text of a run without a section speaks of no PyTorch that nobody has used."""
    text = render_summary(judge_run(read_run(seen(tmp_path, integrations=()).write())))

    assert "nothing was recorded; use om.steps and om.span" in text
    assert "PyTorch" not in text


def counted(run, **values):
    """What was counted where no loop is looked for."""
    for metric, value in values.items():
        run.row("readings", rank=0, restart=0, name=getattr(names, metric).name, labels="{}",
                time_ns=START + MS, value=float(value))  # fmt: skip
    return run


@pytest.mark.parametrize(
    ("values", "said", "helps"),
    [
        (
            {"OTHER_UPDATES": 80, "OTHER_LOOPS": 2},
            "80 optimizer steps in 2 other threads",
            "`with om.step():`",
        ),
        (
            {"STARTED_PROCESSES": 2},
            "2 processes started with multiprocessing",
            "`om.start()` in the function",
        ),
    ],
)
def test_training_elsewhere_is_said(tmp_path, values, said, helps):
    """In other threads, tasks and processes nothing is inferred: they are counted and named."""
    (found,) = findings(counted(seen(tmp_path), **values))

    assert found.summary.endswith(f", {said}")
    assert found.severity == "warning"
    assert helps in found.action


def test_training_beside_steps_is_said(tmp_path):
    """A second loop in turns with the first one is no part of the first one's steps."""
    run = counted(seen(tmp_path), OTHER_UPDATES=40, OTHER_LOOPS=1, STARTED_PROCESSES=2)
    run.step(0, 0, {"forward": MS})

    (found,) = findings(run)
    assert found.summary == ("40 optimizer steps in a thread or asyncio task ran outside all steps")
    assert found.severity == "info"


@pytest.mark.parametrize(("own", "severity"), [(0, "warning"), (3, "info")])
def test_steps_of_forked_children_are_counted_and_named(tmp_path, own, severity):
    """As of a daemon, which goes on after the process that called start has ended."""
    run = seen(tmp_path, "killed", integrations=())
    run.outside("train.step", 30 * MS, count=30, category=names.STEP, beside=True)
    for n in range(own):
        run.step(n, n * MS, {"forward": MS})

    (found,) = findings(run)
    assert found.summary.startswith("processes forked after om.start ran 30 steps, ")
    assert found.severity == severity
    assert "in a daemon after it has detached" in found.action
