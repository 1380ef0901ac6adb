"""Samplers decide as the SDK's do about each trace."""

from __future__ import annotations

import random

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import sampling
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_mlperf.settings.trace_sampler import SAMPLERS, make_sampler

RATIOS = (0.0, 1e-19, 0.1, 1 / 3, 0.5, 0.999, 1.0)


@pytest.mark.parametrize("caller_flags", [None, 0, 1])
@pytest.mark.parametrize("name", SAMPLERS)
def test_decision_is_that_of_the_sdk(monkeypatch, name, caller_flags):
    """Also next to the bound of a ratio, and where a caller has decided about the trace."""
    rng, context = random.Random(name), None
    for ratio in RATIOS:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", name.upper())
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", str(ratio))
        theirs, ours = sampling._get_from_env_or_default(), make_sampler(name, ratio)
        bound = round(ratio * 2**64)
        near = [(bound + offset) % 2**64 for offset in (-1, 0, 1)]
        for low in [*near, *(rng.getrandbits(64) for _ in range(20))]:
            trace_id = rng.getrandbits(64) << 64 | low
            if caller_flags is not None:
                caller = SpanContext(
                    trace_id, 1, is_remote=True, trace_flags=TraceFlags(caller_flags)
                )
                context = trace.set_span_in_context(NonRecordingSpan(caller))
            expected = theirs.should_sample(context, trace_id, "step").decision
            assert ours.samples(trace_id, caller_flags) == expected.is_sampled(), (ratio, trace_id)


def test_nothing_is_decided_without_a_name():
    """Then the policy of traced steps alone decides, and a caller's flags are passed on."""
    assert make_sampler("", 0.1) is None
