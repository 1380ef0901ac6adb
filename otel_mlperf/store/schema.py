"""Which tables does a run folder have, and what is in their columns?

As data, so that writer and reader share it and neither has to load the other's library. Times are
Unix nanoseconds, ids hexadecimal text, durations nanoseconds.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Type = Literal["int32", "int64", "double", "bool", "text", "word"]
"""``word`` is text of few values, stored once each."""

FORMAT: Final = 1
"""Version of the run folder, in ``run.json``; a reader refuses a higher one."""


class Column(NamedTuple):
    """One column of a table."""

    name: str
    type: Type
    null: bool = False
    """Whether a row may lack it."""


PROCESSES: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("local_rank", "int32"),
    Column("world_size", "int32"),
    Column("pid", "int64"),
    Column("host", "word"),
    Column("service", "word"),
    Column("start_ns", "int64"),
    Column("end_ns", "int64"),  # 0: running
    Column("outcome", "word"),
    Column("error_type", "word"),
    Column("error_message", "text"),
    Column("error_step", "int64", null=True),
    Column("error_section", "word"),
    Column("result", "text"),  # JSON
    Column("sections", "int64"),
    Column("overhead_ns", "int64"),
    Column("instance_id", "text"),
    Column("has_gpu", "bool"),
)
"""A process's life so far: of several rows of one rank, restart and pid the last written counts."""

STEPS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("n", "int64"),
    Column("number", "int64"),
    Column("epoch", "int64", null=True),
    Column("start_ns", "int64"),
    Column("end_ns", "int64"),
    Column("duration_ns", "int64"),  # without phases and checkpoints inside it
    Column("self_ns", "int64"),  # not in a span
    Column("samples", "int64", null=True),
    Column("tokens", "int64", null=True),
    Column("error", "bool"),
    Column("kept", "word", null=True),
    Column("trace_id", "text"),
)
"""One row for each step that ended."""

SECTIONS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("n", "int64", null=True),
    Column("number", "int64", null=True),
    Column("name", "word"),
    Column("category", "word"),
    Column("parent", "word"),
    Column("path", "word"),
    Column("beside", "bool"),
    Column("aggregate", "bool"),
    Column("count", "int64"),
    Column("sum_ns", "int64"),
    Column("self_ns", "int64"),
    Column("min_ns", "int64"),
    Column("max_ns", "int64"),
    Column("start_ns", "int64"),
)
"""One row for each step, name and *beside*; outside steps (no n) one for each flush and path."""

SPANS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("trace_id", "text"),
    Column("span_id", "text"),
    Column("parent_id", "text"),
    Column("name", "word"),
    Column("category", "word"),
    Column("phase", "word"),
    Column("track", "int64"),
    Column("thread", "word"),
    Column("start_ns", "int64"),
    Column("end_ns", "int64"),
    Column("status", "word"),
    Column("interrupted", "bool"),
    Column("root_id", "text"),
    Column("n", "int64", null=True),
    Column("number", "int64", null=True),
    Column("epoch", "int64", null=True),
    Column("kept", "word"),
    Column("attributes", "text"),  # JSON
    Column("links", "text"),  # JSON: [[trace id, span id], ...]
    Column("kind", "word"),
)
"""One row for each span of the traces that were kept."""

VALUES: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("name", "word"),
    Column("number", "int64", null=True),
    Column("time_ns", "int64"),
    Column("value", "double"),
)
"""One row for each value given to ``log()``."""

READINGS: Final = (
    Column("rank", "int32", null=True),  # null: of the node
    Column("restart", "int32"),
    Column("name", "word"),
    Column("labels", "word"),  # JSON
    Column("time_ns", "int64"),
    Column("value", "double"),
)
"""One row for each reading of process, host or device."""

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "processes": PROCESSES,
    "steps": STEPS,
    "sections": SECTIONS,
    "spans": SPANS,
    "values": VALUES,
    "readings": READINGS,
}
