"""Which series of an instrument do some labels mean?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from otel_mlperf import names
from otel_mlperf.journal.layout import MOST_LABEL_SETS
from otel_mlperf.recorder.core.attribute_values import MOST, NAME_BYTES, safe_name_text, safe_value
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.core.scrub import clean
from otel_mlperf.recorder.instruments.cells import OVERFLOW, Labels

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S")
_TOO_MANY = "more than {} label sets of {}: later ones are added up in one labelled {}=true"


class LabelSets(Generic[S]):
    """The series of one instrument.

    Args:
        name: the instrument's, for people.
        plain: its series without labels.
        make: makes the series of a label set.
    """

    def __init__(self, name: str, plain: S, make: Callable[[Labels], S]) -> None:
        self._name, self._plain, self._make = name, plain, make
        self._series: dict[Labels, S] = {(): plain}
        self._known: dict[tuple[Any, ...], S] = {}
        """Series by labels as they are given, where all are text: 1 and True are equal."""

    def find(self, labels: Mapping[str, Any], more: Any = None) -> S:
        """The series with these labels, and those of ``more``, as OpenTelemetry's; never raises."""
        if more is not None:
            labels = self._joined(labels, more)
        try:
            return self._known[tuple(labels.items())]
        except (KeyError, TypeError):
            pass  # not known yet, or a list
        try:
            return self._find(labels)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return self._plain

    def _joined(self, labels: Mapping[str, Any], more: Any) -> Mapping[str, Any]:
        try:
            if isinstance(more, Mapping):
                return {**more, **labels}
            say_once(f"{self._name}: labels are given by name, lang='de'; {more!r:.40} is none")
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
        return labels

    def _find(self, labels: Mapping[str, Any]) -> S:
        exact = {
            safe_name_text(key): _text(value) for key, value in labels.items() if value is not None
        }
        series = self._of(tuple(sorted(exact.items())[:MOST]))
        is_text = all(value.__class__ is str for value in labels.values())
        if is_text and len(self._known) < 2 * MOST_LABEL_SETS:
            self._known[tuple(labels.items())] = series
        return series

    def _of(self, labels: Labels) -> S:
        series = self._series.get(labels)
        if series is not None:
            return series
        if len(self._series) > MOST_LABEL_SETS:
            say_once(_TOO_MANY.format(MOST_LABEL_SETS, self._name, names.OVERFLOW))
            labels = OVERFLOW
        return self._series.setdefault(labels, self._make(labels))


def _text(value: Any) -> str:
    found = safe_value(value)
    return clean(str(found).lower() if isinstance(found, bool) else str(found), NAME_BYTES)
