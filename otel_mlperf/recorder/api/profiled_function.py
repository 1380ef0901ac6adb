"""Checks of ``span(profile=)``, and the decorator of functions whose lines are profiled."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.recorder.sections.line_profile import LineProfile, why_no_lines
from otel_mlperf.recorder.sections.profile_kinds import PROFILES
from otel_mlperf.recorder.sections.section import Section

if TYPE_CHECKING:
    from otel_mlperf.recorder.api.decorate import Recordable


def known_profile(requested: Any) -> str:
    """Return the requested kind of profile; empty, with a warning, if it is unavailable."""
    if requested is None:
        return ""
    if requested == LineProfile.kind and (why := why_no_lines()):
        warn_once("span(profile='lines') is recorded without a line profile: %s", why)
        return ""
    if requested in PROFILES:
        if requested == "memory":
            from otel_mlperf.recorder.sections.allocation_profile import has_memray

            has_memray()  # imports memray now instead of in the first profiled call
        return str(requested)
    kinds = ", ".join(PROFILES)
    warn_once(
        "span(profile=%.40r): expected one of %s; recorded without a profile", requested, kinds
    )
    return ""


def profile_for(function: Any, profile: str) -> str:
    """Return ``profile`` if calls of a function can be profiled so; else empty, with a warning."""
    plain = getattr(function, "__func__", function)  # of a static or class method
    if profile and (inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)):
        warn_once("span(profile=…) supports blocks, functions and coroutines; the generator %r "
                  "is recorded without a profile", function)  # fmt: skip
        return ""
    if has_lines(profile) and not _is_plain_python(plain):
        warn_once("span(profile='lines') supports only functions written in Python; %r is "
                  "recorded without a profile", function)  # fmt: skip
        return ""
    return profile


def has_lines(profile: str) -> bool:
    """Return whether a kind of profile requires ``wrap_lines``: it calls a copy of the function."""
    return profile == LineProfile.kind


def wrap_lines(handle: Recordable, function: Any) -> Any:
    """Decorate a function so that the lines of its first calls are profiled."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        section = handle.new_section()
        if section is None:
            return function(*args, **kwargs)
        recorder = recording.active()
        if recorder is None or not isinstance(section, Section):
            with section:
                return function(*args, **kwargs)
        profiles = recorder.sections.profiles
        profiles.announce_call(section)
        with section:
            return profiles.in_place_of(section, function)(*args, **kwargs)

    return wrapper


def _is_plain_python(function: Any) -> bool:
    return inspect.isfunction(function) and not inspect.iscoroutinefunction(function)
