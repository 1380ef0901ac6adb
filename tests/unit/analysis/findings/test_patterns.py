"""Patterns of steps are found where they exist, and nowhere else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpu_readings import read_gpu
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run

_PATTERNS = {
    "step_drift", "periodic_stall", "garbage_collection", "uncovered", "validation", "checkpoint",
    "uneven_section", "extra_section",
}  # fmt: skip


def found_in(run):
    """Findings of the patterns, by id."""
    return {one.id: one for one in judge_run(read_run(run.write())).findings if one.id in _PATTERNS}


def steady(tmp_path, count=300, of_step=lambda n: {}, own=MS, spacing=0):
    """A run of steps of 20 ms, three percent apart, and what ``of_step`` adds to each."""
    run, rng, at = RunFolderBuilder(tmp_path), np.random.default_rng(1), 0
    for n in range(count):
        parts = {"forward": 8.0, "backward": 12.0}
        parts = {
            name: int(ms * MS * (1 + 0.03 * rng.standard_normal())) for name, ms in parts.items()
        }
        for name, ns in of_step(n).items():
            parts[name] = parts.get(name, 0) + int(ns)
        run.step(n, at, parts, own=own)
        at += sum(parts.values()) + own + spacing
    run.process(max(at, S))
    return run


def test_a_steady_run_has_no_pattern(tmp_path):
    """Three percent up and down are the machine's."""
    assert found_in(steady(tmp_path)) == {}


def test_steps_that_grow_are_found_with_how_much(tmp_path):
    """From 21 to 31 ms: the last third takes 1.29 times the first."""
    found = found_in(steady(tmp_path, of_step=lambda n: {"forward": n * MS / 30}))["step_drift"]

    evidence = found.evidence
    assert evidence["late_ns"] / evidence["early_ns"] == pytest.approx(1.29, abs=0.03)
    assert found.where.steps == (200, 299)
    # 26 ms on average, and 21 at the beginning.
    assert found.gain.low == 0.0
    assert found.gain.high == pytest.approx(5 / 26, abs=0.03)


def test_a_host_that_runs_ahead_of_its_gpu_at_first_does_not_drift(tmp_path):
    """Until so much waits that it has to, steps take what launching takes."""
    run = steady(tmp_path, of_step=lambda n: {"forward": 0 if n < 60 else 60 * MS}, count=150)
    run.process(20 * S, rank=1, has_gpu=True)

    assert "step_drift" not in found_in(run)


@pytest.mark.parametrize("count", [140, 300])
def test_steps_after_a_profiler_window_are_not_compared_with_those_before(tmp_path, count):
    """On a GPU each launch takes longer from then on."""
    run = steady(tmp_path, of_step=lambda n: {"forward": 12 * MS if n > 135 else 0}, count=count)
    for step in run.steps[133:136]:
        step["kept"] = "profiled"
    run.process(20 * S, rank=1, has_gpu=True)

    assert "step_drift" not in found_in(run)


def cpu_read(run, of_main, seconds=10):
    """What the main thread, which is all of the process, used and waited for by each second."""
    main = {names.PROCESS_ROLE: "main"}
    for second in range(seconds):
        used, waited = of_main(second)
        for metric, labels, value in (
            (names.MAIN_THREAD_CPU_TIME, {}, used),
            (names.MAIN_THREAD_RUN_DELAY, {}, waited),
            (names.PROCESS_CPU_TIME, main | {names.CPU_MODE: "user"}, used),
            (names.PROCESS_RUN_DELAY, main, waited),
        ):
            run.row(
                "readings", rank=0, restart=0, name=metric.name, labels=json.dumps(labels),
                time_ns=START + second * S, value=float(value),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("of_main", "own"),
    [
        # 8 s of steps: in the last three of them a third is spent waiting.
        (lambda s: (s - 0.34 * max(s - 5, 0), 0.34 * max(s - 5, 0)), None),
        (lambda s: (s - 0.15 * max(s - 5, 0), 0.15 * max(s - 5, 0)), None),
        (lambda s: (0.05 * s, 0.95 * s), None),
        (lambda s: (0.5 * s, 0.5 * s), 1.5),
        (lambda s: (s, 0), 1.5),
    ],
    ids=[
        "a neighbour has come",
        "to one of two threads",
        "hardly a CPU",
        "was there all the time",
        "alone",
    ],
)
def test_steps_that_wait_for_a_cpu_do_not_drift(tmp_path, of_main, own):
    """What a neighbour takes is told as such; what grows beside one is found."""
    run = steady(tmp_path, of_step=lambda n: {"forward": 10 * MS if n >= 200 else 0})
    cpu_read(run, of_main)
    found = found_in(run).get("step_drift")

    assert (found and found.evidence["without_cpu_waits"]) == (own and pytest.approx(own, abs=0.05))


def test_two_threads_that_meet_often_lose_more_than_their_wait(tmp_path):
    """Neighbours came, and 49 % of their time waiting made steps of 42 ms into such of 230."""
    run = steady(tmp_path, of_step=lambda n: {"forward": 94 * MS if n >= 200 else 0})
    main = {names.PROCESS_ROLE: "main"}
    for second in range(15):
        late = max(second - 5, 0)
        for metric, labels, value in (
            (names.MAIN_THREAD_CPU_TIME, {}, second - 0.49 * late),
            (names.MAIN_THREAD_RUN_DELAY, {}, 0.49 * late),
            (names.PROCESS_CPU_TIME, main | {names.CPU_MODE: "user"}, 2 * (second - 0.49 * late)),
            (names.PROCESS_RUN_DELAY, main, 2 * 0.49 * late),
        ):
            run.row(
                "readings", rank=0, restart=0, name=metric.name, labels=json.dumps(labels),
                time_ns=START + second * S, value=float(value),
            )  # fmt: skip

    assert "step_drift" not in found_in(run)


def test_what_another_guest_of_the_host_takes_is_no_drift(tmp_path):
    """In the last third the hypervisor takes a third of what the machine would work."""
    run = steady(tmp_path, of_step=lambda n: {"forward": 10 * MS if n >= 200 else 0})
    cpu_read(run, lambda s: (s, 0))
    for second in range(10):
        late = max(second - 5, 0)
        for mode, value in (("user", second - late / 3), ("steal", late / 3)):
            run.row(
                "readings", rank=None, restart=0, name=names.SYSTEM_CPU_TIME.name,
                labels=json.dumps({names.CPU_MODE: mode}), time_ns=START + second * S, value=value,
            )  # fmt: skip

    assert "step_drift" not in found_in(run)


def test_a_drift_that_may_be_the_machines_is_none(tmp_path):
    """Late steps take 1.2 times as long, of a mean that is known to a fifth."""
    uneven = np.random.default_rng(3).exponential(1.5, 300)
    run = steady(
        tmp_path, of_step=lambda n: {"forward": int((uneven[n] * 15 + 8 * (n >= 200)) * MS)}
    )

    assert "step_drift" not in found_in(run)


def test_a_section_of_very_different_times_is_found(tmp_path):
    """A tenth of the steps takes 30 ms more: told with the spread and the slowest step."""
    chosen = np.random.default_rng(7).random(300) < 0.1
    chosen[123] = True
    more = {"forward": 30 * MS}
    run = steady(
        tmp_path, of_step=lambda n: {"forward": 40 * MS} if n == 123 else more if chosen[n] else {}
    )
    found = found_in(run)["uneven_section"]

    assert (found.severity, found.where.section, found.where.steps) == (
        "info",
        "forward",
        (123, 123),
    )
    assert found.evidence["times"] == pytest.approx(38 / 8, rel=0.1)
    assert found.evidence["most_ns"] == pytest.approx(48 * MS, rel=0.05)
    assert found.gain.low == 0.0 < found.gain.high == found.evidence["share"]


def test_a_section_as_uneven_as_a_shared_machine_is_not_found(tmp_path):
    """A tenth of the steps takes 13 ms more, 2.6 times the middle one."""
    chosen = np.random.default_rng(7).random(300) < 0.2

    run = steady(tmp_path, of_step=lambda n: {"forward": 13 * MS} if chosen[n] else {})
    assert "uneven_section" not in found_in(run)


@pytest.mark.parametrize(
    ("waits", "others", "is_told"),
    [(0.0, 0.0, True), (0.02, 0.1, True), (0.25, 0.0, False), (0.02, 1.0, False)],
    ids=["alone", "hardly anybody", "waits for CPUs", "a CPU of two is others'"],
)
def test_a_section_that_the_machine_makes_uneven_is_not_found(tmp_path, waits, others, is_told):
    """30 ms more in a tenth of the steps: an eighth of the time."""
    chosen = np.random.default_rng(7).random(300) < 0.1
    run = steady(tmp_path, of_step=lambda n: {"forward": 30 * MS} if chosen[n] else {})
    cpu_read(run, lambda s: ((1 - waits) * s, waits * s))
    for second in range(10):
        row = {"rank": None, "restart": 0, "time_ns": START + second * S}
        user = json.dumps({names.CPU_MODE: "user"})
        busy = (1 - waits + others) * second
        run.row("readings", **row, name=names.SYSTEM_CPU_COUNT.name, labels="{}", value=2.0)
        run.row("readings", **row, name=names.SYSTEM_CPU_TIME.name, labels=user, value=busy)
    told = judge_run(read_run(run.write())).findings

    assert ("uneven_section" in {one.id for one in told}) == is_told


@pytest.mark.parametrize("name", ["data.load", "compile", "tiny"])
def test_sections_that_are_uneven_by_nature_or_small_are_not(tmp_path, name):
    """Waits have a finding of their own, and what is no twentieth of a step is no matter."""
    chosen = np.random.default_rng(7).random(300) < 0.1
    long = MS if name == "tiny" else 30 * MS

    def of_step(n):
        return {name: long if chosen[n] else long / 10}

    assert "uneven_section" not in found_in(steady(tmp_path, of_step=of_step))


def test_a_slow_moment_in_the_middle_is_no_drift(tmp_path):
    """It has passed."""
    slow = steady(tmp_path, of_step=lambda n: {"forward": 30 * MS if 140 < n < 160 else 0})

    assert "step_drift" not in found_in(slow)


def test_what_comes_every_tenth_step_is_found_where_it_is(tmp_path):
    """30 ms of logging each ten steps are an eighth of the time."""
    run = steady(tmp_path, of_step=lambda n: {"log": 30 * MS} if n % 10 == 9 else {})

    found = found_in(run)["periodic_stall"]

    assert found.evidence["period"] == 10
    assert found.where.section == "log"
    assert found.gain.high == pytest.approx(30 / 240, rel=0.05)
    words = "one step in every 10 takes 2.4 × the median step time, mostly in log"
    assert words in found.summary
    assert found.command == "otel-mlperf show 3f2a --step 299"


def test_what_comes_every_tenth_step_is_found_among_shorter_ones(tmp_path):
    """The machine makes one step in fifteen twice as long, at any time."""
    rng = np.random.default_rng(3)
    odd = set(rng.choice(300, 20, replace=False).tolist())

    def of_step(n):
        return {"log": 90 * MS if n % 10 == 9 else 0, "forward": 25 * MS if n in odd else 0}

    assert found_in(steady(tmp_path, of_step=of_step))["periodic_stall"].evidence["period"] == 10


def test_a_stall_of_a_hundredth_is_information(tmp_path):
    """12 ms every fifty steps of 21 are no reason to warn of anything."""
    run = steady(tmp_path, count=500, of_step=lambda n: {"log": 12 * MS} if n % 50 == 49 else {})

    found = found_in(run)["periodic_stall"]

    assert (found.severity, found.where.section, found.where.steps) == ("info", "log", (49, 499))
    assert found.evidence["share"] == pytest.approx(12 / (50 * 21 + 12), rel=0.1)
    assert found.evidence["chance"] < 1e-6
    assert "one step in every 50 takes 1.6 × the median step time" in found.summary
    assert found.summary.endswith("in log: the excess is 1.1% of the time of all steps")


def run_ahead(device_ms, reads_ms, count=400, every=20, host_ms=16.0, depth_ms=48.0):
    """Steps of a host that runs ahead of its GPU and reads the loss every so many of them, in ms.

    It launches until so much waits; to read it waits for all of it. With that what is lost: the
    time in which the GPU has nothing to do, as a share.
    """
    rng, now, done, times = np.random.default_rng(5), 0.0, 0.0, []
    for n in range(count):
        begin, launched = now, host_ms * (1 + 0.03 * rng.standard_normal())
        done = max(done, now) + device_ms
        now = max(now + launched, done - depth_ms)
        if n % every == every - 1:
            now = max(now, done) + reads_ms
        times.append(now - begin)
    return times, 1 - count * device_ms / sum(times)


@pytest.mark.parametrize(("device_ms", "reads_ms"), [(23.0, 0.1), (23.0, 9.0), (40.0, 15.0)])
def test_a_wait_for_a_gpu_is_lost_as_far_as_the_gpu_idles(tmp_path, device_ms, reads_ms):
    """What a host that ran ahead waits for has to be done in any case; reading is lost."""
    times, lost = run_ahead(device_ms, reads_ms)
    run = RunFolderBuilder(tmp_path)
    for n, ms in enumerate(times):
        run.step(n, int(sum(times[:n]) * MS), {"forward": 9 * MS}, own=int((ms - 9) * MS))
    run.process(20 * S, has_gpu=True)

    found = found_in(run).get("periodic_stall")
    if lost < 0.01:
        assert found is None
    else:
        assert found.gain.high == pytest.approx(lost, rel=0.3)
        assert found.evidence["lost_share"] == pytest.approx(found.gain.high)
        assert "is lost, because the GPU works in the meantime" in found.summary


@pytest.mark.parametrize(("busy", "most"), [(0.995, None), (0.96, 0.04), (0.3, 0.12)])
def test_no_more_is_lost_than_the_gpu_idles(tmp_path, busy, most):
    """As far as its utilization among the steps is known."""
    run = steady(tmp_path, of_step=lambda n: {"log": 30 * MS} if n % 10 == 9 else {})
    run.process(20 * S, has_gpu=True)
    read_gpu(run, busy, [1, 2, 3, 4])

    found = found_in(run).get("periodic_stall")

    assert (found and found.gain.high) == (most and pytest.approx(most, abs=0.01))
    assert not found or found.evidence["share"] == pytest.approx(0.125, abs=0.01)


@pytest.mark.slow
def test_noise_makes_up_for_no_stall_of_a_host(tmp_path):
    """60 % every fifty steps that differ by 15 %, before a GPU that does not set the pace."""
    found = []
    for seed in range(20):
        rng, run, at = np.random.default_rng(seed), RunFolderBuilder(tmp_path / str(seed)), 0
        for n in range(500):
            ns = int(20 * MS * (1 + 0.15 * rng.standard_normal()) * (1.6 if n % 50 == 49 else 1))
            run.step(n, at, {"forward": ns - MS}, own=MS)
            at += ns
        run.process(20 * S, has_gpu=True)
        found.append(found_in(run).get("periodic_stall"))

    kept = [one.evidence["lost_share"] / one.evidence["share"] for one in found if one]
    assert len(kept) >= 17
    assert sorted(kept)[2] == 1.0


@pytest.mark.parametrize(("busy", "high"), [(0.96, None), (0.9, 0.1), (0.3, 0.15)])
def test_collections_win_no_more_than_the_gpu_idles(tmp_path, busy, high):
    """What they take is told as it is."""
    run = steady(tmp_path, of_step=lambda n: {"gc.collect": 3.7 * MS})
    read_gpu(run, busy, [1, 2, 3, 4])

    found = found_in(run).get("garbage_collection")

    assert (found and found.gain.high) == (high and pytest.approx(high, abs=0.01))
    assert not found or found.evidence["share"] == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize(("busy", "found"), [(0.98, []), (0.4, ["uncovered"])])
def test_what_the_gpu_works_through_is_nothing_to_look_at(tmp_path, busy, found):
    """Half of a step in no section: the loop waits there for a GPU that is busy."""
    run = steady(tmp_path, own=20 * MS)
    read_gpu(run, busy, [1, 2, 3, 4])

    assert [*found_in(run)] == found


@pytest.mark.parametrize("name", ["data.load", "checkpoint", "gc.collect", "compile"])
def test_a_small_stall_that_has_a_finding_of_its_own_is_none(tmp_path, name):
    """A pass begins, a checkpoint is written: every so many steps, for good reason."""
    run = steady(tmp_path, count=500, of_step=lambda n: {name: 12 * MS} if n % 50 == 49 else {})

    assert "periodic_stall" not in found_in(run)


def test_stalls_at_odd_distances_are_no_pattern(tmp_path):
    """Somebody else's work comes when it comes."""
    rng = np.random.default_rng(2)
    stalls = set(rng.choice(300, 30, replace=False).tolist())

    run = steady(tmp_path, of_step=lambda n: {"forward": 30 * MS} if n in stalls else {})

    assert "periodic_stall" not in found_in(run)


def test_garbage_collections_are_found_by_their_share(tmp_path):
    """4 ms of 25."""
    found = found_in(steady(tmp_path, of_step=lambda n: {"gc.collect": 4 * MS}))

    assert found["garbage_collection"].evidence["share"] == pytest.approx(4 / 25, rel=0.05)
    assert found["garbage_collection"].gain.low == pytest.approx(0.8 * 4 / 25, rel=0.05)
    assert "gc.freeze()" in found["garbage_collection"].action


def test_one_long_collection_is_no_finding(tmp_path):
    """It is what set-up has left, however long it took."""
    once = steady(tmp_path, of_step=lambda n: {"gc.collect": 2_000 * MS} if n == 9 else {})

    assert "garbage_collection" not in found_in(once)


@pytest.mark.parametrize(("own_ms", "share"), [(20, 0.5), (6.7, 0.25)])
def test_time_in_no_section_is_found(tmp_path, own_ms, share):
    """Half or a quarter of a step that nobody has named; no gain is promised for naming it."""
    found = found_in(steady(tmp_path, own=int(own_ms * MS)))["uncovered"]

    assert found.evidence["share"] == pytest.approx(share, rel=0.05)
    assert (found.gain, found.severity) == (None, "info")


def test_what_every_loop_does_is_not_uncovered(tmp_path):
    """A seventh of a step between its sections is what loops have."""
    assert "uncovered" not in found_in(steady(tmp_path, own=int(3.3 * MS)))


def test_a_section_that_is_no_part_of_the_training_is_found(tmp_path):
    """6 ms of 29, in a program that names all that a training consists of."""
    scores = {"optimizer": 2 * MS, "scores": 6 * MS}
    one = found_in(steady(tmp_path, of_step=lambda n: scores))["extra_section"]

    assert one.summary.startswith("scores takes 21% of a step, in addition to forward pass")
    assert (one.severity, one.where.section) == ("info", "scores")
    assert (one.gain.low, one.gain.high) == (0.0, one.evidence["share"])


@pytest.mark.parametrize("parts", [{"optimizer": 2, "scores": 3}, {"scores": 6}])
def test_sections_that_are_small_or_may_be_a_part_of_the_training_are_not(tmp_path, parts):
    """An eighth of a step; without an optimizer section it may be the optimizer."""
    of_step = {name: ms * MS for name, ms in parts.items()}

    assert "extra_section" not in found_in(steady(tmp_path, of_step=lambda n: of_step))


def test_many_validations_are_a_share_of_a_short_run_too(tmp_path):
    """Six of half a second in one of six; a single one of three seconds may be its end."""
    run = steady(tmp_path, count=140, spacing=25 * MS)
    for _ in range(6):
        run.outside("validate", S // 2)
    once = steady(tmp_path / "once", count=140, spacing=25 * MS)
    once.outside("validate", 3 * S)

    found = found_in(run)["validation"]
    assert found.evidence["share"] == pytest.approx(3 / 6.4, rel=0.05)
    assert found.severity == "warning"
    assert "validation" not in found_in(once)


def test_long_validations_and_checkpoints_are_shares_of_the_run(tmp_path):
    """5 s and 3 s of 15; a run of seconds has too little to tell."""
    run = steady(tmp_path, spacing=25 * MS)
    run.outside("validate", 5 * S)
    run.outside("checkpoint", 3 * S)

    found = found_in(run)

    assert found["validation"].gain.of == found["checkpoint"].gain.of == "run"
    assert found["validation"].evidence["share"] == pytest.approx(5 / 13.8, rel=0.05)
    assert found["checkpoint"].evidence["share"] == pytest.approx(3 / 13.8, rel=0.05)


def saving(tmp_path, around_ms, at=0):
    """Steps of 20 ms; a checkpoint of 10 ms after each third, and what is around it."""
    run = RunFolderBuilder(tmp_path)
    for n in range(300):
        run.step(n, at, {"forward": 8 * MS, "backward": 12 * MS})
        at += 20 * MS
        if n % 3 == 2:
            run.outside("checkpoint", 10 * MS)
            run.span(None, "checkpoint", at, 10 * MS)
            at += (10 + around_ms) * MS
    run.process(at)
    return run


def test_what_is_done_around_checkpoints_goes_with_them(tmp_path):
    """Ten milliseconds to save and thirty for a rename, of a hundred."""
    found = found_in(saving(tmp_path, 30))

    assert set(found) == {"checkpoint"}
    assert found["checkpoint"].evidence["share"] == pytest.approx(0.4, rel=0.02)
    assert found["checkpoint"].evidence["around_share"] == pytest.approx(0.3, rel=0.02)
    assert "10% for saving, 30% for related work such as renaming" in found["checkpoint"].summary


def test_checkpoints_with_nothing_around_them(tmp_path):
    """They are what they take."""
    one = found_in(saving(tmp_path, 0))["checkpoint"]

    assert one.evidence == {"share": pytest.approx(1 / 7, rel=0.02)}
    assert one.summary == "checkpoints take 14% of the run"


def test_checkpoints_of_a_run_that_is_mostly_set_up_are_judged_without_it(tmp_path):
    """7.7 % of a run of 13 s, 14 % of the 7 s after its set-up: a longer run has that share."""
    one = found_in(saving(tmp_path, 0, at=6 * S))["checkpoint"]

    assert one.evidence == {"share": pytest.approx(1 / 13, rel=0.02)}


def passes(tmp_path, *, validates=False):
    """Ten of thirty steps of 20 ms, and 0.4 s after each."""
    run, at = RunFolderBuilder(tmp_path), 0
    for n in range(300):
        run.step(n, at, {"forward": 8 * MS, "backward": 12 * MS})
        at += 20 * MS
        if n % 30 == 29:
            at += 400 * MS
            if validates:
                run.outside("validate", 400 * MS)
    run.process(at)
    return run


def test_time_between_steps_is_found(tmp_path):
    """Ten times 0.4 s, at the end of each pass, in no section: of 10 s."""
    found = found_in(passes(tmp_path))

    assert set(found) == {"uncovered"}
    assert found["uncovered"].evidence["share"] == pytest.approx(0.36, rel=0.02)
    words = "between steps and in no section: 9 gaps of 0.40 s on average"
    assert words in found["uncovered"].summary
    assert found["uncovered"].gain.of == "run"


def test_a_line_that_takes_the_time_between_steps_is_a_warning(tmp_path):
    """Most of 3.6 s of 10 s in one line: a share of that can be saved."""
    run = passes(tmp_path)
    labels = {names.CODE_FILE: "train.py", names.CODE_LINE: "7", names.CODE_FUNCTION: "draw"}
    run.row(
        "readings", rank=0, restart=0, name=names.STACK_SAMPLES_BETWEEN.name,
        labels=json.dumps(labels | {names.STACK_CALL: "save"}), time_ns=START + S, value=40.0,
    )  # fmt: skip
    (one,) = judge_run(read_run(run.write())).findings

    assert one.id == "costly_line"
    assert one.severity == "warning"
    assert "100% of the time between steps likely in save() at train.py:7 in draw" in one.summary
    assert (one.gain.low, one.gain.high) == (
        pytest.approx(0.16, rel=0.03),
        pytest.approx(0.36, rel=0.02),
    )


def test_time_between_steps_that_a_section_has_is_not_found(tmp_path):
    """A validation is one."""
    assert set(found_in(passes(tmp_path, validates=True))) == {"validation"}
