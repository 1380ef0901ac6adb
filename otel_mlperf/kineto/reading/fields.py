"""Top-level fields of a trace before and after its list of events, including the rank."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf.kineto.reading.repair import is_cut, parse_value

if TYPE_CHECKING:
    from otel_mlperf.kineto.reading.blocks import TraceText
    from otel_mlperf.kineto.reading.damage import DamageLog

LONGEST_FIELD: Final = 8 << 20
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_BLANK: Final = re.compile(rb"[\s,]*")
_KEY: Final = re.compile(rb'("(?:[^"\\]|\\.)*")\s*:\s*(?=\S)')
_LONGEST_KEY: Final = 1 << 12
_WANTED: Final = re.compile(
    rb'"(?:traceEvents"\s*:\s*\[|(?:baseTimeNanoseconds|distributedInfo|deviceProperties'
    rb'|schemaVersion|displayTimeUnit|traceName|trace_id|rank|world_size)"\s*:)'
)
_OVERLAP: Final = 64


class Fields:
    """Reader of the fields of the file's outermost object, before and after the list of events."""

    def __init__(self, text: TraceText, damage: DamageLog) -> None:
        self._text = text
        self._damage = damage
        self._is_lost = False
        """Whether damage was followed by no relevant field up to the end of the file."""
        self.values: dict[str, Any] = {}
        self.is_bare = False
        """Whether the file is a list of events without an outermost object."""

    def open(self) -> bool:
        """Skip to the first event; return False if there is no list of events.

        The caller must have read the first block of text.
        """
        text = self._text
        if text.data.startswith(BYTE_ORDER_MARK):
            self._damage.add("byte_order_mark", 0)
            text.drop(len(BYTE_ORDER_MARK))
        first = self._next()
        if first == b"[":
            self.is_bare = True
            text.drop(1)
            return True
        if first == b"{":
            text.drop(1)
            return self.find_events()
        self._damage.add("unexpected_text", text.offset, text.data[:40].decode("latin-1"))
        return self._find_wanted() and self.find_events()

    def find_events(self) -> bool:
        """Read fields up to the next list of events; return False if no list follows."""
        while first := self._next():
            if first == b"}" or self.is_bare:
                self._close(first)
                return False
            if first == b'"':
                is_events = self._read_field()
                if is_events:
                    return True
            else:
                self._lose("unexpected_text")
        # The format does not require an end of a bare list, and lost text may contain the end.
        is_known = self.is_bare or self._is_lost or "truncated" in self._damage
        if not is_known:
            self._damage.add("truncated", self._text.offset, "the outermost object has no end")
        return False

    def _next(self) -> bytes:
        text = self._text
        while True:
            blank = _BLANK.match(text.data)
            text.drop(blank.end() if blank else 0)
            if text.data or not text.more():
                return text.data[:1]

    def _read_field(self) -> bool:
        """Read one field; return whether it is a list of events, of which only ``[`` is read."""
        text = self._text
        while not (key := _KEY.match(text.data)):
            if len(text.data) > _LONGEST_KEY or not text.more():
                self._lose("unreadable_field")
                return False
        if key[1] == b'"traceEvents"' and text.data[key.end() : key.end() + 1] == b"[":
            text.drop(key.end() + 1)
            return True
        while (size := self._take_value(key)) is None:
            if not self._double():
                if "truncated" not in self._damage:
                    self._damage.add("truncated", text.offset, "within a field")
                text.drop(len(text.data))
                return False
        if size:
            text.drop(size)
        else:
            self._lose("unreadable_field")
        return False

    def _take_value(self, key: re.Match[bytes]) -> int | None:
        """Store a field's value; return the field's size, 0 if unreadable, None if incomplete."""
        data = self._text.data
        text = data[key.end() :].decode("utf-8", "surrogateescape")
        try:
            name = str(json.loads(key[1]))
            parsed = parse_value(text, floats=float, strict=False)
        except json.JSONDecodeError as error:
            return None if is_cut(error, text) and 2 * len(data) <= LONGEST_FIELD else 0
        except (RecursionError, UnicodeDecodeError):
            return 0
        if parsed.end == len(text) and not self._text.ended:
            return None
        self.values[name] = parsed.value
        return key.end() + len(text[: parsed.end].encode("utf-8", "surrogateescape"))

    def _double(self) -> bool:
        wanted = 2 * len(self._text.data)
        while len(self._text.data) < wanted:
            if not self._text.more():
                return len(self._text.data) > wanted // 2
        return True

    def _lose(self, kind: str) -> None:
        text = self._text
        self._damage.add(kind, text.offset, text.data[:80].decode("latin-1"))
        text.drop(1)
        self._is_lost = not self._find_wanted()

    def _find_wanted(self) -> bool:
        text = self._text
        while not (wanted := _WANTED.search(text.data)):
            text.drop(max(0, len(text.data) - _OVERLAP))
            if not text.more():
                text.drop(len(text.data))
                return False
        text.drop(wanted.start())
        return True

    def _close(self, first: bytes) -> None:
        text = self._text
        if first == b"}":
            text.drop(1)
            first = self._next()
        if first:
            self._damage.add("trailing_bytes", text.offset, text.data[:40].decode("latin-1"))
            while text.more():
                text.drop(len(text.data))


class Distributed(NamedTuple):
    """Rank, world size and backend of the trace's distributed job (None or empty: not known)."""

    rank: int | None
    world_size: int | None
    backend: str


def find_distributed(values: dict[str, Any]) -> Distributed:
    """Return the facts in ``distributedInfo`` (object or JSON text) or in top-level fields."""
    info = values.get("distributedInfo")
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            info = None
    places = [place for place in (info, values) if isinstance(place, dict)]
    backends = [place["backend"] for place in places if isinstance(place.get("backend"), str)]
    return Distributed(
        _number(places, "rank"), _number(places, "world_size"), backends[0] if backends else ""
    )


def _number(places: list[dict[str, Any]], name: str) -> int | None:
    for place in places:
        value = str(place.get(name))
        if value.isdecimal() and len(value) < 10:
            return int(value)
    return None
