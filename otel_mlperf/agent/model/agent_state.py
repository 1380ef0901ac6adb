"""State of the agent that cannot be read again from journals: one tree of structs.

The state is written as a whole after every flush. A restarted agent loads the state and replays the
later events.
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
"""Value of ``MetricSeries.source`` for series that processes accumulate in journal cells."""


class MetricSeries(msgspec.Struct):
    """Metric series of a rank or of the node: a sum, a last value or a histogram."""

    metric: str
    labels: dict[str, str]
    value: float = 0.0
    buckets: Buckets | None = None
    exemplars: list[Exemplar] = []
    exemplar_ns: int = 0
    """Time of the newest exemplar read from a journal: older exemplars were already sent."""
    sent: bool = False
    """Whether the series was exported before. The first export includes a zero point."""
    gone: bool = False
    """Whether the series has ended: the end is exported once, then the series is removed."""
    source: str = ""
    """Name of the sensor source that reads the series, or ``JOURNAL``; empty if the series is
    derived from rows at each mark."""
    read_ns: int = 0
    """Time of the last reading."""
    start_ns: int = 0
    """For a total that is counted outside this package: time of the first reading since the total
    last restarted. 0 if this package counts the total, starting from zero."""
    sent_total: SentTotal | None = None
    """With delta temporality: the total sent last; None if nothing was sent."""

    @property
    def is_observed(self) -> bool:
        """Return whether a sensor reads the series, whose total is then counted elsewhere."""
        return self.source not in {"", JOURNAL}


class RankState(msgspec.Struct):
    """State of a rank, summed over all its processes."""

    meta: JournalMeta
    instance: str
    series: dict[str, MetricSeries] = {}
    totals: dict[str, SeriesTotal] = {}
    """Totals of ended journals, by series key."""
    places: set[str] = set()
    """Keys of the labelled series that processes of the rank accumulate in cells."""
    lost: dict[str, int] = {}
    """Losses in ended journals, except lost rows, by reason."""
    redacted: int = 0
    """Number of values that were redacted in ended journals."""
    user: dict[str, list[str]] = {}
    """Unit, instrument and optional scope of the user's own metrics, by metric name."""
    step_ns: dict[str, list[int]] = {}
    """The last hundred durations by phase, or by section name outside steps."""
    longest_ns: dict[str, int] = {}
    """Longest sampled duration, by the same keys. Excludes the first call, which is warm-up."""
    seen: dict[str, int] = {}
    """Number of sections seen outside steps, by name. The sampling schedule uses it as index."""
    run_spans: int = 0
    """Number of spans sent for the run's trace."""
    marks: list[tuple[int, str, str, int]] = []
    """First marks that the user's program set, to be sent with the run's span: Unix time, name,
    phase and step number."""
    marks_left_out: int = 0
    lately: dict[str, list[int]] = {}
    """Times in the last minute at which a slow or failed step or section was sampled, by reason."""
    live: bool = True

    @property
    def resource(self) -> dict[str, Any]:
        """Return the OpenTelemetry resource attributes that all processes of the rank share."""
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
    """Complete state of an agent.

    ``segment`` is the number of the first event-log segment that the state does not contain
    completely.
    """

    segment: int = 1
    logged: int = 0
    """Number of bytes of log segment ``segment`` that the state contains."""
    journals: dict[str, JournalState] = {}
    finished: list[str] = []
    """Journals that were read to their end, but whose files might still exist."""
    ranks: dict[str, RankState] = {}
    series: dict[str, MetricSeries] = {}
    """Series of the node: the accounts, and readings that belong to no rank."""
    accounts: dict[str, ItemAccount] = {}
    """Accounts by name (``signal/destination``)."""
    part: int = 1
    """Number of the next table part."""
    request: int = 1
    """Number of the next request."""
    pending: list[int] = []
    """Numbers of the requests whose outcome the accounts do not contain yet."""
    windows: dict[str, str] = {}
    """Finished profiler windows: file name of the description to the digest of the trace. The
    digest is empty if the conversion failed."""
    gone: dict[str, str] = {}
    """Lost devices: ``hw.id`` to the reason."""
    findings: dict[str, WarningHeld] = {}
    """Findings that are currently true, as last evaluated, by a JSON key of id, journal and
    labels."""
    metrics: dict[str, Metric] = {}
    """Metrics that sensors of other packages define, by name."""
    began_ns: int = 0
    exported_ns: int = 0
    totalled_ns: int = 0
    """Time at which the totals of the user's own metrics were last added to the tables."""
    flushed_ns: int = 0
    scalars: list[ScalarItem] = []
    """Points for trackers that wait for their batch."""
    page_due: bool = False
    """Whether a process has joined since the run's page was created."""
    scalars_ns: int = 0
    """Time of the last batch of scalars."""
    last_steps: dict[int, int] = {}
    """Number of the step that ended last, by rank; key -1 stands for all ranks."""

    def rank_of(self, journal: JournalState) -> RankState:
        """Return the state of the rank to which ``journal`` belongs."""
        return self.ranks[journal.instance]

    def seen_ranks(self) -> dict[int, bool]:
        """Return for each rank of this node whether its processes still run. Thread-safe."""
        ranks = sorted([*self.ranks.values()], key=lambda rank: rank.meta.restart)
        return {rank.meta.rank: rank.live for rank in ranks}

    @property
    def resource(self) -> dict[str, Any]:
        """Return the OpenTelemetry resource attributes for series of the node, without a rank."""
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
    """Load the state at ``path``; return a new, empty state if the file does not exist.

    Raises:
        StoreError: the file is damaged, or was written by another version.
    """
    try:
        return msgspec.msgpack.decode(read_regular(path), type=AgentState)
    except FileNotFoundError:
        return AgentState()
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise StoreError(f"reading the agent's state {path}: {error}") from error


def write_state(path: Path, state: AgentState) -> None:
    """Replace the state at ``path`` atomically."""
    write_whole(path, msgspec.msgpack.encode(state), is_durable=True)
