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
from otel_mlperf.otlp.histogram import Buckets
from otel_mlperf.otlp.metric_encoding import Exemplar
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from pathlib import Path


JOURNAL: Final = "journal"
"""The source of what processes add up in cells."""


class SentTotal(msgspec.Struct, array_like=True):
    """What a series had come to at its previous export, for deltas."""

    start_ns: int = 0
    """Of the series, then: another one now means that it started again."""
    time_ns: int = 0
    value: float = 0.0
    count: int = 0
    """Of a histogram, as are the next ones."""
    zeros: int = 0
    scale: int = 0
    offset: int = 0
    counts: list[int] = []


class MetricSeries(msgspec.Struct):
    """One metric series of a rank or of the node: a sum, a last value or a histogram."""

    metric: str
    labels: dict[str, str]
    value: float = 0.0
    buckets: Buckets | None = None
    exemplars: list[Exemplar] = []
    exemplar_ns: int = 0
    """Time of the newest exemplar that a process gave: each is sent once."""
    sent: bool = False
    """Whether a zero point has started it at the server."""
    gone: bool = False
    """Whether it has no value any more: the server is told once, then it is forgotten."""
    source: str = ""
    """Of the readings that it belongs to; empty: it is worked out at each mark from rows."""
    read_ns: int = 0
    """When it was read last."""
    start_ns: int = 0
    """Since when a total has been followed that began before that; 0: from zero, by ourselves."""
    sent_total: SentTotal | None = None
    """With deltas, what was sent of it; None: nothing."""

    @property
    def is_observed(self) -> bool:
        """Whether a sensor reads its total, which somebody else counts."""
        return self.source not in {"", JOURNAL}


class RankState(msgspec.Struct):
    """What is summed up for a rank over all its processes."""

    meta: JournalMeta
    instance: str
    series: dict[str, MetricSeries] = {}
    totals: dict[str, SeriesTotal] = {}
    """What series of journals that have ended had counted, by key."""
    places: set[str] = set()
    """Keys of the labelled series that processes of the rank keep themselves."""
    lost: dict[str, int] = {}
    """What journals that have ended had lost beside rows, by reason."""
    redacted: int = 0
    """Values hidden in journals that have ended."""
    user: dict[str, list[str]] = {}
    """Unit, instrument and perhaps scope of what the program itself counts, by metric name."""
    step_ns: dict[str, list[int]] = {}
    """The last hundred durations by phase, or by section name outside steps."""
    longest_ns: dict[str, int] = {}
    """Of those that were kept, by the same; without the very first, which is warm-up."""
    seen: dict[str, int] = {}
    """How many sections of a name were seen outside steps: first and every hundredth are kept."""
    run_spans: int = 0
    """Spans sent of the run's trace."""
    marks: list[tuple[int, str, str, int]] = []
    """The first of what the program marked, for the run's span: Unix time, name, phase and step."""
    marks_left_out: int = 0
    lately: dict[str, list[int]] = {}
    """Times at which a trace was kept for being slow or in error, over the last minute."""
    live: bool = True

    @property
    def resource(self) -> dict[str, Any]:
        """Who speaks in its requests: the same for all its processes, whichever agent sends."""
        meta = self.meta
        return _resource(meta, self.instance) | {
            names.PROCESS_PID: meta.pid,
            names.RANK: meta.rank,
            names.LOCAL_RANK: meta.local_rank,
            names.WORLD_SIZE: meta.world_size,
            names.RESTART: meta.restart,
        }


class ItemAccount(msgspec.Struct):
    """What became of the items of one signal at one destination."""

    created: int = 0
    delivered: int = 0
    rolled_up: int = 0
    unselected: int = 0
    lost: dict[str, int] = {}


class AgentState(msgspec.Struct):
    """Everything; ``segment`` is the first of the event log that it does not contain."""

    segment: int = 1
    logged: int = 0
    """How much of that segment it contains, in bytes."""
    journals: dict[str, JournalState] = {}
    finished: list[str] = []
    """Journals that were read to their end and whose files may still be there."""
    ranks: dict[str, RankState] = {}
    series: dict[str, MetricSeries] = {}
    """Of the node: the accounts, and readings of no rank in particular."""
    accounts: dict[str, ItemAccount] = {}
    """By "signal/destination"."""
    part: int = 1
    """Number of the next table part."""
    request: int = 1
    """Number of the next request."""
    pending: list[int] = []
    """Requests whose outcome is not in the accounts."""
    windows: dict[str, str] = {}
    """Profiler windows that are done with, by the name of their description: the digest of the
    trace; empty for one that could not be converted."""
    gone: dict[str, str] = {}
    """Devices that do not answer: ``hw.id`` to what was said about it."""
    findings: dict[str, WarningHeld] = {}
    """Those that hold, by what tells one from all others, as they were seen last."""
    metrics: dict[str, Metric] = {}
    """By name those that sensors of other packages say."""
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
    """By rank the number of the step that ended last; -1: of any rank."""

    def rank_of(self, journal: JournalState) -> RankState:
        """What is summed up for the rank of a journal."""
        return self.ranks[journal.instance]

    def seen_ranks(self) -> dict[int, bool]:
        """The ranks of this node, and whether each still runs; may be asked by any thread."""
        ranks = sorted([*self.ranks.values()], key=lambda rank: rank.meta.restart)
        return {rank.meta.rank: rank.live for rank in ranks}

    @property
    def resource(self) -> dict[str, Any]:
        """Who speaks where the agent of the node does: what it counts belongs to no rank."""
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
    """The state at ``path``; a new one if there is none yet.

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
    """Replaces the state at ``path``, whole or not at all."""
    write_whole(path, msgspec.msgpack.encode(state), is_durable=True)
