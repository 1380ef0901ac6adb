"""Creation of OTLP requests from the spans in a run folder, and delivery of the requests.

The requests contain the same spans as the requests of the agent, with the original ids. A server
that identifies spans by their ids therefore does not store a span twice.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_selection import Selected
from otel_mlperf.errors import ConfigError, Unreachable
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.otlp_json import encode_lines
from otel_mlperf.otlp.span_content import (
    MOST_MARKS,
    group_by_scope,
    shared_attributes,
    span_extra,
    span_tail,
)
from otel_mlperf.otlp.span_encoding import SpanColumns, cut, encode_spans
from otel_mlperf.store.table_reader import time_ranges
from otel_mlperf.tables.run_tables import ProcessRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_mlperf.otlp.endpoint_settings import SignalSettings
    from otel_mlperf.otlp.http_client import OtlpClient, ServerAnswer
    from otel_mlperf.otlp.span_content import OwnFields
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.table_reader import Store

REQUEST_BYTES: Final = 1 << 20
SENT: Final = "(kind <> 'event' OR kept <> '')"
"""SQL condition for spans that are sent. All events of profiler windows are stored, but only those
within the span budget are sent."""
_MARKS: Final = (
    "SELECT time_ns, name, phase, number, count(*) OVER () FROM marks "
    "WHERE rank = $rank AND restart = $restart AND time_ns <= $end_ns "
    f"ORDER BY time_ns, name LIMIT {MOST_MARKS}"
)
_Row = dict[str, Any]


def count_spans(store: Store) -> int:
    """Return the number of spans in a run folder that would be sent to servers."""
    ((count,),) = store.rows(f"SELECT count(*) FROM spans WHERE {SENT}")
    return int(count)


def requests(run: RunFolder, store: Store) -> Iterator[tuple[int, bytes]]:
    """Yield the requests of a run, each with its number of spans, sorted by rank and time."""
    for attributes, rows in _pages(Selected(run, store)):
        resource = wire.encode_resource(attributes)
        for scope, spans in group_by_scope(rows).items():
            about = scope.encode()
            for piece in cut(_columns(spans), REQUEST_BYTES):
                body = encode_spans(resource, about, piece, names.SCHEMA_URL, scope.schema_url)
                yield len(piece), body


def lines(selected: Selected) -> Iterator[tuple[int, bytes]]:
    """Yield the selected spans in batches: number of spans, and the spans as OTLP/JSON lines."""
    for attributes, rows in _pages(selected):
        yield len(rows), b"".join(encode_lines(attributes, rows))


def _pages(selected: Selected) -> Iterator[tuple[dict[str, Any], list[_Row]]]:
    store = selected.store
    where = f"{SENT} AND {selected.wanted} AND rank = $rank AND restart = $restart"
    for rank, restart in store.rows("SELECT DISTINCT rank, restart FROM spans ORDER BY ALL"):
        resource = resource_of(selected.run, store, rank, restart)
        values = {**selected.values, "rank": rank, "restart": restart}
        # Read in time ranges, because all spans of a run may exceed the memory.
        for low, high in time_ranges(store, "spans", "start_ns", where, values):
            sql = f"SELECT * FROM spans WHERE {where} AND start_ns >= $low AND start_ns < $high "
            rows = store.records(f"{sql} ORDER BY start_ns, span_id", low=low, high=high, **values)
            _add_marks(store, rows)
            yield resource, rows


def _add_marks(store: Store, rows: list[_Row]) -> None:
    """Add the marks set by the user's program to the row of the run's span."""
    for row in rows:
        if row["category"] == names.RUN and row["span_id"] == row["root_id"]:
            found = store.rows(_MARKS, **{key: row[key] for key in ("rank", "restart", "end_ns")})
            row["marks"] = [mark for *mark, _ in found]
            row["marks_left_out"] = found[0][-1] - len(found) if found else 0


def resource_of(run: RunFolder, store: Store, rank: int, restart: int) -> dict[str, Any]:
    """Return the resource attributes of a rank's process, as stored in the run folder."""
    of_rank = "WHERE rank = $rank AND restart = $restart ORDER BY start_ns LIMIT 1"
    processes = store.read(ProcessRow, of_rank, rank=rank, restart=restart)
    attributes = names.SDK | {
        names.OS_TYPE: run.facts.os,
        names.SERVICE_NAME: run.facts.name,
        names.RUN_ID: run.facts.id,
        names.RUN_NAME: run.facts.name,
        names.RANK: rank,
        names.RESTART: restart,
    }
    for process in processes:
        attributes |= {
            names.SERVICE_NAME: process.service,
            names.SERVICE_INSTANCE_ID: process.instance_id,
            names.HOST_NAME: process.host,
            names.PROCESS_PID: process.pid,
            names.LOCAL_RANK: process.local_rank,
            names.WORLD_SIZE: process.world_size,
        }
    return attributes


def _columns(spans: list[tuple[Mapping[str, Any], OwnFields]]) -> SpanColumns:
    # Encode the tail, shared by spans of one name and thread, once: it is most of the cost.
    tails: dict[bytes, int] = {}
    tail = [tails.setdefault(_tail(*span), len(tails)) for span in spans]
    rows = [row for row, _ in spans]
    return SpanColumns(
        trace_id=np.frombuffer(
            b"".join(bytes.fromhex(row["trace_id"]) for row in rows), np.uint8
        ).reshape(-1, 16),
        span_id=np.array([int(row["span_id"], 16) for row in rows], np.uint64),
        parent_id=np.array([int(row["parent_id"] or "0", 16) for row in rows], np.uint64),
        start_ns=np.array([row["start_ns"] for row in rows], np.uint64),
        end_ns=np.array([row["end_ns"] for row in rows], np.uint64),
        tail=np.array(tail, np.int32),
        tails=list(tails),
        extra={at: more for at, (_, own) in enumerate(spans) if (more := span_extra(own))},
    )


def _tail(row: Mapping[str, Any], own: OwnFields) -> bytes:
    return span_tail(row["name"], shared_attributes(row), own.kind)


_TRIES: Final = 3
"""Maximum number of tries per request. The agent tries more often, but here a user waits."""


def traces_settings(
    endpoint: str | None,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
    recorded: str = "",
) -> SignalSettings:
    """Return the endpoint settings for spans.

    Args:
        endpoint: endpoint from the command line; None to use ``environ``.
        environ: environment variables.
        warn: called with each problem that does not prevent delivery.
        recorded: endpoint that the run folder names, suggested in the error message.

    Raises:
        ConfigError: no endpoint is set, or a variable cannot be parsed.
    """
    from otel_mlperf.otlp.endpoint_settings import read_settings

    settings, warnings = read_settings(environ, "traces", endpoint)
    if settings is None:
        why = "; ".join(warnings) or (
            f"no endpoint is set; pass --endpoint {recorded or 'http://localhost:4318'} "
            "or set OTEL_EXPORTER_OTLP_ENDPOINT"
            + (
                "; this endpoint is stored in the run folder, which another user may have written"
                if recorded
                else ""
            )
        )
        raise ConfigError(f"sending: {why}")
    for warning in warnings:
        warn(warning)
    return settings


def deliver(client: OtlpClient, body: bytes) -> int:
    """Deliver one request, split if the server requires it; return the number of refused spans.

    Raises:
        Unreachable: all tries failed, or the server denies access.
    """
    from otel_mlperf.otlp.split import post_in_parts

    lost: dict[str, int] = {}
    post_in_parts(partial(_post, client), body, "traces", lost)
    return sum(lost.values())


def _post(client: OtlpClient, body: bytes) -> ServerAnswer:
    """Post a request or a part of it, with retries; return the server's final answer."""
    from otel_mlperf.otlp.http_client import Backoff, Outcome

    backoff = Backoff()
    for tries_left in reversed(range(_TRIES)):
        answer = client.post(body)
        if answer.outcome in (Outcome.DELIVERED, Outcome.REJECTED, Outcome.TOO_LARGE):
            return answer
        # A retry cannot help, or no try is left.
        if answer.outcome is Outcome.UNAUTHORIZED or not tries_left:
            break
        time.sleep(backoff.failed(answer.after_s))
    raise Unreachable(f"sending: {answer.reason}")
