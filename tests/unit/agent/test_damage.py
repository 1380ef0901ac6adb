"""A stray store into a journal costs only what it hit, counted.

A native library of the training program may write anywhere into its memory. Each example is a
journal as a killed process left it, with damage in one of its regions, beside a run that is whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from by_hand import MS, TRACK, Program, accounts, adds_up, aggregate, table
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mlperf.agent.lifecycle.run_recovery import recover_journals
from otel_mlperf.analysis.live.live_journals import look_at
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import (
    BUCKETS_AT,
    CELL_BYTES,
    CHUNK_BYTES,
    META_AT,
    OPEN_BYTES,
    ROW_BYTES,
    WORD,
    HistogramCell,
    Kind,
    Shape,
    State,
    Word,
)

STEPS = 12
OPENED = 3
ENVIRON = {"OTEL_MLPERF_TRACE_EVERY": "1", "OTEL_MLPERF_READINGS": "none"}
REGIONS = ("words", "metadata", "cells", "table", "entries", "ring")
ODD = st.sampled_from([0, 3, 1 << 31, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1])
WRITES = st.lists(
    st.tuples(
        st.integers(0, 1 << 16),
        st.binary(min_size=1, max_size=200) | (ODD | st.integers(0, (1 << 64) - 1)).map(
            lambda word: word.to_bytes(WORD, "little")
        ),
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip
"""Where in the region, and what is stored there."""


class Left(NamedTuple):
    """What a killed process left."""

    path: Path
    journal: bytes
    spans: set[str]
    """Ids of its sections."""
    run_folder: Path

    def restore(self, journal: bytes) -> None:
        """As it was when nobody had read it, but for what the journal says."""
        shutil.rmtree(self.run_folder, ignore_errors=True)
        self.run_folder.mkdir(parents=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(journal)

    @property
    def account(self) -> dict:
        return accounts(self.run_folder)["spans"]["store"]


def killed(place: Path, name: str) -> Left:
    """A process that had everything open and written that one can have."""
    folder, run_folder = place / "shared" / name, place / "runs" / name
    folder.mkdir(parents=True)
    program = Program(folder, run_folder)
    count_up(program)
    for n in range(STEPS):
        told = {"a": {"text": "v" * 100, "list": [1, 2]}, "n": 8, "x": 5}
        step = program.step(10 * n, error=n == 3, payload=told | {"e": ["E", "words", ""]})
        inside = program.section("inside", 10 * n + 3, 10 * n + 4, parent=step, root=step)
        program.journal.put(10 * n * MS, 7, inside, n, step, TRACK, program.name("l"), Kind.VALUE)
    program.section("outside", 200, 210, payload={"a": {"k": 1.5}})
    program.open("run", 0, span=program.run)
    step = program.begin_step(220)
    program.open("train.step", 220, span=step, root=step)
    program.open("forward", 221, parent=step, root=step)
    program.journal.release()
    path = Path(program.journal.path)
    spans = {f"{span:016x}" for span in range(program.run, next(program._ids))}
    return Left(path, path.read_bytes(), spans, run_folder)


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> tuple[Left, Left]:
    """Of two runs."""
    place = tmp_path_factory.mktemp("damage")
    return killed(place, "hit"), killed(place, "whole")


def count_up(program: Program) -> None:
    """A counter, a gauge, a histogram and an aggregated section."""
    journal = program.journal

    def cell(*content: object) -> int:
        return journal.cell(journal.entry(list(content)))

    journal.floats[cell("cell", "counter", "ml.user.tokens", "", [["lang", "de"]]) + 1] = 7.0
    journal.floats[cell("cell", "gauge", "ml.user.rate", "", []) + 1] = 0.5
    number = journal.entry(["cell", "histogram", "ml.user.lengths", "", []])
    head, bucket = journal.cell(number), journal.cell(number)
    for at, value in enumerate((9.0, 0.0, 4.0, 5.0), 1):
        journal.floats[head + at] = value
    journal.words[head + 7], journal.words[bucket + 7] = HistogramCell.HEAD, BUCKETS_AT + 2
    journal.words[bucket + 1] = 2
    word = cell(*aggregate("tiny", "outside", section=program.name("outside"), path="outside"))
    for at, value in enumerate((3, 900, 200, 400), 1):
        journal.words[word + at] = value


def places(shape: Shape) -> dict[str, tuple[int, int]]:
    """First and last byte of what is in use of each region."""
    return {
        "words": (0, 48 * WORD),
        "metadata": (META_AT, META_AT + 300),
        "cells": (shape.cells_at, shape.cells_at + 8 * CELL_BYTES),
        "table": (shape.table_at, shape.table_at + OPENED * OPEN_BYTES),
        "entries": (shape.entries_at, shape.entries_at + 30 * CHUNK_BYTES),
        "ring": (shape.ring_at, shape.ring_at + STEPS * 12 * ROW_BYTES),
    }


def damaged(whole: bytes, region: str, writes: list[tuple[int, bytes]]) -> tuple[bytes, set[str]]:
    """The journal afterwards, and the ids of the sections whose rows were hit."""
    shape = Shape.of_size(len(whole))
    assert shape is not None
    low, high = places(shape)[region]
    journal, hit = bytearray(whole), set[str]()
    for offset, data in writes:
        at = low + offset % (high - low)
        end = min(at + len(data), high)
        journal[at:end] = data[: end - at]
        for row in range(
            (at - shape.ring_at) // ROW_BYTES, (end - 1 - shape.ring_at) // ROW_BYTES + 1
        ):
            span = shape.ring_at + row * ROW_BYTES + 2 * WORD
            hit.add(f"{int.from_bytes(whole[span : span + WORD], 'little'):016x}")
    return bytes(journal), hit


@pytest.mark.sampled(1)
@pytest.mark.fault("F94")
@pytest.mark.parametrize("region", REGIONS)
@settings(max_examples=20)
@given(writes=WRITES)
def test_damage_costs_what_it_hit(left, region, writes):
    """No reader raises, what was not hit is delivered, the account adds up, and other runs are."""
    hit_run, whole_run = left
    journal, hit = damaged(hit_run.journal, region, writes)
    hit_run.restore(journal)
    whole_run.restore(whole_run.journal)
    look(hit_run.path)
    found = recover_journals(ENVIRON, [hit_run.path.parent, whole_run.path.parent])

    assert not whole_run.path.exists()
    assert whole_run.account["delivered"] == whole_run.account["created"] == len(whole_run.spans)
    if hit_run.path.exists():  # nobody can say of which run it is
        assert region in ("words", "metadata")
        assert [str(hit_run.path) in why for why in found.failed] == [True]
        assert not any(hit_run.run_folder.iterdir())
        return
    assert (found.read, found.failed) == (2, [])
    assert adds_up(hit_run.account)
    assert "internal" not in hit_run.account["lost"]
    arrived = {row["span_id"] for row in table(hit_run.run_folder, "spans")}
    assert len(hit_run.spans - hit - arrived) <= (OPENED if region == "table" else 0)


def look(path: Path) -> None:
    """What ``top`` shows of it."""
    try:
        reader = JournalReader(str(path), is_writable=False)
    except JournalError:
        return
    look_at(reader, 0)
    reader.close()


@pytest.mark.fault("F94")
def test_losses_that_were_written_over_are_not_believed(program, agent_of, run_folder) -> None:
    """The account says what the program has counted, whatever the word said in between."""
    agent, journal = agent_of(program), program.journal
    program.step(0)
    journal.count(Word.LOST_RING_FULL, 3)
    for said in (3, 1 << 62, 0, 77):
        journal.words[Word.LOST_RING_FULL] = said
        agent.tick()
        agent.mark()
    journal.close()
    agent.run()

    account = accounts(run_folder)["spans"]["store"]
    assert (account["lost"], account["created"]) == ({"ring_full": 3}, program.sections + 3)
    assert adds_up(account)


@pytest.mark.fault("F94")
@pytest.mark.parametrize("state", [State.CLOSED, 7])
def test_a_state_that_was_written_over_ends_no_journal(
    program, agent_of, run_folder, state
) -> None:
    """What comes after is read too, and the run has finished where its process says so."""
    agent, journal = agent_of(program), program.journal
    journal.words[Word.STATE] = state
    program.step(0)
    agent.tick()
    agent.mark()
    program.step(10)
    program.section("run", 0, 20, span=program.run)
    journal.close()
    agent.run()

    assert accounts(run_folder)["spans"]["store"]["delivered"] == program.sections
    assert table(run_folder, "processes")[-1]["outcome"] == "finished"
