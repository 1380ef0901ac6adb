"""Protocols of the blocks that ``span()``, ``step()``, ``epoch()`` and ``phase()`` return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

F = TypeVar("F", bound="Callable[..., Any]")


class Block(Protocol):
    """A part of the program that is recorded inside a ``with`` statement.

    It is the type of what ``span()``, ``step()``, ``epoch()`` and ``phase()`` return.
    """

    def __enter__(self) -> Block:
        """Start the block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """End the block; exceptions propagate."""

    def set(self, **attributes: Any) -> None:
        """Record attributes; later values win."""


class Decorator(Block, Protocol):
    """A block that also decorates functions."""

    def __call__(self, function: F) -> F:
        """Return the function with each of its calls recorded."""


class Invisible:
    """Stand-in for a section in a compiled function: it contains nothing that breaks the graph."""

    def __enter__(self) -> Invisible:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        """Return the function unchanged."""
        return function

    def set(self, **attributes: Any) -> None:
        """Record nothing."""
