"""Registration of callbacks for warnings, steps and phases, by the program or a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.recorder.core import program_callbacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.bulletin import RunWarning


def on_warning(callback: Callable[[RunWarning], object]) -> Callable[[RunWarning], object]:
    """Calls ``callback`` when something is wrong: memory near its limit, a hot GPU, a full disk.

    Once for each warning until it has cleared, when a step begins, in the main thread. A warning
    has ``rule``, ``summary``, ``action``, ``value``, ``labels``. Also a decorator.

    Args:
        callback: may raise; that is said once.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.WARNING.add(callback)


def on_step_begin(callback: Callable[[str, int], object]) -> Callable[[str, int], object]:
    """Calls ``callback(phase, number)`` when a step has been opened, in the thread that opened it.

    ``phase`` is train, validate, test or predict, ``number`` the program's. What it takes is part
    of the step, and spans that it records are inside. Also a decorator.

    With a callback, of this kind or for the end, a step costs half as much again as without (4.8 µs
    become 7.3), and what the callback itself takes; without one, nothing that can be measured.

    ``steps()`` opens a step before it asks for the batch. Where there is none, and where
    ``mark_step()`` has opened one too many, the step is taken back: no end follows, and the next
    one has the same number.

    Args:
        callback: may raise: an ``Exception`` is counted and said once, and training goes on.
            Ctrl-C and other ``BaseException`` go on to the program; the step is then taken back.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.STEP_BEGIN.add(callback)


def on_step_end(callback: Callable[[str, int], object]) -> Callable[[str, int], object]:
    """Calls ``callback(phase, number)`` before a step is closed, in the thread that closes it.

    Also where it ends by ``break``, by an exception, or with the run; not where it is taken back
    (see ``on_step_begin``). The step's end has been measured by then: what the callback takes is no
    part of it. Also a decorator.

    Args:
        callback: may raise, as in ``on_step_begin``; the step is closed all the same.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.STEP_END.add(callback)


def on_phase(callback: Callable[[str, bool], object]) -> Callable[[str, bool], object]:
    """Calls ``callback(phase, is_open)`` after a ``phase()`` block begins and before it ends.

    In the thread that does so. ``phase`` is what steps inside count as: train, validate, test or
    predict. Also a decorator.

    Args:
        callback: may raise, as in ``on_step_begin``; the phase begins and ends all the same.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.PHASE.add(callback)


def remove_callback(callback: Callable[..., object]) -> None:
    """Calls ``callback`` no longer, whatever it was given to; does nothing if that is nothing."""
    for callbacks in program_callbacks.EVERY:
        callbacks.remove(callback)
