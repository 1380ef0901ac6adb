"""The event log under damage."""

from __future__ import annotations

import resource
import signal
import struct
import zlib

import pytest

from otel_mlperf.agent.intake.write_ahead_log import Log
from otel_mlperf.agent.model.events import Polled

EVENTS = [Polled(f"j{i}", i, [], bytes([i]) * 40) for i in range(5)]


def written(tmp_path):
    log = Log(tmp_path, 1)
    for event in EVENTS:
        log.append([event])
    log.close()
    return tmp_path / "wal-00000001"


def framed(text):
    """A record as the log writes it."""
    return struct.pack("<II", len(text), zlib.crc32(text)) + text


def test_replay_returns_what_was_appended(tmp_path) -> None:
    """Events come back equal and in order, and the next append starts a new segment."""
    written(tmp_path)
    log = Log(tmp_path, 1)

    assert list(log.replay()) == EVENTS
    assert log.segment == 2


@pytest.mark.fault("F42")
@pytest.mark.parametrize(
    ("damage", "intact"),
    [
        (lambda data: data[:-1], 4),
        (lambda data: data[:-70], 3),
        (lambda data: data[:3], 0),
        (lambda data: b"", 0),
        (lambda data: data + b"\0\0\0", 5),
        (lambda data: data + bytes(64), 5),
        (lambda data: data + framed(b"\xc0"), 5),
        (lambda data: data + framed(b"\x81\xa1\xff\xa1\xff"), 5),
        (lambda data: data[:-10] + b"x" + data[-9:], 4),
        (lambda data: data[:8] + b"x" + data[9:], 0),
        (lambda data: b"\xff\xff\xff\xff" + data[4:], 0),
    ],
)
def test_damage_costs_what_follows_it_and_nothing_before(tmp_path, damage, intact) -> None:
    """A torn tail, zeros after a power cut, a flipped byte or what is no event ends the replay."""
    path = written(tmp_path)
    path.write_bytes(damage(path.read_bytes()))

    assert list(Log(tmp_path, 1).replay()) == EVENTS[:intact]


@pytest.mark.fault("F98")
def test_a_copy_of_a_segment_is_nobodys(tmp_path) -> None:
    """A file that somebody has put beside the segments is neither read nor removed."""
    copy = written(tmp_path).rename(tmp_path / "wal-00000001.bak")
    log = Log(tmp_path, 1)

    assert list(log.replay()) == []
    assert log.after_all() == 1
    log.drop_before(9)
    assert copy.exists()


def test_segments_in_front_of_a_state_are_not_replayed(tmp_path) -> None:
    """Only the segments that a state does not contain count, and the others can be removed."""
    log = Log(tmp_path, 1)
    log.append(EVENTS[:2])
    second = log.next_segment()
    log.append(EVENTS[2:])
    log.drop_before(second)
    log.close()

    assert list(Log(tmp_path, second).replay()) == EVENTS[2:]
    assert [path.name for path in tmp_path.iterdir()] == ["wal-00000002"]


@pytest.mark.fault("F40")
def test_full_disk_leaves_a_log_that_goes_on_where_it_was(tmp_path) -> None:
    """A refused record is taken back whole, no new segment appears, and later ones count."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = Log(tmp_path, 1)
    log.append(EVENTS[:1])
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, limit[1]))
        refused = [log.append(EVENTS[1:4]) for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    log.append(EVENTS[4:])
    log.close()

    assert (refused, log.failed) == ([False] * 3, 3)
    assert list(Log(tmp_path, 1).replay()) == [EVENTS[0], EVENTS[4]]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_state_may_contain_the_beginning_of_a_segment(tmp_path) -> None:
    """What is in front of it is not replayed, and no later segment takes its number."""
    log = Log(tmp_path, 1)
    log.append(EVENTS[:2])
    begin = log.end
    log.append(EVENTS[2:])
    size = log.end.at - begin.at
    log.close()

    assert log.read(begin, size) == EVENTS[2:]
    next_one = Log(tmp_path, *begin)
    assert list(next_one.replay()) == EVENTS[2:]
    (tmp_path / "wal-00000001").unlink()
    after_loss = Log(tmp_path, *begin)
    assert list(after_loss.replay()) == []
    assert next_one.segment == after_loss.segment == 2
