"""Who speaks, in the resource of each request?"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from otel_mlperf import ids, names

if TYPE_CHECKING:
    from otel_mlperf.journal.meta import JournalMeta


def rank_attributes(meta: JournalMeta) -> dict[str, Any]:
    """The resource of a rank: the same for all its processes, whichever agent sends."""
    return dict(meta.resource) | {
        names.SERVICE_NAME: meta.service,
        names.SERVICE_INSTANCE_ID: ids.instance_id(meta.run_id, meta.restart, meta.rank),
        names.HOST_NAME: meta.host,
        names.RUN_ID: meta.run_id,
        names.RUN_NAME: meta.run_name,
        names.RANK: meta.rank,
        names.LOCAL_RANK: meta.local_rank,
        names.WORLD_SIZE: meta.world_size,
        names.RESTART: meta.restart,
    }


def agent_attributes(meta: JournalMeta) -> dict[str, Any]:
    """The resource of the agent of a node: what it counts belongs to no rank."""
    instance = uuid.uuid5(uuid.UUID(ids.instance_id(meta.run_id, 0, -1)), meta.host)
    return dict(meta.resource) | {
        names.SERVICE_NAME: meta.service,
        names.SERVICE_INSTANCE_ID: str(instance),
        names.HOST_NAME: meta.host,
        names.RUN_ID: meta.run_id,
        names.RUN_NAME: meta.run_name,
    }
