"""Schema of the tables of a run folder: their names and columns.

The schema is data, so that writer and reader share it and neither has to load the other's library.
Times are Unix nanoseconds, ids hexadecimal text, durations nanoseconds.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Type = Literal["int32", "int64", "double", "bool", "text", "word"]
"""``word`` is text of few distinct values, stored once each."""


class Column(NamedTuple):
    """Column of a table."""

    name: str
    type: Type
    null: bool = False
    """Whether a row may lack it."""
    added: bool = False
    """Whether parts of earlier versions lack it; their rows have null."""


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
"""The life of a process so far: of several rows of one rank, restart and pid the last written
counts."""

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
    Column("self_ns", "int64"),  # untracked
    Column("samples", "int64", null=True),
    Column("tokens", "int64", null=True),
    # Elements of the largest tensor of each of its batches; null: the batches contain no tensor.
    Column("elements", "int64", null=True, added=True),
    # Operations of its models; null: not all of their calls were counted.
    Column("flops", "int64", null=True, added=True),
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
    # Names from below the run; aggregates come after a double slash. In a step it is set only for
    # parts of a wait for data: names from the wait.
    Column("path", "word"),
    Column("beside", "bool"),  # on another thread or task, or part of a wait
    Column("aggregate", "bool"),
    Column("count", "int64"),
    Column("sum_ns", "int64"),
    Column("self_ns", "int64"),
    Column("min_ns", "int64"),
    Column("max_ns", "int64"),
    Column("start_ns", "int64"),
)
"""One row for each step, name and *beside*; outside steps (no n) one for each flush and path."""

RESOURCES: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("name", "word"),
    Column("category", "word"),
    Column("path", "word"),  # outside steps, names from below the run
    Column("beside", "bool"),
    Column("in_step", "bool"),
    Column("measure", "word"),  # key of one of names.MEASURES
    Column("count", "int64"),
    Column("total", "int64"),
    Column("least", "int64"),
    Column("most", "int64"),
    Column("spread", "double"),  # sum of the squared distances from the mean
)
"""One row for each flush, section, place and measure: the use of all calls in that time."""

DURATIONS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("name", "word"),
    Column("category", "word"),
    Column("path", "word"),  # outside steps, names from below the run
    Column("beside", "bool"),
    Column("in_step", "bool"),
    Column("bound_s", "double", null=True),  # maximum duration; null: not declared
    # For requests: the start of the minute in which they ended.
    Column("minute_ns", "int64", null=True, added=True),
    Column("count", "int64"),
    Column("errors", "int64"),
    Column("within", "int64"),  # those that took no longer than the bound and did not fail
    Column("sum_ns", "int64"),
    Column("min_ns", "int64"),
    Column("max_ns", "int64"),
    Column("spread", "double"),  # sum of the squared distances from the mean, in ns²
    Column("scale", "int32"),  # scale of the exponential histogram, in seconds
    Column("zeros", "int64"),
    Column("first_bucket", "int64"),
    Column("counts", "text"),  # JSON: counts of its buckets, from the first one
)
"""One row for each flush, section and place: the durations of its calls in that time.

Requests have one row for each minute in it: no other table has the time of each.
"""

GPU_STEPS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("n", "int64"),
    Column("number", "int64"),
    Column("device", "int32"),
    Column("gpu_ns", "int64"),
    Column("idle_ns", "int64", null=True),  # null: no section gave the device work
    Column("host_paced_ns", "int64"),
    Column("device_paced_ns", "int64"),  # the rest of gpu_ns: pace unknown
)
"""One row for each step whose GPU time is known."""

SPANS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("trace_id", "text"),
    Column("span_id", "text"),
    Column("parent_id", "text"),
    Column("name", "word"),
    Column("category", "word"),
    Column("phase", "word"),
    Column("track", "int64"),  # spans of a track nest; thread ident or task number
    Column("thread", "word"),
    Column("thread_id", "int64", null=True),  # native, which profilers know
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
    # JSON: [[trace id, span id], ...]; attributes and flags of those that have them follow.
    Column("links", "text"),
    # JSON: [[time in ns, name, {attributes}], ...]
    Column("events", "text", null=True, added=True),
    Column("kind", "word"),  # event: of a profiler; event_rollup: several events, rows as well
)
"""One row for each span of the sampled traces; for profilers one for each event and roll-up."""

VALUES: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("name", "word"),
    Column("number", "int64", null=True),
    Column("time_ns", "int64"),
    Column("value", "double"),
)
"""One row for each value passed to ``log()``."""

MARKS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("phase", "word"),
    Column("name", "word"),
    Column("number", "int64"),  # of the step, or the one that came next
    Column("time_ns", "int64"),
)
"""One row for each call of ``run.mark()``."""

READINGS: Final = (
    Column("rank", "int32", null=True),  # null: of the node
    Column("restart", "int32"),
    Column("name", "word"),
    Column("labels", "word"),  # JSON
    Column("time_ns", "int64"),
    Column("value", "double"),
)
"""One row for each reading of process, host or device."""

INSTRUMENTS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("name", "word"),
    Column("unit", "word"),
    Column("kind", "word"),  # counter, gauge, histogram: its readings are <name>.count and .sum
)
"""One row for each metric name of the program or PyTorch's allocator in the process."""

WARNINGS: Final = (
    Column("rank", "int32", null=True),  # null: of the node
    Column("restart", "int32"),
    Column("id", "word"),  # of its row in the table of findings
    Column("labels", "word"),  # JSON
    Column("start_ns", "int64"),
    Column("end_ns", "int64"),  # when it was last seen to hold
    Column("value", "double"),  # the worst so far
    Column("threshold", "double"),
)
"""One row for each flush in which a warning held: the one that ends last contains all of it."""

WINDOWS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),  # SHA-256 of the trace: the window's name in the tables below
    Column("number", "int64", null=True),  # number among the process's windows; null: imported
    Column("trace", "text"),  # file name
    Column("start_ns", "int64"),
    Column("end_ns", "int64"),
    Column("is_unix_time", "bool"),
    Column("steps", "text"),  # JSON: their names
    Column("categories", "text"),  # JSON: {category: [events, sum of their durations in ns]}
    Column("orphans", "text"),  # JSON: {kind: events}
    Column("collectives", "text", null=True),  # JSON: kernels by operation; null: not counted
    Column("unknown_rows", "text", null=True),  # JSON: rows that may be a device's; null: not asked
    Column("captured", "text", null=True),  # JSON: what a capture says of graphs; null: none given
    Column("damage", "text"),  # JSON: [[kind, occurrences, byte offset of the first, example], ...]
)
"""One row for each profiler window; importing it again replaces it."""

COMPLETENESS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),
    Column("ratio", "double"),  # the smallest share of a kind of record that is there
    Column("is_complete", "bool"),
    Column("has_device_times", "bool"),  # false: the devices were busier than the window says
    Column("launches", "int64"),
    Column("answered", "int64"),  # launches whose work has a record
    Column("losses", "text"),  # JSON: what is missing, by kind and stream
    Column("whole", "text"),  # JSON: the part without lost work, and its content
)
"""One row for each profiler window: the share of the expected records that is there."""

TOTALS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),
    Column("what", "word"),  # kernel, operator, annotation, call, other; stream, section, ...
    Column("category", "word"),  # as the trace writes it; of what is no event: device or host
    Column("name", "word"),
    Column("device", "int32", null=True),
    Column("stream", "int64", null=True),
    Column("kind", "word"),  # of a kernel: compute, communication or copy; of a collective's, too
    Column("section", "word"),  # section of the origin of most of it; empty: unknown
    Column("section_ns", "int64"),  # part of total_ns (a kernel's) from that section
    Column("count", "int64"),
    Column("total_ns", "int64"),
    Column("self_ns", "int64"),
    Column("device_ns", "int64"),  # of device work launched by it, not by operators inside it
    Column("min_ns", "int64"),
    Column("max_ns", "int64"),
    Column("p50_ns", "int64"),
    Column("p95_ns", "int64"),
)
"""One row for each window and name of what ran in it, and for each stream, section, phase, step."""

LAUNCHES: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),
    Column("name", "word"),  # of the kernel, copy or memset
    Column("section", "word"),  # section of its origin; empty: unknown
    Column("operator", "word"),  # operator that launched it; empty: unknown
    Column("inputs", "word"),  # of the operator, as JSON: shapes, types; empty: not recorded
    Column("launch", "word"),  # its grid and block, or bytes; empty: not recorded
    Column("count", "int64"),
    Column("total_ns", "int64"),
)
"""One row for each window and work of a device that differs in any of these."""

STREAMS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),
    Column("device", "int32"),
    Column("stream", "int64", null=True),  # null: the whole device
    Column("window_ns", "int64"),
    Column("first_ns", "int64"),
    Column("last_ns", "int64"),
    Column("count", "int64"),
    Column("busy_ns", "int64"),
    Column("overlap_ns", "int64", null=True),  # of work with other work of its stream
    Column("idle_ns", "int64"),
    Column("gap_ns", "int64"),
    Column("gaps", "int64"),
    Column("host_wait_ns", "int64"),
    Column("device_wait_ns", "int64"),
    Column("unknown_wait_ns", "int64"),
    Column("compute_ns", "int64"),
    Column("communication_ns", "int64"),
    Column("copy_ns", "int64"),
    Column("compute_communication_ns", "int64"),
    Column("compute_copy_ns", "int64"),
    Column("communication_copy_ns", "int64"),
    Column("exposed_communication_ns", "int64"),
    Column("exposed_copy_ns", "int64"),
    Column("launches", "int64"),  # device events whose launching call is known
    Column("early", "int64"),  # of these, started before the call returned
    Column("delay_p50_ns", "int64", null=True),
    Column("delay_p95_ns", "int64", null=True),
    Column("delay_max_ns", "int64", null=True),
)
"""One row for each window and device, and for each of its streams: busy time by kind of work."""

COPIES: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),
    Column("device", "int32"),
    Column("direction", "word"),  # H2D, D2H, D2D, P2P, H2H, set, other
    Column("name", "word"),
    Column("pageable", "bool"),
    Column("count", "int64"),
    Column("total_ns", "int64"),
    Column("sized_ns", "int64"),  # of those whose size is known
    Column("bytes", "int64", null=True),
)
"""One row for each window, device and kind of copy or memset."""

GAPS: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),
    Column("device", "int32"),
    Column("start_ns", "int64"),
    Column("duration_ns", "int64"),
    Column("cause", "word"),  # start, host_wait, device_wait, unknown_wait, end
    Column("operator", "word"),  # operator on the host; empty: none
    Column("thread", "word"),
    Column("next", "word"),  # what ran next on the device
)
"""The longest gaps of each window and device."""

ALLOCATOR: Final = (
    Column("rank", "int32"),
    Column("restart", "int32"),
    Column("digest", "text"),
    Column("device_type", "int32"),
    Column("device", "int32"),
    Column("time_ns", "int64"),
    Column("allocated_bytes", "int64", null=True),
    Column("peak_bytes", "int64", null=True),  # most allocated since the row before
    Column("reserved_bytes", "int64", null=True),  # most reserved since then
    Column("change_bytes", "int64"),  # allocated since the window's start, less freed
)
"""The allocator over time in each window, by device: at most 512 rows, none of its peaks left out.
"""

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "processes": PROCESSES,
    "steps": STEPS,
    "sections": SECTIONS,
    "resources": RESOURCES,
    "durations": DURATIONS,
    "gpu_steps": GPU_STEPS,
    "spans": SPANS,
    "values": VALUES,
    "marks": MARKS,
    "readings": READINGS,
    "instruments": INSTRUMENTS,
    "warnings": WARNINGS,
    "windows": WINDOWS,
    "completeness": COMPLETENESS,
    "totals": TOTALS,
    "launches": LAUNCHES,
    "streams": STREAMS,
    "copies": COPIES,
    "gaps": GAPS,
    "allocator": ALLOCATOR,
}
