"""TensorBoard shows each point of a run once, whatever happens to agent and disk."""

from __future__ import annotations

import resource
import signal
import sys
import threading

import pytest
from by_hand import MS, Program, accounts, adds_up
from tracked_by_hand import batch, last_acknowledged, train
from tracked_points import in_event_files, in_tables, loaded, rounded

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import Delivered, TryLater
from otel_mlperf.agent.delivery.tensorboard_destination import TensorBoardDestination
from otel_mlperf.agent.model.events import WarningHeld
from otel_mlperf.agent.model.scalar_item import ScalarItem

FOR_EVER_S = 900
KILLS, LAST, POINTS = 20, 60, 40
CHOSEN = {"trackers": frozenset({"tensorboard"})}


def scalar(number):
    return ScalarItem(
        kind="value", name="loss", phase="train", rank=0, number=number, time_ns=number, value=0.5
    )


@pytest.fixture
def destination(tmp_path):
    return TensorBoardDestination(tmp_path / "shown", "node", tmp_path / "noted.json")


def steps_shown(tmp_path):
    return [event.step for event in loaded(tmp_path / "shown" / "rank0").Scalars("train/loss")]


def test_two_ranks_are_lines_of_one_chart(journals, run_folder, agent_of):
    """Each rank's points stand in a folder of its own, under the same names, as in the tables."""
    programs = [Program(journals, run_folder, rank=rank, world=2) for rank in (0, 1)]
    for program in programs:
        train(program, range(30 + program.meta.rank))
        program.step(400, phase="validate")
        program.stop(500)
    agent_of(*programs, **CHOSEN).run()

    shown = in_event_files(run_folder / "tensorboard")
    assert shown == rounded(in_tables(run_folder))
    assert sum(shown.values()) == 30 * 2 + 31 * 2 + 2 + 2
    account = accounts(run_folder)["scalars"]["tensorboard"]
    assert account["created"] == account["delivered"] == sum(shown.values())
    for program in programs:
        program.journal.release()


def test_agent_that_dies_leaves_no_point_twice(program, agent_of, run_folder):
    """The next one cuts off what was half written, and goes on in the same file."""
    train(program, range(3))
    first = agent_of(program, **CHOSEN)
    first.tick()
    first.mark()
    assert first._sender.drain(FOR_EVER_S)
    first._sender.stop()
    for thread in threading.enumerate():
        if "tensorboard" in thread.name:
            thread.join()
    (file,) = (run_folder / "tensorboard" / "rank0").iterdir()
    whole = file.read_bytes()
    assert sum(in_event_files(run_folder / "tensorboard").values()) == 6
    file.write_bytes(whole + whole[-70:] + whole[:9])
    del first
    train(program, range(3, 6))
    program.stop(80)
    agent_of(program, **CHOSEN).run()

    assert [path.name for path in (run_folder / "tensorboard" / "rank0").iterdir()] == [file.name]
    assert in_event_files(run_folder / "tensorboard") == rounded(in_tables(run_folder))
    account = accounts(run_folder)["scalars"]["tensorboard"]
    assert account["delivered"] == account["created"] == 13


def test_batch_that_comes_twice_is_written_once(destination, tmp_path):
    """An agent that died before its word of it offers it again."""
    assert destination.accept(batch(7, scalar(1), scalar(2))) == Delivered()
    assert destination.accept(batch(7, scalar(1), scalar(2))) == Delivered()
    assert destination.accept(batch(9, scalar(3))) == Delivered()

    assert steps_shown(tmp_path) == [1, 2, 3]


def test_full_disk_holds_points_up_and_loses_none(destination, tmp_path):
    """A batch that was half written is cut off and written whole once there is room."""
    assert destination.accept(batch(1, scalar(1))) == Delivered()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, limit[1]))
        verdict = destination.accept(batch(2, *map(scalar, range(2, 20))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)

    assert isinstance(verdict, TryLater)
    assert verdict.reason.endswith("File too large")
    assert destination.accept(batch(2, *map(scalar, range(2, 20)))) == Delivered()
    assert steps_shown(tmp_path) == [*range(1, 20)]


def test_folder_that_cannot_be_written_costs_the_rest_nothing(
    program, agent_of, run_folder, caplog
):
    """It is said by name, what waits is pending, and the tables have everything."""
    (run_folder / "tensorboard").write_text("somebody's file")
    train(program, range(3))
    program.stop(40)
    agent_of(program, drain_timeout_s=0.0, **CHOSEN).run()

    assert "scalars/tensorboard: writing" in caplog.text
    account = accounts(run_folder)["scalars"]["tensorboard"]
    assert adds_up(account)
    assert (account["created"], account["pending"], account["lost"]) == (7, 7, {})
    assert sum(in_tables(run_folder).values()) == 7


def test_tracker_that_is_not_installed_is_said_and_counted(
    program, agent_of, run_folder, caplog, monkeypatch
):
    """By name, with what installs it; what it would have got is lost for that reason."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    train(program, range(3))
    program.stop(40)
    agent_of(program, **CHOSEN).run()

    assert "pip install 'otel-mlperf[tensorboard]'" in caplog.text
    account = accounts(run_folder)["scalars"]["tensorboard"]
    assert (account["created"], account["lost"]) == (7, {"not_loaded": 7})
    assert accounts(run_folder)["spans"]["store"]["delivered"] == program.sections


def test_finding_is_a_text_at_the_step_where_it_began(program, agent_of, run_folder):
    """Once, however long it holds: how grave it is, what is the case, what to do."""
    agent = agent_of(program, **CHOSEN)
    train(program, range(3))
    agent.tick()
    for seen_ms in (25, 26):
        at = program.meta.unix_ns + seen_ms * MS
        where = {names.MOUNTPOINT: "/data"}
        held = WarningHeld("disk_full", "", where, at, at, 0.97, 0.95)
        agent._processor.apply(held)
    agent.mark()
    program.stop(40)
    agent.run()

    shown = loaded(run_folder / "tensorboard" / "node")
    ((tag,), (named,)) = shown.Tags()["tensors"], shown.Tags()["scalars"]
    assert (tag, named) == ("findings/disk_full//data/text", "findings/disk_full//data")
    (event,) = shown.Tensors(tag)
    (text,) = event.tensor_proto.string_val
    assert event.step == 101
    assert b"**warning**" in text
    assert b"/data" in text
    assert b"Remove old checkpoints" in text


@pytest.mark.slow
@pytest.mark.fault("F27")
def test_killed_at_any_moment_it_has_each_point_once(tmp_path):
    """What was half written when it was killed is cut off, and what was not acknowledged comes."""

    def new_destination():
        return TensorBoardDestination(tmp_path / "shown", "node", tmp_path / "noted.json")

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
