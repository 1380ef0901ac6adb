"""The rows of every step, and of the run, sum to what the program itself wrote down."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from sums import Node, record

from otel_mlperf import names
from otel_mlperf.analysis.steps.sampled_step import read_step
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.analysis.summary.outside_time import SET_UP
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.store.table_reader import Store

NAMES = st.sampled_from("abc")
WORK = st.integers(0, 50).map(lambda work: work * 1000 + 1)


def _node(kinds, inside):
    below = st.just(()) if inside is None else st.lists(inside, max_size=3).map(tuple)
    return st.builds(Node, st.sampled_from(kinds), NAMES, WORK, below, st.booleans())


_TIMED = ("plain", "sum", "sum", "turns")
_LOOK = st.just(Node("look"))
ELSEWHERE = st.recursive(_node(_TIMED, None), lambda inner: _node(_TIMED, inner), max_leaves=4)
APART = _node(("thread", "copied", "fork"), ELSEWHERE)
LEAVES = _node(_TIMED, None) | APART | _LOOK
INSIDE = st.recursive(
    LEAVES, lambda inner: _node((*_TIMED, "checkpoint", "validate", "step"), inner), max_leaves=10
)
PROGRAMS = st.lists(_node(("step",), INSIDE) | INSIDE, min_size=1, max_size=5)


def sections(store, where):
    """Rows of table ``sections`` with what they add up to."""
    return store.records(
        "SELECT phase, n, name, path, aggregate, beside, sum(count)::BIGINT AS count, "
        "sum(sum_ns)::BIGINT AS sum_ns, sum(self_ns)::BIGINT AS self_ns, min(min_ns) AS min_ns, "
        f"max(max_ns) AS max_ns FROM sections WHERE {where} GROUP BY ALL"
    )


def own_of(truth, scope):
    """Own time by name, and whether it is only added up; of the scope itself under no name."""
    found = Counter()
    for frame, own in truth.own.items():
        if frame.scope == scope:
            last = frame.path[-1] if frame.path else ""
            found[last.removeprefix("+"), last.startswith("+")] += own
    return +found


def by_path(truth):
    """Own time outside steps by path, and whether it is only added up."""
    found = Counter()
    for frame, own in truth.own.items():
        if not frame.scope:
            sums = [name.removeprefix("+") for name in frame.path if name.startswith("+")]
            path = "/".join(name for name in frame.path if not name.startswith("+"))
            found[f"{path}//{'/'.join(sums)}" if sums else path, bool(sums)] += own
    return +found


def check(nodes):
    """Runs a program, and holds everything that is shown of it against what is true."""
    with tempfile.TemporaryDirectory() as folder:
        run, truth = record(Path(folder), nodes)
        store = Store(run.path)
        summary = summarize(run)
        steps = store.records("SELECT * FROM steps")
        _check_steps(store, steps, truth, run, summary)
        _check_outside(store, steps, truth, summary)
        _check_sums(store, truth, summary)
        shown = json.loads(msgspec.json.encode(summary))
        assert [row["self_ns"] for row in shown["aggregates"]] == [
            one.self_ns for one in summary.aggregates
        ]


def _check_steps(store, steps, truth, run, summary):
    scopes = {frame.scope for frame in truth.own if frame.scope}
    assert {(step["phase"], step["n"]) for step in steps} == scopes
    rows = sections(store, "n IS NOT NULL")
    for step in steps:
        scope = step["phase"], step["n"]
        mine = [row for row in rows if (row["phase"], row["n"]) == scope and not row["beside"]]
        found = Counter({(row["name"], row["aggregate"]): row["self_ns"] for row in mine})
        found["", False] = step["self_ns"]
        assert +found == own_of(truth, scope)
        assert sum(found.values()) == step["duration_ns"]
        page = read_step(run, step["number"], step["phase"]).ranks[0]
        told = [one for one in page.sections if not one.beside]
        assert sum(one.self_ns for one in told) == page.duration_ns
        if summary.steps and summary.steps.phase == step["phase"] and summary.steps.count == 1:
            # What is added up has a row for each place on the page, one for all in the summary.
            rows_of_page, rows_of_mean = Counter(), Counter()
            for one in told:
                rows_of_page[one.name, one.aggregate] += one.self_ns
            for row in summary.steps.rows:
                rows_of_mean[row.name, row.aggregate] += 0 if row.beside else row.mean_ns
            assert rows_of_page == rows_of_mean
    if summary.steps:
        told = [row for row in summary.steps.rows if not row.beside]
        assert sum(row.mean_ns for row in told) == pytest.approx(summary.steps.mean_ns)


def _check_outside(store, steps, truth, summary):
    rows = [row for row in sections(store, "n IS NULL") if not row["beside"]]
    rows = [row for row in rows if row["path"] or row["name"] == names.RUN or not row["aggregate"]]
    found = Counter({(row["path"], row["aggregate"]): row["self_ns"] for row in rows})
    assert +found == by_path(truth)
    assert sum(found.values()) + sum(step["duration_ns"] for step in steps) == truth.life
    if not summary.steps:
        assert sum(one.self_ns for one in summary.tree if not one.beside) == truth.life
        return
    assert sum(one.sum_ns for one in summary.outside) == pytest.approx(summary.outside_ns)
    shares = {one.name: one.sum_ns for one in summary.outside}
    if summary.steps.phase == names.TRAIN and truth.is_flat:
        assert shares[SET_UP] == truth.set_up
        assert shares[UNTRACKED] == truth.own[(), ()] - truth.set_up


def _check_sums(store, truth, summary):
    found = Counter()
    for row in store.records("SELECT name, count, sum_ns FROM sections WHERE aggregate"):
        found[row["name"]] += row["count"]
    assert found == Counter({name: len(calls) for name, calls in truth.sums.items()})
    for name, calls in truth.sums.items():
        mine = [one for one in summary.aggregates if one.name == name]
        assert min(one.min_ns for one in mine) == min(calls)
        assert max(one.max_ns for one in mine) == max(calls)


@settings(
    max_examples=settings.default.max_examples * 2 // 5,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # to make a failing one smaller takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
@given(PROGRAMS)
@example([Node("sum", "a", 5, (Node("sum", "b", 7),))])
@example([Node("step", "", 1000, (Node("sum", "a", 5, (Node("plain", "b", 9),)),))])
@example([Node("plain", "a", 50_001, (Node("step", "", 1),))])
@example([Node("step", "", 9, (Node("copied", "", 0, (Node("sum", "b", 7),)),) * 2)])
def test_rows_add_up_for_any_program(nodes):
    """Plain, aggregated, threaded, forked and excluded sections in each other, and exceptions."""
    check(nodes)
