"""Any value becomes an attribute that every backend can store, and no other."""

from __future__ import annotations

import enum
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import otel_mlperf as om
from otel_mlperf.recorder.core.attribute_values import MAX_ATTRIBUTES, safe_attributes, safe_value


class Color(enum.Enum):
    """Some enumeration."""

    RED = "red"


class Hostile:
    """Everything that can be asked of it raises."""

    def __len__(self):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __repr__

    @property
    def shape(self):
        raise RuntimeError("no")


@pytest.mark.fault("F52", "S11")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (3, 3),
        (2**63, str(2**63)),
        (-(2**63), -(2**63)),
        (0.5, 0.5),
        (math.inf, math.inf),
        ("text", "text"),
        ("a\ud800b\0", "a?b\ufffd"),
        (b"raw\xff", {"base64": "cmF3/w=="}),
        (Path("/a/b"), "/a/b"),
        (Color.RED, "red"),
        ([1, 2], [1, 2]),
        ((1, 2.5), [1.0, 2.5]),
        (["a", None, "b"], ["a", "b"]),
        ([1, "a"], ["1", "a"]),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.zeros((2, 3)), "ndarray(float64, [2, 3])"),
        (torch.zeros(2, 3), "Tensor(float32, [2, 3])"),
        (torch.zeros(2, device="meta"), "Tensor(float32, [2])"),
        (torch.nn.Linear(1, 1), "<Linear>"),
        ({"a": 1}, "<dict>"),
        (Hostile(), "<Hostile>"),
        (1 << 100_000, hex(1 << 100_000)[:4096]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values(value, expected):
    """Each kind of value has its form; tensors are never read."""
    assert safe_value(value) == expected


@pytest.mark.fault("F52", "S12")
def test_limits():
    """Names, texts, lists and their number are cut to limits."""
    found = safe_attributes({"k" * 1000: "x" * 5_000_000} | {f"k{i}": i for i in range(200)})

    assert len(found) == MAX_ATTRIBUTES
    assert len(next(iter(found))) == 256
    assert len(next(iter(found.values()))) == 4096
    assert len(safe_value(list(range(10_000)))) == 128


@pytest.mark.fault("F52", "S12")
def test_long_lists_are_not_copied():
    """Of a list without end only the beginning is looked at."""
    assert safe_value(range(1 << 60)) == list(range(128))
    assert safe_value([range(1 << 60)])[0].startswith("[0, 1, 2, ")


def test_none_is_left_out():
    """A value of None means no attribute."""
    assert safe_attributes({"a": None, "b": 1}) == {"b": 1}


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.characters(codec=None, categories=["Cs"]) | st.builds(Hostile) | st.builds(object),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)  # fmt: skip


@pytest.mark.fault("F52")
@given(st.dictionaries(st.text() | st.integers() | st.none(), _anything, max_size=80))
def test_anything_can_be_stored(attributes):
    """Whatever is given, the result can be encoded and stays within the limits."""
    found = safe_attributes(attributes)

    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(found))
    assert len(decoded) <= MAX_ATTRIBUTES
    assert all(0 < len(key.encode()) <= 256 for key in decoded)


@pytest.mark.fault("F52")
def test_one_poisoned_section_hurts_no_other(recording):
    """Among 512 sections one with hostile attributes: all 512 arrive."""
    for i in range(512):
        value = Hostile() if i == 100 else "\ud800" if i == 200 else i
        with om.span("work", value=value):
            pass

    rows = recording.sections("work")
    assert len(rows) == 512
    assert rows[100].attributes == {"value": "<Hostile>"}
    assert rows[511].attributes == {"value": 511}


def test_values_are_taken_at_the_call(recording):
    """A list that changes later is recorded as it was."""
    shape = [1, 2]
    with om.span("work", shape=shape):
        shape.append(3)

    assert recording.one("work").attributes == {"shape": [1, 2]}


@pytest.mark.fault("F52")
def test_list_that_holds_itself():
    """A list without an end becomes a short one."""
    loop = [1]
    loop += [loop] * 200

    found = safe_value(loop)
    assert found[0] == "1"
    assert found[1].startswith("[1, '<list>', ")
    assert len(found) <= 128
