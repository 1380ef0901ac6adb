"""The public call ``request``, for repeated, possibly concurrent units of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from otel_mlperf import names
from otel_mlperf.recorder.api.block import Invisible
from otel_mlperf.recorder.api.span import active, is_compiling, while_idle
from otel_mlperf.recorder.core.attribute_values import safe_attributes, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.sections.section_context import Attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.recorder.api.block import Decorator

RequestKind = Literal["server", "consumer", "internal"]
_KINDS = get_args(RequestKind)
F = TypeVar("F", bound="Callable[..., Any]")


@overload
def request(name: F, /) -> F: ...
@overload
def request(
    name: str = names.REQUEST,
    /,
    *,
    id: object = None,
    within_s: float | None = None,
    kind: RequestKind = "server",
    **attributes: Any,
) -> Decorator: ...
def request(
    name: Any = names.REQUEST,
    /,
    *,
    id: object = None,
    within_s: float | None = None,
    kind: RequestKind = "server",
    **attributes: Any,
) -> Any:
    """Record a request, or another repeated and possibly concurrent unit of work.

    ::

        with om.request("predict", id=request_id, within_s=0.05): ...
        @om.request("predict", within_s=0.05)      # on functions, coroutines, generators

    Like a step, a request is a separate trace that contains all its sections. Every request is
    measured; the first requests, one in a hundred, slow requests and failed requests are sampled as
    traces. Any number of requests may be open concurrently, in threads and in tasks. Inside a step,
    inside another request or in a caller's trace, a request is a section of the existing trace.

    Args:
        name: name of the operation, the same for all requests of a kind.
        id: id of this request, recorded with its span.
        within_s: time limit in seconds; requests that last longer, or fail, count as late.
        kind: kind of the span: ``server``, ``consumer`` (of a queue) or ``internal``.
        **attributes: attributes of the span.
    """
    if is_compiling():
        return Invisible()
    try:
        if id is not None:
            attributes[names.REQUEST_ID] = id if isinstance(id, int | str) else str(id)
        recorder, constant = active(), {**_bound(within_s), **_kind_attribute(kind)}
        if recorder is None or name is None or callable(name):
            return while_idle(name, names.REQUEST, False, {**constant, **attributes})
        text = name if type(name) is str else safe_name_text(name)
        key = (text, names.REQUEST, *constant.values())
        entry = recorder.registry.entry(key, text, names.REQUEST, constant)
        section = recorder.sections.make(entry)
        if attributes:
            extra = section.extra = Attributes()
            extra.attributes = safe_attributes(attributes)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return name if callable(name) else Invisible()
    return section


def _kind_attribute(kind: Any) -> Mapping[str, Any]:
    """Return the span kind as a constant attribute; empty for internal and unknown kinds."""
    if kind == "internal":
        return {}
    if kind not in _KINDS:
        warn_once("request(): kind is %r, expected one of %s; 'server' is recorded", kind, _KINDS)
        return {names.SPAN_KIND: "server"}
    return {names.SPAN_KIND: kind}


def _bound(within_s: Any) -> Mapping[str, Any]:
    """Return the time limit as a constant attribute; empty if it is None or invalid."""
    if within_s is None:
        return {}
    if isinstance(within_s, bool) or not isinstance(within_s, int | float) or not within_s > 0:
        warn_once("request(): within_s is %r, expected seconds; no time limit is applied", within_s)
        return {}
    return {names.SECTION_BOUND: float(within_s)}
