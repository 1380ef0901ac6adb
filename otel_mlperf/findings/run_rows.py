"""Rows of the findings table about a run as a whole, its requests, and its recording."""

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
                "affected."
            ),
            what_to_do=(
                "otel-mlperf doctor RUN shows where. ring_full: the agent gets no CPU; "
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
        action="Report it to its author: the other findings are not affected.",
        of_ended=True,
    ),
)


_REQUESTS: Final = ((names.SECTION_CATEGORY, (names.REQUEST,)),)

RUN_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="low_goodput",
        name="LowGoodput",
        severity="warning",
        threshold=0.5,
        comparison="below",
        summary="only {value:.0%} of the run's time was productive (goodput)",
        action=(
            "Start with the largest loss: {most}. otel-mlperf summary shows all losses in the line "
            "goodput."
        ),
        of_ended=True,
        alert=Alert(
            expr=(
                "sum by (job, ml_run_name)\n"
                "(rate(ml_run_productive_time_seconds_total[30m]))\n"
                "/ count by (job, ml_run_name)\n"
                "(ml_run_productive_time_seconds_total)"
            ),
            summary="Run {{ $labels.ml_run_name }} has a low goodput.",
            description=(
                "Productive steps, without their waits for data and compilation, took {{ $value | "
                "humanizePercentage }} of the last half hour, mean of the ranks."
            ),
            what_to_do=(
                '"Where a step goes" and "Validation and checkpoint" show what it does instead: '
                "waits for data - storage and workers; validation and checkpoints - how often; "
                "nothing at all - a rank that the other ranks wait for, or restarts. otel-mlperf "
                "summary shows all losses in the line goodput."
            ),
            dashboard="otel-mlperf-training-run",
            group="training",
            after="30m",
            because="A run that is younger than the half hour that is looked at is not judged.",
        ),
    ),
    FindingRow(
        id="set_up",
        name="SetUpShare",
        severity="info",
        threshold=0.4,
        summary="set-up takes {value:.0%} of the run: {spent:.1f} s before the first step{longest}",
        action=(
            "Check what is recreated each time (tables, indexes, tokenized or decoded data: store "
            "them in a file), loaded sequentially, or imported and not used: python -X importtime, "
            "and `with om.span(...)` around its parts."
        ),
        of_ended=True,
    ),
    Rule(
        id="requests_late",
        name="RequestsLate",
        severity="warning",
        threshold=0.95,
        comparison="below",
        summary="only {value:.0%} of the requests {ml_section_name} meet their time limit",
        action=(
            "Check the slowest request (otel-mlperf show --phase request): what it waits for, and "
            "how many requests are open concurrently (otel-mlperf top). A failed request counts as "
            "late."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.SECTION_WITHIN, where=_REQUESTS),
        per=MeasuredSeries(metric=names.SECTION_BOUNDED, where=_REQUESTS),
        by=(names.SECTION_NAME,),
        over_s=MINUTE_S,
        alert=Alert(
            expr=(
                "sum by (job, ml_run_name, ml_section_name)\n"
                '(rate(ml_section_within_bound_total{ml_section_category="request"}[5m]))\n'
                "/ sum by (job, ml_run_name, ml_section_name)\n"
                '(rate(ml_section_bounded_total{ml_section_category="request"}[5m]))'
            ),
            summary=(
                "Requests {{ $labels.ml_section_name }} of run {{ $labels.ml_run_name }} are late."
            ),
            description=(
                "{{ $value | humanizePercentage }} of the requests that ended in the last five "
                "minutes met their time limit."
            ),
            what_to_do=(
                '"Time of requests" shows whether all are slower or few are: all - the model, the '
                "device, too many at once; few - large inputs, garbage collections, a neighbour. "
                "Failed ones count as late."
            ),
            dashboard="otel-mlperf-training-run",
            group="training",
            after="5m",
        ),
    ),
)
