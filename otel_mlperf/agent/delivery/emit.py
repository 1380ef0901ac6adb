"""Emission of numbered batches for each destination, at each mark and at metric intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.agent.delivery.batches import (
    count_items,
    encode_batch,
    encode_scalars,
    point_items,
    span_items,
)
from otel_mlperf.agent.delivery.destination import Batch, TryLater, account_of
from otel_mlperf.agent.delivery.otlp_destination import metric_requests, span_requests
from otel_mlperf.agent.derivation.cell_values import user_metric
from otel_mlperf.agent.derivation.metric_series import Export
from otel_mlperf.agent.model.agent_state import MetricSeries
from otel_mlperf.errors import StoreError
from otel_mlperf.otlp.span_content import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_mlperf.agent.delivery.accounts import Accounts
    from otel_mlperf.agent.delivery.destination import SpanItem
    from otel_mlperf.agent.delivery.outbox import Outbox
    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.agent_state import AgentState, RankState
    from otel_mlperf.agent.model.events import Mark, WindowConverted
    from otel_mlperf.agent.model.kept_span import SampledSpan
    from otel_mlperf.agent.model.scalar_item import ScalarItem
    from otel_mlperf.names import Metric
    from otel_mlperf.otlp.metric_encoding import Exemplar

_MAX_SPANS: Final = 2000
"""Maximum number of spans or scalars in a batch, which limits its memory to megabytes."""
_RESOLUTION_NS: Final = 1_000_000
"""Minimum time between two exports."""
_OFTEN_NS: Final = 120 * 10**9
"""Time after the start during which metrics are exported more often."""


class Emitter:
    """Emitter of numbered batches, in a fixed order, so that a replay creates the same batches."""

    def __init__(
        self, state: AgentState, options: Options, outbox: Outbox, accounts: Accounts
    ) -> None:
        self._state, self._options = state, options
        self._outbox, self._accounts = outbox, accounts
        self.held: dict[str, list[SpanItem]] = {}
        """Spans since the last flush, by account, for destinations with ``buffered_in_wal``."""

    @property
    def waiting(self) -> dict[str, int]:
        """Return the number of items that wait in the outbox or for a flush, by account."""
        buffered = {account: count_items(spans) for account, spans in self.held.items()}
        return self._outbox.waiting | buffered

    def keep(self, rank: RankState, spans: list[SampledSpan]) -> None:
        """Queue sampled spans of one rank for the next flush and for the outbox."""
        if not spans:
            return
        resource, sent = rank.resource, self._sampled(spans)
        unselected = count_items(spans) - count_items(sent)
        rolled_up = sum(span.rolled_up for span in spans) - sum(span.rolled_up for span in sent)
        # Destinations have a fixed order, because a replay must assign the same numbers.
        for taker in self._accounts.takers("spans"):
            account = account_of("spans", taker.name)
            if taker.buffered_in_wal:
                self.held.setdefault(account, []).extend(span_items(spans))
                continue
            self._accounts.unselected(account, unselected, rolled_up)
            if taker.form == "otlp":
                for items, body in span_requests(resource, sent):
                    self._queue(account, items, body)
            else:
                for at in range(0, len(sent), _MAX_SPANS):
                    part = sent[at : at + _MAX_SPANS]
                    body = encode_batch(resource, spans=span_items(part))
                    self._queue(account, count_items(part), body)

    def _sampled(self, spans: list[SampledSpan]) -> list[SampledSpan]:
        sampler = self._options.sampler
        if sampler is None:
            return spans
        return [
            span
            for span in spans
            if sampler.samples(int.from_bytes(span.trace, "big"), span.caller_flags)
        ]

    def keep_scalars(self, scalars: Sequence[ScalarItem]) -> None:
        """Queue tracker points of the node or any of its ranks in the outbox."""
        self._accounts.collected("scalars", len(scalars))
        for taker in self._accounts.takers("scalars"):
            account = account_of("scalars", taker.name)
            for at in range(0, len(scalars), _MAX_SPANS):
                part = scalars[at : at + _MAX_SPANS]
                self._queue(account, len(part), encode_scalars(self._state.resource, part))

    def keep_report(self, page: bytes) -> None:
        """Queue the page of the run in the outbox."""
        self._accounts.collected("reports", 1)
        for taker in self._accounts.takers("reports"):
            self._queue(account_of("reports", taker.name), 1, page)

    def flush(self, part: int) -> None:
        """Deliver spans queued since the last flush to the run folder, as batch number ``part``.

        Raises:
            StoreError: the spans were not accepted and still wait. The event log must not be
                removed.
        """
        for taker in self._accounts.takers("spans"):
            if not taker.buffered_in_wal:
                continue
            account = account_of("spans", taker.name)
            spans = self.held.get(account, [])
            items = count_items(spans)
            batch = Batch(number=part, signal="spans", items=items, spans=spans)
            verdict = taker.accept(batch)
            if isinstance(verdict, TryLater):
                raise StoreError(verdict.reason)
            self.held.pop(account, None)
            self._accounts.delivered(account, items)

    def convert(self, event: WindowConverted, requests: Iterable[tuple[int, bytes | None]]) -> None:
        """Queue a converted window's ``requests`` (items, body); items without a body are lost."""
        self._accounts.converted(event)
        self._measure(event)
        servers = [taker for taker in self._accounts.takers("spans") if taker.form == "otlp"]
        for items, body in requests if servers else ():
            for taker in servers:
                account = account_of("spans", taker.name)
                if body is None:
                    self._accounts.lost(account, "outbox_io", items)
                else:
                    self._queue(account, items, body)

    def _measure(self, event: WindowConverted) -> None:
        """Export a profiler window's readings immediately: there might be no later mark."""
        if not event.readings:
            return
        rank = self._state.ranks[event.instance]
        series = [
            MetricSeries(reading.name, reading.labels, reading.value, read_ns=event.end_ns)
            for reading in event.readings
        ]
        self._export(rank.resource, rank.meta.unix_ns, event.end_ns, series, {})

    def export_if_due(self, mark: Mark) -> None:
        """Export all metrics if due: at intervals, after a rank's end and at the last mark."""
        state = self._state
        if not self._is_due(mark):
            return
        now_ns = state.exported_ns = self._after_last_export(mark.unix_ns)
        if not self._accounts.takers("metrics"):
            return
        for rank in state.ranks.values():
            user_metrics = rank.user.items()
            user = {name: user_metric(name, unit, kind) for name, (unit, kind, *_) in user_metrics}
            user |= state.metrics
            scopes = {name: Scope(*scope) for name, (_, _, *scope) in user_metrics if scope}
            series = rank.series.values()
            self._export(rank.resource, rank.meta.unix_ns, now_ns, series, user, scopes)
            rank.series = {k: s for k, s in rank.series.items() if rank.live and not s.gone}
        self._accounts.publish(self.waiting)
        self._export_node(now_ns, state.series.values())
        state.series = {k: s for k, s in state.series.items() if not s.gone}

    def export_accounts(self, now_ns: int) -> None:
        """Export the current values of the accounts as metrics; at most once, after all marks."""
        if self._accounts.takers("metrics"):
            self._accounts.publish(self.waiting)
            own = [series for series in self._state.series.values() if not series.source]
            self._export_node(self._after_last_export(now_ns), own)

    def _after_last_export(self, now_ns: int) -> int:
        """Return ``now_ns``, or the earliest later time that differs from the last export's.

        Prometheus truncates times to milliseconds. It refuses a second point of a series with the
        same time, and with that point the whole request, which a Collector may have filled with
        points of other processes.
        """
        return max(now_ns, self._state.exported_ns + _RESOLUTION_NS)

    def _export_node(self, now_ns: int, series: Iterable[MetricSeries]) -> None:
        if self._state.ranks:
            state = self._state
            self._export(state.resource, state.began_ns, now_ns, series, state.metrics)

    def _is_due(self, mark: Mark) -> bool:
        state, options = self._state, self._options
        is_young = mark.unix_ns - state.began_ns < _OFTEN_NS
        interval = options.metrics_often_ns if is_young else options.metrics_ns
        ended = any(not rank.live and rank.series for rank in state.ranks.values())
        return mark.last or ended or mark.unix_ns - state.exported_ns >= interval

    def _export(
        self,
        resource: Mapping[str, object],
        start_ns: int,
        now_ns: int,
        series: Iterable[MetricSeries],
        user: dict[str, Metric],
        scopes: Mapping[str, Scope] = {},
    ) -> None:
        takers = self._accounts.takers("metrics")
        if not takers:
            return
        # Collect once for all destinations, because collecting marks series as sent and removes
        # exemplars.
        options = self._options
        export = Export(start_ns, now_ns, self._is_sent, options.temporality)
        metrics = export.collect(series, user)
        if not metrics:
            return
        preferred = metrics if options.temporality == "cumulative" else export.preferred
        for taker in takers:
            account = account_of("metrics", taker.name)
            if taker.form == "otlp":
                requests = metric_requests(resource, preferred, scopes)
            else:
                items = point_items(metrics)
                requests = iter([(len(items), encode_batch(resource, points=items))])
            for points, body in requests:
                self._accounts.made(account, points)
                self._queue(account, points, body)

    def _is_sent(self, exemplar: Exemplar) -> bool:
        sampler, trace_id = self._options.sampler, int.from_bytes(exemplar.trace_id, "big")
        return self._options.exemplars and (sampler is None or sampler.samples(trace_id))

    def _queue(self, account: str, items: int, body: bytes) -> None:
        number, self._state.request = self._state.request, self._state.request + 1
        settled = self._outbox.add(number, account, items, body)
        if settled:
            # Only in a replay: the previous agent has sent the request and recorded its outcome.
            self._accounts.settled(settled)
