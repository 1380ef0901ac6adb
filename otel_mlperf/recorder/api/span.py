"""The public call ``span``, a context manager and a decorator.

The decorator works with and without arguments, for functions, coroutine functions, generators and
async generators. While nothing is recorded, ``span`` returns objects that do nothing. These objects
and decorated functions start to record when a run starts.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from otel_mlperf.recorder.api.block import Invisible
from otel_mlperf.recorder.api.decorate import decorate
from otel_mlperf.recorder.api.profiled_function import (
    has_lines,
    known_profile,
    profile_for,
    wrap_lines,
)
from otel_mlperf.recorder.api.unrecorded import note_use
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.attribute_values import safe_attributes, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, try_again
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.name_registry import implied_category
from otel_mlperf.recorder.instruments.aggregated_sections import AggregatedSection
from otel_mlperf.recorder.sections.section import Section
from otel_mlperf.recorder.sections.section_context import CURRENT, Attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from otel_mlperf.recorder.api.block import Decorator
    from otel_mlperf.recorder.instruments.open_aggregate import AggregatedName
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

F = TypeVar("F", bound="Callable[..., Any]")
active = cast("Callable[[], Recorder | None]", recording.active)
"""``recording.active`` with its type."""

# State that `span` reads, replaced when a run starts or stops, or when its phase changes. Module
# globals, because a lookup costs 5 ns; an attribute of an object would cost three times that.
_active: Recorder | None = None
_known: dict[Any, int] = {}
_new_section: Any = None
_added_up: dict[Any, AggregatedName] = {}
_new_aggregate: Any = None
_is_compiling: Callable[[], bool] | None = None
_idle: dict[Any, Handle] = {}
_MAX_IDLE = 4096
_live: Any = sys.modules[__name__]


def _follow(recorder: Recorder | None) -> None:
    """Copy the state of the active recorder to the globals of this module."""
    global _active, _known, _new_section, _added_up, _new_aggregate
    if recorder is not _active:
        _active = None  # names of one run must never be combined with sections of another
    if recorder is not None:
        # A forked child has no names yet: its first section takes the slow path.
        _known = {} if recorder.is_retired else recorder.registry.known
        _new_section = recorder.sections.new
        _new_aggregate = recorder.aggregated.new
    _added_up = {} if recorder is None or recorder.is_retired else recorder.aggregated.known
    _active = recorder
    watch_torch()


recording.watchers.append(_follow)


def watch_torch() -> None:
    """Find torch's function that returns whether it is compiling, if torch has been imported."""
    global _is_compiling
    if _is_compiling is None:
        modules = sys.modules
        _is_compiling = getattr(modules.get("torch.compiler"), "is_dynamo_compiling", None)
        if _is_compiling is None:  # before torch 2.3
            _is_compiling = getattr(modules.get("torch._utils"), "is_compiling", None)


def is_compiling() -> bool:
    """Return whether torch.compile is tracing the caller, so that nothing may be recorded."""
    return _is_compiling is not None and _is_compiling()


def note_unrecorded(call: str) -> None:
    """Register a use while nothing is recorded, unless torch.compile is tracing.

    ``call`` is the text of the call, e.g. ``steps()``.
    """
    watch_torch()
    if not is_compiling():
        note_use(call)


class Handle:
    """Reusable section: a context manager that may be entered repeatedly, and a decorator.

    Its attributes are constant, because they are registered with the name.
    """

    __slots__ = ("_opened", "aggregate", "attributes", "category", "name", "profile", "resources")

    def __init__(
        self,
        name: Any,
        category: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        *,
        aggregate: bool = False,
        resources: bool = False,
        profile: str = "",
    ) -> None:
        self.name, self.category, self.aggregate = name, category, aggregate
        self.attributes, self.resources, self.profile = attributes, resources, profile
        self._opened: list[Any] | None = None

    def __enter__(self) -> Any:
        if _active is None:
            return self
        section = self.open()
        entered = section.__enter__()
        self._opened = [*(self._opened or []), section]
        return entered

    @at_once
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._opened:
            return  # entered while nothing was recorded
        try:
            section = self._section_to_exit()
            section.__exit__(kind, error, trace)
            self._forget(section)
        except BaseException:
            try:
                chosen = [section]
            except UnboundLocalError:  # interrupted before the assignment
                chosen = []
            try_again(self._leave, chosen, kind, error, trace)
            raise

    def _leave(self, chosen: list[Any], *error: Any) -> None:
        if not chosen:
            chosen.append(self._section_to_exit())
        chosen[0].__exit__(*error)  # idempotent
        self._forget(chosen[0])

    def _forget(self, section: Any) -> None:
        self._opened = [one for one in self._opened or [] if one is not section]

    def _section_to_exit(self) -> Any:
        if not self._opened:
            return Invisible()  # the section had ended before the interrupt
        current = CURRENT.get()
        return current if current in self._opened else self._opened[-1]

    def set(self, **attributes: Any) -> None:
        """Do nothing: a handle is not an open section."""

    def open(self) -> Any:
        """Return a new section, to be entered; an ``Invisible`` if nothing is recorded."""
        try:
            recorder = active()
            if recorder is None or is_compiling():
                return Invisible()
            if self.aggregate:
                return recorder.aggregated.make(self.name, self.category)
            instead = _instead(recorder, self.name, self.category)
            if instead is not None:
                return instead
            return recorder.sections.make(recorder.registry.entry_of_handle(self))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return Invisible()

    def new_section(self) -> Any:
        """Return a new section, to be entered; None if nothing is recorded."""
        try:
            return None if _active is None or is_compiling() else self.open()
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return None

    def named(self, name: str, attributes: Mapping[str, Any]) -> Handle:
        """Return a copy of the handle with another name and other attributes."""
        how: dict[str, Any] = {"aggregate": self.aggregate, "resources": self.resources}
        return _Unused(name, self.category, attributes, profile=self.profile, **how)

    def __call__(self, function: F) -> F:
        """Return a wrapper of the function that records each call.

        Without a name, the function's name is used.
        """
        try:
            self.profile = profile_for(function, self.profile)
            wrap = wrap_lines if has_lines(self.profile) else wrap_function
            decorated: F = decorate(self, function, wrap)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return function
        return decorated


class LeftOut(Handle):
    """Section that the settings exclude; as a context manager it records nothing.

    A function that it decorates is checked against the settings at each call, because another run
    may have other settings.
    """

    __slots__ = ()

    def __enter__(self) -> Any:
        return self


class _Unused(Handle):
    """Unused handle; its first use is registered and makes it a plain handle."""

    __slots__ = ()

    def __enter__(self) -> Any:
        self.note_use()
        return Handle.__enter__(self)

    def new_section(self) -> Any:
        self.note_use()
        return Handle.new_section(self)

    def note_use(self) -> None:
        """Register the first use if nothing is recorded, unless torch.compile is tracing."""
        try:
            watch_torch()
            if is_compiling():
                return
            self.__class__ = Handle  # type: ignore[assignment]  # of the same layout
            if _active is None:
                note_use(f"span({safe_name_text(self.name)!r:.60})")
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


@overload
def span(name: F, /) -> F: ...
@overload
def span(
    name: str | None = None,
    /,
    *,
    category: str | None = None,
    aggregate: bool = False,
    resources: bool = False,
    profile: Literal["calls", "lines", "memory"] | None = None,
    **attributes: Any,
) -> Decorator: ...
def span(  # noqa: C901, PLR0911 - one way out for each price
    name: Any = None,
    /,
    *,
    category: str | None = None,
    aggregate: bool = False,
    resources: bool = False,
    **attributes: Any,
) -> Any:
    """Record the duration of a block or of each call of a function.

    ::

        with span("forward"): ...
        with span("load", category="data_loading", file=path) as section:
            section.set(rows=len(table))
        @span                      # the function's name
        @span("collate")           # on functions, coroutines, generators, async generators

    Args:
        name: name of the section; known ones (``forward``, ``checkpoint``, …) imply a category.
        category: category of the work (default: implied by the name).
        aggregate: store only count, sum, minimum and maximum by name and enclosing sections, for up
            to 100,000 calls a second. For a generator, each resumption is a call. The self time of
            the enclosing section excludes the aggregated section.
        resources: measure the resource usage of each call: CPU time, context switches
            and I/O bytes of its thread, memory of the process and of PyTorch's CUDA allocator.
            Costs some 25 µs a call; ignored for aggregated sections.
        profile: profile the first few calls (setting ``profiled_calls``): ``"calls"`` by cProfile,
            ``"lines"`` by line_profiler (extra ``lines``; functions only), ``"memory"`` by memray
            or tracemalloc. ``otel-mlperf summary --functions`` shows the functions and lines. If
            profiling is impossible, the section is recorded without a profile, with a warning.
        **attributes: attributes of the span.
    """
    if _is_compiling is not None and _is_compiling():
        return Invisible()
    try:
        if attributes or category is not None or resources:
            return _with_more(name, category, attributes, aggregate, resources)
        if aggregate:
            try:
                of = _added_up[name]
            except (KeyError, TypeError):
                return _first_added_up(name)
            section = _new_aggregate()
            section.of = of
            return section
        if _active is None:
            try:
                return _idle[name]
            except (KeyError, TypeError):
                return while_idle(name, None, False, attributes)
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


def while_idle(
    name: Any,
    category: str | None,
    aggregate: bool,
    attributes: Mapping[str, Any],
    *,
    resources: bool = False,
    profile: str = "",
) -> Any:
    """Return a handle, or wrap a function; both do nothing now, and record during a run."""
    how: dict[str, Any] = {"aggregate": aggregate, "resources": resources, "profile": profile}
    if callable(name):
        return Handle(None, category, attributes, **how)(name)
    handle = _Unused(name, category, attributes, **how)
    if attributes or category is not None or any(how.values()) or type(name) is not str:
        return handle
    return _idle.setdefault(name, handle) if len(_idle) < _MAX_IDLE else handle


def _first_added_up(name: Any) -> Any:
    recorder = active()
    if recorder is None or name is None or callable(name):
        return while_idle(name, None, True, {})
    return recorder.aggregated.make(name, None)


def _first_time(name: Any) -> Any:
    """Return a section for a name that is new or never takes the fast path."""
    recorder = active()
    if recorder is None or name is None or callable(name):
        return while_idle(name, None, False, {})
    watch_torch()
    text = name if type(name) is str else safe_name_text(name)
    instead = _instead(recorder, text, None)
    if instead is not None:
        return instead
    return recorder.sections.make(recorder.registry.entry(text, text))


def _instead(recorder: Recorder, name: Any, category: str | None) -> Any:
    """Return a substitute for an excluded or aggregated section; None: the section is recorded."""
    if not recorder.choice.is_used:
        return None
    text = safe_name_text(name)
    kind = implied_category(text) if category is None else safe_name_text(category)
    choice = recorder.choice.of(text, kind)
    if choice == "record":
        return None
    return (
        recorder.aggregated.make(text, kind) if choice == "aggregate" else LeftOut(name, category)
    )


def _with_more(
    name: Any,
    category: str | None,
    attributes: dict[str, Any],
    aggregate: bool,
    resources: bool,
) -> Any:
    """Return a section with a category, attributes, resource measurement or a profile."""
    # ``profile`` is passed in ``attributes``: a default parameter of ``span`` would slow each call.
    profile = known_profile(attributes.pop("profile")) if "profile" in attributes else ""
    recorder = _active
    if recorder is not None and recorder.is_retired:
        recorder = active()
    if recorder is None or name is None or callable(name):
        how: dict[str, Any] = {"resources": bool(resources), "profile": profile}
        return while_idle(name, category, aggregate, attributes, **how)
    if aggregate:
        return recorder.aggregated.make(name, category)
    text = name if type(name) is str else safe_name_text(name)
    instead = _instead(recorder, text, category)
    if instead is not None:
        return instead
    key: Any = text if category is None else (text, category)
    key = (text, category, bool(resources), profile) if resources or profile else key
    entry = recorder.registry.known.get(key)
    if entry is None:
        how = {"resources": bool(resources), "profile": profile}
        entry = recorder.registry.entry(key, text, category, **how)
    section = recorder.sections.make(entry)
    if attributes:
        extra = section.extra = Attributes()
        extra.attributes = safe_attributes(attributes)
    return section


def wrap_function(handle: Handle, function: Any) -> Any:
    """Decorate a plain function; in this module, because the wrapper reads its globals."""
    idle: Callable[..., Any] = function

    def first_idle(*args: Any, **kwargs: Any) -> Any:
        nonlocal idle
        if type(handle) is _Unused:
            handle.note_use()
        else:
            idle = function
        return function(*args, **kwargs)

    idle = first_idle

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Read globals as attributes of the module: cloudpickle copies a function of ``__main__``
        # with the globals that it refers to, and these contain this process's journal.
        if _live._active is None or (_live._is_compiling is not None and _live._is_compiling()):
            return idle(*args, **kwargs)
        try:
            entry = _live._known[handle]
        except KeyError:
            section = handle.open()
        else:
            section = _live._new_section()
            section.entry = entry
            section.sid = 0
            section.extra = None
        with section:
            return function(*args, **kwargs)

    return wrapper


# Sections are decorators, too, but their classes, a layer below, cannot import ``Handle``.
Section.decorate = staticmethod(Handle)
AggregatedSection.decorate = staticmethod(Handle)
