"""What goes to the store and to the servers at a mark, and when are metrics due?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.agent.conversion.window_results import bodies
from otel_mlperf.agent.delivery.accounts import METRICS_OTLP, SPANS_OTLP
from otel_mlperf.agent.derivation.cell_values import user_metric
from otel_mlperf.agent.derivation.metric_points import Export
from otel_mlperf.agent.model.agent_state import MetricSeries
from otel_mlperf.agent.model.kept_span import span_columns
from otel_mlperf.agent.model.resource import SCOPE_BYTES, agent_attributes, rank_attributes
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.metric_encoding import encode_metrics
from otel_mlperf.otlp.span_encoding import cut, encode_spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from otel_mlperf.agent.delivery.accounts import Accounts
    from otel_mlperf.agent.delivery.outbox import Outbox
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.agent_state import AgentState, RankState
    from otel_mlperf.agent.model.events import Mark, WindowConverted
    from otel_mlperf.agent.model.kept_span import Kept
    from otel_mlperf.agent.model.table_rows import TableRows
    from otel_mlperf.names import Metric

_MOST_BYTES: Final = 2 << 20
"""Of a request's spans: below the 4 MiB that gRPC servers behind the Collector accept."""
_OFTEN_NS: Final = 120 * 10**9
"""For how long metrics go out often."""


class Emitter:
    """Numbers requests in the order in which they are made, so that a replay makes the same."""

    def __init__(
        self,
        state: AgentState,
        tables: TableRows,
        options: Options,
        requests: Outbox,
        accounts: Accounts,
    ) -> None:
        self._state, self._tables, self._options = state, tables, options
        self._requests, self._accounts = requests, accounts

    def keep(self, rank: RankState, spans: list[Kept]) -> None:
        """Spans of one rank, for the next flush and for the server."""
        if not spans:
            return
        self._tables.spans += spans
        self._accounts.stored_later(spans)
        if SPANS_OTLP not in self._accounts.destinations:
            return
        resource = wire.encode_resource(rank_attributes(rank.meta))
        at = 0
        for columns in cut(span_columns(spans), _MOST_BYTES):
            items = sum(kept.kind == "section" for kept in spans[at : at + len(columns)])
            at += len(columns)
            body = encode_spans(resource, SCOPE_BYTES, columns, names.SCHEMA_URL)
            self._request("traces", items, body)

    def convert(self, event: WindowConverted, folder: Path) -> None:
        """What became of a profiler window; ``folder`` holds the file with its requests."""
        self._accounts.converted(event)
        self._measure(event)
        if SPANS_OTLP not in self._accounts.destinations:
            return
        for items, body in bodies(event, folder):
            if body is None:
                self._accounts.lost(SPANS_OTLP, "outbox_io", items)
            else:
                self._request("traces", items, body)

    def _measure(self, event: WindowConverted) -> None:
        """What a window comes to is sent at once: the run may have made its last mark."""
        if METRICS_OTLP not in self._accounts.destinations or not event.readings:
            return
        meta = self._state.ranks[event.instance].meta
        series = [
            MetricSeries(one.name, one.labels, one.value, read_ns=event.end_ns)
            for one in event.readings
        ]
        self._export(rank_attributes(meta), meta.unix_ns, event.end_ns, series, {})

    def export_if_due(self, mark: Mark) -> None:
        """Metrics of every rank: every few seconds, and when one has ended."""
        state = self._state
        if not self._is_due(mark):
            return
        state.exported_ns = mark.unix_ns
        if METRICS_OTLP not in self._accounts.destinations:
            return
        for rank in state.ranks.values():
            user = {name: user_metric(name, unit, kind) for name, (unit, kind) in rank.user.items()}
            attributes = rank_attributes(rank.meta)
            series = rank.series.values()
            self._export(attributes, rank.meta.unix_ns, mark.unix_ns, series, user)
            rank.series = {k: s for k, s in rank.series.items() if rank.live and not s.gone}
        self._accounts.tell(self._requests.waiting)
        self._export_node(mark.unix_ns, state.series.values())
        state.series = {k: s for k, s in state.series.items() if not s.gone}

    def export_accounts(self, now_ns: int) -> None:
        """What became of the items until now."""
        if METRICS_OTLP in self._accounts.destinations:
            self._accounts.tell(self._requests.waiting)
            own = [series for series in self._state.series.values() if not series.source]
            self._export_node(now_ns, own)

    def _export_node(self, now_ns: int, series: Iterable[MetricSeries]) -> None:
        if self._state.ranks:
            attributes = agent_attributes(next(iter(self._state.ranks.values())).meta)
            self._export(attributes, self._state.began_ns, now_ns, series, {})

    def _is_due(self, mark: Mark) -> bool:
        state, options = self._state, self._options
        young = mark.unix_ns - state.began_ns < _OFTEN_NS
        interval = options.metrics_often_ns if young else options.metrics_ns
        ended = any(not rank.live and rank.series for rank in state.ranks.values())
        # The same moment twice would be two points of one time: the second is refused.
        return mark.unix_ns > state.exported_ns and (
            mark.last or ended or mark.unix_ns - state.exported_ns >= interval
        )

    def _export(
        self,
        attributes: Mapping[str, object],
        start_ns: int,
        now_ns: int,
        series: Iterable[MetricSeries],
        user: dict[str, Metric],
    ) -> None:
        export = Export(start_ns, now_ns)
        metrics = export.collect(series, user)
        if not metrics:
            return
        resource = wire.encode_resource(attributes)
        body = encode_metrics(resource, SCOPE_BYTES, metrics, names.SCHEMA_URL)
        self._accounts.collected(export.points)
        self._request("metrics", export.points, body)

    def _request(self, signal: str, items: int, body: bytes) -> None:
        number, self._state.request = self._state.request, self._state.request + 1
        known = self._requests.add(number, signal, items, body)
        if known:
            self._accounts.settled(known)
