"""OTLP's shared messages are written as protobuf reads them, and foreign bytes are read safely."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_mlperf.otlp import wire

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abcé", min_size=1), inner),
    max_leaves=8,
)


def read(message: AnyValue) -> object:
    """The Python value that an ``AnyValue`` stands for."""
    kind = message.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [read(item) for item in message.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: read(pair.value) for pair in message.kvlist_value.values}
    return getattr(message, kind)


@given(VALUES)
def test_values_of_every_type_are_read_back_equal(value):
    """Whatever attribute a user gives, a receiver sees the same value of the same type."""
    found = read(AnyValue.FromString(wire.any_value(value)))

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        (2**63, "9223372036854775808"),
        pytest.param(10**5000, hex(10**5000), id="beyond decimals"),
        (object(), "object"),
        (np.int64(-3), -3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        ((1, "x"), [1, "x"]),
    ],
)
def test_values_without_a_counterpart_become_the_nearest_one(value, expected):
    """What OTLP has no type for arrives as text or a plain number, and never spoils a batch."""
    assert read(AnyValue.FromString(wire.any_value(value))) == expected


def test_nan_and_infinity_arrive():
    """Values that JSON could not carry are sent as they are."""
    assert math.isnan(AnyValue.FromString(wire.any_value(math.nan)).double_value)
    assert AnyValue.FromString(wire.any_value(-math.inf)).double_value == -math.inf


def test_a_value_nested_too_deep_is_cut():
    """A list that holds itself ends, instead of ending the agent."""
    endless: list[object] = []
    endless.append(endless)

    found = read(AnyValue.FromString(wire.any_value(endless)))

    for _ in range(16):
        (found,) = found
    assert found == "list"


def test_resource_and_scope_are_read_back():
    """The resource has its attributes, the scope its name and version, an empty key is dropped."""
    resource = Resource.FromString(wire.encode_resource({"service.name": "digits", "": 1}))
    scope = InstrumentationScope.FromString(wire.encode_scope("otel_mlperf", "0.1"))

    assert {pair.key: read(pair.value) for pair in resource.attributes} == {
        "service.name": "digits"
    }
    assert (scope.name, scope.version) == ("otel_mlperf", "0.1")


@given(st.integers(0, 300), st.text(max_size=30))
def test_an_envelope_closes_around_any_number_of_items(size, schema):
    """The lengths in front of a request are right for every size of what is inside."""
    item = wire.block(2, wire.text(5, "x" * size))
    before, after = wire.envelope(
        wire.encode_resource({"a": 1}), wire.encode_scope("s"), len(item), schema
    )

    (group,) = ExportTraceServiceRequest.FromString(before + item + after).resource_spans
    assert group.schema_url == group.scope_spans[0].schema_url == schema
    assert group.scope_spans[0].spans[0].name == "x" * size


@given(st.integers(0, 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_fields_reads_what_protobuf_wrote(count, message):
    """An answer's fields come out as a server's protobuf library put them in."""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = count
    response.partial_success.error_message = message

    ((field, kind, inner),) = wire.fields(response.SerializeToString())

    assert (field, kind) == (1, wire.BYTES)
    expected = [(1, wire.VARINT, count)] if count else []
    assert list(wire.fields(inner)) == [*expected, (2, wire.BYTES, message.encode())]


@given(st.binary(max_size=60))
def test_fields_of_any_bytes_end_in_fields_or_value_error(data):
    """Whatever a server answers, reading it ends, and fails in one way only."""
    try:
        found = list(wire.fields(data))
    except ValueError:
        return

    assert all(field > 0 for field, _, _ in found)


@pytest.mark.parametrize(
    "data",
    [b"OK", b"<html>", b"{}", b"\x1f\x8b\x08", b"\x0a\x05abc", b"\x08", b"\x08" + b"\xff" * 11],
)
def test_text_and_torn_messages_are_no_protobuf(data):
    """An answer of a proxy or a load balancer is not taken for one of a Collector."""
    with pytest.raises(ValueError, match=r"field|wire|number"):
        list(wire.fields(data))
