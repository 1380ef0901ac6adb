"""Every operator of a profile has the self time that PyTorch itself computes for it."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
from kineto_recorded import needs_torch

from otel_mlperf.analysis.profiles.kernel_totals import find_kernels
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import rows_of
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

pytestmark = needs_torch


def model():
    """A function of one training step: a hook of Python and an annotation inside operators."""
    import torch

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            with torch.profiler.record_function("inside an operator"):
                return value.mul(2).add(1)

        @staticmethod
        def backward(context, gradient):
            return gradient * 2

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batch = torch.randn(8, 16)

    def step():
        with torch.profiler.record_function("forward"):
            loss = Scaled.apply(net(batch)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compiled():
    """The same for a graph that the compiler made."""
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    fast = torch.compile(net)
    batch = torch.randn(8, 16)

    def step():
        fast(batch).pow(2).mean().backward()

    return step


def profiled(step, path, **options):
    """A profile of three steps after one that warms up."""
    import torch

    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], **options
    ) as profile:
        for _ in range(3):
            step()
    profile.export_chrome_trace(str(path))
    return profile


def self_ns_of(profile, **grouping):
    """By name, worked out by PyTorch; frames of Python, which have no rows there, passed over."""
    from torch.autograd.profiler_util import EventList

    events = [one for one in profile.events() if not one.is_python_function]
    for one in events:
        one.cpu_children, one.cpu_parent = [], None
    tree = EventList(events)
    tree._build_tree()
    found = Counter()
    for average in tree.key_averages(**grouping):
        found[average.key] += round(average.self_cpu_time_total * 1000)
    return found


def ours(path):
    """By name: operators, and annotations wherever they are, by their own time."""
    trace = read_trace(path)
    links = link(trace)
    rows = rows_of(trace, count(trace, links), links.orphans)
    found = Counter()
    for by in ("operator", "annotation"):
        for row in find_kernels(rows, path.name, by).rows:
            if (by, row.category) != ("operator", "annotation"):  # once is enough
                found[row.name] += row.self_ns
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("with_stack", [False, True])
@pytest.mark.parametrize("program", [model, compiled])
def test_self_times_are_those_of_key_averages(tmp_path, program, with_stack):
    """To the nanosecond, with stacks and without, for a compiled graph too."""
    if program is compiled and not shutil.which("g++"):
        pytest.skip("no compiler for inductor")
    path = tmp_path / "trace.json"

    profile = profiled(program(), path, with_stack=with_stack)

    assert ours(path) == self_ns_of(profile) == self_ns_of(profile, group_by_stack_n=5)


def test_without_stacks_nothing_has_to_be_passed_over(tmp_path):
    """``key_averages()`` as it is called by everybody."""
    path = tmp_path / "trace.json"
    profile = profiled(model(), path)

    theirs = Counter()
    for average in profile.key_averages():
        theirs[average.key] += round(average.self_cpu_time_total * 1000)

    assert ours(path) == theirs
    assert theirs["inside an operator"] > 0
