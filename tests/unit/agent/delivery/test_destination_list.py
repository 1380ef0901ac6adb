"""An added destination gets what was recorded, and is accounted for by name."""

from __future__ import annotations

import json
import sys
import threading

import pytest
from by_hand import accounts, adds_up

from otel_mlperf.agent.delivery.destination import Batch, Delivered, Destination, SpanItem
from otel_mlperf.agent.delivery.outbox import Outbox
from otel_mlperf.agent.delivery.sender import Sender
from otel_mlperf.agent.delivery.store_destination import span_columns_of
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.cli import main
from otel_mlperf.tables.run_tables import SpanRow

FOR_EVER_S = 900

TRACKER = '''
"""Appends what a run sends to a file of JSON lines, as a tracker of experiments would take it."""

from __future__ import annotations

import json
from pathlib import Path

from otel_mlperf.agent.delivery.destination import (
    Batch,
    Delivered,
    Destination,
    DestinationContext,
    TryLater,
    Verdict,
)


class JsonLines(Destination):
    name = "jsonlines"
    signals = ("spans", "metrics")

    def __init__(self, path: Path) -> None:
        self._path = path

    def accept(self, batch: Batch) -> Verdict:
        rows = [
            {"span": span.name, "rank": span.rank, "ms": (span.end_ns - span.start_ns) / 1e6}
            for span in batch.spans
            if span.kind == "section"
        ]
        rows += [
            {"metric": point.name, "time_ns": point.time_ns, "value": point.value}
            for point in batch.points
        ]
        try:
            with self._path.open("a") as file:
                file.writelines(json.dumps(row | {"batch": batch.number}) + "\\n" for row in rows)
        except OSError as error:
            return TryLater(f"appending to {self._path}: {error}", after_s=5.0)
        return Delivered()


def make(site: DestinationContext) -> JsonLines | None:
    path = site.options.environ.get("JSONLINES_FILE")
    return JsonLines(Path(path)) if path else None
'''

STRANGE = '''
"""Destinations that do what they should not."""

from otel_mlperf.agent.delivery.destination import Delivered, Destination, Refused, TryLater


class Refusing(Destination):
    name, signals = "refusing", ("spans",)

    def accept(self, batch):
        return Refused("quota")


class Raising(Destination):
    name, signals = "raising", ("spans",)

    def accept(self, batch):
        raise RuntimeError("no such project")


class Wordy(Destination):
    name, signals = "wordy", ("metrics",)

    def accept(self, batch):
        return Delivered({"too many labels, of all things": 1, "old": 10**9})


class Hesitating(Destination):
    name, signals = "hesitating", ("spans",)
    tries = 0

    def accept(self, batch):
        self.tries += 1
        return Delivered() if self.tries > 1 else TryLater("busy", after_s=0.0)


def refusing(site):
    return Refusing()


def raising(site):
    return Raising()


def wordy(site):
    return Wordy()


def hesitating(site):
    return Hesitating()


def failing(site):
    raise LookupError("no key")
'''


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tracker_gets_spans_and_points_and_is_accounted_for(
    program, agent_of, run_folder, install, tmp_path, monkeypatch, capsys
) -> None:
    """An installed package's destination has every kept section once, and an account of its own."""
    install("json_lines", TRACKER, jsonlines="make")
    file = tmp_path / "tracker.jsonl"
    for i in range(250):
        program.step(i * 10)
    program.stop(2600)
    agent_of(program, environ={"JSONLINES_FILE": str(file)}).run()

    rows = lines_of(file)
    spans = [row["span"] for row in rows if "span" in row]
    assert sorted(set(spans)) == ["data.load", "forward", "run", "train.step"]
    assert {row["ms"] for row in rows if row.get("span") == "train.step"} == {10.0}
    points = [row for row in rows if "metric" in row]
    assert max(p["value"] for p in points if p["metric"] == "ml.training.steps") == 250
    (run_folder / "run.json").write_text(
        json.dumps({"id": "0123abcd", "name": "digits", "started_ns": 1})
    )
    monkeypatch.setattr(sys, "argv", ["otel-mlperf", "doctor", str(run_folder), "--json"])
    with pytest.raises(SystemExit):
        main()
    accounting = json.loads(capsys.readouterr().out)["accounting"]
    mine, store = accounting["spans"]["jsonlines"], accounting["spans"]["store"]
    assert (mine["created"], mine["delivered"]) == (program.sections, len(spans))
    assert mine["delivered"] == store["delivered"]
    assert accounting["metrics"]["jsonlines"]["delivered"] == len(points)
    assert all(adds_up(accounting[signal]["jsonlines"]) for signal in ("spans", "metrics"))


def test_destination_that_nobody_asked_for_is_none(program, agent_of, run_folder, install) -> None:
    """That a package is installed is no wish to send to it."""
    install("json_lines", TRACKER, jsonlines="make")
    program.step(0)
    program.stop(20)
    agent_of(program).run()

    assert set(accounts(run_folder)["spans"]) == {"store"}
    assert "metrics" not in accounts(run_folder)


def test_destination_that_refuses_or_raises_costs_no_other(
    program, agent_of, run_folder, install, caplog
) -> None:
    """Each has its losses under its name and a reason; the agent goes on, and the store has all."""
    install(
        "strange", STRANGE,
        refusing="refusing", raising="raising",
        wordy="wordy", hesitating="hesitating", failing="failing", missing="nothing_there",
    )  # fmt: skip
    program.step(0)
    program.stop(20)
    agent_of(program).run()

    spans, metrics = accounts(run_folder)["spans"], accounts(run_folder)["metrics"]
    assert spans["store"]["delivered"] == program.sections == 4
    assert spans["refusing"]["lost"] == {"quota": 4}
    assert spans["raising"]["lost"] == {"internal": 4}
    assert spans["hesitating"]["delivered"] == 4
    assert spans["failing"]["lost"] == spans["missing"]["lost"] == {"not_loaded": 4}
    assert metrics["wordy"]["lost"].keys() == {"refused", "old"}
    for destinations in (spans, metrics):
        assert all(adds_up(account) for account in destinations.values())
    for words in ("no such project", "no key", "nothing_there", "quota"):
        assert words in caplog.text


def test_agent_that_dies_leaves_every_account_adding_up(
    program, agent_of, run_folder, install, tmp_path
) -> None:
    """The next agent makes the same batches of the log; what was taken is not offered again."""
    install("json_lines", TRACKER, jsonlines="make")
    file = tmp_path / "tracker.jsonl"
    environ = {"JSONLINES_FILE": str(file)}
    for i in range(3):
        program.step(i * 10)
    first = agent_of(program, environ=environ)
    first.tick()
    first.mark()
    assert first._sender.drain(FOR_EVER_S)
    first._sender.stop()
    for thread in threading.enumerate():
        if "jsonlines" in thread.name:
            thread.join()
    before = lines_of(file)
    del first
    for i in range(3, 6):
        program.step(i * 10)
    program.stop(80)
    agent_of(program, environ=environ).run()

    steps = [row for row in lines_of(file) if row.get("span") == "train.step"]
    assert len([row for row in before if row.get("span") == "train.step"]) == 3
    assert len(steps) == 5  # of six: the first five are kept
    found = accounts(run_folder)
    assert found["spans"]["jsonlines"]["created"] == program.sections
    assert found["spans"]["jsonlines"]["delivered"] == found["spans"]["store"]["delivered"]
    assert all(adds_up(found[signal]["jsonlines"]) for signal in ("spans", "metrics"))


@pytest.mark.fault("F02")
def test_tracker_that_is_away_waits_without_costing_the_rest(tmp_path) -> None:
    """Over the outbox's limit the destination that holds most gives up its oldest."""
    outbox = Outbox(tmp_path, 250)
    outbox.add(1, "spans/otlp", 1, bytes(50))
    for number in (2, 3, 4):
        outbox.add(number, "spans/away", 1, bytes(90))

    assert [(o.account, o.number) for o in outbox.news()] == [("spans/away", 2)]
    assert outbox.next("spans/otlp").number == 1


def test_large_marks_come_in_several_batches(
    program, agent_of, run_folder, install, tmp_path
) -> None:
    """No batch is larger than two thousand spans; roll-ups and late rows are no items of it."""
    install("json_lines", TRACKER, jsonlines="make")
    file = tmp_path / "tracker.jsonl"
    for i in range(1000):
        program.step(i * 10)
    program.stop(10_100)
    agent_of(program, policy=Policy(trace_every=1), environ={"JSONLINES_FILE": str(file)}).run()

    sizes: dict[int, int] = {}
    for row in lines_of(file):
        if "span" in row:
            sizes[row["batch"]] = sizes.get(row["batch"], 0) + 1
    assert max(sizes.values()) <= 2000
    assert len(sizes) > 1
    assert sum(sizes.values()) == accounts(run_folder)["spans"]["jsonlines"]["delivered"] == 3001


def test_fields_of_a_span_are_the_columns_of_its_table() -> None:
    """The run folder writes a batch's spans as they are; marks have a table of their own."""
    fields = [name for name in SpanItem.__struct_fields__ if not name.startswith("marks")]
    assert fields == [*SpanRow.__struct_fields__]
    assert set(span_columns_of([])) == set(fields)


def test_sender_without_destinations_has_nothing_to_wait_for(tmp_path) -> None:
    """The run folder is offered its batches by the agent itself."""

    class Local(Destination):
        name, signals, buffered_in_wal = "store", ("spans",), True

        def accept(self, batch: Batch) -> Delivered:
            raise AssertionError(batch)

    outbox = Outbox(tmp_path, 250)
    outbox.add(1, "spans/store", 1, b"x")
    sender = Sender(outbox, [Local()])
    sender.start()
    assert sender.drain(0)
