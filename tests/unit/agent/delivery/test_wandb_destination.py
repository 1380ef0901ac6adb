"""Each point is once in the file of Weights & Biases, whatever happens to agent and disk."""

from __future__ import annotations

import resource
import signal
import sys

import pytest
from by_hand import MS, Program, accounts, adds_up
from hypothesis import given
from hypothesis import strategies as some
from tracked_by_hand import batch, ended, last_acknowledged, page, scalar, train
from wandb_shown import (
    contents,
    expected,
    items,
    of_kind,
    points,
    records,
    rows,
    summary,
    the_file,
)

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import Delivered, DestinationContext, TryLater
from otel_mlperf.agent.delivery.wandb_destination import framed, make
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.events import WarningHeld
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.model.table_rows import TableRows
from otel_mlperf.run_files.run_file import extend_run_file, write_run_file

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("wandb_package")]

FOR_EVER_S = 900
KILLS, LAST, POINTS = 20, 60, 40
FACTS = {
    "id": "0123abcd",
    "name": "digits",
    "host": "node",
    "started_ns": 1_700_000_000_000_000_000,
    "params": {"lr": 0.1, "model": {"depth": 3, "blocks": [1, 2]}},
    "tags": ["baseline", "team=vision"],
    "world_size": 1,
}
ENVIRON = {"WANDB_MODE": "offline", "WANDB_PROJECT": "digits"}
CHOSEN = {"trackers": frozenset({"wandb"}), "environ": ENVIRON, "drain_timeout_s": FOR_EVER_S}
BLOCK = 1 << 15


@pytest.fixture
def live():
    """The ranks of the host, and whether each still runs."""
    return {0: True}


@pytest.fixture
def new_destination(tmp_path, live):
    """Makes one of a host, as each new agent does."""

    def make_one(host="node", *, tracker_report=False, **more):
        (tmp_path / "agent" / host).mkdir(parents=True, exist_ok=True)
        write_run_file(str(tmp_path), FACTS | more)
        options = Options(policy=Policy(), environ=ENVIRON, tracker_report=tracker_report)
        return make(DestinationContext(tmp_path, host, options, TableRows(), lambda: live))

    return make_one


def steps_shown(tmp_path):
    return [row["step"] for row in rows(the_file(tmp_path))]


@given(
    some.lists(some.integers(1, 3 * BLOCK) | some.integers(BLOCK - 40, BLOCK), max_size=6),
    some.integers(0, 6),
)
def test_records_are_whole_wherever_a_batch_begins(lengths, cut):
    """The file is the same whether they are written at once or in two batches."""
    given_records = [bytes([1 + n]) * length for n, length in enumerate(lengths)]
    first = framed(0, given_records[:cut])
    whole = first + framed(len(first), given_records[cut:])

    assert whole == framed(0, given_records)
    assert [*contents(whole)] == given_records


def test_two_ranks_are_one_run_with_each_point_of_the_tables(journals, run_folder, agent_of):
    """Named by rank; with parameters, tags, the axis of each curve, the last values, the end."""
    write_run_file(str(run_folder), FACTS | {"world_size": 2})
    programs = [Program(journals, run_folder, rank=rank, world=2) for rank in (0, 1)]
    for program in programs:
        train(program, range(30 + program.meta.rank))
        program.step(400, phase="validate")
        program.stop(500, payload={"a": {"ml.result.accuracy": 0.93}})
    agent_of(*programs, **CHOSEN).run()

    file = the_file(run_folder)
    shown = points(rows(file))
    assert shown == expected(run_folder, "node")
    assert sum(shown.values()) == (30 * 2 + 31 * 2) + 2 + 2 + 2
    (run,) = of_kind(file, "run")
    assert (run.run_id, run.display_name, run.project) == ("0123abcd", "digits", "digits")
    assert (run.run_group, [*run.tags]) == ("0123abcd", ["baseline", "team=vision"])
    (config,) = of_kind(file, "config")
    assert items(config.update) == {"lr": 0.1, "model": {"depth": 3, "blocks": [1, 2]}}
    axes = {metric.name: metric.step_metric for metric in of_kind(file, "metric")}
    assert axes == {"step": ""} | {point[0]: "step" for point in shown}
    told = summary(file)
    assert (told["result/accuracy/rank1"], told["run/outcome/rank0/text"]) == (0.93, "finished")
    assert [end.exit_code for end in of_kind(file, "exit")] == [0]
    account = accounts(run_folder)["scalars"]["wandb"]
    assert account["created"] == account["delivered"] == sum(shown.values())
    for program in programs:
        program.journal.release()


def test_nothing_but_the_run_is_told(new_destination, tmp_path):
    """Neither host nor code, nor what W&B would measure of its own."""
    assert new_destination().accept(batch(1, scalar(1))) == Delivered()

    file = the_file(tmp_path)
    (run,) = of_kind(file, "run")
    assert (run.host, run.git.commit, run.telemetry.cli_version) == ("", "", "")
    for kind in ("stats", "output", "output_raw", "files", "environment", "telemetry", "artifact"):
        assert of_kind(file, kind) == []
    assert set(rows(file)[0]) == {"train/loss", "step", "_step", "_timestamp", "_runtime"}


def test_value_of_any_kind_is_exact(new_destination, tmp_path):
    """To the last bit; NaN and infinities as themselves; two of one moment are two."""
    values = [0.1 + 0.2, 5e-324, float("inf"), float("-inf"), float("nan"), 0.1, 0.2]
    scalars = [scalar(n, value) for n, value in zip([0, 1, 2, 3, 4, 5, 5], values, strict=True)]
    assert new_destination().accept(batch(1, *scalars)) == Delivered()

    shown = [row["train/loss"] for row in rows(the_file(tmp_path))]
    assert list(map(repr, shown)) == list(map(repr, values))


def test_point_that_is_late_stands_at_its_own_step(new_destination, tmp_path):
    """W&B's own counter grows with each row, whatever the step."""
    destination = new_destination()
    assert destination.accept(batch(1, scalar(7), scalar(8))) == Delivered()
    assert destination.accept(batch(2, scalar(3, phase="validate"))) == Delivered()

    shown = [(row["_step"], row["step"]) for row in rows(the_file(tmp_path))]
    assert shown == [(0, 7), (1, 8), (2, 3)]


def test_dots_in_a_name_are_no_places(new_destination, tmp_path):
    """W&B would look for the curve inside another."""
    reading = scalar(1, name="hw.power", kind="reading", labels={"hw.id": "0"}, phase="")
    assert new_destination().accept(batch(1, reading)) == Delivered()

    assert "readings/hw.power/0" in rows(the_file(tmp_path))[0]
    assert of_kind(the_file(tmp_path), "metric")[1].name == r"readings/hw\.power/0"


def test_agent_that_dies_leaves_no_point_twice(new_destination, tmp_path):
    """The next one cuts off what was half written, and goes on in the same file."""
    assert new_destination().accept(batch(7, scalar(1), scalar(2))) == Delivered()
    file = the_file(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[-70:] + whole[:9])
    following = new_destination()
    for _ in range(2):  # it was written, and its agent died before its word of it
        assert following.accept(batch(7, scalar(1), scalar(2))) == Delivered()
    assert following.accept(batch(9, scalar(3))) == Delivered()

    assert steps_shown(tmp_path) == [1, 2, 3]
    assert len(of_kind(file, "run")) == 1


def test_run_that_goes_on_has_one_end(new_destination, live, tmp_path):
    """The end is cut off by what comes behind it; ``wandb sync`` then takes the file again."""
    live[0] = False
    assert new_destination().accept(batch(1, scalar(1), ended("failed"))) == Delivered()
    file = the_file(tmp_path)
    marker = file.with_name(file.name + ".synced")
    marker.touch()
    assert [end.exit_code for end in of_kind(file, "exit")] == [1]

    live[0] = True
    destination = new_destination()
    assert destination.accept(batch(2, scalar(2, restart=1))) == Delivered()
    assert of_kind(file, "exit") == []
    assert not marker.exists()
    live[0] = False
    assert destination.accept(batch(3, ended("finished", restart=1))) == Delivered()
    assert [end.exit_code for end in of_kind(file, "exit")] == [0]
    assert steps_shown(tmp_path) == [1, 9, 2, 9]


def last_records(tmp_path, many=2):
    return [record.WhichOneof("record_type") for record in records(the_file(tmp_path))][-many:]


def test_end_waits_for_the_page(new_destination, live, tmp_path):
    """It is a file of the run, uploaded before the end; nothing is read behind that."""
    destination = new_destination(tracker_report=True)
    live[0] = False
    assert destination.accept(batch(1, scalar(1), ended("finished"))) == Delivered()
    assert of_kind(the_file(tmp_path), "exit") == []
    assert destination.accept(page(b"<p>new")) == Delivered()

    assert last_records(tmp_path) == ["files", "exit"]
    ((file,),) = (told.files for told in of_kind(the_file(tmp_path), "files"))
    assert the_file(tmp_path).parent.joinpath("files", file.path).read_bytes() == b"<p>new"
    for signal_of in destination.signals:
        destination.close(signal_of)
    assert [end.exit_code for end in of_kind(the_file(tmp_path), "exit")] == [0]


def test_page_that_comes_first_or_twice_changes_nothing(new_destination, live, tmp_path):
    """Points were late, or an agent died before its word of it."""
    destination = new_destination(tracker_report=True)
    live[0] = False
    assert destination.accept(page(b"<p>new")) == Delivered()
    assert destination.accept(batch(1, scalar(1), ended("failed"))) == Delivered()
    assert new_destination(tracker_report=True).accept(page(b"<p>new")) == Delivered()

    assert last_records(tmp_path, 3) == ["summary", "files", "exit"]
    assert [end.exit_code for end in of_kind(the_file(tmp_path), "exit")] == [1]


def test_page_that_does_not_come_keeps_no_end_back(new_destination, live, tmp_path):
    """It could not be made: the agent that leaves ends the file."""
    destination = new_destination(tracker_report=True)
    live[0] = False
    assert destination.accept(batch(1, scalar(1), ended("killed"))) == Delivered()
    destination.close("reports")
    assert of_kind(the_file(tmp_path), "exit") == []
    destination.close("scalars")

    assert last_records(tmp_path) == ["summary", "exit"]


def test_run_that_goes_on_waits_for_its_new_page(new_destination, live, tmp_path):
    """The first end is cut off, and the page of then is replaced."""
    destination = new_destination(tracker_report=True)
    live[0] = False
    assert destination.accept(batch(1, scalar(1), ended("failed"))) == Delivered()
    assert destination.accept(page(b"<p>old")) == Delivered()
    live[0] = True
    assert destination.accept(batch(2, scalar(2, restart=1))) == Delivered()
    live[0] = False
    assert destination.accept(batch(3, ended("finished", restart=1))) == Delivered()
    assert of_kind(the_file(tmp_path), "exit") == []
    assert destination.accept(page(b"<p>new")) == Delivered()

    assert [end.exit_code for end in of_kind(the_file(tmp_path), "exit")] == [0]
    assert the_file(tmp_path).parent.joinpath("files", "report.html").read_bytes() == b"<p>new"


def test_host_without_rank_0_waits_for_no_page(new_destination, live, tmp_path):
    """A run has one, and that is another agent's."""
    live.clear()
    live[1] = False
    destination = new_destination("other", tracker_report=True, world_size=2)
    assert destination.accept(batch(1, scalar(1), ended("finished", rank=1))) == Delivered()

    assert last_records(tmp_path) == ["summary", "exit"]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["finished", "finished"], 0),
        (["finished", "interrupted"], 130),
        (["killed", "interrupted"], 137),
        (["failed", "killed"], 1),
    ],
)
def test_exit_code_is_that_of_the_worst_rank(new_destination, live, tmp_path, outcomes, code):
    """Once all of the host have ended, in whichever batch."""
    live[1] = True
    destination = new_destination(world_size=2)
    live[0] = False
    assert destination.accept(batch(1, ended(outcomes[0], rank=0))) == Delivered()
    assert of_kind(the_file(tmp_path), "exit") == []
    live[1] = False
    assert destination.accept(batch(2, ended(outcomes[1], rank=1))) == Delivered()

    assert [end.exit_code for end in of_kind(the_file(tmp_path), "exit")] == [code]


def test_what_is_said_of_the_run_later_is_told(new_destination, tmp_path):
    """Parameters and tags that were added, once."""
    destination = new_destination()
    assert destination.accept(batch(1, scalar(1))) == Delivered()
    extend_run_file(str(tmp_path), {"depth": 4}, ["late"])
    assert destination.accept(batch(2, scalar(2))) == Delivered()
    assert destination.accept(batch(3, scalar(3))) == Delivered()

    file = the_file(tmp_path)
    first, second = of_kind(file, "config")
    assert items(second.update) == items(first.update) | {"depth": 4}
    assert [[*run.tags] for run in of_kind(file, "run")] == [
        ["baseline", "team=vision"],
        ["baseline", "team=vision", "late"],
    ]


def test_another_host_is_a_run_of_the_same_group(new_destination, tmp_path):
    """W&B takes a run from one place; theirs are told apart by their ids."""
    for host in ("node", "other"):
        assert new_destination(host, world_size=2).accept(batch(1, scalar(1))) == Delivered()

    runs = [of_kind(file, "run")[0] for file in sorted(tmp_path.glob("wandb/*/*.wandb"))]
    assert [run.run_id for run in runs] == ["0123abcd", "0123abcd-other"]
    assert {(run.run_group, run.display_name) for run in runs} == {("0123abcd", "digits")}


def test_file_that_somebody_removed_begins_anew(new_destination, tmp_path):
    """What comes afterwards can be read, and its axis is told again."""
    destination = new_destination()
    assert destination.accept(batch(1, scalar(1))) == Delivered()
    the_file(tmp_path).unlink()
    assert destination.accept(batch(2, scalar(2))) == Delivered()

    assert steps_shown(tmp_path) == [2]
    assert len(of_kind(the_file(tmp_path), "run")) == 1
    assert len(of_kind(the_file(tmp_path), "metric")) == 2


def test_full_disk_holds_points_up_and_loses_none(new_destination, tmp_path):
    """A batch that was half written is cut off and written whole once there is room."""
    destination = new_destination()
    assert destination.accept(batch(1, scalar(1))) == Delivered()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = the_file(tmp_path).stat().st_size
    more = [scalar(number, name=f"loss{number}") for number in range(2, 20)]
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, limit[1]))
        verdict = destination.accept(batch(2, *more))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)

    assert isinstance(verdict, TryLater)
    assert verdict.reason.endswith("File too large")
    assert destination.accept(batch(2, *more)) == Delivered()
    assert steps_shown(tmp_path) == [*range(1, 20)]
    assert len(of_kind(the_file(tmp_path), "metric")) == 2 + len(more)


def test_folder_that_cannot_be_written_costs_the_rest_nothing(
    program, agent_of, run_folder, caplog
):
    """It is said by name, and what waits is pending."""
    write_run_file(str(run_folder), FACTS)
    (run_folder / "wandb").write_text("somebody's file")
    train(program, range(3))
    program.stop(40)
    agent_of(program, **CHOSEN | {"drain_timeout_s": 0.0}).run()

    assert "scalars/wandb: writing" in caplog.text
    account = accounts(run_folder)["scalars"]["wandb"]
    assert adds_up(account)
    assert (account["created"], account["pending"], account["lost"]) == (7, 7, {})


def test_tracker_that_is_not_installed_is_said_and_counted(
    program, agent_of, run_folder, caplog, monkeypatch
):
    """By name, with what installs it; what it would have got is lost for that reason."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    train(program, range(3))
    program.stop(40)
    agent_of(program, **CHOSEN).run()

    assert "pip install 'otel-mlperf[wandb]'" in caplog.text
    account = accounts(run_folder)["scalars"]["wandb"]
    assert (account["created"], account["lost"]) == (7, {"not_loaded": 7})


def test_finding_is_a_text_among_the_last_values(program, agent_of, run_folder):
    """How grave it is, what is the case, what to do; its value at the step where it began."""
    write_run_file(str(run_folder), FACTS)
    agent = agent_of(program, **CHOSEN)
    train(program, range(3))
    agent.tick()
    at = program.meta.unix_ns + 25 * MS
    held = WarningHeld("disk_full", "", {names.MOUNTPOINT: "/data"}, at, at, 0.97, 0.95)
    agent._processor.apply(held)
    agent.mark()
    program.stop(40)
    agent.run()

    file = the_file(run_folder)
    (row,) = (row for row in rows(file) if "findings/disk_full//data" in row)
    assert (row["step"], row["findings/disk_full//data"]) == (101, 0.97)
    text = summary(file)["findings/disk_full//data/text"]
    assert text.startswith("**warning**")
    assert "Remove old checkpoints" in text


@pytest.mark.fault("F27")
def test_killed_at_any_moment_it_has_each_point_once(new_destination, tmp_path):
    """What was half written when it was killed is cut off, and what was not acknowledged comes."""
    acknowledged = 0
    for _ in range(KILLS):
        batches = map(many, range(acknowledged + 1, LAST + 1))
        acknowledged = last_acknowledged(new_destination, batches) or acknowledged

    # The last one that was acknowledged may have been taken in and not yet said to be.
    rest = new_destination()
    for number in range(acknowledged + 1, LAST + 1):
        assert rest.accept(many(number)) == Delivered()
    assert steps_shown(tmp_path) == [*range(POINTS, (LAST + 1) * POINTS)]


def many(number):
    return batch(number, *(scalar(number * POINTS + at) for at in range(POINTS)))
