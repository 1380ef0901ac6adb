"""Damage is distinguished by kind, with the place of the first."""

from __future__ import annotations

from otel_mlperf.kineto.reading.damage import DamageLog
from otel_mlperf.kineto.trace_events import Damage


def test_each_kind_is_counted_from_its_first_place():
    """Occurrences add up, the lowest offset is kept with its example, and order is the file's."""
    log = DamageLog()
    log.add("wrong_type", 50, "later")
    log.add("bad_escape", 40, "other")
    log.add("wrong_type", 30, "first")
    log.add("wrong_type", 90, "last", times=5)

    assert log.all() == [Damage("wrong_type", 7, 30, "first"), Damage("bad_escape", 1, 40, "other")]
    assert "wrong_type" in log
    assert "truncated" not in log


def test_examples_are_safe_to_print_anywhere():
    """Control characters, other alphabets and length of a damaged file stay out of a terminal."""
    log = DamageLog()
    log.add("bad_escape", 0, "\x1b[2J\n'é\udc80" + "x" * 10_000)

    example = log.all()[0].example
    assert example.isascii()
    assert example.isprintable()
    assert len(example) < 200
