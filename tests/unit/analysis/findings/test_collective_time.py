"""Collectives that take much of a step are found, waiting separate from moving."""

from __future__ import annotations

import pytest
from rank_runs import counted, exposed, found_in, on_cpus, stepping

from otel_mlperf import names
from otel_mlperf.findings.finding import Gain, Where

IDS = ("collectives", "straggler", "uneven_shards")
WORK = {"forward": 10, "backward": 30}


def by_turns(runs):
    """In each step another rank is late."""
    ranks = [
        {
            "forward": lambda n, r=r: 40 if n % 2 == r else 10,
            "barrier": lambda n, r=r: 1 if n % 2 == r else 31,
        }
        for r in (0, 1)
    ]
    return stepping(runs, *ranks, steps=130)


def wrapped(runs, *exposed_ms):
    """DDP exchanges gradients in a backward pass of 30 ms, of 40 ms a step."""
    run = stepping(runs, WORK, WORK, steps=130)
    exposed(run, *exposed_ms)
    return run


def test_collectives_that_move_much(tmp_path):
    """All ranks are in them for as long: that is the exchange itself."""
    part = {"forward": 10, "backward": 20, "all_reduce": 20}
    one = found_in(stepping(tmp_path, part, part), *IDS)["collectives"]

    assert one.summary == (
        "collectives take 40% of a step: likely 40% for data transfer, 0% for waiting for late "
        "ranks"
    )
    assert one.where == Where(section="all_reduce")
    assert one.gain == Gain(low=0.0, high=pytest.approx(0.4))
    assert one.command == "otel-mlperf show 3f2a"


def test_very_many_collectives_have_a_gain_to_act_on(tmp_path):
    """Gradients that an untouched loop reduces one by one: fewer ones save their latency."""
    part = {"forward": 10, "backward": 20, "all_reduce": 90}
    run = stepping(tmp_path, part, part, steps=130)
    counted(run, names.COLLECTIVES, 28, 28)
    one = found_in(run, *IDS)["collectives"]

    assert one.gain == Gain(low=pytest.approx(0.7 * 0.75), high=pytest.approx(0.75))


def test_ranks_that_are_late_by_turns(tmp_path):
    """No rank is the slow one: in each step another one is waited for."""
    run = by_turns(tmp_path)
    on_cpus(run)
    found = found_in(run, *IDS)

    one = found.pop("collectives")
    assert found == {}
    assert one.evidence["waiting"] == pytest.approx(15 / 41)
    assert one.evidence["moving"] == pytest.approx(1 / 41)


def test_who_is_late_for_want_of_a_cpu(tmp_path):
    """Others have it, which is another finding; where nobody knows, nothing is said."""
    run = by_turns(tmp_path / "busy")
    on_cpus(run, waits=0.3)

    assert found_in(run, *IDS) == {}
    assert found_in(by_turns(tmp_path / "unknown"), *IDS) == {}


def test_the_wait_for_a_late_rank_is_that_ranks_finding(tmp_path):
    """The rank that waits is not accused, and what it waits is not said twice."""
    late = {"forward": 40, "barrier": 1}
    run = stepping(tmp_path, late, {"forward": 10, "barrier": 31}, steps=130)
    on_cpus(run)
    found = found_in(run, *IDS)

    assert [*found] == ["straggler"]
    assert found["straggler"].where.rank == 0


def test_what_ddp_exchanges_in_the_backward_pass(tmp_path):
    """No section shows it; DDP has timed it, and the rank that comes last does not wait."""
    run = wrapped(tmp_path, 24, 26)
    on_cpus(run)
    one = found_in(run, *IDS)["collectives"]

    assert one.where == Where(section="backward")
    assert one.evidence == {
        "share": pytest.approx(0.6),
        "moving": pytest.approx(0.6),
        "waiting": 0.0,
        "in_backward": pytest.approx(0.6),
    }


def test_how_many_there_are_and_what_ddp_moves_is_said(tmp_path):
    """As each rank has read it last; those that are not of gradients are to be looked at first."""
    run = wrapped(tmp_path, 24, 26)
    on_cpus(run)
    counted(run, names.COLLECTIVES, 12, 12)
    counted(run, names.DDP_BUCKETS, 2, 2)
    counted(run, names.DDP_GRADIENTS, 24 << 20, 24 << 20)
    one = found_in(run, *IDS)["collectives"]

    assert one.summary.endswith(
        "0% for waiting for late ranks; 12 collectives per update; 24.0 MiB of gradients in "
        "2 buckets"
    )
    assert one.action.startswith(
        "Start with the 10 collectives per update without DDP's gradients."
    )
    assert one.evidence["collectives"] == 12
    assert one.evidence["gradients_bytes"] == 24 << 20


def test_an_exchange_of_gradients_alone_is_advised_of_them(tmp_path):
    """Two buckets, and one for the buffers of the model."""
    run = wrapped(tmp_path, 24, 26)
    on_cpus(run)
    counted(run, names.COLLECTIVES, 3, 3)
    counted(run, names.DDP_BUCKETS, 2, 2)

    assert found_in(run, *IDS)["collectives"].action.startswith("Use fewer and larger collectives")


@pytest.mark.parametrize("ms", [0, 2, 12, 20])
def test_an_exchange_that_is_short(tmp_path, ms):
    """Every program of several ranks has one."""
    run = wrapped(tmp_path, ms, ms)
    on_cpus(run)

    assert found_in(run, *IDS) == {}


def test_an_exchange_for_want_of_a_cpu(tmp_path):
    """It is slow because threads wait."""
    run = wrapped(tmp_path, 24, 26)
    on_cpus(run, waits=0.3)

    assert found_in(run, *IDS) == {}


def test_steps_that_do_little(tmp_path):
    """Most of a step of 4 ms is the latency of its collectives."""
    part = {"forward": 1, "all_reduce": 3}

    assert found_in(stepping(tmp_path, part, part), *IDS) == {}


def test_of_one_rank_nothing_is_said(tmp_path):
    """It may have an all_reduce all the same."""
    assert found_in(stepping(tmp_path, {"forward": 1, "all_reduce": 30}), *IDS) == {}


def test_of_a_few_steps_nothing_is_said(tmp_path):
    """The first ones wait for everything."""
    part = WORK | {"all_reduce": 30}

    assert found_in(stepping(tmp_path, part, part, steps=9), *IDS) == {}


def test_many_collectives_in_sections_of_the_program_itself_are_found(tmp_path):
    """Gradients that are reduced one by one in its optimizer section: 64 for each step."""
    parts = {"forward": 5, "backward": 15, "optimizer": 60}
    run = stepping(tmp_path, parts, parts, steps=130)
    on_cpus(run)
    counted(run, names.COLLECTIVES, 64, 64)
    one = found_in(run, *IDS)["collectives"]

    assert one.summary == (
        "collectives take 48% of a step on every rank, likely: the main thread is blocked for "
        "that time, mostly in optimizer; 64 collectives per update"
    )
    assert one.where == Where(section="optimizer")
    assert one.gain.low < 0.48 < one.gain.high
    assert one.gain.high - one.gain.low <= 0.4


@pytest.mark.parametrize(("many", "knows_threads"), [(3, True), (64, False)])
def test_few_collectives_or_unknown_waits_are_no_finding(tmp_path, many, knows_threads):
    """Two healthy ranks have a bucket or two."""
    parts = {"forward": 5, "backward": 15, "optimizer": 60}
    run = stepping(tmp_path, parts, parts, steps=130)
    if knows_threads:
        on_cpus(run)
    counted(run, names.COLLECTIVES, many, many)

    assert found_in(run, *IDS) == {}
