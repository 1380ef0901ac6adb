"""Vectorized conversion of NumPy columns to Arrow columns, without a Python object per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def hex_text(data: NDArray[np.uint8]) -> pa.Array:
    """Convert an array of bytes, of shape (rows, width), to one hexadecimal text per row."""
    rows, width = data.shape
    text = np.empty((rows, 2 * width), np.uint8)
    text[:, 0::2] = _DIGITS[data >> 4]
    text[:, 1::2] = _DIGITS[data & 15]
    return _fixed_text(text)


def span_hex(ids: NDArray[np.uint64]) -> pa.Array:
    """Convert span ids to the hexadecimal text that servers use; 0 (no span) becomes empty text."""
    text = hex_text(ids.astype(">u8").view(np.uint8).reshape(-1, 8))
    return text if ids.all() else pc.if_else(pa.array(ids != 0), text, "")


def words(known: Sequence[str], index: NDArray[np.integer[Any]]) -> pa.Array:
    """Return a text column: in each row, the element of ``known`` at the row's ``index``."""
    return pa.array(known, pa.string()).take(_integers(index))


def known(values: Sequence[int | None], index: NDArray[np.integer[Any]]) -> pa.Array:
    """Return a number column: in each row, the element of ``values`` at the row's ``index``.

    None becomes null.
    """
    return pa.array(values, pa.int64()).take(_integers(index))


def where(is_known: NDArray[np.bool_], values: NDArray[np.int64]) -> pa.Array:
    """Return ``values`` as a number column with nulls in the rows where ``is_known`` is False."""
    return pc.if_else(pa.array(is_known), _integers(values), pa.scalar(None, pa.int64()))


def same(word: str, rows: int) -> pa.Array:
    """Return a text column with ``word`` in each of ``rows`` rows."""
    return words([word], np.zeros(rows, np.int64))


def json_text(numbers: Mapping[str, NDArray[np.int64]], before: pa.Array) -> pa.Array:
    """Return a column of JSON objects: in each row the text ``before``, then ``numbers`` by key.

    ``before`` contains at least one member per row, without braces.
    """
    parts: list[Any] = ["{", before]
    for key, column in numbers.items():
        parts += [f', "{key}": ', _integers(column).cast(pa.string())]
    return pc.binary_join_element_wise(*parts, "}", "")


def _integers(column: NDArray[np.integer[Any]]) -> pa.Array:
    plain = np.ascontiguousarray(column, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(plain), [None, pa.py_buffer(plain)])


def _fixed_text(text: NDArray[np.uint8]) -> pa.Array:
    rows, width = text.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))]
    )
