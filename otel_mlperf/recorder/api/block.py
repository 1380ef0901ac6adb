"""Protocols of the blocks that ``span()``, ``step()``, ``epoch()`` and ``phase()`` return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

F = TypeVar("F", bound="Callable[..., Any]")


class Block(Protocol):
    """Context manager that ``span()``, ``step()``, ``epoch()`` and ``phase()`` return."""

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
        """Record attributes; later values replace earlier ones."""


class Decorator(Block, Protocol):
    """A block that also decorates functions."""

    def __call__(self, function: F) -> F:
        """Return a wrapper of the function that records each call."""


class Invisible:
    """Section that records nothing, e.g. in a compiled function, whose graph it does not break."""

    def __enter__(self) -> Invisible:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        """Return the function unchanged."""
        return function

    def set(self, **attributes: Any) -> None:
        """Do nothing."""
