"""What a program says of its secrets is neither stored nor sent."""

from __future__ import annotations

import json
import secrets

import pytest
from runs import LOUD, run_program

from otel_mlperf.redaction import HIDDEN
from otel_mlperf.tables import TABLES


@pytest.mark.fault("S8", "S9")
def test_a_secret_is_nowhere_once_a_run_has_ended(tmp_path, server) -> None:
    """Wherever the program said it: it is neither in the store, nor in a file, nor in a request."""
    secret = secrets.token_hex(6)

    ended = run_program(
        tmp_path / "runs",
        "--secret",
        secret,
        program="secretive.py",
        OTEL_EXPORTER_OTLP_ENDPOINT=server.url,
        OTEL_MLPERF_TRACE_EVERY="1",
        OTEL_RESOURCE_ATTRIBUTES=f"deployment.token={secret}",
        DATA_LOGIN=secret,
        **LOUD,
    ).settled()

    assert ended.code == 0, ended.errors
    tables = {table: ended.rows(f"SELECT * FROM {table}") for table in TABLES}
    sent = [*server.requests(), *server.spans(), *server.points()]
    text = json.dumps([tables, sent], default=str) + ended.output + ended.errors
    assert secret not in text
    for path in ended.folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    about = json.loads((ended.folder / "run.json").read_text())
    assert about["params"] == {
        "hub": {"api_key": HIDDEN, "url": f"https://{HIDDEN}@example.com/data"},
        "lr": 0.1,
    }
    assert about["tags"] == [f"token={HIDDEN}"]
    given = [row for row in tables["spans"] if row["name"] == "given"]
    assert len(given) == 3
    for row in given:
        attributes = json.loads(row["attributes"])
        assert attributes["hf.token"] == HIDDEN
        assert attributes["note"] == f"PGPASSWORD={HIDDEN}"


def test_hidden_values_are_counted(tmp_path, server) -> None:
    """What process and agent hid is one metric of the rank."""
    ended = run_program(
        tmp_path / "runs",
        "--secret",
        secrets.token_hex(6),
        program="secretive.py",
        OTEL_EXPORTER_OTLP_ENDPOINT=server.url,
        OTEL_MLPERF_TRACE_EVERY="1",
    ).settled()

    assert ended.code == 0, ended.errors
    hidden = [point for point in server.points() if point["name"] == "otel_mlperf.redacted"]
    # params 2, tag 1, label 1, decorated's attributes 2, three messages, result 1; of calls 3 x 2.
    assert hidden[-1]["value"] == 16
