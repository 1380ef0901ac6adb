"""Identity of this process: its program, run id, rank and restart.

Run id, rank and restart come from the environment that the launcher has set, so that all ranks
agree without communicating.
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

_MOST_DIGITS = 9
_NOT_DISTRIBUTED = "-1"
"""Value of LOCAL_RANK that scripts traditionally set without a launcher."""
_LONGEST_ID = 100
"""Maximum number of characters; every launcher's ids are shorter."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of this process among the processes of its run."""

    run_id: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    restart: int | None = None
    """None: the launcher does not count restarts."""
    warning: str = ""
    """A problem to warn about: nodes that cannot know of each other."""


_given: list[Identity] = []


def give_identity(who: Identity) -> None:
    """Set run and rank of the next run that this process starts."""
    _given[:] = [who]


def is_identity_given() -> bool:
    """Return whether the next run is one that another process has started."""
    return bool(_given)


def take_identity(wanted: str, earlier: dict[str, int]) -> Identity:
    """Return the identity that was set, once; else the detected one."""
    return _given.pop() if _given else detect_identity(wanted, earlier)


def detect_identity(
    wanted: str, earlier: dict[str, int], environ: Mapping[str, str] | None = None
) -> Identity:
    """Return rank, world size, restart and run id of this process.

    Args:
        wanted: the requested run id; empty for none.
        earlier: number of runs that this process has started per id; updated here.
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
    if rank is None and "SLURM_STEP_ID" in environ:  # outside a step the variables count a job
        world = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or 1
        nodes = _number(environ, "SLURM_STEP_NUM_NODES") or 1
        rank, local = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_LOCALID")
        return rank or 0, local or 0, max(1, world), nodes
    world = max(1, _number(environ, *_WORLD_SIZE) or 1)
    here = _number(environ, *_LOCAL_WORLD_SIZE)
    nodes = -(-world // here) if here else 1
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
    """Return the same 128 bits in all processes of one launcher on this boot; empty if unknown."""
    parent = os.getppid()
    try:
        boot, started = _portable_start(parent) if IS_PORTABLE else _kernel_start(parent)
    except (OSError, IndexError):
        return ""
    # Imported here: it costs 10 ms, and an importer of the package may never start a run.
    from hashlib import blake2b

    return blake2b(f"{boot}/{parent}/{started}".encode(), digest_size=16).hexdigest()


def _kernel_start(pid: int) -> tuple[str, str]:
    """Return the boot id, and the start time of a process after the boot.

    Raises:
        OSError: the kernel does not provide it.
        IndexError: its format is unknown.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return boot, file.read().rpartition(")")[2].split()[19]


def _portable_start(pid: int) -> tuple[str, str]:
    """Return the machine's name, and the second in which a process started.

    Raises:
        OSError: there is no ``ps``, or it does not print the time.
    """
    import subprocess  # psutil would know it too, but is not loaded into the training process

    asked = ["ps", "-o", "lstart=", "-p", str(pid)]
    started = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not started:
        raise ProcessLookupError(pid)
    return host_name(), started


def _number(environ: Mapping[str, str], *variables: str) -> int | None:
    for variable in variables:
        text = environ.get(variable, "").strip()
        # The length first: Python refuses to parse thousands of digits.
        if text.isdecimal() and len(text) <= _MOST_DIGITS:
            return int(text)
        if text not in ("", _NOT_DISTRIBUTED):
            warn_once(f"{variable}={text:.40} is not a valid number and is ignored")
    return None


def _short_enough(run_id: str) -> str:
    """Return the id, or on all ranks the same shorter id: paths and the journal lack room."""
    if len(run_id) <= _LONGEST_ID:
        return run_id
    from hashlib import blake2b

    check = blake2b(run_id.encode("utf-8", "replace"), digest_size=8).hexdigest()
    shorter = f"{run_id[: _LONGEST_ID - len(check) - 1]}-{check}"
    warn_once(f"the run id has {len(run_id):,} characters and is shortened to {shorter}")
    return shorter


def script_name() -> str:
    """Return the name of the running script or module; ``run`` if there is none."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__").rpartition(".")[2]
    if is_notebook():
        return "notebook"
    stem = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    return stem if stem not in ("", "-c", "-m") else "run"


def is_notebook() -> bool:
    """Return whether a notebook runs the program; those of clouds have custom shells."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    kinds = type(get()).__mro__ if get is not None else ()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in kinds)


def in_subinterpreter() -> bool:
    """Return whether this is not the process's first interpreter."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = importlib.import_module(name)
    except ImportError:  # another Python implementation
        return False
    return bool(interpreters.get_current() != interpreters.get_main())


def is_imported_again() -> bool:
    """Return whether a spawned child is importing the program's main module, before its work."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and hasattr(processes.current_process(), "_inheriting")


def is_interactive() -> bool:
    """Return whether the program is typed: an exception there ends a statement, not a run."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    typed = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return typed or (get is not None and get() is not None)


def parse_resource(text: str) -> dict[str, str | int | float | bool]:
    """Return the resource attributes of OTEL_RESOURCE_ATTRIBUTES; warn about invalid parts."""
    from urllib.parse import unquote

    # Bytes of the environment that are no UTF-8 are surrogates, which the journal cannot store.
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
