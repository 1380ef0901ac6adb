"""The subject of a call is read only if the function has its parameters."""

from __future__ import annotations

from otel_mlperf.pytorch.loop.watched_calls import WatchedCall


def test_subject_of_other_parameters_is_left_out():
    """A version of a library that calls its parameters otherwise is asked nothing."""

    def load(path, *, mmap=None): ...

    for subject, expected in (
        ("None if mmap else path", "None if mmap else path"),
        ("None if mmap else f", "None"),
        ("(path, mmap)", "(path, mmap)"),
    ):
        assert WatchedCall("load", "load", subject).subject_in(load) == expected
