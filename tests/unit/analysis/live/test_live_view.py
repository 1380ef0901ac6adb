"""A run is shown as it is now: from its journals, or from its folder without journals."""

from __future__ import annotations

import json
import time

import pytest
from by_hand import MS, Program
from run_folders import START, RunFolderBuilder, S, digits

from otel_mlperf import names
from otel_mlperf.analysis.live import live_journals
from otel_mlperf.analysis.live.live_journals import look_at, published
from otel_mlperf.analysis.live.live_readings import Usage, find_devices, find_usage
from otel_mlperf.analysis.live.live_requests import requests_now
from otel_mlperf.analysis.live.live_store import read
from otel_mlperf.analysis.live.live_view import LiveWatch, _merged
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.journal.bulletin import Group, Reading, RunWarning, write_readings
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Word
from otel_mlperf.store.run_folders import read_run

SHIFT_NS = 1_760_000_000 * S


@pytest.fixture
def program(tmp_path):
    """A program of rank 0 that records into a journal."""
    program = Program(tmp_path, tmp_path)
    yield program
    program.journal.release()


def looked(tmp_path):
    journal = JournalReader(str(tmp_path / "0-1-1.journal"), is_writable=False)
    found = look_at(journal, SHIFT_NS)
    journal.close()
    return found


def test_steps_are_those_that_ended_with_their_waits(tmp_path, program):
    """Numbers, times, data wait, samples, tokens and operations of each step, the newest last."""
    for start in range(0, 50, 10):
        program.step(start, payload={"n": 32, "t": 512, "f": 10**15})
    found = looked(tmp_path)

    assert found.phase == names.TRAIN
    assert [step.number for step in found.steps] == [100, 101, 102, 103, 104]
    assert found.steps[-1] == (
        104,
        SHIFT_NS + 40 * MS,
        SHIFT_NS + 50 * MS,
        10 * MS,
        2 * MS,
        32,
        512,
        10**15,
    )


def test_time_of_a_validation_inside_a_step_is_not_the_steps(tmp_path, program):
    """A step's duration is what the summary says, too."""
    program.step(0, payload={"x": 4 * MS})

    assert looked(tmp_path).steps[0].duration_ns == 6 * MS


def test_training_steps_are_shown_before_those_of_a_validation(tmp_path, program):
    """While it validates, the figures stay those of training; before any step they are its own."""
    program.step(0, phase="validate")
    assert looked(tmp_path).phase == "validate"

    program.step(10)
    program.step(20, phase="validate")
    assert [step.start_ns for step in looked(tmp_path).steps] == [SHIFT_NS + 10 * MS]


def test_loading_beside_the_step_is_no_wait(tmp_path, program):
    """A thread that loads ahead does not count, nor do the parts of a loading twice."""
    span = program.begin_step(0)
    wait = program.section("data.load", 0, 3, parent=span, root=span, category=names.DATA_LOADING)
    program.section("collate", 1, 2, parent=wait, root=span, category=names.DATA_LOADING)
    program.section("data.load", 0, 9, parent=span, root=span, track=99,
                    category=names.DATA_LOADING)  # fmt: skip
    program.end_step(span, 0, 10)

    assert looked(tmp_path).steps[0].waited_ns == 3 * MS


def test_the_innermost_open_section_is_where_it_is(tmp_path, program):
    """Its name and age; and nothing before anything is open."""
    assert (looked(tmp_path).section, looked(tmp_path).open_ns) == ("", None)

    now_ms = time.monotonic_ns() / MS
    program.open("run", now_ms - 5000)
    program.open("forward", now_ms - 2000)
    found = looked(tmp_path)
    assert found.section == "forward"
    assert 2 * S <= found.open_ns < 60 * S


def test_the_step_that_began_last_has_its_number(tmp_path, program):
    """None before the first."""
    assert looked(tmp_path).step is None

    program.journal.words[Word.STEP], program.journal.words[Word.STEP_TIME] = 7, 1
    assert looked(tmp_path).step == 7


def test_an_ended_run_is_shown_as_it_was_last(tmp_path):
    """Its last steps and losses, and the figures of all its steps, as the summary has them."""
    run = read_run(digits(tmp_path).write())
    live, summary = LiveWatch(run).look(), summarize(run)

    (rank,) = live.ranks
    assert (live.outcome, live.is_seen, live.step, rank.step) == ("finished", False, 39, 39)
    assert (live.phase, live.lost, live.left_ns) == (names.TRAIN, 0, None)
    assert (rank.section, rank.open_ns, len(rank.step_ns)) == ("", None, 24)
    assert (live.mean_ns, live.samples_per_s, live.duration_ns) == (
        summary.steps.mean_ns, summary.steps.samples_per_s, summary.duration_ns
    )  # fmt: skip
    assert live.steps_per_s == pytest.approx(1e9 / summary.steps.mean_ns)
    assert [live.data_wait] == [row.share for row in summary.steps.rows if row.name == "data wait"]


def test_the_last_steps_of_the_last_process_count(tmp_path):
    """Of a rank that was restarted, not what it did before; at most sixty steps."""
    run = RunFolderBuilder(tmp_path)
    for restart, count in ((0, 5), (1, 70)):
        run.process(S, rank=0, restart=restart)
        for n in range(count):
            run.step(n, (restart * 100 + n) * MS, {}, own=MS, restart=restart)
    steps = read(read_run(run.write())).ranks[0].steps

    assert [step.number for step in steps] == list(range(10, 70))


def reading(run, name, value, labels=None, *, rank=None, at=10):
    run.row(
        "readings", rank=rank, restart=0, name=name, labels=json.dumps(labels or {}),
        time_ns=START + at * S, value=float(value),
    )  # fmt: skip


def test_devices_are_as_last_read(tmp_path):
    """Each GPU with its rank, its newest values, and why it is throttled."""
    run = RunFolderBuilder(tmp_path)
    run.process(0, outcome="running")
    gpu = {names.HW_ID: "GPU-a", names.HW_NAME: "gpu0"}
    for at, busy in ((5, 0.1), (10, 0.9)):
        labels = gpu | {names.HW_GPU_TASK: "general"}
        reading(run, names.GPU_UTILIZATION.name, busy, labels, rank=0, at=at)
    reading(run, names.GPU_UTILIZATION.name, 0.5, gpu | {names.HW_GPU_TASK: "encoder"}, rank=0)
    reading(run, names.GPU_MEMORY_USAGE.name, 6e9, gpu, rank=0)
    reading(run, names.GPU_MEMORY_LIMIT.name, 8e9, gpu, rank=0)
    for reason, holds in (("gpu_idle", 1), ("hw_thermal_slowdown", 1), ("sw_power_cap", 0)):
        reading(run, names.THROTTLE.name, holds, gpu | {names.THROTTLE_REASON: reason}, rank=0)
    other = {names.HW_ID: "GPU-b", names.HW_NAME: "gpu1"}
    reading(run, names.HW_POWER.name, 70, other | {names.HW_TYPE: "gpu"})
    first, second = find_devices(read(read_run(run.write())).readings)

    assert (first.name, first.rank, first.utilization, first.memory_bytes) == ("gpu0", 0, 0.9, 6e9)
    assert first.throttled == ["hw_thermal_slowdown"]
    assert (second.name, second.rank, second.power_w, second.utilization) == (
        "gpu1",
        None,
        70,
        None,
    )


def test_memory_and_cpus_are_with_the_workers(tmp_path):
    """Both are sums over process and workers; a share of the CPUs that there are is so many."""
    run = RunFolderBuilder(tmp_path)
    run.process(0, outcome="running")
    for role, size, share in (("main", 3e9, 0.25), ("worker", 1e9, 0.5)):
        labels = {names.PROCESS_ROLE: role}
        reading(run, names.PROCESS_MEMORY.name, size, labels, rank=0)
        reading(run, names.PROCESS_CPU_UTILIZATION.name, share, labels, rank=0)
    reading(run, names.CGROUP_CPU_LIMIT.name, 8, rank=0)
    usage = find_usage(read(read_run(run.write())).readings)

    assert usage == {0: Usage(memory_bytes=4e9, cpus=6.0)}


def test_what_is_gone_is_not_shown(tmp_path):
    """A GPU that was read last minutes before everything else has no bar."""
    run = RunFolderBuilder(tmp_path)
    run.process(0, outcome="running")
    reading(run, names.HW_POWER.name, 70, {names.HW_ID: "GPU-a"}, at=10)
    reading(run, names.PROCESS_MEMORY.name, 1, rank=0, at=200)

    assert find_devices(read(read_run(run.write())).readings) == []


def test_the_newest_readings_are_those_that_the_agent_has_just_made(tmp_path, monkeypatch):
    """Beside the journals they are seconds old, while the run folder may be a minute behind."""
    monkeypatch.setattr(live_journals, "SHARED_MEMORY", str(tmp_path / "shm"))
    run = RunFolderBuilder(tmp_path / "runs")
    run.process(0, outcome="running")
    reading(run, names.HW_POWER.name, 70, {names.HW_ID: "GPU-a"})
    found = read_run(run.write())
    assert published(found, START) is None

    folder = found.path / "journals"
    folder.mkdir()
    made = Reading("3-17-1.journal", names.HW_POWER.name, {names.HW_ID: "GPU-a"}, 300.0)
    hot = RunWarning(
        "GpuHot", "3-17-1.journal", {}, 1.0, START, "gpu0 is hot", "Look at the cooling."
    )
    write_readings(str(folder), {"gpu": Group(time.monotonic_ns() - 2 * S, [made])}, [hot])
    now_ns = time.time_ns()
    live = _merged(found, read(found), {}, now_ns, published(found, now_ns))

    (device,) = live.devices
    assert (device.power_w, device.rank) == (300.0, 3)
    assert live.warnings == ["rank 3: gpu0 is hot"]
    assert 2 * S <= live.readings_age_ns < 60 * S


def test_ranks_on_this_node_are_as_they_are_now_and_others_as_stored(tmp_path, program):
    """Rank 0 is seen in its journal, rank 1 only in the folder; the time left follows."""
    run = RunFolderBuilder(tmp_path / "runs", world_size=2)
    run.process(0, outcome="running", rank=0, world_size=2)
    run.process(0, outcome="running", rank=1, world_size=2, host="node2")
    run.step(3, 0, {}, own=10 * MS, rank=1, number=3)
    reading(run, names.STEPS_EXPECTED.name, 1000, rank=0)
    for start in range(0, 100, 10):
        program.step(start)
    found = read_run(run.write())
    live = _merged(found, read(found), {0: looked(tmp_path)}, START + 100 * MS)

    assert (live.outcome, live.is_seen, live.world_size) == ("running", True, 2)
    assert [(one.rank, one.host, one.step) for one in live.ranks] == [
        (0, "node", 109),
        (1, "node2", 3),
    ]
    per_second = (10 / 0.1 + 1 / 0.1) / 2
    assert live.steps_per_s == pytest.approx(per_second)
    assert live.left_ns == pytest.approx((1000 - 110) / per_second * 1e9)


def test_a_rank_that_hangs_becomes_slower(tmp_path, program):
    """Rates are up to now, so minutes without a step show in them."""
    run = RunFolderBuilder(tmp_path / "runs")
    run.process(0, outcome="running")
    found = read_run(run.write())
    for start in range(0, 100, 10):
        program.step(start)
    rates = [
        _merged(found, read(found), {0: looked(tmp_path)}, SHIFT_NS + at).steps_per_s
        for at in (100 * MS, 100 * S)
    ]

    assert rates == pytest.approx([100, 0.1])


def test_requests_that_are_open_and_those_of_the_last_minute(tmp_path, program):
    """Counts, quantiles and the oldest, by name; what ended long ago is over."""
    now = time.monotonic_ns() / MS
    for i in range(100):
        program.section("predict", now - i - 1, now - i, span=5000 + i, root=5000 + i,
                        category=names.REQUEST, error=i == 0, track=200 + i)  # fmt: skip
    program.section("predict", now - 70_000, now - 61_000, span=6000, root=6000,
                    category=names.REQUEST)  # fmt: skip
    program.open("predict", now - 500, span=7000, root=7000)
    (found,) = requests_now(looked(tmp_path).requests)

    assert (found.name, found.open, found.count, found.failed) == ("predict", 1, 100, 1)
    assert found.oldest_ns >= 500 * MS
    for took in (found.p50_ns, found.p95_ns, found.p99_ns, found.max_ns):
        assert abs(took - MS) <= 1
    assert found.per_s > 0
