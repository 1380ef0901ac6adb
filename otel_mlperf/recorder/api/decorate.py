"""Decorators that record calls of functions, coroutines, generators and async generators.

The wrapper is of the same kind as the wrapped function, so that ``iscoroutinefunction`` and the
like have the same result. It adds one frame. While nothing is recorded or torch.compile traces it,
it only calls the function. A generator's section is current only while its body runs, not in the
code that consumes its values.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Protocol

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.recorder.core.faults import try_again, warn_once
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.turns import MANY
from otel_mlperf.recorder.sections.section_context import CURRENT, SectionContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
    from contextvars import Token


class Recordable(Protocol):
    """Description of a section, by which each call of a function is recorded."""

    name: Any
    attributes: Mapping[str, Any] | None

    def new_section(self) -> Any:
        """Return a new section, to be entered; None if nothing is recorded."""

    def named(self, name: str, attributes: Mapping[str, Any]) -> Any:
        """Return a copy with another name and other attributes."""


def decorate(handle: Recordable, function: Any, wrap_function: Callable[[Any, Any], Any]) -> Any:
    """Return a wrapper that records each call of a function.

    Args:
        handle: describes the section; without a name, the function's name is used.
        function: the function, static or class method; others are returned with a warning.
        wrap_function: wraps a plain function at minimum cost.
    """
    if isinstance(function, staticmethod | classmethod):
        return type(function)(decorate(handle, function.__func__, wrap_function))
    if inspect.isclass(function) or not callable(function):
        warn_once("span() decorates only functions; %r is not recorded", function)
        return function
    name = handle.name
    if name is None:
        qualified = getattr(function, "__qualname__", None) or type(function).__qualname__
        name = qualified.rpartition("<locals>.")[2]
    attributes = {**_code_attributes(function), **(handle.attributes or {})}
    own = handle.named(name, attributes)
    return (_wrapper_of(function) or wrap_function)(own, function)


def _code_attributes(function: Any) -> dict[str, Any]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return {}
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return {
        names.CODE_FUNCTION: f"{module}.{name}",
        names.CODE_FILE: code.co_filename,
        names.CODE_LINE: code.co_firstlineno,
    }


def _wrapper_of(function: Any) -> Callable[[Any, Any], Any] | None:
    if inspect.isasyncgenfunction(function):
        return _wrap_async_generator
    if inspect.isgeneratorfunction(function):
        return _wrap_generator
    if inspect.iscoroutinefunction(function):
        return _wrap_coroutine
    return None


def _wrap_coroutine(handle: Recordable, function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        section = handle.new_section()
        if section is None:
            return await function(*args, **kwargs)
        with section:
            return await function(*args, **kwargs)

    return wrapper


class _Body:
    """Section of a generator, which is current only while the generator's body runs."""

    __slots__ = ("_adds_up", "_inside", "_is_current", "_section")

    def __init__(self, handle: Recordable) -> None:
        self._section = section = handle.new_section()
        # False for a substitute that records nothing, which never becomes current.
        self._is_current = isinstance(section, SectionContext)
        self._adds_up = self._is_current and section.adds_up
        self._inside: Any = None
        """Context that is current inside the body; None: the body has not started."""

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        """Run the body up to its next ``yield``."""
        if not self._is_current:
            return step(*args)
        around, token = CURRENT.get(), None
        try:
            token = self._resume()
            return step(*args)
        finally:
            self._suspend(token, around)

    async def wait(self, step: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Run the body of an async generator up to its next ``yield``."""
        if not self._is_current:
            return await step(*args)
        around, token = CURRENT.get(), None
        try:
            token = self._resume()
            return await step(*args)
        finally:
            self._suspend(token, around)

    def leave(self, close: Callable[[], Any]) -> None:
        """Close the body, if it was started, in its own context."""
        if self._inside is not None:
            self.run(close)

    async def wait_to_leave(self, close: Callable[[], Awaitable[Any]]) -> None:
        """Close the body of an async generator, if it was started, in its own context."""
        if self._inside is not None:
            await self.wait(close)

    def _resume(self) -> Token[Any] | None:
        section = self._section
        if self._adds_up:
            # Each resumption is a separate aggregated call: the enclosing section may differ.
            section.__enter__()
            self._inside = self._inside or section
        elif self._inside is None:
            section.__enter__()
            self._inside = section
            # No calls below: an exception after one would leave the entered section current. Thread
            # usage is invalid, because the consumer runs between resumptions.
            extra = section.extra
            if extra is not None and extra.usage is not None:
                extra.usage.turn = MANY
            return getattr(section, "token", None)
        # Includes sections that the body had open at its last ``yield``.
        return CURRENT.set(self._inside)

    @at_once
    def _suspend(self, token: Token[Any] | None, around: Any) -> None:
        try:
            self._put_back(token, around)
        except BaseException:
            try_again(self._put_back, token, around)
            raise

    def _put_back(self, token: Token[Any] | None, around: Any) -> None:
        current = CURRENT.get()
        try:
            if token is not None:
                CURRENT.reset(token)
                self._inside = current
            elif current is not around:  # interrupted before the token was stored
                CURRENT.set(around)
        except ValueError as error:
            if is_foreign(error):
                raise
            return  # the body ran in another context, that of an ended task
        except RuntimeError as error:
            if is_foreign(error):
                raise
            # Otherwise the token was already used: this call is a retry.
        if self._adds_up:
            self._section.__exit__(None, None, None)

    @at_once
    def end(self, error: BaseException | None = None) -> None:
        """End the span of the decorated body."""
        try:
            if self._inside is None or self._adds_up:
                return
            around = CURRENT.get()
            self._section.token = CURRENT.set(self._section)
            self._section.__exit__(type(error) if error else None, error, None)
        except BaseException:
            if self._inside is not None and not self._adds_up:
                self._section.__exit__(type(error) if error else None, error, None)
                if CURRENT.get() is self._section:
                    CURRENT.set(locals().get("around"))
            raise


def _wrap_generator(handle: Recordable, function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        body = _Body(handle)
        try:
            value = body.run(generator.__next__)
            while True:
                try:
                    sent = yield value
                except GeneratorExit:
                    body.run(generator.close)
                    raise
                except BaseException as error:  # noqa: BLE001 - it belongs to the body
                    value = body.run(generator.throw, error)
                else:
                    value = body.run(generator.send, sent)
        except StopIteration as stop:
            body.end()
            return stop.value
        except BaseException as error:
            # The exception may have arrived between two resumptions: close the body in its context,
            # so that sections that it has open are exited.
            body.leave(generator.close)
            body.end(error)
            raise

    return wrapper


def _wrap_async_generator(handle: Recordable, function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        generator = function(*args, **kwargs)
        body = _Body(handle)
        try:
            value = await body.wait(generator.__anext__)
            while True:
                try:
                    sent = yield value
                except GeneratorExit:
                    await body.wait(generator.aclose)
                    raise
                except BaseException as error:  # noqa: BLE001 - it belongs to the body
                    value = await body.wait(generator.athrow, error)
                else:
                    value = await body.wait(generator.asend, sent)
        except StopAsyncIteration:
            body.end()
        except BaseException as error:
            await body.wait_to_leave(generator.aclose)
            body.end(error)
            raise

    return wrapper
