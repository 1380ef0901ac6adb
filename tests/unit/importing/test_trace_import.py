"""The value of ``--budget`` is parsed, or refused with a suggestion."""

from __future__ import annotations

import pytest

from otel_mlperf.errors import UsageError
from otel_mlperf.importing.trace_import import parse_budget
from otel_mlperf.kineto.spans.budget import Budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("", None),
        ("none", Budget(spans=None)),
        ("500", Budget(spans=500)),
        ("2MiB", Budget(spans=None, bytes=2 << 20)),
        ("64 kB", Budget(spans=None, bytes=64_000)),
    ],
)
def test_budgets_are_understood(text, budget):
    """A number of spans, a size, or none."""
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["-1", "0", "many", "5 apples", "2.5MiB", "0MiB"])
def test_other_budgets_are_refused(text):
    """What cannot be meant ends with what can."""
    with pytest.raises(
        UsageError, match="expected a number of spans, a size such as 2MiB, or none"
    ):
        parse_budget(text)
