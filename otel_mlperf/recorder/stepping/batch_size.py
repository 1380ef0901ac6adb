"""Counts of samples, tokens and elements in a batch, derived from its shape alone."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Literal

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core.faults import internal_error

_DEPTH = 4
_MAX_PARTS = 8
# Tuples, because evaluating a union (``int | float``) at each check costs 0.2 µs.
_CONTAINERS = (list, tuple, Mapping)
_NUMBERS = (int, float)
_shape = operator.attrgetter("shape")


def count_samples(batch: Any, samples: Literal["auto"] | int | Callable[[Any], int]) -> int | None:
    """Return the number of samples in a batch; None if the number is unknown.

    Args:
        batch: the batch.
        samples: the number, a function that returns it, or ``auto``: the size of the first
            dimension of the first tensor.
    """
    if samples == "auto":
        try:
            shape = getattr(next(iter(_plain_parts(batch)), None), "shape", None)
            return int(shape[0]) if shape else _leading(batch, _DEPTH)
        except Exception as error:  # noqa: BLE001 - shapes of foreign objects
            raise_foreign(error)
            return None
    return count_tokens(batch, samples)


def count_tokens(batch: Any, amount: Literal["auto"] | int | Callable[[Any], int]) -> int | None:
    """Return the number of tokens in a batch; None if it is unknown.

    Args:
        batch: the batch.
        amount: the number, a function that returns it, or ``auto``: the number of elements of the
            matrix ``input_ids`` in the batch.
    """
    try:
        if amount == "auto":
            return _places(batch)
        count = amount(batch) if callable(amount) else amount
        return int(count) if isinstance(count, _NUMBERS) else None
    except Exception as error:  # noqa: BLE001 - the program's function
        internal_error(error)
        return None


def count_elements(batch: Any) -> int | None:
    """Return the number of elements of the largest tensor or list of numbers in a batch.

    The largest one is used because inputs and labels have no fixed order. Padding is included. The
    result is None if the batch contains neither.
    """
    try:
        parts = _plain_parts(batch)
        if 0 < len(parts) <= _MAX_PARTS:
            try:
                return int(max(map(math.prod, map(_shape, parts))))
            except (AttributeError, TypeError) as error:  # a part that is no tensor
                raise_foreign(error)
        return _largest(batch, _DEPTH)
    except Exception as error:  # noqa: BLE001 - shapes of foreign objects
        raise_foreign(error)
        return None


def _plain_parts(batch: Any) -> Collection[Any]:
    """Return the parts of a dictionary, tuple or list; empty for any other object.

    Most batches are such a container of tensors, and are counted without recursion.
    """
    kind = batch.__class__
    if kind is dict:
        parts: Collection[Any] = batch.values()
        return parts
    return batch if kind is tuple or kind is list else ()


def _largest(batch: Any, depth: int) -> int | None:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(math.prod(shape))
    if depth == 0 or not isinstance(batch, _CONTAINERS) or not batch:
        return None
    parts = list(islice(batch.values(), _MAX_PARTS)) if isinstance(batch, Mapping) else batch
    if isinstance(parts[0], _NUMBERS):
        return len(batch)
    largest = None
    for part in parts[:_MAX_PARTS]:
        size = _largest(part, depth - 1)
        if size is not None and (largest is None or size > largest):
            largest = size
    return largest


def _places(batch: Any) -> int | None:
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        return None
    shape: Any = getattr(batch["input_ids"], "shape", ())
    return int(shape[0]) * int(shape[1]) if len(shape) == 2 else None


def _leading(batch: Any, depth: int) -> int | None:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if depth == 0 or not isinstance(batch, _CONTAINERS):
        return None
    if isinstance(batch, Mapping):
        sizes = (_leading(value, depth - 1) for value in batch.values())
        return next((size for size in sizes if size is not None), None)
    # The size of the first tensor, as in (inputs, labels). Without tensors, a list contains
    # samples, and the size of a tuple is unknown: it may contain the parts of one sample.
    if batch and (size := _leading(batch[0], depth - 1)) is not None:
        return size
    return len(batch) if isinstance(batch, list) else None
