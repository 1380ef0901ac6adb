"""What does ``span`` do, in each of its shapes?

It is a context manager and a decorator, bare or with arguments, on functions, coroutines,
generators and async generators. While nothing is recorded it hands out objects that do nothing;
those, and decorated functions, begin to record when a run starts.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar, overload

from otel_mlperf.recorder.core.attribute_values import safe_attributes, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.sections.section_context import CURRENT, Attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from otel_mlperf.recorder.api.block import Decorator
    from otel_mlperf.recorder.core.recorder import Recorder

F = TypeVar("F", bound="Callable[..., Any]")


# What `span` looks at, swapped as a whole when a run starts, stops or changes its phase. Plain
# module globals: a lookup costs 5 ns, an attribute of an object three times that.
_active: Recorder | None = None
_known: dict[Any, int] = {}
_new_section: Any = None
_is_compiling: Callable[[], bool] | None = None
_idle: dict[Any, Handle] = {}
_MOST_IDLE = 4096


def activate(recorder: Recorder | None) -> None:
    """From now on spans go to ``recorder``; None: nowhere."""
    global _active, _known, _new_section
    _active = None
    if recorder is not None:
        _known, _new_section = recorder.registry.known, recorder.new_section
    _active = recorder
    watch_torch()


def section_names(known: dict[Any, int]) -> None:
    """From now on names are looked up in ``known``: the phase changed, or the process is a fork."""
    global _known
    _known = known


def short_way(handle: Handle) -> Any:
    """A fresh section of a decorated function, not entered yet; None where nothing is recorded."""
    try:
        return None if _active is None or is_compiling() else handle.open()
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return None


def active() -> Recorder | None:
    """What records in this process at the moment."""
    recorder = _active
    if recorder is not None and recorder.is_retired:
        return recorder.replacement()
    return recorder


def watch_torch() -> None:
    """Asks torch from now on whether it is compiling, if the program has imported torch."""
    global _is_compiling
    if _is_compiling is None:
        compiler = sys.modules.get("torch.compiler")
        _is_compiling = getattr(compiler, "is_dynamo_compiling", None)


def is_compiling() -> bool:
    """Whether torch.compile is tracing the caller: then nothing of ours may be seen."""
    return _is_compiling is not None and _is_compiling()


class Invisible:
    """What a compiled function gets instead of a section: nothing that could break its graph."""

    def __enter__(self) -> Invisible:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        """The function as it is."""
        return function

    def set(self, **attributes: Any) -> None:
        """Nothing is recorded."""


class Handle:
    """A named section that may be entered any number of times, and decorates functions.

    Its attributes are constant: they are registered with the name.
    """

    __slots__ = ("_opened", "aggregate", "attributes", "category", "name")

    def __init__(
        self,
        name: Any,
        category: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        *,
        aggregate: bool = False,
    ) -> None:
        self.name, self.category, self.aggregate = name, category, aggregate
        self.attributes = attributes
        self._opened: list[Any] | None = None

    def __enter__(self) -> Any:
        if _active is None:
            return self
        section = self.open()
        self._opened = [*(self._opened or []), section]
        return section.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opened = self._opened
        if not opened:
            return
        current = CURRENT.get()
        section = current if current in opened else opened[-1]
        opened.remove(section)
        section.__exit__(kind, error, trace)

    def set(self, **attributes: Any) -> None:
        """Nothing is recorded: this is not an open section."""

    def open(self) -> Any:
        """A fresh section, not entered yet; something without effect where none can be made."""
        try:
            recorder = active()
            if recorder is None or is_compiling():
                return Invisible()
            if self.aggregate:
                return recorder.cells.aggregate(self.name, self.category)
            return recorder.make(recorder.registry.entry_of_handle(self))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return Invisible()

    def __call__(self, function: F) -> F:
        """Decorates a function; its section is named after it if no name was given."""
        try:
            from otel_mlperf.recorder.api.decorate import decorate

            decorated: F = decorate(self, function)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return function
        return decorated


@overload
def span(name: F, /) -> F: ...
@overload
def span(
    name: str | None = None,
    /,
    *,
    category: str | None = None,
    aggregate: bool = False,
    **attributes: Any,
) -> Decorator: ...
def span(  # noqa: PLR0911 - one way out for each price
    name: Any = None,
    /,
    *,
    category: str | None = None,
    aggregate: bool = False,
    **attributes: Any,
) -> Any:
    """Records how long a piece of the program takes.

    ::

        with span("forward"): ...
        with span("load", category="data_loading", file=path) as section:
            section.set(rows=len(table))
        @span                      # the function's name
        @span("collate")           # on functions, coroutines, generators, async generators

    Args:
        name: name of the section; known ones (``forward``, ``checkpoint``, …) imply a category.
        category: what kind of work it is.
        aggregate: for 100,000 calls a second and more: only count, sum, shortest and longest are
            kept, by name, enclosing section and phase.
        **attributes: recorded with the span.
    """
    if _is_compiling is not None and _is_compiling():
        return Invisible()
    try:
        if attributes or category is not None:
            return _with_more(name, category, aggregate, attributes)
        if aggregate:
            return _added_up(name)
        if _active is None:
            try:
                return _idle[name]
            except (KeyError, TypeError):
                return _while_idle(name, None, False, attributes)
        try:
            entry = _known[name]
        except (KeyError, TypeError):
            return _first_time(name)
        section = _new_section()
        section.entry = entry
        section.sid = 0
        section.extra = None
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return name if callable(name) else Invisible()
    return section


def _while_idle(
    name: Any, category: str | None, aggregate: bool, attributes: Mapping[str, Any]
) -> Any:
    """Something that does nothing now, and records when it is used during a run."""
    if callable(name):
        return Handle(None, category, attributes, aggregate=aggregate)(name)
    handle = Handle(name, category, attributes, aggregate=aggregate)
    if attributes or category is not None or aggregate or type(name) is not str:
        return handle
    return _idle.setdefault(name, handle) if len(_idle) < _MOST_IDLE else handle


def _added_up(name: Any) -> Any:
    recorder = active()
    if recorder is None or name is None or callable(name):
        return _while_idle(name, None, True, {})
    return recorder.cells.aggregate(name, None)


def _first_time(name: Any) -> Any:
    """A name that is not known yet, or that never takes the short way; a function, or nothing."""
    recorder = active()
    if recorder is None or name is None or callable(name):
        return _while_idle(name, None, False, {})
    watch_torch()
    text = name if type(name) is str else safe_name_text(name)
    return recorder.make(recorder.registry.entry(text, text))


def _with_more(
    name: Any, category: str | None, aggregate: bool, attributes: Mapping[str, Any]
) -> Any:
    """A section with a category or attributes of its own."""
    recorder = _active
    if recorder is not None and recorder.is_retired:
        recorder = active()
    if recorder is None or name is None or callable(name):
        return _while_idle(name, category, aggregate, attributes)
    if aggregate:
        return recorder.cells.aggregate(name, category)
    text = name if type(name) is str else safe_name_text(name)
    key = text if category is None else (text, category)
    section = recorder.make(
        recorder.registry.known.get(key) or recorder.registry.entry(key, text, category)
    )
    if attributes:
        extra = section.extra = Attributes()
        extra.attributes = safe_attributes(attributes)
    return section


def wrap_function(handle: Handle, function: Any) -> Any:
    """Decorates a plain function; here, because its wrapper looks at the globals of ``span``."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _active is None or (_is_compiling is not None and _is_compiling()):
            return function(*args, **kwargs)
        try:
            entry = _known[handle]
        except KeyError:
            section = handle.open()
        else:
            section = _new_section()
            section.entry = entry
            section.sid = 0
            section.extra = None
        with section:
            return function(*args, **kwargs)

    return wrapper
