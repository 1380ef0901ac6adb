"""The public call ``span``, in each of its forms.

It is a context manager and a decorator, with or without arguments, for functions, coroutines,
generators and async generators. While nothing is recorded it returns objects that do nothing. Those
objects, and decorated functions, start to record when a run starts.
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
    from otel_mlperf.recorder.instruments.aggregated_sections import AggregatedName
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

F = TypeVar("F", bound="Callable[..., Any]")
active = cast("Callable[[], Recorder | None]", recording.active)
"""What records in this process at the moment; here with its type."""

# What `span` looks at, swapped as a whole when a run starts, stops or changes its phase. Plain
# module globals: a lookup costs 5 ns, an attribute of an object three times that.
_active: Recorder | None = None
_known: dict[Any, int] = {}
_new_section: Any = None
_added_up: dict[Any, AggregatedName] = {}
_new_aggregate: Any = None
_is_compiling: Callable[[], bool] | None = None
_idle: dict[Any, Handle] = {}
_MOST_IDLE = 4096
_live: Any = sys.modules[__name__]


def _follow(recorder: Recorder | None) -> None:
    """Copies what is active, or what may have changed about it."""
    global _active, _known, _new_section, _added_up, _new_aggregate
    if recorder is not _active:
        _active = None  # nobody may find the names of one run beside the sections of another
    if recorder is not None:
        # A forked child has none yet: its first section finds that out the long way.
        _known = {} if recorder.is_retired else recorder.registry.known
        _new_section = recorder.sections.new
        _new_aggregate = recorder.aggregated.new
    _added_up = {} if recorder is None or recorder.is_retired else recorder.aggregated.known
    _active = recorder
    watch_torch()


recording.watchers.append(_follow)


def watch_torch() -> None:
    """Asks torch from now on whether it is compiling, if the program has imported torch."""
    global _is_compiling
    if _is_compiling is None:
        modules = sys.modules
        _is_compiling = getattr(modules.get("torch.compiler"), "is_dynamo_compiling", None)
        if _is_compiling is None:  # before torch 2.3
            _is_compiling = getattr(modules.get("torch._utils"), "is_compiling", None)


def is_compiling() -> bool:
    """Whether torch.compile is tracing the caller: then nothing of ours may be seen."""
    return _is_compiling is not None and _is_compiling()


def note_unrecorded(call: str) -> None:
    """Notes that something was used while nothing is recorded; not what torch.compile traces."""
    watch_torch()
    if not is_compiling():
        note_use(call)


class Handle:
    """A named section that may be entered any number of times, and decorates functions.

    Its attributes are constant: they are registered with the name.
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
            section = self._the_one_left()
            section.__exit__(kind, error, trace)
            self._forget(section)
        except BaseException:
            try:
                chosen = [section]
            except UnboundLocalError:  # none was chosen yet; asked for without a call
                chosen = []
            try_again(self._leave, chosen, kind, error, trace)
            raise

    def _leave(self, chosen: list[Any], *error: Any) -> None:
        if not chosen:
            chosen.append(self._the_one_left())
        chosen[0].__exit__(*error)  # what is done already is not done again
        self._forget(chosen[0])

    def _forget(self, section: Any) -> None:
        self._opened = [one for one in self._opened or [] if one is not section]

    def _the_one_left(self) -> Any:
        if not self._opened:
            return Invisible()  # ended before it was interrupted
        current = CURRENT.get()
        return current if current in self._opened else self._opened[-1]

    def set(self, **attributes: Any) -> None:
        """Nothing is recorded: this is not an open section."""

    def open(self) -> Any:
        """A fresh section, not entered yet; something without effect where none can be made."""
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

    def short_way(self) -> Any:
        """A fresh section, not entered yet; None where nothing is recorded."""
        try:
            return None if _active is None or is_compiling() else self.open()
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return None

    def named(self, name: str, attributes: Mapping[str, Any]) -> Handle:
        """The same under a name of its own."""
        how: dict[str, Any] = {"aggregate": self.aggregate, "resources": self.resources}
        return _Unused(name, self.category, attributes, profile=self.profile, **how)

    def __call__(self, function: F) -> F:
        """Decorates a function; its section is named after it if no name was given."""
        try:
            self.profile = profile_for(function, self.profile)
            wrap = wrap_lines if has_lines(self.profile) else wrap_function
            decorated: F = decorate(self, function, wrap)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return function
        return decorated


class LeftOut(Handle):
    """A section that the settings leave out; what it decorates is asked for anew in each run."""

    __slots__ = ()

    def __enter__(self) -> Any:
        return self


class _Unused(Handle):
    """A handle that nobody has used yet; its first use says so and makes it one like all others."""

    __slots__ = ()

    def __enter__(self) -> Any:
        self.note_use()
        return Handle.__enter__(self)

    def short_way(self) -> Any:
        self.note_use()
        return Handle.short_way(self)

    def note_use(self) -> None:
        """Says that it was used, if nothing is recorded; in code that is traced nothing may be."""
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
            kept, by name and by what is around; of a generator, each turn of it. What is inside,
            recorded or not, is taken from its own time, and that from the section around it.
        resources: measures what each call uses, too: CPU time, context switches and bytes of its
            thread, memory of the process and of PyTorch's CUDA allocator; some 25 µs a call. Of
            what is only added up it is not measured.
        profile: ``"calls"``, ``"lines"`` or ``"memory"``: the first few calls are profiled, by
            cProfile, line_profiler (the extra ``lines``; functions only), memray or tracemalloc;
            ``otel-mlperf hot`` shows functions and lines. How many is the setting
            ``profiled_calls``. What cannot be profiled is recorded without, and said once.
        **attributes: recorded with the span.
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
    """Something that does nothing now, and records when it is used during a run."""
    how: dict[str, Any] = {"aggregate": aggregate, "resources": resources, "profile": profile}
    if callable(name):
        return Handle(None, category, attributes, **how)(name)
    handle = _Unused(name, category, attributes, **how)
    if attributes or category is not None or any(how.values()) or type(name) is not str:
        return handle
    return _idle.setdefault(name, handle) if len(_idle) < _MOST_IDLE else handle


def _first_added_up(name: Any) -> Any:
    recorder = active()
    if recorder is None or name is None or callable(name):
        return while_idle(name, None, True, {})
    return recorder.aggregated.make(name, None)


def _first_time(name: Any) -> Any:
    """A name that is not known yet, or that never takes the short way; a function, or nothing."""
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
    """What stands for a section that is left out, or only added up; None: it is recorded."""
    if not recorder.choice.is_used:
        return None
    text = safe_name_text(name)
    kind = implied_category(text) if category is None else safe_name_text(category)
    choice = recorder.choice.of(text, kind)
    if choice == "record":
        return None
    return recorder.aggregated.make(text, kind) if choice == "sum_up" else LeftOut(name, category)


def _with_more(
    name: Any,
    category: str | None,
    attributes: dict[str, Any],
    aggregate: bool,
    resources: bool,
) -> Any:
    """A section with a category or attributes of its own, one that is measured, or profiled."""
    # Among the attributes: a parameter with a default costs each call that does not give it.
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
    """Decorates a plain function; here, because its wrapper looks at the globals of ``span``."""
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
        # By the module, not as its globals: cloudpickle takes a function of ``__main__`` with the
        # globals that it names, and in here is this process's journal.
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


# Sections decorate, too, and lie below.
Section.decorate = staticmethod(Handle)
AggregatedSection.decorate = staticmethod(Handle)
