"""Which entry is meant by a JSON value whose types are not the ones that the format has?"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from otel_mlperf.kineto.reading.entries import ENTRY, Args, MemoryArgs

_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_NO_NUMBERS: Final = frozenset(("NaN", "Infinity", "-Infinity"))
_PHASES: Final = frozenset("XBEsfiMIbneSTptFCNODPRcVva(),")
_WHOLE_ARGS: Final = tuple(
    field.encode_name for kind in (Args, MemoryArgs) for field in msgspec.structs.fields(kind)
)


def coerce_entry(value: Any, damage: dict[str, str]) -> Any:
    """An entry; the name of a phase that the format does not have; or None, if it is neither.

    What does not fit is left out, and its kind is put into ``damage``.
    """
    if not isinstance(value, dict):
        damage["not_an_event"] = repr(value)[:40]
        return None
    phase = value.get("ph")
    if not isinstance(phase, str):
        damage["missing_field" if phase is None else "wrong_type"] = f"ph: {phase!r:.40}"
        return None
    if phase not in _PHASES:
        return clean_text(phase, damage)
    fields = {"ph": phase, "ts": value.get("ts"), "dur": value.get("dur")}
    if not _NO_NUMBERS.isdisjoint(map(str, fields.values())):
        damage.pop("not_a_number", None)  # It is counted as a time that is none.
    fields |= _of_types(value, ("name", "cat"), (str,), damage)
    fields |= _of_types(value, ("pid", "tid", "id"), (int, str), damage)
    args = value.get("args")
    if isinstance(args, dict):
        named = (
            {"name": clean_text(args["name"], damage)} if isinstance(args.get("name"), str) else {}
        )
        fields["args"] = named | _of_types(args, _WHOLE_ARGS, (int, str), damage)
    elif args is not None:
        damage["wrong_type"] = f"args: {args!r:.40}"
    return msgspec.convert(fields, ENTRY)


def _of_types(
    value: dict[str, Any],
    names: tuple[str, ...],
    types: tuple[type, ...],
    damage: dict[str, str],
) -> dict[str, Any]:
    """The fields of these names that are of these types."""
    fields = {}
    for name in names:
        field = value.get(name)
        if isinstance(field, types) and not isinstance(field, bool):
            fields[name] = clean_text(field, damage) if isinstance(field, str) else field
        elif field is not None:
            damage["wrong_type"] = f"{name}: {field!r:.40}"
            if name in ("pid", "tid"):
                fields[name] = ""  # Said, so not missing as well.
    return fields


def clean_text(text: str, damage: dict[str, str]) -> str:
    """Without halves of surrogate pairs, which no UTF-8 can say."""
    clean = _SURROGATE.sub("\ufffd", text)
    if clean != text and "invalid_utf8" not in damage:
        damage["lone_surrogate"] = clean[:40]
    return clean
