"""Registration of callbacks for warnings, steps and phases, by the program or a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.recorder.core import program_callbacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.bulletin import RunWarning


def on_warning(callback: Callable[[RunWarning], object]) -> Callable[[RunWarning], object]:
    """Call ``callback`` when something is wrong: memory near its limit, a hot GPU, a full disk.

    It is called once for each warning until the warning has cleared, when a step starts, in the
    main thread. A warning has ``rule``, ``summary``, ``action``, ``value``, ``labels``. Also a
    decorator.

    Args:
        callback: may raise; that is logged once.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.WARNING.add(callback)


def on_step_begin(callback: Callable[[str, int], object]) -> Callable[[str, int], object]:
    """Call ``callback(phase, number)`` when a step has been opened, in the thread that opened it.

    ``phase`` is train, validate, test or predict, ``number`` the program's step number. The time of
    the callback is part of the step, and spans that it records are inside it. Also a decorator.

    With a callback, of this kind or for the end, a step costs one and a half times as much (4.8 µs
    become 7.3), plus the callback's own time. Without a callback there is no measurable cost.

    ``steps()`` opens a step before it requests the batch. If there is no batch, or if
    ``mark_step()`` has opened one step too many, the step is cancelled: no end follows, and the
    next step has the same number.

    Args:
        callback: may raise: an ``Exception`` is counted and logged once, and training continues.
            Ctrl-C and other ``BaseException`` propagate to the program; the step is then cancelled.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.STEP_BEGIN.add(callback)


def on_step_end(callback: Callable[[str, int], object]) -> Callable[[str, int], object]:
    """Call ``callback(phase, number)`` before a step is closed, in the thread that closes it.

    It is also called where the step ends by ``break``, by an exception, or with the run, but not
    where the step is cancelled (see ``on_step_begin``). The step's end has been measured by then:
    the time of the callback is no part of it. Also a decorator.

    Args:
        callback: may raise, as in ``on_step_begin``; the step is closed all the same.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.STEP_END.add(callback)


def on_phase(callback: Callable[[str, bool], object]) -> Callable[[str, bool], object]:
    """Call ``callback(phase, is_open)`` after a ``phase()`` block starts and before it ends.

    It is called in the thread of the block. ``phase`` is the phase that steps inside count as:
    train, validate, test or predict. Also a decorator.

    Args:
        callback: may raise, as in ``on_step_begin``; the phase starts and ends all the same.

    Raises:
        ConfigError: it cannot be called.
    """
    return program_callbacks.PHASE.add(callback)


def remove_callback(callback: Callable[..., object]) -> None:
    """Unregister ``callback`` from every event; does nothing if it is not registered."""
    for callbacks in program_callbacks.EVERY:
        callbacks.remove(callback)
