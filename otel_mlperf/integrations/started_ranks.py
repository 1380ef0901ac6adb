"""Started processes that are ranks of the run of a recorded program, and how they join it.

A script that Lightning starts once more is notified through its environment, which contains the
variables only while the script is started. A process of ``multiprocessing`` is a rank as soon as it
joins a process group: only there is its rank known. The workers of Ray Train are ranks, too, and
know it. Workers of loaders and of pools, and commands, are not notified.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.integrations import ray_driver
from otel_mlperf.integrations.after_import import after_import
from otel_mlperf.integrations.integration import harmless
from otel_mlperf.integrations.start_request import Autostart, read_autostart
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.recorder.core.recording import unreplaced
from otel_mlperf.recorder.lifecycle.run_identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping
    from contextlib import AbstractContextManager

    Join = Callable[[str, Identity], None]
    """Makes this process a rank of a run, whose name is the first argument."""

_SCRIPT_STARTERS: Final = tuple(
    f"{package}.strategies.launchers.subprocess_script"
    for package in (
        "lightning.fabric",
        "lightning.pytorch",
        "lightning_fabric",
        "pytorch_lightning",
    )
)
_GROUPS: Final = "torch.distributed.distributed_c10d"
_WORKERS: Final = ("concurrent.", "multiprocessing.", "torch.utils.data.", "torch._inductor.")
"""Modules whose processes work for the process that starts them: pools, loaders, a compiler."""
_PATH: Final = "PYTHONPATH"


class _Starts:
    """Whether started processes are notified of the run; not once the program reports it."""

    are_told = False
    is_join_seen = False
    processes = 0
    """Number of its own processes that the program has started with ``multiprocessing``."""


class _Gate:
    """The context in which a woven function runs."""

    busy = False

    def __init__(self, of: Callable[[Any], AbstractContextManager[object]]) -> None:
        self.of = of


def watch_starts(join: Join) -> None:
    """Make ranks that this program starts with torch belong to its run, from now on."""
    _Starts.are_told = True
    after_import("torch", partial(_watch, join))


def leave_starts() -> None:
    """Stop notifying started processes: the program itself reports what is recorded."""
    _Starts.are_told = False


def join_with_group(told: Autostart, join: Join) -> None:
    """Make this process, or a fork of it, a rank of that run once it joins a process group."""
    if _Starts.is_join_seen:
        return
    _Starts.is_join_seen = True
    gate = _Gate(lambda _: _joining(told, join))
    # After torch: woven functions query whether it compiles, which works only then.
    after_import(
        "torch",
        lambda: after_import(_GROUPS, lambda: _weave(_GROUPS, "init_process_group", gate)),
    )


def script_rank(told: Autostart, environ: MutableMapping[str, str]) -> Identity:
    """Return the identity of a script that was started once more."""
    local = _number(environ, "LOCAL_RANK")
    return Identity(
        run_id=told.run_id,
        rank=_number(environ, "NODE_RANK") * told.ranks_here + local,
        local_rank=local,
        world_size=max(1, _number(environ, "WORLD_SIZE")),
        restart=told.restart,
    )


def _watch(join: Join) -> None:
    scripts = _Gate(lambda launcher: _telling("this", getattr(launcher, "num_processes", 1)))
    for module in _SCRIPT_STARTERS:
        name = "_SubprocessScriptLauncher._call_children_scripts"
        after_import(module, partial(_weave, module, name, scripts, "self"))
    workers = _Gate(_of_trainer)
    module = ray_driver.MODULE
    after_import(module, partial(_weave, module, ray_driver.FUNCTION, workers, "self"))
    fresh, forks = _Gate(_of_fresh_process), _Gate(partial(_of_fork, join))
    for way, gate in (("spawn_posix", fresh), ("forkserver", fresh), ("fork", forks)):
        module = f"multiprocessing.popen_{way}"
        after_import(module, partial(_weave, module, "Popen._launch", gate, "process_obj"))


def _of_trainer(trainer: Any) -> AbstractContextManager[object]:
    told, recorder = _told_workers(), unreplaced()
    if told is None or recorder is None:
        return nullcontext()
    return ray_driver.telling_workers(trainer, told, recorder.meta.run_folder)


@harmless
def _told_workers() -> Autostart | None:
    return _of_this_run("this")


def _of_fresh_process(process: Any) -> AbstractContextManager[object]:
    if _is_worker(process):
        return nullcontext()
    _count_process()
    return _telling("group")


def _of_fork(join: Join, process: Any) -> AbstractContextManager[object]:
    # The child stays inside for all its life: only what it may inherit may be made here.
    if not _is_worker(process):
        _count_process()
        _await_forks(join)
    return nullcontext()


@harmless
def _count_process() -> None:
    recorder, metric = unreplaced(), names.STARTED_PROCESSES
    if _Starts.are_told and recorder is not None and recorder.meta.pid == os.getpid():
        _Starts.processes += 1
        recorder.cells.set(metric.name, metric.unit, float(_Starts.processes))


@harmless
def _await_forks(join: Join) -> None:
    told = _of_this_run("group")
    if told is not None:
        join_with_group(told, join)


@harmless
def _is_worker(process: Any) -> bool:
    target = getattr(process, "_target", None)
    return str(getattr(target, "__module__", "")).startswith(_WORKERS)


@harmless
def _variables(scope: Literal["this", "group"], ranks_here: int) -> dict[str, str] | None:
    told = _of_this_run(scope, ranks_here)
    return None if told is None else told.put({})


def _of_this_run(scope: Literal["this", "group"], ranks_here: int = 1) -> Autostart | None:
    recorder = unreplaced()
    if not _Starts.are_told or recorder is None or recorder.meta.pid != os.getpid():
        return None
    before = read_autostart(os.environ)
    path = os.environ.get(_PATH) if before is None else before.python_path
    meta = recorder.meta
    return Autostart(scope, meta.run_name, path, meta.run_id, meta.restart, ranks_here)


@contextmanager
def _telling(scope: Literal["this", "group"], ranks_here: int = 1) -> Iterator[None]:
    told = _variables(scope, ranks_here) or {}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _joining(told: Autostart, join: Join) -> Iterator[None]:
    yield
    _join(told, join)


@harmless
def _join(told: Autostart, join: Join) -> None:
    recorder, groups = unreplaced(), sys.modules[_GROUPS]
    if recorder is not None and recorder.meta.pid == os.getpid():
        return  # it records already
    rank = groups.get_rank()
    who = Identity(
        run_id=told.run_id,
        rank=rank,
        local_rank=_number(os.environ, "LOCAL_RANK", rank),
        world_size=groups.get_world_size(),
        restart=told.restart,
    )
    join(told.name or "", who)


def _number(environ: MutableMapping[str, str], name: str, missing: int = 0) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else missing


def _weave(module: str, name: str, gate: _Gate, subject: str = "None") -> None:
    try:
        # Imported here: it loads Python's syntax tools.
        from otel_mlperf.pytorch.loop.weave import weave

        found = sys.modules[module]
        for word in name.split("."):
            found = getattr(found, word)
        weave(inspect.unwrap(found), gate, "_otel_mlperf_started", subject=subject)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - the program starts its ranks all the same
        raise_foreign(error)
        warn_once("ranks started by %s are not recorded: %s", module, error)
