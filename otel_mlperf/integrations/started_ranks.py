"""Child processes that are ranks of a recorded program's run, and how they join that run.

- Scripts that Lightning starts again receive the request in environment variables, which are set
  only during the start.
- A process of ``multiprocessing`` becomes a rank when it joins a process group, because its rank is
  not known earlier.
- The workers of Ray Train are ranks, and can query their rank.

Workers of loaders and pools, and other commands, receive no request.
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
    """Makes this process a rank of a run; the first argument is the run's name."""

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
"""Modules whose processes are helpers of their parent process: pools, loaders, a compiler."""
_PATH: Final = "PYTHONPATH"


class _Starts:
    """State of process starts: whether child processes join the run, and how many have started."""

    are_notified = False
    is_join_seen = False
    processes = 0
    """Number of processes started with ``multiprocessing``, without helpers."""


class _Gate:
    busy = False

    def __init__(self, of: Callable[[Any], AbstractContextManager[object]]) -> None:
        self.of = of


def watch_starts(join: Join) -> None:
    """Make processes that this program starts as ranks join the run, once torch is imported."""
    _Starts.are_notified = True
    after_import("torch", partial(_watch, join))


def leave_starts() -> None:
    """Stop notifying child processes, because the program starts its run itself."""
    _Starts.are_notified = False


def join_with_group(told: Autostart, join: Join) -> None:
    """Make this process, or a fork of it, a rank of the run as soon as it joins a process group."""
    if _Starts.is_join_seen:
        return
    _Starts.is_join_seen = True
    gate = _Gate(lambda _: _joining(told, join))
    # Woven only after torch is imported: woven functions query whether torch is compiling.
    after_import(
        "torch",
        lambda: after_import(_GROUPS, lambda: _weave(_GROUPS, "init_process_group", gate)),
    )


def script_rank(told: Autostart, environ: MutableMapping[str, str]) -> Identity:
    """Return the run in ``told`` and the rank in ``environ``, for a script started by Lightning."""
    local = _number(environ, "LOCAL_RANK")
    return Identity(
        run_id=told.run_id,
        rank=_number(environ, "NODE_RANK") * told.ranks_per_node + local,
        local_rank=local,
        world_size=max(1, _number(environ, "WORLD_SIZE")),
        restart=told.restart,
    )


def _watch(join: Join) -> None:
    scripts = _Gate(lambda launcher: _notified("this", getattr(launcher, "num_processes", 1)))
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
    request, recorder = _worker_request(), unreplaced()
    if request is None or recorder is None:
        return nullcontext()
    return ray_driver.recording_workers(trainer, request, recorder.meta.run_folder)


@harmless
def _worker_request() -> Autostart | None:
    return _of_this_run("this")


def _of_fresh_process(process: Any) -> AbstractContextManager[object]:
    if _is_worker(process):
        return nullcontext()
    _count_process()
    return _notified("group")


def _of_fork(join: Join, process: Any) -> AbstractContextManager[object]:
    # The forked child never leaves this context: everything created here is inherited by the child.
    if not _is_worker(process):
        _count_process()
        _await_forks(join)
    return nullcontext()


@harmless
def _count_process() -> None:
    recorder, metric = unreplaced(), names.STARTED_PROCESSES
    if _Starts.are_notified and recorder is not None and recorder.meta.pid == os.getpid():
        _Starts.processes += 1
        recorder.cells.set(metric.name, metric.unit, float(_Starts.processes))


@harmless
def _await_forks(join: Join) -> None:
    request = _of_this_run("group")
    if request is not None:
        join_with_group(request, join)


@harmless
def _is_worker(process: Any) -> bool:
    target = getattr(process, "_target", None)
    return str(getattr(target, "__module__", "")).startswith(_WORKERS)


@harmless
def _variables(scope: Literal["this", "group"], ranks_per_node: int) -> dict[str, str] | None:
    request = _of_this_run(scope, ranks_per_node)
    return None if request is None else request.put({})


def _of_this_run(scope: Literal["this", "group"], ranks_per_node: int = 1) -> Autostart | None:
    recorder = unreplaced()
    if not _Starts.are_notified or recorder is None or recorder.meta.pid != os.getpid():
        return None
    before = read_autostart(os.environ)
    path = os.environ.get(_PATH) if before is None else before.python_path
    meta = recorder.meta
    return Autostart(scope, meta.run_name, path, meta.run_id, meta.restart, ranks_per_node)


@contextmanager
def _notified(scope: Literal["this", "group"], ranks_per_node: int = 1) -> Iterator[None]:
    variables = _variables(scope, ranks_per_node) or {}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _joining(request: Autostart, join: Join) -> Iterator[None]:
    yield
    _join(request, join)


@harmless
def _join(request: Autostart, join: Join) -> None:
    recorder, groups = unreplaced(), sys.modules[_GROUPS]
    if recorder is not None and recorder.meta.pid == os.getpid():
        return  # this process is already recorded
    rank = groups.get_rank()
    who = Identity(
        run_id=request.run_id,
        rank=rank,
        local_rank=_number(os.environ, "LOCAL_RANK", rank),
        world_size=groups.get_world_size(),
        restart=request.restart,
    )
    join(request.name or "", who)


def _number(environ: MutableMapping[str, str], name: str, missing: int = 0) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else missing


def _weave(module: str, name: str, gate: _Gate, subject: str = "None") -> None:
    try:
        # Imported lazily: ``weave`` loads ``ast`` and ``inspect``.
        from otel_mlperf.pytorch.loop.weave import weave

        found = sys.modules[module]
        for word in name.split("."):
            found = getattr(found, word)
        weave(inspect.unwrap(found), gate, "_otel_mlperf_started", subject=subject)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - the program starts its ranks all the same
        raise_foreign(error)
        warn_once("ranks started by %s are not recorded: %s", module, error)
