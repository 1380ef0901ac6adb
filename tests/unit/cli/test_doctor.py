"""Does doctor find what is wrong, and say what to do?"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fault_server import FaultServer
from run_folders import S, digits

from otel_mlperf.analysis.run.item_accounts import RunAccount
from otel_mlperf.doctor.check_backends import check_backends
from otel_mlperf.doctor.check_endpoint import check_endpoints
from otel_mlperf.doctor.check_machine import (
    check_clock,
    check_gpu,
    check_machine,
    check_room,
    check_runs_folder,
    check_shared_memory,
    check_torch,
)
from otel_mlperf.doctor.check_run import check_account, check_journals, check_run
from otel_mlperf.findings.check import Check
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.journal.layout import WORD, Word
from otel_mlperf.store.run_folders import read_run

NO_ENDPOINT = "no endpoint is set: the run folder has it all"
META = {
    "run_id": "3f2a",
    "run_name": "digits",
    "run_folder": "/tmp/x",
    "service": "digits",
    "host": "node1",
    "pid": 4242,
    "rank": 2,
    "run_span": 1,
    "monotonic_ns": 1,
    "unix_ns": 1,
}


@pytest.fixture
def server(tmp_path):
    """A receiver."""
    (tmp_path / "server").mkdir()
    with FaultServer(tmp_path / "server") as found:
        yield found


def endpoint(url):
    """What an environment says that sends to ``url``."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url}


def test_without_an_endpoint_there_is_nothing_to_reach():
    """Which is well: the run folder has everything."""
    assert check_endpoints({}) == (
        [Check("ok", "traces", NO_ENDPOINT), Check("ok", "metrics", NO_ENDPOINT)],
        {},
    )


def test_a_server_that_takes_everything_is_reached_stage_by_stage(server):
    """Name, connection, then an empty request of each signal."""
    checks, reached = check_endpoints(endpoint(server.url))

    assert checks == [
        Check("ok", "dns", "localhost is 127.0.0.1"),
        Check("ok", "tcp", f"localhost:{server.port} answers"),
        Check("ok", "otlp traces", f"{server.url}/v1/traces takes it"),
        Check("ok", "otlp metrics", f"{server.url}/v1/metrics takes it"),
    ]
    assert sorted(reached) == ["metrics", "traces"]


def test_a_name_that_nobody_knows_stops_there():
    """DNS."""
    checks, reached = check_endpoints(endpoint("http://collector.invalid:4318"))

    assert [(check.level, check.what, check.do) for check in checks] == [
        ("FAIL", "dns", "check the endpoint's host name")
    ]
    assert reached == {}


def test_a_port_that_nobody_listens_on_stops_there():
    """TCP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        checks, _ = check_endpoints(endpoint(f"http://127.0.0.1:{port}"))

    assert checks[1:] == [
        Check(
            "FAIL", "tcp", f"127.0.0.1:{port}: Connection refused",
            "start the server, or correct the endpoint",
        )
    ]  # fmt: skip


def test_a_server_that_speaks_no_tls_is_told(server):
    """TLS."""
    checks, _ = check_endpoints(endpoint(f"https://localhost:{server.port}"))

    assert [check.what for check in checks] == ["dns", "tcp", "tls"]
    assert checks[2].level == "FAIL"
    assert checks[2].do == "does the server speak TLS? If not: http:// instead of https://"


@pytest.mark.parametrize(
    ("code", "do"),
    [(401, "check OTEL_EXPORTER_OTLP_HEADERS"), (404, "check the path of the endpoint")],
)
def test_a_server_that_refuses_is_told_with_the_fix(server, code, do):
    """HTTP."""
    server.mode("status", code=code)
    checks, reached = check_endpoints(endpoint(server.url))

    assert checks[2] == Check("FAIL", "otlp traces", f"{server.url}/v1/traces answered {code}", do)
    assert reached == {}


def test_something_else_on_the_port_is_told(server):
    """OTLP: a web page is no receiver."""
    server.mode("garbage", body="<html>hello</html>")
    checks, _ = check_endpoints(endpoint(server.url))

    assert checks[2].level == "FAIL"
    assert checks[2].found.endswith(
        "answered 200 with something that is no OTLP: is it an OTLP/HTTP receiver?"
    )


def test_what_is_wrong_with_variables_is_told_once(server):
    """Both signals read the same one."""
    environ = endpoint(server.url) | {"OTEL_EXPORTER_OTLP_TIMEOUT": "ten"}
    checks, _ = check_endpoints(environ)

    assert sum("OTEL_EXPORTER_OTLP_TIMEOUT=ten" in check.found for check in checks) == 1


class Stumbling(BaseHTTPRequestHandler):
    """A Prometheus that has nothing, then an error, then what is asked for."""

    answers = ()

    def do_GET(self):
        code, found = next(Stumbling.answers)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps({"data": {"result": found}}).encode())

    def log_message(self, *words):
        pass


def test_a_backend_that_stumbles_is_asked_again(server):
    """An error between two answers does not end the command."""
    Stumbling.answers = iter([(200, []), (500, []), (200, ["it"])])
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Stumbling)
    thread = threading.Thread(target=backend.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{backend.server_port}"
    _, reached = check_endpoints(endpoint(server.url))
    try:
        (check,) = check_backends(
            {"OTEL_MLPERF_PROMETHEUS_URL": url}, {"metrics": reached["metrics"]}
        )
    finally:
        backend.shutdown()
        backend.server_close()
        thread.join()

    assert (check.level, check.what) == ("ok", "prometheus"), check


def test_backends_that_are_not_there_are_not_missed(server):
    """Their addresses are a guess unless somebody gives them."""
    _, reached = check_endpoints(endpoint(server.url))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    environ = {"OTEL_MLPERF_JAEGER_URL": nowhere, "OTEL_MLPERF_PROMETHEUS_URL": nowhere}

    assert check_backends(environ, reached) == [
        Check("ok", "jaeger", f"none at {nowhere}: OTEL_MLPERF_JAEGER_URL says where to look"),
        Check(
            "ok", "prometheus", f"none at {nowhere}: OTEL_MLPERF_PROMETHEUS_URL says where to look"
        ),
    ]


@pytest.mark.parametrize(
    ("account", "outcome", "expected"),
    [
        (
            RunAccount(created=480, delivered=240, rolled_up=40, unselected=200),
            "finished",
            Check("ok", "x", "480 created = 240 delivered + 40 rolled up + 200 measured only"),
        ),
        (
            RunAccount(created=10, delivered=7, pending=3),
            "running",
            Check("ok", "x", "10 created = 7 delivered + 3 pending"),
        ),
        (
            RunAccount(created=10, delivered=7, pending=3),
            "finished",
            Check("warn", "x", "10 created = 7 delivered + 3 pending", "otel-mlperf recover 3f2a"),
        ),
        (
            RunAccount(created=10, delivered=7, lost={"ring_full": 3, "rejected": 0}),
            "finished",
            Check(
                "warn", "x", "10 created = 7 delivered + 3 lost (ring_full)",
                "larger OTEL_MLPERF_JOURNAL_ROWS=, or aggregate=True for short spans",
            ),
        ),
        (
            RunAccount(created=10, delivered=7, lost={"rejected": 3}),
            "finished",
            Check(
                "warn", "x", "10 created = 7 delivered + 3 lost (rejected)",
                "see agent/*/agent.log in the run folder",
            ),
        ),
        (
            RunAccount(created=10, delivered=7),
            "finished",
            Check(
                "FAIL", "x", "10 created = 7 delivered, which leaves 3 unexplained",
                "this is a fault of otel_mlperf: please report it with agent/*/agent.log",
            ),
        ),
    ],
)  # fmt: skip
def test_every_item_is_accounted_for(account, outcome, expected):
    """The identity is written out; what it leaves open is a failure."""
    assert check_account("x", account, outcome, "3f2a") == expected


def test_a_finished_run_has_nothing_left_to_read(tmp_path):
    """And an account of each signal and destination."""
    run = read_run(digits(tmp_path).write())
    accounts = {"spans": {"store": RunAccount(created=1, delivered=1)}}

    assert check_run(run, accounts, str(tmp_path)) == [
        Check("ok", "agent", "nothing left to read: it has ended"),
        Check("ok", "spans → store", "1 created = 1 delivered"),
    ]


def test_a_journal_that_found_no_room_in_shared_memory_is_seen(tmp_path):
    """It lies in the run folder then."""
    run = read_run(digits(tmp_path).write())
    (run.path / "journals").mkdir()
    journal(run.path / "journals", 1).release()

    first, *_ = check_run(run, {}, str(tmp_path))

    assert first.found == "2-4242-0.journal is of a process that has ended"


def journal(folder, beat_ns, **lost):
    """A journal that an agent looked at last at ``beat_ns``; closed by the test."""
    made = Journal(str(folder / "2-4242-0.journal"), 2048, META)
    made.words[Word.BEAT] = beat_ns
    made.words[Word.AGENT_PID] = 77
    for word, count in lost.items():
        made.words[Word[word]] = count
    return made


@pytest.mark.parametrize(
    ("beat_ns", "level", "found"),
    [
        (99_500_000_000, "ok", "process 77 read its journal 0.5 s ago"),
        (60_000_000_000, "FAIL", "its journal was read last 40 s ago"),
        (0, "FAIL", "nobody has read its journal"),
    ],
)
def test_an_agent_is_alive_if_it_looked_at_the_journal_lately(tmp_path, beat_ns, level, found):
    """Of a process that lives: another one asks for its lock."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        made = journal(tmp_path, beat_ns)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        made.release()
        os._exit(0)
    os.read(ready[0], 1)
    checks = check_journals([tmp_path], "3f2a", "running", 100_000_000_000)
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for end in (*ready, *done):
        os.close(end)

    assert [(check.level, check.what, check.found) for check in checks] == [
        (level, "agent, rank 2", found)
    ]


def test_a_journal_of_a_dead_process_is_to_be_recovered(tmp_path):
    """With what its process had to drop."""
    journal(tmp_path, 1, LOST_RING_FULL=12, LOST_ENTRIES=3).release()

    assert check_journals([tmp_path], "3f2a", "running", 100) == [
        Check(
            "warn", "dropped", "12 spans (the journal was full)",
            "larger OTEL_MLPERF_JOURNAL_ROWS=, or aggregate=True for short spans",
        ),
        Check(
            "warn", "dropped", "3 names beyond the limit",
            "fewer names: what varies is an attribute",
        ),
        Check(
            "warn", "agent, rank 2", "2-4242-0.journal is of a process that has ended",
            "otel-mlperf recover 3f2a",
        ),
    ]  # fmt: skip


def test_a_file_that_is_no_journal_is_told(tmp_path):
    """And hides no other."""
    (tmp_path / "0-1-0.journal").write_bytes(b"x" * 10)

    (check,) = check_journals([tmp_path], "3f2a", "running", 100)

    assert (check.level, check.what, check.do) == ("warn", "journal", "remove it")


def test_a_run_without_an_end_and_without_a_journal_is_elsewhere(tmp_path):
    """Or its end was not seen."""
    (check,) = check_journals([tmp_path], "3f2a", "running", 100)

    assert (check.level, check.found) == (
        "warn",
        "the run did not end, and has no journal on this node",
    )


def test_shared_memory_that_is_not_there_is_a_warning(tmp_path):
    """Recording goes on, on the disk."""
    check = check_shared_memory(str(tmp_path / "shm"))

    assert (check.level, check.do) == ("warn", f"make {tmp_path}/shm writable")


def test_a_runs_folder_that_cannot_be_made_is_a_failure(tmp_path):
    """A file is in its place."""
    (tmp_path / "file").write_text("")

    assert check_runs_folder(tmp_path / "file" / "runs").level == "FAIL"
    assert check_runs_folder(tmp_path / "not" / "yet").level == "ok"


@pytest.mark.parametrize(
    ("free", "level"), [(0, "FAIL"), (1 << 20, "warn"), ((1 << 30) - 1, "warn"), (1 << 30, "ok")]
)
def test_a_full_disk_is_a_failure_and_a_nearly_full_one_a_warning(free, level):
    """On a full one nothing is recorded at all."""
    assert check_room(Path("runs"), free).level == level


def test_the_run_folder_is_the_first_check_of_the_machine(tmp_path):
    """Of several failures a full disk explains the others."""
    assert check_machine(tmp_path, 1)[0].what == "run folder"


@pytest.mark.parametrize(
    ("now", "state", "nodes", "level"),
    [(1_760_000_000.0, 0, 2, "ok"), (1_760_000_000.0, None, 2, "ok"),
     (1_760_000_000.0, 5, 1, "ok"), (1_760_000_000.0, 5, 2, "warn"), (86_400.0, 0, 1, "FAIL")],
)  # fmt: skip
def test_a_clock_is_set_and_synchronised_or_not(now, state, nodes, level):
    """1970 is a failure; a clock of its own only where several nodes compare."""
    assert check_clock(lambda: now, state, nodes).level == level


def test_the_gpu_driver_is_read_from_the_kernel(tmp_path):
    """No library is loaded for it."""
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\nGCC")

    assert check_gpu(driver).found == "NVIDIA driver 550.54.14; section times are host time"
    assert check_gpu(Path("/nowhere")).level == "ok"


def test_torch_is_looked_for_without_loading_it():
    """A doctor that takes ten seconds is not called."""
    assert check_torch().level == "ok"


def test_words_are_where_the_layout_says(tmp_path):
    """What the other tests write is what the reader reads."""
    made = journal(tmp_path, 7 * S)
    made.release()

    with (tmp_path / "2-4242-0.journal").open("rb") as file:
        file.seek(Word.BEAT * WORD)
        assert struct.unpack("<Q", file.read(WORD)) == (7 * S,)
