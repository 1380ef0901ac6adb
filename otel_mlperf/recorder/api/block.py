"""Protocols of the blocks that ``span()``, ``step()``, ``epoch()`` and ``phase()`` return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

F = TypeVar("F", bound="Callable[..., Any]")


class Block(Protocol):
    """A part of the program that is recorded while a ``with`` holds it.

    The type of what ``span()``, ``step()``, ``epoch()`` and ``phase()`` return.
    """

    def __enter__(self) -> Block:
        """Begins it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Ends it; exceptions go on."""

    def set(self, **attributes: Any) -> None:
        """Records attributes; later values win."""


class Decorator(Block, Protocol):
    """A block that decorates functions as well."""

    def __call__(self, function: F) -> F:
        """The function, each of whose calls is recorded."""


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
