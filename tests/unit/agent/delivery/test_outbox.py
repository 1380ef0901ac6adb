"""The outbox across agents."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from otel_mlperf.agent.delivery.outbox import Outbox


def outbox(tmp_path, limit=1 << 20, next_number=1, pending=()):
    made = Outbox(tmp_path, limit)
    made.load(next_number, list(pending))
    return made


def test_request_waits_until_it_is_settled(tmp_path) -> None:
    """What was added is there, oldest first, with its bytes; settled it is gone and told once."""
    requests = outbox(tmp_path)
    requests.add(1, "spans/otlp", 10, b"first")
    requests.add(2, "spans/otlp", 20, b"second")
    oldest = requests.next("spans/otlp")
    body = requests.body(oldest)
    requests.settle(oldest, 9, {"rejected": 1})

    assert (oldest.number, body) == (1, b"first")
    assert requests.next("spans/otlp").number == 2
    assert [(o.number, o.delivered, o.lost) for o in requests.news()] == [(1, 9, {"rejected": 1})]
    assert requests.news() == []
    assert requests.waiting == {"spans/otlp": 20}


def test_what_nobody_has_been_told_of_still_waits(tmp_path) -> None:
    """Items settled since the last news are in no account: they count as waiting until then."""
    requests = outbox(tmp_path)
    requests.add(1, "spans/otlp", 10, b"first")
    requests.add(2, "spans/otlp", 20, b"second")

    requests.settle(requests.next("spans/otlp"), 9, {"rejected": 1})

    assert requests.waiting == {"spans/otlp": 30}
    requests.news()
    assert requests.waiting == {"spans/otlp": 20}


@pytest.mark.fault("F02")
def test_full_outbox_gives_up_the_oldest(tmp_path) -> None:
    """Over its limit the oldest request goes, its items counted as lost."""
    requests = outbox(tmp_path, limit=250)
    for number in (1, 2, 3):
        requests.add(number, "spans/otlp", number, bytes(100))

    assert [(o.number, o.lost) for o in requests.news()] == [(1, {"outbox_full": 1})]
    assert requests.next("spans/otlp").number == 2


def test_a_request_that_never_fits_costs_no_other(tmp_path) -> None:
    """One that is larger than the whole outbox is lost itself; what waits goes on waiting."""
    requests = outbox(tmp_path, limit=250)
    requests.add(1, "spans/otlp", 1, bytes(100))
    requests.add(2, "spans/otlp", 7, bytes(251))

    assert [(o.number, o.lost) for o in requests.news()] == [(2, {"outbox_full": 7})]
    assert [path.stat().st_size for path in tmp_path.glob("*.batch")] == [100]


def test_what_another_agent_made_takes_room_too(tmp_path) -> None:
    """Files for which no replay has asked yet count: the folder never holds more than its limit."""
    before = outbox(tmp_path, limit=250)
    before.add(5, "spans/otlp", 1, bytes(200))
    after = outbox(tmp_path, limit=250, next_number=5)

    after.add(6, "spans/otlp", 3, bytes(100))

    assert [(o.number, o.lost) for o in after.news()] == [(6, {"outbox_full": 3})]
    assert sum(path.stat().st_size for path in tmp_path.glob("*.batch")) <= 250


@pytest.mark.fault("F42", "F98")
def test_damage_keeps_no_agent_from_starting(tmp_path, caplog) -> None:
    """Garbled lines of the log and files of others are left out with a word; the rest holds."""
    before = outbox(tmp_path)
    before.add(1, "spans/otlp", 5, b"settled")
    before.settle(before.next("spans/otlp"), 5, {})
    before.add(2, "spans/otlp", 6, b"waits")
    with (tmp_path / "outcomes.log").open("ab") as log:
        log.write(b"\n12x spans 1 1 - .\n\xff\xfe\xba 1\n3 spans/otlp 1 1 a=b .")
    (tmp_path / "note.batch").write_text("x")
    after = outbox(tmp_path, next_number=3, pending=[2])

    assert after.add(1, "spans/otlp", 5, b"settled").delivered == 5
    assert after.body(after.next("spans/otlp")) == b"waits"
    assert (tmp_path / "note.batch").exists()
    assert "3 damaged lines are ignored" in caplog.text
    assert "note.batch is not a stored request" in caplog.text


def test_next_agent_sends_what_waited(tmp_path) -> None:
    """Requests of before the last state are taken up; later ones are made again by the replay."""
    before = outbox(tmp_path)
    before.add(1, "spans/otlp", 5, b"kept")
    before.add(2, "spans/otlp", 6, b"made again")
    after = outbox(tmp_path, next_number=2, pending=[1])

    assert after.next("spans/otlp").number == 1
    assert after.waiting == {"spans/otlp": 5}


@pytest.mark.fault("F10")
def test_replayed_request_that_was_delivered_is_not_sent_again(tmp_path) -> None:
    """The same number with the same bytes has the outcome that it had; other bytes are sent."""
    before = outbox(tmp_path)
    before.add(1, "spans/otlp", 5, b"same")
    before.settle(before.next("spans/otlp"), 5, {})
    after = outbox(tmp_path)

    assert after.add(1, "spans/otlp", 5, b"same").delivered == 5
    assert after.next("spans/otlp") is None
    assert after.add(1, "spans/otlp", 5, b"other") is None
    assert after.next("spans/otlp").number == 1


def test_points_that_were_made_are_sent_as_they_were(tmp_path) -> None:
    """What an agent counts of itself differs in a replay: two values of one time must not be."""
    before = outbox(tmp_path)
    before.add(1, "metrics/otlp", 5, b"settled")
    before.settle(before.next("metrics/otlp"), 5, {})
    before.add(2, "metrics/otlp", 5, b"perhaps sent")
    before.add(3, "metrics/otlp", 5, b"of other points")
    after = outbox(tmp_path)

    assert after.add(1, "metrics/otlp", 5, b"settled?").delivered == 5
    assert after.add(2, "metrics/otlp", 5, b"perhaps not!") is None
    assert after.add(3, "metrics/otlp", 6, b"of more points") is None
    bodies = []
    while (request := after.next("metrics/otlp")) is not None:
        bodies.append(after.body(request))
        after.settle(request, request.items, {})
    assert bodies == [b"perhaps sent", b"of more points"]
    assert list(tmp_path.glob("*.batch")) == []


def test_what_no_replay_asks_for_is_not_kept(tmp_path) -> None:
    """The next state is without it: its file goes."""
    outbox(tmp_path).add(1, "metrics/otlp", 5, b"made before a crash")
    after = outbox(tmp_path)
    after.forget()

    assert after.next("metrics/otlp") is None
    assert list(tmp_path.glob("*.batch")) == []


def test_outcome_that_a_state_contains_is_not_told_again(tmp_path) -> None:
    """Only outcomes of requests that the state still calls pending are news to the next agent."""
    before = outbox(tmp_path)
    for number in (1, 2):
        before.add(number, "metrics/otlp", number, b"x")
        before.settle(before.next("metrics/otlp"), number, {})
    after = outbox(tmp_path, next_number=3, pending=[2])

    assert [o.number for o in after.news()] == [2]


@pytest.mark.fault("F42")
def test_line_cut_short_by_a_crash_is_passed_over(tmp_path) -> None:
    """A torn last line of the log costs that outcome alone: its request is sent again."""
    before = outbox(tmp_path)
    for number in (1, 2):
        before.add(number, "spans/otlp", 1, b"x")
        before.settle(before.next("spans/otlp"), 1, {})
    log = tmp_path / "outcomes.log"
    log.write_text(log.read_text()[:-4])
    after = outbox(tmp_path)

    assert after.add(1, "spans/otlp", 1, b"x") is not None
    assert after.add(2, "spans/otlp", 1, b"x") is None


@pytest.mark.fault("F40")
def test_full_disk_costs_the_log_and_nothing_else(tmp_path) -> None:
    """Where the log cannot be written, outcomes are told all the same, and files removed."""
    requests = outbox(tmp_path, limit=250)
    (tmp_path / "outcomes.log").symlink_to("/dev/full")
    for number in (1, 2, 3):
        requests.add(number, "spans/otlp", number, bytes(100))
    requests.settle(requests.next("spans/otlp"), 2, {})

    assert [(o.number, o.delivered, o.lost) for o in requests.news()] == [
        (1, 0, {"outbox_full": 1}),
        (2, 2, {}),
    ]
    assert [path.name[:10] for path in tmp_path.glob("*.batch")] == ["0000000003"]


@pytest.mark.fault("F42")
def test_torn_line_does_not_run_into_the_next(tmp_path) -> None:
    """What a full disk cut short is passed over; the outcome after it is read as it was."""
    before = outbox(tmp_path)
    before.add(11, "spans/otlp", 1, b"x")
    (tmp_path / "outcomes.log").write_text("1")
    before.settle(before.next("spans/otlp"), 1, {})
    after = outbox(tmp_path)

    assert after.add(11, "spans/otlp", 1, b"x") is not None


@pytest.mark.fault("F40")
def test_request_that_the_disk_refused_leaves_nothing(tmp_path) -> None:
    """It is lost and counted, and no half of it stays."""
    requests = outbox(tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
        requests.add(1, "spans/otlp", 5, bytes(200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)

    assert [o.lost for o in requests.news()] == [{"outbox_io": 5}]
    assert [path.name for path in tmp_path.iterdir()] == ["outcomes.log"]


def test_log_that_is_no_file_of_ours_keeps_no_agent_from_starting(tmp_path, caplog) -> None:
    """A pipe would be waited for, and a file with a hole of terabytes would not fit memory."""
    log = tmp_path / "outcomes.log"
    os.mkfifo(log)
    outbox(tmp_path)
    log.unlink()
    with log.open("wb") as file:
        file.truncate(1 << 40)
    outbox(tmp_path)

    assert caplog.text.count("the file is ignored") == 2
