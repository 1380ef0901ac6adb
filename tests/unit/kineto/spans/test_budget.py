"""The spans sent of a trace fit the budget, and none of its time is lost."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import event, kernel, launch, operator, real_traces, write_trace

from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.spans.budget import choose
from otel_mlperf.kineto.spans.critical_path import critical_path
from otel_mlperf.kineto.spans.rollups import OTHERS
from otel_mlperf.kineto.spans.trace_assignment import find_assignment
from otel_mlperf.kineto.trace_events import NONE


@cache
def linked(path):
    """A trace and its links, read once for all budgets."""
    trace = read_trace(path)
    return trace, link(trace)


class Chosen:
    """A trace and what is sent of it."""

    def __init__(self, path, budget):
        self.trace, self.links = linked(path)
        self.places = find_assignment(self.trace, self.links, whole=budget is None)
        budgets = None if budget is None else np.full(len(self.places.traces), budget)
        critical = critical_path(self.trace, self.links)
        self.plan = choose(self.trace, self.places, budgets, critical)

    def totals(self):
        """Category to events and time: of the trace, and of what is sent."""
        events, rolled = self.trace.events, self.plan.roll_ups
        whole, sent = Counter(), Counter()
        for place, category in enumerate(self.trace.categories):
            mine = events.category == place
            kept, stands = mine & self.plan.kept, rolled.category == place
            whole[category, "events"] = int(mine.sum())
            whole[category, "ns"] = sum(events.duration_ns[mine].tolist())
            sent[category, "events"] = int(kept.sum() + rolled.count[stands].sum())
            sent[category, "ns"] = sum(events.duration_ns[kept].tolist()) + sum(
                rolled.sum_ns[stands].tolist()
            )
        return whole, sent

    def spans_by_trace(self):
        """How many spans each trace gets."""
        kept = Counter(self.places.trace[self.plan.kept].tolist())
        anchors = self.plan.roll_ups.anchor
        return kept + Counter(self.places.anchor_trace[anchors].tolist())

    def names(self):
        """The names of what is kept."""
        return Counter(self.trace.names[name] for name in self.trace.events.name[self.plan.kept])

    def rolled(self):
        """Name to count, sum, min and max of each roll-up."""
        found = self.plan.roll_ups
        columns = (found.name, found.count, found.sum_ns, found.min_ns, found.max_ns)
        return [
            ("others" if name == OTHERS else self.trace.names[name], *rest)
            for name, *rest in zip(*(column.tolist() for column in columns), strict=True)
        ]


@pytest.mark.parametrize("budget", [1, 100, 2000, None])
@pytest.mark.parametrize("path", real_traces())
def test_no_time_of_a_real_trace_is_lost(path, budget):
    """What is kept and rolled up adds up to the trace, in every category, to the nanosecond."""
    whole, sent = Chosen(path, budget).totals()

    assert sent == whole


@pytest.mark.parametrize("budget", [10, 100, 2000])
@pytest.mark.parametrize("path", real_traces())
def test_a_real_trace_stays_within_its_budget(path, budget):
    """No trace has more spans than allowed, and what is kept hangs under what is kept."""
    found = Chosen(path, budget)

    assert max(found.spans_by_trace().values()) <= budget
    above = found.places.forest.parent[found.plan.kept]
    assert found.plan.kept[above[above != NONE]].all()
    above = found.plan.roll_ups.above
    assert found.plan.kept[above[above != NONE]].all()


@st.composite
def nested(draw):
    """Operators inside each other, with kernels and Python functions, on one thread."""
    entries, at = [], 0.0

    def add(depth):
        nonlocal at
        start = at
        at += draw(st.integers(1, 50)) / 8
        for _ in range(draw(st.integers(0, 3)) if depth < 4 else 0):
            add(depth + 1)
        at += 1
        category = draw(st.sampled_from(["cpu_op", "cpu_op", "python_function"]))
        name = draw(st.sampled_from(["a", "b", "c"]))
        entries.append(event(name, start, at - start, category=category))

    for _ in range(draw(st.integers(1, 6))):
        add(0)
    return entries


@pytest.mark.fault("F83")
@settings(max_examples=60)
@given(entries=nested(), budget=st.integers(1, 40))
def test_any_tree_keeps_its_time_and_its_budget(entries, budget, tmp_path_factory):
    """Whatever the tree: nothing is lost, parents are kept, each parent and name rolls up once."""
    path = write_trace(tmp_path_factory.mktemp("trace") / "trace.json", entries)

    found = Chosen(path, budget)

    whole, sent = found.totals()
    assert sent == whole
    assert max(found.spans_by_trace().values()) <= max(budget, len(found.trace.categories))
    above = found.places.forest.parent[found.plan.kept]
    assert found.plan.kept[above[above != NONE]].all()
    rolled = found.plan.roll_ups
    keys = list(zip(rolled.above, rolled.anchor, rolled.name, rolled.category, strict=True))
    assert len(set(keys)) == len(keys)


def layers(count, python=False):
    """The same operator with a kernel again and again, inside a forward; and one long operator."""
    entries = [operator("forward", 0, 100.0 * count + 1000, external=1)]
    for layer in range(count):
        start, ident = 10 + 100.0 * layer, 10 + layer
        known = {"External id": ident}
        entries += [
            operator("aten::linear", start, 60, external=ident),
            operator("aten::addmm", start + 5, 50, external=ident),
            launch(start + 10, 5, ident, **known),
            kernel("sgemm", start + 20, 30 + layer / 8, ident, **known),
        ]
        if python:
            entries.append(event("module.py: forward", start - 1, 62, category="python_function"))
    return [*entries, operator("aten::sort", 100.0 * count + 100, 500, external=5)]


def test_first_of_what_repeats_is_whole(tmp_path):
    """Of a hundred layers the first is there with all that is in it, to its kernel."""
    found = Chosen(write_trace(tmp_path / "trace.json", layers(100)), 40)

    events, kept = found.trace.events, found.plan.kept
    linear = found.trace.names.index("aten::linear")
    first = min(
        np.flatnonzero(events.name == linear).tolist(), key=lambda row: events.start_ns[row]
    )
    inside = np.flatnonzero(found.links.parent == first)
    below = np.flatnonzero(np.isin(found.links.parent, inside))
    assert kept[first]
    assert kept[inside].all()
    assert kept[below].all()
    assert {found.trace.names[name] for name in events.name[below]} >= {"sgemm"}


def test_longest_are_kept_and_the_rest_is_summed(tmp_path):
    """The operator that takes long is a span; roll-ups say count, sum, least and most."""
    found = Chosen(write_trace(tmp_path / "trace.json", layers(100)), 40)

    assert found.names()["aten::sort"] == 1
    (rolled,) = [one for one in found.rolled() if one[0] == "aten::linear"]
    assert rolled[1] == 100 - found.names()["aten::linear"]
    assert rolled[2:] == (rolled[1] * 60_000, 60_000, 60_000)


def test_python_functions_are_rolled_up_in_any_case(tmp_path):
    """They are no spans even where the budget has room, and are above nothing."""
    path = write_trace(tmp_path / "trace.json", layers(5, python=True))

    found = Chosen(path, 10_000)

    assert "module.py: forward" not in found.names()
    assert ("module.py: forward", 5, 5 * 62_000, 62_000, 62_000) in found.rolled()
    linear = found.trace.names.index("aten::linear")
    above = found.places.forest.parent[found.trace.events.name == linear]
    assert {found.trace.names[name] for name in found.trace.events.name[above]} == {"forward"}


def test_without_a_budget_every_event_is_a_span(tmp_path):
    """Python functions too, where they belong."""
    found = Chosen(write_trace(tmp_path / "trace.json", layers(5, python=True)), None)

    assert found.plan.kept.all()
    assert len(found.plan.roll_ups) == 0
    assert found.names()["module.py: forward"] == 5


def test_more_names_than_room_are_one_span_a_category(tmp_path):
    """A budget below the number of names names the largest and joins the others."""
    entries = [operator(f"op{number}", 10.0 * number, 1 + number / 8) for number in range(50)]

    found = Chosen(write_trace(tmp_path / "trace.json", entries), 5)

    names = [one[0] for one in found.rolled()]
    assert sum(found.plan.kept) + len(names) <= 5
    assert names.count("others") == 1
    whole, sent = found.totals()
    assert sent == whole


def test_what_is_alone_is_a_span_itself(tmp_path):
    """A roll-up of one event would say less and cost as much."""
    found = Chosen(write_trace(tmp_path / "trace.json", layers(100)), 40)

    children = found.places.forest.parent != NONE
    inner = np.unique(found.places.forest.parent[children])
    rolled = found.plan.roll_ups
    single = rolled.first[rolled.count == 1]
    directly = found.places.forest.parent[single] == rolled.above[rolled.count == 1]
    assert np.isin(single[directly], inner).all()


@pytest.mark.parametrize(
    ("depth", "beside", "many"), [(3_000, 0, 7), (900, 2, 7), (1_100, 0, 1_100), (3_000, 0, 3_000)]
)
def test_a_chain_that_is_deeper_than_the_budget_is_shown_from_the_top(
    tmp_path, depth, beside, many
):
    """Its end is rolled up, and no time is lost; also with events below each, or of many names."""
    entries = []
    for at in range(depth):
        entries.append(operator(f"op{at % many}", at, 2 * depth - 2 * at + 4))
        entries += [operator(f"part{one}", at + 0.1 * one, 0.05) for one in range(beside)]
    found = Chosen(write_trace(tmp_path / "t.json", entries), 1_000)

    sent = found.spans_by_trace().total()
    assert 400 < sent <= 1_000
    kept = np.flatnonzero(found.plan.kept)
    parents = found.places.forest.parent[kept]
    assert set(parents.tolist()) - {NONE} <= set(kept.tolist())
    assert NONE in parents
    assert set(found.plan.roll_ups.above.tolist()) <= set(kept.tolist())
    whole, sent_totals = found.totals()
    assert sent_totals == whole
