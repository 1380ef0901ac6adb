"""Rows of the findings table about a whole run, its requests, and its recording."""

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
            "Run `otel-mlperf doctor` to find the reason: an unreachable collector, a full disk "
            "or a full journal."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.ITEMS, where=((names.OUTCOME, ("lost",)),)),
        over_s=5 * MINUTE_S,
        alert=Alert(
            labels=(
                names.HOST_NAME,
                names.SIGNAL,
                names.DESTINATION,
                names.ERROR_TYPE,
            ),
            summary=(
                "Telemetry of run {{ $labels.ml_run_name }} is being lost (reason: {{ "
                "$labels.error_type }})."
            ),
            description=(
                "About {{ $value | humanize }} items ({{ $labels.otel_mlperf_signal }} to {{ "
                "$labels.otel_mlperf_destination }}) were lost in the last ten minutes, as "
                "counted by the agent on {{ $labels.host_name }}. The training itself is not "
                "affected."
            ),
            over="10m",
            dashboard="otel-mlperf-health",
            group="otel_mlperf",
        ),
    ),
    FindingRow(
        id="finding_failed",
        name="FindingFailed",
        severity="info",
        threshold=0,
        summary="evaluating the finding source {name} failed: {error}",
        action="Report the error to the author of the finding source. Other findings are not "
        "affected.",
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
        summary=(
            "only {value:.0%} of the run's time was productive (goodput); the largest loss is "
            "{most}"
        ),
        action=(
            "Start with the largest loss. The line goodput of otel-mlperf summary shows all losses."
        ),
        of_ended=True,
        alert=Alert(
            expr=(
                "sum by (job, ml_run_name)\n"
                "(rate(ml_run_productive_time_seconds_total[30m]))\n"
                "/ count by (job, ml_run_name)\n"
                "(ml_run_productive_time_seconds_total)"
            ),
            summary="Run {{ $labels.ml_run_name }} has low goodput.",
            description=(
                "Productive steps (without data waits and compilation) account for {{ $value | "
                "humanizePercentage }} of the last half hour, averaged over the ranks."
            ),
            dashboard="otel-mlperf-training-run",
            group="training",
            after="30m",
            because="Does not fire in the first half hour of a run, because the expression "
            "covers half an hour.",
        ),
    ),
    FindingRow(
        id="set_up",
        name="SetUpShare",
        severity="info",
        threshold=0.4,
        summary="set-up takes {value:.0%} of the run: {spent:.1f} s before the first step{longest}",
        action=(
            "Store in a file what each run recreates, such as tables, indexes, and tokenized or "
            "decoded data. Load data in parallel, and remove unused imports: python -X importtime "
            "measures imports. Put `with om.span(...)` around other parts of the set-up."
        ),
        of_ended=True,
    ),
    Rule(
        id="requests_late",
        name="RequestsLate",
        severity="warning",
        threshold=0.95,
        comparison="below",
        summary="too few requests named {ml_section_name} meet their time limit: {value:.0%}",
        action=(
            "Check what the slowest request waits for (otel-mlperf show --phase request), and "
            "how many requests are open concurrently (otel-mlperf top). Failed requests count "
            "as late."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.SECTION_WITHIN, where=_REQUESTS),
        per=MeasuredSeries(metric=names.SECTION_BOUNDED, where=_REQUESTS),
        by=(names.SECTION_NAME,),
        over_s=MINUTE_S,
        alert=Alert(
            summary=(
                "Too many requests named {{ $labels.ml_section_name }} of run {{ "
                "$labels.ml_run_name }} are late."
            ),
            description=(
                "Only {{ $value | humanizePercentage }} of the requests that ended in the last "
                "five minutes met their time limit."
            ),
            dashboard="otel-mlperf-training-run",
            group="training",
            after="5m",
        ),
    ),
)
