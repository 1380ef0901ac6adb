"""What is read and delivered by hand, beside agents that do it themselves."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pytest
from by_hand import Program
from otlp_requests import spans

from otel_mlperf.agent.delivery.outbox import Outbox
from otel_mlperf.agent.lifecycle.agent_process import serve
from otel_mlperf.agent.lifecycle.node_folder import claim_folder
from otel_mlperf.agent.lifecycle.run_recovery import deliver_rest, folders_to_read, recover_journals
from otel_mlperf.agent.model.agent_options import read_options, read_stored_options
from otel_mlperf.errors import RunServed, StoreError
from otel_mlperf.journal.bulletin import FILE, read_readings
from otel_mlperf.journal.folder_lock import LOCK, OnlyOne, is_served
from otel_mlperf.journal.layout import META_AT
from otel_mlperf.recorder.lifecycle.agent_launch import agent_environ
from otel_mlperf.run_files.run_file import RunFile
from otel_mlperf.settings.config import Config
from otel_mlperf.settings.run_settings import write_settings
from otel_mlperf.store.run_folders import RunFolder, read_run
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(run_folder):
    """A run whose journals found no room in shared memory, with a request that waits."""
    (run_folder / "journals").mkdir()
    Outbox(run_folder / "agent" / "node" / "requests", 1 << 20).add(1, "spans/otlp", 5, b"waits")
    return RunFolder(run_folder, RunFile(id="not-in-shared-memory", name="digits", started_ns=0))


def files(run):
    """What an agent works with."""
    return {path: path.read_bytes() for path in run.path.glob("agent/**/*") if path.is_file()}


@pytest.mark.fault("F12")
def test_files_of_an_agent_that_is_at_work_are_left_alone(run):
    """While it serves the run, nothing of its is sent, written or removed, and it is said."""
    before = files(run)
    with OnlyOne(run.path / "journals") as is_mine:
        assert is_mine
        with pytest.raises(RunServed, match="the agent of the run still runs on this node"):
            deliver_rest(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})

    assert files(run) == before


@pytest.mark.fault("F98")
def test_garbled_and_foreign_files_stop_no_recovery(run, server):
    """What waits beside them is sent; what is somebody else's stays."""
    place = run.path / "agent" / "node"
    (request,) = (place / "requests").glob("*.batch")
    request.unlink()  # no server takes it
    (place / "requests" / "outcomes.log").write_bytes(b"\xff\xfe no line\n12x spans 1 1 - .")
    (place / "requests" / "note.batch").write_text("not ours")
    (place / "state").write_bytes(b"\xc1")
    (place / "wal-00000001.bak").write_bytes(b"x")
    Outbox(place / "requests", 1 << 20).add(2, "spans/otlp", 3, spans(3))
    deliver_rest(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url})

    assert len(server.spans()) == 3
    assert (place / "state.bad").read_bytes() == b"\xc1"
    assert (place / "requests" / "note.batch").read_text() == "not ours"
    assert (place / "wal-00000001.bak").exists()


STRANGER = "http://127.0.0.1:9"
NAMED_BY_THE_FOLDER = {
    "traces": ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": STRANGER}, {"spans/otlp"}),
    "metrics": ({"OTEL_METRICS_EXPORTER": "otlp"}, {"metrics/otlp"}),
    "otlp": ({"OTEL_EXPORTER_OTLP_ENDPOINT": STRANGER}, {"spans/otlp", "metrics/otlp"}),
    "grpc": (
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "stranger:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"spans/otlp", "metrics/otlp"},
    ),
    "exporters": (
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none,acme"},
        {"spans/console", "metrics/acme"},
    ),
    "mlflow": (
        {"OTEL_MLPERF_DESTINATIONS": "mlflow", "MLFLOW_TRACKING_URI": STRANGER},
        {"scalars/mlflow"},
    ),
    "trackio": ({"OTEL_MLPERF_DESTINATIONS": "trackio", "HF_HOME": "/x"}, {"scalars/trackio"}),
}


@pytest.mark.fault("S20")
@pytest.mark.parametrize("named", NAMED_BY_THE_FOLDER.values(), ids=NAMED_BY_THE_FOLDER)
def test_what_only_the_run_folder_names_is_withheld(run, named):
    """Until the caller names a destination of that kind, which then gets it."""
    settings, accounts = named
    (run.path / "settings.json").write_text(json.dumps(settings))
    own = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://mine:4318",
        "MLFLOW_TRACKING_URI": "http://mine:5000",
        "TRACKIO_DIR": "/mine",
    }
    if "OTEL_TRACES_EXPORTER" in settings:
        own |= settings

    assert read_stored_options(run.path, {}).withheld == accounts
    assert read_stored_options(run.path, own).withheld == set()


@pytest.mark.parametrize(("word", "is_sent"), [("join", False), ("join,otlp", True)])
def test_joined_run_sends_spans_only_if_asked_to(run, monkeypatch, word, is_sent):
    """Not by its agent, whatever exporters the program has, nor by a recovery."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp,console")
    monkeypatch.delenv("OTEL_METRICS_EXPORTER", raising=False)
    config = Config(provider=word, endpoint="http://127.0.0.1:9")
    environ = agent_environ(config, str(run.path))
    options = read_options(environ)
    assert options.joins_provider
    assert options.metrics is not None
    assert (options.traces is not None) == ("console" in options.exporters["spans"]) == is_sent

    write_settings(str(run.path), environ)
    withheld = read_stored_options(run.path, {}).withheld
    assert ("spans/otlp" in withheld) == ("spans/console" in withheld) == is_sent


def test_requests_without_a_destination_wait_and_are_counted(run):
    """Nothing is sent, removed or lost."""
    (run.path / "agent" / "node" / "state").write_bytes(b"\xc1")  # the request is older than it
    rest = deliver_rest(run, {})

    assert (rest.delivered, rest.waiting, rest.withheld) == (0, 0, 1)
    assert len([*run.path.glob("agent/node/requests/*.batch")]) == 1


@pytest.mark.fault("F12")
def test_files_of_an_agent_in_another_container_are_left_alone(run):
    """It serves the run in shared memory of its own: its lock in the run folder says so."""
    with claim_folder(run.path, "node", run.path / "journals"):
        before = files(run)
        with pytest.raises(RunServed, match="in another container"):
            deliver_rest(run, {})

        assert files(run) == before


@pytest.mark.fault("F26")
def test_what_a_killed_agent_had_logged_is_stored(program, agent_of, journals, run_folder):
    """The journals are gone with the container's shared memory: the log alone is left."""
    agent = agent_of(program)
    agent.tick()
    program.step(0)
    program.step(1)
    agent.tick()
    assert not list(run_folder.glob("tables/steps/*.parquet"))
    for journal in journals.iterdir():
        journal.unlink()
    run = RunFolder(run_folder, RunFile(id="0123abcd", name="digits", started_ns=0))
    deliver_rest(run, {})

    (account,) = [json.loads(path.read_text()) for path in run_folder.glob("accounting/*.json")]
    assert Store(run_folder).rows("SELECT n FROM steps ORDER BY n") == [(0,), (1,)]
    assert account["spans"]["store"]["lost"] == {}
    assert account["spans"]["store"]["pending"] == 0
    assert deliver_rest(run, {}) == (0, 0, 0, 0)
    assert Store(run_folder).rows("SELECT count(*) FROM steps") == [(2,)]
    ((outcome, message),) = Store(run_folder).rows(
        "SELECT outcome, error_message FROM processes WHERE outcome <> 'running'"
    )
    assert outcome == "killed"
    assert "the last half second of data (more on a busy machine) may be missing" in message


def left_behind(place: Path, name: str) -> Path:
    """The folder of a journal whose process is gone."""
    folder, run_folder = place / "shared" / name, place / "runs" / name
    folder.mkdir(parents=True)
    run_folder.mkdir(parents=True)
    program = Program(folder, run_folder)
    program.step(0)
    program.stop(30)
    program.journal.release()
    return folder


def write_over(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")


@pytest.mark.fault("F43", "F99", "S20")
def test_journals_that_others_could_have_put_there_are_left(tmp_path):
    """Such a journal names the folder that is written to: nothing is read, removed or written."""
    folder = left_behind(tmp_path, "planted")
    folder.parent.chmod(0o777)

    assert recover_journals({}, [folder]) == (0, 0, [])
    assert serve(folder, read_options({})) == 1
    assert [path.suffix for path in folder.iterdir()] == [".journal"]
    assert not any((tmp_path / "runs" / "planted").iterdir())


@pytest.mark.fault("F99", "S20")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_what_waits_of_another_user_is_left(run):
    """Its files may be links to anywhere: root writes nothing there."""
    before = files(run)
    os.chown(run.path, 65534, 65534)
    with pytest.raises(StoreError, match="belongs to user 65534; run this command as that user"):
        deliver_rest(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})

    assert files(run) == before


@pytest.mark.fault("F99")
def test_a_pipe_in_a_folder_of_journals_holds_nobody_up(tmp_path):
    """Whoever looks at somebody else's run opens files of theirs: none is waited for."""
    for name in (LOCK, FILE):
        os.mkfifo(tmp_path / name)

    assert not is_served(tmp_path)
    assert read_readings(str(tmp_path)) is None


@pytest.mark.fault("F40")
def test_run_whose_disk_refused_at_the_start_is_stored_later(tmp_path):
    """Its folder is made with what the journal knows of the run."""
    folder, run_folder = left_behind(tmp_path, "late"), tmp_path / "runs" / "late"
    run_folder.rmdir()
    found = recover_journals({}, [folder])

    assert found == (1, 0, [])
    assert read_run(run_folder).facts.id == "0123abcd"
    assert list((run_folder / "tables" / "steps").glob("*.parquet"))


def test_journal_that_cannot_be_read_stops_no_other(tmp_path):
    """It is named with its folder and stays there; those of other runs are read."""
    damaged, homeless = left_behind(tmp_path, "damaged"), left_behind(tmp_path, "homeless")
    good = left_behind(tmp_path, "good")
    (journal,) = damaged.glob("*.journal")
    write_over(journal, META_AT + 40)
    (tmp_path / "runs" / "homeless").rmdir()
    (tmp_path / "runs" / "homeless").touch()
    found = recover_journals({}, [damaged, homeless, good])

    assert (found.read, found.in_use) == (1, 0)
    of_damaged, of_homeless = found.failed
    assert of_damaged.startswith(f"reading the journal {journal}: its description of the run is ")
    assert of_homeless.startswith(f"{homeless}: ")
    assert list(damaged.glob("*.journal"))
    assert list(homeless.glob("*.journal"))
    assert not any((tmp_path / "runs" / "damaged").iterdir())
    assert not good.exists()
    assert list((tmp_path / "runs" / "good" / "tables" / "steps").glob("*.parquet"))


@pytest.mark.slow
@pytest.mark.fault("F12")
def test_lock_whose_file_was_removed_is_nobodys(tmp_path):
    """An agent that ends takes the file away: who waited for that one must not think it its own."""
    held = OnlyOne(tmp_path)
    assert held.__enter__()
    (lock,) = tmp_path.iterdir()
    remover = threading.Timer(0.05, lock.unlink)
    remover.start()
    with OnlyOne(tmp_path) as is_mine:
        remover.join()
        with OnlyOne(tmp_path) as is_anothers:
            assert (is_mine, is_anothers) == (True, False)
    held.__exit__()


def test_journals_on_disk_are_found(tmp_path):
    """Where shared memory had no room they lie in the run folder, and are read there."""
    run = tmp_path / "digits-0123"
    run.mkdir()
    facts = {"id": "0123", "name": "digits", "started_ns": 1}
    (run / "run.json").write_text(json.dumps(facts))
    before = folders_to_read(read_run(run))
    (run / "journals").mkdir()
    (run / "journals" / "0-1-1.journal").touch()

    assert before == []
    assert folders_to_read(read_run(run)) == [run / "journals"]


@pytest.mark.fault("S20")
def test_links_in_a_foreign_run_folder_are_not_written_through(run, tmp_path):
    """An unpacked archive may hold links in the places of files and folders that are written."""
    precious, elsewhere = tmp_path / "precious", tmp_path / "elsewhere"
    precious.write_text("precious")
    elsewhere.mkdir()
    (elsewhere / "state").write_text("precious")
    for name in ("agent/node/state.new", "accounting/node.json.new", "tables/node.json.new"):
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).symlink_to(precious)
    (run.path / "agent" / "other").symlink_to(elsewhere)
    deliver_rest(run, {})

    assert precious.read_text() == "precious"
    assert [path.name for path in elsewhere.iterdir()] == ["state"]
    assert (elsewhere / "state").read_text() == "precious"
