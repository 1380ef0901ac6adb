"""Output and conversions are found by the sampled lines of the main thread."""

from __future__ import annotations

import json

import pytest
from gpu_readings import read_gpu
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run

_IDS = {"sync_in_loop", "blocked_loop", "conversions"}
# Line, call, library, within, samples.
_TRAINING = [
    (18, "backward", "torch", "", 100),
    (17, "model", "torch", "", 60),
    (16, "iteration", "torch", "", 5),
    (4, "relu", "torch", "torch", 20),
]


def judged(tmp_path, *lines, of_all=200, gpu=False, own=MS, ids=_IDS, busy=None, pins=False):
    """Findings of a run, of whose samples some are at ``lines`` and the rest in the training."""
    run = RunFolderBuilder(tmp_path)
    if busy is not None:
        read_gpu(run, busy, (1, 5, 10, 15))
    if pins:
        pinned = {"name": names.LOADER_PIN.name, "kind": "histogram", "unit": "s"}
        run.row("instruments", rank=0, restart=0, **pinned)
    for n in range(100):
        run.step(n, n * 200 * MS, {"forward": 99 * MS}, own=own)
    run.process(10 * S, has_gpu=gpu)
    rest = of_all - sum(line[4] for line in lines)
    usual = sum(line[4] for line in _TRAINING)
    training = [(*line[:4], line[4] * rest / usual) for line in _TRAINING]
    for number, call, library, within, samples, *function in (*lines, *training):
        place = {
            names.CODE_FILE: "train.py",
            names.CODE_FUNCTION: (*function, "main")[0],
            names.CODE_LINE: str(number),
            names.STACK_CALL: call,
            names.STACK_PACKAGE: library,
            names.STACK_WITHIN: within,
        }
        for at, part in ((5, 0.5), (10, 1.0)):
            run.row(
                "readings", rank=0, restart=0, name=names.STACK_SAMPLES.name,
                labels=json.dumps(place), time_ns=START + at * S, value=part * samples,
            )  # fmt: skip
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found if one.id in ids}


def test_a_thread_that_is_in_the_training_alone_has_none(tmp_path):
    """A loss that is asked for each step is nothing beside it."""
    assert judged(tmp_path, (19, "item", "", "", 1), (20, "print", "", "", 3)) == {}


@pytest.mark.parametrize(
    ("call", "library", "doing"),
    [
        ("print", "", "on output and logging"),
        ("fsync", "", "on reading and writing files"),
        ("info", "logging", "on output and logging"),
        ("put", "wandb", "on output and logging"),
        ("item", "", "on fetching results"),
    ],
)
def test_output_in_each_step_is_found_with_its_line(tmp_path, call, library, doing):
    """By what is called, or by whose it is."""
    found = judged(tmp_path, (20, call, library, "", 60))

    (one,) = found.values()
    assert one.id == "sync_in_loop"
    assert one.evidence["share"] == pytest.approx(0.3)
    assert one.gain.low < 0.3 < one.gain.high
    place = f"{call}() (train.py:20 in main)"
    assert f"30% of a step {doing}, most of that time in {place}" in one.summary
    assert (".item()" in one.action) is (call == "item")


@pytest.mark.parametrize(
    ("call", "library", "doing", "advice"),
    [
        ("sleep", "", "sleeping", "Remove the sleep from the loop"),
        ("run", "subprocess", "waiting for programs that the loop starts", "subprocess.Popen"),
        ("system", "", "waiting for programs that the loop starts", "subprocess.Popen"),
        ("with", "", "waiting for a lock or another thread", "copy shared data under the lock"),
        ("acquire", "", "waiting for a lock or another thread", "copy shared data under the lock"),
        (
            "join",
            "threading",
            "waiting for a lock or another thread",
            "copy shared data under the lock",
        ),
        ("result", "concurrent", "waiting for other processes", "some steps after the call"),
        ("post", "requests", "waiting for the network", "in another thread"),
    ],
)
def test_a_line_that_waits_is_told_what_fits_it(tmp_path, call, library, doing, advice):
    """It stands still there, and no loss is asked for: at once, or every so many steps."""
    found = judged(tmp_path, (20, call, library, "", 60), own=60 * MS)

    (one,) = found.values()
    assert one.id == "blocked_loop"
    assert f"likely {doing}, most of that time in {call}() (train.py:20 in main)" in one.summary
    assert advice in one.action
    assert ".item()" not in one.action
    assert one.gain.low < 0.3 < one.gain.high


@pytest.mark.parametrize("samples", [50, 90, 130, 170])
def test_a_gain_by_lines_can_be_acted_on(tmp_path, samples):
    """However few the samples are."""
    found = judged(tmp_path, (20, "print", "", "", samples), of_all=200)["sync_in_loop"]

    assert found.gain.high - found.gain.low <= 0.4
    assert found.gain.low <= samples / 200 <= found.gain.high


@pytest.mark.parametrize(
    ("call", "library", "words"),
    [
        ("svd", "numpy", "That line computes with numpy"),
        ("score", "", "Run these lines only every N steps"),
    ],
)
def test_a_line_that_takes_more_than_a_fifth_of_a_step_is_a_warning(tmp_path, call, library, words):
    """Metrics that are computed on the CPU in each step, in the loop's own function or another."""
    ids = {"costly_line", "uncovered"}
    found = judged(tmp_path, (23, call, library, "", 70), own=60 * MS, ids=ids)

    (one,) = found.values()
    assert (one.id, one.severity) == ("costly_line", "warning")
    assert f"most of that time in {call}() at train.py:23 in main" in one.summary
    assert one.action.startswith(words)
    assert one.gain.low < 60 / 159 < one.gain.high
    assert one.gain.high - one.gain.low <= 0.4


def test_lines_of_several_functions_are_saved_together(tmp_path):
    """Three metrics of a tenth each; the line of the costliest one is named."""
    lines = [(3, "sum", "", "", 26, "recall"), (5, "sum", "", "", 20, "precision")]
    lines += [(9, "sum", "", "", 20, "accuracy")]
    found = judged(tmp_path, *lines, own=50 * MS, ids={"costly_line"})["costly_line"]

    assert found.evidence["share"] == pytest.approx(66 / 200, rel=0.02)
    assert "most of that time in sum() at train.py:3 in recall" in found.summary


def test_what_prints_tensors_is_all_that_is_in_no_section(tmp_path):
    """The loop is seen more often in calls that give up the GIL: 60 of 200 looks are 60 %."""
    found = judged(tmp_path, (20, "print", "torch", "", 60), own=150 * MS)["sync_in_loop"]

    assert found.evidence["share"] == pytest.approx(0.6, abs=0.01)


def test_a_result_that_is_asked_for_again_and_again_is_found(tmp_path):
    """Each ``item()`` of a check of all parameters holds up the loop, on a CPU too."""
    found = judged(tmp_path, (20, "item", "", "", 30), (20, "std", "", "", 30))

    (one,) = found.values()
    assert one.id == "sync_in_loop"
    assert one.evidence["share"] == pytest.approx(0.3)


@pytest.mark.parametrize("call", ["to", "double", "contiguous", "astype"])
def test_another_type_or_order_of_elements_is_a_conversion(tmp_path, call):
    """A batch that is made anew in each step, with what the same line computes of it."""
    found = judged(tmp_path, (20, call, "", "", 40), (20, "", "", "", 20))

    (one,) = found.values()
    assert one.id == "conversions"
    assert one.evidence["share"] == pytest.approx(0.3)


def test_a_copy_to_a_gpu_is_no_conversion(tmp_path):
    """That is a transfer, by the same name."""
    assert judged(tmp_path, (20, "to", "", "", 60), gpu=True) == {}


@pytest.mark.parametrize(("samples", "high"), [(60, 0.3), (160, 0.2)])
def test_copies_that_are_waited_for_are_found_with_their_line(tmp_path, samples, high):
    """Pinned beside the step by another thread, which takes as long as the copy did."""
    line = (20, "to", "", "", samples)
    found = judged(tmp_path, line, gpu=True, own=40 * MS, ids={"transfer"})

    one = found["transfer"]
    assert "likely in to() (train.py:20 in main)" in one.summary
    assert (one.gain.low, one.gain.high) == pytest.approx((high / 2, high))


def test_pinned_batches_are_copied_beside_the_step(tmp_path):
    """Where the loop is found in the call all the same it is for something else."""
    line = (20, "cuda", "", "", 60)
    assert judged(tmp_path, line, gpu=True, pins=True, ids={"transfer"}) == {}


def test_conversions_are_found_with_what_python_does_around_them(tmp_path):
    """A list is made of numbers one by one: half of it is the loop of the line itself."""
    found = judged(tmp_path, (20, "float", "", "", 20), (20, "", "torch", "", 20))

    (one,) = found.values()
    assert one.id == "conversions"
    assert one.evidence["share"] == pytest.approx(0.2)


def test_who_goes_through_a_batch_does_more_than_to_ask_for_its_elements(tmp_path):
    """The function that asks for each of them is saved with what else it does with them."""
    lines = (30, "item", "", "", 40, "count"), (31, "", "", "", 60, "count")
    found = judged(tmp_path, *lines, own=99 * MS, ids=_IDS | {"uncovered"})

    (one,) = found.values()
    assert one.id == "sync_in_loop"
    assert one.evidence["share"] == pytest.approx(0.2)
    assert one.gain.high == pytest.approx(0.5, rel=0.01)
    assert "; together with the rest of that function 50% of a step" in one.summary


def test_a_function_that_trains_as_well_is_not_saved_as_a_whole(tmp_path):
    """Its lines stand for themselves."""
    found = judged(tmp_path, (20, "item", "", "", 40), (21, "", "", "", 60), own=99 * MS)

    assert "share_of_function" not in found["sync_in_loop"].evidence


def test_a_comprehension_is_the_line_that_it_is_written_in(tmp_path):
    """Its parts are functions of their own, of which one only iterates."""
    inner = "main.<locals>.<listcomp>.<listcomp>"
    found = judged(
        tmp_path,
        (20, "float", "", "", 8, inner),
        (20, "", "torch", "", 40, "main.<locals>.<listcomp>"),
    )

    assert found["conversions"].evidence["share"] == pytest.approx(48 / 200)
    assert "float() (train.py:20 in main)" in found["conversions"].summary


def test_a_line_that_mostly_computes_is_no_conversion(tmp_path):
    """The loss is asked for in the line of the model."""
    line = [(20, "model", "torch", "", 90), (20, "item", "", "", 30)]

    assert judged(tmp_path, *line) == {}


def test_what_a_loader_calls_is_loading_and_no_conversion(tmp_path):
    """There it is the data that has to be made cheaper."""
    assert judged(tmp_path, (30, "tensor", "", "loading", 80)) == {}


def test_who_waits_for_a_gpu_converts_nothing(tmp_path):
    """The main thread is in `item()` until the step's work is done, as it should be."""
    assert judged(tmp_path, (20, "item", "", "", 120), gpu=True) == {}


def test_results_that_an_idle_gpu_is_asked_for_hold_up_the_loop(tmp_path):
    """It is busy a fifth of the time: what is waited for is mostly the host itself."""
    found = judged(tmp_path, (20, "item", "", "", 80), gpu=True, busy=0.2)["sync_in_loop"]

    assert "40% of a step" in found.summary
    assert found.evidence["gpu_busy"] == pytest.approx(0.2)
    assert found.gain.low < 0.4 < found.gain.high


def test_no_more_is_won_than_the_gpu_idles(tmp_path):
    """Its work has to be waited for in any case."""
    found = judged(tmp_path, (20, "item", "", "", 120), gpu=True, busy=0.7)["sync_in_loop"]

    assert found.gain.high < 0.4
    assert judged(tmp_path / "full", (20, "item", "", "", 120), gpu=True, busy=0.97) == {}


def test_few_samples_decide_nothing(tmp_path):
    """A share of ten looks is none."""
    assert judged(tmp_path, (20, "print", "", "", 6), of_all=10) == {}


def test_time_in_no_section_has_the_line_at_which_it_likely_goes(tmp_path):
    """Where no line has much of it; it is in none of torch's calls."""
    lines = [(23, "score", "", "", 12), *((line, "", "", "", 8) for line in (3, 4, 5, 6))]
    found = judged(tmp_path, *lines, own=28 * MS, ids={"uncovered", "costly_line"})

    (one,) = found.values()
    words = "22% of a step is in no section; 6% of the step time likely in score() at "
    assert words in one.summary
    assert one.summary.endswith("train.py:23 in main")
    assert (one.gain.low, one.gain.high) == pytest.approx((0, 0.06), rel=0.01)


@pytest.mark.parametrize("package", ["queue", ""])
def test_a_loop_that_takes_from_a_queue_waits_for_data(tmp_path, package):
    """Whoever fills the queue is to be made faster, whichever queue it is."""
    found = judged(tmp_path, (23, "get", package, "", 70), own=60 * MS)["blocked_loop"]

    words = "likely waiting for data from a queue, most of that time in get() (train.py:23"
    assert words in found.summary
    assert "puts data into that queue" in found.action


def test_the_advice_is_about_the_line_that_is_named(tmp_path):
    """Without a line none is spoken of."""
    lines = [(23, "score", "", "", 12), *((line, "", "", "", 8) for line in (3, 4, 5, 6))]
    found = judged(tmp_path, *lines, own=28 * MS, ids={"uncovered"})
    alone = judged(tmp_path / "alone", (19, "", "", "", 2), own=99 * MS, ids={"uncovered"})

    assert "that line" in found["uncovered"].action
    assert "that line" not in alone["uncovered"].action


def test_a_function_of_the_loop_is_taken_as_a_whole(tmp_path):
    """Three of its lines have a tenth each; those of the loop itself are apart."""
    lines = [(number, "score", "", "", 20, "judge") for number in (3, 4, 5)]
    lines += [(24, "", "", "", 5), (25, "", "", "", 5)]
    found = judged(tmp_path, *lines, own=60 * MS, ids={"costly_line"})["costly_line"]

    assert "most of that time in score() at train.py:3 in judge" in found.summary
    assert found.evidence["share_of_that_line"] == pytest.approx(60 / 159 * 60 / 70, rel=0.01)


def test_lines_that_keep_the_gil_count_for_the_time_that_is_in_no_section(tmp_path):
    """In short steps a look comes as late as the next call of torch: 28 % of what are 42 %."""
    found = judged(tmp_path, (13, "info", "logging", "", 56), own=73 * MS)

    assert found["sync_in_loop"].evidence["share"] == pytest.approx(73 / 172)


def test_a_loop_over_a_tensor_is_a_line_of_its_own(tmp_path):
    """It is in torch while it asks for the next row, but calls nothing of torch by name."""
    line = [(24, "", "torch", "", 16), (24, "tensor", "", "", 8), (19, "", "", "", 4)]
    found = judged(tmp_path, *line, own=200 * MS)

    assert found["conversions"].evidence["share"] == pytest.approx(24 / 28 * 200 / 299, rel=0.01)


def test_what_lines_explain_is_not_unexplained_besides(tmp_path):
    """Of 38 % in no section 35 are output: no more than three are left."""
    ids = {"uncovered", "sync_in_loop"}
    found = judged(tmp_path, (20, "print", "", "", 70), own=60 * MS, ids=ids)

    assert list(found) == ["sync_in_loop"]


def test_two_looks_do_not_stand_for_half_a_step(tmp_path):
    """They are somewhere, and nobody knows that the rest is there, too."""
    found = judged(tmp_path, (19, "", "", "", 2), own=99 * MS, ids={"uncovered"})

    assert found["uncovered"].summary.endswith("is in no section")
