"""JSON Schema of the ``--json`` answers of commands, generated from the answers' types."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF: Final = "#/$defs/{name}"
_NONE: Final = re.compile(r"\bNone\b")


def answer_schema(title: str, kinds: Sequence[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a command's answer, which has one of the types ``kinds``.

    Each type is a struct with a tag, or a union of such structs. The schema describes each field by
    the docstring below the field.
    """
    answers, shapes = msgspec.json.schema_components(kinds, ref_template=_REF)
    for kind in _structs(kinds):
        shape = shapes.get(kind.__name__) or shapes[f"{kind.__module__}.{kind.__qualname__}"]
        _explain(shape, kind)
    _let_null(shapes)
    (answer,) = answers if len(answers) == 1 else ({"anyOf": _each(answers)},)
    return {"$schema": _DIALECT, "title": title, **answer, "$defs": shapes}


def _explain(shape: dict[str, Any], kind: type) -> None:
    """Add descriptions to a struct's schema; require all fields, because answers contain all."""
    shape["description"] = _flat(kind.__doc__)
    fields = shape["properties"]
    shape["required"] = list(fields)
    for field in fields.values():
        field.pop("default", None)
    for name, meaning in field_meanings(kind).items():
        fields[name]["description"] = meaning


def _each(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for answer in answers for part in answer.get("anyOf", [answer])]


def _structs(kinds: Sequence[Any]) -> Iterator[type]:
    seen: dict[type, None] = {}
    pending = list(kinds)
    while pending:
        kind = pending.pop()
        pending += get_args(kind)
        if inspect.isclass(kind) and issubclass(kind, msgspec.Struct) and kind not in seen:
            seen[kind] = None
            pending += [field.type for field in msgspec.structs.fields(kind)]
    return iter(seen)


def field_meanings(kind: type) -> dict[str, str]:
    """Return the docstrings below a struct's fields by field name, read from the source code."""
    meanings = {}
    for base in reversed(kind.__mro__[:-1]):
        if base.__module__.startswith("msgspec"):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                meaning = _docstring(below)
                if meaning:
                    meanings[field.target.id] = meaning
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    return {name: meaning for name, meaning in meanings.items() if name in known}


def _docstring(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return _flat(str(node.value.value))
    return ""


def _flat(text: str | None) -> str:
    return _NONE.sub("null", " ".join((text or "").split()).replace("``", "`"))


def _let_null(schema: Any) -> None:
    """Replace ``nullable``, an OpenAPI keyword that msgspec writes, with the type ``null``."""
    if isinstance(schema, dict):
        if schema.pop("nullable", False):
            schema["type"] = [schema["type"], "null"]
        for part in schema.values():
            _let_null(part)
    elif isinstance(schema, list):
        for part in schema:
            _let_null(part)
