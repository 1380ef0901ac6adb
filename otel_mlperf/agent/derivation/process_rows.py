"""How does a process's life so far look in the run folder?"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_mlperf.agent.model.journal_state import JournalState

_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


def process_row(journal: JournalState) -> dict[str, Any]:
    """The row of table ``processes``."""
    meta = journal.meta
    error_type, error_message = [*journal.error, "", ""][:2]
    return {
        "rank": meta.rank,
        "restart": meta.restart,
        "local_rank": meta.local_rank,
        "world_size": meta.world_size,
        "pid": meta.pid,
        "host": meta.host,
        "service": meta.service,
        "start_ns": meta.unix_ns,
        "end_ns": journal.ended_ns + meta.shift_ns if journal.ended_ns else 0,
        "outcome": journal.outcome,
        "error_type": error_type,
        "error_message": error_message,
        "error_step": journal.error_step,
        "error_section": journal.error_section,
        "result": json.dumps(journal.result, default=str, ensure_ascii=False),
        "sections": journal.sections,
        "overhead_ns": journal.sections * meta.cost_ns,
        "instance_id": journal.instance,
        "has_gpu": any(map(os.path.exists, _GPU_DEVICES)),
    }
