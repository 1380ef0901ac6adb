"""With ``provider="join"``, exporters of the program's own get whole traces, each span once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
import warm_python
from fault_server import plain_spans
from runs import (
    LIMIT_S,
    PROGRAMS,
    Ended,
    Running,
    adds_up,
    ending,
    environment,
    kill_two_agents,
    run_program,
)

from otel_mlperf import names
from otel_mlperf.replay.span_requests import requests
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

PROGRAM = "joined.py"
THEIRS = ["attention"] * 3 + ["served"]
"""Spans of the SDK that its sampler takes; ``dropped`` is in a trace that its caller dropped."""
REMOTE = 0x300
"""Bits of the flags that say whether a parent is remote; the SDK sends no others."""
SAME = (
    "trace_id", "span_id", "parent_id", "name", "start_ns", "end_ns", "attributes", "kind",
    "status", "points", "events_left_out", "scope", "trace_state",
)  # fmt: skip


def run(server, tmp_path, *arguments, **variables):
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
    settings = endpoint | variables
    return run_program(tmp_path / "runs", *arguments, program=PROGRAM, **settings).settled()


def test_every_exporter_gets_whole_traces(server, tmp_path):
    """Each sampled section arrives once, with all its fields; the agent sends metrics alone."""
    ended = run(server, tmp_path)
    assert (ended.code, ended.errors) == (0, "")
    got, sent = json.loads(ended.output), server.spans()

    ids = Counter(span["trace_id"] + span["span_id"] for span in sent)
    assert set(ids.values()) == {1}
    for spans in got.values():
        assert Counter(trace + span for trace, span, *_ in spans) == ids
    mine = {span["span_id"]: span for span in sent if span["scope"][0] == "otel_mlperf"}
    assert sorted(span["name"] for span in sent if span["span_id"] not in mine) == THEIRS
    kept = {span["span_id"]: span for span in replayed(ended.folder)}
    left_out = {span_id: kept.pop(span_id) for span_id in kept.keys() - mine.keys()}
    assert [span["name"] for span in left_out.values()] == ["in_dropped"]
    assert not any(names.UNSAMPLED in span["attributes"] for span in left_out.values())
    assert mine.keys() == kept.keys()
    for span_id, span in mine.items():
        assert comparable(span) == comparable(kept[span_id])
        assert kept[span_id]["resource"].items() - span["resource"].items() <= {
            ("service.name", "joined"),
            *((key, kept[span_id]["resource"][key]) for key in OF_PROVIDER),
        }
        assert span["resource"]["service.name"] == "trainer"
        assert span["resource"]["team"] == "vision"

    accounts = ended.accounts()
    assert accounts["spans"].keys() == {"store", "provider"}
    assert all(map(adds_up, accounts["spans"].values()))
    provider = accounts["spans"]["provider"]
    assert (provider["delivered"], provider["lost"]) == (len(mine), {})
    assert provider["unselected"] == accounts["spans"]["store"]["unselected"] + 1
    assert server.points()


OF_PROVIDER = ("service.instance.id", "telemetry.sdk.name", "telemetry.sdk.version")
"""Attributes of a resource that the SDK has, too: the program's come first."""


def test_parents_are_intact_both_ways(server, tmp_path):
    """A section in a span of the SDK in a section: each has the other as parent."""
    run(server, tmp_path)
    spans = {span["span_id"]: span for span in server.spans()}
    above = {
        (span["name"], spans[span["parent_id"]]["name"])
        for span in spans.values()
        if span["parent_id"] in spans
    }
    assert {
        ("forward", "train.step"), ("attention", "forward"), ("kernel", "attention"),
        ("in_served", "served"), ("failed", "run"), ("forked", "run"),
    } <= above  # fmt: skip
    orphans = [s["name"] for s in spans.values() if s["parent_id"] and s["parent_id"] not in spans]
    assert orphans == ["served"]  # its caller's is elsewhere


def test_spans_by_otlp_too_where_asked_for(server, tmp_path):
    """``join,otlp`` sends by OTLP what the provider gets, so that both backends have it."""
    ended = run(server, tmp_path, "both", OTEL_MLPERF_PROVIDER="join,otlp")
    times = Counter(span["span_id"] for span in server.spans())
    named = {span["span_id"]: span["name"] for span in server.spans()}
    assert {named[span] for span, count in times.items() if count == 1} == {*THEIRS, "in_dropped"}
    assert ended.accounts()["spans"].keys() == {"store", "provider", "otlp"}


def test_provider_set_late_and_no_end_of_the_run(server, tmp_path):
    """Spans wait for the provider, and the run ends before it is shut down at exit."""
    ended = run(server, tmp_path, "late")
    assert ended.code == 0
    assert {"before", "run"} <= {*json.loads(ended.output)}
    provider = ended.accounts()["spans"]["provider"]
    assert adds_up(provider)
    assert (provider["lost"], provider["pending"]) == ({}, 0)


def test_killed_program_loses_nothing_uncounted(server, tmp_path):
    """What its provider can no longer get is in the run folder, and lost for the provider."""
    ended = run(server, tmp_path, "kill")
    assert ended.code == -9
    accounts = ended.accounts()["spans"]
    assert adds_up(accounts["provider"])
    assert accounts["provider"]["lost"].keys() == {"process_ended"}
    assert accounts["provider"]["pending"] == 0
    assert accounts["store"]["lost"] == {}


def test_each_rank_has_its_own_provider(server, tmp_path):
    """One agent serves all ranks of a node, and each process gets what it has recorded itself."""
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "OTEL_MLPERF_RUN_ID": "joined"}
    command = [sys.executable, str(PROGRAMS / PROGRAM)]
    ranks = [
        warm_python.Popen(
            command,
            env=environment(tmp_path, RANK=str(rank), WORLD_SIZE="2", **settings),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    with ending(ranks):
        got = [json.loads(rank.communicate(timeout=LIMIT_S)[0])["memory"] for rank in ranks]
    ended = Ended(0, "", "", tmp_path, tmp_path / "count").settled()

    sql = "SELECT span_id FROM spans WHERE rank = {} AND name != 'in_dropped'"
    for rank, spans in enumerate(got):
        mine = {span for _, span, _, name in spans if name not in THEIRS}
        assert mine == {row["span_id"] for row in ended.rows(sql.format(rank))}
        assert len(mine) > 10


@pytest.mark.slow
def test_killed_agents_leave_every_span_once(server, tmp_path):
    """The next agent sends again what was under way, and the program knows what it has taken."""
    settings = {"OTEL_MLPERF_TRACE_EVERY": "1", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url}
    with Running(tmp_path / "runs", "on", program=PROGRAM, **settings, **endpoint) as one:
        kill_two_agents(one.runs, lambda _: len(server.spans()))
        ended = one.end().settled()

    times = Counter(span["span_id"] for span in server.spans())
    assert set(times.values()) == {1}
    assert times.keys() == {row["span_id"] for row in ended.rows("SELECT span_id FROM spans")}
    provider = ended.accounts()["spans"]["provider"]
    assert adds_up(provider)
    assert (provider["delivered"], provider["pending"]) == (len(times), 0)


def comparable(span):
    """The fields of a span that must be equal."""
    links = [(trace, flags & REMOTE, about) for trace, flags, about in span["link_fields"]]
    return {key: span[key] for key in SAME} | {"links": links, "flags": span["flags"] & REMOTE}


def replayed(folder):
    """What ``otel-mlperf export --otlp`` would send."""
    found = read_run(folder)
    spans = [span for _, body in requests(found, Store(found.path)) for span in plain_spans(body)]
    return json.loads(json.dumps(spans))
