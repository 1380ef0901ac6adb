"""Coverage-guided fuzzing of the trace reader: a Trace or a TraceError, and nothing else, ever.

Not part of the suite, as it needs ``atheris`` and time. To run it for ten minutes::

    python tests/fuzz/trace_reading.py -max_total_time=600 -max_len=8192 CORPUS_FOLDER

What it finds goes into the table of ``tests/unit/kineto/reading/test_recovery.py``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["otel_mlperf.kineto", "json"]):
    from otel_mlperf.errors import TraceError
    from otel_mlperf.kineto.reading.trace_reader import read_details, read_trace

PATH = Path(tempfile.mkdtemp(dir="/dev/shm")) / "fuzzed.json"
SEEDS = Path(__file__).parents[1]


def read_one(data: bytes) -> None:
    """Read the bytes as a trace, and check what every caller relies on."""
    PATH.write_bytes(data)
    try:
        trace = read_trace(PATH)
    except TraceError:
        return
    events = trace.events
    length = len(events)
    assert all(len(getattr(events, name)) == length for name in events.__slots__)
    assert (events.name < len(trace.names)).all()
    assert (events.category < len(trace.categories)).all()
    assert (events.track < len(trace.tracks)).all()
    assert (trace.flows.kind < len(trace.flow_kinds)).all()
    assert (events.position[1:] > events.position[:-1]).all()
    assert all(damage.occurrences > 0 for damage in trace.damage)
    texts = [*trace.names, *trace.categories, *(text for track in trace.tracks for text in track)]
    "".join(texts).encode()
    read_details(trace, range(length))


def seed(folder: Path) -> None:
    """Write small traces to begin with, unless there are some."""
    sys.path.insert(0, str(SEEDS))
    from kineto_traces import allocation, named, trace_text, training_step, write_trace

    entries = [*training_step(), allocation(1, 2), named("process_name", "python")]
    folder.mkdir(parents=True, exist_ok=True)
    write_trace(folder / "whole.json", entries, distributedInfo={"rank": 1, "world_size": 2})
    write_trace(folder / "packed.json.gz", entries)
    text = trace_text(entries)
    (folder / "quote.json").write_text(text.replace("aten::relu", 'say "hi"'))
    (folder / "number.json").write_text(text.replace("1020.001", "NaN"))
    (folder / "halves.json").write_text('[{"ph":"B","ts":1,"name":"a"},{"ph":"E","ts":2.5}]')


def main() -> None:
    """Seed the corpus that is named last, then fuzz."""
    if len(sys.argv) > 1 and not sys.argv[-1].startswith("-"):
        seed(Path(sys.argv[-1]))
    atheris.Setup(sys.argv, read_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
