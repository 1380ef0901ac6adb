"""State of the agent that cannot be read again from a journal.

It is one tree of structs, written as a whole after every flush. A new agent loads it and replays
the events that came after.
"""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import ids, names
from otel_mlperf.agent.model.distribution import SeriesTotal
from otel_mlperf.agent.model.events import WarningHeld
from otel_mlperf.agent.model.journal_state import JournalState
from otel_mlperf.agent.model.scalar_item import ScalarItem
from otel_mlperf.errors import StoreError
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.names import Metric
from otel_mlperf.otlp.deltas import SentTotal
from otel_mlperf.otlp.histogram import Buckets
from otel_mlperf.otlp.metric_encoding import Exemplar
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from pathlib import Path


JOURNAL: Final = "journal"
"""Source of what processes add up in cells."""


class MetricSeries(msgspec.Struct):
    """Metric series of a rank or of the node: a sum, a last value or a histogram."""

    metric: str
    labels: dict[str, str]
    value: float = 0.0
    buckets: Buckets | None = None
    exemplars: list[Exemplar] = []
    exemplar_ns: int = 0
    """Time of the newest exemplar of a process: each is sent once."""
    sent: bool = False
    """Whether a zero point has started it at the server."""
    gone: bool = False
    """Whether it has no value any more: the server is notified once, then it is forgotten."""
    source: str = ""
    """Source of its readings; empty: it is derived from rows at each mark."""
    read_ns: int = 0
    """Time of the last reading."""
    start_ns: int = 0
    """Time since which a total has been followed that started earlier; 0: counted from zero by
    ourselves."""
    sent_total: SentTotal | None = None
    """With deltas, its last sent total; None: nothing was sent."""

    @property
    def is_observed(self) -> bool:
        """Return whether a sensor reads its total, which is counted outside the agent."""
        return self.source not in {"", JOURNAL}


class RankState(msgspec.Struct):
    """State of a rank, summed over all its processes."""

    meta: JournalMeta
    instance: str
    series: dict[str, MetricSeries] = {}
    totals: dict[str, SeriesTotal] = {}
    """Totals of journals that have ended, by key of the series."""
    places: set[str] = set()
    """Keys of the labelled series that processes of the rank keep themselves."""
    lost: dict[str, int] = {}
    """Losses besides rows of journals that have ended, by reason."""
    redacted: int = 0
    """Values hidden in journals that have ended."""
    user: dict[str, list[str]] = {}
    """Unit, instrument and perhaps scope of the program's own metrics, by metric name."""
    step_ns: dict[str, list[int]] = {}
    """The last hundred durations by phase, or by section name outside steps."""
    longest_ns: dict[str, int] = {}
    """Longest sampled duration by the same keys; without the very first, which is warm-up."""
    seen: dict[str, int] = {}
    """Number of sections of a name seen outside steps: first and every hundredth are sampled."""
    run_spans: int = 0
    """Number of spans sent of the run's trace."""
    marks: list[tuple[int, str, str, int]] = []
    """The first marks of the program, for the run's span: Unix time, name, phase and step."""
    marks_left_out: int = 0
    lately: dict[str, list[int]] = {}
    """Times at which a trace was sampled for being slow or in error, over the last minute."""
    live: bool = True

    @property
    def resource(self) -> dict[str, Any]:
        """Return the resource of its requests, the same for all its processes and agents."""
        meta = self.meta
        return _resource(meta, self.instance) | {
            names.PROCESS_PID: meta.pid,
            names.RANK: meta.rank,
            names.LOCAL_RANK: meta.local_rank,
            names.WORLD_SIZE: meta.world_size,
            names.RESTART: meta.restart,
        }


class ItemAccount(msgspec.Struct):
    """Account of the items of one signal at one destination."""

    created: int = 0
    delivered: int = 0
    rolled_up: int = 0
    unselected: int = 0
    lost: dict[str, int] = {}


class AgentState(msgspec.Struct):
    """Complete state.

    ``segment`` is the first segment of the event log that it does not contain.
    """

    segment: int = 1
    logged: int = 0
    """Size of the contained part of that segment, in bytes."""
    journals: dict[str, JournalState] = {}
    finished: list[str] = []
    """Journals that were read to their end and whose files may still be there."""
    ranks: dict[str, RankState] = {}
    series: dict[str, MetricSeries] = {}
    """Series of the node: the accounts, and readings of no rank in particular."""
    accounts: dict[str, ItemAccount] = {}
    """By "signal/destination"."""
    part: int = 1
    """Number of the next table part."""
    request: int = 1
    """Number of the next request."""
    pending: list[int] = []
    """Requests whose outcome is not in the accounts."""
    windows: dict[str, str] = {}
    """Finished profiler windows, by the name of their description: the digest of the trace; empty
    for one that could not be converted."""
    gone: dict[str, str] = {}
    """Devices that do not answer: ``hw.id`` to the reason."""
    findings: dict[str, WarningHeld] = {}
    """Findings that hold, by a unique key, as they were seen last."""
    metrics: dict[str, Metric] = {}
    """Metrics of sensors of other packages, by name."""
    began_ns: int = 0
    exported_ns: int = 0
    totalled_ns: int = 0
    """When the totals of the program's own metrics were stored last."""
    flushed_ns: int = 0
    scalars: list[ScalarItem] = []
    """Points for trackers that wait for their batch."""
    page_due: bool = False
    """Whether a process has come since the page of the run was made."""
    scalars_ns: int = 0
    """When the last batch of them was made."""
    last_steps: dict[int, int] = {}
    """Number of the step that ended last by rank; -1: of any rank."""

    def rank_of(self, journal: JournalState) -> RankState:
        """Return the state of the rank of a journal."""
        return self.ranks[journal.instance]

    def seen_ranks(self) -> dict[int, bool]:
        """Return the ranks of this node, and whether each still runs. Thread-safe."""
        ranks = sorted([*self.ranks.values()], key=lambda rank: rank.meta.restart)
        return {rank.meta.rank: rank.live for rank in ranks}

    @property
    def resource(self) -> dict[str, Any]:
        """Return the resource of the node's agent, whose counts belong to no rank."""
        meta = next(iter(self.ranks.values())).meta
        of_run = uuid.UUID(ids.instance_id(meta.run_id, 0, -1))
        return _resource(meta, str(uuid.uuid5(of_run, meta.host)))


def _resource(meta: JournalMeta, instance: str) -> dict[str, Any]:
    return (
        {names.OS_TYPE: sys.platform}
        | dict(meta.resource)
        | names.SDK
        | {
            names.SERVICE_NAME: meta.service,
            names.SERVICE_INSTANCE_ID: instance,
            names.HOST_NAME: meta.host,
            names.RUN_ID: meta.run_id,
            names.RUN_NAME: meta.run_name,
        }
    )


def load_state(path: Path) -> AgentState:
    """Load the state at ``path``; a new one if there is no file yet.

    Raises:
        StoreError: it is damaged, or from another version.
    """
    try:
        return msgspec.msgpack.decode(read_regular(path), type=AgentState)
    except FileNotFoundError:
        return AgentState()
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise StoreError(f"reading the agent's state {path}: {error}") from error


def write_state(path: Path, state: AgentState) -> None:
    """Replace the state at ``path``, whole or not at all."""
    write_whole(path, msgspec.msgpack.encode(state), is_durable=True)
