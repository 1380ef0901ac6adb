"""Deterministic ids of traces and instances, which ranks compute without communication.

The module also converts texts to file names.
"""

from __future__ import annotations

import re
import uuid
from hashlib import blake2b

_NAMESPACE = uuid.UUID("6f74656c-6d6c-7065-7266-000000000000")
_RUN_LOOP = "run"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def trace_id(run_id: str, restart: int, loop: str, n: int) -> int:
    """Return the 128-bit trace id of the ``n``-th step (from 0) that a rank started in ``loop``.

    All ranks compute the same id, so that a step is one trace over all ranks. The id is never zero,
    the value for "no trace" in OpenTelemetry.
    """
    text = f"{run_id}\0{restart}\0{loop}\0{n}".encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=16).digest(), "big") or 1


def run_trace_id(run_id: str, restart: int) -> int:
    """Return the id of a run's own trace, which contains everything outside steps."""
    return trace_id(run_id, restart, _RUN_LOOP, 0)


def lone_trace_id(run_id: str, span_id: int) -> int:
    """Return the trace id of a section that has neither an enclosing section nor a run."""
    return trace_id(run_id, 0, "section", span_id)


def instance_id(run_id: str, restart: int, rank: int) -> str:
    """Return the ``service.instance.id`` of a rank, a version 5 UUID.

    The id stays the same if the agent restarts.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{run_id}/{restart}/{rank}"))


def safe_name(text: str, limit: int = 64) -> str:
    """Convert ``text`` to a file name of letters, digits, dots, dashes and underscores.

    The name is never empty or hidden. Text from users cannot determine the folder in which a file
    is written: ``../x`` becomes ``x``.
    """
    return _UNSAFE.sub("_", text).lstrip("._-")[:limit] or "unnamed"


def hashed_name(text: str) -> str:
    """Return ``safe_name(text)`` with a hash, so that "exp 1" and "exp:1" have different names."""
    mark = blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{safe_name(text, 128)}-{mark}"
