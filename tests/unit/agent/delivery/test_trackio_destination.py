"""Each batch is one file of trackio's inbox, the same one whenever it is offered."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from by_hand import MS
from tracked_by_hand import batch, ended, last_acknowledged, page, scalar

from otel_mlperf.agent.delivery.destination import Delivered, DestinationContext, TryLater
from otel_mlperf.agent.delivery.trackio_destination import make
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.model.table_rows import TableRows
from otel_mlperf.run_files.run_file import write_run_file

FACTS = {
    "id": "0123abcd",
    "name": "digits",
    "host": "node",
    "started_ns": 1_700_000_000_000_000_000,
    "params": {"lr": 0.1, "_seed": 7},
    "tags": ["baseline"],
    "world_size": 1,
}
LAST = 60


@pytest.fixture
def new_destination(tmp_path):
    """Makes one of a host, as each new agent does, with trackio's folder beside the run's."""

    def make_one(
        host="node", world_size=1, started_ns=FACTS["started_ns"], *, tracker_report=False,
        **environ,
    ):  # fmt: skip
        run_folder = tmp_path / f"run-{started_ns}"
        run_folder.mkdir(exist_ok=True)
        facts = FACTS | {"world_size": world_size, "started_ns": started_ns}
        write_run_file(str(run_folder), facts)
        given = {"TRACKIO_DIR": str(tmp_path / "trackio")} | environ
        options = Options(policy=Policy(), environ=given, tracker_report=tracker_report)
        return make(DestinationContext(run_folder, host, options, TableRows(), dict))

    return make_one


def files(tmp_path):
    return sorted((tmp_path / "trackio" / "inbox").rglob("*"))


def records(tmp_path, kind="metric"):
    whole = [file for file in files(tmp_path) if file.suffix == ".jsonl"]
    found = [record for file in whole for record in lines_of(file)]
    return [record for record in found if record["kind"] == kind]


def lines_of(file):
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]


def test_batch_offered_again_is_the_same_file(new_destination, tmp_path):
    """Whoever offers it, and also where trackio has taken the file meanwhile."""
    points = batch(7, scalar(1), scalar(2))
    assert new_destination().accept(points) == Delivered()
    first = {file: file.read_bytes() for file in files(tmp_path) if file.is_file()}
    shutil.rmtree(tmp_path / "trackio" / "inbox")
    assert new_destination().accept(points) == Delivered()
    assert new_destination().accept(points) == Delivered()

    assert {file: file.read_bytes() for file in files(tmp_path) if file.is_file()} == first
    assert [file.name for file in first] == ["0000000007.jsonl"]


def test_no_two_records_have_one_id(new_destination, tmp_path):
    """Of any host, batch, kind and folder of the run: trackio leaves out an id that it knows."""
    for host, started_ns in (("node", 1), ("other", 1), ("node", 2)):
        destination = new_destination(host, world_size=2, started_ns=started_ns)
        for number in (1, 2):
            reading = scalar(3, kind="reading", name="hw.power", phase="")
            points = batch(number, scalar(1), scalar(2), reading, ended("killed"), ended("failed"))
            assert destination.accept(points) == Delivered()

    kinds = ("metric", "system_metric", "alert")
    ids = [
        record.get("log_id") or record["alert_id"]
        for kind in kinds
        for record in records(tmp_path, kind)
    ]
    assert len(set(ids)) == len(ids) == 3 * 2 * (4 + 1 + 2)


def test_parameters_and_tags_are_the_config(new_destination, tmp_path):
    """Once in a batch; none begins with what trackio keeps for itself."""
    assert new_destination().accept(batch(1, scalar(1), scalar(2))) == Delivered()

    first, second = (record["config"] for record in records(tmp_path))
    assert first == {
        "tags": ["baseline"],
        "lr": 0.1,
        "params._seed": 7,
        "_Created": "2023-11-14T22:13:20.000000+00:00",
    }
    assert second is None


def test_project_is_the_runs_name_unless_said(new_destination, tmp_path):
    """The variable that trackio's other writers read."""
    assert new_destination().accept(batch(1, scalar(1))) == Delivered()
    assert new_destination(TRACKIO_PROJECT="vision").accept(batch(2, scalar(2))) == Delivered()

    assert [(record["project"], record["run"]) for record in records(tmp_path)] == [
        ("digits", "digits"),
        ("vision", "digits"),
    ]


def test_page_is_a_file_of_the_project(new_destination, tmp_path):
    """In a folder that is called as the run's; a page of later takes its place."""
    plain, named = (
        new_destination(tracker_report=True, **environ)
        for environ in ({}, {"TRACKIO_PROJECT": "my vision.2"})
    )
    for content in (b"<p>old", b"<p>new"):
        assert plain.accept(page(content)) == Delivered()
    assert named.accept(page(b"<p>other")) == Delivered()

    run = f"run-{FACTS['started_ns']}"
    found = {
        str(file.relative_to(tmp_path / "trackio")): file.read_bytes()
        for file in (tmp_path / "trackio").rglob("*.html")
    }
    assert found == {
        f"media/digits/files/{run}/report.html": b"<p>new",
        f"media/myvision2/files/{run}/report.html": b"<p>other",
    }
    assert new_destination().signals == ("scalars",)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"TRACKIO_DIR": "", "HF_HOME": "{}/hub"}, "hub/trackio"),
        ({"TRACKIO_DIR": "", "XDG_CACHE_HOME": "{}/cache"}, "cache/huggingface/trackio"),
    ],
)
def test_folder_is_the_one_that_trackio_looks_into(new_destination, tmp_path, environ, place):
    """As its own variables, and those of the Hugging Face Hub, say."""
    said = {name: value.format(tmp_path) for name, value in environ.items()}
    assert new_destination(**said).accept(batch(1, scalar(1))) == Delivered()

    assert len([*(tmp_path / place / "inbox").glob("*/*.jsonl")]) == 1


def test_end_that_is_no_finish_is_an_alert(new_destination, tmp_path):
    """With whose it was; a rank that finished is none."""
    outcomes = ["finished", "interrupted", "killed", "failed"]
    points = [ended(outcome, rank=rank) for rank, outcome in enumerate(outcomes)]
    assert new_destination(world_size=4).accept(batch(1, *points)) == Delivered()

    assert [(alert["title"], alert["level"]) for alert in records(tmp_path, "alert")] == [
        ("rank1 interrupted", "warn"),
        ("rank2 killed", "error"),
        ("rank3 failed", "error"),
    ]


@pytest.mark.fault("F27")
def test_killed_at_any_moment_leaves_whole_files(new_destination, tmp_path):
    """What was acknowledged is there; nothing that trackio would take is half written."""
    batches = [batch(number, scalar(number), scalar(number + 1)) for number in range(1, LAST)]
    taken = last_acknowledged(new_destination, batches)

    whole = [file for file in files(tmp_path) if file.suffix == ".jsonl"]
    assert len(whole) >= taken
    assert [record["step"] for record in records(tmp_path)][: 2 * taken : 2] == [
        *range(1, taken + 1)
    ]
    for file in whole:
        assert [record["kind"] for record in lines_of(file)] == ["metric"] * 2


def test_folder_that_cannot_be_written_is_tried_later(new_destination, tmp_path):
    """The points wait in the outbox."""
    (tmp_path / "trackio").write_text("no folder")

    verdict = new_destination().accept(batch(1, scalar(1)))

    assert isinstance(verdict, TryLater)
    assert "writing" in verdict.reason
    assert "trackio" in verdict.reason


def test_run_folder_that_is_gone_is_tried_later(new_destination, tmp_path):
    """What the run is called stands in there."""
    destination = new_destination()
    (tmp_path / f"run-{FACTS['started_ns']}" / "run.json").unlink()

    verdict = destination.accept(batch(1, scalar(1)))

    assert isinstance(verdict, TryLater)
    assert verdict.reason.startswith("reading the run folder")


def test_time_is_that_of_the_point(new_destination, tmp_path):
    """To the microsecond, in UTC."""
    assert new_destination().accept(batch(1, scalar(1, time_ns=1_234 * MS))) == Delivered()

    assert records(tmp_path)[0]["timestamp"] == "1970-01-01T00:00:01.234000+00:00"
