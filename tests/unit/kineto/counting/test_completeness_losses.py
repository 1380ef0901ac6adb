"""Every kind of lost record in a profiler window is named, and nothing else."""

from __future__ import annotations

import gzip
import json

import pytest
from kineto_losses import ON_A100, ON_H100
from kineto_recorded import needs_torch
from kineto_traces import real_traces

from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

H100, A100 = "h100_qwen_0_5b_with_python_functions", "a100_nccl_2ranks_rank0"
_HERE = [
    pytest.param("", marks=needs_torch, id="this_machine"),
    pytest.param("--stacks", marks=needs_torch, id="this_machine_with_stacks"),
]


def completeness_of(path):
    """What is said of the trace in a file."""
    trace = read_trace(path)
    return find_completeness(trace, link(trace))


@pytest.fixture(scope="module")
def recorded():
    """The entries of the recorded traces that are made incomplete, by name."""
    paths = {param.id: param.values[0] for param in real_traces()}
    if not {H100, A100} <= paths.keys():
        pytest.skip("OTEL_MLPERF_TRACES names no folder with these traces")
    return {name: json.loads(gzip.decompress(paths[name].read_bytes())) for name in (H100, A100)}


@pytest.mark.parametrize("path", [*real_traces(), *_HERE])
def test_a_whole_window_lacks_nothing(path, recorded_trace):
    """Of no recorded trace anything is said, and every launch of it is answered."""
    found = completeness_of(recorded_trace(*path.split()) if isinstance(path, str) else path)

    assert found.losses == []
    assert found.answered == found.launches
    assert found.ratio == 1.0


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "way"),
    [*((H100, way) for way in ON_H100), *((A100, way) for way in ON_A100)],
    ids=[*ON_H100, *ON_A100],
)
def test_every_loss_is_named(name, way, recorded, tmp_path):
    """By the kind of record, how many of how many, and on which stream."""
    document = recorded[name]
    left, named = (ON_H100 | ON_A100)[way](document["traceEvents"])
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(document | {"traceEvents": left}))

    found = completeness_of(path)

    said = {}
    for loss in found.losses:
        missing, _ = said.get(loss.kind, (0, 0))
        said[loss.kind] = (missing + loss.missing, loss.of)
    if way.startswith("a device whose clock"):  # how many it shows depends on what waited
        (kind,) = named.kinds
        assert said.keys() == {kind}
        assert said[kind][1] == named.kinds[kind][1]
    else:
        assert said == named.kinds
    assert not found.is_complete
    assert (found.ratio < 1) == (named.kinds.keys() != {"arrow"})
    if named.stream is not None:
        assert {loss.stream for loss in found.losses} == {named.stream}
