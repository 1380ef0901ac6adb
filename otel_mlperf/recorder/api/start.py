"""The public calls ``start`` and ``stop``, and the active run of the process."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_mlperf.errors import ConfigError, JournalError, RunActive
from otel_mlperf.portability import IS_WINDOWS
from otel_mlperf.recorder.api.unrecorded import note_left_out, note_start
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import log, warn_once
from otel_mlperf.recorder.lifecycle.run import Run
from otel_mlperf.recorder.lifecycle.run_identity import (
    give_identity,
    in_subinterpreter,
    is_imported_again,
    is_interactive,
    script_name,
)
from otel_mlperf.settings.load_config import load_config
from otel_mlperf.upper_parts import upper

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.run_identity import Identity
    from otel_mlperf.settings.config import Config

_current: Run | None = None
at_begin: list[Callable[[Run], None]] = []
"""Functions called with a run that has started, by which upper layers extend it."""
at_takeover: list[Callable[[Run, Config], None]] = []
"""Functions called when the program's ``start()`` takes over an automatically started run, with the
run and the program's settings.
"""


def _install_provider(run: Run) -> None:
    if run._recorder is not None and run._recorder.config.provider == "install":
        from otel_mlperf.recorder.api.otel_provider import install

        install(run)


at_begin.append(_install_provider)


def start(
    name: str | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    step: int = 0,
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Run:
    """Start a run and return it; the run is also a context manager.

    Args:
        name: name of the run (default: the script's name).
        params: hyperparameters, stored in the run folder.
        tags: labels for searches; a single text is one tag.
        step: number of the first training step, to resume a training.
        config: a ``Config``, a mapping, or the path of a YAML file.
        **overrides: individual settings of ``Config``, e.g. ``trace_every=10``.

    Raises:
        RunActive: another run of this process is active.
        ConfigError: an argument or the configuration file is invalid, or the folder ``dir`` that
            the program sets cannot be created.
    """
    global _current
    note_start()
    upper("watch_runs")()
    settings = load_config(config, overrides)
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"start(): name is {name!r:.40}, expected a text")
    given, checked_tags, number = _checked_params(params), _checked_tags(tags), _checked_step(step)
    # Checked after the arguments: an invalid one must not end the run of an earlier notebook cell.
    if _current is not None and _current.is_active:
        if _current._taken_over is not None:
            return _take_over(_current, settings, given, checked_tags, number)
        if not is_interactive():
            raise RunActive(
                f"starting a run: {_current.name!r} ({_current.id[:8]}) is still active in this "
                "process; stop() it first, or use 'with start(...)'"
            )
        log.warning("the run %r is finished because another run starts", _current.name)
        _current.stop()
    text = safe_name_text(name or script_name())
    if settings.disabled or not _can_record() or _is_left_out():
        return Run(text)
    from otel_mlperf.recorder.lifecycle.begin import begin
    from otel_mlperf.recorder.lifecycle.environment_check import check_environ

    check_environ(os.environ, settings.endpoint, settings.destinations)
    try:
        _current = begin(text, settings, given, checked_tags, number)
    except (ConfigError, JournalError) as error:
        _warn_or_raise(error, is_raised=config is not None or "dir" in overrides)
        return Run(text)
    for call in tuple(at_begin):  # a copy: added callbacks are for later runs
        call(_current)
    return _current


def start_as(name: str, who: Identity, **overrides: Any) -> Run:
    """Start this process's part of a run that another process has started.

    The other process prints the summary at the end.
    """
    give_identity(who)
    return start(name, **overrides)


def _warn_or_raise(error: ConfigError | JournalError, *, is_raised: bool) -> None:
    """Raise a ConfigError of the program's own settings; warn of any other error instead."""
    if is_raised and isinstance(error, ConfigError):
        raise error
    warn_once("%s; nothing is recorded", error)


def _can_record() -> bool:
    """Return whether this process and interpreter can record; warn if not."""
    if IS_WINDOWS:
        warn_once("otel_mlperf records on Linux and macOS: on Windows nothing is recorded, "
                  "but runs of other machines can be read")  # fmt: skip
        return False
    if in_subinterpreter():
        # File locks belong to a process: two recorders in one would share their locks.
        warn_once("otel_mlperf records only in the main interpreter of a process: nothing is "
                  "recorded in this subinterpreter")  # fmt: skip
        return False
    return True


def _is_left_out() -> bool:
    """Return whether a child of ``multiprocessing`` is still importing the main module.

    Workers of loaders and pools import it for its functions, and must not start runs by that. A
    function that the child executes later may start a run.
    """
    if not is_imported_again():
        return False
    note_left_out()
    return True


def current() -> Run | None:
    """Return the run that this process started last, active or not; None if there is none."""
    return _current


def _checked_params(params: Any) -> dict[str, Any]:
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(
            f"start(): params is a {type(params).__name__}, expected a mapping of names to values "
            "(e.g. vars(arguments))"
        )
    return dict(params or {})


def _checked_tags(tags: Any) -> list[str]:
    if isinstance(tags, str):
        return [tags]
    if not isinstance(tags, Iterable):
        raise ConfigError(f"start(): tags is a {type(tags).__name__}, expected a list of words")
    return list(map(str, tags))


def _checked_step(step: Any) -> int:
    try:
        if not isinstance(step, bool):
            return operator.index(step)
    except TypeError:
        pass
    raise ConfigError(f"start(): step is {step!r}, expected a whole number")


def _take_over(
    run: Run, settings: Config, params: dict[str, Any], tags: list[str], step: int
) -> Run:
    """Continue an automatically started run under its existing name, and return it."""
    from otel_mlperf.recorder.lifecycle.run_folder import add_facts

    assert run._recorder is not None
    assert run._taken_over is not None
    # Except the profiler schedule, which may still be set: windows are planned at steps.
    if replace(settings, profile=run._recorder.config.profile) != run._recorder.config:
        warn_once("settings passed to start() have no effect under 'otel-mlperf run': "
                  "set OTEL_MLPERF_* variables")  # fmt: skip
    run._recorder.stepping.set_next_number(step)
    if run._recorder.meta.rank == 0:
        add_facts(run._recorder.meta.run_folder, params, tags)
    taken_over, run._taken_over = run._taken_over, None
    taken_over()
    for call in at_takeover:
        call(run, settings)
    return run


def stop() -> None:
    """End the active run; without one, do nothing."""
    if _current is not None:
        _current.stop()
