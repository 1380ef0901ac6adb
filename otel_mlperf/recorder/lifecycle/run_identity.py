"""Identity of this process: its program, run id, rank and restart.

Run id, rank and restart come from environment variables of the launcher, so that all ranks agree
without communication.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_mlperf.portability import IS_PORTABLE, host_name
from otel_mlperf.recorder.core.faults import log, warn_once
from otel_mlperf.redaction import IN_PROCESS

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_WORLD_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

_MAX_DIGITS = 9
_NOT_DISTRIBUTED = "-1"
"""Value of LOCAL_RANK that scripts traditionally use without a launcher."""
_LONGEST_ID = 100
"""Maximum number of characters of a run id; the ids of all launchers are shorter."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of this process among the processes of its run."""

    run_id: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    restart: int | None = None
    """Number of restarts that the launcher counted; None if it counts none."""
    warning: str = ""
    """Warning about the identity, e.g. that nodes have no run id in common; or empty."""


_given: list[Identity] = []


def give_identity(who: Identity) -> None:
    """Set the identity for the next run that this process starts."""
    _given[:] = [who]


def is_identity_given() -> bool:
    """Return whether an identity is set for the next run; if so, another process started it."""
    return bool(_given)


def take_identity(wanted: str, earlier: dict[str, int]) -> Identity:
    """Return and clear the identity set for the next run; if none is set, detect it."""
    return _given.pop() if _given else detect_identity(wanted, earlier)


def detect_identity(
    wanted: str, earlier: dict[str, int], environ: Mapping[str, str] | None = None
) -> Identity:
    """Derive the identity of this process from its environment.

    Args:
        wanted: the requested run id; empty: detect it.
        earlier: number of runs that this process has started, by id; updated here.
        environ: the environment (default: ``os.environ``).
    """
    environ = os.environ if environ is None else environ
    rank, local_rank, world_size, nodes = _detect_place(environ)
    run_id, warning = wanted or _detect_run_id(environ), ""
    if not run_id:
        run_id = (_launcher_id() if world_size > 1 else "") or os.urandom(16).hex()
        if nodes > 1:
            warning = (
                f"{nodes} nodes without a common run id: each node becomes a separate run; set "
                "OTEL_MLPERF_RUN_ID to the same value on all nodes (torchrun: --rdzv-id)"
            )
    run_id = _short_enough(run_id)
    earlier[run_id] = count = earlier.get(run_id, 0) + 1
    if count > 1:
        run_id = f"{run_id}.{count}"
    return Identity(
        run_id=run_id,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        restart=_detect_restart(environ),
        warning=warning,
    )


def _detect_place(environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return rank, local rank, world size and number of nodes."""
    rank = _number(environ, *_RANK)
    local = _number(environ, *_LOCAL_RANK)
    if rank is None and "SLURM_STEP_ID" in environ:  # otherwise the variables describe the job
        world = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or 1
        nodes = _number(environ, "SLURM_STEP_NUM_NODES") or 1
        rank, local = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_LOCALID")
        return rank or 0, local or 0, max(1, world), nodes
    world = max(1, _number(environ, *_WORLD_SIZE) or 1)
    local_world = _number(environ, *_LOCAL_WORLD_SIZE)
    nodes = -(-world // local_world) if local_world else 1
    return rank or 0, local if local is not None else (rank or 0), world, nodes


def _detect_run_id(environ: Mapping[str, str]) -> str:
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if job and step:
        return f"slurm-{job}.{step}"
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if elastic in ("", "none") else elastic


def _detect_restart(environ: Mapping[str, str]) -> int | None:
    return _number(environ, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def _launcher_id() -> str:
    """Return an id that all processes of the launcher on this host share; empty if unknown."""
    parent = os.getppid()
    try:
        boot, started = _portable_start(parent) if IS_PORTABLE else _kernel_start(parent)
    except (OSError, IndexError):
        return ""
    # Imported on demand: it costs 10 ms, and a program that imports the package may start no run.
    from hashlib import blake2b

    return blake2b(f"{boot}/{parent}/{started}".encode(), digest_size=16).hexdigest()


def _kernel_start(pid: int) -> tuple[str, str]:
    """Return the boot id, and the start time of a process in clock ticks since the boot.

    Raises:
        OSError: the kernel does not provide one of the values.
        IndexError: the format of the start time is unknown.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return boot, file.read().rpartition(")")[2].split()[19]


def _portable_start(pid: int) -> tuple[str, str]:
    """Return the host's name, and the second in which a process started, as text.

    Raises:
        OSError: ``ps`` is missing, or does not print the time.
    """
    import subprocess  # not psutil, which is never loaded into the training process

    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    started = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not started:
        raise ProcessLookupError(pid)
    return host_name(), started


def _number(environ: Mapping[str, str], *variables: str) -> int | None:
    for variable in variables:
        text = environ.get(variable, "").strip()
        # Limit the length: Python refuses to parse thousands of digits.
        if text.isdecimal() and len(text) <= _MAX_DIGITS:
            return int(text)
        if text not in ("", _NOT_DISTRIBUTED):
            warn_once(f"{variable}={text:.40} is not a valid number and is ignored")
    return None


def _short_enough(run_id: str) -> str:
    """Return the id; a long one is shortened equally on all ranks, for paths and the journal."""
    if len(run_id) <= _LONGEST_ID:
        return run_id
    from hashlib import blake2b

    check = blake2b(run_id.encode("utf-8", "replace"), digest_size=8).hexdigest()
    shorter = f"{run_id[: _LONGEST_ID - len(check) - 1]}-{check}"
    warn_once(f"the run id has {len(run_id):,} characters and is shortened to {shorter}")
    return shorter


def script_name() -> str:
    """Return the name of the running script or module, ``notebook``, or ``run`` if unknown."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__").rpartition(".")[2]
    if is_notebook():
        return "notebook"
    stem = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    return stem if stem not in ("", "-c", "-m") else "run"


def is_notebook() -> bool:
    """Return whether the program runs in a notebook, even one whose shell is a subclass."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    kinds = type(get()).__mro__ if get is not None else ()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in kinds)


def in_subinterpreter() -> bool:
    """Return whether the code runs in a subinterpreter of the process."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = importlib.import_module(name)
    except ImportError:  # another Python implementation
        return False
    return bool(interpreters.get_current() != interpreters.get_main())


def is_imported_again() -> bool:
    """Return whether this is a spawned child that is still importing the main module."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and hasattr(processes.current_process(), "_inheriting")


def is_interactive() -> bool:
    """Return whether the program is typed interactively, so exceptions do not end the run."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    typed = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return typed or (get is not None and get() is not None)


def parse_resource(text: str) -> dict[str, str | int | float | bool]:
    """Parse OTEL_RESOURCE_ATTRIBUTES, redact secrets, and warn about invalid parts."""
    from urllib.parse import unquote

    # Replace surrogates, which stand for bytes that are not UTF-8: the journal cannot store them.
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    attributes: dict[str, str | int | float | bool] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            log.warning(
                "OTEL_RESOURCE_ATTRIBUTES: %r is not of the form 'name=value' and is ignored", pair
            )
            continue
        attributes[unquote(key.strip())] = unquote(value.strip())
    return IN_PROCESS.values(attributes)
