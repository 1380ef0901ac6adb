"""A trace of torch.profiler is imported to the requested place."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from pathlib import Path

import pytest
import warm_python
from fault_server import plain_spans
from google.protobuf import json_format
from kineto_traces import (
    PID,
    event,
    kernel,
    launch,
    named,
    operator,
    training_step,
    write_trace,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from run_folders import digits

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.cli.export import export
from otel_mlperf.cli.import_ import import_
from otel_mlperf.errors import ConfigError, NoSuchRun, OutputError, TraceError, UsageError
from otel_mlperf.importing.trace_import import SERVICE
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.run_folders import find_run
from otel_mlperf.store.table_reader import Store


def _with_bytes(value):
    """OTLP/JSON as protobuf's own JSON: ids in base64 instead of hexadecimal."""
    if isinstance(value, list):
        return [_with_bytes(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(one)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else _with_bytes(one)
        for key, one in value.items()
    }


@pytest.fixture
def trace(tmp_path):
    """A step with two operators and a kernel each, on rank 1 of 2."""
    return write_trace(
        tmp_path / "rank1.pt.trace.json",
        training_step(),
        distributedInfo={"backend": "nccl", "rank": 1, "world_size": 2},
        deviceProperties=[{"id": 0, "name": "NVIDIA A100"}],
        host_name="node-7",
    )


def test_without_a_place_it_says_what_is_in_it(trace, capsys):
    """Device, rank, counts before and after, top kernels, and where to put it."""
    import_([trace])

    said = capsys.readouterr().out
    assert "NVIDIA A100 · rank 1 of 2 · 1 step" in said
    assert "8 events → 8 spans in 1 trace" in said
    assert "GPU busy" in said
    assert "sgemm_128x64" in said
    assert "nothing was stored or sent: pass --run NAME, --endpoint URL or --out FILE" in said


def test_descriptions_of_windows_beside_traces_are_left_out(trace, capsys):
    """``profiles/*.json`` may be given as it is: what is no trace there is not said to be bad."""
    description = trace.with_name("rank0.0.window.json")
    description.write_text("{}")
    import_([description, trace])

    shown = capsys.readouterr()
    assert trace.name in shown.out
    assert description.name not in shown.out + shown.err
    with pytest.raises(TraceError):
        import_([description])


def test_server_gets_the_spans(trace, server, capsys):
    """With parents, attributes and who they are from."""
    import_([trace], endpoint=server.url)

    assert len(server.spans()) == 8
    spans = {span["name"]: span for span in server.spans()}
    assert spans["sgemm_128x64"]["parent_id"] == spans["aten::addmm"]["span_id"]
    resource = spans["aten::addmm"]["resource"]
    assert resource[names.SERVICE_NAME] == SERVICE
    assert resource[names.RANK] == 1
    assert resource[names.WORLD_SIZE] == 2
    assert resource[names.HOST_NAME] == "node-7"
    assert "8 spans sent" in capsys.readouterr().out


def test_run_folder_has_spans_and_numbers_once(trace, tmp_path, capsys):
    """Imported twice they are there once, with the rank that the file says."""
    run = digits(tmp_path / "runs").write()

    import_([trace], run=str(run))
    import_([trace], run=str(run))

    store = Store(run)
    rows = store.records("SELECT * FROM spans WHERE kind = 'event'")
    assert len(rows) == 8
    assert {row["rank"] for row in rows} == {1}
    assert len(store.rows("SELECT * FROM windows")) == 1
    said = capsys.readouterr().out
    assert said.count(f"stored in {run.name}") == said.count(f"replaced in {run.name}") == 1
    assert said.count("the run has no rank 1: the trace is included in totals of `kernels`") == 2


def test_a_run_of_another_size_is_told_apart(tmp_path, capsys):
    """Rank 0 of another job has the number of one of this run's ranks, and is none."""
    run = digits(tmp_path / "runs").write()
    path = write_trace(tmp_path / "t.json", training_step(), distributedInfo={"world_size": 8})

    import_([path], run=str(run))

    assert (
        "trace of a job with 8 ranks (this run: 1): included in totals of `kernels`"
    ) in capsys.readouterr().out


def test_a_new_name_makes_a_run(trace, tmp_path, monkeypatch, capsys):
    """Which summary, kernels, runs and export know what to do with; a second trace joins it."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))
    other = write_trace(tmp_path / "other.json", [operator("aten::add", 9000, 2)])

    import_([trace], run="foreign")
    import_([other], run="foreign")

    [folder] = (tmp_path / "runs").iterdir()
    said = capsys.readouterr().out
    assert f"stored in the new run {folder.name}" in said
    assert f"stored in {folder.name}" in said
    assert "has no rank" not in said
    found = summarize(find_run("foreign"))
    assert (found.outcome, found.ranks, found.world_size, found.windows) == ("imported", 2, 2, 2)
    assert found.duration_ns == 8_002_000
    assert (found.failure, found.has_gpu) == (None, True)
    shown = render_summary(found)
    assert "otel-mlperf import has made this run" in shown
    assert f"next      otel-mlperf kernels {found.short_id}" in shown
    export("foreign", chrome=True, out=str(tmp_path / "timeline.json"))
    assert "sgemm_128x64" in (tmp_path / "timeline.json").read_text()


def test_ranks_of_one_run_share_the_trace_of_a_step(tmp_path, monkeypatch, server):
    """Whenever and however they come into it; another run has traces of its own."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))
    entries = [*training_step(), operator("aten::after", 9000, 5)]
    ranks = [
        write_trace(tmp_path / f"rank{rank}.json", entries, distributedInfo={"rank": rank})
        for rank in range(3)
    ]

    import_(ranks[:2], run="shared", endpoint=server.url)
    import_(ranks[2:], run="shared")
    import_(ranks[:1], run="other")

    stored = Store(find_run("shared").path).rows(
        "SELECT trace_id, list(DISTINCT rank ORDER BY rank), bool_or(name = 'ProfilerStep#3') "
        "FROM spans GROUP BY trace_id"
    )
    assert sorted((ranks, is_step) for _, ranks, is_step in stored) == [
        ([0, 1, 2], False),
        ([0, 1, 2], True),
    ]
    traces = {trace for trace, *_ in stored}
    assert {span["trace_id"] for span in server.spans()} == traces
    others = Store(find_run("other").path).rows("SELECT DISTINCT trace_id FROM spans")
    assert not traces & {trace for (trace,) in others}


def sent_spans(run, rank):
    """Spans of a rank that a server would have."""
    return Store(find_run(run).path).rows(
        "SELECT count(*) FROM spans WHERE kept = 'profiled' AND rank = $wanted", wanted=rank
    )[0][0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("world_size", [2, 128, 4096])
def test_ranks_that_are_imported_share_the_budget_of_a_trace(tmp_path, monkeypatch, world_size):
    """One of many sends what it would alone; the number of the others is no reason to send less."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))
    entries = [operator(f"aten::op{at}", 10 * at, 5 + at / 1000) for at in range(3000)]
    ranks = [
        write_trace(
            tmp_path / f"rank{rank}.json",
            entries,
            distributedInfo={"rank": rank, "world_size": world_size},
        )
        for rank in range(4)
    ]

    import_(ranks[:1], run="single")
    import_(ranks[:1], out=tmp_path / "alone.json")
    import_(ranks, run="together")
    import_(ranks[1:2], run="single")

    alone = (tmp_path / "alone.json").read_text().count('"traceId"')
    assert sent_spans("single", 0) == alone == 2000
    assert sent_spans("single", 1) <= 2000
    share = min(2000, 5000 // min(world_size, 4))
    assert [sent_spans("together", rank) for rank in range(4)] == [share] * 4


def test_what_cannot_be_read_or_is_empty_makes_no_run(tmp_path, monkeypatch, capsys):
    """Nor a window in one that is there."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))
    run = digits(tmp_path / "there").write()
    empty = tmp_path / "empty.json"
    empty.write_text("[]")

    import_([empty], run="foreign")
    with pytest.raises(TraceError):
        import_([tmp_path], run="foreign")
    import_([empty], run=str(run))

    assert not (tmp_path / "runs").exists()
    assert "the file contains no events: nothing to store" in capsys.readouterr().out
    assert Store(run).rows("SELECT * FROM windows") == []


def test_file_has_a_request_a_line(trace, tmp_path):
    """As the Collector's file exporter writes: hexadecimal ids, 64-bit numbers as text."""
    out = tmp_path / "spans.jsonl"

    import_([trace], out=out)

    (line,) = map(json.loads, out.read_text().splitlines())
    (of_resource,) = line["resourceSpans"]
    assert len(of_resource["scopeSpans"][0]["spans"]) == 8
    spans = {span["name"]: span for span in of_resource["scopeSpans"][0]["spans"]}
    sgemm = spans["sgemm_128x64"]
    assert sgemm["parentSpanId"] == spans["aten::addmm"]["spanId"]
    assert isinstance(sgemm["startTimeUnixNano"], str)
    assert {"key": names.STREAM_ID, "value": {"intValue": "7"}} in sgemm["attributes"]


def test_file_and_server_get_the_same_spans(tmp_path, server):
    """Roll-ups included, and threads only where something ran on one."""
    entries = [*training_step(), named("thread_name", "trainer", tid=PID)]
    entries += [operator("aten::add", 2000 + 2 * i, 1, tid=PID + 1) for i in range(50)]
    trace, out = write_trace(tmp_path / "trace.json", entries), tmp_path / "spans.jsonl"

    import_([trace], budget="12", endpoint=server.url, out=out)

    written = {}
    for line in map(json.loads, out.read_text().splitlines()):
        request = json_format.ParseDict(_with_bytes(line), ExportTraceServiceRequest())
        written |= {one["span_id"]: one for one in plain_spans(request.SerializeToString())}
    sent = {span["span_id"]: span for span in server.spans()}
    assert written == sent
    spans = {span["name"]: span["attributes"] for span in written.values()}
    thread = (names.THREAD_ID, names.THREAD_NAME)
    assert [spans["aten::addmm"].get(key) for key in thread] == [PID, "trainer"]
    assert [spans["sgemm_128x64"].get(key) for key in thread] == [None, None]
    assert any(names.ROLLED_UP in one and names.THREAD_ID not in one for one in spans.values())


def test_a_file_that_is_there_is_replaced_only_by_force(trace, tmp_path):
    """And until then keeps what it has."""
    out = tmp_path / "spans.jsonl"
    out.write_text("mine")

    with pytest.raises(OutputError, match="the file already exists; replace it with --force"):
        import_([trace], out=out)
    assert out.read_text() == "mine"

    import_([trace], out=out, force=True)
    assert json.loads(out.read_text())["resourceSpans"]


def test_a_trace_is_never_written_over(trace, tmp_path):
    """Not by force, and not under another name of the same file."""
    (tmp_path / "link").symlink_to(trace)
    before = trace.read_bytes()

    for out in (trace, tmp_path / "link"):
        with pytest.raises(UsageError, match="is one of the traces"):
            import_([trace], out=out, force=True)

    assert trace.read_bytes() == before


@pytest.mark.parametrize("force", [False, True])
def test_a_failing_import_leaves_no_file_and_keeps_the_old_one(tmp_path, force):
    """What cannot be read empties nothing."""
    out, bad = tmp_path / "spans.jsonl", tmp_path / "bad.json"
    bad.write_text("{}")
    if force:
        out.write_text("mine")

    with pytest.raises(TraceError):
        import_([bad], out=out, force=force)

    assert [path.name for path in tmp_path.glob("*spans*")] == ["spans.jsonl"] * force
    assert not force or out.read_text() == "mine"


def test_a_dash_writes_to_standard_output(trace, tmp_path, capfdbinary):
    """Only the spans: what was in the trace is said on standard error."""
    import_([trace], out=tmp_path / "spans.jsonl")
    capfdbinary.readouterr()

    import_([trace], out=Path("-"))

    written, said = capfdbinary.readouterr()
    assert written == (tmp_path / "spans.jsonl").read_bytes()
    assert b"8 events" in said
    with pytest.raises(UsageError, match="--json and --out -"):
        import_([trace], out=Path("-"), as_json=True)


def test_a_folder_is_no_trace(tmp_path, monkeypatch, capsys):
    """Not even the current one, whose path has no name."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(TraceError, match="1 unreadable"):
        import_([Path()])

    assert "cannot read the trace .: it is a directory" in capsys.readouterr().err


def test_json_has_the_figures_of_each_file(trace, tmp_path, capsys):
    """Many files in one list, with numbers for programs."""
    other = write_trace(tmp_path / "other.json.gz", [operator("aten::add", 1, 2)])

    import_([trace, other], as_json=True)

    first, second = json.loads(capsys.readouterr().out)["traces"]
    assert (first["rank"], first["is_rank_known"], first["events"]) == (1, True, 8)
    assert first["busy_ns"] == 60_500 + 5_750
    assert first["kernels"][0] == {
        "name": "sgemm_128x64", "calls": 1, "total_ns": 60_500,
        "share": pytest.approx(60_500 / 66_250),
    }  # fmt: skip
    assert (second["rank"], second["is_rank_known"], second["busy_ns"]) == (0, False, None)


def test_rank_is_asked_for_only_where_the_file_is_silent(trace, tmp_path, capsys):
    """What the file says counts more than the option."""
    other = write_trace(tmp_path / "other.json", [operator("aten::add", 1, 2)])

    import_([trace, other], rank=5, as_json=True)

    assert [one["rank"] for one in json.loads(capsys.readouterr().out)["traces"]] == [1, 5]


def test_budget_decides_how_much_is_sent(tmp_path, server):
    """The rest is rolled up; with none, Python functions are spans as well."""
    entries = [
        event("main.py: train", 0, 1000, category="python_function"),
        *(operator("aten::add", 1 + 2 * i, 1) for i in range(400)),
    ]
    trace = write_trace(tmp_path / "trace.json", entries)

    import_([trace], endpoint=server.url, budget="10")
    few = server.spans()
    import_([trace], endpoint=server.url, budget="none")

    assert len(few) <= 10
    rolled = sum(span["attributes"].get(names.ROLLED_UP, 0) for span in few)
    assert rolled + sum(names.ROLLED_UP not in span["attributes"] for span in few) == 401
    assert len({span["span_id"] for span in server.spans()} - {s["span_id"] for s in few}) > 380
    assert "main.py: train" in {span["name"] for span in server.spans()[len(few) :]}


@pytest.mark.fault("F86")
def test_damaged_trace_is_imported_around_the_damage(tmp_path, server, capsys):
    """What was read is sent, the damage is in the table, and the exit code tells."""
    whole = write_trace(tmp_path / "whole.json", [operator(f"op{i}", i, 0.5) for i in range(500)])
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole.read_bytes()[:50_000])

    with pytest.raises(TraceError, match="1 trace: 1 damaged; everything around") as error:
        import_([cut], endpoint=server.url, budget="none")

    assert error.value.exit_code == 65
    assert len(server.spans()) > 100
    assert "damage: truncated" in capsys.readouterr().out


def test_what_is_no_trace_does_not_keep_the_others_back(trace, tmp_path, server, capsys):
    """The rest is imported; the exit code and a line for each say what was not."""
    with pytest.raises(TraceError, match="2 traces: 1 unreadable"):
        import_([tmp_path / "nothing.json", trace], endpoint=server.url)

    assert len(server.spans()) == 8
    assert "nothing.json" in capsys.readouterr().err


def test_wrong_places_are_said_before_anything_is_read(trace, monkeypatch):
    """A run that is not there, and an endpoint that is none."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(trace.parent))

    for run in ("latest", "no/where", "."):
        with pytest.raises(NoSuchRun):
            import_([trace], run=run)
    with pytest.raises(ConfigError):
        import_([trace], endpoint="nonsense://x")


def with_unknown_rows(folder, *, known=True):
    """An operator, two events on rows of an NPU, and two kernels of unnamed GPUs."""
    npu = event("op", 5, 1, category="", pid="NPU 0", tid=1)
    gpus = [kernel("mm", 10, 5, 1), kernel("mm", 10, 5, 2, device=1)] if known else []
    return write_trace(folder / "npu.json", [operator("aten::mm", 0, 30), npu, npu, *gpus])


UNKNOWN = "device rows of process NPU 0 (2 events) have unknown types"


def test_an_import_reports_rows_of_devices_that_are_not_known(tmp_path, capsys):
    """As text, with what is known of devices, and as JSON."""
    import_([with_unknown_rows(tmp_path, known=False)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  no identified device · ")
    assert f"  {UNKNOWN}" in lines

    import_([with_unknown_rows(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  2 devices (not named in the file) · ")
    assert f"  {UNKNOWN}" in lines

    import_([with_unknown_rows(tmp_path)], as_json=True)
    (told,) = json.loads(capsys.readouterr().out)["traces"]
    assert told["unknown_rows"] == [{"process": "NPU 0", "events": 2, "is_device": True}]
    assert told["busy_devices"] == 2


def test_the_summary_of_an_import_reports_rows_of_devices_that_are_not_known(
    tmp_path, monkeypatch, capsys
):
    """Below the number of its profiler windows."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))
    import_([with_unknown_rows(tmp_path)], run="elsewhere")

    assert f"          {UNKNOWN}" in render_summary(summarize(find_run("elsewhere"))).splitlines()


def test_times_without_a_date_are_said(tmp_path, capsys):
    """A trace that counts from the start of the machine is told apart."""
    trace = write_trace(tmp_path / "trace.json", [operator("aten::add", 10, 2)], base_ns=None)

    import_([trace])

    assert "times in this file are relative to the start of the machine" in capsys.readouterr().out


@pytest.mark.fault("F86")
def test_command_line_knows_the_command(tmp_path):
    """``otel-mlperf import`` in a process of its own ends with 65 for what is damaged."""
    good = write_trace(tmp_path / "good.json.gz", [launch(0, 2, 1), kernel("k", 5, 5, 1)])
    bad = tmp_path / "bad.json.gz"
    bad.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "half'))
    command = [sys.executable, "-m", "otel_mlperf", "import"]

    fine = warm_python.run([*command, good], capture_output=True, text=True, check=False)
    damaged = warm_python.run([*command, good, bad], capture_output=True, text=True, check=False)

    assert (fine.returncode, fine.stderr) == (0, "")
    assert damaged.returncode == 65
    assert damaged.stderr.startswith("otel-mlperf: ")
    assert "Traceback" not in damaged.stderr
