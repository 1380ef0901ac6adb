"""A real MLflow server has each point of a run once, in one run, whatever happens."""

from __future__ import annotations

import json
import math
import socket
import ssl
import subprocess
import threading
import uuid

import pytest
from by_hand import Program, accounts, adds_up
from mlflow_proxy import Answer, MlflowProxy, Unanswered
from mlflow_shown import artifact, ask, entries, expected, history, in_mlflow, runs
from servers.running import wait_until
from tracked_by_hand import batch, ended, scalar, train

from otel_mlperf.agent.delivery.destination import (
    Batch,
    Delivered,
    DestinationContext,
    Refused,
    TryLater,
)
from otel_mlperf.agent.delivery.mlflow_destination import make
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.agent.model.table_rows import TableRows
from otel_mlperf.run_files.run_file import extend_run_file, write_run_file

pytestmark = pytest.mark.servers

FOR_EVER_S = 900
FACTS = {
    "id": "0123abcd",
    "name": "digits",
    "started_ns": 1_700_000_000_000_000_000,
    "params": {"lr": 0.1, "model": {"depth": 3, "blocks": [1, 2]}},
    "tags": ["baseline", "team=vision"],
    "world_size": 1,
}


@pytest.fixture
def experiment():
    """The name of an experiment that no other test has."""
    return f"digits {uuid.uuid4().hex}"


@pytest.fixture
def proxy(mlflow_server):
    with MlflowProxy(mlflow_server.url) as between:
        yield between


@pytest.fixture
def environ(proxy, experiment):
    return {"MLFLOW_TRACKING_URI": f"{proxy.url}/", "MLFLOW_EXPERIMENT_NAME": experiment}


@pytest.fixture
def destination(tmp_path, environ):
    """Makes one of a node: its host, and the ranks there that still run."""

    def make_one(host="node", ranks=(0,), world=1, **more):
        folder = tmp_path / host
        folder.mkdir(exist_ok=True)
        write_run_file(str(folder), FACTS | {"world_size": world})
        options = Options(policy=Policy(), environ=environ | more, tracker_report=True)
        live = dict.fromkeys(ranks, True) if not isinstance(ranks, dict) else ranks
        made.append(make(DestinationContext(folder, host, options, TableRows(), lambda: live)))
        return made[-1]

    made = []
    yield make_one
    for one in made:
        for signal in one.signals:
            one.close(signal)


def page(content=b"<!doctype html>", number=2):
    """The page of a run on its way."""
    return Batch(number=number, signal="reports", items=1, report=content)


def only_run(proxy, experiment):
    (run,) = runs(proxy.behind, experiment)
    return run


def test_all_ranks_are_one_run_with_each_point_of_the_tables(
    journals, run_folder, agent_of, proxy, experiment, environ
):
    """Named by rank where there are several; parameters, tags and the end are there too."""
    write_run_file(str(run_folder), FACTS | {"world_size": 2})
    programs = [Program(journals, run_folder, rank=rank, world=2) for rank in (0, 1)]
    for program in programs:
        train(program, range(30 + program.meta.rank))
        program.step(400, phase="validate")
        program.stop(500, payload={"a": {"ml.result.accuracy": 0.93}})
    chosen = {"trackers": frozenset({"mlflow"}), "environ": environ, "drain_timeout_s": FOR_EVER_S}
    agent_of(*programs, **chosen).run()

    run = only_run(proxy, experiment)
    shown = in_mlflow(proxy.behind, run)
    assert shown == expected(run_folder, "node")
    assert sum(shown.values()) == (30 * 2 + 31 * 2) + 2 + 2 + 2
    assert run["info"]["run_name"] == "digits"
    assert (run["info"]["start_time"], run["info"]["status"]) == (1_700_000_000_000, "FINISHED")
    told = {"lr": "0.1", "model.depth": "3", "model.blocks": "[1,2]"}
    assert entries(run, "params") == told
    assert entries(run, "tags").items() >= {"baseline": "true", "team": "vision"}.items()
    assert dict(history(proxy.behind, run, "result/accuracy/rank1")) == {130: 0.93}
    account = accounts(run_folder)["scalars"]["mlflow"]
    assert account["created"] == account["delivered"] == sum(shown.values())
    for program in programs:
        program.journal.release()


def test_agent_that_dies_leaves_no_point_twice(
    program, agent_of, run_folder, proxy, experiment, environ
):
    """The next one finds the run, opens it again, and what was sent twice is there once."""
    write_run_file(str(run_folder), FACTS)
    chosen = {"trackers": frozenset({"mlflow"}), "environ": environ, "drain_timeout_s": FOR_EVER_S}
    train(program, range(3))
    first = agent_of(program, **chosen)
    sent = threading.Event()

    def swallow(call, body):
        """The points arrive, and their agent never hears of it."""
        if call != "runs/log-batch" or b"train/loss" not in body:
            return None
        sent.set()
        return Unanswered()

    proxy.fail = swallow
    first.tick()
    first.mark()
    assert sent.wait(FOR_EVER_S)
    first._sender.stop()
    for thread in threading.enumerate():
        if "mlflow" in thread.name:
            thread.join()
    del first
    proxy.fail = lambda *_: None
    train(program, range(3, 6))
    program.stop(80)
    agent_of(program, **chosen).run()

    run = only_run(proxy, experiment)
    assert in_mlflow(proxy.behind, run) == expected(run_folder)
    account = accounts(run_folder)["scalars"]["mlflow"]
    assert account["delivered"] == account["created"] == 13


def test_batch_that_comes_twice_is_stored_once(destination, proxy, experiment):
    """Values that are no numbers too, as MLflow stores them: it has no infinity."""
    values = [0.5, math.nan, math.inf, -math.inf, 3.0]
    points = batch(7, *(scalar(i, value) for i, value in enumerate(values)))
    one = destination()

    assert one.accept(points) == one.accept(points) == Delivered()
    shown = history(proxy.behind, only_run(proxy, experiment), "train/loss")
    most = 1.7976931348623157e308
    assert shown == [(0, 0.5), (1, "NaN"), (2, most), (3, -most), (4, 3.0)]


def test_more_points_than_a_call_takes_arrive(destination, proxy, experiment):
    """In calls of a thousand."""
    assert destination().accept(batch(1, *map(scalar, range(2001)))) == Delivered()

    shown = history(proxy.behind, only_run(proxy, experiment), "train/loss")
    assert shown == [(i, 0.5) for i in range(2001)]
    assert proxy.calls.count("runs/log-batch") == 3 + 2  # parameters, tags


def test_only_the_agent_of_rank_0_makes_the_run(destination, proxy, experiment):
    """One that comes earlier waits, and then tells the same run."""
    late, early = destination("a", [0, 1], world=4), destination("b", [2, 3], world=4)

    verdict = early.accept(batch(1, scalar(1, rank=2)))
    assert isinstance(verdict, TryLater)
    assert "the agent of rank 0 creates the run" in verdict.reason
    assert late.accept(batch(1, scalar(1))) == Delivered()
    assert early.accept(batch(1, scalar(1, rank=2))) == Delivered()
    keys = {metric["key"] for metric in only_run(proxy, experiment)["data"]["metrics"]}
    assert keys == {"train/loss/rank0", "train/loss/rank2"}


def test_agents_that_begin_at_once_tell_one_run(destination, proxy, experiment):
    """Whoever is first; the experiment, too, is there once."""
    nodes = [destination(f"node{i}", [i], world=6) for i in range(6)]

    def tell(rank):
        wait_until(lambda: nodes[rank].accept(batch(1, scalar(1, rank=rank))) == Delivered())

    threads = [threading.Thread(target=tell, args=(rank,)) for rank in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    keys = {metric["key"] for metric in only_run(proxy, experiment)["data"]["metrics"]}
    assert keys == {f"train/loss/rank{rank}" for rank in range(6)}


@pytest.mark.parametrize("call", ["experiments/create", "runs/create", "runs/set-tag"])
def test_answer_that_never_came_makes_no_second_run(destination, proxy, experiment, call):
    """What the server did all the same is found by the next try."""
    proxy.fail = lambda called, _: Unanswered() if called == call else None
    one = destination()
    assert isinstance(one.accept(batch(1, scalar(1))), TryLater)
    proxy.fail = lambda *_: None

    assert one.accept(batch(1, scalar(1))) == Delivered()
    only_run(proxy, experiment)


def test_run_that_was_made_twice_is_there_once_in_the_end(destination, proxy, experiment):
    """The answer came so late that another was made: nobody tells that one, and it goes."""
    live = {0: True}
    one = destination(ranks=live)
    assert one.accept(batch(1, scalar(1))) == Delivered()
    meant = only_run(proxy, experiment)
    late = {"key": "otel_mlperf.made_for", "value": FACTS["id"]}
    known = meant["info"]["experiment_id"]
    ask(proxy.behind, "runs/create", {"experiment_id": known, "start_time": 1, "tags": [late]})
    live[0] = False

    assert one.accept(batch(2, scalar(2), ended("finished"))) == Delivered()
    run = only_run(proxy, experiment)
    assert run["info"]["run_id"] == meant["info"]["run_id"]
    assert history(proxy.behind, run, "train/loss") == [(1, 0.5), (2, 0.5)]


@pytest.mark.parametrize(
    ("outcomes", "first", "status"),
    [
        (("finished", "finished"), 1, "FINISHED"),
        (("finished", "failed"), 0, "FAILED"),
        (("finished", "failed"), 1, "FAILED"),
        (("failed", "killed"), 1, "FAILED"),
        (("killed", "finished"), 0, "KILLED"),
        (("interrupted", "finished"), 1, "KILLED"),
    ],
)
def test_run_ends_as_the_worst_of_its_hosts(
    destination, proxy, experiment, outcomes, first, status
):
    """In whatever order they end."""
    nodes = [destination("a", {0: False}, world=2), destination("b", {1: False}, world=2)]
    for rank, node in enumerate(nodes):
        assert node.accept(batch(1, scalar(1, rank=rank))) == Delivered()
    for rank in (first, 1 - first):
        end = batch(2, ended(outcomes[rank], rank=rank))
        assert nodes[rank].accept(end) == Delivered()

    assert only_run(proxy, experiment)["info"]["status"] == status


def test_run_that_goes_on_is_open_again_and_ends_anew(destination, proxy, experiment):
    """Its earlier end is not held against it."""
    live = {0: False}
    before, after = destination(ranks=live), destination(ranks=live)
    assert before.accept(batch(1, scalar(1), ended("failed"))) == Delivered()
    assert only_run(proxy, experiment)["info"]["status"] == "FAILED"
    live[0] = True
    assert after.accept(batch(2, scalar(2, restart=1))) == Delivered()
    assert only_run(proxy, experiment)["info"]["status"] == "RUNNING"
    live[0] = False

    assert after.accept(batch(3, ended("finished", restart=1))) == Delivered()
    assert only_run(proxy, experiment)["info"]["status"] == "FINISHED"


def test_run_is_open_until_the_last_rank_of_its_host_has_ended(destination, proxy, experiment):
    """Ranks may have unequal work."""
    live = {0: False, 1: True}
    one = destination(ranks=live, world=2)
    assert one.accept(batch(1, scalar(1), ended("finished"))) == Delivered()

    assert only_run(proxy, experiment)["info"]["status"] == "RUNNING"


@pytest.mark.parametrize(
    ("answer", "words", "after_s"),
    [
        (Answer(503, b"busy"), "answered 503 to runs/log-batch", None),
        (Answer(429, b"{}", {"Retry-After": "7"}), "answered 429", 7.0),
        (Answer(401, b"who?"), "MLFLOW_TRACKING_TOKEN", 30.0),
        (
            Answer(404, b"<html>"),
            "check that MLFLOW_TRACKING_URI is the address of an MLflow server",
            30.0,
        ),
        (Answer(200, b"<html>"), "not the answer of an MLflow server", 30.0),
        (Answer(302, b"", {"Location": "/"}), "redirects are not followed", 30.0),
        (Unanswered(), "http://127.0.0.1", None),
    ],
)
def test_what_may_pass_is_tried_again(destination, proxy, experiment, answer, words, after_s):
    """The batch is kept, with what the server asked for, and arrives once it is well."""
    one = destination()
    proxy.fail = lambda call, _: answer if call == "runs/log-batch" else None

    verdict = one.accept(batch(1, scalar(1)))
    assert isinstance(verdict, TryLater)
    assert words in verdict.reason
    assert verdict.after_s == after_s
    proxy.fail = lambda *_: None
    assert one.accept(batch(1, scalar(1))) == Delivered()
    shown = history(proxy.behind, only_run(proxy, experiment), "train/loss")
    assert shown == [(1, 0.5)]


def test_server_that_is_away_holds_points_up(destination):
    """Where it was asked for, and what the system said."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        verdict = destination(MLFLOW_TRACKING_URI=address).accept(batch(1, scalar(1)))

    assert verdict == TryLater(f"{address}: Connection refused")


def test_point_that_is_refused_costs_no_other(destination, proxy, experiment):
    """It is counted as lost, and the rest of its batch arrives."""
    refusal = json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": "no such value"})
    proxy.fail = lambda _, body: Answer(400, refusal.encode()) if b"cursed" in body else None
    points = [scalar(1), scalar(2), scalar(3, name="cursed"), scalar(4), scalar(5)]

    assert destination().accept(batch(1, *points)) == Delivered({"refused": 1})
    shown = history(proxy.behind, only_run(proxy, experiment), "train/loss")
    assert shown == [(n, 0.5) for n in (1, 2, 4, 5)]


def test_run_that_somebody_deleted_stays_deleted(destination, proxy, experiment):
    """Its points are lost for that reason: nothing is made in its place while it goes on."""
    one = destination()
    assert one.accept(batch(1, scalar(1))) == Delivered()
    run = only_run(proxy, experiment)["info"]["run_id"]
    ask(proxy.behind, "runs/delete", {"run_id": run})

    assert one.accept(batch(2, scalar(2), scalar(3))) == Refused("run_deleted")
    assert runs(proxy.behind, experiment) == []


def test_login_goes_to_the_server_and_nowhere_else(destination, proxy, caplog):
    """Not even where the server repeats it."""
    one = destination(MLFLOW_TRACKING_TOKEN="hunter2000")
    echo = json.dumps({"error_code": "PERMISSION_DENIED", "message": "Bearer hunter2000 is bad"})
    proxy.fail = lambda *_: Answer(403, echo.encode())

    verdict = one.accept(batch(1, scalar(1)))
    assert proxy.headers[-1]["authorization"] == "Bearer hunter2000"
    assert isinstance(verdict, TryLater)
    assert "is bad" in verdict.reason
    assert "hunter2000" not in verdict.reason + caplog.text


def test_login_that_others_can_read_is_said(destination, caplog):
    """Where it goes, and not what it is."""
    more = {"MLFLOW_TRACKING_URI": "http://tracking:5000", "MLFLOW_TRACKING_TOKEN": "hunter2000"}
    destination(**more)

    assert "the login is sent unencrypted (http) to http://tracking:5000: use https" in caplog.text
    assert "hunter2000" not in caplog.text


def test_parameters_that_come_later_are_added(destination, proxy, experiment, tmp_path, caplog):
    """One that became another stays what it was: MLflow changes none."""
    one = destination()
    assert one.accept(batch(1, scalar(1))) == Delivered()
    extend_run_file(str(tmp_path / "node"), {"lr": 0.2, "seed": 7}, ["late"])

    assert one.accept(batch(2, scalar(2))) == Delivered()
    run = only_run(proxy, experiment)
    assert entries(run, "params").items() >= {"lr": "0.1", "seed": "7"}.items()
    assert "parameter lr keeps its earlier value" in caplog.text
    assert entries(run, "tags")["late"] == "true"


def test_finding_is_a_tag_and_a_point(destination, proxy, experiment):
    """The tag has the text; whatever its labels are, MLflow takes the key."""
    found = scalar(
        4, 0.97, "disk_full", kind="finding", phase="", rank=None,
        labels={"mountpoint": "/data"}, text="**warning**: /data is full",
    )  # fmt: skip

    assert destination().accept(batch(1, found)) == Delivered()
    run = only_run(proxy, experiment)
    assert entries(run, "tags")["findings/disk_full/data"] == "**warning**: /data is full"
    assert history(proxy.behind, run, "findings/disk_full/data") == [(4, 0.97)]


def test_any_name_is_a_key_that_the_server_takes(destination, proxy, experiment):
    """Each its own, and none costs a point."""
    odd = ["a//b", "../up", "100 %", "100 #", "überß:x y", "x" * 300, "x" * 301, "\n", "火"]
    points = [scalar(1, float(i), name) for i, name in enumerate(odd)]

    assert destination().accept(batch(1, *points)) == Delivered()
    metrics = only_run(proxy, experiment)["data"]["metrics"]
    assert {metric["value"] for metric in metrics} == {float(i) for i in range(len(odd))}


def test_run_of_somebody_else_is_told_and_left_open(destination, proxy, experiment):
    """``MLFLOW_RUN_ID`` names it, as a program's own ``mlflow.start_run()`` takes it."""
    known = ask(proxy.behind, "experiments/create", {"name": experiment})["experiment_id"]
    made = ask(proxy.behind, "runs/create", {"experiment_id": known, "start_time": 1})
    run_id = made["run"]["info"]["run_id"]
    one = destination(ranks={0: False}, MLFLOW_RUN_ID=run_id)

    assert one.accept(batch(1, scalar(1), ended("finished"))) == Delivered()
    run = only_run(proxy, experiment)
    assert (run["info"]["run_id"], run["info"]["status"]) == (run_id, "RUNNING")
    assert history(proxy.behind, run, "train/loss") == [(1, 0.5)]


def test_server_that_is_away_to_the_end_leaves_points_pending(
    program, agent_of, run_folder, proxy, environ
):
    """The accounts add up, and the next delivery has all of them."""
    write_run_file(str(run_folder), FACTS)
    proxy.fail = lambda *_: Answer(503)
    train(program, range(3))
    program.stop(40)
    agent_of(program, drain_timeout_s=0.0, trackers=frozenset({"mlflow"}), environ=environ).run()

    account = accounts(run_folder)["scalars"]["mlflow"]
    assert adds_up(account)
    assert (account["created"], account["pending"], account["lost"]) == (7, 7, {})


def test_experiment_can_be_named_by_its_id(destination, proxy, experiment):
    """Alone, as MLflow has it; nothing is made where there is none of that id."""
    known = ask(proxy.behind, "experiments/create", {"name": experiment})["experiment_id"]
    by_id = {"MLFLOW_EXPERIMENT_NAME": "", "MLFLOW_EXPERIMENT_ID": known}
    unknown = destination(**by_id | {"MLFLOW_EXPERIMENT_ID": "987654321"})

    assert destination(**by_id).accept(batch(1, scalar(1))) == Delivered()
    assert history(proxy.behind, only_run(proxy, experiment), "train/loss") == [(1, 0.5)]
    verdict = unknown.accept(batch(1, scalar(1)))
    assert isinstance(verdict, TryLater)
    assert "987654321" in verdict.reason


def test_experiment_whose_name_and_id_disagree_is_not_chosen(destination, proxy, experiment):
    """Points wait until somebody has changed one of the two."""
    known = ask(proxy.behind, "experiments/create", {"name": experiment})["experiment_id"]
    right, wrong = destination(MLFLOW_EXPERIMENT_ID=known), destination(MLFLOW_EXPERIMENT_ID="0")

    verdict = wrong.accept(batch(1, scalar(1)))
    assert isinstance(verdict, TryLater)
    assert f"MLFLOW_EXPERIMENT_ID is 0, but the experiment {experiment!r}" in verdict.reason
    assert right.accept(batch(1, scalar(1))) == Delivered()


def test_server_that_asks_who_we_are_is_shown_a_certificate(
    destination, mlflow_server, experiment, tmp_path
):
    """The one that MLflow's own variable names; without it points wait."""
    own, key, both = (tmp_path / name for name in ("own.pem", "own.key", "both.pem"))
    made = f"-keyout {key} -out {own} -subj /CN=me -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {made}".split(),
        check=True,
        capture_output=True,
    )
    both.write_text(own.read_text() + key.read_text())
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=own)
    asking.verify_mode = ssl.CERT_REQUIRED
    asking.load_cert_chain(both)
    with MlflowProxy(mlflow_server.url, asking) as proxy:
        there = {"MLFLOW_TRACKING_URI": proxy.url, "MLFLOW_TRACKING_SERVER_CERT_PATH": str(own)}
        shown = {"MLFLOW_TRACKING_CLIENT_CERT_PATH": str(both)}
        verdict = destination(**there).accept(batch(1, scalar(1)))
        assert destination(**there, **shown).accept(batch(1, scalar(1))) == Delivered()
        run = only_run(proxy, experiment)

    assert isinstance(verdict, TryLater)
    assert history(mlflow_server.url, run, "train/loss") == [(1, 0.5)]


def test_page_of_a_run_is_a_file_of_it(destination, proxy, experiment):
    """Once the run is there; a later one takes its place."""
    one = destination()
    early = one.accept(page())

    assert isinstance(early, TryLater)
    assert "the run does not exist yet at" in early.reason
    assert one.accept(batch(1, scalar(1))) == Delivered()
    for content in (b"<p>1</p>", b"<p>" + b"2" * 1_500_000 + b"</p>"):
        assert one.accept(page(content)) == Delivered()
        assert artifact(proxy.behind, only_run(proxy, experiment), "report.html") == content


def test_page_goes_to_no_store_that_the_server_does_not_write(
    destination, proxy, experiment, tmp_path, caplog
):
    """That is said, and it counts as lost."""
    elsewhere = {"name": experiment, "artifact_location": str(tmp_path / "artifacts")}
    ask(proxy.behind, "experiments/create", elsewhere)
    one = destination()
    assert one.accept(batch(1, scalar(1))) == Delivered()

    assert one.accept(page()) == Refused("artifact_store")
    assert f"artifacts of the run are stored at {tmp_path}/artifacts/" in caplog.text
    assert "--serve-artifacts" in caplog.text


def test_page_of_a_run_that_somebody_deleted_is_lost(destination, proxy, experiment):
    """As its points are."""
    one = destination()
    assert one.accept(batch(1, scalar(1))) == Delivered()
    ask(proxy.behind, "runs/delete", {"run_id": only_run(proxy, experiment)["info"]["run_id"]})

    assert one.accept(page()) == Refused("run_deleted")


def test_page_that_the_server_cannot_take_now_waits(destination, proxy, experiment):
    """And what it will never take is lost."""
    one = destination()
    assert one.accept(batch(1, scalar(1))) == Delivered()
    for status, verdict in ((503, TryLater), (413, Refused)):
        proxy.fail = lambda call, _, s=status: Answer(s) if call.endswith("report.html") else None
        assert isinstance(one.accept(page()), verdict)
    proxy.fail = lambda *_: None
    assert one.accept(page(b"<p>")) == Delivered()
    assert artifact(proxy.behind, only_run(proxy, experiment), "report.html") == b"<p>"


def test_page_is_not_asked_for_where_it_is_switched_off(tmp_path, environ):
    """Then nobody makes one."""
    options = Options(policy=Policy(), environ=environ)
    assert make(DestinationContext(tmp_path, "node", options, TableRows(), dict)).signals == (
        "scalars",
    )
