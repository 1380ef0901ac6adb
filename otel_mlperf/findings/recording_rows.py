"""Which conditions of the recording itself are worth a word?"""

from __future__ import annotations

from typing import Final

from otel_mlperf import names
from otel_mlperf.findings.finding_row import MINUTE_S, Alert, FindingRow, MeasuredSeries, Rule

RECORDING_ROWS: Final[tuple[FindingRow, ...]] = (
    Rule(
        id="telemetry_lost",
        name="TelemetryLost",
        severity="warning",
        threshold=0,
        summary="{value:.0f} spans or metric points were lost",
        action=(
            "See `otel-mlperf doctor` for the reason: the collector, the disk, or a full journal."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.ITEMS, where=((names.OUTCOME, ("lost",)),)),
        over_s=5 * MINUTE_S,
        alert=Alert(
            expr=(
                "sum by (job, ml_run_name, host_name, otel_mlperf_signal,\n"
                "otel_mlperf_destination, error_type)\n"
                '(increase(otel_mlperf_items_total{otel_mlperf_outcome="lost"}[10m]))'
            ),
            summary=(
                "Telemetry of run {{ $labels.ml_run_name }} is being lost ({{ "
                "$labels.error_type }})."
            ),
            description=(
                "About {{ $value | humanize }} {{ $labels.otel_mlperf_signal }} to {{ "
                "$labels.otel_mlperf_destination }} in the last ten minutes, counted by "
                "the agent on {{ $labels.host_name }}. The training itself is not "
                "touched."
            ),
            what_to_do=(
                "otel-mlperf doctor RUN says where. ring_full: the agent gets no CPU; "
                "rejected or unauthorized: the server's settings; outbox_full: the "
                "server was away for too long."
            ),
            dashboard="otel-mlperf-health",
            group="otel_mlperf",
        ),
    ),
    FindingRow(
        id="finding_failed",
        name="FindingFailed",
        severity="info",
        threshold=0,
        summary="{name} could not be judged: {error}",
        action="Report it to whoever wrote it: the other findings are not touched.",
        of_ended=True,
    ),
)
