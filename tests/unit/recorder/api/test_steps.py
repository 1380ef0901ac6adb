"""``steps`` opens and ends exactly the steps of a loop."""

from __future__ import annotations

import asyncio
import collections
import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.recorder.sections.section_context import CURRENT


def test_each_turn_is_a_step(recording):
    """Each turn of the loop is a step that begins before its batch is fetched."""
    fetched = []

    def batches():
        for i in range(3):
            fetched.append(trace_root())
            yield [i] * 4

    def trace_root():
        return CURRENT.get()

    for _ in om.steps(batches()):
        with om.span("forward"):
            pass

    steps = recording.sections("train.step")
    waits = recording.sections("data.load")
    assert recording.numbers() == [0, 1, 2]
    assert [row.root for row in steps] == [row.span for row in steps]
    assert [row.parent for row in waits] == [row.span for row in steps]
    assert [row.category for row in waits] == [names.DATA_LOADING] * 3
    assert [row.parent for row in recording.sections("forward")] == [row.span for row in steps]
    assert all(s.start <= w.start and w.end <= s.end for s, w in zip(steps, waits, strict=True))


def test_begin_rows(recording):
    """A step announces number, n and the run-trace section around it before anything inside."""
    with om.epoch(2):
        for _ in om.steps([1, 2]):
            pass
    rows = recording.rows()
    (epoch,) = [row for row in rows if row.name == names.SPAN_EPOCH]
    begins = recording.begins("train.step")[:2]

    assert [(row.end, row.root, row.parent) for row in begins] == [
        (0, 0, epoch.span),
        (1, 1, epoch.span),
    ]
    first = [row.name for row in rows if row.span == begins[0].span or row.root == begins[0].span]
    assert first == ["train.step", "data.load", "train.step"]


def test_numbers_go_on(recording):
    """Numbers go on over several passes, and each pass asks the iterable anew."""
    loop = om.steps([1, 2])
    for _ in range(2):
        assert list(loop) == [1, 2]
    for _ in om.steps([1]):
        pass

    assert recording.numbers() == [0, 1, 2, 3, 4]


def test_exhaustion_takes_the_step_back(recording):
    """The step opened for a batch that never came is cancelled, its number used by the next."""
    list(om.steps([1]))
    cancelled = {row.name for row in recording.rows(Kind.CANCEL)}
    list(om.steps([1]))

    assert cancelled == {"train.step", "data.load"}
    assert recording.numbers() == [0, 1]
    assert [row.root for row in recording.begins("train.step")] == [0, 1, 1, 2]
    assert recording.open() == ["run"]


def test_empty_iterable(recording):
    """No batch, no step."""
    assert list(om.steps([])) == []
    assert recording.sections() == []


def test_length_and_iterable(recording):
    """The length and the iterable are kept."""
    data = [1, 2, 3]
    assert len(om.steps(data)) == 3
    assert om.steps(data).iterable is data
    with pytest.raises(TypeError):
        len(om.steps(iter(data)))


def test_first_number(start):
    """``start(step=)`` sets the first number of training, not the trace's n."""
    recording = start(step=100)
    list(om.steps([1, 2]))
    with om.phase("validate"):
        list(om.steps([1]))

    assert recording.numbers() == [100, 101]
    assert recording.numbers("validate.step") == [0]
    assert [row.root for row in recording.begins("train.step")][:2] == [0, 1]
    assert recording.word(Word.STEP) in (0, 1)


def test_rollback(recording):
    """Setting ``run.step`` makes numbers repeat, while n goes on."""
    for i, _ in enumerate(om.steps(range(4))):
        assert recording.run.step == (i if i < 3 else 1)
        if i == 2:
            recording.run.step = 1

    assert recording.numbers() == [0, 1, 2, 1]
    assert [row.root for row in recording.begins("train.step")][:4] == [0, 1, 2, 3]


def test_exception_of_the_iterable(recording):
    """An exception of the iterable is recorded on step and data wait, as it is."""

    def batches():
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(om.steps(batches()))

    _, failed = recording.sections("train.step")
    assert failed.error[:2] == ["OSError", "disk"]
    assert recording.sections("data.load")[1].error[:2] == ["OSError", "disk"]


def test_exit_of_the_iterable(recording):
    """A program that ends well while it asks for a batch has not failed, nor has its step."""

    def batches():
        yield 1
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        list(om.steps(batches()))

    assert [row.is_error for row in recording.sections("train.step")] == [False, False]


def test_accumulate(recording):
    """Four batches are one step with four micro steps, its samples added up."""
    for _ in om.steps([[0] * 2] * 10, accumulate=4):
        with om.span("forward"):
            pass

    steps, micro = recording.sections("train.step"), recording.sections("micro_step")
    assert [row.payload["n"] for row in steps] == [8, 8, 4]
    assert [row.root for row in micro] == [s.span for s in steps for _ in range(4)][:10]
    assert [row.attributes[names.MICRO_STEP] for row in micro][:5] == [0, 1, 2, 3, 0]
    assert {row.parent for row in recording.sections("forward")} == {row.span for row in micro}
    ends = {row.span: row.end for row in steps}
    assert all(row.end <= ends[row.root] for row in micro)
    assert recording.open() == ["run"]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ([1, 2, 3], 3),
        ((torch.zeros(5, 2), torch.zeros(5)), 5),
        ([torch.zeros(6, 2), torch.zeros(6)], 6),
        ({"ids": torch.zeros(7, 3)}, 7),
        (collections.UserDict(ids=np.zeros((8, 3))), 8),
        (torch.zeros(()), 1),
        ("text", None),
        (object(), None),
        ((1, 2), None),
    ],
)
def test_automatic_samples(recording, batch, samples):
    """Samples are read off the leading dimension of whatever the batch is."""
    for _ in om.steps([batch]):
        pass

    assert recording.one("train.step").payload.get("n") == samples


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (
            {
                "input_ids": np.empty(
                    (
                        4,
                        128,
                    )
                ),
                "labels": np.empty((4,)),
            },
            512,
        ),
        ({"input_ids": np.empty((4,))}, None),
        (
            {
                "pixels": np.empty(
                    (
                        4,
                        128,
                    )
                )
            },
            None,
        ),
        (
            [
                np.empty(
                    (
                        4,
                        128,
                    )
                )
            ],
            None,
        ),
    ],
)
def test_tokens_of_a_text_are_the_places_of_its_matrix(recording, batch, found):
    """Of what a tokenizer makes, by its shape alone; elsewhere nobody knows."""
    for _ in om.steps([batch]):
        pass

    assert recording.rows(Kind.SECTION)[-1].payload.get("t") == found


@pytest.mark.parametrize(
    ("given", "found"), [({"samples": 3}, (3, None)), ({"samples": len, "tokens": sum}, (2, 9)),
                         ({"samples": None}, (None, None)), ({"tokens": 12}, (2, 12))]
)  # fmt: skip
def test_given_samples_and_tokens(recording, given, found):
    """Samples and tokens are taken as given: numbers, or functions of the batch."""
    for _ in om.steps([[4, 5]], **given):
        pass

    payload = recording.one("train.step").payload
    assert (payload.get("n"), payload.get("t")) == found


def test_failing_samples_function(recording):
    """A function for samples that raises harms nothing."""
    recording.may_fail = True
    assert list(om.steps([[1]], samples=lambda batch: 1 / 0)) == [[1]]
    assert recording.one("train.step").payload.get("n") is None


def test_async_iteration(recording):
    """``async for`` works the same way, exhaustion and break included."""

    async def batches():
        for i in range(3):
            await asyncio.sleep(0)
            yield [i]

    async def main():
        async for _ in om.steps(batches()):
            with om.span("forward"):
                await asyncio.sleep(0)
        async for _ in om.steps(batches()):
            break

    asyncio.run(main())

    assert recording.numbers() == [0, 1, 2, 3]
    steps = recording.sections("train.step")
    assert [row.parent for row in recording.sections("forward")] == [s.span for s in steps[:3]]
    assert recording.open() == ["run"]


def test_nested_in_the_same_phase(recording, said):
    """``steps`` inside a step of its phase opens none; that is said once."""
    for _ in om.steps([1, 2]):
        assert list(om.steps([3, 4])) == [3, 4]

    assert recording.numbers() == [0, 1]
    assert len(said()) == 1


@pytest.mark.fault("F25")
def test_data_loader_with_workers(recording):
    """A real DataLoader with forked workers gives the same batches, one step each."""
    data = TensorDataset(torch.arange(40.0))
    loader = DataLoader(data, batch_size=8, num_workers=2)
    plain = [batch[0].tolist() for batch in loader]

    assert [batch[0].tolist() for batch in om.steps(loader)] == plain
    assert [row.payload["n"] for row in recording.sections("train.step")] == [8] * 5


def test_off(tmp_path):
    """Without a run, the iterable's own iterator comes back."""
    data = [1, 2]
    assert type(iter(om.steps(data))) is type(iter(data))


def test_total(recording):
    """The planned number of steps is published."""
    list(om.steps([1], total=500))

    ((key, cells),) = recording.cells().items()
    assert key[0] == "gauge"
    assert names.STEPS_EXPECTED.name in key[1]
    assert len(cells) == 1


def test_step_words(recording):
    """The header tells which step began last, and when."""
    recording.run.step = 41
    for _ in om.steps([1]):
        assert recording.word(Word.STEP) == 41
        assert recording.word(Word.STEP_TIME) == recording.begins("train.step")[0].start


def test_epoch_on_steps(recording):
    """A step carries the number of the epoch that it is in."""
    for _ in om.epochs(2):
        list(om.steps([1]))
    list(om.steps([1]))

    rows = recording.sections("train.step")
    assert [row.attributes.get(names.TRAINING_EPOCH) for row in rows] == [0, 1, None]


def test_two_threads(recording):
    """Two threads that run steps of one phase get numbers of their own."""
    import threading

    def work():
        with om.step():
            barrier.wait()
            barrier.wait()

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(recording.numbers()) == [0, 1]
    assert sorted(row.root for row in recording.begins("train.step")) == [0, 1]


def test_interrupted_iterables(recording):
    """``zip`` and ``islice`` over steps work as over any iterator; no step is lost or failed."""
    assert list(zip(om.steps([1, 2, 3]), "ab", strict=False)) == [(1, "a"), (2, "b")]
    assert list(itertools.islice(om.steps([1, 2, 3]), 2)) == [1, 2]
    with om.phase("validate"):
        assert "train.step" not in recording.open()

    assert recording.numbers() == [0, 1, 2, 3, 4]
    assert not any(row.is_error for row in recording.sections("train.step"))


@pytest.mark.parametrize("total", ["many", [3]])
def test_wrong_total(total):
    """What is no number of steps is refused at the call."""
    with pytest.raises(ValueError, match=r"total is .*, expected the number of planned steps"):
        om.steps([1], total=total)


@pytest.mark.parametrize("accumulate", [0, -1, 1.5, "2", True, None])
def test_wrong_accumulate(accumulate):
    """A number of batches that makes no step is refused at the call."""
    with pytest.raises(ValueError, match=r"accumulate is .*, expected a whole number"):
        om.steps([1], accumulate=accumulate)
