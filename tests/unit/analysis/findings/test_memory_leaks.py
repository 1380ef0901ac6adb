"""Memory that grows is distinguished from memory that fills up, and its growth is measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpu_readings import read_device_memory
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.report.finding_lines import finding_text
from otel_mlperf.store.run_folders import read_run

MIB = 2**20


# What real programs had, MiB by seconds since their run began, and when their first step ended.
RECORDED = {
    "losses kept with their graphs": (4.6, [
        (0.0, 505), (4.5, 700), (5.0, 745), (5.5, 788), (6.0, 820), (6.5, 845), (7.0,
        870), (7.5, 903), (8.0, 935), (8.5, 963), (9.0, 988), (9.5, 1024), (10.0, 1044),
        (10.5, 1081), (11.0, 1107), (11.5, 1136), (12.0, 1160), (12.5, 1187), (13.0,
        1210), (13.5, 1241), (14.0, 1265), (14.5, 1292), (19.5, 1497), (24.6, 1773),
        (29.6, 1988), (34.6, 2210),
    ]),
    "the same losses as numbers": (7.1, [
        (0.0, 451), (4.5, 662), (7.5, 734), (8.0, 736), (8.5, 737), (9.0, 732), (9.5,
        742), (10.0, 735), (10.5, 739), (11.0, 736), (11.5, 741), (12.0, 738), (12.5,
        738), (13.0, 738), (13.5, 738), (14.0, 740), (14.5, 740), (15.0, 740), (15.5,
        738), (16.0, 739), (16.5, 741), (17.0, 741), (19.5, 740), (24.5, 737), (29.5,
        741), (34.5, 738),
    ]),
    "a cache without a limit": (7.3, [
        (0.0, 456), (4.5, 580), (7.5, 734), (8.0, 737), (8.5, 742), (9.0, 743), (9.5,
        746), (10.0, 752), (10.5, 756), (11.0, 761), (11.5, 766), (12.0, 770), (12.5,
        775), (13.0, 779), (13.5, 783), (14.0, 788), (14.5, 793), (15.0, 798), (15.5,
        803), (16.0, 808), (16.5, 812), (17.0, 818), (19.5, 843), (24.6, 903), (29.6,
        969), (34.6, 1029),
    ]),
    "a cache of 300 batches": (4.9, [
        (0.0, 449), (4.5, 692), (5.0, 730), (5.5, 733), (6.0, 739), (6.5, 740), (7.0,
        754), (7.5, 759), (8.0, 765), (8.5, 772), (9.0, 778), (9.5, 782), (10.0, 790),
        (10.5, 798), (11.0, 803), (11.5, 808), (12.0, 813), (12.5, 818), (13.0, 824),
        (13.5, 830), (14.0, 836), (14.5, 843), (19.5, 847), (24.5, 846),
    ]),
    "L-BFGS, full in half the time": (4.3, [
        (0.0, 489), (4.5, 762), (5.0, 805), (5.5, 845), (6.0, 877), (6.5, 918), (7.0,
        951), (7.5, 986), (8.0, 1012), (8.5, 1038), (9.0, 1071), (9.5, 1096), (10.0,
        1125), (10.5, 1154), (11.0, 1177), (11.5, 1194), (12.0, 1193), (12.5, 1201),
        (13.0, 1201), (13.5, 1201), (14.0, 1205), (14.5, 1205), (19.5, 1224), (24.5,
        1234), (29.6, 1234),
    ]),
    "L-BFGS that is not full at its end": (8.5, [
        (0.0, 454), (4.5, 560), (8.5, 746), (9.0, 781), (9.5, 820), (10.0, 847), (10.5,
        877), (11.0, 909), (11.5, 927), (12.0, 947), (12.5, 969), (13.0, 995), (13.5,
        1019), (14.0, 1037), (14.5, 1053), (15.0, 1080), (15.5, 1094), (16.0, 1118),
        (16.5, 1132), (17.0, 1149), (17.5, 1175),
    ]),
}  # fmt: skip
LEAKS = ("losses kept with their graphs", "a cache without a limit")
HISTORY_MIB = 301.2
"""That L-BFGS may keep of these models: 100 iterations."""


def found_in(run):
    """Findings of growth, by id."""
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found if one.id == "memory_growth"}


def steady(tmp_path, since=0, seconds=60):
    """A run of steps of a tenth of a second."""
    run = RunFolderBuilder(tmp_path)
    for n in range(10 * (seconds - since)):
        run.step(n, since * S + n * 100 * MS, {"forward": 99 * MS}, own=MS)
    run.process(seconds * S)
    return run


def memory(run, of_second, role="main", seconds=60, every_s=1.0):
    """Readings of a process's memory, each second."""
    for second in np.arange(0, seconds, every_s):
        memory_at(run, second, of_second(second), role)


def memory_at(run, second, value, role="main"):
    """One reading."""
    run.row(
        "readings", rank=0, restart=0, name=names.PROCESS_MEMORY.name, value=float(value),
        labels=json.dumps({names.PROCESS_ROLE: role}), time_ns=START + int(second * S),
    )  # fmt: skip


def may_fill(run, mib):
    """What the history of the program's optimizer may come to."""
    run.row(
        "readings", rank=0, restart=0, name=names.OPTIMIZER_HISTORY.name,
        labels=json.dumps({}), time_ns=START + S, value=float(mib * MIB),
    )  # fmt: skip


def test_memory_that_grows_steadily_is_found_with_its_slope(tmp_path):
    """10 MiB a second from 400 MiB on: a line without any error."""
    run = steady(tmp_path)
    memory(run, lambda second: (400 + 10 * second) * MIB)

    found = found_in(run)["memory_growth"]

    assert found.evidence["bytes_per_s"] == pytest.approx(10 * MIB)
    assert found.evidence["bytes_per_s_low"] == pytest.approx(10 * MIB)
    assert found.evidence["bytes_per_s_high"] == pytest.approx(10 * MIB)
    assert found.evidence["r_squared"] == pytest.approx(1.0)


def test_tensors_that_are_kept_on_a_device_are_found_there(tmp_path):
    """The process itself does not grow."""
    run = steady(tmp_path)
    memory(run, lambda _second: 900 * MIB)
    for second in range(60):
        read_device_memory(run, second, 400 + 10 * second)

    found = found_in(run)["memory_growth"]

    assert (found.where.rank, found.where.device) == (0, "cuda:0")
    assert found.summary.startswith("the memory of tensors on cuda:0 grows steadily: by 390 MiB")
    assert found.evidence["bytes_per_s"] == pytest.approx(10 * MIB)


def test_what_is_given_back_after_the_last_step_hides_no_growth(tmp_path):
    """The loop's function returns, and what it kept is gone before the run ends."""
    run = steady(tmp_path)
    for second in range(0, 60, 5):
        read_device_memory(run, second, 400 + 500 * second)
    read_device_memory(run, 60.5, 65)

    assert "by 17,500 MiB" in found_in(run)["memory_growth"].summary


def test_what_comes_after_the_last_step_hides_no_growth(tmp_path):
    """It is exported, or a notebook stays open, for twice as long as the steps took."""
    run = steady(tmp_path)
    for second in range(0, 200, 5):
        read_device_memory(run, second, 400 + 500 * min(second, 60))

    assert "by 20,000 MiB" in found_in(run)["memory_growth"].summary


@pytest.mark.slow
def test_a_noisy_growth_is_found_with_how_sure_it_is(tmp_path):
    """The allocator adds up to 30 MiB now and then: the true pace is within the interval."""
    for seed in range(20):
        noise = np.random.default_rng(seed).uniform(0, 30, 60)
        run = steady(tmp_path / str(seed))
        memory(run, lambda second, n=noise: (400 + 10 * second + n[int(second)]) * MIB)
        found = found_in(run)["memory_growth"].evidence

        assert found["bytes_per_s_low"] < 10 * MIB < found["bytes_per_s_high"]
        assert found["bytes_per_s_low"] > 6 * MIB


def test_what_is_won_is_memory(tmp_path):
    """390 of the 990 MiB at the end; what grew in the first third is taken for set-up."""
    run = steady(tmp_path)
    memory(run, lambda second: (400 + 10 * second) * MIB)

    found = found_in(run)["memory_growth"]

    grown, before = found.evidence["grown_bytes"], found.evidence["before_bytes"]
    assert (before, grown) == (pytest.approx(600 * MIB), pytest.approx(390 * MIB))
    assert (found.gain.of, found.gain.high) == ("memory", pytest.approx(390 / 990))
    assert finding_text(found).endswith("could save 39 % of the memory")


@pytest.mark.parametrize("full", [15, 30, 45, 50, 53])
def test_a_growth_that_ends_is_no_leak(tmp_path, full):
    """A history or a cache fills up, at whatever second of sixty, and stays as it is."""
    run = steady(tmp_path)
    memory(run, lambda second: (400 + 20 * min(second, full)) * MIB)

    assert found_in(run) == {}


@pytest.mark.parametrize(("mib", "is_leak"), [(0, True), (200, True), (500, False)])
def test_what_an_optimizer_may_remember_is_no_leak(tmp_path, mib, is_leak):
    """The run ends before the history is full, which is known; what is beyond it is told."""
    run = steady(tmp_path)
    memory(run, lambda second: (400 + 10 * second) * MIB)
    may_fill(run, mib)

    assert bool(found_in(run)) == is_leak


@pytest.mark.parametrize(
    "of_second",
    [
        lambda second: (400 + min(20 * second, 300)) * MIB,
        lambda second: (400 + 200 * (second % 5)) * MIB,
        lambda second: (4000 + second) * MIB,
        lambda second: (400 if second < 45 else 900) * MIB,
    ],
    ids=["set-up", "saw", "little", "one jump"],
)
def test_other_memory_is_no_growth(tmp_path, of_second):
    """Set-up ends, a saw comes back, little is little, a jump is one."""
    run = steady(tmp_path)
    memory(run, of_second)

    assert found_in(run) == {}


def test_memory_that_grows_is_found_in_three_seconds(tmp_path):
    """100 MiB a second; two readings a second, after an import as long."""
    run = RunFolderBuilder(tmp_path)
    for n in range(30):
        run.step(n, 3 * S + n * 100 * MS, {"forward": 90 * MS}, own=MS)
    memory(run, lambda s: (400 + 100 * max(s - 3, 0)) * MIB, seconds=6, every_s=0.5)

    found = found_in(run)["memory_growth"]

    assert "by 200 MiB" in found.summary
    assert found.summary.endswith(" in 2 s")


@pytest.mark.parametrize(
    "of_second",
    [
        lambda s: 400 + 300 * min(max(s - 3, 0) * 4, 1),
        lambda s: 400 + 300 * (s >= 4),
        lambda s: 400 + 300 * (s >= 5),
    ],
    ids=["first steps", "early jump", "late jump"],
)
def test_memory_of_a_short_run_that_grows_once_is_no_growth(tmp_path, of_second):
    """Of few readings a line must explain nearly all."""
    run = RunFolderBuilder(tmp_path)
    for n in range(30):
        run.step(n, 3 * S + n * 100 * MS, {"forward": 90 * MS}, own=MS)
    memory(run, lambda s: of_second(s) * MIB, seconds=6, every_s=0.5)

    assert "memory_growth" not in found_in(run)


def test_memory_of_a_long_set_up_is_no_growth(tmp_path):
    """A line is looked for from the first step on."""
    run = RunFolderBuilder(tmp_path)
    for n in range(20):
        run.step(n, 51 * S + n * 100 * MS, {"forward": 90 * MS}, own=MS)
    memory(run, lambda second: (400 + 10 * min(second, 51)) * MIB)

    assert "memory_growth" not in found_in(run)


def test_growth_of_workers_is_not_the_programs(tmp_path):
    """They come and go."""
    run = steady(tmp_path)
    memory(run, lambda second: (400 + 10 * second) * MIB, role="worker")

    assert found_in(run) == {}


@pytest.mark.parametrize("program", RECORDED)
def test_real_programs_and_their_repaired_twins(tmp_path, program):
    """Losses with graphs and a cache are leaks; what has a bound is none, full or not."""
    begins_s, read = RECORDED[program]
    run = RunFolderBuilder(tmp_path)
    for n in range(1 + int((read[-1][0] - begins_s) / 0.2)):
        run.step(n, int((begins_s + 0.2 * n) * S), {"forward": 199 * MS}, own=MS)
    for at_s, mib in read:
        memory_at(run, at_s, mib * MIB)
    if program.startswith("L-BFGS"):
        may_fill(run, HISTORY_MIB)

    assert bool(found_in(run)) == (program in LEAKS)


@pytest.mark.parametrize(("calls", "found"), [(0, []), (1, []), (40, ["memory_growth"])])
def test_a_program_that_only_loads_does_not_leak(tmp_path, calls, found):
    """Without steps its memory grows for a reason, unless it does the same again and again."""
    run = RunFolderBuilder(tmp_path)
    if calls:
        run.outside("handle", 50 * S, count=calls)
    run.process(60 * S)
    memory(run, lambda second: (500 + 4 * second) * MIB)

    assert list(found_in(run)) == found
